"""What a cache is asked for, and what it answers."""

from __future__ import annotations

import enum
import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import KvschedError, UsageError

if TYPE_CHECKING:
    from kvsched.cache.lease import Lease
    from kvsched.cache.waiting import Ticket

Hashes = Sequence[bytes] | Sequence[int] | NDArray[Any]
"""One hash a block, from the root: bytes, 64-bit integers, (L,) integers or (L, bytes) uint8."""


class Outcome(enum.StrEnum):
    """What became of a request for room."""

    ADMIT = "admit"
    """It runs, and all of its blocks are held."""
    QUEUE = "queue"
    """It does not fit now, and waits."""
    DEGRADE = "degrade"
    """It runs, and less than all of its blocks is stored."""
    REJECT = "reject"
    """It does not run."""


class NotAdmittedError(KvschedError):
    """A request was entered as a context that has no lease: it was queued or rejected."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request for room: its blocks, whose it is, and how it is to be treated.

    Give ``token_ids`` (blocks are hashed as vLLM hashes them) or ``hashes``, one a block from the
    root. ``tokens`` is the length of the prompt where hashes are given: blocks that no hash names
    hold no node; a last hash may name a partial block.
    """

    token_ids: Sequence[int] | NDArray[Any] | None = None
    hashes: Hashes | None = None
    tokens: int | None = None
    id: str | None = None
    tenant: str = ""
    cache_salt: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    """Where the adapter lies: one name with another path is another adapter, as in vLLM."""
    model_revision: str | None = None
    priority: int = 0
    """Larger is more important: in the queue, and in what is kept. 0 is the usual one."""
    deadline_s: float | None = None
    """Second of the cache's clock after which it is of no use to run the request."""
    lifetime_s: float | None = None
    """Seconds after its release for which its blocks are kept before others; None: no end."""
    reserve_tokens: int = 0
    """Tokens that it may add: as much room must be left when it is admitted."""
    session: str | None = None
    turn: int | None = None
    type: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    """Tokens of the prompt, for policies that ask, where not all of it is to be held."""
    output_tokens: int | None = None
    """Tokens that it is thought to generate, for policies that ask."""
    delay_s: float | None = None
    info: Any = None
    """The caller's own; nothing reads it."""
    _made: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.token_ids is None) == (self.hashes is None):
            raise UsageError("a request has token_ids or hashes, one of the two")
        if self.tokens is not None:
            if self.token_ids is not None:
                raise UsageError("tokens goes with hashes; token_ids say how many they are")
            if type(self.tokens) is not int or self.tokens < 0:
                self._check_counts()
        if type(self.tenant) is not str:
            raise UsageError(f"tenant must be text, not {self.tenant!r}")
        # Most requests have no more than these: what is not the default is looked at one by one.
        rest = (
            self.reserve_tokens, self.priority, self.output_tokens, self.turn, self.deadline_s,
            self.lifetime_s, self.delay_s, self.id, self.cache_salt, self.lora_name,
            self.lora_path, self.model_revision, self.session, self.type, self.model,
            self.input_tokens,
        )  # fmt: skip
        if any(map(operator.is_not, rest, _DEFAULTS)):
            self._check_counts()
            self._check_others()

    def _check_counts(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_whole(value) or not 0 <= int(value) <= most:
                raise UsageError(f"{name} must be a whole number from 0 to {most:,}, not {value!r}")
            # NumPy's small integers overflow in sums.
            setattr(self, name, int(value))

    def _check_others(self) -> None:
        if not _is_whole(self.priority) or not -(2**31) <= self.priority < 2**31:
            raise UsageError(f"priority must be a whole number of 32 bits, not {self.priority!r}")
        for name in ("deadline_s", "lifetime_s", "delay_s"):
            value = getattr(self, name)
            if value is not None and not _is_finite(value):
                raise UsageError(f"{name} must be a finite number of seconds, not {value!r}")
        if self.lifetime_s is not None and self.lifetime_s < 0:
            raise UsageError(f"lifetime_s must be at least 0, not {self.lifetime_s!r}")
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{name} must be text, not {value!r}")
        if self.lora_path is not None and self.lora_name is None:
            raise UsageError("lora_path needs lora_name")


_DEFAULTS = (0, 0, *(None,) * 14)
_TEXTS = (
    "id", "cache_salt", "lora_name", "lora_path", "model_revision", "session", "type", "model",
)  # fmt: skip
_MOST = {
    "tokens": 2**40,
    "reserve_tokens": 2**40,
    "output_tokens": 2**40,
    "input_tokens": 2**40,
    "turn": 2**31 - 1,
}
"""Greatest values of counts."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool) and abs(value) < 1e300


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes for the embedder to carry, in the order in which moves are given.

    Until all of them are carried nothing may be written into the blocks of the same answer.
    """

    kind: str
    """``copy`` between blocks of the first tier, ``offload`` to the second, ``load`` from it."""
    source: int
    """Block id, of the tier that it comes from."""
    target: int
    """Block id, of the tier that it goes to."""
    block_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to `KVCacheScheduler.acquire`.

    As a context it is its lease, released at the end; what was not computed is dropped if the body
    raises. Without a lease, entering raises NotAdmittedError, and the request does not wait on.
    """

    outcome: Outcome
    reason: str
    lease: Lease | None = None
    """Of an admitted or degraded request."""
    ticket: Ticket | None = None
    """Of a queued request."""

    def __enter__(self) -> Lease:
        if self.lease is None:
            if self.ticket is not None:
                self.ticket.withdraw()
            raise NotAdmittedError(f"not admitted: {self.outcome}: {self.reason}")
        return self.lease

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.lease is not None:
            self.lease.close(failed=kind is not None)


@dataclass(frozen=True, slots=True)
class Growth:
    """The answer to `KVCacheScheduler.extend`."""

    outcome: Outcome
    """ADMIT, or REJECT with nothing changed: there is no room."""
    reason: str
    block_ids: tuple[int, ...] = ()
    """Blocks that were added, in order."""
    moves: tuple[Move, ...] = ()


def to_keys(hashes: Hashes, words: int) -> NDArray[np.int64]:
    """Return (L, words) keys of hashes, padded with zeros. O(L).

    Raises UsageError for hashes of no known form, or longer than ``words``.
    """
    width = 8 * words
    if isinstance(hashes, str | bytes) or not isinstance(hashes, Sequence | np.ndarray):
        raise UsageError(f"hashes must be a sequence of hashes, not {type(hashes).__name__}")
    if isinstance(hashes, np.ndarray):
        return _from_array(hashes, words)
    if len(hashes) == 0:
        return np.zeros((0, words), np.int64)
    if isinstance(hashes[0], bytes | bytearray):
        return _from_bytes(hashes, width)
    try:
        whole = [int(value) & 0xFFFF_FFFF_FFFF_FFFF for value in hashes if _is_whole(value)]
    except (TypeError, ValueError):
        whole = []
    if len(whole) != len(hashes):
        raise UsageError("hashes must be bytes or whole numbers, all of one kind")
    if any(not -(2**63) <= int(value) < 2**64 for value in hashes):
        raise UsageError("a hash that is a number must fit into 64 bits")
    return _from_array(np.array(whole, np.uint64), words)


def _from_bytes(hashes: Sequence[Any], width: int) -> NDArray[np.int64]:
    size = len(hashes[0])
    if not 0 < size <= width:
        raise UsageError(f"a hash must have 1 to {width} bytes (hash_bytes), not {size}")
    try:
        alike = len(set(map(len, hashes))) == 1
        joined = b"".join(hashes)
    except TypeError:
        raise UsageError("hashes must be bytes or whole numbers, all of one kind") from None
    if not alike:
        raise UsageError("all hashes of a request must have the same length")
    if size == width:
        return np.frombuffer(joined, np.int64).reshape(len(hashes), width // 8)
    return _from_array(np.frombuffer(joined, np.uint8).reshape(len(hashes), size), width // 8)


def _from_array(hashes: NDArray[Any], words: int) -> NDArray[np.int64]:
    if hashes.ndim == 1 and hashes.dtype.kind in "iu" and hashes.dtype.itemsize <= 8:
        wide = hashes.astype(np.uint64 if hashes.dtype.kind == "u" else np.int64)
        found = np.zeros((len(hashes), words), np.int64)
        found[:, 0] = wide.view(np.int64)
        return found
    if hashes.ndim == 2 and hashes.dtype == np.uint8 and 0 < hashes.shape[1] <= 8 * words:
        if hashes.shape[1] == 8 * words:
            return np.ascontiguousarray(hashes).view(np.int64)
        wide = np.zeros((len(hashes), 8 * words), np.uint8)
        wide[:, : hashes.shape[1]] = hashes
        return wide.view(np.int64)
    raise UsageError(
        f"hashes must be (L,) whole numbers or (L, up to {8 * words}) uint8, not "
        f"{hashes.shape} {hashes.dtype}"
    )


_COMMON_SPACE = np.zeros(2, np.int64)
_COMMON_SPACE.flags.writeable = False


def space_of(*parts: str | None) -> NDArray[np.int64]:
    """Return (2,) a digest of a namespace; zeros for the one without any name. O(length)."""
    if not any(parts):
        return _COMMON_SPACE
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        # Lengths first: ("a", "bc") is not ("ab", "c"), and "" is not None.
        data = b"" if part is None else part.encode("utf-8", "surrogatepass")
        state.update(f"{-1 if part is None else len(data)}:".encode() + data)
    return np.frombuffer(state.digest(), np.int64)
