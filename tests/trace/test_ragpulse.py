"""RAGPulse: a small trace worked out by hand, the published one, and every fault in one line."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import InputError, KvschedError
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

Rows = list[dict[str, Any]]

SIDES: dict[str, tuple[str, dict[int, int]]] = {
    "1_sys_prompt.jsonl": ("sys_prompt_id", {100: 512, 101: 40}),
    "2_passages.jsonl": ("passage_id", {0: 84, 1: 286}),
    "3_history.jsonl": ("history_id", {200: 11}),
    "4_user_input.jsonl": ("user_input_id", {300: 9, 301: 6}),
    "5_web_search.jsonl": ("web_search_id", {400: 70}),
}


def request(time: str, tokens: int, session: str, **chunks: list[int]) -> dict[str, Any]:
    kinds = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    ids = {kind: chunks.get(kind, []) for kind in kinds}
    return {
        "timestamp": time,
        "input_length": tokens,
        "output_length": 5,
        "hash_ids": ids,
        "session_id": session,
    }


SAMPLE: Rows = [
    request(
        "82", 950, "a", sys_prompt=[100, 101], passages_ids=[1, 0], history=[200], user_input=[300]
    ),
    request("93", 940, "b", sys_prompt=[100, 101], passages_ids=[0, 1], user_input=[301]),
    request("90.5", 650, "a", sys_prompt=[100], history=[200], web_search=[400], user_input=[300]),
]


def write(folder: Path, rows: Rows) -> Path:
    for name, (id_field, lengths) in SIDES.items():
        lines = [json.dumps({id_field: chunk, "token_length": n}) for chunk, n in lengths.items()]
        (folder / name).write_text("\n".join(lines) + "\n")
    path = folder / "0_trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


def changed(row: int, **fields: Any) -> Rows:
    rows = [dict(each) for each in SAMPLE]
    rows[row] = {k: v for k, v in {**rows[row], **fields}.items() if v is not ...}
    return rows


def told(path: Path, **options: Any) -> str:
    with pytest.raises(KvschedError) as caught:
        load_trace(path, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_by_hand(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, SAMPLE))
    assert structural_fault(trace) is None
    assert trace.origin.format == "ragpulse"
    assert trace.origin.time_unit == "s"
    assert trace.time_s.tolist() == [0, 8.5, 11]
    assert trace.unequal
    # 82: 100 101 | 1 0 | 200 | 300;  90.5: 100 | 200 | 400 | 300;  93: 100 101 | 0 1 | 301
    assert trace.chains.tolist() == [0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 0, 1, 9, 10, 11]
    assert trace.key.tolist() == [100, 101, 1, 0, 200, 300, 200, 400, 300, 0, 1, 301]
    assert trace.tokens.tolist() == [512, 40, 286, 84, 11, 9, 11, 70, 9, 84, 286, 6]
    assert trace.chain_tokens.tolist() == [942, 602, 928]
    assert trace.input_tokens.tolist() == [950, 650, 940]
    assert trace.session is not None
    assert trace.session.names == ("a", "b")
    assert trace.origin.notes == ("1 row was out of time order and sorted",)
    assert trace.origin.settings["chunk_order"] == [
        "sys_prompt",
        "passages_ids",
        "history",
        "web_search",
        "user_input",
    ]


def test_order_of_the_object_does_not_matter(tmp_path: Path) -> None:
    digest = load_trace(write(tmp_path, SAMPLE)).digest
    turned = [{**row, "hash_ids": dict(reversed(row["hash_ids"].items()))} for row in SAMPLE]
    assert load_trace(write(tmp_path, turned)).digest == digest


def test_folder_file_and_packed_files(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    digest = load_trace(path).digest
    assert load_trace(tmp_path).digest == digest
    assert load_trace(tmp_path, "ragpulse").digest == digest
    side = tmp_path / "2_passages.jsonl"
    (tmp_path / "2_passages.jsonl.gz").write_bytes(gzip.compress(side.read_bytes()))
    side.unlink()
    (tmp_path / "0_trace.jsonl.zst").write_bytes(zstandard.compress(path.read_bytes()))
    path.unlink()
    assert load_trace(tmp_path).digest == digest
    assert load_trace(tmp_path / "0_trace.jsonl.zst").digest == digest


def test_as_published(shared_traces: Path) -> None:
    """Against dictionaries of whole prefixes, joined in the order of each row's own object."""
    folder = shared_traces / "ragpulse"
    trace = load_trace(folder)
    assert structural_fault(trace) is None
    lengths: dict[int, int] = {}
    for side in sorted(folder.glob("[1-5]_*.jsonl")):
        for line in side.read_text().split("\n"):
            if line:
                chunk, length = json.loads(line).values()
                assert lengths.setdefault(chunk, length) == length
    text = (folder / "0_trace.jsonl").read_text()
    rows = [json.loads(line) for line in text.split("\n") if line]
    rows.sort(key=lambda row: float(row["timestamp"]))
    assert len(trace) == len(rows) == 7_106
    seen: dict[tuple[int, ...], int] = {}
    chains: list[int] = []
    for row in rows:
        ids = list(itertools.chain.from_iterable(row["hash_ids"].values()))
        chains += [seen.setdefault(tuple(ids[: at + 1]), len(seen)) for at in range(len(ids))]
        assert 6 <= row["input_length"] - sum(lengths[each] for each in ids) <= 12
    assert trace.chains.tolist() == chains
    assert trace.tokens.tolist() == [lengths[prefix[-1]] for prefix in seen]
    assert trace.session is not None
    assert len(trace.session.names) == len({row["session_id"] for row in rows}) == 3_990


