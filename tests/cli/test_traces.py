"""`kvsched trace info` on logs of messages: the options that say how text becomes tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

ROWS = [
    {"messages": [{"role": "user", "content": "a b c"}], "created": 1700000000},
    {"messages": [{"role": "user", "content": "a b c d"}], "created": 1700000004},
]


def info(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsched", "trace", "info", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def test_without_a_choice(log: str) -> None:
    ended = info(log)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "kvsched: a log of messages holds text: say how it becomes tokens, with --tokenizer FILE "
        "(a tokenizer.json) and --chat-template FILE, or with --bytes-per-token N\n"
    )


def test_bytes(log: str) -> None:
    ended = info(log, "--bytes-per-token", "4", "--block-size", "2", "--format", "json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    # `user`, the words and two line breaks: 11 and 13 bytes, 8 a block
    assert (found["prompt_tokens"], found["blocks"], found["distinct_blocks"]) == (3 + 4, 4, 3)
    assert found["settings"]["bytes_per_token"] == 4
    assert "note: text is cut into blocks at 4 bytes a token" in ended.stderr


def test_tokenizer_and_template(log: str, tmp_path: Path) -> None:
    words = {word: i for i, word in enumerate(["?", "a", "b", "c", "d"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    ended = info(
        log,
        *("--tokenizer", str(tmp_path / "tokenizer.json")),
        *("--chat-template", str(tmp_path / "chat.jinja")),
        *("--block-size", "3", "--format", "json"),
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["prompt_tokens"], found["blocks"], found["distinct_blocks"]) == (7, 3, 2)
    assert str(tmp_path) not in ended.stdout


def test_a_format_without_text_refuses_the_options(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}\n')
    ended = info(str(path), "--bytes-per-token", "4")
    assert ended.returncode == 2
    assert ended.stderr == (
        "kvsched: --bytes-per-token means nothing for a trace in the format mooncake\n"
    )
