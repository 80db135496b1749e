"""Peak memory: against allocation simulated over whole action lists, against closed forms, and by laws."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import pytest

from benchmarks import b200_single_node
from benchmarks.models import read_models
from benchmarks.price import Pricer
from benchmarks.reading import read_runs
from benchmarks.runs import Run
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import Pool
from meshwright.cost_models.memory import peak as memory
from meshwright.cost_models.memory.peak import MemoryConstants, allocated_bytes, held, memory_constants
from meshwright.cost_models.prediction import HELD, Held
from meshwright.ir.errors import WorkloadImpossible
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.kept import needs_of
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Program,
    Stage,
    Statement,
    operands_of,
    results_of,
)
from meshwright.ir.rules.base import Engine, Law
from meshwright.ir.rules.registry import infer
from meshwright.ir.target.workload import STACKS, Workload

NOTHING = MemoryConstants(
    communicator_bytes=0, context_bytes=0, workspace_bytes=0, block_bytes=0, fragments_share=0, margin_share=0
)
SEQ = 16
SMALL = Shape(layers=4, hidden=32, ffn_hidden=64, heads=4, vocab=128)


def cluster(ranks: int, name: str = "H100-80G") -> Cluster:
    return Cluster(pools=(Pool(name="pool", hosts=1, device=device(name), gpus_per_host=ranks),))


@lru_cache(maxsize=32)
def fold(shape: Shape, batch: int) -> Fold:
    return capture(build(shape, "test"), batch=batch, seq=SEQ).fold


def program(
    shape: Shape = SMALL,
    *,
    mbs: int = 1,
    stack: str = "torch",
    recipe: str = "",
    optimizer: str = "adamw",
    **names: object,
) -> Program:
    degrees = Degrees(**{"schedule": "1f1b", **names})  # type: ignore[arg-type]
    workload = Workload(
        global_batch=mbs * degrees.dp * degrees.microbatches,
        seq=SEQ,
        stack=STACKS[stack],
        recipe=recipe,
        optimizer=optimizer,
    )
    runtime = workload.stack
    model = fold(shape, mbs * degrees.dp)
    decisions = replace(template(model, degrees), style=runtime.style)
    lowering = Lowering(attention=runtime.attention, fused_loss=runtime.fused_loss, regathers=runtime.regathers)
    return lower(model, decisions, lowering, workload)


def stages(program: Program, profile: MemoryConstants = NOTHING) -> tuple[Held, ...]:
    ranks = max(rank for stage in program.stages for rank in stage.ranks) + 1
    return held(program, cluster(ranks), profile)


def part(one: Held, name: str) -> float:
    return dict(one.parts)[name]


# Against allocation, simulated ---------------------------------------------------------------------------------------


class Heap:
    """Storages of one rank as an allocator sees them, in eager execution."""

    def __init__(self, program: Program, stage: Stage) -> None:
        assert program.workload is not None
        self.recipe = program.workload.states
        self.calls = [program.body(name) for _, name in stage.calls()]
        self.entries = {(one.type, one.placement) for one in program.entries}
        self.kept: dict[tuple[int, int], float] = {}
        self.tables: dict[int, float] = {}
        self.graded: set[int] = set()
        self.peak = 0.0

    def size(self, body: BodyProgram, name: str) -> float:
        local = body.locals[name]
        elements = prod(local.placement.local_shape(local.type.shape, body.mesh))
        weights = {slot.grad for slot in body.params}
        return elements * (self.recipe.used if name in weights else ITEMSIZE[local.type.dtype])

    def act(self, kind: str, microbatch: int, state: float, gradients: list[float]) -> None:
        """One action: every call of the stage in turn."""
        if kind == "F":
            self.tables[microbatch] = self.without_gradient()
        for index in sorted(range(len(self.calls)), reverse=kind == "B"):
            held = state + sum(gradients[at] for at in self.graded)
            self.run(kind, index, microbatch, held, first=kind == "B" and index not in self.graded)
            if kind == "B":
                self.graded.add(index)
        if kind == "B":
            del self.tables[microbatch]

    def without_gradient(self) -> float:
        """Rotary tables of a micro-batch, each once; tokens and labels are there all the time."""
        found = {}
        for body in self.calls:
            ends = (
                *zip(body.inputs, body.input_grads, strict=True),
                *zip(body.outputs, body.output_grads, strict=True),
            )
            for name in (name for name, grad in ends if not grad):
                found[body.locals[name].type, body.locals[name].placement] = self.size(body, name)
        return sum(size for key, size in found.items() if key not in self.entries)

    def run(self, kind: str, index: int, microbatch: int, state: float, *, first: bool) -> None:
        """One list of one call: what is handed over comes in, storages are shared, and freed when nobody reads on. Of
        the `first` backward pass gradients of parameters stay."""
        body = self.calls[index]
        statements = body.forward if kind == "F" else body.backward
        free = {name for name, grad in zip(body.inputs, body.input_grads, strict=True) if not grad}
        free |= {name for slot in body.params for name in (slot.value, slot.stored)}
        kept = {one.name: float(one.nbytes) for one in body.kept if one.name not in free}
        if kind == "F":
            sizes = {name: self.size(body, name) for name in body.inputs if name not in free}
            stay = {*kept, *body.outputs}
        else:
            del self.kept[microbatch, index]
            sizes = kept | {name: self.size(body, name) for name in body.output_grads if name}
            stay = {name for name in body.input_grads if name}
            stay |= {slot.grad for slot in body.params if slot.grad and first}
        beside = state + sum(self.kept.values()) + sum(self.tables.values())
        where = {name: name for name in sizes} | {
            name: base for name, base in (owners(body).items() if kind == "B" else ()) if base in kept
        }
        own = kept if kind == "F" else again(body)
        ever = {where[name] for statement in statements for name in read(body, statement) if name in where}
        self.peak = max(self.peak, beside + sum(sizes.values()))
        for at, statement in enumerate(statements):
            later = {name for after in statements[at + 1 :] for name in read(body, after)} | stay
            needed = {where[name] for name in later if name in where}
            for position, name in enumerate(results_of(statement)):
                if name not in free:
                    where[name] = shares(body, statement, position, where, needed | set(kept)) or name
                    if where[name] == name:
                        sizes[name] = self.size(body, name)
            if isinstance(statement, Compute):
                made = {name: size for name, size in own.items() if name.startswith(f"{statement.op}!")}
                where |= dict(zip(made, made, strict=True))
                sizes |= made
            logarithms = 0.0  # whose gradient comes first
            if isinstance(statement, Gradient) and statement.signature.kind == "cross_entropy":
                logarithms = self.size(body, statement.results[0])
            self.peak = max(self.peak, beside + logarithms + sum(sizes.values()))
            needed = {where[name] for name in later if name in where} | (set(kept) - ever if kind == "B" else set())
            sizes = {name: size for name, size in sizes.items() if name in needed}
        if kind == "F":
            self.kept[microbatch, index] = sum(kept.values())


def owners(body: BodyProgram) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement in body.forward:
        if isinstance(statement, Compute) and infer(statement.signature).engine is Engine.VIEW:
            for name in statement.results:
                found[name] = found.get(statement.operands[0], statement.operands[0])
    return found


def again(body: BodyProgram) -> dict[str, float]:
    """What operators keep of their own that the backward pass runs again, on a mesh that cuts none of them."""
    ops = {statement.op for statement in body.backward if isinstance(statement, Compute)}
    found = {}
    for statement in body.backward:
        if isinstance(statement, Gradient) and statement.op in ops:
            loops = {factor.name: factor.size for factor in infer(statement.signature).factors}
            needs = needs_of(statement, loops, body.kernels)
            found |= {one.value: float(one.extra_bytes) for one in needs if one.extra_bytes is not None}
    return found


def read(body: BodyProgram, statement: Statement) -> set[str]:
    if isinstance(statement, Gradient):
        loops = {factor.name: factor.size for factor in infer(statement.signature).factors}
        needs = needs_of(statement, loops, body.kernels)
        names = {one.value for one in needs if one.extra_bytes is None}
        names |= {one.name for one in body.kept if one.name.startswith(f"{statement.op}!")}
        names |= {name for name in again(body) if name.startswith(f"{statement.op}!")}
        return names | {name for name in statement.grads if name}
    return set(operands_of(statement))


def shares(
    body: BodyProgram, statement: Statement, position: int, where: dict[str, str], needed: set[str]
) -> str | None:
    """The storage that a result is written into: a view's, a gradient's that is handed on, a dying summand's."""
    if isinstance(statement, Compute) and infer(statement.signature).engine is Engine.VIEW:
        return where.get(statement.operands[0])
    if isinstance(statement, Gradient) and len(statement.grads) == 1 and statement.grads[0]:
        rule, grad = infer(statement.signature), statement.grads[0]
        same = body.locals[statement.results[position]].type.nbytes == body.locals[grad].type.nbytes
        handed_on = rule.elementwise and rule.laws[statement.wanted[position]] is Law.ADDITIVE
        return where[grad] if same and (rule.engine is Engine.VIEW or handed_on) else None
    if isinstance(statement, Add):
        return next((where[name] for name in statement.operands if where[name] not in needed), None)
    return None


