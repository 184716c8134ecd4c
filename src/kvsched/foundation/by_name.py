"""Classes by name: those that come with kvsched, an installed package's, and a user's own.

Policies and orders of requests are found the same way: ``REFERENCE[:PARAMETER=VALUE…]``, where the
reference is a name, ``package.module:Class`` or ``path.py:Class``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvsched.foundation.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class ByName(Generic[T]):
    """Classes of one kind, loaded when they are asked for."""

    kind: str
    """What one is called in messages."""
    base: type[T]
    shown_base: str
    """Where a user imports the base from."""
    built_in: Mapping[str, str]
    """Name to ``module:Class``."""
    entry_points: str
    """Group in which an installed package offers its own."""
    example: str
    """A reference with parameters, for messages."""
    check: Callable[[str, type[T]], None]
    """Raises UsageError, with the reference, for a class that is not fit to be one."""
    words: tuple[str, ...] = ()
    """Values of parameters that are words and no numbers."""

    def names(self) -> list[str]:
        """Names built in, then those that installed packages offer."""
        offered = {point.name for point in importlib.metadata.entry_points(group=self.entry_points)}
        return [*self.built_in, *sorted(offered - set(self.built_in))]

    def find(self, reference: str) -> type[T]:
        """Return the class that ``reference`` names: NAME, module:Name or path.py:Name.

        Raises UsageError, with what would do, if there is none.
        """
        kind = self.kind
        if reference in self.built_in:
            return self._from_module(reference, *self.built_in[reference].split(":"))
        for point in importlib.metadata.entry_points(group=self.entry_points, name=reference):
            try:
                offered = point.load()
            except (Exception, SystemExit) as error:  # another package may raise anything
                raise UsageError(
                    f"{kind} {reference}: cannot be loaded ({fault_of(error)})"
                ) from error
            return self._checked(reference, offered)
        place, _, attribute = reference.rpartition(":")
        if not place and reference.endswith(".py"):
            name = f"My{kind.capitalize()}"
            raise UsageError(f"{kind} {reference}: name its class too, as in {reference}:{name}")
        if not place and "=" in reference:
            raise UsageError(
                f"unknown {kind} {reference}: parameters are joined to their {kind} by colons, as "
                f"in {self.example}"
            )
        if not place:
            raise UsageError(f"unknown {kind} {reference} (known: {', '.join(self.names())})")
        if place.endswith(".py"):
            return self._checked(reference, self._from_file(reference, Path(place), attribute))
        return self._from_module(reference, place, attribute)

    def make(self, what: str | T | type[T]) -> T:
        """Return one from an instance, a class, or ``REFERENCE[:PARAMETER=VALUE…]``.

        A dash in a parameter's name is an underscore. Raises UsageError for an unknown name,
        parameter or value.
        """
        if isinstance(what, self.base):
            return what
        if not isinstance(what, str):
            reference = getattr(what, "__name__", repr(what))
            return self._made(reference, self._checked(reference, what), {})
        parts = what.split(":")
        values: dict[str, float | str] = {}
        while len(parts) > 1 and "=" in parts[-1]:
            name, _, text = parts.pop().partition("=")
            # A name with a dot has a name of the trace in it, which stays as it is.
            name = name if "." in name else name.replace("-", "_")
            if name in values:
                raise UsageError(f"{self.kind} {what}: {name} is given twice")
            try:
                values[name] = text if text in self.words else float(text)
            except ValueError:
                raise UsageError(
                    f"{self.kind} {what}: {name} must be a number, not {text!r}"
                ) from None
        return self._made(what, self.find(":".join(parts)), values)

    def _checked(self, reference: str, found: object) -> type[T]:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise UsageError(f"{self.kind} {reference} is no subclass of {self.shown_base}")
        name = getattr(found, "name", None)
        if not name:
            raise UsageError(f"{self.kind} {reference} has no name: set the class attribute `name`")
        if not isinstance(name, str) or not name.isprintable():
            raise UsageError(f"{self.kind} {reference}: its name {name!r} is no printable text")
        self.check(reference, found)
        return found

    def _made(self, reference: str, found: type[T], values: dict[str, float | str]) -> T:
        """Return an instance; what a user's own constructor raises is said in one line."""
        try:
            made: Any = found(**values)
            made.label.encode()
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"{self.kind} {reference}: cannot be made ({fault_of(error)})"
            ) from error
        one: T = made
        return one

    def _from_module(self, reference: str, module: str, attribute: str) -> type[T]:
        try:
            loaded = importlib.import_module(module)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise UsageError(
                f"{self.kind} {reference}: cannot import {module} ({fault_of(error)})"
            ) from error
        if not hasattr(loaded, attribute):
            raise UsageError(f"{self.kind} {reference}: {module} has no {attribute}")
        return self._checked(reference, getattr(loaded, attribute))

    def _from_file(self, reference: str, path: Path, attribute: str) -> object:
        said = f"{self.kind} {reference}"
        if not path.is_file():
            raise UsageError(f"{said}: there is no file {path}")
        # Named by what it says: compiled code cached for one version is not mistaken for another's.
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        name = f"kvsched_{self.kind}_{digest}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise UsageError(f"{said}: {path} is no Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except (Exception, SystemExit) as error:  # a user's file may raise anything
                del sys.modules[name]
                fault = fault_of(error)
                raise UsageError(f"{said}: {path} does not run ({fault})") from error
        module = sys.modules[name]
        if not hasattr(module, attribute):
            raise UsageError(f"{said}: {path} has no {attribute}")
        return getattr(module, attribute)


def fault_of(error: BaseException) -> str:
    """Name what somebody else's code raised, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
