"""The accelerators' figures and names."""

from __future__ import annotations

import pytest

from kvsched.catalog import accelerator_names, accelerators, find_accelerator
from kvsched.catalog.accelerators import accelerator_notes
from kvsched.foundation.errors import UsageError


def test_a_dozen_with_plausible_figures_and_a_source():
    assert len(accelerators()) >= 12
    for each in accelerators():
        assert each.source
        # GiB lie between the sheet's number read as 10^9 bytes and read as 2^30 bytes.
        assert 0.93 <= each.memory_gib / each.memory_gb <= 1.0
        assert 1e11 < each.bandwidth_bytes_s < 1e13
        assert 1e14 < each.bf16_flops < 3e15


@pytest.mark.parametrize(
    ("name", "gigabytes", "bandwidth", "flops"),
    [
        ("A100-80GB", 80, 2039, 312),
        ("L4", 24, 300, 121),
        ("L40S", 48, 864, 362.05),
        ("H100-SXM", 80, 3350, 989.5),
        ("H100-PCIe", 80, 2000, 756.5),
        ("H200", 141, 4800, 989.5),
        ("B200", 180, 8000, 2250),
        ("GB200", 186, 8000, 2500),
        ("MI300X", 192, 5300, 1307.4),
        ("TPU-v5e", 16, 819, 197),
    ],
)
def test_figures_on_the_sheets(name, gigabytes, bandwidth, flops):
    found = find_accelerator(name)
    assert found.memory_gb == gigabytes
    assert found.bandwidth_bytes_s == bandwidth * 10**9
    assert found.bf16_flops == pytest.approx(flops * 1e12)


def test_memory_says_how_it_was_read():
    assert find_accelerator("h100").memory_bytes == 81559 << 20
    assert "81559 MiB as the vendor's tool shows" in find_accelerator("h100").describe_memory()
    assert find_accelerator("mi325x").memory_bytes == 256 * 10**9
    assert "read as 10^9 bytes" in find_accelerator("mi325x").describe_memory()
    assert set(accelerator_notes()) == {"memory", "bf16", "interconnect"}


def test_names_in_any_case_and_the_nearest():
    assert find_accelerator("h100_sxm5") is find_accelerator("H100")
    assert find_accelerator(" rtx 4090 ").name == "RTX-4090"
    with pytest.raises(UsageError, match=r"'h300' is not in the catalog \(nearest: .*H100-SXM"):
        find_accelerator("h300")
    assert len(set(accelerator_names())) == len(accelerator_names())
