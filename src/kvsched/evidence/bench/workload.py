"""What a benchmark sends: prompts, lengths of answers, and when each is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOTHING_BEFORE = -1


@dataclass(frozen=True, eq=False)
class BenchWorkload:
    """R requests as they are sent to an engine. Immutable."""

    prompts: tuple[NDArray[np.int32], ...]
    """Token ids of each prompt."""
    output_tokens: NDArray[np.int64]
    """(R,) tokens to generate, no more and no fewer."""
    arrival_s: NDArray[np.float64]
    """(R,) seconds from the run's start; NaN for a request that waits for another's end."""
    after: NDArray[np.int32]
    """(R,) the request whose end this one waits for, −1 for none; always an earlier one."""
    think_s: NDArray[np.float64]
    """(R,) seconds between that end and this request; 0 where nothing is waited for."""
    priority: NDArray[np.int32] | None = None
    """(R,) larger is more important, as in a `Trace`."""
    words: tuple[str, ...] | None = None
    """(V,) text of each number in ``prompts``, where prompts are sent as text; None: they are sent
    as token ids."""
    session: tuple[str, ...] | None = None
    """A name for each request; empty for one of no session."""
    source: dict[str, Any] = field(default_factory=dict)
    """Where the requests came from: file or preset, its digest, seed, block size."""
    notes: tuple[str, ...] = ()
    """What was left out, cut or scaled: one sentence each."""

    def __len__(self) -> int:
        return len(self.prompts)


def joined(texts: tuple[str, ...], prompt: NDArray[np.int32]) -> str:
    """Return the text of a prompt whose numbers name ``texts``."""
    return "".join([texts[each] for each in prompt.tolist()])
