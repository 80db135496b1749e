"""What mesh axes are for by how bodies use them, and which uses are refused; what a data axis may exchange."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.emit.axes import Axes, axes_of
from meshwright.backends.torch_.emit.subject import Subject
from meshwright.ir.errors import EmissionAxis
from meshwright.ir.program import Add, Move
from meshwright.ir.reshard import Step
from tests.backends.torch_.small import subject

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


def test_over_a_data_axis_scalars_and_parameters_travel() -> None:
    for exchange in [
        ("res1", "value", "dp", 1),
        ("res1", "value", "tp", 2),
        ("res1", "parameter", "dp", 2),
        ("dres1", "sync", "dp", 2),
    ]:
        assert axes_of(exchanging(exchange)) == Axes(("dp",), None), exchange
        assert axes_of(exchanging(forward=(exchange,))) == Axes(("dp",), None), exchange


def test_over_a_data_axis_no_value_of_two_elements_travels() -> None:
    for exchange in [
        ("res1", "value", "dp", 2),
        ("dres1", "gradient", "dp", 2),
        ("res1@moved", "value", "tp.dp", 3),
    ]:
        for plan in (
            exchanging(exchange),
            exchanging(forward=(exchange,)),
            exchanging(("x", "value", "dp", 1), exchange),
        ):
            with pytest.raises(EmissionAxis, match="axis dp is data parallel, and this body exchanges values over it"):
                axes_of(plan)


def named(monkeypatch: pytest.MonkeyPatch, **names: str) -> Subject:
    """A plan whose axes are used so: names for each, of its three bodies or of all of them."""
    found = {axis: [word.strip() for word in text.split(",")] for axis, text in names.items()}
    plan = exchanging()
    bodies = [piece.plan.body for piece in plan.pieces]

    def name_of(used: Any, graph: object, loops: object, axis: str) -> str:
        return found[axis][bodies.index(used.body) % len(found[axis])]

    monkeypatch.setattr("meshwright.ir.names.words.name_of", name_of)
    made: Any = SimpleNamespace(
        mesh=SimpleNamespace(names=tuple(names)), pieces=plan.pieces, bodies=plan.bodies, fold=plan.fold
    )
    return made  # type: ignore[no-any-return]


USED: list[tuple[dict[str, str], Axes]] = [
    ({"a": "dp", "b": "tp"}, Axes(("a",), "b")),
    ({"a": "dp", "b": "dp"}, Axes(("a", "b"), None)),
    ({"a": "dp", "b": "ep"}, Axes(("a", "b"), None, None, ("b",))),
    ({"a": "dp, ep, dp"}, Axes(("a",), None, None, ("a",))),
    ({"a": "cp"}, Axes((), None, "a")),
    ({"a": "cp, cp (ring), cp"}, Axes((), None, "a")),
    ({"a": "cp, cp (ulysses)+ep, cp"}, Axes((), None, "a", ("a",))),
    ({"a": "cp, -, cp"}, Axes((), None, "a")),
    ({"a": "cp, tp+sp, tp"}, Axes((), "a")),
    ({"a": "-, tp, -"}, Axes((), "a")),
    ({"a": "channels"}, Axes((), "a")),
    ({"a": "-, channels, cp"}, Axes((), "a")),
    ({"c": "cp", "b": "dp", "t": "tp+sp"}, Axes(("b",), "t", "c")),
]


def test_what_names_say_of_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor axis may cut tokens in bodies with nothing else; all bodies together decide."""
    for names, expected in USED:
        assert axes_of(named(monkeypatch, **names)) == expected, names


REFUSED: list[tuple[dict[str, str], str, str, str]] = [
    ({"a": "dp, tp, dp"}, "axis a", "it is used as dp and tp, which is not emitted yet", "plan with --fix tp=1"),
    (
        {"a": "tp+ep"},
        "axis a",
        "it is used as tp+ep, which is not emitted yet",
        "plan with --fix tp=1, or with --fix ep=1",
    ),
    ({"a": "dp, cp, cp"}, "axis a", "it is used as cp and dp, which is not emitted yet", "plan with --fix cp=1"),
    (
        {"a": "channels+ep, cp+ep, cp"},
        "axis a",
        "it is used as channels+ep and cp and cp+ep",
        "plan with --fix cp=1, or with --fix ep=1",
    ),
    (
        {"a": "tp", "b": "tp+sp"},
        "axes a and b",
        "they are all tensor parallel, and one such axis",
        "plan with --fix tp=1",
    ),
    (
        {"a": "cp", "b": "cp (ring)"},
        "axes a and b",
        "they all cut sequences, and one such axis",
        "plan with --forbid shard",
    ),
]


def test_uses_that_no_code_is_written_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for names, place, cause, fix in REFUSED:
        with pytest.raises(EmissionAxis) as refused:
            axes_of(named(monkeypatch, **names))
        assert (refused.value.place, refused.value.fix) == (place, fix), names
        assert refused.value.cause.startswith(cause), names
    with pytest.raises(EmissionAxis, match="it is used as -, which is not emitted yet"):
        axes_of(named(monkeypatch, a="-"))
