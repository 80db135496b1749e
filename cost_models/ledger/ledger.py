"""Ledgers: the work of one run of a body program for a device and its wires, before any price.

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

Body programs that differ in storage or recomputation, or in copies and with them the batch, have lists of statements in
common, whose signatures are equal (`signatures`). What a list asks for depends on nothing else of its body but which
names are weights and, where a stack joins chains, on what is read outside of the list. So it is written down once for
each list of signatures, and remembered in the `Known` of whoever prices many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import cast

from meshwright.cost_models.collectives.collective import Collective
from meshwright.cost_models.compute.kernels import Kernel
from meshwright.cost_models.ledger.chains import Chains, local_bytes
from meshwright.cost_models.ledger.operators import (
    GROUPED,
    as_one_product,
    ending_biases,
    experts_chosen,
    goes_to_shards,
    local_sizes,
    model_flops_of,
    one_by_one,
    weights_of,
)
from meshwright.cost_models.ledger.signatures import BUCKETED, bucketed_bytes, group_bytes, statement_signatures
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.program import (
    BodyProgram,
    Compute,
    Gradient,
    Move,
    Ring,
    Statement,
    local_elements,
    results_of,
)
from meshwright.ir.rules.base import Engine, Rule
from meshwright.ir.rules.registry import infer
from meshwright.ir.same import AllSame
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.layouts import Zigzag
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Workload

PHASES = ("forward", "recompute", "inputs", "weights", "sync", "update", "publish")
ONCE = frozenset(("sync", "update", "publish"))
"""Phases that run once per step, others once per micro-batch."""


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
        """Bytes that a rank receives, by the bandwidth-optimal algorithm."""
        if self.reason == "ring":
            return self.nbytes * self.steps
        return self.nbytes * (ranks - 1) / ranks * (2 if self.kind == "all_reduce" else 1)


@dataclass(slots=True)
class Phase:
    """Kernels and transmissions, each with the number of times that it runs."""

    kernels: Counter[Kernel] = field(default_factory=Counter)
    transmissions: Counter[Transmission] = field(default_factory=Counter)

    def plus(self, other: Phase) -> Phase:
        if not (other.kernels or other.transmissions):
            return self
        if not (self.kernels or self.transmissions):
            return other
        return Phase(self.kernels + other.kernels, self.transmissions + other.transmissions)


EMPTY = Phase()
"""Nothing, for those who add to it by `plus`."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The work of one body program, by phase."""

    phases: Mapping[str, Phase]
    model_flops: float
    """What its operators compute on all ranks of the mesh together, forward and backward as the rules count: nothing
    that runs again, and what several ranks compute alike only once."""

    axes: tuple[tuple[str, ...], ...]
    """The groups that it transmits over."""
    awaited: frozenset[str]
    """Phases in which the host waits to be told how many rows each expert has, and launches nothing ahead."""
    again: bool = False
    """Whether operators run again in the backward pass."""
    chooses: bool = False
    """Whether these are some, and results of others are kept."""
    routes: bool = False
    """Whether tokens go to experts."""


Known = dict[tuple[object, ...], Mapping[str, Phase]]
"""Lists that were written down before: by phase what they ask for."""


def ledger(body: BodyProgram, workload: Workload, *, accumulates: bool, known: Known | None = None) -> Ledger:
    """The ledger of a body program; `accumulates`: gradients are added up over several micro-batches."""
    return _Bookkeeper(body, workload, accumulates, {} if known is None else known).ledger()


def travelling_bytes(reason: str, workload: Workload) -> float | None:
    """Bytes on the wire per element of a parameter or gradient that moves for this reason; None for what travels as
    traced."""
    states = workload.states
    return {"parameter": states.used, "sync": states.reduced, "update": states.used}.get(reason)


def updating_bytes(workload: Workload) -> float:
    """Bytes that an optimizer reads and writes per element, as in `_Bookkeeper.stepped`."""
    states = workload.states
    own = states.master or states.stored
    return 2 * own + 2 * workload.moments + 2 * states.gradient + (states.stored if states.master else 0)


def streaming(nbytes: float, workload: Workload) -> Kernel:
    """A memory-bound kernel that moves so many bytes."""
    return Kernel(Engine.MEMORY, "forward", base_precision(workload), 0.0, nbytes)


