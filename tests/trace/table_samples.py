"""Valid text tables and what the tests of them share."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from kvsched.foundation.errors import KvschedError
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

AZURE_2023 = b"""\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = b"""\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.001163+00:00,2162,5
2024-05-12 00:00:01+00:00,2399,6
2024-05-12 00:00:01.000001+00:00,76,15
"""
BURSTGPT = b"""\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURSTGPT_SESSIONS = b"""\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log
19440161.0,,2,ChatGPT,36,29,65,API log
"""
CSV = b"""\
timestamp,input_length,output_length,hash_ids,session_id,turn
1000,600,5,"[1, 2]",a,1
3000,600,5,"[1, 3]",a,2
4000,1025,7,"[1, 3, 4]",b,
"""
SAMPLES = {"azure": AZURE_2023, "burstgpt": BURSTGPT, "csv": CSV}


def load(folder: Path, data: bytes, **options: Any) -> Trace:
    path = folder / "table.csv"
    path.write_bytes(data)
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    return trace


def told(folder: Path, data: bytes, **options: Any) -> str:
    with pytest.raises(KvschedError) as caught:
        load(folder, data, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


def written(rows: list[list[str]], **options: Any) -> bytes:
    """Rows as CSV."""
    lines: list[str] = []

    class Sink:
        def write(self, text: str) -> None:
            lines.append(text)

    csv.writer(Sink(), lineterminator="\n", **options).writerows(rows)
    return "".join(lines).encode()