BAD_ROWS: dict[str, tuple[Rows, str]] = {
    "unknown chunk": (
        changed(1, hash_ids={**SAMPLE[1]["hash_ids"], "passages_ids": [7]}),
        "passages_ids chunk 7 has no length in 2_passages.jsonl",
    ),
    "chunk of another kind": (
        changed(1, hash_ids={**SAMPLE[1]["hash_ids"], "history": [400]}),
        "history chunk 400 has no length in 3_history.jsonl",
    ),
    "no object": (changed(1, hash_ids=[1]), '"hash_ids" must be an object, not a list'),
    "kind missing": (changed(1, hash_ids={"sys_prompt": [100]}), '"passages_ids" is missing'),
    "kind unknown": (
        changed(1, hash_ids={**SAMPLE[1]["hash_ids"], "tools": []}),
        "\"hash_ids\" has chunks of an unknown kind: 'tools'",
    ),
    "no list": (
        changed(1, hash_ids={**SAMPLE[1]["hash_ids"], "history": 200}),
        '"history" must be a list, not a number',
    ),
    "few tokens": (
        changed(1, input_length=927),
        "fewer tokens than the chunks hold: 927, but they hold 928",
    ),
    "word for a time": (changed(1, timestamp="x"), "\"timestamp\" must be a number, not 'x'"),
    "true for a time": (changed(1, timestamp=True), '"timestamp" must be a number, not true'),
    "no time": (changed(1, timestamp=...), '"timestamp" is missing'),
    "no output": (changed(1, output_length=...), '"output_length" is missing'),
    "session": (changed(1, session_id=[1]), '"session_id" must be a string, not a list'),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_or_counted(name: str, tmp_path: Path) -> None:
    rows, fault = BAD_ROWS[name]
    path = write(tmp_path, rows)
    assert told(path) == f"0_trace.jsonl, row 2: {fault}"
    trace = load_trace(path, skip_bad_rows=True)
    assert trace.digest == load_trace(write(tmp_path, [SAMPLE[0], SAMPLE[2]])).digest
    noted = f"1 bad row was left out; the first: 0_trace.jsonl, row 2: {fault}"
    assert noted in trace.origin.notes


BAD_SIDES: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "not valid JSON (column 2)"),
    "no length": ('{"passage_id": 9}', '"token_length" is missing'),
    "nothing": ('{"passage_id": 9, "token_length": 0}', '"token_length" must be 1 or more'),
    "two lengths": ('{"passage_id": 1, "token_length": 3}', "chunk 1 has two lengths: 286, 3"),
    "two kinds": (
        '{"passage_id": 100, "token_length": 512}',
        "chunk 100 is in 1_sys_prompt.jsonl too",
    ),
    "wide": (
        '{"passage_id": 18446744073709551616, "token_length": 5}',
        '"passage_id" does not fit in 64 bits: 18446744073709551616',
    ),
}


