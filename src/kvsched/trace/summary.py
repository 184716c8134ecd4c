"""What a trace holds, as plain values."""

from __future__ import annotations

from typing import Any

from kvsched.trace.model import Trace


def summarise(trace: Trace) -> dict[str, Any]:
    """Return counts, totals and means of a trace, None where there is nothing to count. O(R)."""
    count = len(trace)
    prompt, output = int(trace.input_tokens.sum()), int(trace.output_tokens.sum())
    return {
        "source": trace.origin.source,
        "format": trace.origin.format,
        "digest": trace.digest,
        "time_unit": trace.origin.time_unit,
        "block_size": trace.block_size,
        "requests": count,
        "duration_s": trace.duration_s,
        "blocks": trace.total_references,
        "distinct_blocks": trace.total_nodes,
        "prompt_tokens": prompt,
        "chain_tokens": int(trace.chain_tokens.sum()),
        "output_tokens": output,
        "mean_input_tokens": prompt / count if count else None,
        "mean_output_tokens": output / count if count else None,
        "longest_chain_blocks": int(trace.total_chain_blocks.max(initial=0)),
        "sessions": None if trace.session is None else len(trace.session.names),
        "tenants": None if trace.tenant is None else len(trace.tenant.names),
        "notes": trace.origin.notes,
        "settings": trace.origin.settings,
    }
