"""What is written: short, clean scripts of stock JAX, and refusals of what no code is written for."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.door import backend
from meshwright.backends.jax_ import door
from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.emit import accumulation, views
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.emit.printed.bodies import common_end
from meshwright.backends.jax_.emit.recompute import again, cheaply
from meshwright.backends.jax_.emit.shardings import Constraint, Shardings
from meshwright.backends.jax_.emit.tables import pattern, written
from meshwright.backends.results import Files
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit import emit as torch_emit
from meshwright.ir.analysis.weights import Step, Weight
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import (
    CombinationNotExpressible,
    DependencyMissing,
    EmissionLoss,
    EmissionModel,
    EmissionModule,
    EmissionRecompute,
    EmissionSoftware,
    EmissionStorage,
    EmissionTarget,
    NotExpressible,
)
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import BodyProgram, Move
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.reshard import Step as Moved
from meshwright.ir.target.combined import several_uses
from meshwright.ir.target.workload import STACKS
from tests.backends.jax_.planned import LLAMA, WORKLOAD, ZOO, model, subject
from tests.backends.torch_.emitted import unclean

TINY = f"{LLAMA}:tiny"
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    (TINY, {"dp": 2, "tp": 4, "zero": 1}),
    (f"{LLAMA}:tiny_scan", {"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 3}),
    (f"{ZOO}/nnx_.py:gpt", {"dp": 8, "microbatches": 2}),
    (f"{ZOO}/linen.py:scanned", {"dp": 2, "tp": 2}),
    (f"{ZOO}/equinox_.py:gpt", {"dp": 8, "recompute": "full"}),
)
PRINTED: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{LLAMA}:tiny_scan", {"cp": 2, "context": "ring", "zigzag": True, "zero": 1}),
    (f"{LLAMA}:tiny_scan", {"dp": 2, "tp": 2, "recompute": "full_layers:1", "microbatches": 2}),
)


@pytest.mark.slow
def test_scripts_are_short_and_clean(tmp_path: Path) -> None:
    for number, (reference, degrees) in enumerate(PLANS):
        emit(subject(reference, **degrees), tmp_path / str(number)).write(tmp_path / str(number))
    for file in tmp_path.rglob("*.py"):
        text = file.read_text()
        assert "meshwright" not in text
        assert len(text.splitlines()) <= (150 if file.name == "train.py" else 240)
    assert unclean(tmp_path, types=False) == ""


@pytest.mark.slow
def test_printed_scripts_are_clean(tmp_path: Path) -> None:
    for number, (reference, degrees) in enumerate(PRINTED):
        folder = tmp_path / str(number)
        emit(subject(reference, **degrees), folder).write(folder)
        text = (folder / "train_shardings.py").read_text()
        assert "meshwright" not in text
        assert "def blocks_forward(params: Params, x: Array)" in text
        assert len(text.splitlines()) <= 400
    assert unclean(tmp_path, types=False) == ""


def test_what_parts_of_a_model_sum_otherwise_each_sums_where_it_reads_it(tmp_path: Path) -> None:
    """A table that an encoder reads by whole sequences, and a decoder by parts."""
    text = dict(emit(subject(f"{ZOO}/translation.py:build", cp=2), tmp_path).texts)["train_shardings.py"]
    assert text.count('copy_to(params["table"], "cp")') == 1
    assert '"table": lambda grad: grad' in text


def test_sums_that_all_end_with() -> None:
    """Of a parameter that two parts read, by the steps of each."""
    over_cp, over_dp = Moved("all_reduce", ("cp",)), Moved("reduce_scatter", ("dp",), 0)
    assert common_end([(over_cp, over_dp), (over_dp,)]) == (over_dp,)
    assert common_end([(over_cp, over_dp), (over_dp, over_cp)]) == ()
    assert common_end([(over_cp, over_dp)] * 2) == (over_cp, over_dp)


def test_the_same_plan_is_the_same_text(tmp_path: Path) -> None:
    reference, degrees = PLANS[1]
    assert emit(subject(reference, **degrees), tmp_path) == emit(subject(reference, **degrees), tmp_path)


def test_stacked_parameters_are_cut_behind_their_layers(tmp_path: Path) -> None:
    """`[layers, width, heads]`: stored in shards of FSDP and columns, gathered in the loop along data alone."""
    found = Shardings(subject(f"{LLAMA}:tiny_scan", dp=2, tp=2, zero=3))
    assert written(found.params["blocks.attention.q_proj"].stored) == 'P(None, "dp", "tp")'
    scan = model(f"{LLAMA}:tiny_scan")[1].places
    assert scan is not None
    at, path = scan.scans["blocks"].operands["attention.q_proj"]
    assert path == "blocks.attention.q_proj"
    assert written(found.gathered_again[f"{scan.scans['blocks'].place}@{at}"]) == 'P(None, "tp")'


def test_blocks_that_are_written_out_are_told_once() -> None:
    (block,) = Shardings(subject(TINY, dp=8)).blocks
    assert len(block.begins) == 4
    assert len({after - before for before, after in zip(block.begins, block.begins[1:], strict=False)}) == 1


def test_specs_and_paths_as_code() -> None:
    assert written(()) == "P()"
    assert written((("dp",), (), ("tp", "cp"))) == 'P("dp", None, ("tp", "cp"))'
    assert pattern("blocks.10.w1.0") == "blocks.*.w1.*"


def test_names_of_the_user_are_quoted(tmp_path: Path) -> None:
    plan = subject(TINY, dp=8)
    calls = replace(plan.calls, factory='x"); import os; ("', file=Path('/tmp/a"b\\.py'))
    (_, text), _ = emit(replace(plan, calls=calls, config='"""boom'), tmp_path).texts
    compile(text, "train.py", "exec")
    assert not re.search(r"^\s*import os", text, flags=re.MULTILINE)


