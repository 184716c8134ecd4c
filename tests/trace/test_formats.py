"""Telling one format from another by its first bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import SAMPLES, Sample, json_lines

from kvsched.foundation.errors import InputError
from kvsched.trace.formats import FORMATS, detect_format
from kvsched.trace.load import load_trace


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_only_the_right_reader_comes_first(sample: Sample) -> None:
    found = detect_format("file", sample.data[:65536]).name
    assert found == (sample.format if sample.detected else "mooncake")


def test_names_are_distinct_and_sentences_end_without_a_stop() -> None:
    names = [known.name for known in FORMATS]
    assert len(set(names)) == len(names)
    assert all(known.title and not known.title.endswith(".") for known in FORMATS)


def test_bailian_is_told_from_mooncake_by_the_chats_parent() -> None:
    """Their other fields are the same."""
    row = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1], "chat_id": 3}
    assert detect_format("file", json_lines([row])).name == "mooncake"
    row["parent_chat_id"] = -1
    assert detect_format("file", json_lines([row])).name == "bailian"


def test_messages_that_speak_of_other_formats() -> None:
    text = json.dumps({"requests": [], "hash_ids": [1], "parent_chat_id": 1, "chunk_hashes": []})
    row = {"timestamp": 1, "messages": [{"role": "user", "content": text}]}
    assert detect_format("file", json_lines([row])).name == "openai"
    row = {"timestamp": 1, "messages": [{"role": "user", "content": "x" * 100_000}]}
    assert detect_format("file", json_lines([row])[:65536]).name == "openai"


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 132054902\n")
    with pytest.raises(InputError, match="a pointer of Git LFS, not the trace: `git lfs pull`"):
        load_trace(path)
