"""Step time from the catalogue: a roofline of each part of a step, with a band.

Symbols: P parameters, t tokens computed in the step, n requests, r tensor-parallel ranks, F the
accelerator's dense bf16 FLOP/s, B its memory bandwidth (bytes/s), I its interconnect in one
direction (half of the sheet's figure, bytes/s). Every part takes the longer of its arithmetic and
its reading on one rank; parts run one after another (`step_time.step_seconds`). Shares e of a peak
come from `Assumptions`.

- linear: 2·P·t / (r·F·e·q) and P·bits/8 / (r·B·e), P the matrices that every token meets, q how
  many times bf16's rate eight bits run at.
- experts: 2·P·t / (r·F·e·q) over the experts that a token is sent to; reading E·P·bits/8 / (r·B·e)
  times the share 1 - (1 - k/E)^t that t tokens touch, each sent to k of E evenly.
- head: 2·V·H·n / (r·F·e) and V·H·bytes / (r·B·e): one row of logits a request, as vLLM v1 does.
- decodes: pairs × FLOPs / (r·F·e) and KV bytes of what is looked at / (B·e). MLA works on its
  compressed vectors, of which every rank has all.
- prefill: the same, what is looked at read once a chunk. MLA expands each token of context to keys
  and values, once a chunk; chunks so short that the compressed vectors cost less go with decodes.
- recurrent: FLOPs·t / (r·F·e) and 2 × state bytes × n / (r·B·e).
- KV writes: bytes a token on one rank / (B·e).
- communication, r > 1: an all-reduce of t·H elements after each mixer and each feed-forward part
  and after the embedding, ring traffic 2·(r - 1)/r of the bytes (1 where the switch adds up), and
  the gathering of n rows of logits; each with a latency.
- overheads: seconds a step, a layer and a request.

Left out, and so in the shares: norms, activations, rotary embeddings, sampling, padding to tiles
and graph sizes, experts of uneven load, tensor-parallel parts that are on every rank (MLA's down
projection, routers). Decodes and prefill of one step are taken as two kernels.
"""

from __future__ import annotations

import msgspec

from kvsched.catalog.accelerators import Accelerator
from kvsched.catalog.model import Model
from kvsched.foundation.errors import UsageError
from kvsched.serve import step_time as at
from kvsched.serve.step_time import BANDS, Band, StepTime


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """What share of its peaks an accelerator reaches, and what a step costs beside."""

    linear_flops: float
    """Share of the dense peak in linear layers, elementwise work between them included."""
    attention_flops: float
    """Share of the dense bf16 peak in attention."""
    bandwidth: float
    """Share of the memory bandwidth in reading weights, states and cache."""
    interconnect: float
    """Share of the interconnect's one direction in large all-reduces."""
    switch_adds: bool = False
    """Whether the switch adds up: an all-reduce moves its bytes once, not 2·(r - 1)/r times."""
    allreduce_s: float = 0.0
    """Seconds of latency of one all-reduce."""
    step_s: float = 0.0
    """Seconds a step in which no kernel runs: scheduling, preparing inputs, taking outputs."""
    layer_s: float = 0.0
    """Seconds a layer in which no kernel works: launches and gaps."""
    sequence_s: float = 0.0
    """Seconds a request and step of work on the host that nothing hides."""


LOW = Assumptions(
    linear_flops=1.0, attention_flops=1.0, bandwidth=1.0, interconnect=1.0, switch_adds=True
)
"""The peaks themselves and no overhead: no engine is faster."""

