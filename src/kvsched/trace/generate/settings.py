"""Checks and overrides of a workload's settings; every fault names the setting and its range."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from kvsched.foundation.errors import UsageError
from kvsched.trace.generate.workload import Between, Spread, Stream, Workload

_ARRIVALS = ("poisson", "bursts", "day")


def check(workload: Workload) -> None:
    """Check every setting of ``workload``. Raises UsageError naming the first that is wrong."""
    try:
        msgspec.convert(msgspec.to_builtins(workload), Workload)
    except msgspec.ValidationError as error:
        raise _as_usage(error) from error
    for path, value, allowed in _numbers(workload, ""):
        if not math.isfinite(value) or not allowed.low <= value <= allowed.high:
            low, high = _plain(allowed.low), _plain(allowed.high)
            raise UsageError(f"{path} must be from {low} to {high}, not {_plain(value)}")
    names = [stream.name for stream in workload.streams]
    if not names:
        raise UsageError("streams must have at least one stream")
    for name in names:
        if not name or "." in name or names.count(name) > 1:
            raise UsageError(f"streams: names must differ, have no dot and not be empty: {name!r}")
    if sum(stream.share for stream in workload.streams) <= 0:
        raise UsageError("streams: the shares must be from 0 to 1 with a sum above 0")
    for stream in workload.streams:
        _check_stream(workload, stream)


def _check_stream(workload: Workload, stream: Stream) -> None:
    for path, spread in _spreads(stream, stream.name):
        if spread.low > spread.high:
            low, high = _plain(spread.low), _plain(spread.high)
            raise UsageError(f"{path}.low must be from 0 to {path}.high ({high}), not {low}")
    for name, spread in (("first", stream.first), ("text", stream.text)):
        if spread.high < 1:
            raise UsageError(f"{stream.name}.{name}.high must be at least 1, not {spread.high:g}")
    longest = 0
    if stream.prompts is not None:
        longest += workload.preamble_tokens + _longest(stream.prompts.tokens)
        if workload.tenants * stream.prompts.count > 10**7:
            raise UsageError(
                f"{stream.name}.prompts.count must be from 1 to {10**7 // workload.tenants} "
                f"with {workload.tenants} tenants, not {stream.prompts.count}"
            )
    if stream.documents is not None:
        longest += stream.documents.each * _longest(stream.documents.tokens)
    if longest >= workload.context_limit:
        raise UsageError(
            f"context_limit must be above {longest}, the longest preamble, system prompt and "
            f"documents of stream {stream.name}, not {workload.context_limit}"
        )


def _longest(spread: Spread) -> int:
    most = spread.high if spread.sigma > 0 else min(max(spread.median, spread.low), spread.high)
    return math.ceil(most)


def changed(workload: Workload, overrides: dict[str, Any]) -> Workload:
    """Return ``workload`` with settings replaced.

    A key is a field of `Workload`, ``duration_s``, or a path that begins with a stream's name
    (``chat.think_s.median``). Values may be text, as a command line has them; ``arrivals`` may
    be the bare word. ``duration_s`` alone keeps the rate and scales ``requests``; with
    ``requests`` it sets the rate. Raises UsageError where a name or a value is wrong.
    """
    rest = dict(overrides)
    duration = rest.pop("duration_s", None)
    if duration is not None:
        rest.update(_from_duration(workload, duration, rest))
    tree: dict[str, Any] = msgspec.to_builtins(workload)
    for path, value in rest.items():
        _put(tree, path, value)
    try:
        return msgspec.convert(tree, Workload, strict=False)
    except msgspec.ValidationError as error:
        raise _as_usage(error) from error


def _from_duration(workload: Workload, given: Any, rest: dict[str, Any]) -> dict[str, Any]:
    if "rate" in rest and "requests" in rest:
        raise UsageError("duration_s, rate and requests: at most two of them can be set")
    duration = _number("duration_s", given)
    if "requests" in rest:
        return {"rate": _number("requests", rest["requests"]) / duration}
    rate = _number("rate", rest.get("rate", workload.rate))
    return {"requests": round(rate * duration)}


def _number(name: str, given: Any) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be a number, not {given!r}") from error
    if not 0 < value <= 1e9:
        raise UsageError(f"{name} must be above 0 and at most 1000000000, not {_plain(value)}")
    return value


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    head, *steps = path.split(".")
    streams = {stream["name"]: stream for stream in tree["streams"]}
    if head == "arrivals" and not steps and isinstance(value, str):
        if value not in _ARRIVALS:
            raise UsageError(f"arrivals must be {', '.join(_ARRIVALS)}, not {value!r}")
        tree["arrivals"] = {"type": value}
        return
    if not steps and head in tree:
        tree[head] = msgspec.to_builtins(value)
        return
    at: Any = streams.get(head) if head in streams else tree.get(head)
    for step in steps[:-1]:
        at = at.get(step) if isinstance(at, dict) else None
    if not steps or not isinstance(at, dict):
        known = ", ".join(sorted([*tree, "duration_s"]))
        raise UsageError(
            f"no setting {path!r}; settings are {known}, and paths below the streams "
            f"{', '.join(streams)}"
        )
    at[steps[-1]] = msgspec.to_builtins(value)


def _as_usage(error: msgspec.ValidationError) -> UsageError:
    text, _, place = str(error).partition(" - at `$.")
    where = place.rstrip("`")
    return UsageError(f"{where}: {text}" if where else text)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _numbers(at: msgspec.Struct, path: str) -> Iterator[tuple[str, float, Between]]:
    """Every number with a range below ``at``, with its path and range."""
    for name, hint in _hints(type(at)).items():
        value = getattr(at, name)
        where = f"{path}{name}"
        for allowed in getattr(hint, "__metadata__", ()):
            if isinstance(allowed, Between):
                yield where, value, allowed
        if isinstance(value, msgspec.Struct):
            yield from _numbers(value, f"{where}.")
        elif isinstance(value, tuple):
            for stream in value:
                yield from _numbers(stream, f"{stream.name}.")


def _spreads(at: msgspec.Struct, path: str) -> Iterator[tuple[str, Spread]]:
    for name in at.__struct_fields__:
        value = getattr(at, name)
        if isinstance(value, Spread):
            yield f"{path}.{name}", value
        elif isinstance(value, msgspec.Struct):
            yield from _spreads(value, f"{path}.{name}")


def _plain(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:g}"
