"""Looking a name up among names and aliases, whatever its case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from kvsched.foundation.errors import UsageError


def plain(name: str) -> str:
    """``name`` as it is compared: lower case, `_` and spaces as `-`."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def index(entries: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """From each plain name or alias to its entry's name; raises ValueError for one used twice."""
    found: dict[str, str] = {}
    for name, aliases in entries:
        for alias in {plain(name), *(plain(each) for each in aliases)}:
            if found.setdefault(alias, name) != name:
                raise ValueError(f"{alias} names both {found[alias]} and {name}")
    return found


def look_up(name: str, known: Mapping[str, str], what: str, hint: str = "") -> str:
    """The entry that ``name`` means. Raises UsageError that gives the nearest names."""
    entry = known.get(plain(name))
    if entry is not None:
        return entry
    near = difflib.get_close_matches(plain(name), known, n=6, cutoff=0.4)
    entries = list(dict.fromkeys(known[each] for each in near))[:3]
    nearest = f"nearest: {', '.join(entries)}" if entries else "none is near"
    raise UsageError(f"{what} {name!r} is not in the catalog ({nearest}){hint}")