@pytest.mark.parametrize(
    ("pp", "microbatches", "recompute"),
    [(1, 1, "none"), (1, 3, "none"), (2, 4, "none"), (2, 4, "full"), (4, 6, "none")],
)
def test_agrees_with_simulated_allocation(
    pp: int, microbatches: int, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "stage_buffers", lambda *_: None)  # messages are nothing of the Heap's
    made = program(pp=pp, microbatches=microbatches, recompute=recompute, recipe="bf16")
    states = made.workload.states  # type: ignore[union-attr]
    for number, (stage, one) in enumerate(zip(made.stages, stages(made), strict=True)):
        bodies = [made.body(name) for _, name in stage.calls()]
        counts = [sum(body.locals[slot.value].type.elements for slot in body.params) for body in bodies]
        batch = microbatches * sum(one.type.nbytes for one in made.entries)
        state = batch + sum(counts) * (states.stored + states.master + made.workload.moments)  # type: ignore[union-attr]
        heap = Heap(made, stage)
        for action in made.actions[number][1]:
            if action.kind in "FB":
                heap.act(action.kind, action.microbatch, state, [count * states.gradient for count in counts])
        everything = state + sum(counts) * states.gradient
        assert one.peak_bytes == pytest.approx(max(heap.peak, everything), rel=1e-12), (number, one)


