"""Prompts as text, for engines that take no token ids: words that are one token each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.evidence.bench.workload import joined
from kvsched.foundation.errors import UsageError
from kvsched.trace.text import load_tokenizer, read_bytes

LEAST = 64
"""Words below which prompts could not be told apart."""
_WORD = re.compile(r"[Ġ▁]([a-z]{2,12})")
"""A token that begins a word of plain letters: in byte-level BPE as Ġword, in SentencePiece as
▁word."""


@dataclass(frozen=True, eq=False)
class PromptWords:
    """Words of a tokenizer that stay one token wherever they stand among each other."""

    texts: tuple[str, ...]
    """(V,) each with the space before it."""
    ids: NDArray[np.int32]
    """(V,) the tokenizer's id of each."""
    digest: str
    """SHA-256 (hex) of the tokenizer's file."""
    tokenizer: Any

    def __len__(self) -> int:
        return len(self.texts)

    def check(self, prompts: Iterable[NDArray[np.int32]]) -> None:
        """Raise UsageError unless the text of every prompt is just its tokens. O(tokens)."""
        for prompt in prompts:
            found = self.tokenizer.encode(joined(self.texts, prompt), add_special_tokens=False).ids
            if found != self.ids[prompt].tolist():
                raise UsageError(
                    f"--prompt-tokenizer: a prompt of {len(prompt):,} words becomes {len(found):,} "
                    "tokens or other ones: this tokenizer joins words; send token ids"
                )


def load_words(path: str) -> PromptWords:
    """Return the words of a ``tokenizer.json``: lower-case ASCII, one token each.

    O(vocabulary). Raises InputError for a file that is none, and UsageError where it has too few
    of them or the package tokenizers is missing.
    """
    file = Path(path)
    tokenizer = load_tokenizer(file)
    words = sorted(
        (number, match[1])
        for token, number in tokenizer.get_vocab(with_added_tokens=False).items()
        if (match := _WORD.fullmatch(token))
    )
    # A word of one token may still be cut in two among others, where no rule keeps words apart.
    texts = [f" {word}" for _, word in words]
    trials = tokenizer.encode_batch(
        [f" a{text}{text} a" for text in texts], add_special_tokens=False
    )
    kept = [
        (text, number)
        for text, (number, _), trial in zip(texts, words, trials, strict=True)
        if len(trial.ids) == 4 and trial.ids[1:3] == [number, number]
    ]
    if len(kept) < LEAST:
        raise UsageError(
            f"--prompt-tokenizer {file.name}: {len(kept)} words are one token each, and at least "
            f"{LEAST} are needed: send token ids"
        )
    return PromptWords(
        texts=tuple(text for text, _ in kept),
        ids=np.array([number for _, number in kept], np.int32),
        digest=hashlib.sha256(read_bytes(file)).hexdigest(),
        tokenizer=tokenizer,
    )
