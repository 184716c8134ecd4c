"""What vLLM's benchmark replays as ``--dataset-name timed_trace``: JSON lines of block ids.

Fields, under vLLM's default labels: ``timestamp`` (s), ``input_length``, ``output_length``,
``hash_ids`` (one per 16 tokens). vLLM turns each id by itself into that many tokens, so an id
names content, not a prefix; ids beyond the prompt's length are not used, and a prompt is no
longer than its ids. Both are read so, and noted. Its options ``--timed-trace-chunk-hash-size``
and ``--timed-trace-sec-multiplier`` are ``--block-size`` and ``--time-unit`` here.

The fields are Mooncake's, and nothing in a file tells the two apart: this reader has to be
named (``--format vllm-timed``). Source: vLLM 0.32.0, ``vllm/benchmarks/datasets``, `TimedTrace`.
"""

from __future__ import annotations

import numpy as np

from kvsched.trace.build import build_trace
from kvsched.trace.model import Int64s, Trace
from kvsched.trace.reading import Format, ReadOptions, counted
from kvsched.trace.rows import Shape, Table, read_table
from kvsched.trace.source import Source
from kvsched.trace.spool import Keys, in_memory

BLOCK_SIZE = 16


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a timed trace. O(B), as a stream: memory for the columns only. Raises InputError."""
    block_size = options.block_size or BLOCK_SIZE
    table = read_table(
        source,
        options,
        shape=Shape(),
        format=FORMAT.name,
        time_unit="s",
        block_size=None,
    )
    inputs, blocks, keys, notes = _as_replayed(table, block_size)
    starts = np.zeros(len(blocks) + 1, np.int64)
    np.cumsum(blocks, out=starts[1:])
    return build_trace(
        time_s=table.time_s,
        input_tokens=inputs,
        output_tokens=table.outputs,
        starts=starts,
        keys=keys,
        block_size=block_size,
        origin=table.origin.noting(*notes),
        sampling=options.sampling,
    )


def _as_replayed(table: Table, block_size: int) -> tuple[Int64s, Int64s, Keys, list[str]]:
    """Tokens and ids (of each row, and all of them) of the prompts that vLLM makes."""
    inputs = np.minimum(table.inputs, table.blocks * block_size)
    blocks = -(-inputs // block_size)
    keys = table.keys
    if (blocks < table.blocks).any():
        place = np.arange(len(keys)) - np.repeat(table.starts[:-1], table.blocks)
        keys = in_memory(keys)[place < np.repeat(blocks, table.blocks)]
    notes = []
    short = int((inputs < table.inputs).sum())
    if short:
        rows = counted(short, "prompt is", "prompts are")
        notes.append(f"{rows} longer than the ids say; the ids count, as in vLLM")
    long = int((blocks < table.blocks).sum())
    if long:
        rows = counted(long, "prompt has", "prompts have")
        notes.append(f"{rows} more ids than tokens; the rest is not used, as in vLLM")
    return inputs, blocks, keys, notes


def sniff(head: bytes) -> bool:  # noqa: ARG001
    """Never: its fields are Mooncake's, and a guess could be wrong about time by a factor 1000."""
    return False


FORMAT = Format(
    name="vllm-timed",
    title="vLLM's timed_trace benchmark data: Mooncake's fields, 16 tokens an id, seconds",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