def test_what_no_code_is_written_for_is_refused(tmp_path: Path) -> None:
    plan = subject(TINY, dp=8)
    with pytest.raises(EmissionModel, match="no model of JAX"):
        emit(replace(plan, calls=replace(plan.calls, places=None, invoked=None)), tmp_path)
    with pytest.raises(EmissionModel, match="no torch model"):
        torch_emit(plan, tmp_path)
    with pytest.raises(EmissionSoftware, match="style eager"):
        door.check_software(replace(WORKLOAD, stack=STACKS["torch"]), "jax-cpu", "eager")
    with pytest.raises(EmissionSoftware, match="optimizer sgd"):
        door.check_software(replace(WORKLOAD, optimizer="sgd"), "jax-cpu", "xla")


def test_micro_batches_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmissionLoss, match="no parts"):
        emit(subject(f"{ZOO}/plain.py:gshard_balanced", dp=2, microbatches=2), tmp_path)
    plan = subject(TINY, dp=2, microbatches=2)
    body = next(one for one in plan.program.bodies if one.body == "head")
    summed = next(one for one in body.forward if isinstance(one, Move) and one.step.axes == ("dp",))
    whole = replace(summed, operand=body.inputs[0])
    head = replace(body, forward=(*body.forward, whole))
    with pytest.raises(EmissionModule, match="copies exchange it"):
        accumulation.check(with_body(plan, head), ("dp",))
    head = replace(body, forward=(*body.forward, replace(summed, reason="sync")))
    with pytest.raises(EmissionStorage, match="other gradients once"):
        accumulation.check(with_body(plan, head), ("dp",))
    padded = Weight("count", "labels", (Step("pad", (("pad", (0, 1)), ("value", -100))),))
    with pytest.raises(EmissionLoss, match="padded"):
        accumulation.counted_in(padded)


def with_body(plan: Subject, body: BodyProgram) -> Subject:
    """The plan with one body's program in place of that of its name."""
    bodies = tuple(body if one.name == body.name else one for one in plan.program.bodies)
    return replace(plan, program=replace(plan.program, bodies=bodies))


def test_micro_batches_are_added_up_as_the_plan_sums_gradients() -> None:
    """Norms under sequence parallelism: summed along the tensor axis in every micro-batch, over copies once."""
    plan = subject(f"{LLAMA}:tiny_scan", dp=2, tp=2, sequence_parallel=True, microbatches=2)
    body = next(one for one in plan.program.bodies if one.body == "blocks")
    each, once = (
        {one.step.axes for one in part if isinstance(one, Move) and one.reason == "sync"}
        for part in (body.backward, body.sync)
    )
    assert (each, once) == ({("tp",)}, {("dp",)})
    assert Shardings(plan).form == accumulation.ONCE
    assert Shardings(subject(TINY, dp=2, zero=2, microbatches=2)).form == accumulation.EACH
    assert Shardings(subject(TINY, dp=2)).form == ""


