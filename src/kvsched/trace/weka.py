"""Weka coding-agent sessions: one JSON object a file, a file or a folder of them.

A session has ``id``, ``block_size``, ``hash_id_scope`` and ``requests``; a request ``t`` (s from
the session's start), ``in``, ``out``, ``hash_ids`` (full blocks only), and maybe ``type``,
``model``, ``think_time``. A subagent's row has no ids, but may nest ``requests`` of its own,
whose clock starts at that row. Source: kv-cache-tester.

Sessions have no common clock: all start at 0, or as `arrivals` says. Order: (t, file name, row).
Ids of scope ``local`` mean something within their file only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace import fields
from kvsched.trace.arrivals import session_starts
from kvsched.trace.build import build_trace
from kvsched.trace.fields import FARTHEST_TIME, RowError
from kvsched.trace.ids import CLASH, CLASH_FAULT, pack_ids, parse_id_lists
from kvsched.trace.model import Int64s, Origin, Trace
from kvsched.trace.reading import (
    Format,
    Growing,
    LabelColumn,
    ReadOptions,
    Sampling,
    Skipped,
    counted,
    part_of,
)
from kvsched.trace.source import Source, os_fault
from kvsched.trace.spool import KeyColumn

SUFFIXES = (".json", ".json.gz", ".json.zst")
_SCOPES = ("local", "global")
_DEEPEST = 8

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=fields.MOST_TOKENS)]
_Delay = Annotated[float, msgspec.Meta(ge=0, lt=FARTHEST_TIME)]
_Time = Annotated[float, msgspec.Meta(gt=-FARTHEST_TIME, lt=FARTHEST_TIME)]
_Name = str | int | None
_NO_IDS = msgspec.Raw(b"null")


class _Request(msgspec.Struct):
    t: _Time | None = None
    input: _Tokens | None = msgspec.field(default=None, name="in")
    output: _Tokens | None = msgspec.field(default=None, name="out")
    hash_ids: msgspec.Raw = _NO_IDS
    type: _Name = None
    model: _Name = None
    think_time: _Delay | None = None
    agent_id: _Name = None
    requests: list[_Request] | None = None


class _Session(msgspec.Struct):
    id: str | int
    requests: list[_Request]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=fields.MOST_TOKENS)]
    hash_id_scope: str = "local"


@dataclass
class _Rows:
    """The requests of one session that have ids, in the file's order."""

    session: str
    block_size: int
    local: bool
    requests: list[_Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    """Empty, or the name of the subagent."""
    without_ids: int = 0
    nested: int = 0
    blocks: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    keys: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    signs: int = 0


def _walk(
    requests: list[_Request],
    rows: _Rows,
    include: bool,
    *,
    start: float = 0.0,
    agent: str = "",
    depth: int = 0,
) -> None:
    """Collect the requests that have ids. Raises RowError where nesting has no end."""
    if depth > _DEEPEST:
        raise RowError(f"requests are nested more than {_DEEPEST} deep")
    for request in requests:
        if bytes(request.hash_ids) != b"null":
            if request.t is None or request.input is None or request.output is None:
                raise RowError("a field is missing")
            rows.requests.append(request)
            rows.times.append(start + request.t)
            rows.agents.append(agent)
        else:
            rows.without_ids += 1
        if request.requests and include:
            inner = "" if request.agent_id is None else str(request.agent_id)
            inner = f"{agent}/{inner or 'subagent'}"
            begun = start + (request.t or 0.0)
            _walk(request.requests, rows, include, start=begun, agent=inner, depth=depth + 1)
        elif request.requests:
            rows.nested += len(request.requests)


def _fast(data: bytes, include: bool) -> _Rows | None:
    """The session's rows, or None where anything is out of the ordinary."""
    try:
        if not data.isascii():
            data.decode()
        session = msgspec.json.Decoder(_Session).decode(data)
        rows = _Rows(str(session.id), session.block_size, session.hash_id_scope == "local")
        if session.hash_id_scope not in _SCOPES:
            return None
        _walk(session.requests, rows, include)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    rows.blocks = np.empty(len(rows.requests), np.int64)
    parsed = parse_id_lists([request.hash_ids for request in rows.requests], rows.blocks)
    if parsed is None:
        return None
    rows.keys, rows.signs = parsed
    return rows


def _careful_request(value: object, include: bool, ids: list[list[int]], depth: int) -> _Request:
    """Check one row; the ids of it and of those nested in it are appended to ``ids``."""
    if depth > _DEEPEST:
        raise RowError(f"requests are nested more than {_DEEPEST} deep")
    row = fields.as_object(value)
    request = _Request(
        type=fields.optional_label(row, "type"),
        model=fields.optional_label(row, "model"),
        agent_id=fields.optional_label(row, "agent_id"),
        think_time=fields.optional_number(row, "think_time"),
    )
    has_ids = row.get("hash_ids") is not None
    if has_ids or row.get("t") is not None:
        request.t = fields.number(row, "t")
    if has_ids:
        request.input = fields.tokens(row, "in")
        request.output = fields.tokens(row, "out")
        ids.append(fields.block_ids(row, "hash_ids"))
        request.hash_ids = msgspec.Raw(b"[]")
    nested = row.get("requests")
    if nested is not None:
        if not isinstance(nested, list):
            raise RowError(f'"requests" must be a list, not {fields.kind(nested)}')
        request.requests = [_Request() for _ in nested]
        if include:
            for place, item in enumerate(nested):
                try:
                    request.requests[place] = _careful_request(item, include, ids, depth + 1)
                except RowError as error:
                    raise RowError(f"requests[{place}]: {error}") from error
    return request


def _header(row: fields.Row) -> _Rows:
    """Check what a session says about itself. Raises RowError."""
    fields.required(row, "id")
    session = fields.optional_label(row, "id")
    if session is None:
        raise RowError('"id" must be a string, not null')
    block_size = fields.integer(row, "block_size")
    if not 1 <= block_size <= fields.MOST_TOKENS:
        raise RowError(f'"block_size" is out of range: {fields.short(block_size)}')
    scope = row.get("hash_id_scope", "local")
    if scope not in _SCOPES:
        raise RowError('"hash_id_scope" must be "local" or "global"')
    return _Rows(session, block_size, scope == "local")


def _careful(file: str, data: bytes, include: bool, skipped: Skipped | None) -> _Rows:
    """The session's rows one by one. Raises InputError, or counts bad rows in ``skipped``."""
    if not data.strip():
        raise InputError(file, "the file is empty")
    try:
        session = fields.as_object(fields.parse(data))
        rows = _header(session)
        requests = fields.required(session, "requests")
        if not isinstance(requests, list):
            raise RowError(f'"requests" must be a list, not {fields.kind(requests)}')
    except RowError as error:
        raise InputError(file, str(error)) from error
    good: list[_Request] = []
    ids: list[list[int]] = []
    for number, value in enumerate(requests, 1):
        own: list[list[int]] = []
        try:
            good.append(_careful_request(value, include, own, 0))
        except RowError as error:
            if skipped is None:
                raise InputError(file, str(error), number) from error
            skipped.add(number, str(error), file)
            continue
        ids.extend(own)
    _walk(good, rows, include)
    rows.blocks = np.array([len(chain) for chain in ids], np.int64)
    rows.keys, rows.signs = pack_ids([key for chain in ids for key in chain])
    return rows


class _Columns:
    """The columns of all sessions, filled file by file."""

    def __init__(self, sampling: Sampling | None) -> None:
        self.times = Growing(np.float64)
        self.inputs = Growing(np.int64)
        self.outputs = Growing(np.int64)
        self.blocks = Growing(np.int64)
        self.keys = KeyColumn(sampling)
        self.scope = Growing(np.int32)
        self.turn = Growing(np.int32)
        self.delay = Growing(np.float64)
        self.labels = {name: LabelColumn() for name in ("session", "type", "model")}
        self.signs: dict[int, int] = {}

    def append(self, rows: _Rows, session: str, scope: int, start: float) -> None:
        requests, count = rows.requests, len(rows.requests)
        self.times.extend(np.array(rows.times, np.float64) + start)
        said = np.array([request.input for request in requests], np.int64)
        self.inputs.extend(np.maximum(said, rows.blocks * rows.block_size))
        self.outputs.extend(np.array([request.output for request in requests], np.int64))
        self.blocks.extend(rows.blocks)
        self.keys.extend(rows.keys)
        self.scope.extend(np.full(count, scope))
        waits = [np.nan if r.think_time is None else r.think_time for r in requests]
        self.delay.extend(np.array(waits, np.float64))
        turns: dict[str, int] = {}
        for agent in rows.agents:
            turns[agent] = turns.get(agent, 0) + 1
            self.turn.extend(np.array([turns[agent]]))
        self.labels["session"].extend((session + agent for agent in rows.agents), count)
        self.labels["type"].extend((_name(request.type) for request in requests), count)
        self.labels["model"].extend((_name(request.model) for request in requests), count)
        self.signs[scope] = self.signs.get(scope, 0) | rows.signs


def _name(value: Any) -> str | None:
    return None if value is None else str(value)


class _Sessions:
    """Sessions read so far: the columns, and what there is to tell about them."""

    def __init__(self, where: str, options: ReadOptions, count: int) -> None:
        self.where = where
        self.options = options
        self.starts = session_starts(count, options.session_arrivals, options.seed)
        self.columns = _Columns(options.sampling)
        self.skipped = Skipped(where)
        self.block_size = 0
        self.files = 0
        self.names: set[str] = set()
        self.without_ids = self.nested = self.less = self.more = self.same_id = 0

    def add(self, source: Source) -> None:
        """Read one session file. Raises InputError."""
        data = source.read_all()
        skipped = self.skipped if self.options.skip_bad_rows else None
        include = self.options.include_subagents
        rows = _fast(data, include) or _careful(source.name, data, include, skipped)
        expected = self.block_size or self.options.block_size or rows.block_size
        if rows.block_size != expected:
            who = "the other sessions have" if self.block_size else "--block-size is"
            raise InputError(source.name, f'"block_size" is {rows.block_size}, {who} {expected}')
        self.block_size = expected
        name = rows.session
        if name in self.names:
            self.same_id += 1
            name = f"{name} ({source.path.name})"
        self.names.add(name)
        scope = self.files + 1 if rows.local else 0
        self.columns.append(rows, name, scope, float(self.starts[self.files]))
        if self.columns.signs[scope] == CLASH:
            raise InputError(source.name, CLASH_FAULT)
        said = np.array([request.input for request in rows.requests], np.int64)
        held = rows.blocks * rows.block_size
        self.less += int((said < held).sum())
        self.more += int((said >= held + rows.block_size).sum())
        self.without_ids += rows.without_ids
        self.nested += rows.nested
        self.files += 1

    def notes(self) -> Iterator[str]:
        """What was chosen and left out: one sentence each."""
        arrivals = self.options.session_arrivals
        if arrivals != "zero":
            yield f"sessions start as {arrivals} a second, seed {self.options.seed}"
        elif self.files > 1:
            yield f"the clocks of all {self.files} sessions start at 0"
        if self.without_ids:
            yield f"{counted(self.without_ids, 'row', 'rows')} without hash_ids left out"
        if self.nested:
            rows = counted(self.nested, "nested request", "nested requests")
            yield f"{rows} of subagents left out (--include-subagents adds them)"
        if self.less:
            rows = counted(self.less, "request says", "requests say")
            yield f"{rows} fewer tokens than the blocks hold; the blocks count"
        if self.more:
            rows = counted(self.more, "request has", "requests have")
            yield f"{rows} a block or more of tokens that no id covers"
        if self.same_id:
            rows = counted(self.same_id, "session has", "sessions have")
            yield f"{rows} the id of another file and kept apart from it"
        yield from self.skipped.notes()

    def finish(self) -> Trace:
        """The trace of all sessions. Raises InputError where there is no request."""
        columns = self.columns
        if not len(columns.times):
            raise self.skipped.nothing_left()
        starts = np.zeros(len(columns.times) + 1, np.int64)
        np.cumsum(columns.blocks.finish(), out=starts[1:])
        options = self.options
        settings: dict[str, Any] = {
            "sessions": self.files,
            "session_arrivals": options.session_arrivals,
            "include_subagents": options.include_subagents,
        }
        if options.session_arrivals != "zero":
            settings["seed"] = options.seed
        delay = columns.delay.finish()
        return build_trace(
            time_s=columns.times.finish(),
            input_tokens=columns.inputs.finish(),
            output_tokens=columns.outputs.finish(),
            starts=starts,
            keys=columns.keys.finish(),
            block_size=self.block_size,
            origin=Origin(Path(self.where).name, "weka", "s", tuple(self.notes()), settings),
            scope=columns.scope.finish(),
            session=columns.labels["session"].finish(),
            type=columns.labels["type"].finish(),
            model=columns.labels["model"].finish(),
            turn=columns.turn.finish(),
            delay_s=None if np.isnan(delay).all() else delay,
            note_sorting=False,
            sampling=options.sampling,
        )


def read(source: Source, options: ReadOptions) -> Trace:
    """Read one session. Memory: the file and the columns. Raises InputError."""
    sessions = _Sessions(source.name, options, 1)
    sessions.add(source)
    return sessions.finish()


def read_folder(folder: Path, options: ReadOptions) -> Trace:
    """Read every session file directly in ``folder``, by name. Memory: one file and the columns."""
    try:
        paths = sorted(
            path
            for path in folder.iterdir()
            if path.name.endswith(SUFFIXES) and not path.name.startswith(".") and path.is_file()
        )
        total = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise InputError(str(folder), os_fault(error)) from error
    if not paths:
        raise InputError(str(folder), f"no session files in the folder ({', '.join(SUFFIXES)})")
    sessions = _Sessions(str(folder.resolve()), options, len(paths))
    done = 0
    for path in paths:
        with Source(path, part_of(done, total, options.progress)) as source:
            sessions.add(source)
            done += source.size
    sessions.where = str(folder)
    return sessions.finish()


def sniff(head: bytes) -> bool:
    """Whether it looks like an object with requests in it."""
    session = b'"requests"' in head or b'"hash_id_scope"' in head
    return head.lstrip()[:1] == b"{" and session and b'"input_length"' not in head


FORMAT = Format(
    name="weka",
    title="Weka coding-agent sessions: a JSON file each, or a folder of them",
    suffixes=(".json",),
    sniff=sniff,
    read=read,
    options=frozenset({"block_size", "session_arrivals", "include_subagents", "skip_bad_rows"}),
    read_folder=read_folder,
)
