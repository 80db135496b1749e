"""What mesh axes are for: the model's own code runs where they cut the batch alone; printed code is for more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.printed.axes import axes_of, printed_axes
from meshwright.backends.torch_.emit.read.axes import Axes, cuts_more
from meshwright.ir.program.program import Add, Move
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.reshard import Step
from tests.backends.torch_.small import planned, subject

Exchange = tuple[str, str, str, int]
"""Of a block: an operand, why it is moved, over which axes, and how many elements it has."""


def exchanging(*backward: Exchange, forward: tuple[Exchange, ...] = ()) -> Subject:
    """A plan of copies, whose block moves these in its passes; nothing else of it moves anything."""
    plan = subject(dp=2)

    def moves(several: tuple[Exchange, ...]) -> list[Any]:
        made = [Move(Step("all_gather", tuple(axes.split("."))), one, "moved", why) for one, why, axes, _ in several]
        return [Add(("a", "b"), "c"), *made]

    held = {one: number for one, _, _, number in (*backward, *forward)}
    none: Any = SimpleNamespace(forward=[], backward=[], elements={})
    own: Any = SimpleNamespace(forward=moves(forward), backward=moves(backward), elements=held)
    plan.__dict__["bodies"] = {name: own if name == "block" else none for name in plan.bodies}
    return plan


def test_the_models_own_code_runs_where_scalars_and_parameters_travel() -> None:
    for exchange in [
        ("res1", "value", "dp", 1),
        ("res1", "parameter", "dp", 2),
        ("dres1", "sync", "dp", 2),
    ]:
        assert not cuts_more(exchanging(exchange)), exchange
        assert not cuts_more(exchanging(forward=(exchange,))), exchange


def test_what_exchanges_a_value_of_two_elements_is_printed() -> None:
    for exchange in [
        ("res1", "value", "dp", 2),
        ("dres1", "gradient", "dp", 2),
        ("res1@moved", "value", "tp.dp", 3),
    ]:
        assert cuts_more(exchanging(exchange)), exchange
        assert cuts_more(exchanging(forward=(exchange,))), exchange
        assert cuts_more(exchanging(("x", "value", "dp", 1), exchange)), exchange


def test_axes_that_cut_more_than_the_batch_and_stages_are_printed() -> None:
    for degrees, more in [
        ({"dp": 2}, False),
        ({"dp": 4, "shard": 2, "zero": 3}, False),
        ({"tp": 2}, True),
        ({"cp": 2, "dp": 2}, True),
        ({"pp": 2, "microbatches": 2, "schedule": "gpipe"}, True),
    ]:
        assert cuts_more(subject(**degrees)) == more, degrees


def test_what_axes_are_for_is_the_same_where_a_plan_is_printed_that_need_not_be() -> None:
    for degrees in ({"dp": 2}, {"dp": 4, "shard": 2, "zero": 3}):
        plan = subject(**degrees)
        assert axes_of(replace(plan, prints=True)) == axes_of(plan), degrees


MLP = ("gate", "act", "up", "prod", "down")


def meshed(mesh: str, *, other: str = "tp") -> Subject:
    """Tensor parallelism on a mesh with more axes, one of which cuts feed-forward parts."""
    plan = subject(tp=2)

    def along(op: str, strategy: Strategy) -> Strategy:
        return replace(strategy, choices=tuple((other if op in MLP else axis, how) for axis, how in strategy.choices))

    plans = tuple(
        replace(one, strategies=tuple((op, along(op, strategy)) for op, strategy in one.strategies))
        for one in plan.decisions.plans
    )
    wide = Mesh.parse(mesh)
    stages = tuple(replace(one, mesh=wide, ranks=tuple(range(wide.size))) for one in plan.decisions.stages)
    return planned(plan.fold, replace(plan.decisions, plans=plans, stages=stages))


def test_of_several_axes_that_cut_parameters_the_innermost_is_the_tensor_axis() -> None:
    """An axis of one rank is for nothing."""
    assert printed_axes(meshed("tp=2 alone=1"))[0] == Axes((), "tp")
    axes, copies = printed_axes(meshed("tp=2 other=2", other="other"))
    assert axes == Axes((), "other", ("tp",))
    assert copies.of_apart["block", "attn.k.weight"] == ("tp",)