def test_blocks_are_computed_again_from_their_first_equation_to_their_last() -> None:
    """A scan's body is one; blocks that are written out lie side by side, from before their first norm."""
    assert list(again(Shardings(subject(f"{LLAMA}:tiny_scan", dp=2, recompute="full"))).values()) == [None]
    found = again(Shardings(subject(TINY, dp=2, recompute="full")))
    spans = [(int(first), last) for first, last in found.items()]
    assert len(spans) == 4
    assert len({last - first for first, last in spans[1:] if last is not None}) == 1  # the first makes a table for all
    assert [first for first, _ in spans[1:]] == [last for _, last in spans[:-1]]
    (block,) = Shardings(subject(TINY, dp=2, recompute="full")).blocks
    assert all(first < begin for (first, _), begin in zip(spans, block.begins, strict=True))
    few = Shardings(subject(TINY, dp=2, recompute="full_layers:3"))
    assert again(few) == found
    assert cheaply(few) == {str(spans[-1][0])}
    assert cheaply(Shardings(subject(TINY, dp=2))) == set(found) == set(again(Shardings(subject(TINY, dp=2))))


def test_recomputation_that_is_no_span_of_equations_is_printed() -> None:
    """Two blocks of a scan are one loop, and the others another; blocks in one equation have functions of their own."""
    plan = subject(f"{LLAMA}:tiny_scan", dp=2, recompute="full_layers:2")
    with pytest.raises(EmissionRecompute, match="all of its blocks again, or none"):
        again(Shardings(plan))
    code = texts_of(plan)["train_shardings.py"]
    assert re.findall(r"rows\[\d:\d\]", code) == ["rows[0:2]", "rows[2:4]"]
    assert code.count("jax.checkpoint(blocks_forward)") == 1
    plan = subject(f"{ZOO}/plain.py:gshard_scan", dp=2, recompute="full")
    kept = tuple(replace(one, recompute=()) if one.body == "layers.2" else one for one in plan.decisions.plans)
    with pytest.raises(EmissionRecompute, match="some of its blocks again, and others not"):
        again(Shardings(replace(plan, decisions=replace(plan.decisions, plans=kept))))
    plan = subject(TINY, dp=2, recompute="full")
    places = plan.calls.places
    assert places is not None
    joined = replace(places, spans=dict.fromkeys(places.spans, (1, 9)))
    code = texts_of(replace(plan, calls=replace(plan.calls, places=joined)))["train_shardings.py"]
    assert code.count("jax.checkpoint(blocks_forward)") == 4
    parts = tuple(replace(one, recompute=("x",)) if one.body == "head" else one for one in plan.decisions.plans)
    with pytest.raises(EmissionRecompute, match="it is no block"):
        again(Shardings(replace(plan, decisions=replace(plan.decisions, plans=parts))))


def texts_of(plan: Subject) -> dict[str, str]:
    """The files of a plan, by name."""
    return dict(emit(plan, Path()).texts)


def test_keys_are_gathered_where_attention_meets_them() -> None:
    """Attention has its dimensions in another order than the trace; what it reads is pinned before, keys and values
    whole along the sequence, queries in shards."""
    pins = Shardings(subject(f"{LLAMA}:tiny_scan", cp=2)).values.values()
    gathered = sorted(one.value for one in pins if Constraint((), None) in one.constraints)
    assert gathered == ["add_2", "view_3"]
    assert all(one.constraints[0] == Constraint(((), ("cp",)), ((), ("cp",))) for one in pins)


def test_heads_are_exchanged_where_an_equation_makes_what_attention_reads_or_leaves() -> None:
    """Queries, keys and values by heads, then what attention leaves by tokens: four exchanges, of as many values that
    are made with their dimensions in another order, or scaled."""
    for reference in (f"{LLAMA}:tiny", f"{ZOO}/nnx_.py:gpt"):
        (block,) = Shardings(subject(reference, cp=2, context="ulysses")).blocks
        moved = [one.constraints for one in block.pins.values() if len(one.constraints) == 2]
        cut = [[[at for at, axes in enumerate(one.value or ()) if axes] for one in pair] for pair in moved]
        assert sorted(cut) == [[[1], [2]]] * 3 + [[[2], [1]]]


def test_a_cut_is_carried_to_where_its_loop_stands_first() -> None:
    """Heads before what they hold, and joined with it; what stands second in a dimension has no even part there."""
    sizes = {"tp": 2, "cp": 16}
    there = views.apart([(16,), (8, 4)])
    back = views.Step(there.made, there.given)
    assert there.carried(((), ("tp",)), sizes) == ((), ("tp",))
    assert back.carried(((), ("tp",)), sizes) == ((), ("tp",))
    assert back.carried(((), (), ("tp",)), sizes) is None
    assert there.carried(((), ("cp",)), sizes) is None


