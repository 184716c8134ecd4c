"""Blocks of a prompt that is given as text: from a tokenizer, or from bytes and a declared ratio.

A block's key is a hash of its content and of the key before it (BLAKE2b, 8 bytes, as a signed
64-bit integer), so it names a whole prefix. The last block may be partial.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace.fields import Row, RowError, kind
from kvsched.trace.reading import ReadOptions
from kvsched.trace.source import os_fault

LEAST_RATIO, MOST_RATIO = 0.25, 1024.0
HOW = (
    "a log of messages holds text: say how it becomes tokens, with --tokenizer FILE "
    "(a tokenizer.json) and --chat-template FILE, or with --bytes-per-token N"
)
_SEED = bytes(8)

Render = Callable[[list[Row], Any], str]
"""From messages and tools to the prompt's text; raises RowError."""


class TextBlocks(ABC):
    """How text becomes tokens and keys of blocks."""

    settings: dict[str, Any]
    """What was chosen, for `Origin.settings`."""
    notes: tuple[str, ...] = ()

    def __init__(self, block_size: int, render: Render) -> None:
        self.block_size = block_size
        self.render = render

    @abstractmethod
    def cut(self, texts: list[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the tokens and the blocks' keys of each text."""


class ByteBlocks(TextBlocks):
    """Blocks of ``block_size`` tokens of ``bytes_per_token`` bytes of UTF-8 each."""

    def __init__(self, block_size: int, bytes_per_token: float) -> None:
        super().__init__(block_size, plain_text)
        self.ratio = bytes_per_token
        self.settings = {"text_blocks": "bytes", "bytes_per_token": bytes_per_token}
        self.notes = (f"text is cut into blocks at {bytes_per_token:g} bytes a token",)

    def cut(self, texts: list[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the tokens and keys of each text. O(bytes)."""
        step = max(1, int(self.block_size * self.ratio))
        for text in texts:
            data = text.encode()
            full, rest = divmod(len(data), step)
            tokens = full * self.block_size
            tokens += min(self.block_size, math.ceil(rest / self.ratio))
            yield tokens, chained(data[at : at + step] for at in range(0, len(data), step))


class TokenBlocks(TextBlocks):
    """Blocks of the tokens that a ``tokenizer.json`` makes of a chat template's text."""

    def __init__(self, block_size: int, tokenizer: Path, template: Path | None) -> None:
        super().__init__(block_size, plain_text if template is None else _loaded(template))
        self._tokenizer = load_tokenizer(tokenizer)
        self.settings = {"text_blocks": "tokenizer", "tokenizer_sha256": _digest(tokenizer)}
        how = f"text is cut into blocks of the tokens of {tokenizer.name}"
        if template is None:
            self.notes = (f"{how}; without a chat template, messages are joined plainly",)
        else:
            self.settings["chat_template_sha256"] = _digest(template)
            self.notes = (f"{how}, with the chat template in {template.name}",)

    def cut(self, texts: list[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the tokens and keys of each text; many are encoded at once, on all cores."""
        step = self.block_size
        for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = encoding.ids
            data = b"".join(token.to_bytes(4, "little") for token in ids)
            yield (
                len(ids),
                chained(data[at : at + 4 * step] for at in range(0, len(data), 4 * step)),
            )


def chained(blocks: Iterator[bytes]) -> list[int]:
    """The keys of blocks that follow one another."""
    keys = []
    above = _SEED
    for block in blocks:
        above = hashlib.blake2b(above + block, digest_size=8).digest()
        keys.append(int.from_bytes(above, "little", signed=True))
    return keys


def text_blocks(options: ReadOptions, block_size: int) -> TextBlocks:
    """What the options ask for. Raises UsageError, or InputError for a file they name."""
    if options.tokenizer is None and options.bytes_per_token is None:
        raise UsageError(HOW)
    if options.tokenizer is None:
        if options.chat_template is not None:
            raise UsageError("--chat-template needs --tokenizer")
        return ByteBlocks(block_size, float(options.bytes_per_token or 0))
    if options.bytes_per_token is not None:
        raise UsageError("give one of --tokenizer and --bytes-per-token")
    template = None if options.chat_template is None else Path(options.chat_template)
    return TokenBlocks(block_size, Path(options.tokenizer), template)


def plain_text(messages: list[Row], tools: Any) -> str:
    """Messages one after another: role, content, and whatever else a message has, as JSON.

    What is not text (an image) stands as a digest of itself. A longer conversation starts with
    the text of a shorter one. Raises RowError.
    """
    pieces = [] if tools is None else ["tools\n", _canonical(tools), "\n"]
    for message in messages:
        pieces += [str(message.get("role", "")), "\n", _content(message.get("content")), "\n"]
        others = {k: v for k, v in message.items() if k not in ("role", "content") and v}
        if others:
            pieces += [_canonical(others), "\n"]
    return "".join(pieces)


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f'"content" must be a string or a list, not {kind(content)}')
    return "".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    digest = hashlib.blake2b(_canonical(part).encode("utf-8", "replace"), digest_size=8)
    return f"<{digest.hexdigest()}>"


def _canonical(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise RowError("nested too deeply") from error


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. Raises InputError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(str(path), os_fault(error)) from error


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a ``tokenizer.json``, which neither cuts nor pads.

    Raises InputError for another file, and UsageError where the package tokenizers is missing.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            "--tokenizer needs the package tokenizers: pip install 'kvsched[text]'"
        ) from error
    data = read_bytes(path)
    try:
        loaded = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(str(path), f"not a tokenizer.json: {_one_line(error)}") from error
    # Files made for training cut and pad; a prompt is as long as it is.
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _loaded(template: Path) -> Render:
    from kvsched.trace.chat_template import load_template  # Jinja, only where it is asked for

    return load_template(template)
