"""What a study has computed so far, kept so that an interrupted one goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from kvsched.foundation.errors import UsageError
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
        with contextlib.suppress(FileNotFoundError):
            self._load(path.read_bytes())

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
        """Keep a point, on disk before this returns. Raises UsageError where it cannot be."""
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
            raise UsageError(f"{self._path}: cannot be written ({error.strerror})") from error

    def done(self) -> None:
        """Forget the partial result: the whole one is written."""
        self._path.unlink(missing_ok=True)
