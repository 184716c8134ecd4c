"""The fields of one `config.json`, read with names in every complaint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from kvsched.foundation.errors import InputError


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises InputError where it is missing, not JSON, no object."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from error
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), f"is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputError(str(path), "is JSON, but no object")
    return config


class Fields:
    """A config's fields, and the names of those that were needed and not there.

    Missing numbers read as 1 until `check` raises one error that names all of them.
    """

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self.file = file
        self._config = config
        self._missing: list[str] = []

    def fault(self, text: str) -> NoReturn:
        """Raise InputError with ``text``, naming the file."""
        raise InputError(self.file, text)

    def check(self) -> None:
        """Raise InputError that names every field asked for and missing."""
        if self._missing:
            names = ", ".join(dict.fromkeys(self._missing))
            plural = "s" if len(set(self._missing)) > 1 else ""
            self.fault(f"lacks the field{plural} {names}")

    def get(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null, else None."""
        for name in names:
            value = self._config.get(name)
            if value is not None:
                return value
        return None

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least`` under the first of ``names`` that is there."""
        value = self.get(*names)
        if value is None:
            if default is None:
                self._missing.append(" or ".join(names))
                return max(least, 1)
            return default
        name = next(name for name in names if self._config.get(name) is not None)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(f"{name} must be a whole number, not {value!r}")
        if value < least:
            self.fault(f"{name} must be at least {least}, not {value}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A truth value, or ``default`` where it is missing or null."""
        value = self._config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(f"{name} must be true or false, not {value!r}")
        return value

    def text(self, *names: str) -> str | None:
        """A string, or None where it is missing or null."""
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            self.fault(f"{names[0]} must be text, not {value!r}")
        return value

    def names(self, name: str, length: int) -> list[str] | None:
        """A list of ``length`` strings, or None where it is missing or null."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fault(f"{name} must be a list of names")
        if len(value) != length:
            self.fault(f"{name} has {len(value)} entries for {length} layers")
        return value

    def indices(self, name: str) -> set[int]:
        """A list of whole numbers as a set; empty where it is missing or null."""
        value = self._config.get(name)
        if value is None:
            return set()
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            self.fault(f"{name} must be a list of whole numbers")
        return set(value)