def base_precision(workload: Workload) -> str:
    """The precision outside the linear layers of repeated blocks: 16 bits where those use fewer."""
    return "bf16" if workload.precision.startswith(("fp8", "mx", "nv")) else workload.precision


class _Bookkeeper:
    """The ledger of one body program in the making, list by list."""

    def __init__(self, body: BodyProgram, workload: Workload, accumulates: bool, known: Known) -> None:
        self.body, self.workload, self.accumulates, self.known = body, workload, accumulates, known
        self.style = workload.stack.style
        self.picks = max((experts_chosen(s) for s in body.forward if isinstance(s, Compute)), default=1)
        self.base = base_precision(workload)
        ends_in_loss = any(body.locals[name].type.shape == () for name in body.outputs)
        self.precision = self.base if ends_in_loss else workload.precision
        self.one_loss = ends_in_loss and workload.stack.fused_loss
        self.shards = [s for s in body.backward if goes_to_shards(s)]
        """Gradients on their way to finer shards: a list by itself, since the rest of the backward pass is the same
        without."""
        joins = self.one_loss or self.style != "eager"
        leaving = tuple(move.operand for move in self.shards)
        self.outside = (body.outputs, body.input_grads, body.kept, leaving) if joins else ()
        self.weights = weights_of(body)
        self.ending = ending_biases(body, self.weights) if self.style == "fused" else frozenset[str]()
        self.read = (workload, self.precision, self.one_loss, self.picks, self.weights, self.ending, self.outside)
        """What lists depend on beside their signatures."""

    def ledger(self) -> Ledger:
        phases = dict.fromkeys(PHASES, EMPTY) | {"update": self.stepped(), "weights": self.added()}
        flops = 0.0
        for name, statements in self.lists():
            phases.update((where, part.plus(phases[where])) for where, part in self.listed(name, statements).items())
            flops += model_flops_of(AllSame(statements)) if name != "recompute" else 0.0
        axes = dict.fromkeys(one.axes for phase in phases.values() for one in phase.transmissions)
        made = {name for statement in self.body.forward for name in results_of(statement)}
        again = bool(phases["recompute"].kernels)
        chooses = again and any(kept.name in made for kept in self.body.kept)
        return Ledger(phases, flops, tuple(axes), self.awaited(), again, chooses, self.routes())

    def routes(self) -> bool:
        """Whether the body sends tokens to experts."""
        return any(isinstance(s, Compute) and s.signature.kind == "dispatch" for s in self.body.forward)

    def awaited(self) -> frozenset[str]:
        """The lists in which the host waits for the device: forward; and, where exchanges hide behind another
        micro-batch, the forward pass of one and the backward pass of another, which one host launches in turns, layer
        by layer."""
        stack = self.workload.stack
        if self.picks == 1 or stack.padded:
            return frozenset()
        return frozenset(PHASES) - ONCE if "expert" in stack.hides and self.accumulates else frozenset(("forward",))

    def lists(self) -> Iterator[tuple[str, Sequence[Statement]]]:
        """All statements, list by list. Statements that define a name of the forward list run again; all other names
        are new."""
        body = self.body
        made = {name for statement in body.forward for name in results_of(statement)}
        redone: list[Statement] = []
        fresh: list[Statement] = []
        for statement in body.backward:
            if not made.isdisjoint(results_of(statement)):
                redone.append(statement)
            elif not goes_to_shards(statement):
                fresh.append(statement)
        yield from (("forward", body.forward), ("recompute", redone), ("inputs", self.shards), ("inputs", fresh))
        yield from (("sync", body.sync), ("publish", body.publish))

    def listed(self, phase: str, statements: Sequence[Statement]) -> Mapping[str, Phase]:
        """The kernels and transmissions of a list."""
        key = (phase, statement_signatures(statements, self.body), bucketed_bytes(statements, self.body), self.read)
        if key not in self.known:
            found = _List(self, phase)
            found.walk(statements)
            self.known[key] = found.phases
        return self.known[key]

    # states

    def stepped(self) -> Phase:
        """Work of the optimizer, which reads gradient and state and writes state and parameter; the norm reads
        gradients once more, and is all that is left where the host makes the step."""
        states, per_element = self.workload.states, updating_bytes(self.workload)
        trained = [slot for slot in self.body.params if slot.synced is not None]
        updated = sum(self.elements(slot.value, slot.optimizer) for slot in trained if not slot.host)
        normed = sum(self.elements(slot.value, slot.optimizer) for slot in trained if slot.host)
        moved = (updated * per_element, normed * states.gradient)
        return Phase(Counter(self.memory(nbytes) for nbytes in moved if nbytes))

    def added(self) -> Phase:
        """Work of accumulating gradients over micro-batches where they are stored, which products of a fused stack do
        themselves."""
        if not self.accumulates or self.style == "fused":
            return EMPTY
        added = sum(self.elements(slot.grad) for slot in self.body.params if slot.grad and slot.borrowed is None)
        return Phase(Counter([self.memory(added * 2 * self.workload.states.gradient)] if added else []))

    def elements(self, name: str, placement: Placement | None = None) -> int:
        local = self.body.locals[name]
        return local_elements(placement or local.placement, local.type.shape, self.body.mesh)

    def memory(self, nbytes: float) -> Kernel:
        return streaming(nbytes, self.workload)