MID = Assumptions(
    linear_flops=0.6,
    attention_flops=0.5,
    bandwidth=0.8,
    interconnect=0.77,
    allreduce_s=9e-6,
    step_s=0.3e-3,
    layer_s=10e-6,
    sequence_s=2e-6,
)
"""What well-tuned kernels reach. Sources, by field:

- linear_flops, attention_flops: FlashAttention-3 (2024): 75% of the H100's bf16 peak at best, 35%
  for FlashAttention-2; the rest of a layer is worse than its best kernel.
- bandwidth: FlashMLA: 3,000 of 3,350 GB/s at best; a whole forward pass in one kernel 78% on the
  H100 (Hazy Research, "Look Ma, No Bubbles", 2025).
- interconnect: NCCL's all-reduce, 366 GB/s bus bandwidth on 4 H100, about 77% of what that box has.
- allreduce_s: vLLM's own all-reduce, H100, up to 32 KiB, 2 to 8 ranks: 8.7 to 11.8 µs
  (sgl-project/sglang, pull request 2904).
- step_s: 0.2 to 0.3 ms estimated for asynchronous scheduling (vllm-project/vllm, issue 10634).
- layer_s: 8 kernels a layer at 1.3 µs from a CUDA graph ("Look Ma, No Bubbles").
- sequence_s: a judgement, a tenth of HIGH's.
"""

HIGH = Assumptions(
    linear_flops=0.4,
    attention_flops=0.3,
    bandwidth=0.55,
    interconnect=0.3,
    allreduce_s=30e-6,
    step_s=3e-3,
    layer_s=40e-6,
    sequence_s=20e-6,
)
"""An untuned engine, without graphs or asynchronous scheduling. Sources, by field:

- linear_flops, attention_flops: FlashAttention-2's 35% on the H100, and around it.
- bandwidth: "at most 50%" of an H100's in vLLM and SGLang on a 1B model ("Look Ma, No Bubbles"),
  of which a part is in layer_s.
- interconnect, allreduce_s: vLLM's own all-reduce takes 24 to 30 µs at 256 to 512 KiB over 8 ranks
  (sglang 2904), as much latency as bandwidth.
- step_s, sequence_s: a gap of 5 to 6 ms between decodes of 256 requests (vllm issue 10634).
- layer_s: 8 kernels at 5 µs, launched one by one.
"""

ASSUMED: dict[Band, Assumptions] = {"low": LOW, "mid": MID, "high": HIGH}
WITHOUT_FP8 = frozenset({"A10", "A100-40GB", "A100-80GB", "TPU-v5e"})
"""Accelerators of the catalogue without 8-bit floating-point units; the others' sheets give fp8
twice the bf16 rate, and all give int8 twice or more."""


def roofline(
    model: Model,
    accelerator: Accelerator,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    kv_cache_dtype: str = "auto",
    weight_dtype: str = "auto",
    interconnect_bytes_s: float | None = None,
    linear_rate: float | None = None,
    assumed: dict[Band, Assumptions] | None = None,
) -> StepTime:
    """Step time of ``model`` on ``tensor_parallel_size`` accelerators, with its band.

    ``interconnect_bytes_s`` (both directions together) stands in for the catalogue's figure,
    ``linear_rate`` for how many times bf16's rate the linear layers run at: 2 with weights of 8
    bits where the accelerator has units for them, else 1. ``assumed`` replaces `ASSUMED`. Raises
    UsageError for a pipeline, for an unknown interconnect, for shares out of range, and for a model
    with windows or experts of several sizes.
    """
    if pipeline_parallel_size != 1:
        raise UsageError(
            f"step time knows no pipeline parallelism: pipeline_parallel_size must be 1, "
            f"not {pipeline_parallel_size}"
        )
    costs = _Costs(model, tensor_parallel_size, kv_cache_dtype, weight_dtype)
    link = (
        accelerator.interconnect_bytes_s if interconnect_bytes_s is None else interconnect_bytes_s
    )
    if costs.ranks > 1 and not link:
        raise UsageError(
            f"{accelerator.name}: the catalogue does not know its interconnect; give its bytes a "
            "second for tensor parallelism"
        )
    if interconnect_bytes_s is not None and not interconnect_bytes_s > 0:
        raise UsageError(f"interconnect must be above 0 bytes/s, not {interconnect_bytes_s:g}")
    rate = costs.linear_rate(accelerator, weight_dtype) if linear_rate is None else linear_rate
    if not rate > 0:
        raise UsageError(f"linear_rate must be above 0, not {rate:g}")
    bands = ASSUMED if assumed is None else assumed
    for band in BANDS:
        _check(band, bands[band])
    rows = tuple(_row(costs, accelerator, link or 0.0, rate, bands[band]) for band in BANDS)
    said = _assumptions(costs, accelerator, rate, bands["mid"])
    return StepTime(
        kind="roofline",
        rows=rows,
        window=costs.window,
        decode_threshold=costs.decode_threshold,
        assumptions=said,
    )


