"""Which modules of a small mixture an axis cuts in themselves or apart, read off states that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.emit.cut_experts import CutExperts, cut_experts_of
from meshwright.backends.torch_.emit.experts import Experts, Routed, exchanged, experts_of, limited_in
from meshwright.backends.torch_.emit.subject import Piece
from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.errors import EmissionAxis, EmissionModule
from meshwright.ir.fold import FromInput, Segment
from meshwright.ir.mesh import Mesh
from meshwright.ir.program import Add, Move
from meshwright.ir.reshard import Step
from tests.build import Builder

OWN = {"norm": "tp=d1", "gate": "tp=d1", "top": "tp=d1", "send": "tp=t1", "bring": "tp=t1", "end": "tp=d1"}
"""Strategies where every rank runs on its own tokens around experts."""
INSIDE = {"up": "tp=n", "act": "tp=d2", "down": "tp=k"}
SHARED = {"wide": "tp=n", "narrow": "tp=k"}
CUT = OWN | INSIDE | SHARED
GROUPS = {"groups": (2, 2)}
"""Two samples of four tokens, of which runs of two share slots."""


class Mixture(Builder):
    """A norm, a router, four experts of two products and one that all tokens run through; 8 wide, 16 inside."""

    def __init__(
        self,
        *,
        place: str = "moe",
        routing: Mapping[str, Any] | None = None,
        extra: bool = False,
        back: str = "experts",
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.names: dict[str, str] = {}
        self.place = f"{place}." if place else ""
        x = self.input((2, 4, 8), requires_grad=True)
        how = {"num_experts": 4, "capacity": 4} | dict({"dropless": True} if routing is None else routing)
        held = f"{self.place}experts"
        h = self.run("norm", "rms_norm", x, self.param("norm.weight", (8,)), module="norm", eps=1e-6)
        if dense:
            self.output(h)
            return
        gate = self.param(f"{self.place}gate.weight", (4, 8))
        scores = self.run("gate", "linear", h, gate, module=f"{self.place}gate")
        w, idx = self.many("topk", scores, k=2, dim=2, module=self.place.rstrip("."))
        self.names["top"] = w
        rows = self.run("send", "dispatch", h, idx, module=held, **how)
        if extra:
            scale = self.param(f"{held}.scale", (1, 1, 8))
            rows = self.run("scale", "mul", rows, scale, module=held)
        hidden = self.run("up", "grouped_linear", rows, self.param(f"{held}.up", (4, 16, 8)), module=held)
        hidden = self.run("act", "silu", hidden, module=held)
        rows = self.run("down", "grouped_linear", hidden, self.param(f"{held}.down", (4, 8, 16)), module=held)
        out = self.run("bring", "combine", rows, idx, w, module=f"{self.place}{back}", **how)
        shared = (
            self.param(f"{self.place}shared.up.weight", (16, 8)),
            self.param(f"{self.place}shared.down.weight", (8, 16)),
        )
        wide = self.run("wide", "linear", h, shared[0], module=f"{self.place}shared.up")
        narrow = self.run("narrow", "linear", wide, shared[1], module=f"{self.place}shared.down")
        self.output(out, narrow)

    def run(self, name: str, kind: str, *operands: str, **keywords: Any) -> str:
        self.names[name] = self.op(kind, *operands, **keywords)
        return self.names[name]

    def piece(self, strategies: Mapping[str, str]) -> Piece:
        chosen = tuple(
            (self.names[name], Strategy.parse(one)) for name, one in strategies.items() if name in self.names
        )
        segment = Segment(("block",), ("blocks.0",), (FromInput("x"),), ((FromInput("x"),),))
        return Piece(segment, BodyPlan(name="mixed", body="block", strategies=chosen), None, self.graph())


def read(
    mixture: Mixture,
    strategies: Mapping[str, str],
    *,
    arguments: tuple[str | None, ...] = ("blocks.0.norm",),
    keywords: Mapping[str, str] | None = None,
) -> CutExperts:
    path = f"blocks.0.{mixture.place}".rstrip(".")
    calls = SimpleNamespace(arguments={path: arguments}, keywords={path: keywords or {}})
    subject: Any = SimpleNamespace(mesh=Mesh.parse("tp=2"), calls=calls)
    return cut_experts_of(subject, mixture.piece(strategies), "tp")


MODULES = {"moe.experts": {"up": 1, "down": 2}}


def test_experts_that_run_among_own_tokens() -> None:
    """Of weights [experts, out, in] the first product is cut along its outputs, the second along its inputs."""
    assert read(Mixture(), CUT) == CutExperts(MODULES, ("moe",), ("moe.gate",), ("moe.shared",))
    assert read(Mixture(routing=GROUPS), CUT) == CutExperts(
        MODULES, ("moe",), ("moe.gate",), ("moe.shared",), limited=("moe.experts",)
    )


def test_slots_that_are_those_of_all_ranks_are_joined() -> None:
    """Tokens are dispatched whole, of values that are made in parts."""
    whole = {name: one for name, one in CUT.items() if name not in ("send", "bring")}
    found = read(Mixture(routing=GROUPS), whole)
    assert found == CutExperts(MODULES, ("moe",), ("moe.gate",), ("moe.shared",), ("moe.experts",), ("moe.experts",))


def test_experts_among_copies_have_nothing_around_them() -> None:
    assert read(Mixture(), INSIDE) == CutExperts(MODULES)
    assert read(Mixture(), {}) == CutExperts()
    assert read(Mixture(routing=GROUPS), {}) == CutExperts()
    apart = {"up": "tp=e", "act": "tp=d0", "down": "tp=e"}
    assert read(Mixture(), apart) == CutExperts()


def test_what_such_a_module_holds() -> None:
    """Itself, what is in it, and what runs on own tokens; not what all tokens run through."""
    found = read(Mixture(), CUT)
    held = {
        "moe": True,
        "moe.gate": True,
        "moe.experts": True,
        "moe.experts.inner": True,
        "moe.shared": False,
        "moe.shared.up": False,
        "moe.sharedness": True,
        "moeller": False,
        "norm": False,
        "": False,
    }
    assert {path: found.holds(path) for path in held} == held
    assert [path for path in held if found.shares(path)] == ["moe.shared", "moe.shared.up"]
    assert read(Mixture(), INSIDE).holds("moe.experts")
    assert not read(Mixture(), INSIDE).holds("moe.gate")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any], str]] = {
    "more than products": ({"extra": True}, CUT, {}, "its module holds more than weights of products that are cut"),
    "slots that all share": ({"routing": {}}, CUT, {}, "tokens of all ranks share slots"),
    "no module around": ({"place": ""}, CUT, {}, "the module around them is not called with one argument"),
    "two arguments": ({}, CUT, {"arguments": ("a", "b")}, "the module around them is not called with one argument"),
    "no argument": ({}, CUT, {"arguments": ()}, "the module around them is not called with one argument"),
    "one by name, too": ({}, CUT, {"keywords": {"b": "b"}}, "the module around them is not called with one argument"),
    "a router of all tokens": (
        {},
        {name: one for name, one in CUT.items() if name != "gate"},
        {},
        "linear does not run on the tokens that each rank of tp has",
    ),
}


def test_experts_that_are_cut_otherwise_are_refused() -> None:
    for what, (made, strategies, given, says) in REFUSED.items():
        with pytest.raises(EmissionModule, match=says) as refused:
            read(Mixture(**made), strategies, **given)
        assert "blocks.0." in refused.value.place, what


# Experts apart ------------------------------------------------------------------------------------------------------

APART = {"norm": "ep=d0", "gate": "ep=d0", "top": "ep=d0", "send": "ep=t0", "up": "ep=e", "act": "ep=d0"}
APART |= {"down": "ep=e", "bring": "ep=t0", "wide": "ep=d0", "narrow": "ep=d0"}
TRAVELS = (("dispatch", "all_to_all", ("ep",)),)


def apart(
    *bodies: tuple[Mixture, Mapping[str, str], tuple[tuple[str, str, tuple[str, ...]], ...]],
    axes: tuple[str, ...] = ("ep",),
    mesh: str = "ep=2",
) -> tuple[Experts, list[Piece]]:
    """The experts of bodies with strategies and moves of values, and the pieces that they are of."""
    pieces = [
        Piece(
            piece.segment, BodyPlan(name=f"plan {n}", body="block", strategies=piece.plan.strategies), None, piece.graph
        )
        for n, piece in enumerate(mixture.piece(strategies) for mixture, strategies, _ in bodies)
    ]
    programs = {
        piece.plan.name: SimpleNamespace(
            forward=[
                Add(("dispatch",), "sum"),
                *(Move(Step(kind, over, 0, 1), operand, "moved") for operand, kind, over in moves),
            ]
        )
        for piece, (_, _, moves) in zip(pieces, bodies, strict=True)
    }
    subject: Any = SimpleNamespace(mesh=Mesh.parse(mesh), pieces=pieces, bodies=programs)
    return experts_of(subject, axes), pieces


def test_experts_that_lie_apart() -> None:
    """Of two bodies with experts, one has a capacity; a body without any is not named."""
    plain, dense, few = Mixture(), Mixture(dense=True), Mixture(routing=GROUPS)
    found, pieces = apart((plain, APART, TRAVELS), (dense, {"norm": "ep=d0"}, ()), (few, APART, TRAVELS))
    first, second = Routed(pieces[0], ("moe.experts",), ()), Routed(pieces[2], ("moe.experts",), ("moe.experts",))
    assert found == Experts(("ep",), (first, second))
    assert [limited_in(piece) for piece in pieces] == [(), (), ("moe.experts",)]
    assert [found.holds(pieces[0], path) for path in ("moe.experts.up", "moe.experts", "moe.gate.weight")] == [
        True,
        False,
        False,
    ]
    assert not found.holds(pieces[1], "moe.experts.up")
    assert exchanged(pieces[0]) == {plain.names["send"], plain.names["down"]}
    assert exchanged(pieces[1]) == set()


def test_rows_travel_along_axes_in_the_order_of_their_exchanges() -> None:
    """Of a mesh of two by two; only exchanges of rows count, those of a moved value too."""
    both = {name: f"{one} cp={one[3:].replace('0', '1')}" for name, one in APART.items()}
    moves = (
        ("rms_norm", "all_to_all", ("other",)),
        ("dispatch", "all_gather", ("another",)),
        ("dispatch", "all_to_all", ("cp",)),
        ("dispatch@moved", "all_to_all", ("ep", "cp")),
    )
    found, _ = apart((Mixture(), both, moves), axes=("ep", "cp"), mesh="ep=2 cp=2")
    assert found.axes == ("cp", "ep")


def test_bodies_whose_rows_travel_in_unlike_orders_are_refused() -> None:
    other = (("dispatch", "all_to_all", ("ep", "cp")),)
    for bodies in [
        ((Mixture(), APART, TRAVELS), (Mixture(), APART, other)),
        ((Mixture(), APART, ()),),
    ]:
        with pytest.raises(EmissionAxis, match="experts are cut apart in several ways"):
            apart(*bodies)


APART_REFUSED: dict[str, tuple[Mixture, Mapping[str, str], str]] = {
    "slots of all ranks": (Mixture(routing={}), APART, "tokens of all ranks share slots"),
    "they come back elsewhere": (
        Mixture(back="after"),
        APART,
        "tokens go to experts and come back in different modules",
    ),
    "in the block itself": (
        Mixture(place="", back=""),
        APART,
        "tokens go to experts and come back in different modules",
    ),
    "a weight that is whole": (Mixture(), {**APART, "down": "ep=c"}, "ep do not cut its weight by experts"),
    "one cut along another dimension": (Mixture(), {**APART, "up": "ep=n"}, "ep do not cut its weight by experts"),
    "one cut along another, too": (Mixture(), {**APART, "up": "ep=e tp=n"}, "or another axis does"),
    "one cut apart by another, too": (Mixture(), {**APART, "up": "ep=e tp=e"}, "or another axis does"),
    "something else that it holds": (Mixture(extra=True), APART, "ep do not cut its weight by experts"),
}


def test_experts_that_do_not_lie_apart_by_themselves_are_refused() -> None:
    for what, (mixture, strategies, says) in APART_REFUSED.items():
        with pytest.raises(EmissionModule, match=says) as refused:
            apart((mixture, strategies, TRAVELS), mesh="ep=2 tp=2")
        assert refused.value.place.startswith("plan plan 0, %"), what
