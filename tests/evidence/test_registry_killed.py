"""Killed at any moment, a registry loses no finished record and keeps no half one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from killed import BATCH
from some_records import a_record

from kvsched.evidence.registry import Registry

KILLED = Path(__file__).with_name("killed.py")
ROUNDS = 200


def killed(folder: Path, rounds: int, variant: str) -> dict[str, list[str]]:
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, KILLED, folder, str(rounds), "7", variant],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def lost_or_broken(folder: Path, said: dict[str, list[str]]) -> list[str]:
    """Return what is wrong after the kills; nothing where a registry keeps its word."""
    faults = []
    for name, ids in said.items():
        registry = Registry(folder / name)
        if not registry.known():
            faults += [f"{name}: {each} lost" for each in ids]
            continue
        faults += [f"{name}: {fault}" for fault in registry.verify()]
        rows = registry._reading().execute("SELECT record_id FROM records")  # type: ignore[union-attr]
        held = {row[0] for row in rows}
        faults += [f"{name}: {each} lost" for each in ids if each not in held]
        registry.close()
    return faults


def test_no_finished_record_is_lost_and_no_half_one_left(tmp_path: Path) -> None:
    said = killed(tmp_path / "run", ROUNDS, "sound")
    assert len(said) == 1 + ROUNDS // 5
    # Kills met a registry in use, and some that were being made.
    assert len(said["shared.sqlite"]) > ROUNDS / 2
    assert any(len(ids) < 2 for ids in said.values())
    assert lost_or_broken(tmp_path / "run", said) == []
    for name in said:  # and each goes on as if nothing had happened
        with Registry(tmp_path / "run" / name) as registry:
            registry.add(a_record())
            assert registry.verify() == []


@pytest.mark.parametrize(
    ("variant", "fault"), [("early", "lost"), ("halves", "its JSON is no record")]
)
def test_the_check_sees_a_registry_that_breaks_its_word(
    tmp_path: Path, variant: str, fault: str
) -> None:
    said = killed(tmp_path / "run", 40, variant)
    assert any(fault in each for each in lost_or_broken(tmp_path / "run", said))


def test_an_import_that_is_killed_adds_all_or_none(tmp_path: Path) -> None:
    said = killed(tmp_path / "run", 30, "import")
    assert lost_or_broken(tmp_path / "run", said) == []
    with Registry(tmp_path / "run" / "shared.sqlite") as registry:
        assert registry.head()[0] % BATCH == 0


def test_two_processes_add_at_once(tmp_path: Path) -> None:
    path = tmp_path / "made" / "records.sqlite"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from kvsched.evidence.record_new import new_record\n"
        "from kvsched.evidence.registry import Registry\n"
        "registry = Registry(sys.argv[1])\n"
        "sys.stdin.readline()\n"
        "for at in range(60):\n"
        "    record = new_record(task='both', evidence_level='theoretical', status='ok',\n"
        "                        metrics={'at': at})\n"
        "    print(registry.add(record).record_id)\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in both:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=120)[0].split() for each in both]
    assert [each.returncode for each in both] == [0, 0]
    with Registry(path) as registry:
        held = [record.record_id for record in registry.list()]
        assert registry.verify() == []
    assert [len(ids) for ids in said] == [60, 60]
    assert sorted(held) == sorted(said[0] + said[1])
    for ids in said:  # each one's own order is kept
        assert [each for each in held if each in set(ids)] == ids


def test_a_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    """A kill cannot show it, only a power cut: the log is synchronised at every commit."""
    with Registry(tmp_path / "r.sqlite") as registry:
        registry.add(a_record())
        connection = registry._writing()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
