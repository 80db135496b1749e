"""Ledgers: what one run of a body program asks of a device and of its wires, before any price.

In: a body program (statements for one rank) and its workload. Out: kernels with local sizes, and transmissions, by
*phase*. Nothing here depends on a device, a cluster or a fitted constant, so a ledger is made once per body program and
priced as often as one likes.

    forward      the forward list
    recompute    what the backward list runs again: operators, gathers
    inputs       gradients of what flows in: dgrad products, attention's and elementwise derivatives
    weights      gradients of parameters: wgrad products, and adding them up over micro-batches
    sync         once per step: reductions of gradients
    update       once per step: the optimizer
    publish      once per step: gathers of updated parameters

Kernels. A product over local factor sizes is (groups, m, n, k): k is what it sums, m the loops of the left operand and
n those of the right one, groups those of both. Its two gradients are products with the letters exchanged. Products of
one left operand that a `fused` or `xla` stack keeps in one weight (q, k, v; gate, up) are one product.

Memory-bound operators are charged by the bytes that they move, chains of them as one kernel (`chains`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod
from typing import cast

from meshwright.cost_models.chains import Chains, local_bytes
from meshwright.cost_models.collectives import Collective
from meshwright.cost_models.compute import Kernel
from meshwright.ir.adjoint import Split, Strategy, apply
from meshwright.ir.graph import ITEMSIZE
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement, Zigzag
from meshwright.ir.program import (
    BodyProgram,
    Compute,
    Gradient,
    Move,
    Ring,
    Statement,
    local_elements,
    results_of,
)
from meshwright.ir.rules.base import Engine, Rule, Signature, infer
from meshwright.ir.workload import Workload

PHASES = ("forward", "recompute", "inputs", "weights", "sync", "update", "publish")
ONCE = frozenset(("sync", "update", "publish"))
"""Phases that run once per step, others once per micro-batch."""

GROUPED = frozenset(("grouped_linear", "grouped_mm"))
"""Products of experts."""

BUCKETED = frozenset(("parameter", "sync", "update"))
"""Why parameters and their gradients move: those of one body travel together, as an FSDP unit or a gradient bucket."""


EXPERT_BIAS = {"forward": (2, 24.0), "backward": (5, 32.0)}
"""Where a bias ends an expert: kernels of each expert, and bytes of each element beside those of one sum in 16 bits.
Megatron-Core (TEGroupedMLP, _apply_bias, as of 0.17) weighs it by the router's probabilities expert by expert in 32
bits: a product and a sum forward, then all experts are joined and cast; backward a cast, two products and two sums."""


@dataclass(frozen=True, slots=True)
class Transmission:
    """A collective over mesh axes. `nbytes` is the full tensor of the group: what a gather yields, what a reduction
    takes, the local operand of an all-to-all. A ring step passes `nbytes` to the next rank, `steps` times."""

    kind: Collective
    axes: tuple[str, ...]
    nbytes: float
    reason: str
    steps: int = 1
    picks: int = 1
    """Of an exchange between tokens and experts: how many experts each token goes to."""

    def received_bytes(self, ranks: int) -> float:
        """What a rank receives, by the bandwidth-optimal algorithm."""
        if self.reason == "ring":
            return self.nbytes * self.steps
        return self.nbytes * (ranks - 1) / ranks * (2 if self.kind == "all_reduce" else 1)


@dataclass(slots=True)
class Phase:
    """Kernels and transmissions, each with how often it runs."""

    kernels: Counter[Kernel] = field(default_factory=Counter)
    transmissions: Counter[Transmission] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that one body program asks for, by phase."""

    phases: Mapping[str, Phase]
    model_flops: float
    """What its operators compute on all ranks of the mesh together, forward and backward as the rules count: nothing
    that runs again, and what several ranks compute alike only once."""

    axes: tuple[tuple[str, ...], ...]
    """The groups that it transmits over."""
    routes: bool
    """Whether it sends tokens to experts."""


def ledger(body: BodyProgram, workload: Workload, *, accumulates: bool) -> Ledger:
    """The ledger of a body program; `accumulates`: gradients are added up over several micro-batches."""
    return _Bookkeeper(body, workload, accumulates).ledger()


def travelling_bytes(reason: str, workload: Workload) -> float | None:
    """Of one element of a parameter or its gradient, moved for this reason; None for what travels as traced."""
    states = workload.states
    return {"parameter": states.used, "sync": states.reduced, "update": states.used}.get(reason)


def updating_bytes(workload: Workload) -> float:
    """What an optimizer reads and writes for one element, as `_Bookkeeper.update` says."""
    states = workload.states
    own = states.master or states.stored
    return 2 * own + 2 * workload.moments + 2 * states.gradient + (states.stored if states.master else 0)


