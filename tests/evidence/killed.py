"""Kill processes that add records, at random moments, and report what they said was added.

``python killed.py FOLDER ROUNDS SEED VARIANT``: each round forks a child that adds records to a
registry in FOLDER in a loop and writes each id to a pipe when `add` has returned; it is killed
after a random number of records and a random time. Most rounds share one registry, and every
eighth of them has two children at once; every fifth round has two that start a registry of its
own, to be killed while they make it. Prints JSON: the ids said, by registry. This process imports
once and forks, so that a round costs little.

Variants are broken on purpose: ``early`` says an id before it is committed, ``halves`` writes a row
in two steps without a transaction. ``import`` is sound, and adds BATCH records at a time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from kvsched.evidence.record import Record, sealed
from kvsched.evidence.record_check import canonical
from kvsched.evidence.record_new import new_record
from kvsched.evidence.registry import Registry
from kvsched.evidence.registry_file import COLUMNS, open_for_adding

BATCH = 40


def records() -> Record:
    return new_record(
        task="kill", evidence_level="cpu_simulation", status="ok", detail={"text": "x" * 3000}
    )


def add_for_ever(path: Path, pipe: int, variant: str) -> None:
    registry = Registry(path)
    while variant == "import":
        batch = [(row, sealed(records())) for row in range(BATCH)]
        registry.import_records(batch, "batch")
        os.write(pipe, b"".join(each.record_id.encode() + b"\n" for _, each in batch))
    while True:
        record = records()
        if variant == "early":
            os.write(pipe, record.record_id.encode() + b"\n")
        if variant == "halves":
            in_two_steps(path, record)
        else:
            registry.add(record)
        if variant != "early":
            os.write(pipe, record.record_id.encode() + b"\n")


def in_two_steps(path: Path, record: Record) -> None:
    connection = open_for_adding(path)
    for name in ("records_appended", "records_unchanged"):
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    columns = [getattr(record, name) for name in COLUMNS]
    marks = ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO records VALUES (NULL, {marks}, '', X'')", columns)  # noqa: S608, question marks
    body = canonical(sealed(record))
    connection.execute("UPDATE records SET body = ? WHERE record_id = ?", (body, record.record_id))
    connection.close()


def one_round(path: Path, children: int, after: int, moment_s: float, variant: str) -> list[str]:
    pipes, pids = [], []
    for _ in range(children):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(reading)
                add_for_ever(path, writing, variant)
            except Exception:  # noqa: BLE001, said, and not passed on to the parent's code
                traceback.print_exc()
            finally:
                os._exit(3)
        os.close(writing)
        pipes.append(reading)
        pids.append(pid)
    said = b""
    while said.count(b"\n") < after:  # so that every machine gets as far, however slow
        part = os.read(pipes[0], 33)
        assert part, "a child ended by itself"
        said += part
    time.sleep(moment_s)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pipe, pid in zip(pipes, pids, strict=True):
        _, status = os.waitpid(pid, 0)
        # A child that ended by itself found a fault: the round shows nothing then.
        assert os.WIFSIGNALED(status), f"a child ended by itself: {status}"
        while part := os.read(pipe, 65536):
            said += part
        os.close(pipe)
    return said.decode().split()


def main() -> None:
    folder, rounds, seed, variant = sys.argv[1:]
    drawn = random.Random(int(seed))  # noqa: S311, no secret
    said: dict[str, list[str]] = {}
    for at in range(int(rounds)):
        fresh = at % 5 == 4 and variant == "sound"
        name = f"{at}.sqlite" if fresh else "shared.sqlite"
        children = 2 if fresh or (at % 8 == 7 and variant == "sound") else 1
        after, most_s = (0, 0.006) if fresh else (drawn.randrange(4), 0.01)
        path = Path(folder) / name
        said.setdefault(name, []).extend(
            one_round(path, children, after, drawn.uniform(0, most_s), variant)
        )
    print(json.dumps(said))  # noqa: T201, its report


if __name__ == "__main__":
    main()