# Closed forms --------------------------------------------------------------------------------------------------------


def test_megatrons_state_is_eighteen_bytes_less_what_the_optimizer_shards() -> None:
    """2 parameter + 4 gradient + 12 / dp (Rajbhandari et al. 1910.02054, Megatron-Core's distributed optimizer)."""
    for dp in (1, 4):
        made = program(dp=dp, zero=1, stack="megatron")
        count = sum(
            made.body(name).locals[slot.value].type.elements
            for _, name in made.stages[0].calls()
            for slot in made.body(name).params
        )
        (one,) = stages(made)
        assert part(one, "parameters") == 2 * count
        assert part(one, "optimizer") == pytest.approx(12 * count / dp)
        assert part(one, "gradients") >= 4 * count
        (less,) = stages(program(dp=dp, zero=1, stack="megatron", optimizer="adamw-bf16"))
        assert part(less, "optimizer") == pytest.approx(8 * count / dp)


def test_parameters_gathered_one_by_one_need_no_room_for_whole_blocks() -> None:
    """DeepSpeed's ZeRO-3: a billion elements and the next parameter; of gradients one and a bucket, here itself."""
    wide = replace(SMALL, layers=2, hidden=16_384, ffn_hidden=65_536)
    whole = program(wide, dp=8, zero=3, stack="megatron-2021", recipe="megatron-bf16-grads")
    workload = whole.workload
    assert workload is not None
    single = replace(whole, workload=replace(workload, stack=replace(workload.stack, piecewise=True)))
    block = max(
        sum(body.locals[slot.value].type.elements for slot in body.params)
        for body in map(whole.body, (name for _, name in whole.stages[0].calls()))
    )
    largest = wide.hidden * wide.ffn_hidden
    # Its parameters, and the gradients of the block after it on their way; its own are there as they are made.
    assert part(stages(whole)[0], "gathered") == pytest.approx(2 * block + 2 * block, rel=0.01)
    assert part(stages(whole)[0], "transient") > 0.9 * 2 * block
    assert part(stages(single)[0], "gathered") == 2 * (1_000_000_000 + largest) + 4 * largest


