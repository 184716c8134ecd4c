"""`kvsched curve`: the exact LRU curve."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.options import TraceOptions, open_trace, print_json


@spread
def command(
    source: TraceOptions,
    points: Annotated[
        int, typer.Option("--points", min=2, max=100_000, help="Capacities to print.")
    ] = 20,
) -> None:
    """Print what LRU hits at many capacities; exact at each, all from one pass."""
    import numpy as np

    from kvsched.replay.curve import lru_curve
    from kvsched.trace.check import require_blocks

    opened = open_trace(source)
    require_blocks(opened)
    curve = lru_curve(opened)
    spaced = np.geomspace(1, max(opened.nodes, 1), points)
    blocks = [int(each) for each in np.unique(np.rint(spaced).astype(np.int64))]
    inside = np.minimum(blocks, opened.nodes)
    rows = [
        {
            "capacity_blocks": size,
            "hit_blocks": int(curve.hit_blocks[at]),
            "hit_tokens": int(curve.hit_tokens[at]),
            "evictions": curve.evictions(size),
        }
        for size, at in zip(blocks, inside, strict=True)
    ]
    if source.as_json:
        print_json(
            {
                "policy": "lru",
                "total_blocks": curve.total_blocks,
                "total_tokens": curve.total_tokens,
                "points": rows,
                "digest": opened.digest,
            }
        )
        return
    typer.echo(f"{'blocks':>12} {'hit blocks':>14} {'of all':>8} {'evictions':>14}")
    for row in rows:
        share = row["hit_blocks"] / max(curve.total_blocks, 1)
        typer.echo(
            f"{row['capacity_blocks']:>12,} {row['hit_blocks']:>14,} {share:>8.2%} "
            f"{row['evictions']:>14,}"
        )
