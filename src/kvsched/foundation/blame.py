"""What somebody else's code does wrong, said in one line that names whose it is."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from kvsched.foundation.by_name import fault_of
from kvsched.foundation.errors import KvschedError, UsageError

PLAINLY = "KVSCHED_COMPILED=0 runs it as plain Python"


class Suspect(NamedTuple):
    """Something with hooks that are compiled into a loop: a policy, an order."""

    kind: str
    made: Any
    """An instance with a ``label``, or a ``name``."""

    @property
    def own(self) -> bool:
        """Whether it is a user's own."""
        return not type(self.made).__module__.startswith("kvsched.")

    @property
    def title(self) -> str:
        """Its kind and its name."""
        return f"{self.kind} {getattr(self.made, 'label', None) or self.made.name}"

    @property
    def files(self) -> set[str]:
        """Names of the files that its class and the classes above it are from."""
        modules = (sys.modules.get(each.__module__) for each in type(self.made).__mro__)
        found = (getattr(module, "__file__", None) for module in modules)
        return {PurePath(file).name for file in found if file}


def compile_fault(error: BaseException) -> tuple[str, str] | None:
    """Return what Numba says of code that does not compile, and the file that it names.

    None where the error is not Numba's. The file is empty where none is named. Lists of an array's
    and a tuple's parts are left out of types: they fill a screen.
    """
    if not type(error).__module__.startswith("numba."):
        return None
    lines = [line.strip() for line in str(error).splitlines()]
    said = next(
        (line for line in lines if line and not line.startswith("Failed in")), type(error).__name__
    )
    while len(said) > 100:
        shorter = re.sub(r"(?<=\w)\([^()]*\)", "", said)
        if shorter == said:
            break
        said = shorter
    place = next((line for line in lines if line.startswith('File "')), "")
    found = re.match(r'File "(.*)", line (\d+)', place)
    if found is None:
        return said, ""
    file = PurePath(found[1].replace("\\", "/")).name
    return f"{said} ({file}, line {found[2]})", file


@contextlib.contextmanager
def blamed_on(suspects: Sequence[Suspect], what: str) -> Iterator[None]:
    """Turn what users' code raises, or Numba of it, into a UsageError in one line.

    With several suspects that are users' own, the one whose file Numba names, else all. What none
    of them can have done is raised as it is.
    """
    try:
        yield
    except KvschedError:
        raise
    except (Exception, SystemExit) as error:
        own = [each for each in suspects if each.own]
        if not own:
            raise
        fault = compile_fault(error)
        if fault is None:
            told = f": {what} ({fault_of(error)})"
        else:
            own = [each for each in own if fault[1] in each.files] or own
            told = f" does not compile: {fault[0]}; {PLAINLY}"
        title = " or ".join(each.title for each in own)
        raise UsageError(f"{title}{told}") from error