def test_xla_gathers_by_operator_and_casts_a_loop_ahead() -> None:
    """Of the largest parameter one and a half and a gradient, in two bytes each; and the shards of both blocks again in
    two bytes, since a loop casts them before. A stage of one block is no loop."""
    wide = replace(SMALL, layers=2, hidden=4096, ffn_hidden=16_384)
    whole = program(wide, dp=8, zero=3, stack="jax", recipe="fsdp")
    bodies = map(whole.body, (name for _, name in whole.stages[0].calls()))
    block = max(bodies, key=lambda body: len(body.params))
    shards = sum(block.locals[slot.stored].type.elements for slot in block.params) / 8
    largest = wide.hidden * wide.ffn_hidden
    ahead = part(stages(whole)[0], "gathered") - 2 * 2.5 * largest
    assert ahead == pytest.approx(2 * 2 * shards, rel=0.01)
    single = program(replace(wide, layers=1), dp=8, zero=3, stack="jax", recipe="fsdp")
    assert part(stages(single)[0], "gathered") == 2 * 2.5 * largest


def test_what_streams_that_communicate_keep_is_reserved_all_the_time() -> None:
    """Blocks are reused in the stream that they were allocated in: beside the fullest instant of the compute stream lie
    two messages of parameters and all gradients that reduce-scatters left, whatever is in use of them by then."""
    made = program(replace(SMALL, vocab=512), dp=4, zero=3)
    counts = [
        sum(made.body(name).locals[slot.value].type.elements for slot in made.body(name).params)
        for _, name in made.stages[0].calls()
    ]
    (one,) = stages(made)
    assert one.instant == "loss"
    block = counts[-2]
    in_use = 2 * block  # the message that is fetched behind the head, whose gradients are not in shards yet
    two = 2 * max(a + b for a, b in pairwise(counts))
    assert part(one, "gradients") == 0
    assert part(one, "idle") == pytest.approx(sum(counts) * 4 / 4 + two - in_use)
    for other in (program(dp=4), program(dp=4, zero=3, stack="megatron"), program(dp=4, zero=3, stack="jax")):
        assert part(stages(other)[0], "idle") == 0


def test_a_tied_parameter_is_held_once_on_a_stage_and_once_on_each_of_two() -> None:
    tied, loose = (program(replace(SMALL, tied_embeddings=tied), recipe="bf16") for tied in (True, False))
    table = SMALL.vocab * SMALL.hidden * 2
    assert part(stages(loose)[0], "parameters") - part(stages(tied)[0], "parameters") == table
    cut = [program(replace(SMALL, tied_embeddings=tied), pp=2, recipe="bf16") for tied in (True, False)]
    assert [part(one, "parameters") for one in stages(cut[0])] == [part(one, "parameters") for one in stages(cut[1])]


