"""Prompts as text: every word is one token, and what prompts share is what their texts share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import tokenizers
from fake_engine import fake_engine

from kvsched.engine.target import Target
from kvsched.evidence.bench.load import run_load
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.prompts import (
    PromptSettings,
    shared_prefix_trace,
    warm_up,
    workload_of,
)
from kvsched.evidence.bench.sent import workload_digest
from kvsched.evidence.bench.words import PromptWords, load_words
from kvsched.evidence.bench.workload import joined
from kvsched.evidence.schema import schemas
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve.traffic import Traffic

TRACE = shared_prefix_trace(3, 4, 40, 9, 5, seed=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with a few hundred words of one token."""
    letters = "bcdfghjklmnprstvwz"
    made_up = [a + v + b + w for a in letters for v in "ae" for b in letters[:9] for w in "io"]
    found = tokenizers.Tokenizer(tokenizers.models.BPE())
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1200,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    found.train_from_iterator([" ".join(made_up * 3), "a a a"], trainer)
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    found.save(str(path))
    return path


@pytest.fixture(scope="module")
def words(file: Path) -> PromptWords:
    return load_words(str(file))


def test_every_prompt_is_just_its_words(file: Path, words: PromptWords) -> None:
    assert len(words) > 200
    workload = workload_of(TRACE, PromptSettings(words=words), Traffic(concurrency=2))
    fresh = tokenizers.Tokenizer.from_file(str(file))
    texts = [joined(words.texts, prompt) for prompt in workload.prompts]
    tokens = [fresh.encode(text, add_special_tokens=False).ids for text in texts]
    assert [len(each) for each in tokens] == [49] * 12
    # Of one group are those whose first 40 tokens are alike, and the next one differs.
    groups = {tuple(each[:40]) for each in tokens}
    assert len(groups) == 3
    assert len({tuple(each[:41]) for each in tokens}) == 12
    warm = warm_up(workload, 3, 0)
    assert {joined(words.texts, each).split()[0] for each in warm.prompts}.isdisjoint(
        text.split()[0] for text in texts
    )
    as_ids = workload_of(TRACE, PromptSettings(vocab_size=len(words)), Traffic(concurrency=2))
    assert workload_digest(workload, {}) != workload_digest(as_ids, {})


def test_a_tokenizer_that_joins_words_is_noticed(file: Path, words: PromptWords) -> None:
    told = json.loads(file.read_text(encoding="utf-8"))
    told["added_tokens"] = [
        {
            "id": 5000,
            "content": words.texts[0] + words.texts[1],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": False,
        }
    ]
    joining = tokenizers.Tokenizer.from_str(json.dumps(told))
    broken = PromptWords(words.texts, words.ids, words.digest, joining)
    apart = np.array([1, 0, 2], np.int32)
    broken.check([apart])
    with pytest.raises(UsageError, match="this tokenizer joins words"):
        broken.check([apart, np.array([2, 0, 1], np.int32)])


def test_a_file_that_gives_no_words(tmp_path: Path) -> None:
    few = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "▁the": 1}, unk_token="a"))  # noqa: S106  # no secret
    few.save(str(tmp_path / "few.json"))
    with pytest.raises(UsageError, match=r"few.json: 0 words are one token each"):
        load_words(str(tmp_path / "few.json"))
    (tmp_path / "none.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        load_words(str(tmp_path / "none.json"))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_that_takes_text_alone(words: PromptWords, workers: int) -> None:
    text = workload_of(TRACE, PromptSettings(words=words), Traffic(concurrency=1))
    ids = workload_of(TRACE, PromptSettings(), Traffic(concurrency=1))
    settings = LoadSettings(concurrency=workers, workers=workers)
    with fake_engine(text_only=True) as engine:
        target = Target(engine.url, "fake-model")
        refused = run_load(ids, target, settings)
        answered = run_load(text, target, settings)
    assert {each.error for each in refused} == {"client_error"}
    assert {each.error for each in answered} == {None}
    assert [each.prompt_tokens for each in answered] == [49] * 12
    assert sum(each.cached_tokens or 0 for each in answered) > 0


def test_on_the_command_line(file: Path, tmp_path: Path) -> None:
    few = ("--groups", "2", "--requests-per-group", "2", "--format", "json")
    with fake_engine(text_only=True) as engine:
        command = [sys.executable, "-m", "kvsched", "bench", "prefix-cache", *few]
        command += ["--engine-url", engine.url]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        told = subprocess.run(
            [*command, "--prompt-tokenizer", str(file)], capture_output=True, text=True, check=False
        )
    assert refused.returncode == 1
    assert "is sent text with --prompt-tokenizer" in refused.stderr
    assert told.returncode == 0, told.stderr
    (result,) = json.loads(told.stdout)["runs"]
    assert result["completed"] == 4
    assert not any("another length" in said for said in result["warnings"])
    assert result["workload"]["tokenizer_sha256"] is not None
    schema = schemas()["bench.schema.json"]
    jsonschema.validate(result, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**result, "completed": "4"}, schema)
