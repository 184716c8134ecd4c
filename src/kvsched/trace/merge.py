"""Several traces on one clock, their blocks apart or shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.trace.build import _mix
from kvsched.trace.model import NO_PARENT, UNKNOWN, Int32s, Int64s, Labels, Origin, Trace
from kvsched.trace.pick import pick, shifted
from kvsched.trace.reading import counted

ALIGNMENTS = ("start", "absolute")
FARTHEST_OFFSET_S = 1e11
"""Three thousand years."""
_SINCE_1970 = 1e9
"""Seconds: a clock beyond them counts from 1970, one before them from a start of its own."""
_MOST_NODES = 2**31 - 1


def merge_traces(
    traces: Sequence[Trace],
    *,
    align: str = "start",
    offsets_s: Sequence[float] | None = None,
    share_blocks: bool = False,
    label_tenant: bool = False,
    names: Sequence[str] | None = None,
) -> Trace:
    """Return the requests of all ``traces`` as one trace, in time order (equal times: as given).

    Clocks: all start together (``align="start"``), as their sources' own clocks have them
    (``"absolute"``), or trace i ``offsets_s[i]`` seconds after a common zero; the result starts
    at 0 again. Blocks of different traces are different, and so are sessions: where names of
    sessions meet, the later one gets its trace's name added. With ``share_blocks`` an id after
    the same prefix is the same block in all traces, and a name the same session.
    ``label_tenant`` puts the trace's name before every tenant, and in the place of none; a trace
    is called as ``names`` has it, else as its source.

    O(B + N + R log R). Raises UsageError for fewer than two traces, block sizes that differ,
    clocks that cannot be compared, and shared blocks where ids are local to sessions.
    """
    labels = _file_labels(names or [trace.origin.source for trace in traces])
    _check_sizes(traces, labels)
    offsets = _offsets(traces, labels, align, offsets_s)
    origin = _origin(traces, labels, offsets, "offset" if offsets_s is not None else align)
    notes = list(origin.notes)
    forest = _beside(traces)
    if share_blocks:
        _check_roots(traces, labels)
        forest, shared, resized = _united(forest)
        notes.append(f"equal ids share blocks: {counted(shared, 'block is', 'blocks are')} shared")
        if resized:
            blocks = counted(resized, "block", "blocks")
            notes.append(f"{blocks} came again with another size; the first size is kept")
    else:
        notes.append("blocks of different traces are not shared")
    session, renamed = _sessions(traces, labels, apart=not share_blocks)
    if renamed:
        names = counted(renamed, "session has", "sessions have")
        notes.append(f"{names} the name of another trace's session and kept apart from it")
    tenant = (
        _tenants(traces, labels) if label_tenant else _joined([t.tenant for t in traces], traces)
    )
    times = np.concatenate(
        [shifted(t.time_s, offset) for t, offset in zip(traces, offsets, strict=True)]
    )
    settings = {**origin.settings, "share_blocks": share_blocks, "label_tenant": label_tenant}
    together = Trace(
        time_s=times,
        input_tokens=_column(traces, "input_tokens"),
        output_tokens=_column(traces, "output_tokens"),
        starts=_starts(traces),
        **forest._asdict(),
        block_size=traces[0].block_size,
        origin=origin,
        tenant=tenant,
        session=session,
        type=_joined([t.type for t in traces], traces),
        model=_joined([t.model for t in traces], traces),
        turn=_filled(traces, "turn", UNKNOWN),
        priority=_filled(traces, "priority", 0),
        deadline_s=_filled(traces, "deadline_s", np.nan, offsets),
        delay_s=_filled(traces, "delay_s", np.nan),
    )
    order = np.argsort(times, kind="stable").astype(np.int64)
    return pick(together, order, dataclasses.replace(origin, notes=tuple(notes), settings=settings))


class _Forest(NamedTuple):
    chains: Int32s
    parent: Int32s
    depth: Int32s
    tokens: Int32s
    key: Int64s


def _check_sizes(traces: Sequence[Trace], labels: list[str]) -> None:
    if len(traces) < 2:
        raise UsageError("merge at least two traces")
    sizes = [f"{t.block_size} tokens" if t.block_size else "no common size" for t in traces]
    for size, label in zip(sizes, labels, strict=True):
        if size != sizes[0]:
            raise UsageError(
                f"blocks have {sizes[0]} in {labels[0]}, {size} in {label}: traces can be merged "
                "where their blocks have one size"
            )
    if sum(trace.nodes for trace in traces) > _MOST_NODES:
        raise UsageError("the traces have more than 2^31 distinct blocks together")


def _file_labels(names: Sequence[str]) -> list[str]:
    """A label for each trace: its name, numbered where that comes again."""
    labels: list[str] = []
    for name in names:
        label, again = name, 2
        while label in labels:
            label, again = f"{name} {again}", again + 1
        labels.append(label)
    return labels


def _offsets(
    traces: Sequence[Trace], labels: list[str], align: str, given: Sequence[float] | None
) -> list[float]:
    if align not in ALIGNMENTS:
        raise UsageError(f"alignment {align!r} is not known: use {' or '.join(ALIGNMENTS)}")
    if given is not None:
        if align != "start":
            raise UsageError("give offsets or an alignment, not both")
        if len(given) != len(traces):
            count = counted(len(given), "offset", "offsets")
            raise UsageError(f"{count} for {len(traces)} traces: give one each, in order")
        if not np.isfinite(given).all():
            raise UsageError("an offset is not a finite number of seconds")
        if max(map(abs, given)) > FARTHEST_OFFSET_S:
            raise UsageError(f"an offset is beyond {FARTHEST_OFFSET_S:.0e} seconds")
        return [float(offset) for offset in given]
    if align == "start":
        return [0.0] * len(traces)
    clocks: list[float] = []
    for trace, label in zip(traces, labels, strict=True):
        clock = trace.origin.settings.get("first_timestamp_s")
        if not isinstance(clock, int | float):
            raise UsageError(f"{label} does not say when it began: use --offset or --align start")
        clocks.append(float(clock))
    dated = [clock >= _SINCE_1970 for clock in clocks]
    if any(dated) and not all(dated):
        odd, even = labels[dated.index(True)], labels[dated.index(False)]
        raise UsageError(f"{odd} counts from 1970, {even} from a start of its own: use --offset")
    return [round(clock - min(clocks), 9) for clock in clocks]


def _origin(traces: Sequence[Trace], labels: list[str], offsets: list[float], align: str) -> Origin:
    notes = [
        f"{label}: {note}"
        for trace, label in zip(traces, labels, strict=True)
        for note in trace.origin.notes
    ]
    words = {
        "start": "all start together",
        "absolute": "they stand as on their sources' clocks",
        "offset": f"they start at {', '.join(f'{offset:g}' for offset in offsets)} s",
    }
    notes.append(f"{len(traces)} traces merged; {words[align]}")
    settings: dict[str, Any] = {
        "align": align,
        "merged": [
            {
                "source": label,
                "format": trace.origin.format,
                "digest": trace.digest,
                "requests": len(trace),
                "offset_s": offset,
                "settings": trace.origin.settings,
            }
            for trace, label, offset in zip(traces, labels, offsets, strict=True)
        ],
    }
    arrivals = {trace.origin.settings.get("session_arrivals") for trace in traces}
    if "zero" in arrivals:
        # A study says that such times are made up; that holds for the whole now.
        settings["session_arrivals"] = "zero"
    if align == "absolute":
        settings["first_timestamp_s"] = min(
            trace.origin.settings["first_timestamp_s"] for trace in traces
        )
    units = {trace.origin.time_unit for trace in traces}
    unit = units.pop() if len(units) == 1 else "s"
    return Origin(" + ".join(labels), "merge", unit, tuple(notes), settings)


def _column(traces: Sequence[Trace], name: str) -> Any:
    return np.concatenate([getattr(trace, name) for trace in traces])


def _starts(traces: Sequence[Trace]) -> Int64s:
    starts = np.zeros(sum(len(trace) for trace in traces) + 1, np.int64)
    np.cumsum(np.concatenate([trace.chain_blocks for trace in traces]), out=starts[1:])
    return starts


def _filled(
    traces: Sequence[Trace], name: str, missing: float, offsets: Sequence[float] | None = None
) -> Any:
    """A column of all traces, ``missing`` where one has none; None where none has it."""
    given = [getattr(trace, name) for trace in traces]
    known = [column for column in given if column is not None]
    if not known:
        return None
    if offsets is not None:
        given = [
            None if column is None else shifted(column, offset)
            for column, offset in zip(given, offsets, strict=True)
        ]
    return np.concatenate(
        [
            np.full(len(trace), missing, known[0].dtype) if column is None else column
            for trace, column in zip(traces, given, strict=True)
        ]
    )


def _joined(given: Sequence[Labels | None], traces: Sequence[Trace]) -> Labels | None:
    """Labels of all traces under one numbering: equal names are one."""
    names: dict[str, int] = {}
    parts = []
    for labels, trace in zip(given, traces, strict=True):
        if labels is None:
            parts.append(np.full(len(trace), UNKNOWN, np.int32))
            continue
        # The last entry stands for -1: no name.
        codes = [names.setdefault(name, len(names)) for name in labels.names]
        parts.append(np.array([*codes, UNKNOWN], np.int32)[labels.codes])
    return Labels(np.concatenate(parts), tuple(names)) if names else None


def _sessions(
    traces: Sequence[Trace], labels: list[str], *, apart: bool
) -> tuple[Labels | None, int]:
    """The sessions of all traces, and how many were renamed to be kept ``apart``."""
    if not apart:
        return _joined([trace.session for trace in traces], traces), 0
    met: set[str] = set()
    given: list[Labels | None] = []
    renamed = 0
    for trace, label in zip(traces, labels, strict=True):
        if trace.session is None:
            given.append(None)
            continue
        names = []
        own = set(trace.session.names)
        for name in trace.session.names:
            new = name
            while new in met or (new != name and new in own):
                new = f"{new} ({label})"
            renamed += new != name
            names.append(new)
        met.update(names)
        given.append(Labels(trace.session.codes, tuple(names)))
    return _joined(given, traces), renamed


def _tenants(traces: Sequence[Trace], labels: list[str]) -> Labels | None:
    """Every request's tenant, named after its trace."""
    given: list[Labels | None] = []
    for trace, label in zip(traces, labels, strict=True):
        tenant = trace.tenant or Labels(np.full(len(trace), UNKNOWN, np.int32), ())
        names = (*(f"{label}/{name}" for name in tenant.names), label)
        given.append(Labels(np.where(tenant.codes < 0, len(names) - 1, tenant.codes), names))
    return _joined(given, traces)


