"""Jobs in processes: answers, failures, and what is left when the caller goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvsched.foundation.children import in_children

CHILD = """
import os, time
from kvsched.foundation.children import answer_jobs

def do(job):
    print("what a job prints is no answer")
    kind, _, value = job.partition(" ")
    if kind == "fail":
        raise ValueError("two\\nlines")
    if kind == "die":
        os._exit(3)
    if kind == "wait":
        open(value, "w").write(str(os.getpid()))
        time.sleep(60)
    return {"pid": os.getpid(), "job": job}

if __name__ == "__main__":
    answer_jobs(do)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "made_child.py").write_text(CHILD)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return "made_child"


def test_every_job_is_answered_once(module: str) -> None:
    jobs = [f"add {number}" for number in range(9)]
    answers = dict(in_children(module, jobs, 3))
    assert sorted(answers) == sorted(jobs)
    assert all(answer["job"] == job for job, answer in answers.items())
    assert len({answer["pid"] for answer in answers.values()} - {os.getpid()}) <= 3


def test_a_job_that_fails_is_said_and_the_others_are_done(module: str) -> None:
    answers = dict(in_children(module, ["fail", "add 1"], 1))
    assert answers["fail"] == {"error": "ValueError: two lines"}
    assert answers["add 1"]["job"] == "add 1"


def test_a_child_that_dies_leaves_its_jobs_unanswered_not_the_caller(module: str) -> None:
    answers = dict(in_children(module, ["die", "add 1", "add 2"], 1))
    assert answers["die"] == {"error": "its process ended"}
    assert answers["add 1"] == answers["add 2"] == {"error": "no process could do it"}


def test_a_module_that_does_not_exist_answers_nothing() -> None:
    answers = dict(in_children("kvsched.nowhere", ["one", "two"], 2))
    assert all("error" in answer for answer in answers.values())
    assert len(answers) == 2


def test_leaving_ends_the_processes(module: str, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    answers = in_children(module, ["add 1", f"wait {waiting}"], 2)
    next(answers)
    while not (waiting.exists() and waiting.read_text()):
        time.sleep(0.05)
    began = time.monotonic()
    answers.close()
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(waiting.read_text()), 0)
