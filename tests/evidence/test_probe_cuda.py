"""The CUDA backend against a caching allocator that counts; figures worked out by hand."""

from __future__ import annotations

import pytest
from fake_cuda import MIB, FakeTorch

from kvsched.evidence.host_memory import HostMemory
from kvsched.evidence.probe import run as run_module
from kvsched.evidence.probe.cuda import CudaBackend
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.probe.run import run_probe
from kvsched.evidence.probe.settings import ProbeSettings
from kvsched.evidence.probe.shape import ShapeSettings
from kvsched.foundation.errors import KvschedError, UsageError

LLAMA = ShapeSettings(kv_heads=8, head_dim=128, layers=32)
"""2 · 32 · 8 · 128 · 2 bytes · 16 tokens = 2 MiB."""


def probed(torch: FakeTorch, **changes: object) -> ProbeReport:
    values = {"shape": LLAMA, "blocks": 64, "repeats": 2, "copy_bytes": (MIB,), **changes}
    if "memory_share" not in changes:
        values["memory_share"] = 0.25
    return run_probe(ProbeSettings(**values), CudaBackend(torch))  # type: ignore[arg-type]


def test_accounts_are_those_above_what_was_there() -> None:
    torch = FakeTorch(others=100 * MIB)
    kept = torch.empty((6 * MIB,), torch.uint8, ("cuda", 0))
    report = probed(torch)
    for run in report.runs:
        accounts = run.accounts
        assert accounts.requested_bytes == accounts.allocated_bytes == 64 * 2 * MIB
        assert accounts.peak_allocated_bytes == 64 * 2 * MIB
        # The 14 MiB left beside what was there hold 7 blocks; 57 more take 6 segments of 10 each.
        assert accounts.reserved_bytes == accounts.driver_bytes == 6 * 20 * MIB
        assert accounts.peak_reserved_bytes == 6 * 20 * MIB
        assert accounts.peak_driver_bytes is None
        assert (run.system_calls, run.warm_system_calls) == (6, 0)
        assert run.peak_memory_mb == pytest.approx(64 * 2 * MIB / 1e6)
        assert run.touch_ms is None
    assert "peak_driver_bytes" in report.missing
    assert kept.nbytes == 6 * MIB
    assert report.evidence_level == "synthetic_gpu_block_probe"
    assert report.runtime["native_bf16_supported"] is True


def test_reserved_overhead_pooled_and_patterns() -> None:
    torch = FakeTorch()
    report = probed(torch)
    # 64 blocks fill 6 segments of 10 and 4 places of a seventh: 140 MiB for 128.
    assert report.overhead_bytes == 12 * MIB
    assert report.overhead_bytes_per_block == 12 * MIB / 64
    assert report.pooled is not None
    assert report.pooled.accounts.reserved_bytes == 128 * MIB
    assert report.pooled.saved_bytes == 12 * MIB
    found = {(each.pattern, each.factor): each for each in report.fragmentation}
    # Every second hole takes one block; only the seventh segment's end has 12 MiB in a piece.
    every = found["every-second", 2]
    assert (every.ideal, every.fits) == (16, 3)
    assert every.freed_bytes == 32 * 2 * MIB
    assert every.returned_bytes == 0
    assert every.stranded_bytes == 76 * MIB - 3 * 4 * MIB
    assert found["every-second", 4].fits == 1
    assert found["first-half", 2].fits == 16
    # 3 segments of 20 MiB free as a whole hold 2 of 8 MiB each, and the end of the last one more;
    # the fourth segment's first 4 MiB are too small.
    assert found["first-half", 4].fits == 7
    assert torch.cuda.allocated == 0
    assert torch.cuda.fraction == 1.0
    assert report.decision.decision == "accept"
    assert report.decision.deviation == 0


def test_the_share_is_never_passed_and_the_largest_number_fits_it() -> None:
    torch = FakeTorch(total=1 << 30, others=0)
    report = probed(torch, memory_share=0.25)
    assert report.fit is not None
    assert report.fit.limit_blocks == 128
    # 256 MiB hold 12 whole segments of 10 blocks; a 13th would pass the share.
    assert report.fit.largest_blocks == 120
    assert report.fit.limited_by == "allocator"
    assert torch.cuda.most_reserved <= (1 << 28)


def test_a_share_that_the_rounding_passes_is_a_failure_in_one_line() -> None:
    torch = FakeTorch()
    # 128 blocks are the whole share of 256 MiB; in segments of 20 MiB they would take 260.
    with pytest.raises(KvschedError, match="what it rounds them up to") as caught:
        probed(torch, blocks=128, memory_share=0.25)
    assert "\n" not in str(caught.value)
    assert torch.cuda.most_reserved <= 1 << 28
    assert torch.cuda.reserved == 0


