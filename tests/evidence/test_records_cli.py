"""`kvsched records`, as a user at the terminal."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from some_records import PROBE, a_record
from typer.testing import CliRunner

from kvsched.cli.app import app
from kvsched.evidence.record import Record, sealed
from kvsched.evidence.record_check import canonical
from kvsched.evidence.registry import Registry
from kvsched.foundation.errors import KvschedError, UsageError


class Terminal:
    """Runs commands in this process: what they print, and how they end."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Return stdout, or what is said of an error."""
        ended, said = 0, ""
        try:
            ended = app(["records", *map(str, arguments)], standalone_mode=False) or 0
        except KvschedError as error:
            ended, said = error.exit_code, str(error)
        out, err = self.capsys.readouterr()
        assert ended == code, (out, err, said)
        assert "\n" not in said
        return out if not said else err + said


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSCHED_REGISTRY", str(tmp_path / "reg" / "records.sqlite"))
    return tmp_path / "reg" / "records.sqlite"


@pytest.fixture
def kvsched(path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def written(folder: Path, name: str, value: Any) -> Path:
    file = folder / name
    file.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return file


@pytest.fixture
def two(kvsched: Terminal, tmp_path: Path) -> tuple[str, str]:
    probe = written(tmp_path, "probe.json", PROBE)
    first = kvsched("add", probe).strip()
    second = kvsched(
        "add", probe, "--corrects", first[:10], "--name", "second", "--decision", "accept"
    ).strip()
    return first, second


def test_a_missing_registry(kvsched: Terminal, path: Path) -> None:
    said = kvsched("list")
    assert f"There is no registry at {path} yet" in said
    assert "kvsched records add FILE" in said
    assert kvsched("list", "--format", "json") == "[]\n"
    for command in (("show", "a"), ("export", "--format", "csv"), ("verify",)):
        assert "there is no registry" in kvsched(*command, code=2)
    assert not path.parent.exists()


def test_add_list_show(kvsched: Terminal, two: tuple[str, str]) -> None:
    first, second = two
    shown = kvsched("list")
    assert f"superseded by {second[:8]}" in shown
    assert f"corrects {first[:8]}" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    listed = json.loads(kvsched("list", "--format", "json"))
    assert [each["record_id"] for each in listed] == [first, second]
    assert listed[0]["superseded_by"] == [second]
    assert "detail" not in listed[0]
    exact = json.loads(kvsched("show", second[:9], "--format", "json"))
    assert exact["detail"] == PROBE
    assert exact["corrects"] == first
    shown = kvsched("show", first)
    assert second in shown
    assert "allocation_ms" in shown


def test_filters(kvsched: Terminal, two: tuple[str, str]) -> None:
    first, second = two

    def ids(*arguments: object) -> list[str]:
        listed = json.loads(kvsched("list", "--format", "json", *arguments))
        return [each["record_id"] for each in listed]

    assert ids("--decision", "accept") == [second]
    assert ids("--task", "gpu-kv-probe", "--limit", 1) == [second]
    assert ids("--since", "1d") == [first, second]
    assert ids("--since", "2999-01-01") == []
    assert ids("--evidence-level", "synthetic_gpu_block_probe", "--status", "ok") == [first, second]
    assert "No record is like that" in kvsched("list", "--task", "none")
    for wrong in (("--decision", "x"), ("--since", "x"), ("--limit", 0), ("--format", "xml")):
        assert str(wrong[0]) in kvsched("list", *wrong, code=2)


def test_compare(kvsched: Terminal, two: tuple[str, str], tmp_path: Path) -> None:
    first, second = two
    shown = kvsched("compare", first, second)
    assert "Configuration: the same" in shown
    other = kvsched("add", written(tmp_path, "o.json", canonical(sealed(a_record())))).strip()
    assert "--any-workload" in kvsched("compare", first, other, code=2)
    shown = kvsched("compare", first, other, "--any-workload")
    assert "Warning: The workloads differ" in shown
    assert "block_shape" in shown
    compared = json.loads(kvsched("compare", first, other, "--any-workload", "--format", "json"))
    assert compared["same_workload"] is False


def test_export_and_import(
    kvsched: Terminal, two: tuple[str, str], tmp_path: Path, path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    kvsched("export", "--output", file)
    kept = file.read_bytes()
    nothing = ("--evidence-level", "profiler_trace")
    assert "nothing is written" in kvsched("export", "--output", file, *nothing, code=2)
    assert file.read_bytes() == kept
    assert kvsched("import", file).endswith("2 left out: already there, the same\n")
    other = tmp_path / "other.sqlite"
    assert "2 added" in kvsched("import", file, "--registry", other)
    again = kvsched("export", "--format", "jsonl", "--registry", other)
    assert again.encode() == file.read_bytes()
    for name in ("a.csv", "a.parquet", "a.md", "a.html"):
        kvsched("export", "--output", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100
    assert kvsched("export", "--format", "csv") == (tmp_path / "a.csv").read_bytes().decode()
    assert kvsched("export", "--format", "jsonl", "--limit", 1).encode() in file.read_bytes()
    only = json.loads(kvsched("import", file, "--registry", other, "--format", "json"))
    assert only == {"added": [], "present": list(two)}
    before = path.read_bytes()
    assert "never written over" in kvsched("export", "-o", path, "--format", "csv", code=2)
    assert path.read_bytes() == before
    assert "needs --output" in kvsched("export", "--format", "parquet", code=2)
    for wrong in (tmp_path / "none" / "a.csv", "a\0.csv"):
        kvsched("export", "-o", wrong, code=2)
    for wrong in (tmp_path / "none.jsonl", tmp_path, "a\0b"):
        kvsched("import", wrong, code=2)


def test_an_import_with_one_bad_line_adds_none(
    kvsched: Terminal, two: tuple[str, str], tmp_path: Path
) -> None:
    good, bad = canonical(sealed(a_record())), canonical(sealed(a_record()))
    file = written(tmp_path, "in.jsonl", good + b"\n" + bad.replace(b"12.5", b"12.4") + b"\n")
    said = kvsched("import", file, code=2)
    assert said.endswith(
        "in.jsonl, row 2: checksum: is not that of the record, which was changed after it was made"
    )
    assert "2 records, all sound" in kvsched("verify")


def test_verify(kvsched: Terminal, two: tuple[str, str], path: Path) -> None:
    sound = json.loads(kvsched("verify", "--format", "json"))
    assert sound["faults"] == []
    assert kvsched("verify", "--head", sound["head"]).startswith("2 records, all sound")
    assert "is not in the chain" in kvsched("verify", "--head", "f" * 64, code=1)
    assert "64 hexadecimal digits" in kvsched("verify", "--head", "deadbeef", code=2)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER records_unchanged")
    connection.execute("UPDATE records SET decision = 'accept'")
    connection.commit()
    connection.close()
    said = kvsched("verify", code=1)
    assert "its column decision differs from its JSON" in said
    assert "trigger records_unchanged is missing" in said
    assert said.endswith("2 faults")
    assert len(json.loads(kvsched("verify", "--format", "json", code=1))["faults"]) == 2


def test_what_cannot_be_added(kvsched: Terminal, two: tuple[str, str], tmp_path: Path) -> None:
    finished = canonical(sealed(a_record()))
    file = written(tmp_path, "r.json", finished)
    record_id = kvsched("add", file).strip()
    assert "never overwritten" in kvsched("add", file, code=2)
    assert "is sealed" in kvsched("add", file, "--reason", "x", code=2)
    assert "no record 0123" in kvsched("add", file, "--corrects", "0123", code=2)
    written(tmp_path, "bad.json", {"task": "t", "metrics": {"a": "b"}})
    assert "bad.json: " in kvsched("add", tmp_path / "bad.json", code=2)
    assert "no such file" in kvsched("add", tmp_path / "none", code=2)
    assert json.loads(kvsched("show", record_id, "--format", "json"))["record_id"] == record_id


def test_as_a_process(path: Path) -> None:
    """From stdin to stdout, in ASCII too, and errors in one line."""

    def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "kvsched", "records", *arguments],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            input=data,
            capture_output=True,
            check=False,
        )

    record = sealed(a_record(name="größer"))
    assert run("add", "-", data=canonical(record)).returncode == 0
    shown = run("list")
    assert shown.returncode == 0
    assert b"prefix-cache: gr??er" in shown.stdout
    exported = run("export", "--format", "jsonl")
    assert exported.stdout == canonical(record) + b"\n", "a file's bytes know no encoding"
    refused = run("add", "-", data=b"{}")
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"kvsched: stdin: ")
    assert refused.stderr.count(b"\n") == 1
    assert run("import", "-", data=exported.stdout).returncode == 0