@pytest.mark.parametrize("name", BAD_SIDES)
def test_a_bad_length_is_named_or_counted(name: str, tmp_path: Path) -> None:
    line, fault = BAD_SIDES[name]
    path = write(tmp_path, SAMPLE)
    digest = load_trace(path).digest
    with (tmp_path / "2_passages.jsonl").open("a") as side:
        side.write(line + "\n")
    assert told(path) == f"2_passages.jsonl, row 3: {fault}"
    trace = load_trace(path, skip_bad_rows=True)
    assert trace.digest == digest
    noted = f"1 bad row was left out; the first: 2_passages.jsonl, row 3: {fault}"
    assert noted in trace.origin.notes


def test_files_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    (tmp_path / "5_web_search.jsonl").unlink()
    assert told(path) == "0_trace.jsonl: 5_web_search.jsonl is not beside it: it has the lengths"
    path.unlink()
    for named in ("ragpulse", None):
        with pytest.raises(InputError, match=r"has no 0_trace\.jsonl"):
            load_trace(tmp_path, named)
    path.mkdir()
    with pytest.raises(InputError, match=r"0_trace\.jsonl: is a folder, not a file"):
        load_trace(tmp_path)
    path.rmdir()
    for name in ("2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl"):
        (tmp_path / name).unlink()
    shutil.copy(tmp_path / "1_sys_prompt.jsonl", tmp_path / "weka.json")
    with pytest.raises(InputError, match=r"weka\.json"):
        load_trace(tmp_path)


def test_what_is_no_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE)
    side = tmp_path / "1_sys_prompt.jsonl"
    side.unlink()
    side.mkdir()
    with pytest.raises(InputError, match=r"1_sys_prompt\.jsonl: is a folder, not a file"):
        load_trace(tmp_path)
    side.rmdir()
    side.symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"1_sys_prompt\.jsonl: no such file"):
        load_trace(tmp_path)


def test_a_side_file_cut_short_is_no_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    side = tmp_path / "2_passages.jsonl"
    whole = side.read_bytes()
    side.write_bytes(whole.rstrip())
    assert len(load_trace(path, skip_bad_rows=True)) == 3
    side.write_bytes(whole[:-5])
    said = "2_passages.jsonl, row 2: the last line is cut short: no whole JSON object, and no"
    assert told(path, skip_bad_rows=True).startswith(said)
    assert "2_passages.jsonl, row 2" in told(path)


def test_wrong_options(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    assert told(path, block_size=16) == (
        "--block-size means nothing for a trace in the format ragpulse"
    )
    assert load_trace(path, time_unit="ms").time_s.tolist() == [0, 0.0085, 0.011]


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3)
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(
    derandomize=True,
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    row=st.integers(0, 2),
    name=st.sampled_from([*SAMPLE[0], "hash_ids.history", "hash_ids.sys_prompt"]),
    value=values,
    cut=st.integers(0, 900),
    skip=st.booleans(),
)
def test_a_sound_trace_or_one_line(
    row: int, name: str, value: Any, cut: int, skip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "ragpulse"
    folder.mkdir(exist_ok=True)
    field, _, kind = name.partition(".")
    changes = {field: {**SAMPLE[row]["hash_ids"], kind: value} if kind else value}
    path = write(folder, changed(row, **changes))
    data = path.read_bytes()
    for content in (data, data[:cut]):
        path.write_bytes(content)
        trace: Trace | None = None
        try:
            trace = load_trace(path, "ragpulse", skip_bad_rows=skip)
        except InputError as error:
            message = str(error)
        if trace is None:
            assert "\n" not in message
        else:
            assert structural_fault(trace) is None