def test_copies_stay_within_a_share_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    small = HostMemory(total=None, available=30 * MIB, cgroup_limit=None, cgroup_used=None)
    monkeypatch.setattr(run_module, "host_memory", lambda: small)
    report = probed(FakeTorch(), copy_bytes=(MIB, 2 * MIB))
    assert {copy.bytes for copy in report.bandwidth} == {MIB}
    assert "bandwidth of 2,097,152 bytes" in report.missing


def test_small_blocks_show_the_rounding() -> None:
    torch = FakeTorch()
    shape = ShapeSettings(kv_heads=1, head_dim=20, layers=1, block_tokens=10, dtype="float16")
    report = probed(torch, shape=shape, memory_share=0.003)
    # 800 bytes become 1,024; 64 of them fit in one segment of 2 MiB.
    assert report.config["bytes_per_block_theoretical"] == 800
    assert report.runs[0].accounts.allocated_bytes == 64 * 1024
    assert report.runs[0].accounts.reserved_bytes == 2 * MIB
    assert report.decision.decision == "tune"
    assert "1,024 bytes of 800" in report.decision.reason


def test_what_is_not_worth_splitting_counts_as_allocated() -> None:
    shape = ShapeSettings(kv_heads=8, head_dim=128, layers=39, block_tokens=128)
    accounts = probed(FakeTorch(), shape=shape, blocks=8).runs[0].accounts
    # 19.5 MiB have a segment of 20 MiB each, whose last half is not split off.
    assert accounts.requested_bytes == 8 * 39 * MIB // 2
    assert accounts.allocated_bytes == accounts.reserved_bytes == 8 * 20 * MIB


@pytest.mark.parametrize("declared", [2 * MIB + 256 * 1024, 2 * MIB - 256 * 1024])
def test_a_wrong_theory_is_rejected(declared: int) -> None:
    report = probed(FakeTorch(), declared_bytes_per_block=declared)
    assert report.decision.decision == "reject"
    assert f"not {declared:,}" in report.decision.reason
    assert report.decision.deviation == pytest.approx(2 * MIB / declared - 1)
    assert report.config["theory"] == "declared by the user"


def test_memory_that_others_free_meanwhile_is_no_proof() -> None:
    torch = FakeTorch(others=300 * MIB)
    read = torch.cuda.mem_get_info
    torch.cuda.mem_get_info = lambda index: (  # type: ignore[method-assign]
        read(index)[0] + (torch.cuda.allocated and 100 * MIB),
        read(index)[1],
    )
    report = probed(torch)
    assert report.decision.decision == "pending"
    assert "the system counts" in report.decision.reason


def test_an_interrupt_frees_everything() -> None:
    torch = FakeTorch()
    backend = CudaBackend(torch)
    given = backend.allocate
    calls = iter(range(1000))

    def interrupted(*values: object) -> object:
        if next(calls) == 100:
            raise KeyboardInterrupt
        return given(*values)  # type: ignore[arg-type]

    backend.allocate = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        run_probe(ProbeSettings(shape=LLAMA, repeats=2, memory_share=0.25), backend)
    assert torch.cuda.allocated == 0
    assert torch.cuda.reserved == 0
    assert torch.cuda.fraction == 1.0


def test_copies_have_both_directions_and_both_kinds_of_memory() -> None:
    report = probed(FakeTorch())
    kinds = {(copy.direction, copy.memory) for copy in report.bandwidth}
    assert kinds == {
        (direction, memory)
        for direction in ("host to device", "device to host")
        for memory in ("pageable", "pinned")
    }
    assert {copy.bytes for copy in report.bandwidth} == {MIB, 2 * MIB}


def test_without_a_device_the_refusal_says_what_would_help() -> None:
    torch = FakeTorch()
    torch.cuda.is_available = lambda: False  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"--device cpu.*kvsched\[gpu\]"):
        CudaBackend(torch)
    with pytest.raises(UsageError, match="--device-index is 1"):
        CudaBackend(FakeTorch(), 1)


def test_float8_is_held_as_uint8_where_torch_lacks_it() -> None:
    class Older(FakeTorch):
        float8_e4m3fn = None  # type: ignore[assignment]

    report = probed(
        Older(), shape=ShapeSettings(kv_heads=8, head_dim=128, layers=32, dtype="float8")
    )
    assert report.runs[0].accounts.requested_bytes == 64 * MIB
    assert any("uint8" in note for note in report.notes)
    assert len(report.notes) == len(set(report.notes))
