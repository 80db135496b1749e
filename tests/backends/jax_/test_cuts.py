"""Cuts of a traced loss: blocks that do the same are found, and what goes from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from meshwright.backends.jax_.emit.pipeline.cuts import Cuts  # noqa: E402
from meshwright.ir.errors import EmissionSchedule  # noqa: E402
from meshwright.ir.frontends.jax_.calls import step_of  # noqa: E402
from meshwright.ir.frontends.jax_.dtypes import type_of  # noqa: E402
from meshwright.ir.frontends.jax_.flat import Leaf  # noqa: E402

W = jnp.ones((4, 4))
FOUR = {"table": W, **{f"b.{number}.w": W for number in range(4)}, "head": W}


def cuts(
    loss: Callable[[Mapping[str, Any], Any], Any], params: Mapping[str, Any] = FOUR, *, kinds: int = 1
) -> tuple[Cuts, Sequence[Any]]:
    """Where a loss of parameters by path, and of the batch `x`, is cut; and its equations."""
    closed = jax.make_jaxpr(lambda leaves, x: loss(dict(zip(params, leaves, strict=True)), x))([*params.values()], W)
    leaves = [Leaf("param", path, type_of(one)) for path, one in params.items()]
    rooms = list(dict.fromkeys(path.rpartition(".")[0] for path in params if path.startswith("b.")))
    units = [tuple(rooms[at : at + kinds]) for at in range(0, len(rooms), kinds)]
    return Cuts.of(step_of(closed, (*leaves, Leaf("input", "x", type_of(W)))), units), closed.jaxpr.eqns


def made_by(equations: Sequence[Any], places: Sequence[str]) -> list[str]:
    return [equations[int(place.partition(":")[0])].primitive.name for place in places]


def test_blocks_are_parted_where_the_fewest_values_pass() -> None:
    def loss(p: Any, x: Any) -> Any:
        x = x @ p["table"]
        for number in range(4):
            x = x + jnp.tanh(x @ p[f"b.{number}.w"])
        return jnp.sum(x @ p["head"])

    found, equations = cuts(loss)
    assert [made_by(equations, places) for places in found.handed] == [["add"], ["add"]]
    assert made_by(equations, found.leaving) == ["add"]
    assert equations[int(found.entering[0].partition(".")[0])].primitive.name == "dot_general"
    assert found.beside == ()


def test_a_sum_beside_the_stream_begins_with_a_constant() -> None:
    def loss(p: Any, x: Any) -> Any:
        x, total = x @ p["table"], 0.0
        for number in range(4):
            y = x @ p[f"b.{number}.w"]
            x, total = x + y, total + jnp.mean(y)
        return jnp.sum(x @ p["head"]) + total

    found, equations = cuts(loss)
    assert len(found.entering) == len(found.leaving) == 2
    entering = [equations[int(at)].invars[int(n)] for at, _, n in (one.partition(".") for one in found.entering)]
    assert [one.val for one in entering if hasattr(one, "val")] == [0.0]


def test_kinds_in_turn_are_a_unit() -> None:
    def loss(p: Any, x: Any) -> Any:
        x = x @ p["table"]
        for number in range(4):
            x = x + (jnp.sin if number % 2 else jnp.cos)(x @ p[f"b.{number}.w"])
        return jnp.sum(x @ p["head"])

    with pytest.raises(EmissionSchedule, match="one program"):
        cuts(loss)
    found, equations = cuts(loss, kinds=2)
    assert [made_by(equations, places) for places in found.handed] == [["add"]] * 3


def test_what_all_blocks_read_is_made_where_it_is_read_or_handed_on() -> None:
    """A mask that the first block makes follows from the batch; a bias of another parameter is handed on."""

    def loss(p: Any, x: Any) -> Any:
        mask, bias, x = None, jnp.exp(p["bias"]), x @ p["table"]
        for number in range(4):
            y = x @ p[f"b.{number}.w"] + bias
            mask = jnp.tril(jnp.ones(y.shape)) * 2 if mask is None else mask
            x = x + y * mask
        return jnp.sum(x @ p["head"])

    found, equations = cuts(loss, {**FOUR, "bias": W})
    assert len(found.beside) == 1
    assert sorted(made_by(equations, found.handed[0])) == sorted(made_by(equations, found.leaving)) == ["add", "exp"]
    bias = next(place for place in found.handed[0] if made_by(equations, [place]) == ["exp"])
    assert bias in found.entering
    assert bias in found.leaving


def test_units_draw_by_keys_of_their_own() -> None:
    """Where masks are made of keys that differ, in however many steps, these are told apart; a key that all draw by is
    beside, and so is what is made of it."""

    def loss(p: Any, x: Any) -> Any:
        key, x = jax.random.key(0), x @ p["table"]
        alike = jax.random.uniform(jax.random.fold_in(key, 7), x.shape)
        for number in range(4):
            kept = jax.random.uniform(jax.random.fold_in(key, number), x.shape)
            x = x + jnp.where(kept + alike > 1, x @ p[f"b.{number}.w"], 0) / jax.random.uniform(key)
        return jnp.sum(x @ p["head"])

    found, equations = cuts(loss)
    keys = [made_by(equations, places) for places in found.keys]
    assert keys == [["random_fold_in"]] * 4
    at = [int(place.partition(":")[0]) for (place,) in found.keys]
    assert [int(equations[one].invars[1].val) for one in at] == [0, 1, 2, 3]
    beside = [equations[int(place.partition(".")[0])] for place in found.beside]
    assert {one.primitive.name for one in beside} == {"add", "div"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("number", "one program"),
        ("operator", "one program"),
        ("constant", "one program"),
        ("left", "more than earlier ones"),
        ("unread", "no parameter of their own"),
        ("mixed", "among those of others"),
    ],
)
def test_blocks_that_no_stages_share_are_refused(change: str, why: str) -> None:
    def loss(p: Any, x: Any) -> Any:
        x, left = x @ p["table"], []
        for number in range(4):
            other = number == 2
            w = p[f"b.{number}.w"] if not (change == "unread" and other) else p["head"]
            y = x @ w * (3.0 if change == "number" and other else 2.0)
            y = jnp.cos(y) if change == "operator" and other else jnp.sin(y)
            y = y * jnp.arange(4.0) if change == "constant" and not other else y * jnp.arange(1.0, 5.0)
            left += [jnp.mean(y)] if change == "left" else []
            x = x + (y @ p["b.0.w"] if change == "mixed" else y)
        return jnp.sum(x @ p["head"]) + sum(left)

    with pytest.raises(EmissionSchedule, match=why):
        cuts(loss)
