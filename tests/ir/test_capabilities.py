"""Targets: declared in the IR's own words, refusing what they cannot express, and exact with the steps they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.backends.torch_.capabilities import TARGETS, TORCH_CUDA, TORCH_GLOO
from meshwright.backends.torch_.verify.interpreted.compare import differences, random_values
from meshwright.ir.decisions.decisions import Decisions, Schedule
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import (
    AttentionNotExpressible,
    CapabilityUnknown,
    CombinationNotExpressible,
    LayoutNotExpressible,
    MicrobatchesNotExpressible,
    NotExpressible,
    OffloadNotExpressible,
    RecomputeNotExpressible,
    ScheduleNotExpressible,
    StorageNotExpressible,
)
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import CONTEXT, Degrees, template
from meshwright.ir.names.stages import layer_calls
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Padded, Sections, Uneven
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.sharding.reshard import MOVES
from meshwright.ir.target.capabilities import (
    ANY,
    LAYOUTS,
    RECOMPUTE,
    STORAGE,
    Capabilities,
    Line,
    ScheduleLine,
    layout_names,
)
from meshwright.ir.target.combined import CAST, COMBINED
from meshwright.ir.target.precisions import PrecisionLine
from meshwright.ir.target.workload import PRECISIONS, STACKS, STYLES, Workload
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.ir.test_interp_step import PLANS
from tests.llama_block import Sizes, block, model
from tests.models import perceptron_fold

FOLD = model()
KNOWN = {
    "layouts": LAYOUTS,
    "attention": CONTEXT,
    "storage": STORAGE,
    "schedules": (*SCHEDULES, "custom"),
    "recompute": RECOMPUTE,
    "moves": MOVES,
    "combined": (*COMBINED, *CAST),
    "styles": STYLES,
    "precisions": PRECISIONS,
}
EVERY = [ANY, *TARGETS.values()]


# Declarations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", EVERY, ids=lambda target: target.target)
def test_every_line_is_known_once_and_has_evidence(target: Capabilities) -> None:
    for field, known in KNOWN.items():
        lines: tuple[Line | ScheduleLine, ...] = getattr(target, field)
        names = [line.name for line in lines]
        assert set(names) <= set(known), field
        assert len(set(names)) == len(names), field
        assert all(line.evidence for line in lines), field


def test_targets_go_by_their_names() -> None:
    assert list(TARGETS) == ["torch-cuda", "torch-gloo"]
    assert all(name == target.target for name, target in TARGETS.items())


def test_any_can_do_everything() -> None:
    for field, known in KNOWN.items():
        assert {line.name for line in getattr(ANY, field)} == set(known), field


@pytest.mark.parametrize("field", [*KNOWN, "overlap", "offload"])
def test_a_line_that_means_nothing_is_refused(field: str) -> None:
    with pytest.raises(CapabilityUnknown, match=field):
        replace(ANY, **{field: (Line("telepathy", "made up"),)})


def test_a_recipe_that_means_nothing_is_refused() -> None:
    with pytest.raises(CapabilityUnknown, match="recipes: 'telepathy'"):
        replace(ANY, precisions=(PrecisionLine("bf16", "made up", ("bf16", "telepathy")),))


@pytest.mark.parametrize("target", EVERY, ids=lambda target: target.target)
def test_precisions_without_code_are_told_of_stacks_that_code_is_written_for(target: Capabilities) -> None:
    """Only these can be emitted at all, and any stands for no runtime."""

    def told(precision: str, stack: str) -> list[str]:
        workload = Workload(global_batch=8, seq=16, precision=precision, stack=STACKS[stack])
        return [refused.place for refused in target.unwritten(workload, FOLD)]

    emitted = target is not ANY
    for precision in ("fp8_blockwise", "mxfp8", "nvfp4", "tf32"):
        assert told(precision, "torch") == told(precision, "torch-compile") == [f"dtype {precision}"] * emitted
        assert told(precision, "megatron") == []


def test_what_the_library_really_runs() -> None:
    assert TORCH_GLOO.executed("reduce_scatter") == "all_reduce"
    assert TORCH_GLOO.executed("all_to_all") == "all_to_all"
    assert TORCH_GLOO.executed("all_reduce") == "all_reduce"
    for move in MOVES:
        assert TORCH_CUDA.executed(move) == ANY.executed(move) == move
        assert TORCH_GLOO.executed(TORCH_GLOO.executed(move)) in MOVES


def test_lowering_uses_the_targets_steps_and_kernels() -> None:
    assert TORCH_GLOO.lowering() == Lowering(
        moves=tuple(line.name for line in TORCH_GLOO.moves), device="cpu", sums_first=True, reduces_last=True
    )
    assert TORCH_CUDA.lowering().device == "cuda"


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (CONTIGUOUS, "contiguous"),
        (Sections((2, 2)), "joined"),
        (ZIGZAG, "zigzag"),
        (Uneven((1, 3)), "uneven"),
        (Padded((3,)), "padded"),
        (Nested(2), "nested contiguous"),
        (Nested(2, ZIGZAG), "nested zigzag"),
    ],
)
def test_layouts_have_names(layout: Layout, name: str) -> None:
    assert " ".join(layout_names(layout)) == name


# Refusals ------------------------------------------------------------------------------------------------------------


def kinds(target: Capabilities, decisions: Decisions) -> set[type[NotExpressible]]:
    return {type(refusal) for refusal in target.refusals(decisions, FOLD)}


@pytest.mark.parametrize("name", PLANS)
def test_any_refuses_nothing(name: str) -> None:
    assert kinds(ANY, template(FOLD, PLANS[name])) == set()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.target)
def test_torch_expresses_all_named_plans(target: Capabilities, name: str) -> None:
    assert kinds(target, template(FOLD, PLANS[name])) == set()


def uneven(decisions: Decisions) -> Decisions:
    """One linear of a block split unevenly."""
    cut = Strategy((("tp", Split(("n",), Uneven((8, 24)))),))
    plans = tuple(
        replace(p, strategies=tuple((op, cut if op == "q" else own) for op, own in p.strategies))
        if p.name == "block"
        else p
        for p in decisions.plans
    )
    return replace(decisions, plans=plans)


def without(op: str, plan: str = "block") -> Callable[[Decisions], Decisions]:
    """One operator that leaves all axes idle."""

    def change(decisions: Decisions) -> Decisions:
        plans = [
            replace(p, strategies=tuple(pair for pair in p.strategies if pair[0] != op)) if p.name == plan else p
            for p in decisions.plans
        ]
        return replace(decisions, plans=tuple(plans))

    return change


def identity(decisions: Decisions) -> Decisions:
    return decisions


REFUSALS: dict[str, tuple[Capabilities, Degrees, Callable[[Decisions], Decisions], type[NotExpressible], str]] = {
    "rings where there are none": (
        replace(TORCH_GLOO, attention=TORCH_GLOO.attention[:1]),
        Degrees(cp=2, context="ring"),
        identity,
        AttentionNotExpressible,
        "ring attention",
    ),
    "uneven parts": (TORCH_CUDA, Degrees(tp=2), uneven, LayoutNotExpressible, "layout uneven"),
    "an unknown schedule": (
        replace(TORCH_CUDA, schedules=TORCH_CUDA.schedules[:1]),
        Degrees(pp=2, schedule="1f1b", microbatches=2),
        identity,
        ScheduleNotExpressible,
        "1f1b",
    ),
    "micro-batches that do not fill the groups": (
        TORCH_CUDA,
        Degrees(pp=2, schedule="interleaved", microbatches=3),
        identity,
        MicrobatchesNotExpressible,
        "multiple of 2",
    ),
    "too few micro-batches": (
        replace(ANY, schedules=(ScheduleLine("gpipe", "test", min_microbatches_per_group=2),)),
        Degrees(pp=2, microbatches=3),
        identity,
        MicrobatchesNotExpressible,
        "at least 4",
    ),
    "too few micro-batches for DualPipeV": (
        TORCH_GLOO,
        Degrees(pp=2, vp=2, schedule="dualpipev", microbatches=3),
        identity,
        MicrobatchesNotExpressible,
        "at least 4",
    ),
    "too few micro-batches for anyone": (
        ANY,
        Degrees(pp=2, vp=2, schedule="dualpipev", microbatches=3),
        identity,
        MicrobatchesNotExpressible,
        "at least 4",
    ),
    "no sharded storage": (
        replace(ANY, storage=()),
        Degrees(dp=2, zero=1),
        identity,
        StorageNotExpressible,
        "optimizer as",
    ),
    "no recomputation": (
        replace(ANY, recompute=ANY.recompute[:1]),
        Degrees(dp=2, recompute="full"),
        identity,
        RecomputeNotExpressible,
        "recompute full",
    ),
    "no selective recomputation": (
        replace(ANY, recompute=ANY.recompute[:2]),
        Degrees(dp=2),
        lambda plan: replace(
            plan, plans=tuple(replace(p, recompute=("act",) if p.name == "block" else ()) for p in plan.plans)
        ),
        RecomputeNotExpressible,
        "recompute selective",
    ),
    "no host memory": (
        replace(TORCH_CUDA, offload=TORCH_CUDA.offload[:1]),
        Degrees(dp=2),
        lambda plan: replace(plan, offload=Offload(activations=True)),
        OffloadNotExpressible,
        "express activations",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_target_cannot_express_is_refused(name: str) -> None:
    target, degrees, change, kind, words = REFUSALS[name]
    decisions = change(template(FOLD, degrees))
    assert kinds(target, decisions) == {kind}
    with pytest.raises(kind, match=words):
        target.check(decisions, FOLD)


@pytest.mark.parametrize(
    ("zero", "kept", "refused"),
    [
        (1, "optimizer", set()),
        (2, "optimizer", {"grads"}),
        (3, "optimizer", {"grads", "params"}),
        (3, "params", {"grads", "optimizer"}),
        (0, "", set()),
    ],
)
def test_storage_is_compared_with_compute(zero: int, kept: str, refused: set[str]) -> None:
    """Not with itself: parameters that are sharded for compute by tensor parallelism need no line."""
    target = replace(ANY, storage=(Line(kept, "test"),) if kept else ())
    found = {refusal.cause for refusal in target.refusals(template(FOLD, Degrees(dp=2, tp=2, zero=zero)), FOLD)}
    assert {kind for kind in STORAGE if any(f"express {kind} as" in cause for cause in found)} == refused


def test_one_stage_needs_no_schedule() -> None:
    assert kinds(replace(ANY, schedules=()), template(FOLD, Degrees(dp=2))) == set()


# Lowering ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "degrees", [Degrees(cp=4, context="ulysses"), Degrees(tp=4, sequence_parallel=True)], ids=["ulysses", "tp sp"]
)
@pytest.mark.parametrize("missing", ["all_to_all", "reduce_scatter", "pad"])
def test_a_target_without_a_step_is_exact_with_the_others(degrees: Degrees, missing: str) -> None:
    target = replace(ANY, target="test", moves=tuple(line for line in ANY.moves if line.name != missing))
    lowering, graph = replace(target.lowering(), device="cpu"), block()
    plan, mesh = template(FOLD, degrees).plan["block"], degrees.mesh()
    program = lower_body(graph, plan, mesh, lowering)
    used = {move.step.kind for move in program.moves(free=True)}
    assert missing not in used
    assert used <= {line.name for line in target.moves}
    assert differences(graph, plan, mesh, random_values(graph), lowering=lowering) == []


def test_ulysses_is_lowered_to_all_to_all_where_there_is_one() -> None:
    degrees = Degrees(cp=4, context="ulysses")
    plan = template(FOLD, degrees).plan["block"]
    program = lower_body(block(), plan, degrees.mesh(), TORCH_CUDA.lowering())
    assert {move.step.kind for move in program.moves()} == {"all_to_all"}
    assert len(program.moves()) == 8, "q, k, v and the result, forward and backward"


def test_a_body_without_samples_has_nothing_for_data_parallelism() -> None:
    fold = perceptron_fold()
    assert not list(TORCH_CUDA.refusals(template(fold, Degrees(dp=2)), fold))


# Together ------------------------------------------------------------------------------------------------------------

DEEP, TIED = model(Sizes(layers=8)), model(tied=True)
STAGES = {"pp": 2, "dp": 2, "microbatches": 4}
COMBINATIONS: dict[str, Degrees] = {
    "split_backward_shards": Degrees(**STAGES, zero=2, schedule="zbv", vp=2),
    "many_gathered_stages": Degrees(**STAGES, zero=1, schedule="interleaved", vp=4, split="spread"),
    "again_in_halves": Degrees(**STAGES, recompute="full", schedule="zb-h1"),
    "waiting_blocks": Degrees(dp=4, recompute="full", offload="activations"),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_cannot_be_had_together_is_refused_and_a_line_allows_it(name: str) -> None:
    decisions = template(DEEP, COMBINATIONS[name])
    assert [what for what, found_in in COMBINED.items() if found_in(decisions, DEEP)] == [name]
    assert {type(one) for one in TORCH_CUDA.refusals(decisions, DEEP)} == {CombinationNotExpressible}
    can = replace(TORCH_CUDA, combined=(Line(name, "tried"),))
    assert not list(can.refusals(decisions, DEEP))


def test_stages_of_different_meshes() -> None:
    decisions = template(FOLD, Degrees(pp=2, tp=2, microbatches=2))
    *others, last = decisions.stages
    unlike = replace(decisions, stages=(*others, replace(last, mesh=Mesh((MeshAxis("dp", 2),)))))
    assert COMBINED["different_meshes"](unlike, FOLD) == "2 meshes in one pipeline"


def test_what_stages_of_different_meshes_are_not_emitted_with() -> None:
    def beside(fold: Fold, *degrees: Degrees, schedule: str = "1f1b") -> str:
        plan = over_parts(fold, neighbours(*degrees), (2,) * len(degrees), Schedule(schedule, 4), "any")
        return COMBINED["beside_different_meshes"](plan, fold)

    one, cut = Degrees(), Degrees(tp=2)
    fold = model(Sizes(layers=4))
    assert not beside(fold, one, cut)
    assert not beside(fold, Degrees(dp=2, zero=3), Degrees(dp=2, tp=2, sequence_parallel=True))
    assert "schedule zb-h1" in beside(fold, one, cut, schedule="zb-h1")
    assert "axis cp as" in beside(fold, one, Degrees(cp=2))
    assert "cut the batch" in beside(fold, one, Degrees(dp=4, shard=2, zero=3))
    tied = model(Sizes(layers=6), tied=True)
    assert not beside(tied, one, cut, one)
    ends, path = (0, 7), "embed.weight"
    vars(tied)["tied"] = ((path, tuple((number, path) for number in (*ends, 3))),)
    assert "embed.weight, which 3 stages hold" in beside(tied, one, cut, one)
    vars(tied)["tied"] = tuple((name, tuple((number, name) for number in ends)) for name in (path, "norm.weight"))
    assert "2 parameters of several stages" in beside(tied, one, cut, one)
    plan = over_parts(model(Sizes(layers=6)), neighbours(one, cut, one), (2, 2, 2), Schedule("1f1b", 4), "any")
    first, second, third = plan.stages
    twice = replace(plan, stages=(first, second, replace(third, ranks=first.ranks)))
    assert "several stages per rank" in COMBINED["beside_different_meshes"](twice, model(Sizes(layers=6)))
    sp = Degrees(tp=2, sequence_parallel=True)
    assert not beside(fold, one, sp)
    assert "a loss that is taken of each rank's tokens" in beside(model(Sizes(layers=4, vocab=15)), one, sp)


@pytest.mark.parametrize(
    ("degrees", "refused"),
    [
        (Degrees(cp=2), "axis cp as"),
        (Degrees(dp=4, zero=3, shard=2), ""),
        (Degrees(dp=2, tp=2, sequence_parallel=True), ""),
        (Degrees(cp=2, zero=1), ""),
    ],
    ids=str,
)
def test_what_is_cast_is_copied_along_one_axis_of_batches_alone(degrees: Degrees, refused: str) -> None:
    decisions = template(FOLD, degrees)
    assert refused in CAST["cast_copies"](decisions, FOLD)
    assert bool(CAST["cast_copies"](decisions, FOLD)) == bool(refused)
    mixed, low = (Workload(global_batch=8, seq=16, precision="bf16", recipe=recipe) for recipe in ("fsdp", "bf16"))
    assert bool([*TORCH_CUDA.refusals(decisions, FOLD, mixed)]) == bool(refused)
    assert not [*TORCH_CUDA.refusals(decisions, FOLD, low)]


def test_shards_beside_a_shared_parameter() -> None:
    def refused(decisions: Decisions, fold: Fold = TIED) -> set[type[NotExpressible]]:
        return {type(one) for one in TORCH_CUDA.refusals(decisions, fold)}

    stages = Degrees(dp=2, pp=2, zero=3, microbatches=2, schedule="1f1b")
    assert refused(template(TIED, stages)) == set()
    both_ends = Degrees(dp=2, pp=2, vp=2, zero=1, microbatches=4, schedule="zbv")
    assert refused(template(TIED, both_ends)) == set()
    whole = template(TIED, Degrees(dp=2, zero=3))
    assert refused(whole) == set()
    embed, *others = whole.plans
    unlike = replace(whole, plans=(replace(embed, storage=()), *others))
    assert refused(unlike) == {CombinationNotExpressible}
    layers = len(layer_calls(TIED))
    meshes = over_parts(TIED, neighbours(stages, Degrees()), (1, layers - 1), Schedule("1f1b", 2), "torch-cuda")
    assert refused(meshes) == set()


@pytest.mark.parametrize(("degrees", "refused"), [(Degrees(dp=2), False), (Degrees(dp=2, zero=3), True)], ids=str)
def test_what_is_not_trained_is_cast_where_nothing_is_in_shards(degrees: Degrees, refused: bool) -> None:
    lora = capture(load_model(f"{Path(__file__).parents[2] / 'examples' / 'lora_llama.py'}:tiny"), batch=2, seq=16).fold
    decisions = template(lora, degrees)
    assert bool(CAST["cast_untrained"](decisions, lora)) == refused
    assert not CAST["cast_untrained"](template(FOLD, degrees), FOLD)
    for recipe, cast in (("fsdp", refused), ("bf16", False)):
        workload = Workload(global_batch=2, seq=16, precision="bf16", recipe=recipe)
        found = [one for one in TORCH_CUDA.refusals(decisions, lora, workload) if "not trained" in str(one)]
        assert bool(found) == cast