def test_moves_that_tables_cannot_say_are_printed() -> None:
    plan = subject(f"{ZOO}/plain.py:decoder", cp=2, context="ulysses")
    with pytest.raises(EmissionModule, match="no traced equation makes it"):
        Shardings(plan).check()
    assert texts_of(plan)["train_shardings.py"].count("exchange(") > 4
    plan = subject(f"{LLAMA}:tiny_scan", dp=2, cp=2)
    (head,) = (one for one in plan.decisions.plans if one.body == "head")
    whole = tuple((op, strategy if op in ("linear", "rms_norm") else Strategy()) for op, strategy in head.strategies)
    plans = tuple(replace(one, strategies=whole) if one is head else one for one in plan.decisions.plans)
    decisions = replace(plan.decisions, plans=plans)
    program = lower(plan.fold, decisions, JAX_CPU.lowering().for_stack(WORKLOAD.stack), WORKLOAD)
    with pytest.raises(EmissionModule, match="2 steps whose order XLA chooses"):
        Shardings(replace(plan, decisions=decisions, program=program)).check()


@pytest.mark.parametrize(
    ("reference", "cut", "whole", "why"),
    [
        (f"{ZOO}/plain.py:ssm", {"cp": 2}, {"tp": 2}, "a length that devices do not divide"),
        (f"{ZOO}/images.py:small", {"tp": 2}, {"dp": 2}, "channels or pixels are cut"),
    ],
    ids=["slices", "convolutions"],
)
def test_what_xla_cuts_otherwise_is_printed(
    reference: str, cut: dict[str, Any], whole: dict[str, Any], why: str
) -> None:
    """XLA's partitioner fails on slices of odd lengths, and exchanges channels of convolutions as it likes."""
    with pytest.raises(EmissionModule, match=why):
        Shardings(subject(reference, **cut)).check()
    Shardings(subject(reference, **whole)).check()


@pytest.mark.parametrize(
    "degrees",
    [
        {"pp": 2, "microbatches": 2, "schedule": "zb-h1"},
        {"dp": 8, "recompute": "selective"},
    ],
    ids=str,
)
def test_what_capabilities_lack_is_refused(degrees: dict[str, Any]) -> None:
    with pytest.raises(NotExpressible):
        subject(TINY, **degrees)


def test_a_rank_of_one_program_has_nothing_of_its_own(tmp_path: Path) -> None:
    plan = subject(TINY, dp=8)
    assert backend("jax-cpu") is door
    with pytest.raises(EmissionTarget, match="none runs alone"):
        next(door.each_alone(plan, tmp_path, limit_s=1.0))
    assert not door.by_rank()
    files = Files((("train.py", ""),), start="train.py")
    assert door.with_hosts(files, "jax-cpu", []) == files
    assert not door.on_hosts("jax-cpu", [])


def test_programs_are_lowered_as_xla_runs_them_on_cpus() -> None:
    """Of a block under tensor parallelism: attention and MLP are summed forward; backward what each of q, k, v, gate
    and up leaves, by itself. Parameters in shards are gathered in both."""
    plan = subject(TINY, dp=2, tp=2, zero=3)
    body = next(one for one in plan.program.bodies if one.body == "blocks")
    forward = [one.reason for one in body.forward if isinstance(one, Move) and not one.step.free]
    backward = [one.reason for one in body.backward if isinstance(one, Move) and not one.step.free]
    assert (forward.count("value"), backward.count("gradient")) == (2, 5)
    assert (forward.count("parameter"), backward.count("parameter")) == (9, 9)


def test_an_axis_has_one_use() -> None:
    """A plan in which blocks use the axes the other way round."""
    plan = subject(TINY, dp=2, tp=2)
    other = {"dp": "tp", "tp": "dp"}

    def turned(one: BodyPlan) -> BodyPlan:
        pairs = ((op, Strategy(tuple((other[axis], what) for axis, what in s.choices))) for op, s in one.strategies)
        return replace(one, strategies=tuple(pairs)) if one.body == "blocks" else one

    decisions = replace(plan.decisions, plans=tuple(map(turned, plan.decisions.plans)))
    assert several_uses(plan.decisions, plan.fold) == ""
    apart = subject(TINY, cp=2)
    assert several_uses(apart.decisions, apart.fold) == ""
    assert several_uses(decisions, plan.fold) == "axis dp as dp and tp"
    assert not [one for one in JAX_CPU.refusals(decisions, plan.fold) if isinstance(one, CombinationNotExpressible)]
    with pytest.raises(EmissionModule, match="axis dp as dp and tp"):
        Shardings(replace(plan, decisions=decisions)).check()


@pytest.mark.parametrize("found", ["0.7.2", None], ids=str)
def test_jax_that_is_missing_or_too_old_is_told(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(door, "version", version)
    with pytest.raises(DependencyMissing, match=r"meshwright\[jax\]"):
        door.check_installed()
