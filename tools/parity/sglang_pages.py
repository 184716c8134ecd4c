"""The requests of a recording as the arrays that `kvsched.replay.sglang` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsched.replay.sglang import Pages


def pages_of(rows: Sequence[Sequence[Any]], page_size: int) -> tuple[Pages, list[int]]:
    """Return the arrays of ``rows`` (prompt, output, priority, page names), and the names in order.

    A page is named by its content after the pages before it, so a name stands for a whole prefix.
    """
    number: dict[int, int] = {}
    parent, chains, starts = [], [], [0]
    for *_, path in rows:
        above = -1
        for name in path:
            if name not in number:
                number[name] = len(number)
                parent.append(above)
            above = number[name]
            chains.append(above)
        starts.append(len(chains))
    prompt, output, priority = (
        np.array([row[column] for row in rows], np.int64) for column in range(3)
    )
    pages = Pages(
        page_size=page_size,
        parent=np.array(parent, np.int32),
        starts=np.array(starts, np.int64),
        chains=np.array(chains, np.int32),
        input_tokens=prompt,
        output_tokens=output,
        kept=np.diff(starts).astype(np.int64),
        limit=(prompt - 1) // page_size,
        priority=priority,
    )
    return pages, list(number)
