"""The registry: what it keeps, what it refuses, and what `verify` finds."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from some_records import a_record, unguarded

from kvsched.evidence import registry_file
from kvsched.evidence.record import Record, checksum_of, sealed
from kvsched.evidence.record_check import canonical
from kvsched.evidence.registry import FIRST_LINK, Registry, link_after
from kvsched.evidence.registry_file import COLUMNS, default_registry_path
from kvsched.foundation.errors import InputError, KvschedError, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite"


@pytest.fixture
def three(path: Path) -> list[Record]:
    with Registry(path) as registry:
        first = registry.add(a_record(name="first"))
        second = registry.add(a_record(task="scheduler", decision="tune", status="failed"))
        third = registry.add(a_record(name="third", corrects=first.record_id))
    return [first, second, third]


def test_a_record_is_kept_as_it_is_sealed(path: Path) -> None:
    record = a_record()
    with Registry(path) as registry:
        kept = registry.add(record)
        assert kept == sealed(record)
        assert kept.checksum == checksum_of(record)
        assert registry.get(record.record_id) == kept
        assert registry.verify() == []
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_second_record_of_the_same_id_is_refused(path: Path, three: list[Record]) -> None:
    other = msgspec.structs.replace(three[0], reason="better", checksum="")
    with Registry(path) as registry:
        for again in (three[0], other):
            with pytest.raises(UsageError, match="never overwritten"):
                registry.add(again)
        assert registry.list() == three


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"metrics": {"a": float("nan")}}, "metrics.a: nan"),
        ({"detail": {"a": [{"b": float("inf")}]}}, "detail.a.0.b: inf"),
        ({"config": {1: 2}}, "config: the key 1"),
        ({"config": {"a": {1, 2}}}, "config.a: set"),
        ({"config": {"a": "\ud800"}}, "config.a: holds half"),
        ({"metrics": {"a": True}}, "metrics"),
        ({"metrics": {"a": "fast"}}, "metrics"),
        ({"metrics": {"a": np.float64(1)}}, "metrics.a: float64 is no value"),
        ({"detail": {"a": np.int64(1)}}, "detail.a: int64 is no value"),
        ({"metrics": {"a": 2**63}}, "metrics.a: is beyond"),
        ({"metrics": {"": 1}}, "metrics: ''"),
        ({"metrics": {"a": 1}, "missing": {"a": "none"}}, "missing.a"),
        ({"task": " "}, "task"),
        ({"task": "a\nb"}, "task"),
        ({"decision": "maybe"}, "decision"),
        ({"status": "fine"}, "status"),
        ({"evidence_level": "felt"}, "evidence_level"),
        ({"workload_digest": ""}, "workload_digest"),
        ({"corrects": "xyz"}, "corrects"),
        ({"corrects": "0" * 32}, "corrects: there is no record"),
    ],
)
def test_an_unsound_record_is_refused_by_field(
    path: Path, changes: dict[str, Any], fault: str
) -> None:
    with Registry(path) as registry, pytest.raises(UsageError) as refused:
        registry.add(a_record(**changes))
    assert fault in str(refused.value)
    with Registry(path) as registry:
        assert registry.list() == []


def test_deep_and_sealed_wrongly(path: Path) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with Registry(path) as registry:
        with pytest.raises(UsageError, match="detail: nested more than 100"):
            registry.add(a_record(detail=deep))
        for changes, fault in (
            ({"checksum": "0" * 64}, "checksum: is not that"),
            ({"record_id": "ABC"}, "record_id"),
            ({"created_at": "2026-01-31"}, "created_at"),
            ({"created_at": "2026-13-31T09:30:00.000000Z"}, "created_at"),
            ({"schema_version": 2}, "schema_version: 2 is not 1"),
        ):
            with pytest.raises(UsageError, match=fault):
                registry.add(msgspec.structs.replace(a_record(), **changes))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET reason = 'x'",
        "UPDATE records SET task = 'x' WHERE seq = 1",
        "DELETE FROM records WHERE seq = 3",
        "INSERT OR REPLACE INTO records SELECT * FROM records WHERE seq = 1",
        "INSERT OR IGNORE INTO records SELECT * FROM records WHERE seq = 1",
        "INSERT INTO records SELECT * FROM records WHERE seq = 1 "
        "ON CONFLICT DO UPDATE SET task = 'x'",
        "REPLACE INTO records SELECT 1, 'f', created_at, task, name, evidence_level, status, "
        "decision, NULL, NULL, checksum, link, body FROM records WHERE seq = 2",
        "REPLACE INTO records SELECT 4, record_id, created_at, task, name, evidence_level, status, "
        "decision, NULL, NULL, checksum, link, body FROM records WHERE seq = 2",
        "INSERT INTO records SELECT 9, 'f', created_at, task, name, evidence_level, status, "
        "decision, NULL, NULL, checksum, link, body FROM records WHERE seq = 2",
    ],
)
def test_the_database_itself_refuses_changes(
    path: Path, three: list[Record], statement: str
) -> None:
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.Error):
        connection.execute(statement)
    connection.commit()
    connection.close()
    with Registry(path) as registry:
        assert registry.list() == three
        assert registry.verify() == []


OTHER = {
    "evidence_level": "theoretical",
    "status": "blocked",
    "decision": "reject",
    "created_at": "2026-01-31T09:30:00.000001Z",
}


@pytest.mark.parametrize("column", [*COLUMNS, "link", "body"])
def test_a_changed_column_is_found(path: Path, three: list[Record], column: str) -> None:
    value: Any = OTHER.get(column, "f" * 32)
    if column == "body":
        value = canonical(msgspec.structs.replace(three[1], reason="all is well"))
    statement = f"UPDATE records SET {column} = ? WHERE seq = 2"  # noqa: S608, a name of ours
    unguarded(path, statement, values=(value,))
    with Registry(path) as registry:
        faults = registry.verify()
    assert faults
    about = {"body": "its checksum", "link": "link"}.get(column, f"its column {column}")
    assert any(about in fault and "(row 2)" in fault for fault in faults)


def test_every_bit_of_a_body_counts(path: Path, three: list[Record]) -> None:
    body = canonical(three[1])
    for at in range(0, len(body), 29):
        changed = bytearray(body)
        changed[at] ^= 1
        unguarded(path, "UPDATE records SET body = ? WHERE seq = 2", values=(bytes(changed),))
        with Registry(path) as registry:
            assert any("(row 2)" in fault for fault in registry.verify()), at
    unguarded(path, "UPDATE records SET body = ? WHERE seq = 2", values=(body,))
    with Registry(path) as registry:
        assert registry.verify() == []


def test_a_body_of_another_type_or_without_end_is_found(path: Path, three: list[Record]) -> None:
    deep = b'{"detail":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    for body, said in ((canonical(three[1]).decode(), "kept as str"), (5, "int"), (deep, "no rec")):
        unguarded(path, "UPDATE records SET body = ? WHERE seq = 2", values=(body,))
        with Registry(path) as registry:
            assert any(said in fault and "(row 2)" in fault for fault in registry.verify())


def test_text_that_is_no_utf8_is_a_fault_of_its_row(path: Path, three: list[Record]) -> None:
    for column in ("name", "checksum", "link"):
        unguarded(path, f"UPDATE records SET {column} = CAST(X'FF41' AS TEXT) WHERE seq = 2")  # noqa: S608
        with Registry(path) as registry:
            faults = registry.verify()
        assert any("(row 2)" in fault for fault in faults), column
        assert all(fault.isprintable() for fault in faults)
    # The same in what SQLite quotes of a damaged schema.
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"CREATE INDEX records_corrects", b"CREATE \xff\xfeDEX records_corrects")
    )
    with pytest.raises(KvschedError, match="damaged"), Registry(path) as registry:
        registry.list()


def test_filters_that_no_record_can_meet(path: Path, three: list[Record]) -> None:
    with Registry(path) as registry:
        assert registry.list(limit=10**30) == three
        with pytest.raises(UsageError, match=r"--task '\\udcff'"):
            registry.list(task="\udcff")


def rewritten(record: Record, **changes: Any) -> tuple[str, bytes]:
    made = sealed(msgspec.structs.replace(record, **changes))
    return made.checksum, canonical(made)


def test_a_record_that_is_sealed_anew_breaks_the_chain(path: Path, three: list[Record]) -> None:
    unguarded(
        path,
        "UPDATE records SET checksum = ?, body = ? WHERE seq = 2",
        values=rewritten(three[1], reason="all is well"),
    )
    with Registry(path) as registry:
        (fault,) = registry.verify()
    assert "row 2" in fault
    assert "link" in fault


@pytest.mark.parametrize(
    ("statements", "fault"),
    [
        (["DELETE FROM records WHERE seq = 1"], "row 1 is missing"),
        (["DELETE FROM records WHERE seq = 2"], "row 2 is missing"),
        (["DELETE FROM records WHERE seq < 3"], "row 1 to 2 is missing"),
        (["DELETE FROM records WHERE seq = 3"], "3 records were added, and the last row is 2"),
        (["DELETE FROM records"], "3 records were added, and the last row is 0"),
        (
            ["DELETE FROM records WHERE seq = 2", "UPDATE records SET seq = 2 WHERE seq = 3"],
            "its link to the row before is broken",
        ),
        (
            [
                "UPDATE records SET seq = 9 WHERE seq = 1",
                "UPDATE records SET seq = 1 WHERE seq = 2",
                "UPDATE records SET seq = 2 WHERE seq = 9",
            ],
            "its link to the row before is broken",
        ),
        (["DROP INDEX records_corrects"], "index records_corrects is missing"),
        (["CREATE TABLE more (a)"], "table more does not belong here"),
        (["CREATE VIEW more AS SELECT 1"], "view more does not belong here"),
    ],
)
def test_missing_and_moved_rows_are_found(
    path: Path, three: list[Record], statements: list[str], fault: str
) -> None:
    unguarded(path, *statements)
    with Registry(path) as registry:
        assert any(fault in each for each in registry.verify())


def test_taken_off_triggers_are_found(path: Path, three: list[Record]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER records_kept")
    connection.execute("DROP TRIGGER records_unchanged")
    connection.execute(
        "CREATE TRIGGER records_unchanged BEFORE UPDATE ON records BEGIN SELECT 1; END"
    )
    connection.commit()
    connection.close()
    with Registry(path) as registry:
        assert registry.verify() == [
            "trigger records_unchanged was changed",
            "trigger records_kept is missing",
        ]


def test_a_whole_chain_made_anew_is_found_by_a_noted_link(path: Path, three: list[Record]) -> None:
    with Registry(path) as registry:
        count, head = registry.head()
        assert count == 3
        registry.add(a_record())
        assert registry.verify(head) == []
        assert registry.verify(FIRST_LINK) == []
    checksum, body = rewritten(three[0], reason="all is well")
    made = msgspec.json.decode(body, type=Record)
    link = link_after(FIRST_LINK, 1, made, body)
    unguarded(
        path,
        "DELETE FROM records WHERE seq > 1",
        "UPDATE records SET checksum = ?, body = ?, link = ?",
        "UPDATE sqlite_sequence SET seq = 1",
        values=(checksum, body, link),
    )
    with Registry(path) as registry:
        assert registry.verify() == [], "the file alone cannot show it"
        assert registry.verify(head) == [
            f"the link {head} is not in the chain: records were removed or exchanged"
        ]


def test_filters(path: Path, three: list[Record]) -> None:
    late = "2026-01-31T09:30:00.000001Z"
    with Registry(path) as registry:
        first, second, third = three
        assert registry.list(task="scheduler") == [second]
        assert registry.list(decision="accept") == [first, third]
        assert registry.list(status="failed", task="prefix-cache") == []
        assert registry.list(evidence_level="real_benchmark", limit=2) == [second, third]
        assert registry.list(since=first.created_at) == three
        assert registry.list(since=late) == []
        assert registry.corrections() == {first.record_id: (third.record_id,)}
        for wrong in ({"decision": "x"}, {"status": "x"}, {"evidence_level": "x"}, {"limit": 0}):
            with pytest.raises(UsageError):
                registry.list(**wrong)  # type: ignore[arg-type]
        assert registry.list(task="' OR 1 --") == []


def test_ids_by_prefix(path: Path) -> None:
    ids = ["ab" + "0" * 30, "ab1" + "0" * 29, "c" * 32]
    with Registry(path) as registry:
        for each in ids:
            registry.add(msgspec.structs.replace(a_record(), record_id=each))
        assert registry.get("c").record_id == ids[2]
        assert registry.get("AB1").record_id == ids[1]
        with pytest.raises(UsageError) as refused:
            registry.get("ab")
        assert ids[0] in str(refused.value)
        assert ids[1] in str(refused.value)
        for wrong in ("", "%", "d", "ab0g", "_", "c" * 33):
            with pytest.raises(UsageError):
                registry.get(wrong)


def test_reading_makes_nothing(path: Path) -> None:
    with Registry(path) as registry:
        assert registry.list() == []
        assert registry.corrections() == {}
        assert registry.head() == (0, FIRST_LINK)
        assert not registry.known()
        with pytest.raises(UsageError, match="there is no registry"):
            registry.get("a")
        with pytest.raises(UsageError, match="there is no registry"):
            registry.verify()
    assert list(path.parent.iterdir()) == []


def test_a_snapshot_is_of_one_moment(path: Path, three: list[Record]) -> None:
    with Registry(path) as reader, Registry(path) as writer, reader.snapshot():
        assert reader.list() == three
        writer.add(a_record())
        assert reader.list() == three
        assert len(writer.list()) == 4


def test_what_is_no_registry(path: Path, tmp_path: Path) -> None:
    def refused(place: Path | str, fault: str) -> None:
        before = (
            Path(place).read_bytes() if "\0" not in str(place) and Path(place).is_file() else b""
        )
        for use in (lambda it: it.list(), lambda it: it.add(a_record())):
            with pytest.raises(UsageError) as error, Registry(place) as registry:
                use(registry)
            assert fault in str(error.value)
            assert "\n" not in str(error.value)
        if before:
            assert Path(place).read_bytes() == before

    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    refused(text, "is no registry of records")
    refused(tmp_path, "is a folder")
    refused("a\0b", "no file can have that name")
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    refused(other, "another program's database")
    with Registry(path) as registry:
        registry.add(a_record())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    refused(path, "version 2, and this kvsched knows 1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(pipe, "no plain file")
    with pytest.raises(UsageError, match=r"cannot be made|cannot be opened"):
        Registry(text / "under" / "r.sqlite").add(a_record())


def test_an_empty_file_becomes_a_registry(path: Path) -> None:
    path.touch()
    with Registry(path) as registry:
        assert not registry.known()
        registry.add(a_record())
        assert registry.verify() == []


def test_a_locked_registry(
    path: Path, three: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_file, "BUSY_S", 0.05)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with Registry(path) as registry:
        assert registry.list() == three, "a writer keeps no reader out"
        with pytest.raises(KvschedError, match="is locked by another process") as error:
            registry.add(a_record())
        assert error.value.exit_code == 1
        connection.execute("ROLLBACK")
        registry.add(a_record())
    connection.close()


def test_a_full_disk(path: Path, three: list[Record]) -> None:
    with Registry(path) as registry:
        connection = registry._writing()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(KvschedError, match="disk is full") as error:
            registry.add(a_record(detail={"a": "x" * 100_000}))
        assert error.value.exit_code == 1
        assert registry.list() == three
        assert registry.verify() == []


def test_a_damaged_file(path: Path) -> None:
    with Registry(path) as registry:
        for _ in range(30):
            registry.add(a_record(detail={"a": "x" * 2000}))
    whole = path.read_bytes()
    for cut in (whole[: len(whole) // 2], whole[:20_000] + b"\xff" * 4096 + whole[24_096:]):
        path.write_bytes(cut)
        with Registry(path) as registry:
            try:
                assert registry.verify() != []
            except KvschedError as error:
                assert "damaged" in str(error)  # noqa: PT017, either is a find


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="takes another user's rights")
def test_read_only_files_and_folders() -> None:
    """As another user, since the superuser may write everywhere."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "records.sqlite"
    try:
        with Registry(path) as registry:
            registry.add(a_record())
        folder.chmod(0o755)
        path.chmod(0o644)
        code = (
            "import os, sys\n"
            "from kvsched.evidence.record_new import new_record\n"
            "from kvsched.evidence.registry import Registry\n"
            "from kvsched.foundation.errors import UsageError\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "registry = Registry(sys.argv[1])\n"
            "print(len(registry.list()), registry.verify())\n"
            "record = new_record(task='t', evidence_level='theoretical', status='ok')\n"
            "for place in (sys.argv[1], sys.argv[2]):\n"
            "    try:\n"
            "        Registry(place).add(record)\n"
            "    except UsageError as error:\n"
            "        print(error)\n"
        )
        run = [sys.executable, "-c", code, path, folder / "new.sqlite"]
        ended = subprocess.run(run, capture_output=True, text=True, check=False)
        assert ended.stderr == ""
        listed, *refused = ended.stdout.splitlines()
        assert listed == "1 []"
        assert len(refused) == 2
        assert all("cannot be written (permission denied)" in each for each in refused)
        assert [each.name for each in folder.iterdir()] == [path.name]
    finally:
        shutil.rmtree(folder)


