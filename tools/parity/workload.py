"""Workloads for recordings of real engines: requests as block ids, and what they generate.

Plain Python without kvsched or an engine, so that it is a second opinion on both.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

ANONYMOUS = 1 << 20
"""A generated block that no later request names is -1 - (request × this + place)."""


@dataclass(frozen=True)
class Request:
    """One request; ``ids`` name the prompt's blocks, each standing for the prefix up to it."""

    ids: tuple[int, ...]
    prompt: int
    """Prompt tokens."""
    output: int
    """Generated tokens; the last one's keys and values are never computed."""
    session: int | None = None

    def full(self, block_size: int) -> tuple[int, ...]:
        """Return the ids of the prompt's full blocks."""
        return self.ids[: self.prompt // block_size]

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are computed when the request ends."""
        return self.prompt + max(self.output, 1) - 1


def chain(requests: list[Request], at: int, block_size: int) -> list[int]:
    """Return the ids of all blocks that request ``at`` fills, generated ones included.

    They are read from the first later request of its session whose full blocks begin with this
    one's and go on, else from the first later one of all (a request without a full block takes
    from its session alone). O(R).
    """
    request = requests[at]
    own = list(request.full(block_size))
    wanted = request.computed // block_size
    later = requests[at + 1 :]
    mine = [each for each in later if request.session is not None]
    mine = [each for each in mine if each.session == request.session]
    found: tuple[int, ...] = ()
    for group in (mine, later if own else []):
        for other in group:
            blocks = other.full(block_size)
            if len(blocks) > len(own) and list(blocks[: len(own)]) == own:
                found = blocks
                break
        if found:
            break
    own += found[len(own) : wanted]
    own += [-1 - (at * ANONYMOUS + place) for place in range(len(own), wanted)]
    return own


class _Names:
    """Numbers for prefixes: the same content after the same prefix has the same id."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}

    def of(self, tokens: list[int], block_size: int, with_tail: bool) -> tuple[int, ...]:
        stop = len(tokens) if with_tail else len(tokens) // block_size * block_size
        ends = [*range(block_size, stop, block_size), stop] if stop else []
        return tuple(self._known.setdefault(tuple(tokens[:end]), len(self._known)) for end in ends)


def chats(seed: int, count: int, block_size: int, *, exact: float, tail: bool) -> list[Request]:
    """Make sessions whose prompts repeat earlier prompts and answers, interleaved at random.

    A share ``exact`` of the prompts ends on a block's edge; some turns are asked again as they
    were, some sessions share a head. ``tail`` gives the partial last block an id.
    """
    draw = random.Random(seed)  # noqa: S311  # a workload, not a secret
    names = _Names()
    heads = [[draw.randrange(100) for _ in range(draw.randrange(3 * block_size))] for _ in range(4)]
    sessions: list[list[int]] = []
    requests: list[Request] = []
    while len(requests) < count:
        if not sessions or draw.random() < 0.2:
            sessions.append(list(draw.choice(heads)))
        session = draw.randrange(max(0, len(sessions) - 12), len(sessions))
        tokens = sessions[session]
        if len(tokens) > 30 * block_size:
            tokens = sessions[session] = list(draw.choice(heads))
        if draw.random() > 0.15:
            tokens += [draw.randrange(100) for _ in range(draw.randrange(3 * block_size))]
        if draw.random() < exact:
            tokens += [draw.randrange(100) for _ in range(-len(tokens) % block_size)]
        if not tokens:
            tokens.append(draw.randrange(100))
        output = draw.choice([0, 1, 2, block_size, block_size + 1, draw.randrange(4 * block_size)])
        asked = names.of(tokens, block_size, tail)
        requests.append(Request(asked, len(tokens), output, session))
        if draw.random() > 0.15:
            # The answer as the next turn repeats it; else it is edited away or asked again.
            tokens += [draw.randrange(100) for _ in range(output)]
    return requests


def trees(seed: int, count: int, block_size: int, *, branches: int) -> list[Request]:
    """Make random paths through a small tree, without sessions: many prefixes meet."""
    draw = random.Random(seed)  # noqa: S311  # a workload, not a secret
    names = _Names()
    requests = []
    for _ in range(count):
        depth = draw.randrange(1, 9)
        tokens: list[int] = []
        for _ in range(depth):
            tokens += [draw.randrange(branches)] * block_size
        if draw.random() < 0.6:
            tokens = tokens[: len(tokens) - draw.randrange(block_size)]
        output = draw.choice([0, 1, 2, draw.randrange(3 * block_size)])
        requests.append(Request(names.of(tokens, block_size, True), len(tokens), output))
    return requests


def mooncake(path: Path, count: int) -> list[Request]:
    """Read the first ``count`` requests of a Mooncake trace, in the file's order."""
    requests = []
    with path.open(encoding="utf-8") as stream:
        for line, _ in zip(stream, range(count), strict=False):
            row = json.loads(line)
            ids = tuple(row["hash_ids"])
            requests.append(Request(ids, row["input_length"], row["output_length"]))
    return requests


def mooncake_times(path: Path, count: int) -> list[int]:
    """Read the times of the first ``count`` requests of a Mooncake trace, in ms."""
    with path.open(encoding="utf-8") as stream:
        return [
            json.loads(line)["timestamp"] for line, _ in zip(stream, range(count), strict=False)
        ]