def test_the_pages_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    (block,) = re.findall(
        r"(?:^    .*\n|^\n(?=    ))*^    from kvsched.*\n(?:^    .*\n|^\n(?=    ))*", page, re.M
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(textwrap.dedent(block), "records.md", "exec"), {})  # noqa: S102, the page's own
    assert (tmp_path / "records.sqlite").exists()


def test_the_page_names_every_command_and_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    for command in app_commands():
        assert f"`{command} " in page or f"kvsched records {command}" in page, command
    for field in Record.__struct_fields__:
        assert f"`{field}`" in page, field


def app_commands() -> list[str]:
    from kvsched.cli.records import app as records

    return [str(each.name) for each in records.registered_commands]


def test_a_link_to_a_registry(
    kvsched: Terminal, two: tuple[str, str], tmp_path: Path, path: Path
) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    assert "2 records, all sound" in kvsched("verify", "--registry", link)
    assert "never written over" in kvsched(
        "export", "-o", path, "--format", "csv", "--registry", link, code=2
    )
    kvsched("list", "--registry", "x" * 5000, code=2)


def test_a_probe_does_not_write_over_the_records(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with Registry(path) as registry:
        registry.add(a_record())
    before = path.read_bytes()
    block = ["--kv-heads", "8", "--head-dim", "128", "--layers", "1", "--memory-share", "0.01"]
    for option in ("--output", "--html"):
        ended = CliRunner().invoke(
            app, ["probe", "--device", "cpu", *block, option, str(path), "--registry", str(path)]
        )
        assert isinstance(ended.exception, UsageError)
        assert "never written over" in str(ended.exception)
    assert path.read_bytes() == before
