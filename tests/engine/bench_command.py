"""`kvsched bench` in this process, and a stand-in for vLLM that it can launch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvsched.cli.app import app

STUB = Path(__file__).parent / "stub_vllm"
"""To be on PYTHONPATH: a package vllm whose server is the fake engine."""


def bench(*arguments: str, code: int = 0) -> Any:
    # In a thread: a browser's fixture leaves an event loop running in the main one.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(CliRunner().invoke, app, ["bench", *arguments]).result()
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == code, found.output
    return found
