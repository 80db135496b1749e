"""What a stage needs to know of one call of a body: what its passes hold (`liveness`), and what lies there for its
parameters.

Parameters that operators read in another form than the stored one (gathered from shards, cast) are whole *units*: all
of a body's are there while it runs, as FSDP does (torch.distributed.fsdp, one unit per block). Their gradients are
there from the statement that makes them to the end of the body, where they are copied into one buffer and reduced to
shards. Where a stack gathers them one by one (`Stack.one_by_one`), there are fewer: with DeepSpeed at most
`LIVE_ELEMENTS` and the one that is gathered next, and of gradients one and a bucket of `BUCKET_ELEMENTS`, which a
larger one fills alone. XLA gathers as many ahead as memory allows; what it cannot do without is `XLA_LIVE` of the
largest, and one gradient. Of repeated blocks, which are a loop there, it casts the shards of all before the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

from meshwright.cost_models.memory.liveness import PassMemory, passes_of
from meshwright.cost_models.memory.routing import routing_of
from meshwright.cost_models.memory.storages import rule_of
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.program import BodyProgram, Compute, Move, ParamSlot, local_elements
from meshwright.ir.rules.base import Engine
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.workload import Stack, Workload

LIVE_ELEMENTS = 1_000_000_000
BUCKET_ELEMENTS = 500_000_000
"""Defaults of DeepSpeed's stage3_max_live_parameters, beyond which nothing is fetched ahead, and reduce_bucket_size
(deepspeed.ai, configuration JSON)."""
XLA_LIVE = 1.5
"""Of the largest parameter of a block, whole while an operator reads it. Compiled for eight v5e with libtpu 0.0.52
(`benchmarks.xla_live`, 2026-11-30), a step whose states fill memory holds 2.5 of them beside its states: one gradient
more."""


@dataclass(frozen=True, slots=True)
class BodyMemory:
    """The summary of one body program that a stage's memory is computed from."""

    passes: PassMemory
    unit: float
    """Bytes of its parameters in the form that operators read, where that is another than the stored one."""
    message: float
    """The part of it that is gathered from other ranks, in one message."""
    message_routed: float
    """Of that, what is a message of its own, since experts have other copies than the rest."""
    unit_gradients: float
    """Bytes of their gradients before they are reduced to shards in the backward pass; 0 if they are not."""
    summed: float
    """The largest of them that is summed over ranks which all hold it, into a buffer of its own, before that."""
    travelling: float
    """Bytes of the buffer in which those travel to their shards, which stays until the next one takes its place."""
    travelling_last: float
    """The same of gradients that are summed once a step, behind the last backward pass through their unit, since units
    cast what every rank holds."""
    piece: float
    """Bytes of gradients that are reduced one by one while it runs."""
    pooled: bool
    """Whether parameters and gradients travel in memory that streams of their own keep
    (`meshwright.cost_models.memory.stage`)."""
    returned: float
    """The part of it that stays from the forward to the backward pass, and is given back behind that."""
    unit_kept: bool
    """Whether that form stays from the forward to the backward pass."""
    stays: bool
    """Whether it stays from one micro-batch to the next."""
    cast_ahead: float
    """Bytes of the stored parameters in the dtype that operators read, if all that run in one loop are cast before."""
    parameters: float
    gradients: float
    pooled_gradients: float
    """What of them lies in such memory: what was reduced to shards in the backward pass."""
    optimizer: float
    host_state: float
    """Bytes of optimizer state in the host's memory, and of what is stepped there."""
    stepped: float
    """Bytes of the gradients that the optimizer reads, where they are not those that micro-batches added up."""
    left_behind: float
    """Bytes of those that added up, and that went unit by unit when their sums were scattered; and of those that went
    to a call that lent the parameter."""
    buckets: float
    """Bytes of the buffers that DDP sums gradients in."""
    cut: bool
    """Whether an axis cuts any of its trained parameters in compute."""
    stepping: float
    """Bytes that the optimizer makes of one parameter while it steps, at most."""
    slots: tuple[tuple[str, float, float, float], ...]
    """Trained parameters: path, and bytes of parameter, gradient and optimizer state."""
    untrained: tuple[tuple[str, float], ...]
    """Parameters that are not trained, and buffers: path and bytes."""
    units: frozenset[str]
    """The paths of those that a unit of `fully_shard` has shards of: other units that hold them have shards, too."""
    products: tuple[tuple[tuple[int, ...], float], ...]
    """Shapes of the weights that products read, those of one operand joined, with their bytes on one rank."""

    @property
    def casts(self) -> bool:
        """Whether the form that operators read is cast from what the rank stores whole, and freed again."""
        return not self.unit_kept and not self.message

    @property
    def behind(self) -> float:
        """Bytes fetched for the call's backward pass behind that of the call after it: nothing that stayed, and experts
        with messages of their own only when the rest is there."""
        return 0.0 if self.unit_kept else self.message - self.message_routed

    def rest(self, nbytes: float) -> float:
        """Bytes of a unit in some form without experts that have messages of their own."""
        return nbytes * (1 - self.message_routed / self.message) if self.message else nbytes


