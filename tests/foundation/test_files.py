"""Files are written whole, through links, and never in place of a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kvsched.cli.outputs import check_writable
from kvsched.foundation.errors import UsageError
from kvsched.foundation.files import write_whole


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(UsageError, match="no plain file"):
            write_whole(path, b"x")
        with pytest.raises(UsageError, match="no plain file"):
            check_writable("--output", str(path))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    link.symlink_to(target)
    for data in (b"new", b"again"):
        write_whole(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    assert [each.name for each in target.parent.iterdir()] == ["file"]