class _List:
    """A walk over the statements of one list; gradients of weights have a phase of their own."""

    def __init__(self, book: _Bookkeeper, phase: str) -> None:
        self.book, self.phase = book, phase
        self.body, self.workload = book.body, book.workload
        self.style, self.precision, self.base = book.style, book.precision, book.base
        self.weights, self.ending = book.weights, book.ending
        self.phases = {phase: Phase()} | ({"weights": Phase()} if phase == "inputs" else {})
        self.buckets: dict[tuple[Collective, tuple[str, ...], str], float] = {}

    def walk(self, statements: Sequence[Statement]) -> None:
        products: _Products = {}
        for statement in statements:
            if isinstance(statement, Move):
                self.transmit(statement)
            elif isinstance(statement, (Compute, Gradient, Ring)):
                self.engine(statement, products)
        for kernels in products.values():
            self.enter(as_one_product([kernel for kernel, _ in kernels]))
        # The gradients that a joined product makes are one sum already.
        sums = [tuple(name for _, name in kernels) for kernels in products.values() if kernels[0][0].work == "dgrad"]
        chains = Chains(self.body, statements, self.style, sums, self.book.shards, one_loss=self.book.one_loss)
        for nbytes, times in Counter(chains.kernels()).items():
            self.enter(self.book.memory(nbytes), times)
        for (kind, over, reason), nbytes in self.buckets.items():
            self.phases[self.phase].transmissions[Transmission(kind, over, nbytes, reason)] += 1

    def enter(self, kernel: Kernel, times: int = 1) -> None:
        where = "weights" if kernel.work == "wgrad" else self.phase
        self.phases[where].kernels[kernel] += times

    # engines

    def engine(self, statement: Compute | Gradient | Ring, products: _Products) -> None:
        rule = infer(statement.signature)
        wanted = None if isinstance(statement, Compute) or not statement.wanted else statement.wanted
        if rule.engine is Engine.ATTENTION:
            self.attention(statement, rule, self.sizes(statement))
        elif rule.engine is Engine.CONV:
            flops = rule.flops(needs=None if wanted is None else set(wanted), sizes=self.sizes(statement))
            nbytes = sum(self.nbytes(name) for name in (*statement.operands, *results_of(statement)))
            work = "forward" if wanted is None else "backward"
            self.enter(Kernel(Engine.CONV, work, self.base, flops, nbytes, ()))
        elif rule.engine is Engine.MATMUL:
            for kernel in self.product(statement, rule, self.sizes(statement), wanted):
                key = (kernel.work, statement.operands[0], str(kernel.shape[0]))
                joins = self.style in ("fused", "xla") and statement.operands[1] in self.weights
                made = (kernel, statement.results[0])
                products.setdefault(key if joins else (*key, statement.op, kernel.work), []).append(made)
        elif (kernels := one_by_one(statement)) > 1:
            self.loop(statement, rule.flops(needs=wanted and set(wanted), sizes=self.sizes(statement)), kernels)
        elif statement.operands[:1] and statement.operands[0] in self.ending and self.workload.stack.graphs != "step":
            self.expert_bias(statement)

    def loop(self, statement: Compute | Gradient | Ring, flops: float, kernels: int) -> None:
        """What a loop takes beside the kernel that moves its bytes: its products' operations, as of convolutions, whose
        shapes do not matter; and a floor for each kernel of each step."""
        if flops:
            work = "forward" if isinstance(statement, Compute) else "backward"
            self.enter(Kernel(Engine.CONV, work, self.base, flops, 0.0, ()))
        self.enter(self.book.memory(0.0), kernels - 1 - bool(flops))

    def expert_bias(self, statement: Compute | Gradient | Ring) -> None:
        """The bias that ends an expert, in kernels of each expert."""
        rows, bias = statement.operands[:2]
        kernels, each_bytes = EXPERT_BIAS["forward" if isinstance(statement, Compute) else "backward"]
        local = self.body.locals[bias]
        experts = local_elements(local.placement, local.type.shape, self.body.mesh) // local.type.shape[-1]
        count = max(1, experts) * kernels
        self.phases[self.phase].kernels[self.book.memory(each_bytes * self.body.elements[rows] / count)] += count

    def sizes(self, statement: Compute | Gradient | Ring) -> dict[str, int]:
        return dict(local_sizes(statement.signature, statement.strategy, self.body.mesh))

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
        routed = trained and statement.signature.kind in GROUPED
        for work, shape in _PRODUCTS:
            of = {"forward": None, "dgrad": 0, "wgrad": 1}[work]
            if (wanted is None) != (of is None) or (of is not None and wanted is not None and of not in wanted):
                continue
            dims = {"m": m, "n": n, "k": k}
            a, b, c = (dims[letter] for letter in shape)
            nbytes = itemsize * g * (a * c + b * c + a * b)
            yield Kernel(Engine.MATMUL, work, dtype, 2.0 * g * m * n * k, nbytes, (g, a, b, c), routed=routed)

    def attention(self, statement: Compute | Gradient | Ring, rule: Rule, sizes: Mapping[str, int]) -> None:
        """Attention on this rank: its queries against all the keys that they may see. Of a causal sequence a zigzag
        share sees half; contiguous ones are uneven, and the last rank sees 1 - 1/2n of all keys. A chunk is taken for a
        window as wide."""
        signature = statement.signature
        mask, width = signature.attr("mask", "full"), signature.attr("width", 0)
        sq, sk, ranks, zigzag = sizes["sq"], rule.factor("sk").size, 1, False
        for axis, choice in statement.strategy.choices:
            if isinstance(choice, Split) and "sq" in choice.factors:
                ranks *= self.body.mesh.axis(axis).size
                zigzag = isinstance(choice.layout, Zigzag)
        causal = mask in ("causal", "window", "chunk")
        if mask == "causal" and ranks > 1:
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
        self.enter(Kernel(Engine.ATTENTION, work, dtype, flops, nbytes, shape, causal, window))
        if isinstance(statement, Ring):
            n = self.body.mesh.axis(statement.axis).size
            passed = sum(self.nbytes(name) for name in statement.operands[1:3])
            # Backward, keys and values go round again, and their gradients come back to where they belong.
            for steps in (n - 1, n) if backward else (n - 1,):
                self.phases[self.phase].transmissions[
                    Transmission("shift", (statement.axis,), passed, "ring", steps)
                ] += 1

    # wires

    def transmit(self, move: Move) -> None:
        step = move.step
        if step.free:
            return
        scale, kind = self.wire_scale(move), cast(Collective, step.kind)
        nbytes, full = self.nbytes(move.operand) * scale, group_bytes(move, self.body) * scale
        if move.reason in BUCKETED:
            key = (kind, step.axes, move.reason)
            self.buckets[key] = self.buckets.get(key, 0.0) + full
            return
        picks = self.book.picks if kind == "all_to_all" else 1
        if picks > 1 and self.style == "fused" and not self.workload.stack.dedupes:
            self.enter(self.book.memory(2.0 * nbytes))
        self.phases[self.phase].transmissions[Transmission(kind, step.axes, full, move.reason, picks=picks)] += 1

    def wire_scale(self, move: Move) -> float:
        """Bytes on the wire over bytes as traced: states travel in the recipe's precision."""
        local = self.body.locals[move.operand]
        width = travelling_bytes(move.reason, self.workload) if local.type.floating else None
        return 1.0 if width is None else width / ITEMSIZE[local.type.dtype]

    def nbytes(self, name: str) -> float:
        return local_bytes(self.body, name)


_Products = dict[tuple[str, ...], list[tuple[Kernel, str]]]
"""Products, and the first result of each, by what they share."""

_PRODUCTS = (("forward", "mnk"), ("dgrad", "mkn"), ("wgrad", "nkm"))
"""A product and its gradients: which of the forward letters stand for rows, columns and the sum."""
