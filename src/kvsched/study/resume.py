"""What a study has computed so far, kept so that an interrupted one goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.replay.sweep import Point


class _Line(msgspec.Struct, frozen=True):
    identity: str
    policy: str
    capacity_blocks: int
    hit_blocks: int
    hit_tokens: int
    evictions: int


class Partial:
    """Points of one study, appended to a file as they are found; a torn last line is ignored.

    ``identity`` says which trace and which version the points belong to: others are not used.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity
        self.points: dict[tuple[str, int], Point] = {}
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        self._load(data)

    def _load(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            try:
                found = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:
                continue
            if found.identity == self._identity:
                self.points[found.policy, found.capacity_blocks] = Point(
                    found.policy,
                    found.capacity_blocks,
                    found.hit_blocks,
                    found.hit_tokens,
                    found.evictions,
                )

    def add(self, point: Point) -> None:
        """Keep a point: the system has it when this returns. Raises KvschedError if it cannot."""
        self.points[point.policy, point.capacity_blocks] = point
        line = _Line(
            self._identity,
            point.policy,
            point.capacity_blocks,
            point.hit_blocks,
            point.hit_tokens,
            point.evictions,
        )
        try:
            with self._path.open("ab") as stream:
                # The newline comes first, so that a line torn before is ended by it.
                stream.write(b"\n" + msgspec.json.encode(line))
        except OSError as error:
            raise KvschedError(f"{self._path}: cannot be written ({error.strerror})") from error
