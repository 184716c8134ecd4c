"""What a live cache tells a policy of each request: columns of length 1, written anew each time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from kvsched.policy.base import Policy
from kvsched.policy.needs import Column
from kvsched.trace.model import Labels

MOST_NAMES = {"tenant": 4_096, "type": 256, "model": 256, "session": 65_536}
"""Names that are told apart; of more, the one not met for longest gives up its code."""

ALWAYS = ("time_s", "input_tokens", "output_tokens")

_NUMBERS: dict[str, tuple[type[Any], float]] = {
    "time_s": (np.float64, 0.0),
    "input_tokens": (np.int64, 0),
    "output_tokens": (np.int64, 0),
    "turn": (np.int32, 0),
    "priority": (np.int32, 0),
    "deadline_s": (np.float64, np.nan),
    "delay_s": (np.float64, np.nan),
}


class _Codes:
    """Codes of the names of one column; the least recently met name lends its code."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.codes: OrderedDict[str, int] = OrderedDict()
        self.turns = np.zeros(most, np.int64)

    def of(self, name: str) -> tuple[int, bool]:
        """Return the code of a name, and whether it is new. O(1)."""
        code = self.codes.get(name)
        if code is not None:
            self.codes.move_to_end(name)
            return code, False
        code = len(self.codes)
        if code == self.most:
            _, code = self.codes.popitem(last=False)
        self.codes[name] = code
        self.turns[code] = 0
        return code, True


class LiveColumns(Mapping[str, Column]):
    """`Setup.columns` of a live cache. Only what a policy asked for is written.

    ``fields``: what requests have beside `ALWAYS`; None for all that a trace can have.
    """

    def __init__(self, fields: Collection[str] | None = None) -> None:
        arrays: dict[str, Any] = {
            name: np.array([value], kind) for name, (kind, value) in _NUMBERS.items()
        }
        arrays |= {name: np.full(1, -1, np.int32) for name in MOST_NAMES}
        known = arrays if fields is None else {*fields, *ALWAYS}
        self._arrays = {name: array for name, array in arrays.items() if name in known}
        self._codes = {name: _Codes(most) for name, most in MOST_NAMES.items()}
        self.asked: set[str] = set()
        """Columns that the policy reads."""
        self._policy: Policy | None = None
        self._state: Any = None

    def __getitem__(self, name: str) -> Column:
        array: Any = self._arrays[name]
        self.asked.add(name)
        return Labels(array, ("",) * MOST_NAMES[name]) if name in MOST_NAMES else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def met_by(self, policy: Policy, state: Any) -> None:
        """Tell another policy from now on; it learns the names that are known. O(names)."""
        self._policy, self._state = policy, state
        for column in ("tenant", "type", "model"):
            for name, code in self._codes[column].codes.items():
                policy.learn_name(state, column, code, name)

    def known(self) -> dict[str, list[tuple[str, int, int]]]:
        """Return each column's names with their codes and turns, the longest unmet first."""
        return {
            column: [(name, code, int(codes.turns[code])) for name, code in codes.codes.items()]
            for column, codes in self._codes.items()
        }

    def learn(self, column: str, name: str, code: int, turn: int) -> bool:
        """Know a name that `known` gave, after those before it; False for one that it did not."""
        codes = self._codes.get(column)
        if codes is None or not 0 <= code < codes.most or len(codes.codes) >= codes.most:
            return False
        codes.codes[name] = code
        codes.turns[code] = turn
        return True

    def meet(self, column: str, name: str) -> None:
        """Meet a name before any request has it. O(1)."""
        self._code(column, name)

    def forget_policy(self) -> None:
        """Write for no policy, until one asks."""
        self.asked.clear()

    def write(self, values: Mapping[str, Any], *, again: bool = False) -> None:
        """Write one request's values, None for unknown; ``again`` if it only goes on. O(asked)."""
        for name in self.asked:
            if name in MOST_NAMES:
                self._arrays[name][0] = self._code(name, values.get(name))
            elif name == "turn" and values.get("turn") is None:
                self._arrays["turn"][0] = self._turn(values.get("session"), again)
            else:
                value = values.get(name)
                self._arrays[name][0] = _NUMBERS[name][1] if value is None else value

    def blank(self, copies: Mapping[int, Any]) -> None:
        """Write that nothing is known into copies of the columns, found by the originals' ids."""
        for name, array in self._arrays.items():
            copied = copies.get(id(array))
            if copied is not None:
                copied[0] = -1 if name in MOST_NAMES else _NUMBERS[name][1]

    def _code(self, column: str, name: str | None) -> int:
        if name is None:
            return -1
        code, new = self._codes[column].of(name)
        if new and self._policy is not None:
            self._policy.learn_name(self._state, column, code, name)
        return code

    def _turn(self, session: str | None, again: bool) -> int:
        if session is None:
            return 0
        codes = self._codes["session"]
        code, _ = codes.of(session)
        if not again:
            codes.turns[code] += 1
        return int(codes.turns[code])