def _check(band: Band, assumed: Assumptions) -> None:
    for name in ("linear_flops", "attention_flops", "bandwidth", "interconnect"):
        share = getattr(assumed, name)
        if not 0 < share <= 1:
            raise UsageError(f"{band}: {name} must be above 0, at most 1, not {share:g}")
    for name in ("allreduce_s", "step_s", "layer_s", "sequence_s"):
        seconds = getattr(assumed, name)
        if not 0 <= seconds < 1e3:
            raise UsageError(f"{band}: {name} must be seconds, at least 0, not {seconds:g}")


class _Costs:
    """FLOPs and bytes of one rank, by part of a step."""

    def __init__(self, model: Model, ranks: int, kv_cache_dtype: str, weight_dtype: str) -> None:
        self.model = model
        self.kv_bytes = model.pair_bytes(kv_cache_dtype, ranks)
        self.ranks = ranks
        linear_bits, expert_bits = model.matrix_bits(weight_dtype)
        self.linear_bits, self.head_bits = linear_bits, max(16.0, linear_bits)
        layers = model.layers
        self.linear = sum(each.count * each.weights for each in layers) / ranks
        self.active_experts = (
            sum(each.count * each.experts_per_token * each.expert_weights for each in layers)
            / ranks
        )
        stored = sum(each.count * each.experts * each.expert_weights for each in layers) / ranks
        self.expert_bytes = stored * expert_bits / 8
        self.expert_missed = self._expert_missed()
        self.head = model.vocab_size * model.hidden_size / ranks
        windows = sorted({each.window for each in layers if each.window is not None})
        if len(windows) > 1:
            raise UsageError(
                f"{model.name}: step time knows one size of sliding windows, not {windows}"
            )
        self.window = windows[0] if windows else 0
        self.pair_flops = {w: each / ranks for w, each in model.pair_flops().items()}
        self.decode_flops = {w: each / ranks for w, each in model.pair_flops(decode=True).items()}
        self.expand_flops = sum(each.count * each.expand_flops for each in layers) / ranks
        self.decode_threshold = self._decode_threshold()
        self.recurrent_flops = sum(each.count * each.token_flops for each in layers) / ranks
        self.state_bytes = 2 * model.state_bytes / ranks
        self.element = model.element_bytes()
        self.allreduces = self._allreduces()

    def _expert_missed(self) -> float:
        kinds = {
            (each.experts, each.experts_per_token) for each in self.model.layers if each.experts
        }
        if len(kinds) > 1:
            raise UsageError(
                f"{self.model.name}: step time knows one number of experts, not {sorted(kinds)}"
            )
        return next((1 - chosen / total for total, chosen in kinds), 0.0)

    def _decode_threshold(self) -> int:
        """Tokens of a chunk up to which MLA's compressed vectors cost no more than expanding.

        Both cost the same at expansion / (FLOPs a compressed pair - FLOPs a pair) tokens.
        """
        more = self.decode_flops.get(None, 0) - self.pair_flops.get(None, 0)
        if not self.expand_flops or more <= 0 or self.window:
            return 1
        return max(1, int(self.expand_flops / more))

    def _allreduces(self) -> int:
        """One after the embedding, one after each mixer and each feed-forward part.

        A model with layers that are a feed-forward part alone has one part in every layer.
        """
        alone = any(each.kind == "feed-forward" for each in self.model.layers)
        return 1 + self.model.layer_count * (1 if alone else 2)

    def linear_rate(self, accelerator: Accelerator, weight_dtype: str) -> float:
        """How many times bf16's rate the linear layers run at."""
        if self.linear_bits != 8:
            return 1.0
        return 1.0 if weight_dtype != "int8" and accelerator.name in WITHOUT_FP8 else 2.0