def test_import_is_all_or_nothing(path: Path, three: list[Record], tmp_path: Path) -> None:
    new = sealed(a_record())
    other = sealed(msgspec.structs.replace(three[0], reason="other"))
    orphan = sealed(a_record(corrects="0" * 32))
    with Registry(path) as registry:
        for wrong, fault in (
            (other, "another record has the id"),
            (orphan, "corrects: there is no"),
        ):
            with pytest.raises(InputError) as error:
                registry.import_records([(1, new), (2, wrong)], "in.jsonl")
            assert str(error.value).startswith(f"in.jsonl, row 2: {fault}")
            assert registry.list() == three
        result = registry.import_records([(1, three[0]), (2, new), (3, new)], "in.jsonl")
        assert result.added == (new.record_id,)
        assert result.present == (three[0].record_id, new.record_id)
        assert registry.verify() == []


def test_where_records_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVSCHED_REGISTRY", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_registry_path() == tmp_path / "kvsched" / "records.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_registry_path() == tmp_path / ".local/share/kvsched/records.sqlite"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_registry_path().parts[-4:-2] == ("Library", "Application Support")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert default_registry_path() == tmp_path / "local" / "kvsched" / "records.sqlite"
    monkeypatch.setenv("KVSCHED_REGISTRY", str(tmp_path / "mine"))
    assert default_registry_path() == tmp_path / "mine"


def test_importing_the_registry_is_light() -> None:
    code = (
        "import kvsched.evidence.registry, kvsched.evidence.record_new, sys\n"
        "print({'numpy', 'numba', 'typer', 'rich', 'polars'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=3)


@settings(max_examples=60)
@given(config=OBJECT, detail=OBJECT, value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_json_comes_back_the_same(
    config: dict[str, Any], detail: dict[str, Any], value: float
) -> None:
    record = a_record(config=config, detail=detail, metrics={"a": value}, missing={})
    with tempfile.TemporaryDirectory() as folder, Registry(Path(folder) / "r") as registry:
        kept = registry.add(record)
        assert kept == sealed(record)
        assert registry.list() == [kept]
        assert registry.verify() == []