def _beside(traces: Sequence[Trace]) -> _Forest:
    """The forests of all traces side by side."""
    chains, parents = [], []
    offset = 0
    for trace in traces:
        chains.append(trace.chains + np.int32(offset))
        parents.append(np.where(trace.parent < 0, NO_PARENT, trace.parent + np.int32(offset)))
        offset += trace.nodes
    return _Forest(
        np.concatenate(chains),
        np.concatenate(parents).astype(np.int32),
        _column(traces, "depth"),
        _column(traces, "tokens"),
        _column(traces, "key"),
    )


def _check_roots(traces: Sequence[Trace], labels: list[str]) -> None:
    """Refuse to share blocks of a trace in which one id names several roots."""
    for trace, label in zip(traces, labels, strict=True):
        roots = trace.key[trace.parent < 0]
        if len(np.unique(roots)) < len(roots):
            raise UsageError(
                f"{label}: ids are local to its sessions (one id starts several prefixes): "
                "its blocks cannot be shared with another trace's"
            )


def _united(forest: _Forest) -> tuple[_Forest, int, int]:
    """Every node as the first one with its parent and key; how many were not, and their sizes."""
    nodes = len(forest.parent)
    table = np.full(1 << max(4, (2 * nodes).bit_length()), -1, np.int32)
    first = np.empty(nodes, np.int32)
    shared = int(_unite(forest.parent, forest.key, table, first))
    parent = np.where(forest.parent < 0, NO_PARENT, first[forest.parent]).astype(np.int32)
    resized = int(np.count_nonzero(forest.tokens[first] != forest.tokens))
    return forest._replace(chains=first[forest.chains], parent=parent), shared, resized


@hot
def _unite(parent: Int32s, key: Int64s, table: Int32s, first: Int32s) -> int:
    """Fill ``first`` (N,): the lowest node of the same prefix. Parents come before children."""
    mask = len(table) - 1
    shared = 0
    for node in range(len(parent)):
        above = int(parent[node])
        if above >= 0:
            above = int(first[above])
        name = int(key[node])
        slot = _mix(above, name) & mask
        other = int(table[slot])
        while other >= 0 and (_above(parent, first, other) != above or key[other] != name):
            slot = (slot + 1) & mask
            other = int(table[slot])
        if other < 0:
            table[slot] = node
            other = node
        else:
            shared += 1
        first[node] = other
    return shared


def _above(parent: Int32s, first: Int32s, node: int) -> int:
    """The first node of the prefix that ``node`` continues, -1 where it is a root."""
    above = int(parent[node])
    return above if above < 0 else int(first[above])