_Key = tuple[Stack, str, str, float, bool, bool]
_CACHE: dict[int, tuple[ref[BodyProgram], dict[_Key, BodyMemory]]] = {}


def body_memory(body: BodyProgram, workload: Workload, repeated: bool, *, apart: bool = False) -> BodyMemory:
    """The summary of a body program, made once for each program and workload; `repeated`: it is one of a stack;
    `apart`: gradients of weights are computed apart."""
    key = (workload.stack, workload.recipe, workload.optimizer, workload.imbalance, repeated, apart)
    at = id(body)
    if at not in _CACHE:
        _CACHE[at] = (ref(body, lambda _: _CACHE.pop(at, None)), {})
    known = _CACHE[at][1]
    if key not in known:
        known[key] = _States(body, workload, repeated).summary(passes_of(body, workload, repeated, apart=apart))
    return known[key]


class _States:
    """Storage of a body program's parameters, gradients and optimizer states, in bytes."""

    def __init__(self, body: BodyProgram, workload: Workload, repeated: bool) -> None:
        self.body, self.workload, self.repeated = body, workload, repeated
        self.runtime, self.states = workload.stack, workload.states
        self.slots = [slot for slot in body.params if not slot.buffer and slot.borrowed is None]

    def summary(self, passes: PassMemory) -> BodyMemory:
        trained = [slot for slot in self.slots if slot.grad]
        slots = tuple(
            (
                slot.path,
                self.elements(slot.stored) * self.states.stored,
                self.held_gradient(slot),
                0.0 if slot.host else self.state(slot),
            )
            for slot in trained
        )
        frozen = ((slot.path, self.resting(slot) * self.states.stored) for slot in self.slots if not slot.grad)
        tables = ((slot.path, self.table(slot.stored)) for slot in self.body.params if slot.buffer)
        untrained = (*frozen, *tables)
        resting = sum(self.resting(slot) for slot in trained) * self.states.stored
        returned = sum(self.elements(one.grad) for one in self.body.params if one.borrowed is not None and one.grad)
        gradients = sum(gradient for _, _, gradient, _ in slots) + returned * self.states.used
        return BodyMemory(
            passes=passes,
            unit=self.unit(),
            message=self.message(),
            message_routed=self.message(routed=True),
            returned=self.unit() if self.unit_kept() and not any(map(self.spread, self.slots)) else 0.0,
            unit_kept=self.unit_kept(),
            stays=any(map(self.late, trained)),
            cast_ahead=self.cast_ahead(),
            unit_gradients=sum(map(self.elements, self.scattered())) * self.states.used,
            summed=max(self.summed(), default=0) * self.states.used,
            travelling=sum(map(self.elements, self.scattered())) * self.states.reduced,
            travelling_last=sum(self.at(slot, slot.grads) for slot in trained if self.cast_copy(slot))
            * self.states.reduced,
            piece=self.piece(),
            pooled=self.pooled(),
            parameters=resting + sum(nbytes for _, nbytes in untrained),
            gradients=gradients,
            pooled_gradients=gradients if self.pooled() and self.scattered() else 0.0,
            optimizer=sum(optimizer for _, _, _, optimizer in slots),
            host_state=sum(self.offloaded(slot) for slot in trained if slot.host),
            stepped=sum(self.stepped(slot) for slot in trained),
            left_behind=sum(self.held_gradient(slot) for slot in trained if self.late(slot))
            + returned * self.states.used,
            buckets=sum(self.bucket(slot) for slot in trained),
            cut=any(self.elements(slot.value) < self.body.locals[slot.value].type.elements for slot in trained),
            stepping=max(map(self.stepping, trained), default=0.0),
            slots=slots,
            untrained=untrained,
            units=frozenset(slot.path for slot in trained if self.runtime.by_torch and self.in_unit(slot)),
            products=self.products() if self.repeated and self.runtime.placeholders else (),
        )

    @property
    def xla(self) -> bool:
        return self.runtime.style == "xla"

    def elements(self, name: str) -> int:
        local = self.body.locals[name]
        return local_elements(local.placement, local.type.shape, self.body.mesh)

    def table(self, name: str) -> float:
        return float(self.elements(name) * ITEMSIZE[self.body.locals[name].type.dtype])

    def at(self, slot: ParamSlot, placement: Placement) -> int:
        """Elements of a parameter on one rank in a placement."""
        return local_elements(placement, self.body.locals[slot.value].type.shape, self.body.mesh)

    def held_gradient(self, slot: ParamSlot) -> float:
        return self.at(slot, slot.grads) * self.states.gradient

    def state(self, slot: ParamSlot) -> float:
        """Bytes of the optimizer's copy and moments of a parameter."""
        return self.at(slot, slot.optimizer) * (self.states.master + self.workload.moments)

    def late(self, slot: ParamSlot) -> bool:
        """Whether `fully_shard` scatters a gradient once per step, after accumulation."""
        return self.runtime.by_torch and self.at(slot, slot.optimizer) < self.at(slot, slot.grads)

    def in_unit(self, slot: ParamSlot) -> bool:
        """Whether a parameter belongs to a unit of shards."""
        return self.at(slot, slot.optimizer) < self.elements(slot.value)

    def spread(self, slot: ParamSlot) -> bool:
        """Whether a parameter that is planned whole rests in shards, as `fully_shard` does ZeRO-1 and ZeRO-2."""
        whole = slot.stored == slot.value and slot.grad is not None
        return self.runtime.by_torch and whole and self.in_unit(slot)

    def offloaded(self, slot: ParamSlot) -> float:
        """Host bytes of a parameter: the optimizer's state, what it updates if that is no part of the state, and a
        gradient that has come down."""
        states = self.states
        beside = states.gradient + (0.0 if states.master else states.stored)
        return self.state(slot) + self.at(slot, slot.optimizer) * beside

    def resting(self, slot: ParamSlot) -> int:
        """Elements of a parameter that are on the device all the time."""
        return self.at(slot, slot.optimizer) if self.spread(slot) else self.elements(slot.stored)

    def stepped(self, slot: ParamSlot) -> float:
        """Bytes that exist at the optimizer's step: a copy in the dtype of the master parameters where gradients have
        another (and the device makes the step); else the shards that sums are scattered to, or a buffer for the sums,
        except where fused stacks leave them."""
        if self.states.master > self.states.gradient and not slot.host:
            return self.at(slot, slot.optimizer) * self.states.master
        moved = slot.synced not in (slot.grad, None) and self.runtime.style != "fused"
        summed = self.runtime.by_torch and not self.late(slot)
        return self.at(slot, slot.optimizer) * self.states.reduced if moved and not summed else 0.0

    def bucket(self, slot: ParamSlot) -> float:
        """Bytes of the bucket to which DDP, which sums gradients as they are, copies a gradient. `fully_shard`, which
        casts what is stored, sums copies in the dtype that their gradients get."""
        ddp = self.runtime.by_torch and self.states.used == self.states.stored
        summed = ddp and slot.synced not in (slot.grad, None) and not self.late(slot)
        return self.at(slot, slot.grads) * self.states.reduced if summed else 0.0

    def cast_copy(self, slot: ParamSlot) -> bool:
        """Whether a unit of `fully_shard` casts a parameter that every rank holds."""
        return self.runtime.by_torch and self.states.casts and not self.in_unit(slot)

    def stepping(self, slot: ParamSlot) -> float:
        """Bytes of temporaries at the step: on CPU, AdamW makes a root of the second moment parameter by parameter, and
        divides it."""
        single = self.body.kernels.device == "cpu" and self.workload.optimizer == "adamw" and not slot.host
        return 2 * self.at(slot, slot.optimizer) * (self.states.master or self.states.stored) if single else 0.0

    def read_otherwise(self) -> list[ParamSlot]:
        """Parameters that operators read in another form than the stored one. XLA casts inside the operators."""
        cast = self.states.used != self.states.stored and not self.xla
        return [slot for slot in self.slots if slot.stored != slot.value or cast or self.spread(slot)]

    def unit(self) -> float:
        sizes = [self.elements(slot.value) for slot in self.read_otherwise()]
        live: float = sum(sizes)
        if self.runtime.one_by_one and sizes and not self.unit_kept():
            live = min(live, XLA_LIVE * max(sizes) if self.xla else LIVE_ELEMENTS + max(sizes))
        return live * self.states.used

    def cast_ahead(self) -> float:
        casts = self.xla and self.states.used < self.states.stored
        return sum(self.elements(slot.stored) for slot in self.slots) * self.states.used if casts else 0.0

    def message(self, *, routed: bool = False) -> float:
        gathered = [slot for slot in self.slots if slot.stored != slot.value or self.spread(slot)]
        if routed:
            experts = routing_of(self.body).weights
            own, other = ([one for one in gathered if (one.value in experts) == kind] for kind in (True, False))
            gathered = [] if {*map(self.over, own)} == {*map(self.over, other)} else own
        return sum(self.elements(slot.value) for slot in gathered) * self.states.used

    def over(self, slot: ParamSlot) -> frozenset[str]:
        """The axes over which a parameter is sharded."""
        placements = (slot.optimizer, self.body.locals[slot.value].placement)
        stored, used = ({shard.axis for dim in one.dims for shard in dim} for one in placements)
        return frozenset(stored - used)

    def unit_kept(self) -> bool:
        gathered = {s.result for s in self.body.forward if isinstance(s, Move) and s.reason == "parameter"}
        again = any(isinstance(s, Move) and s.reason == "parameter" for s in self.body.backward)
        stays = self.runtime.by_torch and bool(gathered) and not again  # what is not gathered again was not given back
        return stays or any(kept.name in gathered for kept in self.body.kept) or any(map(self.spread, self.slots))

    def scattered(self) -> set[str]:
        """Parameters whose gradients the backward pass reduces to shards."""
        reduced = {move.result for move in self.syncs()}
        return set() if self.runtime.one_by_one else {slot.value for slot in self.slots if slot.grad in reduced}

    def summed(self) -> Iterator[int]:
        """Elements of gradients that the backward pass sums over ranks which all hold them, as they are made."""
        moved = {move.result for move in self.syncs()}
        if self.runtime.by_torch:
            first = (move for move in self.syncs() if move.operand not in moved)
            yield from (self.elements(move.operand) for move in first if move.step.kind == "all_reduce")

    def syncs(self) -> list[Move]:
        """Reductions of gradients in the backward pass, by parameter."""
        return [s for s in self.body.backward if isinstance(s, Move) and s.reason == "sync"]

    def pooled(self) -> bool:
        """Whether messages lie in pools: `fully_shard` on GPUs; fused stacks keep buffers of their own, XLA allocates
        by itself."""
        return self.runtime.by_torch and self.body.kernels.device != "cpu"

    def piece(self) -> float:
        """Bytes of gradients that are reduced one by one: the one that is made, and the bucket that is on its way."""
        sizes = [self.elements(slot.value) for slot in self.slots if slot.grad]
        if not (self.runtime.one_by_one and self.syncs()):
            return 0.0
        if self.xla:
            return max(sizes) * self.states.used
        bucket = min(sum(sizes), max(BUCKET_ELEMENTS, *sizes))
        return max(sizes) * self.states.used + bucket * self.states.reduced

    def products(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Weights by product; those that share an operand are one product (q, k and v; gate and up)."""
        weights = {slot.value for slot in self.slots if slot.grad}
        joined: dict[str, list[str]] = {}
        for statement in self.body.forward:
            if isinstance(statement, Compute) and rule_of(statement).engine is Engine.MATMUL:
                for name in (operand for operand in statement.operands if operand in weights):
                    joined.setdefault(statement.operands[0], []).append(name)
        found: dict[tuple[int, ...], float] = {}
        for names in joined.values():
            shapes = [
                self.body.locals[n].placement.local_shape(self.body.locals[n].type.shape, self.body.mesh) for n in names
            ]
            shape = (sum(one[0] for one in shapes), *shapes[0][1:])
            found[shape] = sum(self.elements(name) for name in names) * self.states.used
        return tuple(found.items())
