"""`kvsched curve`: the exact LRU curve."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import open_sampled
from kvsched.cli.options import SampleOptions, TraceOptions, print_json, sample_line


@spread
def command(
    source: TraceOptions,
    sampling: SampleOptions,
    points: Annotated[
        int, typer.Option("--points", min=2, max=100_000, help="Capacities to print.")
    ] = 20,
) -> None:
    """Print what LRU hits at many capacities; exact at each, all from one pass.

    From a sample (--sample) they are estimates.
    """
    import numpy as np

    from kvsched.policy.registry import make
    from kvsched.replay.curve import lru_curve
    from kvsched.replay.sampling import sampling_errors
    from kvsched.study.describe import sample as sample_summary
    from kvsched.trace.check import require_blocks
    from kvsched.trace.sample import SampledTrace

    opened = open_sampled(source, sampling, 1)
    require_blocks(opened)
    curve = lru_curve(opened)
    spaced = np.geomspace(1, max(opened.total_nodes, 1), points)
    blocks = [int(each) for each in np.unique(np.rint(spaced).astype(np.int64))]
    rows = [
        {
            "capacity_blocks": size,
            "hit_blocks": curve.at(size)[0],
            "hit_tokens": curve.at(size)[1],
            "evictions": curve.evictions(size),
        }
        for size in blocks
    ]
    found = None
    if isinstance(opened, SampledTrace):
        hits = {"lru": [row["hit_blocks"] for row in rows]}
        found = sample_summary(opened, sampling_errors(opened, [make("lru")], blocks, hits))
    if source.as_json:
        print_json(
            {
                "policy": "lru",
                "total_blocks": curve.total_blocks,
                "total_tokens": curve.total_tokens,
                "points": rows,
                "digest": opened.digest,
                **({} if found is None else {"sample": found}),
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
    if found is not None:
        typer.echo(f"sample: {sample_line(found)}")
