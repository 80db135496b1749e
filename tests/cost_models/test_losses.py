"""What torch's kernels of losses hold, of statements made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.cost_models.memory.losses import exponentials, inside_losses, made_again, takes_two_steps
from meshwright.ir.program.program import Compute, Gradient, Statement, Zero
from meshwright.ir.rules import Signature
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.placement import Placement, Shard


def do(kind: str, operand: str, result: str) -> Compute:
    return Compute(Signature(kind, ()), Strategy(), (operand,), (result,), result)


def back(kind: str, op: str, operands: tuple[str, ...], made: dict[int, str]) -> Gradient:
    return Gradient(Signature(kind, ()), Strategy(), operands, (op,), ("g",), tuple(made), tuple(made.values()), op)


def body(*backward: Statement, device: str = "cpu", forward: tuple[Statement, ...] = (), **locals_: Placement) -> Any:
    return SimpleNamespace(
        forward=forward,
        backward=backward,
        kernels=SimpleNamespace(device=device),
        locals={name: SimpleNamespace(placement=placement) for name, placement in locals_.items()},
    )


def test_exponentials_of_scores_are_known_by_what_they_are_made_of() -> None:
    forward = (do("exp", "scores", "e"), do("exp", "x", "y"), do("log", "scores", "l"), Zero("z"))
    assert exponentials(body(forward=forward), {"scores", "e", "l"}) == {"e": "scores"}


def test_a_derivative_in_two_steps() -> None:
    """Of a cross entropy alone: what others put into zeros, they put there in place."""
    table: list[tuple[Statement, bool]] = [
        (back("cross_entropy", "loss", ("scores", "at"), {0: "d"}), True),
        (back("gather", "c", ("scores", "at"), {0: "d_scores"}), False),
        (do("cross_entropy", "scores", "d_scores"), False),
    ]
    for statement, expected in table:
        assert takes_two_steps(statement) is expected, statement


def test_what_is_added_up_inside_a_loss() -> None:
    """Gradients of exponentials, and what these become; on CPUs alone. `e` came out of the operator of that name."""
    exps = {"e@1": "scores"}
    statements = (
        back("sum", "s", ("e@1",), {0: "d_e"}),
        back("mul", "m", ("x", "e@1"), {0: "d_x", 1: "d_e2"}),
        back("exp", "e", ("scores",), {0: "d_scores"}),
        back("exp", "other", ("x",), {0: "d_other"}),
        Zero("z"),
    )
    assert inside_losses(body(*statements), exps) == {"d_e", "d_e2", "d_scores"}
    assert inside_losses(body(*statements, device="cuda"), exps) == set()


def test_exponentials_are_made_again_from_scores_in_shards() -> None:
    """Elsewhere than on CPUs all are."""
    cut = (Shard("tp"),)
    where = {
        "a": Placement(((), cut)),
        "b": Placement((cut, ())),
        "c": Placement(()),
        "d": Placement(((), cut, ())),
        "e": Placement(((), (), cut)),
    }
    exps = dict.fromkeys(where, "scores")
    assert made_again(body(**where), exps, {"any"}) == {"a", "e"}
    assert made_again(body(**where), exps, set()) == set(where)