def test_attention_written_out_with_dropout_keeps_what_korthikanti_et_al_say() -> None:
    """s b h (34 + 5 a s / h) bytes per layer and micro-batch (2205.05198, equation 1), p of them on the first stage."""
    shape = replace(SMALL, ffn_hidden=4 * SMALL.hidden, glu=False, learned_positions=SEQ, dropout=True)
    more, less = (
        stages(program(shape, pp=2, microbatches=count, stack="megatron-2021", schedule="gpipe"))[0] for count in (4, 3)
    )
    each = SEQ * shape.hidden * (34 + 5 * shape.heads * SEQ / shape.hidden)
    around = SEQ * (shape.hidden + 8 * 2)  # the embedding's mask; tokens and positions
    layer_norms = 2 * 2 * SEQ * 8  # means and deviations of two layers, which the formula leaves out
    assert part(more, "activations") - part(less, "activations") == pytest.approx(
        2 * each + around + layer_norms, rel=0.01
    )


# Laws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["torch", "torch-compile", "megatron", "megatron-2021", "jax"])
def test_parts_are_known_and_add_up(stack: str) -> None:
    for one in stages(program(dp=2, tp=2, pp=2, zero=1, microbatches=4, stack=stack), memory_constants()):
        assert tuple(name for name, _ in one.parts) == HELD
        assert sum(size for _, size in one.parts) == pytest.approx(one.peak_bytes)
        assert min(size for _, size in one.parts) >= 0
        apart = sum(part(one, name) for name in ("communicators", "context", "idle", "rounding"))
        assert allocated_bytes(one) == pytest.approx(one.peak_bytes - apart)


@pytest.mark.parametrize("stack", ["torch", "megatron", "jax"])
def test_more_zero_is_never_more_state(stack: str) -> None:
    found = []
    for zero in range(4):
        (one,) = stages(program(dp=4, zero=zero, microbatches=2, stack=stack))
        found.append(sum(part(one, name) for name in ("parameters", "gradients", "optimizer")))
    assert found == sorted(found, reverse=True)
    assert found[3] < found[0]


def test_more_in_flight_is_never_less() -> None:
    peaks = [stages(program(pp=4, microbatches=count))[0].peak_bytes for count in (1, 2, 4, 8, 12)]
    assert peaks == sorted(peaks)
    # 1F1B: four in flight on the first of four stages, however many there are; a buffer for each gradient; the batch.
    assert peaks[4] - peaks[3] == 4 * SEQ * (SMALL.hidden * 2 + 2 * 8)
    assert stages(program(pp=4, microbatches=12, schedule="gpipe"))[0].peak_bytes > peaks[4]


def test_what_zero_1_keeps_whole_rests_in_shards_where_fully_shard_does_it() -> None:
    """Four bytes of a parameter in shards, two as it is gathered; gradients whole, until they go to shards."""
    made = program(dp=4, zero=1, microbatches=2)
    count = sum(
        made.body(name).locals[slot.value].type.elements
        for _, name in made.stages[0].calls()
        for slot in made.body(name).params
    )
    (one,) = stages(made)
    assert part(one, "parameters") == 4 * count / 4
    assert part(one, "gathered") == pytest.approx(2 * count, rel=0.5)  # and a message
    assert part(one, "gathered") >= 2 * count
    assert part(one, "gradients") <= 4 * count
    (copied,) = stages(program(dp=4, recipe="fp32"))  # DDP: its buckets beside the gradients
    made_last = part(copied, "transient")
    assert 2 * 4 * count - made_last <= part(copied, "gradients") <= 2 * 4 * count
    (cut,) = stages(program(dp=4, tp=2, recipe="fp32"))  # summed in place
    assert part(cut, "gradients") < 4 * count


