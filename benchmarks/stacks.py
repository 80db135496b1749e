"""What is public about the software of a run: one line for each name in the column `framework`.

The table is data about frameworks, not about runs: a stack says how it computes when nothing else is said, and the
columns of a row go before it. `reason` is where that is documented. A name that is not listed is read by its words: it
is the listed stack all of whose words it has, and most of them (`nemo_25.04` is a `nemo`, `deepspeed_3d_megatron1.1.5`
a `megatron_deepspeed`); of those, one without a release before one with. What has none of these words is unknown:
DEFAULT, or on TPUs XLA's.

    style        eager: one kernel for each operator; compiled: torch.compile or a tracing compiler; fused: hand-fused
                 norms, activations and losses (Transformer Engine, Megatron, flash-attn modules); xla
    attention    math | flash1 | flash2 | flash3 | cudnn | splash
    states       megatron   bf16 parameters and fp32 gradients, fp32 master, m, v (the last three sharded by ZeRO-1)
                 fsdp       fp32 parameters sharded, gathered in bf16, m and v fp32
                 deepspeed  fp16 parameters and gradients, fp32 master, m, v; in bf16 gradients of `grad_bytes` (its
                            BF16_Optimizer adds them up in fp32)
                 xla        fp32 parameters sharded, bf16 compute
    selective    core_attention | every_other_block | ops
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STYLES = ("eager", "compiled", "fused", "xla")
ATTENTIONS = ("math", "flash1", "flash2", "flash3", "cudnn", "splash")
STATES = ("megatron", "fsdp", "deepspeed", "xla")
SELECTIVE = ("core_attention", "every_other_block", "ops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Where the recipes of a framework replay the whole step of a mixture of experts as one graph, and exchange with
    experts behind the compute of another micro-batch: from a release on, at a precision, on some devices."""

    since: str
    precision: str
    devices: tuple[str, ...]

    def holds(self, release: str, precision: str, device: str) -> bool:
        return release >= self.since and precision == self.precision and device in self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """How a framework computes when a run does not say.

    - The four names must be among STYLES, ATTENTIONS, STATES and SELECTIVE; `grad_bytes` must be 2 or 4.
    - `reason` must not be empty.
    """

    name: str
    """As in the column `framework`."""
    style: str
    """How operators become kernels."""
    attention: str
    """The generation of its attention kernel."""
    states: str
    """What parameters, gradients and optimizer states are held in."""
    grad_bytes: int
    """Bytes of a gradient element on the wire."""
    reason: str
    """Where that is documented."""
    sequence_parallel: bool = True
    """Norms and dropout are cut along the sequence wherever tp > 1."""
    overlap_grads: bool = True
    """Gradients are reduced beside the backward pass; ring steps and transfers between stages run beside compute."""
    overlap_params: bool = True
    """Parameters are gathered ahead of their use, updated ones behind the next forward pass."""
    overlap_tp: bool = False
    """Tensor-parallel collectives run in chunks beside the products that they feed."""
    fused_loss: bool = False
    """The loss keeps logits once, in their own dtype."""
    dropout: bool = False
    """It trains with dropout."""
    placeholders: bool = False
    """Transformer Engine's placeholder weight gradients stay (`meshwright.ir.target.workload.Stack`)."""
    dedupes: bool = False
    """Tokens go once to each host, however many of their experts are there, where no dispatcher is named."""
    may_overlap_experts: bool = False
    """A run whose configuration is not known may exchange with experts behind the compute of another micro-batch."""
    may_replay: tuple[str, ...] = ()
    """Devices on which layers whose experts are padded may replay as graphs."""
    may_replay_unpadded: tuple[str, ...] = ()
    """Devices on which the other parts of layers may replay although experts are not padded; no exchange is hidden."""
    captured: Captured | None = None
    """Where whole steps are graphs."""
    bf16_moments: tuple[str, ...] = ()
    """Models whose recipes keep both moments of AdamW in bf16."""
    piecewise: bool = False
    """ZeRO-3 gathers parameter by parameter, and reduces gradients in buckets."""
    broadcasts: bool = False
    """Each rank sends the parameters that it updated, one rank after the other."""
    zero: int | None = None
    """The ZeRO stage of its recipes, where a run does not say; None: the lowest one that fits."""
    gathers_once: bool = False
    """In pipelines, parameters of ZeRO-3 stay gathered from micro-batch to micro-batch."""
    rolling: bool = False
    """Zero-bubble steps follow each other without a barrier."""
    expert_tp: bool = True
    """Experts are cut by tensor parallelism; if not, etp is 1."""
    selective: str = "core_attention"
    """What a bare "selective" recomputes."""
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    """What a blank recomputation may be."""

    def __post_init__(self) -> None:
        known = ((self.style, STYLES), (self.attention, ATTENTIONS), (self.states, STATES), (self.selective, SELECTIVE))
        for value, among in known:
            if value not in among:
                raise ValueError(f"stack {self.name}: {value!r} is not among {', '.join(among)}")
        if self.grad_bytes not in (2, 4):
            raise ValueError(f"stack {self.name}: gradients of {self.grad_bytes} bytes")
        if not self.reason:
            raise ValueError(f"stack {self.name}: no word of where this is documented")


