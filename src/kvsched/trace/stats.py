"""What a workload is like, in figures: lengths, arrivals, reuse, sharing, sessions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.trace.model import Int32s, Int64s, Labels, Trace

DEFINITIONS = {
    "quantiles": "p90 is the smallest value that at least 90% of the entries do not exceed",
    "sd": "standard deviation over all entries (divided by their number)",
    "gap_s": "seconds between a request and the one before it, over all sessions",
    "rate": "requests a second in each full window; a last window that is not full is left out",
    "gap_cv": "standard deviation of the gaps over their mean; 1 for a Poisson process",
    "burstiness": "(gap_cv - 1) / (gap_cv + 1): -1 regular, 0 Poisson, towards 1 in bursts "
    "(Goh and Barabasi, 2008)",
    "dispersion": "variance over mean of the requests in a window; 1 for a Poisson process at "
    "every width (Fano factor)",
    "reuse": "references to blocks that an earlier request had in its chain: what an unlimited "
    "cache hits",
    "by_depth": "the same for the first block of a chain, the second, the third and fourth, ...",
    "sharing": "of the requests with at least so many blocks: how many different prefixes of that "
    "length they have, how many share theirs with another request, how many have the commonest",
    "session_gap_s": "seconds between two requests of one session that follow each other",
}
QUANTILES = (1, 10, 25, 50, 75, 90, 95, 99)
MOST_NAMES = 10
_MOST_WINDOWS = 1_000_000
_WINDOWS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
_USUAL_WINDOWS = 60
_DISPERSION_S = (1, 10, 60, 600, 3600)
_LEAST_WINDOWS = 10


def trace_stats(trace: Trace, window_s: float | None = None) -> dict[str, Any]:
    """Return the figures of a trace as plain values; None where there is nothing to measure.

    ``window_s`` is the width of the windows in which requests are counted; a round one, of which
    about 60 fit, if None. `DEFINITIONS` says what each figure is. O(N + R log R), not O(B): a
    chain is searched for its first new block. Raises UsageError for a window that is none.
    """
    seen = blocks_seen(trace)
    gaps = np.diff(trace.time_s)
    return {
        "source": trace.origin.source,
        "format": trace.origin.format,
        "digest": trace.digest,
        "block_size": trace.block_size,
        "requests": len(trace),
        "duration_s": trace.duration_s,
        "blocks": trace.references,
        "distinct_blocks": trace.nodes,
        "prompt_tokens": int(trace.input_tokens.sum()),
        "output_tokens_total": int(trace.output_tokens.sum()),
        "input_tokens": spread(trace.input_tokens),
        "output_tokens": spread(trace.output_tokens),
        "chain_blocks": spread(trace.chain_blocks),
        "gap_s": spread(gaps),
        "arrivals": _arrivals(trace, gaps, window_s),
        "reuse": _reuse(trace, seen),
        "sharing": _sharing(trace),
        "sessions": _sessions(trace),
        "tenants": _names(trace.tenant),
        "types": _names(trace.type),
        "models": _names(trace.model),
        "definitions": DEFINITIONS,
    }


def spread(values: NDArray[Any]) -> dict[str, float | int | None]:
    """Mean, standard deviation, extremes and quantiles of ``values`` (K,). O(K log K)."""
    names = ("min", *(f"p{share}" for share in QUANTILES), "max")
    if not len(values):
        return {"count": 0, "mean": None, "sd": None, **dict.fromkeys(names)}
    ordered = np.sort(values)
    shares = np.array([0, *QUANTILES, 100]) * len(ordered)
    places = np.maximum(-(-shares // 100) - 1, 0)
    found = dict(zip(names, ordered[places].tolist(), strict=True))
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "sd": float(values.std()),
        **found,
    }


def blocks_seen(trace: Trace) -> Int64s:
    """Blocks from the root of each chain that earlier requests used, (R,). O(N + R log R)."""
    seen = np.empty(len(trace), np.int64)
    _search_new(trace.starts, trace.chains, np.zeros(trace.nodes, np.uint8), seen)
    return seen


@hot
def _search_new(starts: Int64s, chains: Int32s, met: NDArray[np.uint8], seen: Int64s) -> None:
    """Find each chain's first block that is new; a block that was met has ancestors that were."""
    for request in range(len(seen)):
        first = int(starts[request])
        end = int(starts[request + 1])
        low = first
        high = end
        while low < high:
            middle = (low + high) // 2
            if met[chains[middle]] != 0:
                low = middle + 1
            else:
                high = middle
        seen[request] = low - first
        for at in range(low, end):
            met[chains[at]] = 1


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _window(duration_s: float) -> float:
    """A round width of which at most about 60 fit into the trace."""
    least = duration_s / _USUAL_WINDOWS
    for width in _WINDOWS_S:
        if width >= least:
            return float(width)
    return float(_WINDOWS_S[-1] * -(-least // _WINDOWS_S[-1]))


def _counts(trace: Trace, window_s: float) -> Int64s:
    """Requests in each full window from the first request on."""
    windows = int(trace.duration_s // window_s)
    place = (trace.time_s // window_s).astype(np.int64)
    return np.bincount(place[place < windows], minlength=windows)


def _arrivals(trace: Trace, gaps: NDArray[np.float64], window_s: float | None) -> dict[str, Any]:
    width = _window(trace.duration_s) if window_s is None else window_s
    if not 0 < width < float("inf"):
        raise UsageError(f"a window of {width:g} s is none")
    if trace.duration_s / width > _MOST_WINDOWS:
        raise UsageError(
            f"a window of {width:g} s: over {_MOST_WINDOWS:,} of them fit into the trace"
        )
    counts = _counts(trace, width)
    rates = spread(counts / width)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    cv = _ratio(float(gaps.std()), mean) if len(gaps) > 1 else None
    peak = rates["max"]
    return {
        "mean_per_s": _ratio(len(trace) - 1, trace.duration_s),
        "window_s": width,
        "windows": len(counts),
        "rate": rates,
        "peak_over_mean": None if peak is None else _ratio(peak, rates["mean"] or 0.0),
        "distinct_times": int(np.count_nonzero(gaps)) + min(1, len(trace)),
        "gap_cv": cv,
        "burstiness": None if cv is None else (cv - 1) / (cv + 1),
        "dispersion": list(_dispersions(trace)),
    }


def _dispersions(trace: Trace) -> Iterator[dict[str, Any]]:
    for width in _DISPERSION_S:
        if _LEAST_WINDOWS <= trace.duration_s / width <= _MOST_WINDOWS:
            counts = _counts(trace, width)
            index = _ratio(float(counts.var()), float(counts.mean()))
            yield {"name": f"{width} s", "window_s": width, "windows": len(counts), "index": index}


def _reuse(trace: Trace, seen: Int64s) -> dict[str, Any]:
    tokens = int(trace.prefix_tokens(seen).sum())
    blocks = int(seen.sum())
    with_blocks = trace.chain_blocks > 0
    return {
        "blocks": blocks,
        "block_share": _ratio(blocks, trace.references),
        "tokens": tokens,
        "token_share": _ratio(tokens, int(trace.input_tokens.sum())),
        "requests_without": int(np.count_nonzero(seen[with_blocks] == 0)),
        "requests_wholly": int(np.count_nonzero(with_blocks & (seen == trace.chain_blocks))),
        "blocks_seen": spread(seen),
        "by_depth": list(_by_depth(trace, seen)),
    }


def _by_depth(trace: Trace, seen: Int64s) -> Iterator[dict[str, Any]]:
    longest = int(trace.chain_blocks.max(initial=0))
    edges = [0, 1]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    for low, high in itertools.pairwise(edges):
        references, known = (
            int((np.minimum(blocks, high) - np.minimum(blocks, low)).sum())
            for blocks in (trace.chain_blocks, seen)
        )
        if references:
            name = f"block {high}" if high - low == 1 else f"blocks {low + 1}-{high}"
            yield {
                "name": name,
                "references": references,
                "seen": known,
                "share": _ratio(known, references),
            }


def _sharing(trace: Trace) -> list[dict[str, Any]]:
    """For the first 1, 2, 4, … blocks: who shares them. O(R log R) each."""
    rows: list[dict[str, Any]] = []
    blocks = 1
    while True:
        heads = trace.starts[:-1][trace.chain_blocks >= blocks]
        if not len(heads):
            return rows
        _, counts = np.unique(trace.chains[heads + blocks - 1], return_counts=True)
        shared = int(counts[counts > 1].sum())
        rows.append(
            {
                "name": "first block" if blocks == 1 else f"first {blocks} blocks",
                "requests": len(heads),
                "prefixes": len(counts),
                "shared_requests": shared,
                "shared_share": _ratio(shared, len(heads)),
                "commonest": int(counts.max()),
                "commonest_share": _ratio(int(counts.max()), len(heads)),
            }
        )
        blocks *= 2


def _sessions(trace: Trace) -> dict[str, Any] | None:
    if trace.session is None:
        return None
    codes = trace.session.codes
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    same = np.diff(codes[order]) == 0
    turns = np.bincount(codes[order], minlength=1)
    turns = turns[turns > 0]
    return {
        "sessions": len(turns),
        "requests_in_sessions": len(order),
        "requests_per_session": spread(turns),
        "sessions_of_one_request": int(np.count_nonzero(turns == 1)),
        "session_gap_s": spread(np.diff(trace.time_s[order])[same]),
    }


def _names(labels: Labels | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.names))
    order = np.argsort(-counts, kind="stable")[:MOST_NAMES]
    return {
        "names": int(np.count_nonzero(counts)),
        "requests_without": int(np.count_nonzero(labels.codes < 0)),
        "largest": [
            {"name": labels.names[code], "requests": int(counts[code])}
            for code in order.tolist()
            if counts[code]
        ],
    }
