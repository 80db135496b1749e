"""Workloads: the training run that is planned, and its software.

A plan is made for a *workload*: so many sequences of such a length per optimizer step, in such a precision, with such
an optimizer, executed by such a software *stack*. The workload decides no parallelism; `Decisions` do. Both, with
the fold of the model, lower to a Program, which carries its workload, since prices depend on it:

    precision   what tensor cores multiply in, for the linear layers inside repeated blocks; everything else (attention,
                the vocabulary's ends, norms) stays in the dtype that the model was traced in
    recipe      in how many bytes parameters, gradients and optimizer states are held (`RECIPES`)
    stack       which kernels run and what runs beside them (`STACKS`)
    imbalance   gamma >= 1: the busiest expert's load over the mean load

A stack is data, one line each: an execution style of `meshwright.ir.analysis.saved`, the generation of its attention
kernel, and which communication its runtime hides. Sources are named per line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from meshwright.ir.errors import WorkloadImpossible, instead
from meshwright.ir.limits import GLOBAL_BATCH, HEADS, SEQ

STYLES = ("eager", "fused", "compiled", "xla")
"""Execution styles: what is kept for the backward pass (`ir.analysis.saved`), and what runs as one kernel."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8_tensorwise", "fp8_blockwise", "mxfp8", "nvfp4")
COPY_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp8_tensorwise": 1.0, "fp8_blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
)
"""Bytes of an element in the precisions of eight bits and fewer, with its share of the scales: one for a tensor; fp32
for 128 elements (DeepSeek-V3, arXiv 2412.19437, section 3.3); 8 bits for 32 or 16 (OCP Microscaling Formats 1.0)."""
_TRACED: Mapping[str, str] = MappingProxyType({"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"})


def traced_in(precision: str) -> str:
    """The dtype in which a model that multiplies in this precision is traced, and keeps its activations."""
    return _TRACED.get(precision, "bf16")


ATTENTION = ("math", "flash1", "flash2", "flash3", "cudnn", "splash")
HIDES = ("gradients", "parameters", "publish", "ring", "tensor", "pipeline", "expert")
"""Communication that a stack may run beside compute: reductions of gradients behind the backward pass, gathers of
sharded parameters ahead of their use, gathers of updated parameters behind the next forward pass, ring steps, tensor
parallel collectives (split into chunks), transfers between stages, exchanges with experts behind the compute of another
micro-batch (Megatron-Core's overlap-moe-expert-parallel-comm)."""
GRAPHS = ("none", "static", "step")
"""What replays as CUDA graphs, without a launch from the host: nothing; operators whose sizes do not depend on routing
(Transformer Engine's graphs of attention and router); the whole step (Megatron-Core's full-iteration graphs, which keep
room for the fullest expert)."""