def _megatron(name: str, reason: str, **changes: object) -> Stack:
    settings: dict[str, object] = {"style": "fused", "attention": "flash2", "states": "megatron", "grad_bytes": 4}
    return Stack(name=name, reason=reason, **(settings | changes))  # type: ignore[arg-type]


def _megatron_2021(name: str, reason: str, **changes: object) -> Stack:
    """Before flash attention, sequence parallelism and overlap: dropout on, gradients reduced in half precision."""
    settings: dict[str, object] = {"dropout": True, "attention": "math", "grad_bytes": 2, "sequence_parallel": False}
    return _megatron(name, reason, **(settings | {"overlap_grads": False, "overlap_params": False} | changes))


def _fsdp(name: str, reason: str, **changes: object) -> Stack:
    settings: dict[str, object] = {"style": "eager", "attention": "flash2", "states": "fsdp", "grad_bytes": 4}
    return Stack(name=name, reason=reason, **(settings | changes))  # type: ignore[arg-type]


DEFAULT = _megatron(
    "unknown",
    "stated default: fused kernels and the attention that libraries take on a device are in every current stack",
    attention="flash3",
)

_LISTED = (
    _megatron_2021(
        "megatron_lm_2021",
        "Narayanan et al. 2104.04473: fused softmax and bias kernels, no flash attention, no sequence parallelism, "
        "blocking gradient all-reduce",
    ),
    _megatron_2021(
        "megatron_lm_2022",
        "Korthikanti et al. 2205.05198: as 2021; sequence parallelism is a column of their table",
    ),
    _megatron_2021(
        "megatron_deepspeed",
        "Smith et al. 2201.11990: Megatron kernels of 2021 under DeepSpeed's pipeline; the scripts of "
        "DeepSpeedExamples pass --checkpoint-activations",
        states="deepspeed",
        grad_bytes=4,
        recomputes=("full",),
    ),
    _megatron_2021(
        "deepspeed_zero3",
        "Rajbhandari et al. 2104.07857, as used by 2104.04473 table 2: kernels of Megatron 2021; submodules gather "
        "their own parameters (section 7.1)",
        states="deepspeed",
        piecewise=True,
        overlap_grads=True,
        overlap_params=True,
    ),
    _megatron_2021(
        "gpt_neox",
        "Black et al. 2204.06745: Megatron and DeepSpeed of 2021",
        states="deepspeed",
        overlap_grads=True,
        overlap_params=True,
    ),
    _megatron(
        "megatron_lm",
        "MegaScale 2402.15627 §6: the open baseline of 2023, flash attention 2, interleaving, no overlap across steps",
        overlap_grads=False,
        overlap_params=False,
    ),
    _megatron(
        "megatron_lm+zbpp",
        "Qi et al. 2401.10241 §5: built on Megatron-LM of 2023 with its default dropout and without flash attention, "
        "gradients in half precision, one tensor rank; the optimizer step is not waited for",
        attention="math",
        grad_bytes=2,
        rolling=True,
        dropout=True,
    ),
    _megatron(
        "megascale",
        "Jiang et al. 2402.15627 §3: operators fused, data-, tensor- and pipeline-parallel communication overlapped",
        overlap_tp=True,
    ),
    _megatron(
        "megatron_core_0.8",
        "Megatron-LM README, H100 table: distributed optimizer and its overlaps on; attention by Transformer Engine",
        attention="flash3",
        fused_loss=True,
        placeholders=True,
    ),
    _megatron(
        "nemo_megatron_2023",
        "NeMo framework launcher README 2023: Megatron 2022 with sequence parallelism and distributed Adam",
        attention="flash1",
    ),
    _megatron(
        "nemo_24.07",
        "NeMo 24.07 performance guide: Transformer Engine, cuDNN attention, tensor-parallel overlap by user buffers",
        attention="cudnn",
        placeholders=True,
        overlap_tp=True,
        zero=1,
    ),
    _megatron(
        "nemo",
        "DGX Cloud benchmarking recipes: NeMo with Transformer Engine, tensor-parallel overlap by user buffers, the "
        "distributed optimizer",
        attention="cudnn",
        zero=1,
        placeholders=True,
        overlap_tp=True,
    ),
    _megatron(
        "megatron_bridge",
        "Megatron-Bridge performance guide: cuDNN attention, fused cross entropy, user buffers, gradients reduced in "
        "bf16 with the distributed optimizer, experts not cut by tensor parallelism; recipes of its performance "
        "summaries (scripts/performance/configs, v0.1.0 to v0.5.0): from 0.5.0 (26.06) on cuda_graph_impl "
        "full_iteration with moe_a2a_overlap for MXFP8 experts; modules are recomputed or nothing is; those of "
        "0.1.0 (25.09), which pad experts, replay layers as graphs for some models on GB200 and B200, for none on H100;"
        " others for GB200 and GB300, from 0.2.0 to 0.5.0, have graphs of attn, moe_router and moe_preprocess, but for "
        "a few, and moe_a2a_overlap with none but GPT-OSS; of all models of the summaries only DeepSeek-V3's sets "
        "exp_avg_dtype and exp_avg_sq_dtype to bf16, from 0.1.0 to 0.5.0 "
        "(src/megatron/bridge/recipes/deepseek/deepseek_v3.py); so does Moonlight's recipe for 8 H100 "
        "(recipes/moonlight/h100/moonlight_16b.py)",
        attention="cudnn",
        grad_bytes=2,
        placeholders=True,
        overlap_tp=True,
        fused_loss=True,
        dedupes=True,
        zero=1,
        expert_tp=False,
        may_overlap_experts=True,
        may_replay=("GB200", "B200"),
        may_replay_unpadded=("GB200", "GB300"),
        bf16_moments=("deepseek_v3", "moonlight_16b_a3b"),
        captured=Captured(since="26.06", precision="mxfp8", devices=("GB200", "GB300", "B300")),
        recomputes=("none", "selective"),
    ),
    _megatron(
        "internevo",
        "InternEvo documentation and 7B_sft.py: flash-attn modules, hybrid ZeRO with overlapped broadcasts, "
        "sequence_parallel False, gradients reduced in their own dtype",
        states="deepspeed",
        grad_bytes=2,
        sequence_parallel=False,
        broadcasts=True,
        fused_loss=True,
    ),
    _fsdp(
        "composer_fsdp",
        "llm-foundry benchmark scripts of 2023: FSDP1 in eager mode, flash attention 1 by Triton, low-precision layer "
        "norm; mp_mode PURE reduces in bf16 and DEFAULT in fp32 (composer, get_mixed_precision)",
        attention="flash1",
        fused_loss=True,
    ),
    _megatron(
        "nanotron",
        "huggingface/nanotron: modules of torch with flash-attn's kernels, fp32 gradients that add up, ZeRO-1; tensor "
        "parallelism in reduce-scatter mode, without overlap",
        style="eager",
    ),
    _megatron(
        "deepspeed",
        "DeepSpeed since 2023: the user's own modules, flash-attn, gradients in the dtype of the parameters",
        style="eager",
        states="deepspeed",
        grad_bytes=2,
        sequence_parallel=False,
        piecewise=True,
    ),
    _fsdp("fsdp", "torch FSDP, eager, SDPA flash attention"),
    _fsdp(
        "torchtitan",
        "torchtitan docs: FSDP2 with fp32 reduction, SDPA flash attention; reshard_after_forward by default never in "
        "pipelines",
        selective="ops",
        gathers_once=True,
    ),
    _fsdp(
        "pytorch_fsdp+compile",
        "foundation-model-stack fms-fsdp README: FSDP1, torch.compile, SDPA; selective means a share of the blocks",
        style="compiled",
        grad_bytes=2,
        selective="every_other_block",
    ),
    _fsdp(
        "metaseq", "Zhang et al. 2205.01068: FairScale FSDP, fused Megatron kernels", style="fused", attention="math"
    ),
    _megatron("meta_internal", "Touvron et al. 2302.13971 §2.4: xformers attention, communication overlapped"),
    Stack(
        name="maxtext",
        style="xla",
        attention="splash",
        states="xla",
        grad_bytes=4,
        overlap_tp=True,
        fused_loss=True,
        reason="MaxText: XLA with latency-hiding scheduler, splash attention on TPU; XLA fuses casts and elementwise "
        "operators into the reductions of a loss, so that logits stay in their own dtype",
    ),
    Stack(
        name="t5x_pathways",
        style="xla",
        attention="math",
        states="xla",
        grad_bytes=4,
        reason="Chowdhery et al. 2204.02311 §4: XLA, 2D sharding of weights and activations",
    ),
)

STACKS: dict[str, Stack] = {stack.name: stack for stack in _LISTED}


def words(framework: str) -> frozenset[str]:
    """The words of a name, without releases and years."""
    return frozenset(re.findall(r"[a-z]{2,}[a-z0-9]*?(?=[\d.]*(?:[^a-z0-9.]|$))", framework.lower()))


def stack_of(framework: str, device: str = "") -> Stack:
    """The stack of a framework, by its name or by the words of it; else the default on the device."""
    exact = STACKS.get(framework.strip().lower())
    if exact is not None:
        return exact
    said = words(framework)
    alike = [stack for stack in _LISTED if words(stack.name) and words(stack.name) <= said]
    if alike:
        return max(alike, key=lambda stack: (len(words(stack.name)), -_releases(stack.name)))
    return STACKS["maxtext"] if device.startswith("TPU") else DEFAULT


def _releases(name: str) -> int:
    """The digits of a release in a name."""
    return sum(map(str.isdigit, name))
