"""A trace that can be shown: names and ids salted, the source left out, the workload as it was.

What stays is what a study needs, and it is not nothing: lengths, times from the first request,
who shares which prefix, and how many requests each (renamed) session, tenant, type and model has.
Who knows the length and the moment of one request can find it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Int64s, Labels, Origin, Trace
from kvsched.trace.reading import counted

SOURCE = "anonymized"
KEEPABLE = ("type", "model")
_LABELS = ("tenant", "session", "type", "model")
_SETTINGS = ("session_arrivals", "sessions", "include_subagents", "seed")
_ARRIVALS = re.compile(r"zero|poisson:[\d.e+-]+")
_NUMBER = r"[\d,]+"
# Notes that say nothing but numbers and words of ours; what follows them in a note is cut off.
_SAFE_NOTES = tuple(
    re.compile(pattern)
    for pattern in (
        r"timestamps are (?:s|ms|us|ns) since 1970, by their size",
        r"timestamps have fractions; read as (?:s|ms|us|ns), the format's unit",
        rf"{_NUMBER} rows? (?:was|were) out of time order and sorted",
        rf"{_NUMBER} blocks? came again with another size; the first size is kept",
        rf"the clocks of all {_NUMBER} sessions start at 0",
        r"sessions start as poisson:[\d.e+-]+ a second, seed \d+",
        rf"{_NUMBER} rows? without hash_ids left out",
        rf"{_NUMBER} nested requests? of subagents left out",
        rf"{_NUMBER} requests? says? fewer tokens than the blocks hold; the blocks count",
        rf"{_NUMBER} requests? (?:has|have) a block or more of tokens that no id covers",
        rf"{_NUMBER} bad rows? (?:was|were) left out",
        rf"cut to {_NUMBER} of {_NUMBER} requests",
        r"blocks that only requests cut away had used before count as new",
        r"generated with seed \d+",
    )
)


def anonymize(trace: Trace, salt: bytes, keep: Collection[str] = ()) -> Trace:
    """Return ``trace`` with every id and name replaced by a keyed hash; all else as it was.

    A block's id becomes BLAKE2b, 64 bits, keyed with the salt, over its parent's new id and its
    own: equal ids after different prefixes become different ones, which would tell of equal
    content. Roots that share an id without sharing a node are numbered, for the same reason.
    Names of sessions, tenants, types and models become salted pseudonyms, but for those in
    ``keep`` (type, model). The source's name, the first timestamp, settings, and notes that may
    hold names are left out. The same salt gives the same ids and names, so that traces
    anonymized with it can still be joined; without it nobody can test a guess.

    Lengths, times, chains and the numbers of nodes stay: a study gives the same numbers.
    O(N + names), a few µs each. Raises UsageError for an empty salt or another label to keep.
    """
    if not salt:
        raise UsageError("the salt is empty")
    for label in keep:
        if label not in KEEPABLE:
            raise UsageError(f"{label!r} cannot be kept: only {' and '.join(KEEPABLE)} can")
    secret = hashlib.blake2b(salt, person=b"kvsched salt").digest()
    changes: dict[str, Any] = {
        label: _pseudonyms(trace, label, secret) for label in _LABELS if label not in keep
    }
    changes["key"] = _hashed_keys(trace, secret)
    changes["origin"] = _origin(trace.origin, [label for label in KEEPABLE if label in keep])
    return dataclasses.replace(trace, **changes)


def _hashed_keys(trace: Trace, secret: bytes) -> Int64s:
    """A new id for every node, from the path to it. O(N)."""
    old = np.ascontiguousarray(trace.key, "<i8").tobytes()
    new = bytearray(len(old))
    inner = hashlib.blake2b(key=secret, digest_size=8, person=b"block")
    root = hashlib.blake2b(key=secret, digest_size=8, person=b"root")
    met: dict[bytes, int] = {}
    for node, parent in enumerate(trace.parent.tolist()):
        own = old[8 * node : 8 * node + 8]
        if parent < 0:
            state = root.copy()
            above = met.get(own, 0).to_bytes(8, "little")
            met[own] = met.get(own, 0) + 1
        else:
            state = inner.copy()
            above = bytes(new[8 * parent : 8 * parent + 8])
        state.update(above + own)
        new[8 * node : 8 * node + 8] = state.digest()
    return np.frombuffer(bytes(new), "<i8").astype(np.int64)


def _pseudonyms(trace: Trace, label: str, secret: bytes) -> Labels | None:
    labels: Labels | None = getattr(trace, label)
    if labels is None:
        return None

    def pseudonym(name: str) -> str:
        person = label.encode()
        hashed = hashlib.blake2b(name.encode(), key=secret, digest_size=8, person=person)
        return f"{label}-{hashed.hexdigest()}"

    return Labels(labels.codes, tuple(pseudonym(name) for name in labels.names))


def _origin(origin: Origin, kept: list[str]) -> Origin:
    notes = []
    for note in origin.notes:
        found = next(filter(None, (safe.match(note) for safe in _SAFE_NOTES)), None)
        if found is not None:
            notes.append(found[0])
    dropped = len(origin.notes) - len(notes)
    if dropped:
        notes.append(f"{counted(dropped, 'note', 'notes')} about the source left out")
    names = ", ".join(label for label in _LABELS if label not in kept)
    notes.append(f"block ids and the names of {names} are salted hashes; the source is not named")
    settings = {name: origin.settings[name] for name in _SETTINGS if _plain(origin.settings, name)}
    return Origin(SOURCE, origin.format, origin.time_unit, tuple(notes), settings)


def _plain(settings: dict[str, Any], name: str) -> bool:
    """Whether a setting is a number, or arrivals as `parse_arrivals` knows them: no free text."""
    value = settings.get(name)
    if isinstance(value, str):
        return _ARRIVALS.fullmatch(value) is not None
    return isinstance(value, int)
