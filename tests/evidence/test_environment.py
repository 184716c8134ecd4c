"""The machine of a measurement, from real and from made-up system files."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsched.evidence.environment import describe_environment, parse_driver
from kvsched.evidence.host_memory import HostMemory, host_memory, process_memory


def test_nothing_private_and_a_reason_for_all_that_is_unknown() -> None:
    found = describe_environment(["numpy", "no-such-distribution"])
    text = json.dumps(found)
    for private in (os.uname().nodename, str(Path.home()), sys.prefix):
        assert private not in text
    if len(getpass.getuser()) > 4:
        assert getpass.getuser() not in text
    assert found["packages"]["numpy"] is not None
    assert found["packages"]["no-such-distribution"] is None
    assert found["memory"]["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )
    unknown = {
        ".".join((group, field))
        for group in ("cpu", "memory", "packages")
        for field, value in found[group].items()
        if value is None
    } | {field for field in ("torch", "driver", "devices") if found[field] is None}
    assert unknown == set(found["unknown"])


def test_torch_is_imported_only_when_asked() -> None:
    code = (
        "import sys; from kvsched.evidence.environment import describe_environment as d; "
        "d(['torch']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _machine(root: Path, cgroup: str, files: dict[str, str]) -> HostMemory:
    made = {
        "proc/meminfo": "MemTotal:  1000 kB\nMemAvailable:   600 kB\nHugePages_Total:  0\n",
        "proc/self/cgroup": cgroup,
        **files,
    }
    for name, text in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory(root)


@pytest.mark.parametrize(("tight", "loose"), [("a", "."), (".", "a")])
def test_version_2_takes_the_tightest_limit_on_the_way_up(
    tight: str, loose: str, tmp_path: Path
) -> None:
    found = _machine(
        tmp_path,
        "0::/a/b\n",
        {
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            f"sys/fs/cgroup/{tight}/memory.max": "409600\n",
            f"sys/fs/cgroup/{tight}/memory.current": "204800\n",
            f"sys/fs/cgroup/{tight}/memory.stat": "anon 1\ninactive_file 102400\n",
            f"sys/fs/cgroup/{loose}/memory.max": "819200\n",
        },
    )
    assert found == HostMemory(
        total=1_024_000, available=614_400, cgroup_limit=409_600, cgroup_used=102_400
    )
    assert found.usable == 307_200


def test_version_1_and_a_path_that_is_the_hosts(tmp_path: Path) -> None:
    found = _machine(
        tmp_path,
        "5:cpu,cpuacct:/\n4:memory:/docker/123\n0::/\n",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "512000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "12000\n",
        },
    )
    assert (found.cgroup_limit, found.cgroup_used, found.usable) == (512_000, 12_000, 500_000)


def test_no_limit_is_none_and_not_a_number_near_the_largest(tmp_path: Path) -> None:
    found = _machine(
        tmp_path,
        "4:memory:/\n",
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
    )
    assert found.cgroup_limit is None
    assert found.usable == 614_400


def test_no_system_files_at_all(tmp_path: Path) -> None:
    assert host_memory(tmp_path).usable is None
    assert process_memory(tmp_path) == (None, None)


def test_what_the_drivers_tool_says() -> None:
    text = "NVIDIA H200, 143771, 570.86, 9.0\nOld, [N/A], 570.86, [N/A]\nnonsense\n"
    first, second = parse_driver(text)
    assert first == {
        "name": "NVIDIA H200",
        "memory_bytes": 143771 << 20,
        "driver": "570.86",
        "compute_capability": "9.0",
    }
    assert second["memory_bytes"] is None
    assert second["compute_capability"] is None
