"""What a probe is asked, and what it refuses before anything is allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvsched.catalog import load_model
from kvsched.evidence.probe.cpu import CpuBackend
from kvsched.evidence.probe.run import run_probe
from kvsched.evidence.probe.settings import ProbeSettings, check_share, checked
from kvsched.evidence.probe.shape import BlockShape, ShapeSettings, block_shape
from kvsched.foundation.errors import UsageError

STATED = ShapeSettings(kv_heads=8, head_dim=128, layers=32)


@pytest.mark.parametrize(
    ("model", "ranks", "shape"),
    [
        ("llama-3.1-8b", 1, (32, 2, 16, 8, 128)),
        ("llama-3.1-8b", 4, (32, 2, 16, 2, 128)),
        # More ranks than KV heads: each has one, repeated.
        ("llama-3.1-8b", 16, (32, 2, 16, 1, 128)),
        ("qwen3-32b", 2, (64, 2, 16, 4, 128)),
        # MLA: 512 compressed and 64 rotated elements, whole on every rank.
        ("deepseek-v3", 8, (61, 16, 576)),
    ],
)
def test_a_model_gives_the_tensors_that_its_bytes_say(
    model: str, ranks: int, shape: tuple[int, ...]
) -> None:
    found = block_shape(ShapeSettings(model=model, tensor_parallel_size=ranks))
    assert [part.shape for part in found.parts] == [shape]
    assert found.tensor_bytes == found.theoretical_bytes


def test_every_model_of_the_catalogue_has_tensors_of_its_bytes() -> None:
    from kvsched.catalog import model_names

    probed = 0
    for name in model_names():
        if load_model(name).kv_bytes_per_token():
            found = block_shape(ShapeSettings(model=name, dtype="float8"))
            assert found.tensor_bytes == found.theoretical_bytes
            probed += 1
    assert probed > 15


def test_layers_that_do_not_grow_stand_in_a_note() -> None:
    found = block_shape(ShapeSettings(model="gemma-3-27b-it"))
    assert any("sliding windows" in note for note in found.notes)


def test_stated_dimensions_and_float8() -> None:
    found = block_shape(dataclasses.replace(STATED, dtype="float8", tensor_parallel_size=2))
    assert found.parts[0].shape == (32, 2, 16, 4, 128)
    assert found.theoretical_bytes == found.tensor_bytes == 2 * 32 * 4 * 128 * 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": ShapeSettings()}, "name --model"),
        ({"shape": ShapeSettings(kv_heads=8, head_dim=128)}, "name --model"),
        ({"shape": ShapeSettings(model="llama-3.1-8b", layers=3)}, "--layers"),
        ({"shape": dataclasses.replace(STATED, dtype="int4")}, "--dtype"),
        ({"shape": dataclasses.replace(STATED, layers=0)}, "--layers is 0"),
        ({"shape": dataclasses.replace(STATED, block_tokens=-1)}, "--block-tokens"),
        ({"shape": dataclasses.replace(STATED, tensor_parallel_size=3)}, "divide over 3"),
        ({"blocks": 0}, "--blocks"),
        ({"repeats": 0}, "--repeats"),
        ({"device": "tpu"}, "--device"),
        ({"memory_share": float("nan")}, "--memory-share"),
        ({"memory_share": 1.0}, "--memory-share"),
        ({"tolerance": -0.1}, "--tolerance"),
        ({"overhead_limit": float("inf")}, "--overhead-limit"),
        ({"declared_bytes_per_block": 0}, "--declared-bytes-per-block"),
        ({"vary": ("dtype",)}, "KEY=VALUE"),
        ({"vary": ("dtype=float16,",)}, "KEY=VALUE"),
        ({"vary": ("colour=red",)}, "colour"),
        ({"vary": ("layers=two",)}, "no?t? a whole number"),
        ({"vary": ("layers=2", "--layers=3")}, "twice"),
        ({"vary": ("blocks=0",)}, "--vary blocks"),
        ({"vary": ("dtype=int4",)}, "--dtype"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked(dataclasses.replace(ProbeSettings(shape=STATED), **changes))


def test_one_variable_at_a_time_not_a_grid() -> None:
    settings = ProbeSettings(shape=STATED, vary=("block-tokens=8,32", "--dtype=float8", "blocks=3"))
    _, varied = checked(settings)
    found = [(v.key, v.value, v.shape.block_tokens, v.shape.dtype, v.blocks) for v in varied]
    assert found == [
        ("block_tokens", "8", 8, "bfloat16", 64),
        ("block_tokens", "32", 32, "bfloat16", 64),
        ("dtype", "float8", 16, "float8", 64),
        ("blocks", "3", 16, "bfloat16", 3),
    ]


class Watched(CpuBackend):
    asked = 0

    def usable_bytes(self) -> int:
        return 1 << 30

    def allocate(self, shape: BlockShape, blocks: int = 1) -> Any:
        self.asked += 1
        raise AssertionError("nothing may be allocated")


@pytest.mark.parametrize("vary", [(), ("blocks=1000",)])
def test_more_than_the_share_is_refused_with_what_would_fit(vary: tuple[str, ...]) -> None:
    backend = Watched()
    settings = ProbeSettings(
        shape=STATED, blocks=8 if vary else 1000, device="cpu", memory_share=0.25, vary=vary
    )
    # 2 MiB a block, and its object: 128 in a quarter of a GiB, but for those.
    with pytest.raises(UsageError, match=r"--blocks 127 would fit"):
        run_probe(settings, backend)
    assert backend.asked == 0


def test_objects_of_tiny_blocks_count_on_the_host() -> None:
    tiny = ShapeSettings(kv_heads=1, head_dim=1, layers=1, block_tokens=1, dtype="float8")
    backend = Watched()
    settings = ProbeSettings(shape=tiny, blocks=200_000, device="cpu", memory_share=0.1)
    with pytest.raises(UsageError, match="for their objects"):
        run_probe(settings, backend)
    assert backend.asked == 0
    shape = block_shape(tiny)
    check_share([("the probe", shape, 200_000)], 400_000, "the share")  # as on a device
