"""Tied parameters on the same ranks: gradients are added, then reduced once. That whole steps are exact is shown in
test_interp_step.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.ir.errors import TieMissing
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Move, Program
from meshwright.ir.program.ties import added, with_added
from meshwright.ir.program.units import Part
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_program
from tests.llama_block import model

FOLD = model(tied=True)
TABLE = "embed.weight"


def program(degrees: Degrees) -> Program:
    made = lower(FOLD, template(FOLD, degrees))
    verify_program(made)
    verify_meaning(made, FOLD)
    return made


def reducing(made: Program) -> list[str]:
    """The bodies that reduce the table's gradient once a step."""
    moving = [(body, {one.result for one in body.sync if isinstance(one, Move)}) for body in made.bodies]
    return [body.name for body, moved in moving for slot in body.params if slot.path == TABLE and slot.synced in moved]


@pytest.mark.parametrize(
    ("degrees", "bodies"),
    [
        (Degrees(dp=2), ["embed"]),
        (Degrees(dp=2, tp=2), ["embed"]),
        (Degrees(dp=2, zero=1, microbatches=2), ["embed"]),
        (Degrees(dp=2, pp=2, microbatches=2), ["embed", "head"]),
        (Degrees(dp=2, pp=2, vp=2, microbatches=4, schedule="zbv"), ["embed"]),
    ],
    ids=str,
)
def test_ranks_reduce_what_they_hold_once(degrees: Degrees, bodies: list[str]) -> None:
    assert reducing(program(degrees)) == bodies


def test_who_holds_it_otherwise_reduces_for_itself() -> None:
    cut, whole = (program(degrees) for degrees in (Degrees(tp=2), Degrees(dp=2)))
    last = sum(1 for _ in FOLD.calls()) - 1
    held = {0: ((0, 1), "embed"), last: ((0, 1), "head")}
    bodies = {"embed": whole.body("embed"), "head": cut.body("head")}
    assert added(FOLD, bodies, held) == {}
    assert added(FOLD, {**bodies, "head": whole.body("head")}, held) == {last: {TABLE}}


def test_stages_that_overlap_hold_each_their_own() -> None:
    """As cuts are looked at when layers are shared out: a call may be in two stages, with another plan in each."""
    one, other = (program(degrees) for degrees in (Degrees(dp=2), Degrees(dp=2, zero=1)))
    bodies = {f"{body.name}@1": body for body in one.bodies} | {f"{body.name}@2": body for body in other.bodies}
    named = [["embed@1", "block@1", "head@1"], ["block@2", "head@2"]]
    made, names = with_added(FOLD, bodies, named, [(0, (0, 1)), (1, (2, 3))])
    assert names == named
    assert set(made) == {"embed@1", "block@1", "head@1", "block@2", "head@2"}
    alone, again = with_added(FOLD, bodies, named[1:], [(1, (2, 3))])
    assert again == named[1:]
    assert all(made[name] is alone[name] for name in again[0])


@pytest.mark.parametrize(("name", "path"), [("embed", TABLE), ("block", "q.weight")])
def test_a_gradient_that_nobody_reduces_is_refused(name: str, path: str) -> None:
    made = program(Degrees(dp=2))
    bodies = tuple(Part(left=frozenset((path,))).of(body, name) if body.name == name else body for body in made.bodies)
    broken = replace(made, bodies=bodies)
    verify_program(broken)
    with pytest.raises(TieMissing):
        verify_meaning(broken, FOLD)