def test_recomputation_is_never_more_and_a_larger_micro_batch_never_less() -> None:
    for stack in ("torch", "megatron", "jax"):
        none, full = (stages(program(pp=2, microbatches=4, stack=stack, recompute=how)) for how in ("none", "full"))
        assert all(part(a, "activations") >= part(b, "activations") for a, b in zip(none, full, strict=True))
        sizes = [stages(program(mbs=mbs, stack=stack))[0].peak_bytes for mbs in (1, 2, 4)]
        assert sizes == sorted(sizes)


def test_an_overloaded_expert_holds_more_and_nothing_else_does() -> None:
    routed = replace(SMALL, experts=4, topk=2)
    for shape, more in ((routed, True), (SMALL, False)):
        made = program(shape)
        assert made.workload is not None
        busy = replace(made, workload=replace(made.workload, imbalance=2.0))
        assert (stages(busy)[0].peak_bytes > stages(made)[0].peak_bytes) is more


# Capacity ------------------------------------------------------------------------------------------------------------


def test_states_beyond_the_device_are_refused() -> None:
    large = Shape(layers=80, hidden=8192, ffn_hidden=28672, heads=64, kv_heads=8, vocab=128256)
    (one,) = stages(program(large, stack="megatron"))
    assert sum(part(one, name) for name in ("parameters", "gradients", "optimizer")) > one.capacity_bytes
    assert not one.fits


def test_logits_beyond_the_device_are_refused() -> None:
    (one,) = stages(program(Shape(layers=1, hidden=32, ffn_hidden=32, heads=2, vocab=128256), mbs=1 << 16))
    assert part(one, "logits") > one.capacity_bytes
    assert one.instant == "loss"
    assert not one.fits


def test_capacity_is_the_drivers_less_the_margin() -> None:
    known = device("H100-80G")
    assert known.driver_memory is not None
    (one,) = stages(program(), replace(NOTHING, margin_share=0.1))
    assert one.capacity_bytes == pytest.approx(0.9 * known.driver_memory.value)


def test_a_program_without_workload_and_impossible_constants_are_refused() -> None:
    with pytest.raises(WorkloadImpossible, match="carries no workload"):
        stages(replace(program(), workload=None))
    with pytest.raises(WorkloadImpossible, match="negative"):
        replace(NOTHING, margin_share=1.0)


def test_every_constant_has_a_source() -> None:
    profile = b200_single_node.DATA.parent.parent / "cost_models" / "profiles" / "memory.json"
    table = json.loads(profile.read_text())
    pairs = [value for value in table.values() if isinstance(value, list)]
    assert len(pairs) == 6
    assert {name for _, name in pairs} == set(table["sources"])
    assert Counter(source["kind"] for source in table["sources"].values())["fitted"] == 0


# Measured ------------------------------------------------------------------------------------------------------------


def test_eight_runs_of_megatron_core_on_b200() -> None:
    found = b200_single_node.score(
        b200_single_node.DATA / "b200_single_node.csv", b200_single_node.DATA / "models.csv"
    )["overall"]
    assert found["priced"] == found["rows"] == 8
    assert found["memory_mape"] <= 0.03
    assert found["memory_max"] <= 0.06


def test_six_runs_of_fully_shard_on_h100() -> None:
    """What torch's allocator reserved, as torchtitan prints it, of data parallel runs."""
    data = b200_single_node.DATA
    rows = read_runs(data / "training_runs.csv", read_models(data / "models.csv"))
    titan = [row for row in rows if isinstance(row, Run) and row.source == "torchtitan_benchmarks" and row.peak_bytes]
    runs = [run for run in titan if run.tp == 1]
    assert {run.memory_meaning for run in runs} == {"reserved"}
    price = Pricer()
    errors = [price(run).reserved_bytes / run.peak_bytes - 1 for run in runs if run.peak_bytes]
    assert len(errors) == 6
    assert sum(map(abs, errors)) / 6 <= 0.04
    assert max(map(abs, errors)) <= 0.06