def _known(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        cause = f"{name!r} is not known"
        raise WorkloadImpossible(place=f"workload, {what}", cause=cause, fix=instead(name, known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Bytes that one element of a parameter takes in each role.

    `stored` between uses, `used` as operators read it (and as it travels when gathered), `gradient` where micro-batches
    add up, `reduced` as gradients travel, `master` a separate copy that the optimizer updates (0: it updates the stored
    one).
    """

    stored: float
    used: float
    gradient: float
    reduced: float
    master: float
    source: str

    def __post_init__(self) -> None:
        if min(self.stored, self.used, self.gradient, self.reduced) <= 0 or self.master < 0:
            raise WorkloadImpossible(
                place="recipe", cause=f"{self} has a size of no bytes", fix="give positive sizes; master may be 0"
            )

    @property
    def casts(self) -> bool:
        """Whether parameters are stored in another dtype than operators read them in."""
        return self.used != self.stored


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "megatron": Recipe(
            stored=2, used=2, gradient=4, reduced=4, master=4,
            source="Megatron-Core, distributed optimizer: bf16 parameters, fp32 main gradients and parameters",
        ),
        "megatron-bf16-grads": Recipe(
            stored=2, used=2, gradient=2, reduced=2, master=4,
            source="Megatron-Bridge performance guide: grad_reduce_in_fp32 off, main gradients in bf16",
        ),
        "fsdp": Recipe(
            stored=4, used=2, gradient=4, reduced=4, master=0,
            source="torch FSDP2 MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32): sharded fp32 parameters",
        ),
        "fsdp-bf16-reduce": Recipe(
            stored=4, used=2, gradient=4, reduced=2, master=0,
            source="torch FSDP mixed precision with reduce_dtype=bf16 (Composer's PURE, LLM Foundry's default)",
        ),
        "bf16": Recipe(
            stored=2, used=2, gradient=2, reduced=2, master=0,
            source="everything in bf16, as a model in bf16 under a plain torch optimizer",
        ),
        "fp32": Recipe(stored=4, used=4, gradient=4, reduced=4, master=0, source="everything in fp32"),
    }
)  # fmt: skip
"""Named layouts of the training state, one line each."""

OPTIMIZERS: Mapping[str, float] = MappingProxyType(
    {"adamw": 8, "adamw-bf16": 4, "sgd": 0, "momentum": 4, "muon": 4, "adafactor": 0}
)
"""Bytes of optimizer state per element: AdamW two fp32 moments, or two in bf16 (DeepSeek-V3, arXiv 2412.19437, section
3.3.3; Megatron-Core's precision-aware optimizer), momentum and Muon one; Adafactor keeps a row and a column per matrix,
which is nothing beside the matrix (Shazeer and Stern 2018)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The way in which a piece of software executes a program."""

    name: str
    style: str
    attention: str
    hides: tuple[str, ...]
    recipe: str
    regathers: bool = False
    """Values gathered for a product (sequence parallelism) are gathered again for the backward pass, not kept."""
    fused_loss: bool = False
    """The loss keeps logits once, in their own dtype, and writes their gradient over them."""
    placeholders: bool = False
    """Products inside repeated blocks add weight gradients straight to the main gradients; autograd gets a placeholder
    instead, one buffer for each shape, which stays (Transformer Engine, get_dummy_wgrad of pytorch/module/base.py)."""
    dedupes: bool = False
    """A token goes to each host (each device, within one) once, however many of its experts are there."""
    padded: bool = False
    """Experts get as many rows as their capacity, whatever the router says: tokens beyond it are dropped, and what is
    missing is padded. So the host knows every size, and waits for none (Megatron-Core, moe_pad_expert_input_to_capacity
    of MoEAlltoAllTokenDispatcher)."""
    graphs: str = "none"
    """Of `GRAPHS`."""
    piecewise: bool = False
    """DeepSpeed's ZeRO-3: parameters are gathered one by one up to a number of elements, and gradients leave in
    buckets."""
    broadcasts: bool = False
    """Updated parameters are sent by one broadcast from each rank that holds some, not gathered in one collective; and
    gradients are reduced to each."""
    rolling: bool = False
    """Under schedules that make weight gradients apart, groups of a pipeline begin the next step without waiting for
    each other: the optimizer steps first and is validated after (Zero Bubble, Qi et al. 2401.10241, section 4)."""
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        listed = ((self.style, STYLES), (self.attention, ATTENTION), (self.graphs, GRAPHS))
        for name, known in (*listed, (self.recipe, tuple(RECIPES))):
            _known("stack", name, known)
        for name in self.hides:
            _known("stack", name, HIDES)

    @property
    def by_torch(self) -> bool:
        """Whether `fully_shard` and DDP keep parameters and sum gradients; fused stacks and XLA have their own ways."""
        return self.style in ("eager", "compiled") and not self.piecewise

    @property
    def one_by_one(self) -> bool:
        """Whether parameters are gathered as operators come to them, and not block by block."""
        return self.piecewise or self.style == "xla"

    def __hash__(self) -> int:
        """A hash of the name, which tells most stacks apart: they are keys everywhere, and few."""
        return hash(self.name)

    def __str__(self) -> str:
        words = f"stack={self.name} style={self.style} attention={self.attention} hides={'+'.join(self.hides)}"
        return " ".join(
            (
                words,
                f"states={self.recipe} graphs={self.graphs}",
                *(f"{flag}={int(getattr(self, flag))}" for flag in _FLAGS),
            )
        )

    @staticmethod
    def read(given: Mapping[str, str]) -> Stack:
        """Read the words that `str` writes."""
        if set(given) != {"stack", "style", "attention", "hides", "states", "graphs", *_FLAGS}:
            raise ValueError(f"the words {sorted(given)}")
        flags: dict[str, Any] = {flag: given[flag] == "1" for flag in _FLAGS}
        return Stack(
            name=given["stack"],
            style=given["style"],
            attention=given["attention"],
            hides=tuple(name for name in given["hides"].split("+") if name),
            recipe=given["states"],
            graphs=given["graphs"],
            **flags,
        )


_FLAGS = ("regathers", "fused_loss", "placeholders", "dedupes", "padded", "piecewise", "broadcasts", "rolling")


STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        "torch": Stack(
            name="torch",
            style="eager", attention="flash2", hides=("gradients", "parameters", "pipeline"), recipe="fsdp",
            source="torch FSDP2 and DTensor: prefetch of the next gather, reduce-scatter on its own stream",
        ),
        "torch-compile": Stack(
            name="torch-compile",
            style="compiled", attention="flash2", hides=("gradients", "parameters", "pipeline"), recipe="fsdp",
            source="torchtitan: regional torch.compile over FSDP2; docs/performance.md of its repository",
        ),
        "torch-async-tp": Stack(
            name="torch-async-tp",
            style="compiled", attention="flash2", hides=("gradients", "parameters", "tensor", "pipeline"),
            recipe="fsdp",
            source="torchtitan: async tensor parallelism besides, micro-pipelines that torch._inductor makes",
        ),
        "megatron": Stack(
            name="megatron",
            style="fused", attention="flash3", hides=("gradients", "parameters", "publish", "ring", "pipeline"),
            recipe="megatron", regathers=True, fused_loss=True, placeholders=True,
            source="Megatron-Core with Transformer Engine: overlap-grad-reduce, overlap-param-gather",
        ),
        "megatron-tp-overlap": Stack(
            name="megatron-tp-overlap",
            style="fused", attention="flash3", hides=tuple(name for name in HIDES if name != "expert"),
            recipe="megatron-bf16-grads", regathers=True,
            fused_loss=True, placeholders=True, dedupes=True,
            source="Megatron-Bridge performance guide: tp_comm_overlap besides, bf16 gradients",
        ),
        "megatron-2022": Stack(
            name="megatron-2022",
            style="fused", attention="math", hides=(), recipe="megatron", regathers=True,
            source="Korthikanti et al. 2205.05198: sequence parallelism, fused kernels, no flash attention",
        ),
        "megatron-2021": Stack(
            name="megatron-2021",
            style="fused", attention="math", hides=(), recipe="megatron",
            source="Narayanan et al. 2104.04473: fused kernels, no flash attention, nothing overlapped",
        ),
        "deepspeed": Stack(
            name="deepspeed",
            style="eager", attention="flash2", hides=("gradients", "parameters", "pipeline"),
            recipe="megatron-bf16-grads", piecewise=True,
            source="DeepSpeed since 2023: a model's own modules, overlap_comm, gradients in the parameters' dtype",
        ),
        "jax": Stack(
            name="jax",
            style="xla", attention="math", hides=("gradients", "parameters", "publish", "ring", "tensor"),
            recipe="fp32",
            source="XLA's latency-hiding scheduler and collective matmuls, fp32 parameters; models' own attention",
        ),
        "maxtext": Stack(
            name="maxtext",
            style="xla", attention="splash", hides=("gradients", "parameters", "publish", "ring", "tensor"),
            recipe="fp32",
            source="MaxText: the same with a kernel for attention",
        ),
    }
)  # fmt: skip
"""Known stacks, one line each."""

STACK_OF_STYLE: Mapping[str, str] = MappingProxyType(
    {"eager": "torch", "compiled": "torch-compile", "fused": "megatron", "xla": "jax"}
)
"""The stack that is meant where only a style is given."""


def check_amount(sequences: int, tokens: int) -> None:
    """Check that there is at least one sequence of at least one token, and no more than the limits allow."""
    for name, number, limit in (("batch", sequences, GLOBAL_BATCH), ("seq", tokens, SEQ)):
        if cause := limit.refused(number):
            raise WorkloadImpossible(place=f"workload, {name}", cause=cause, fix=f"give at most {limit.most:,}")
    if sequences < 1 or tokens < 1:
        raise WorkloadImpossible(
            place="workload", cause=f"{sequences} sequences of {tokens} tokens", fix="give at least one of each"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one training run.

    - `global_batch` counts sequences of `seq` tokens per optimizer step.
    - Every name must be known; `imbalance` is at least 1, and at most as many as a layer may have experts.
    """

    global_batch: int
    seq: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    stack: Stack = STACKS["torch"]
    recipe: str = ""
    """Of `RECIPES`; empty: the stack's own."""
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        _known("precision", self.precision, PRECISIONS)
        _known("optimizer", self.optimizer, tuple(OPTIMIZERS))
        if self.recipe:
            _known("recipe", self.recipe, tuple(RECIPES))
        check_amount(self.global_batch, self.seq)
        if not 1 <= self.imbalance <= HEADS.most:
            raise WorkloadImpossible(
                place="workload",
                cause=f"imbalance {self.imbalance}",
                fix=f"give the busiest expert's load over the mean, from 1 to the {HEADS.most:,} experts of a layer",
            )

    def __hash__(self) -> int:
        """A hash of the values that differ between workloads that meet: they are keys everywhere."""
        return hash((self.global_batch, self.seq, self.precision, self.stack.name))

    def __str__(self) -> str:
        own = [f"{field.name}={getattr(self, field.name)}" for field in fields(self) if field.name != "stack"]
        return " ".join((*own, str(self.stack)))

    @staticmethod
    def parse(text: str) -> Workload:
        """Read what `str(workload)` writes."""
        given: dict[str, Any] = dict(word.partition("=")[::2] for word in text.split())
        try:
            ours = {f.name: _READERS[str(f.type)](given.pop(f.name)) for f in fields(Workload) if f.name != "stack"}
            return Workload(stack=Stack.read(given), **ours)
        except (KeyError, TypeError, ValueError) as mistake:
            raise WorkloadImpossible(
                place=f"workload {text!r}", cause=f"cannot read it ({mistake!r})", fix="write such as str(workload)"
            ) from mistake

    @property
    def scaled(self) -> bool:
        """Whether losses are multiplied before the backward pass, for gradients that would vanish."""
        return self.precision == "fp16"

    @property
    def tokens(self) -> int:
        return self.global_batch * self.seq

    @property
    def states(self) -> Recipe:
        return RECIPES[self.recipe or self.stack.recipe]

    @property
    def copied(self) -> str:
        """The precision in which products of trained weights keep their inputs, where that is another than the one they
        arrive in: Transformer Engine keeps the cast copy that its products read (pytorch/module/linear.py)."""
        return self.precision if self.stack.style == "fused" and self.precision in COPY_BYTES else ""

    @property
    def moments(self) -> float:
        """Bytes of optimizer state per element. AdamW's moments have the dtype of what it updates."""
        updated = self.states.master or self.states.stored
        return OPTIMIZERS[self.optimizer] * (updated / 4 if self.optimizer == "adamw" else 1)


@lru_cache(maxsize=64)
def sizeless(workload: Workload) -> Workload:
    """The workload without its batch and sequences: everything else that the work, cost and memory of one body program
    depends on."""
    return replace(workload, global_batch=1, seq=1)


def stack_named(name: str) -> Stack:
    """A stack of `STACKS`."""
    _known("stack", name, tuple(STACKS))
    return STACKS[name]


_READERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