def _row(
    costs: _Costs, accelerator: Accelerator, link: float, rate: float, assumed: Assumptions
) -> tuple[float, ...]:
    """The coefficients of one band."""
    linear_s = 1 / (accelerator.bf16_flops * assumed.linear_flops)
    attention_s = 1 / (accelerator.bf16_flops * assumed.attention_flops)
    byte_s = 1 / (accelerator.bandwidth_bytes_s * assumed.bandwidth)
    row = [0.0] * at.COEFFICIENTS
    row[at.STEP_S] = assumed.step_s + assumed.layer_s * costs.model.layer_count
    row[at.SEQUENCE_S] = assumed.sequence_s
    row[at.TOKEN_S] = sum(costs.kv_bytes.values()) * byte_s
    row[at.LINEAR_TOKEN_S] = 2 * costs.linear * linear_s / rate
    row[at.LINEAR_READ_S] = costs.linear * costs.linear_bits / 8 * byte_s
    row[at.EXPERT_TOKEN_S] = 2 * costs.active_experts * linear_s / rate
    row[at.EXPERT_READ_S] = costs.expert_bytes * byte_s
    row[at.EXPERT_MISSED] = costs.expert_missed
    row[at.HEAD_SEQUENCE_S] = 2 * costs.head * linear_s
    row[at.HEAD_READ_S] = costs.head * costs.head_bits / 8 * byte_s
    for window, pair_at, read_at in (
        (None, at.PREFILL_PAIR_S, at.PREFILL_READ_S),
        (costs.window, at.PREFILL_PAIR_WINDOW_S, at.PREFILL_READ_WINDOW_S),
    ):
        row[pair_at] = costs.pair_flops.get(window, 0) * attention_s
        row[read_at] = costs.kv_bytes.get(window, 0) * byte_s
    row[at.DECODE_PAIR_S] = costs.decode_flops.get(None, 0) * attention_s
    row[at.DECODE_READ_S] = row[at.PREFILL_READ_S]
    # With one token a request, pairs are what is read, and one of the two is always the longer.
    row[at.DECODE_READ_WINDOW_S] = max(
        costs.decode_flops.get(costs.window, 0) * attention_s, row[at.PREFILL_READ_WINDOW_S]
    )
    row[at.PREFILL_CONTEXT_S] = costs.expand_flops * linear_s
    row[at.RECURRENT_TOKEN_S] = costs.recurrent_flops * attention_s
    row[at.RECURRENT_SEQUENCE_S] = costs.state_bytes * byte_s
    if costs.ranks > 1:
        _add_communication(row, costs, link / 2 * assumed.interconnect, assumed)
    return tuple(float(each) for each in row)


def _add_communication(row: list[float], costs: _Costs, link: float, assumed: Assumptions) -> None:
    """All-reduces of the tokens' vectors, and the gathering of logits. ``link`` in bytes/s."""
    others = (costs.ranks - 1) / costs.ranks
    traffic = 1.0 if assumed.switch_adds else 2 * others
    vector = costs.model.hidden_size * costs.element
    row[at.TOKEN_S] += costs.allreduces * vector * traffic / link
    row[at.SEQUENCE_S] += others * costs.model.vocab_size * costs.element / link
    row[at.STEP_S] += (costs.allreduces + 1) * assumed.allreduce_s


def _assumptions(
    costs: _Costs, accelerator: Accelerator, rate: float, mid: Assumptions
) -> tuple[str, ...]:
    ranks = f"{costs.ranks} × " if costs.ranks > 1 else ""
    said = [
        f"Step time is a roofline of {costs.model.name} on {ranks}{accelerator.name}: each part of "
        "a step takes the longer of its arithmetic and its reading, parts one after another.",
        f"Low takes the sheet's peaks and no overhead; mid {mid.linear_flops:.0%} of the FLOP/s in "
        f"linear layers, {mid.attention_flops:.0%} in attention, {mid.bandwidth:.0%} of the memory "
        f"bandwidth and {mid.step_s * 1e3:g} ms a step; high what an untuned engine reaches.",
    ]
    if rate != 1:
        said.append(f"Linear layers run at {rate:g} times the bf16 rate.")
    if costs.expert_bytes:
        said.append("Tokens choose their experts evenly and independently.")
    return tuple(said)
