"""The settings of an engine that `kvsched bench scheduler` measures."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Sequence

from kvsched.cli.bench_options import EngineChoice
from kvsched.foundation.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of the engine: a name, and what it is started with."""

    name: str
    arguments: tuple[str, ...]


def settings_of(
    engine: EngineChoice,
    given: Sequence[str],
    vary: Sequence[str] | None,
    baseline: str | None,
    candidates: Sequence[str] | None,
) -> tuple[Setting, ...]:
    """Return the settings to measure, the baseline first. Raises UsageError."""
    asked = bool(vary or candidates or baseline)
    if engine.launch is None:
        if asked:
            raise UsageError("--vary, --baseline and --candidate need --launch")
        return (Setting("", ()),)
    if vary and (candidates or baseline):
        raise UsageError("give --vary, or --baseline and --candidate")
    if not asked:
        raise UsageError("what is to be varied? --vary max-num-seqs=16,64, or --candidate")
    if vary:
        choices = []
        for text in vary:
            name, mark, values = text.partition("=")
            parts = [value.strip() for value in values.split(",")]
            if not mark or not name.strip("-") or not all(parts):
                raise UsageError(f"--vary {text}: write OPTION=A,B")
            flag = f"--{name.strip().lstrip('-')}"
            choices.append([(flag, value) for value in parts])
        found = [
            Setting(
                ", ".join(f"{flag[2:]} {value}" for flag, value in chosen),
                (*given, *itertools.chain.from_iterable(chosen)),
            )
            for chosen in itertools.product(*choices)
        ]
    else:
        texts = [baseline or "", *(candidates or [])]
        found = [Setting(text or "as given", (*given, *shlex.split(text))) for text in texts]
    if len(found) < 2 or len({each.name for each in found}) < len(found):
        raise UsageError("at least two settings, each once")
    return tuple(found)


def slug(name: str) -> str:
    """Return a setting's name as a folder's."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "run"
