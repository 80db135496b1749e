"""What calls of one stage read through one module of a unit of `fully_shard` is gathered once, and scattered once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.backends.torch_.verify.interpreted.step import random_data, step_differences
from meshwright.ir.errors import MeshwrightError, MissingGradient, StorageConflict, TieMissing
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Add, BodyProgram, Move, ParamSlot, Program
from meshwright.ir.program.reading import parse_program
from meshwright.ir.program.text import program_text
from meshwright.ir.program.units import Part, shared, sharing
from meshwright.ir.same import Same
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_program
from tests.llama_block import model

FOLD = model(tied=True)
TABLE = "embed.weight"
LAST = sum(1 for _ in FOLD.calls()) - 1
SHARDED = Degrees(dp=2, zero=3)


def program(degrees: Degrees, fold: Fold = FOLD) -> Program:
    made = lower(fold, template(fold, degrees))
    verify(made, fold)
    return made


def verify(made: Program, fold: Fold = FOLD) -> None:
    verify_program(made)
    verify_meaning(made, fold)


def table(made: Program, name: str) -> ParamSlot:
    return next(slot for slot in made.body(name).params if slot.path == TABLE)


def moved(body: BodyProgram, reason: str) -> list[str]:
    """The parameters that a body program moves for a reason, once for every message."""
    moves = [s for s in (*body.forward, *body.backward, *body.sync) if isinstance(s, Move) and s.reason == reason]
    return sorted(slot.path for slot in body.params for s in moves if slot.value in s.result and not s.step.free)


def through(module: str) -> Fold:
    """The model whose head reads the table through a module of this name."""
    bodies = []
    for body in FOLD.bodies:
        params = tuple(
            replace(one, paths=(TABLE, "head.weight")) if one.path == TABLE else one for one in body.graph.params
        )
        ops = tuple(replace(op, module=module) if op.kind == "linear" else op for op in body.graph.ops)
        bodies.append(
            replace(body, graph=replace(body.graph, params=params, ops=ops if body.name == "head" else body.graph.ops))
        )
    return replace(FOLD, bodies=tuple(bodies))


@pytest.mark.parametrize("degrees", [SHARDED, replace(SHARDED, regather=False), Degrees(cp=2, zero=3)], ids=str)
def test_the_first_call_gathers_and_scatters_for_the_other(degrees: Degrees) -> None:
    made = program(degrees)
    front, back = made.body("embed"), made.body("head")
    assert moved(front, "parameter") == moved(front, "sync") == [TABLE]
    assert moved(back, "parameter") == moved(back, "sync") == ["norm.weight"]
    assert (table(made, "embed").borrowed, table(made, "head").borrowed) == (None, "embed")
    assert [one.operands[1] for one in front.backward if isinstance(one, Add)] == [table(made, "embed").lent]


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(dp=2, microbatches=2),
        Degrees(cp=2, recompute="full"),
        Degrees(dp=2, tp=2, microbatches=2),
        Degrees(dp=4, shard=2, microbatches=2),
        Degrees(dp=2, microbatches=2, schedule="zbh1"),
        Degrees(dp=2, pp=2, microbatches=2),
    ],
    ids=str,
)
def test_a_step_is_exact(degrees: Degrees, zero: int) -> None:
    """I and W apart, too: a gradient goes back when it is made."""
    made = replace(degrees, zero=zero)
    assert (table(program(made), "head").borrowed is None) == (degrees.pp > 1)
    assert not step_differences(FOLD, template(FOLD, made), random_data(FOLD, made.microbatches))


@pytest.mark.parametrize("module", ["", "head", "norm"])
def test_calls_that_read_through_other_modules_have_units_of_their_own(module: str) -> None:
    fold = through(module)
    apart = module == "head"
    assert table(program(SHARDED, fold), "head").borrowed == (None if apart else "embed")
    assert sharing(Same(fold)) == frozenset(() if apart else ("embed", "head"))


def test_calls_that_hold_it_otherwise_do_not_share_it() -> None:
    cut, whole = (program(replace(SHARDED, tp=tp, pp=2, microbatches=2)) for tp in (2, 1))
    held = {0: "embed", LAST: "head"}
    assert shared(FOLD, {"embed": whole.body("embed"), "head": cut.body("head")}, held) == {}
    alike = shared(FOLD, {"embed": whole.body("embed"), "head": whole.body("head")}, held)
    assert alike == {
        0: Part(lent=frozenset((TABLE,)), keeps=True),
        LAST: Part(borrowed=frozenset(((TABLE, "embed"),)), keeps=True),
    }


def test_what_is_not_sharded_has_one_tensor_anyway() -> None:
    made = program(Degrees(dp=2))
    assert (table(made, "embed").lent, table(made, "head").borrowed) == (None, None)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("embed", {"lent": None}, MeshwrightError),
        ("head", {"borrowed": None}, TieMissing),
        ("head", {"borrowed": "block"}, TieMissing),
        ("embed", {"synced": None, "updated": None, "published": None}, MissingGradient),
        ("embed", {"borrowed": "embed"}, StorageConflict),
    ],
)
def test_what_is_lent_and_borrowed_must_fit(
    name: str, changes: dict[str, str | None], error: type[MeshwrightError]
) -> None:
    made = program(SHARDED)
    body, slot = made.body(name), table(made, name)
    slots = tuple(replace(one, **changes) if one is slot else one for one in body.params)  # type: ignore[arg-type]
    broken = tuple(replace(one, params=slots) if one is body else one for one in made.bodies)
    with pytest.raises(error):
        verify(replace(made, bodies=broken))


def test_what_is_lent_to_none_is_refused() -> None:
    made, alone = program(SHARDED), program(replace(SHARDED, pp=2, microbatches=2))
    broken = tuple(alone.body("head") if one.name == "head" else one for one in made.bodies)
    with pytest.raises(TieMissing):
        verify(replace(made, bodies=broken))


def test_the_text_of_a_program_says_it() -> None:
    made = program(SHARDED)
    assert parse_program(program_text(made)) == made
