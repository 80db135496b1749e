"""What of small bodies runs again, where buffers change, values are exchanged, or a module calls attention twice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.subject import Piece
from meshwright.backends.torch_.emit.read.recompute import Again, recomputed
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.graph.fold import FromInput, Segment
from meshwright.ir.program.program import Add, Move
from meshwright.ir.sharding.reshard import Step
from tests.build import Builder

X = FromInput("x")
Moved = tuple[str, str, str]
"""What is moved in the backward pass, by which step, and why."""


class Block(Builder):
    """Two products in a module, one more beside it, and a norm that keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        x = self.input((4, 8), requires_grad=True)
        for name, module in (("up", "mlp.up"), ("down", "mlp.down"), ("last", "last")):
            x = self.op("linear", x, self.param(f"{module}.weight", (8, 8)), module=module, name=name)
        mean = self.buffer("norm.mean", (8,))
        self.update(mean.removeprefix("p."), self.op("silu", mean, module="norm", name="stat"))
        self.output(self.op("relu", x, module="norm", name="normed"))


def piece(
    body: Builder, again: Sequence[str], *, ahead: Sequence[str] = (), first: int = 0, glue: bool = False
) -> Piece:
    paths = ("",) if glue else ("layers.0", "layers.1", "layers.2")
    segment = Segment(("block",), paths, (X,), ((X,),), glue)
    plan = BodyPlan(name="usual", body="block", recompute=tuple(again))
    before = BodyPlan(name="ahead", body="block", recompute=tuple(ahead), first=first) if first else None
    return Piece(segment, plan, before, body.graph())


def found(*pieces: Piece, moves: Sequence[Moved] = ()) -> tuple[Again, ...]:
    backward = [Add(("a", "b"), "c"), *(Move(Step(kind, ("tp",)), one, "moved", why) for one, kind, why in moves)]
    program = SimpleNamespace(backward=backward, kept=[])
    subject: Any = SimpleNamespace(pieces=pieces, bodies={"usual": program, "ahead": program})
    return recomputed(subject)


def test_the_part_of_a_stage_that_runs_again() -> None:
    one = piece(Block(), ())
    for start, stop, which in [(0, None, ""), (0, 2, "[:2]"), (2, None, "[2:]"), (1, 3, "[1:3]")]:
        assert Again(piece=one, start=start, stop=stop).which == which, (start, stop)


def test_first_blocks_run_otherwise_than_the_rest() -> None:
    """Two of three have a plan of their own."""
    mlp, last = ("up", "down"), ("last",)
    for own, ahead, expected in [
        (last, mlp, [(("mlp",), 0, 2), (("last",), 2, None)]),
        ((), mlp, [(("mlp",), 0, 2)]),
        (last, (), [(("last",), 2, None)]),
    ]:
        again = found(piece(Block(), own, ahead=ahead, first=2))
        assert [(one.paths, one.start, one.stop) for one in again] == expected, (own, ahead)
    assert found(piece(Block(), ("x",))) == ()


def test_modules_that_have_changed_buffers_by_then() -> None:
    """The norm has, and so have all of the block; paths that begin alike are others."""
    for again, changes in [
        (("stat", "normed"), True),
        (("up", "down", "last"), False),
        (("up", "down", "last", "stat", "normed"), True),
    ]:
        assert [one.changes for one in found(piece(Block(), again))] == [changes], again


def test_what_is_exchanged_again_lies_in_what_runs_again() -> None:
    mlp = ("up", "down")
    for moves in [
        [("up", "all_gather", "value")],
        [("up@moved", "all_gather", "value")],
        [("down", "slice", "value")],
        [("down", "all_gather", "gradient")],
        [("down", "all_gather", "parameter")],
    ]:
        assert [one.paths for one in found(piece(Block(), mlp), moves=moves)] == [("mlp",)], moves
    for moved, users in (("down", "mlp.down and last"), ("x", " and mlp.up"), ("normed", "norm")):
        with pytest.raises(EmissionRecompute) as refused:
            found(piece(Block(), mlp), moves=[(moved, "all_gather", "value")])
        assert refused.value.cause == f"exchanging %{moved} again between {users} is not emitted yet"
        assert refused.value.place == "plan usual"
        assert "--fix 'layers.*:recompute=on'" in refused.value.fix
    both = ("up", "down", "last")
    with pytest.raises(EmissionRecompute, match="exchanging %down again between"):
        found(piece(Block(), both), moves=[("down", "all_gather", "value")])


def test_outside_of_blocks_whole_modules_run_again() -> None:
    """All of it but the loss, where nothing is outside."""
    everything = ("up", "down", "last", "stat", "normed")
    (own,) = found(piece(Block(), ("up", "down"), glue=True))
    assert (own.paths, own.attention, own.kept) == (("mlp",), (), None)
    (alone,) = found(piece(Block(), everything, glue=True))
    assert alone.paths == ("",)
    (beside, *_) = found(piece(Block(), everything, glue=True), piece(Block(), ()))
    assert beside.paths == ("last", "mlp", "norm")
    with pytest.raises(EmissionRecompute, match="pin whole blocks or modules, as in --fix '\\*:recompute=on'"):
        found(piece(Block(), ("stat",), glue=True))


def attending(*modules: str) -> Builder:
    """Attention in modules, each behind the one before it, named a0, a1 …; and a product."""
    body = Builder()
    x = body.input((2, 4, 8, 8), requires_grad=True)
    for number, module in enumerate(modules):
        x = body.op("attention", x, x, x, module=module, mask="full", name=f"a{number}")
    body.output(body.op("linear", x, body.param("out.weight", (8, 8)), module="out", name="out"))
    return body


def test_attention_that_runs_again_in_its_module() -> None:
    (one,) = found(piece(attending("block", "other"), ("a0",)))
    assert (one.paths, one.attention, one.kept) == (("block",), (), None)
    own = attending("", "inner", "")
    (two,) = found(piece(own, ("a0", "a2")))
    assert (two.paths, two.attention) == ((), ("",))
    with pytest.raises(EmissionRecompute, match="computing one of the attentions of  again, and not the other"):
        found(piece(own, ("a0",)))
    (three,) = found(piece(own, ("a2", "a1", "a0")))
    assert (three.paths, three.attention) == (("inner",), ("",))