def streaming(nbytes: float, workload: Workload) -> Kernel:
    """A memory-bound kernel."""
    return Kernel(Engine.MEMORY, "forward", base_precision(workload), 0.0, nbytes)


def base_precision(workload: Workload) -> str:
    """What runs outside the linear layers of repeated blocks: 16 bits where those use fewer."""
    return "bf16" if workload.precision.startswith(("fp8", "mx", "nv")) else workload.precision


class _Bookkeeper:
    """Walks the statements of one body program."""

    def __init__(self, body: BodyProgram, workload: Workload, accumulates: bool) -> None:
        self.body, self.workload, self.accumulates = body, workload, accumulates
        self.style = workload.stack.style
        self.phases = {name: Phase() for name in PHASES}
        self.weights = _weights(body)
        self.buckets: dict[tuple[str, Collective, tuple[str, ...], str], float] = {}
        self.flops = 0.0
        self.picks = max((_picks(s) for s in body.forward if isinstance(s, Compute)), default=1)
        self.ending = _ending_biases(body, self.weights) if self.style == "fused" else frozenset()
        base = base_precision(workload)
        ends_in_loss = any(body.locals[name].type.shape == () for name in body.outputs)
        self.precision = base if ends_in_loss else workload.precision
        self.one_loss = ends_in_loss and workload.stack.fused_loss
        self.base = base

    def ledger(self) -> Ledger:
        body = self.body
        self.walk(body.forward, "forward")
        # What is made under a name of the forward list runs again; every other name is new.
        made = {name for statement in body.forward for name in results_of(statement)}
        redone = [s for s in body.backward if made.intersection(results_of(s))]
        fresh = [s for s in body.backward if not made.intersection(results_of(s))]
        self.walk(redone, "recompute")
        self.walk(fresh, "inputs")
        for phase in ("sync", "publish"):
            for statement in getattr(body, phase):
                if isinstance(statement, Move):
                    self.transmit(statement, phase)
        self.update()
        for (phase, kind, over, reason), nbytes in self.buckets.items():
            self.phases[phase].transmissions[Transmission(kind, over, nbytes, reason)] += 1
        axes = dict.fromkeys(one.axes for phase in self.phases.values() for one in phase.transmissions)
        return Ledger(self.phases, self.flops, tuple(axes), self.picks > 1)

    def walk(self, statements: Sequence[Statement], phase: str) -> None:
        products: _Products = {}
        for statement in statements:
            if isinstance(statement, Move):
                self.transmit(statement, phase)
            elif isinstance(statement, (Compute, Gradient, Ring)):
                self.engine(statement, phase, products)
        for kernels in products.values():
            self.book(phase, _joined([kernel for kernel, _ in kernels]))
        # The gradients that a joined product makes are one sum already.
        sums = [tuple(name for _, name in kernels) for kernels in products.values() if kernels[0][0].work == "dgrad"]
        for nbytes in Chains(self.body, statements, self.style, sums, one_loss=self.one_loss).kernels():
            self.book(phase, self.memory(nbytes))

    def book(self, phase: str, kernel: Kernel) -> None:
        where = "weights" if kernel.work == "wgrad" else phase
        self.phases[where].kernels[kernel] += 1

    # engines

    def engine(self, statement: Compute | Gradient | Ring, phase: str, products: _Products) -> None:
        rule = infer(statement.signature)
        wanted = None if isinstance(statement, Compute) or not statement.wanted else statement.wanted
        if phase != "recompute":
            self.flops += _flops(statement.signature, wanted)
        if rule.engine is Engine.ATTENTION:
            self.attention(statement, rule, self.sizes(statement), phase)
        elif rule.engine is Engine.CONV:
            flops = rule.flops(needs=None if wanted is None else set(wanted), sizes=self.sizes(statement))
            nbytes = sum(self.nbytes(name) for name in (*statement.operands, *results_of(statement)))
            self.book(
                phase, Kernel(Engine.CONV, "forward" if wanted is None else "backward", self.base, flops, nbytes, ())
            )
        elif rule.engine is Engine.MATMUL:
            for kernel in self.product(statement, rule, self.sizes(statement), wanted):
                key = (kernel.work, statement.operands[0], str(kernel.shape[0]))
                joins = self.style in ("fused", "xla") and statement.operands[1] in self.weights
                made = (kernel, statement.results[0])
                products.setdefault(key if joins else (*key, statement.op, kernel.work), []).append(made)
        elif statement.operands[:1] and statement.operands[0] in self.ending and self.workload.stack.graphs != "step":
            self.expert_bias(statement, phase)

    def expert_bias(self, statement: Compute | Gradient | Ring, phase: str) -> None:
        """The bias that ends an expert, in kernels of each expert."""
        rows, bias = statement.operands[:2]
        kernels, each_bytes = EXPERT_BIAS["forward" if isinstance(statement, Compute) else "backward"]
        local = self.body.locals[bias]
        experts = local_elements(local.placement, local.type.shape, self.body.mesh) // local.type.shape[-1]
        count = max(1, experts) * kernels
        self.phases[phase].kernels[self.memory(each_bytes * self.body.elements[rows] / count)] += count

    def sizes(self, statement: Compute | Gradient | Ring) -> dict[str, int]:
        return dict(_sizes(statement.signature, statement.strategy, self.body.mesh))

    def product(
        self, statement: Compute | Gradient | Ring, rule: Rule, sizes: Mapping[str, int], wanted: tuple[int, ...] | None
    ) -> Iterator[Kernel]:
        left, right = ({name for dim in rule.operands[side] for name in dim} for side in (0, 1))
        out = {name for dim in rule.results[0] for name in dim}
        g = prod(sizes[name] for name in left & right & out)
        m = prod(sizes[name] for name in (left & out) - right)
        n = prod(sizes[name] for name in (right & out) - left)
        k = prod(sizes[name] for name in (left | right) - out)
        trained = statement.operands[1] in self.weights
        if statement.signature.kind == "grouped_mm":
            g, m = sizes["e"], max(1, sizes["t"] // sizes["e"])
        if trained and len(rule.operands[1]) == 3:
            m = ceil(m * self.workload.imbalance)
        dtype = self.precision if trained else self.base
        itemsize = ITEMSIZE[statement.signature.operands[0].dtype]
        for work, shape in _PRODUCTS:
            of = {"forward": None, "dgrad": 0, "wgrad": 1}[work]
            if (wanted is None) != (of is None) or (of is not None and wanted is not None and of not in wanted):
                continue
            dims = {"m": m, "n": n, "k": k}
            a, b, c = (dims[letter] for letter in shape)
            nbytes = itemsize * g * (a * c + b * c + a * b)
            yield Kernel(Engine.MATMUL, work, dtype, 2.0 * g * m * n * k, nbytes, (g, a, b, c))

    def attention(self, statement: Compute | Gradient | Ring, rule: Rule, sizes: Mapping[str, int], phase: str) -> None:
        """Attention on this rank: its queries against all the keys that they may see. Of a causal sequence a zigzag
        share sees half; contiguous ones are uneven, and the last rank sees 1 - 1/2n of all keys."""
        signature = statement.signature
        mask, width = signature.attr("mask", "full"), signature.attr("width", 0)
        sq, sk, ranks, zigzag = sizes["sq"], rule.factor("sk").size, 1, False
        for axis, choice in statement.strategy.choices:
            if isinstance(choice, Split) and "sq" in choice.factors:
                ranks *= self.body.mesh.axis(axis).size
                zigzag = isinstance(choice.layout, Zigzag)
        causal = mask == "causal"
        if causal and ranks > 1:
            causal, sk = False, max(1, (sk + 1) // 2 if zigzag else round(sk * (1 - 1 / (2 * ranks))))
        window = int(width) if mask in ("window", "band", "chunk") and isinstance(width, int) else 0
        kv = sizes["hk"]
        shape = (sizes["b"], kv * sizes.get("g", 1), kv, sq, sk, sizes["d"], sizes["dv"])
        backward = isinstance(statement, Gradient) or (isinstance(statement, Ring) and statement.backward)
        flops = 2.0 * shape[0] * shape[1] * sq * sk * (shape[5] + shape[6])
        if backward:
            flops *= 2.0
        nbytes = sum(self.nbytes(name) for name in (*statement.operands[:3], *results_of(statement)))
        work = "backward" if backward else "forward"
        dtype = {"fp32": "f32", "tf32": "f32"}.get(self.base, self.base)
        self.book(phase, Kernel(Engine.ATTENTION, work, dtype, flops, nbytes, shape, causal, window))
        if isinstance(statement, Ring):
            n = self.body.mesh.axis(statement.axis).size
            passed = sum(self.nbytes(name) for name in statement.operands[1:3])
            # Backward, keys and values go round again, and their gradients come back to where they belong.
            for steps in (n - 1, n) if backward else (n - 1,):
                self.phases[phase].transmissions[Transmission("shift", (statement.axis,), passed, "ring", steps)] += 1

    # wires

    def transmit(self, move: Move, phase: str) -> None:
        step = move.step
        if step.free:
            return
        n = prod(self.body.mesh.axis(axis).size for axis in step.axes)
        nbytes = self.nbytes(move.operand) * self.wire_scale(move)
        full = nbytes * n if step.kind == "all_gather" else nbytes
        kind = cast(Collective, step.kind)
        if move.reason in BUCKETED:
            key = (phase, kind, step.axes, move.reason)
            self.buckets[key] = self.buckets.get(key, 0.0) + full
            return
        picks = self.picks if kind == "all_to_all" else 1
        if picks > 1 and self.style == "fused" and not self.workload.stack.dedupes:
            self.book(phase, self.memory(2.0 * nbytes))
        self.phases[phase].transmissions[Transmission(kind, step.axes, full, move.reason, picks=picks)] += 1

    def wire_scale(self, move: Move) -> float:
        """Bytes on the wire over bytes as traced: states travel in the recipe's precision."""
        local = self.body.locals[move.operand]
        width = travelling_bytes(move.reason, self.workload) if local.type.floating else None
        return 1.0 if width is None else width / ITEMSIZE[local.type.dtype]

    # states

    def update(self) -> None:
        """The optimizer reads gradient and state and writes state and parameter; the norm reads gradients once more,
        and is all that is left where the host makes the step. Gradients of several micro-batches are added up where
        they are stored, which products of a fused stack do themselves."""
        states, per_element = self.workload.states, updating_bytes(self.workload)
        trained = [slot for slot in self.body.params if slot.grad is not None]
        updated = sum(self.elements(slot.value, slot.optimizer) for slot in trained if not slot.host)
        normed = sum(self.elements(slot.value, slot.optimizer) for slot in trained if slot.host)
        added = sum(self.elements(slot.grad or "") for slot in trained)
        if updated:
            self.phases["update"].kernels[self.memory(updated * per_element)] += 1
        if normed:
            self.phases["update"].kernels[self.memory(normed * states.gradient)] += 1
        if added and self.accumulates and self.style != "fused":
            self.phases["weights"].kernels[self.memory(added * 2 * states.gradient)] += 1

    def elements(self, name: str, placement: Placement | None = None) -> int:
        if placement is None:
            return self.body.elements[name]
        return local_elements(placement, self.body.locals[name].type.shape, self.body.mesh)

    def memory(self, nbytes: float) -> Kernel:
        return streaming(nbytes, self.workload)

    def nbytes(self, name: str) -> float:
        return local_bytes(self.body, name)


_Products = dict[tuple[str, ...], list[tuple[Kernel, str]]]
"""Products, and the first result of each, by what they share."""

_PRODUCTS = (("forward", "mnk"), ("dgrad", "mkn"), ("wgrad", "nkm"))
"""A product and its gradients: which of the forward letters stand for rows, columns and the sum."""


def _picks(statement: Compute) -> int:
    """How many experts a token goes to, in a dispatch."""
    return statement.signature.operands[1].shape[-1] if statement.signature.kind == "dispatch" else 1


@lru_cache(maxsize=65536)
def _flops(signature: Signature, wanted: tuple[int, ...] | None) -> float:
    """What an operator computes on all ranks together, forward or for these operands."""
    return infer(signature).flops(needs=None if wanted is None else set(wanted))


@lru_cache(maxsize=65536)
def _sizes(signature: Signature, strategy: Strategy, mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The local size of every factor."""
    return apply(infer(signature), signature.operands, strategy, mesh).sizes


def _weights(body: BodyProgram) -> frozenset[str]:
    """Parameters, and what is made of parameters alone: casts, views, transposes."""
    found = {slot.value for slot in body.params if not slot.buffer}
    for statement in body.forward:
        if isinstance(statement, Compute) and statement.operands and found.issuperset(statement.operands):
            found.update(statement.results)
    return frozenset(found)


def _ending_biases(body: BodyProgram, weights: frozenset[str]) -> frozenset[str]:
    """Results of grouped products to which only a bias is added before they leave the experts."""
    computes = [s for s in body.forward if isinstance(s, Compute)]
    grouped = {s.results[0] for s in computes if s.signature.kind in GROUPED}
    left = {s.operand for s in body.forward if isinstance(s, Move)}
    left |= {s.operands[0] for s in computes if s.signature.kind == "combine"}
    return frozenset(
        s.operands[0]
        for s in computes
        if s.signature.kind == "add" and s.operands[0] in grouped and s.operands[1] in weights and s.results[0] in left
    )


def _joined(kernels: list[Kernel]) -> Kernel:
    """Products of one left operand as one: wider forward, longer sums in dgrad, more rows in wgrad."""
    first = kernels[0]
    if len(kernels) == 1:
        return first
    g, a, b, c = first.shape
    grown = sum(kernel.shape[{"forward": 2, "dgrad": 3, "wgrad": 1}[first.work]] for kernel in kernels)
    shape = {"forward": (g, a, grown, c), "dgrad": (g, a, b, grown), "wgrad": (g, grown, b, c)}[first.work]
    nbytes = sum(kernel.nbytes for kernel in kernels)
    flops = sum(kernel.flops for kernel in kernels)
    return Kernel(first.engine, first.work, first.dtype, flops, nbytes, shape)
