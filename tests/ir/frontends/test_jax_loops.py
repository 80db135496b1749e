"""Loops of JAX that are not written out: the loops of the whole, against running it on parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.ir.analysis.saved import saved_bytes
from meshwright.ir.frontends.door import load_model
from meshwright.ir.frontends.folding.segment import names_of
from meshwright.ir.frontends.jax_.capture import TABLE, capture
from meshwright.ir.frontends.jax_.dtypes import type_of
from meshwright.ir.frontends.jax_.flat import Leaf, flattened
from meshwright.ir.frontends.jax_.primitives.translate import Translator
from meshwright.ir.frontends.jax_.source import example_batch
from meshwright.ir.graph.fold import unfold
from meshwright.ir.graph.graph import Op
from meshwright.ir.program.kept import extra_bytes
from meshwright.ir.rules.base import Rule
from meshwright.ir.rules.registry import rule_of
from tests.ir.frontends.test_jax import ZOO

B, H, T = 6, 4, 20
"""Samples, features and steps."""
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def gated(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = jnp.tanh(x @ w["in"] + h @ w["own"])
    return h, h * 2


def by_feature(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = h * jax.nn.sigmoid(w["in"][0]) + x
    return h, jnp.exp(-h)


def centred(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Samples meet in their mean."""
    h = h + x - x.mean(0)
    return h, h


def turned(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Samples and features take each other's places in what a step hands on."""
    h = (h[:H] + x[:H]).T
    return jnp.pad(h, ((0, B - H), (0, 0))), x


def grouped(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Samples are the outer part of a dimension."""
    h = (h.reshape(B * H // 2, 2) * 2 + 1).reshape(B, H) + x
    return h, h


def inner(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Another loop in each step."""
    h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w["own"]), None), h, jnp.zeros(T))
    return h + x, h


def running(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Each sample is given the sum of those before it."""
    h = h + jnp.cumsum(x, 0)
    return h, h


def long_term(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell of an LSTM; its hidden state and its memory lie side by side."""
    h, c = jnp.split(h, 2, 1)
    z = x @ w["in"] + jnp.pad(h, ((0, 0), (0, H // 2))) @ w["own"]
    i, f, g, o = z[:, : H // 2], z[:, H // 2 :], z[:, : H // 2] * 2, z[:, H // 2 :] * 2
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return jnp.concatenate([h, c], 1), h


def updated(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell of a GRU."""
    r = jax.nn.sigmoid(x @ w["in"] + h @ w["own"])
    z = jax.nn.sigmoid(x @ w["own"] - h @ w["in"])
    h = (1 - z) * jnp.tanh(x @ w["in"] * 2 + r * (h @ w["own"])) + z * h
    return h, h


CASES: tuple[tuple[Step, bool, bool], ...] = (
    (gated, True, False),
    (by_feature, True, True),
    (centred, False, True),
    (turned, False, False),
    (grouped, True, False),
    (inner, True, False),
    (running, False, True),
)
"""Whether devices may have parts of the samples, and of the features."""


def whole(step: Step, w: Any, h: Any, xs: Any) -> Any:
    return jax.lax.scan(lambda h, x: step(w, h, x), h, xs)


def given(seed: int, steps: int = T) -> tuple[Any, Any, Any]:
    drawn = np.random.default_rng(seed)
    w = {name: jnp.asarray(drawn.standard_normal((H, H)), jnp.float32) for name in ("in", "own")}
    return (
        w,
        jnp.asarray(drawn.standard_normal((B, H)), jnp.float32),
        jnp.asarray(drawn.standard_normal((steps, B, H)), jnp.float32),
    )


def operator_of(step: Step, scanned: Callable[[Any], Any] = lambda xs: xs) -> Op:
    """The loop as the front end has it, over what is made of its operands."""
    return ruled(step, T, scanned)[0]


def ruled(step: Step, steps: int, scanned: Callable[[Any], Any] = lambda xs: xs) -> tuple[Op, Rule]:
    """The same with its rule, of so many steps."""
    closed = jax.make_jaxpr(lambda w, h, xs: whole(step, w, h, scanned(xs)))(*given(0, steps))
    leaves = [Leaf("input", f"in{at}", type_of(var.aval)) for at, var in enumerate(closed.jaxpr.invars)]
    t = Translator(names_of(()), TABLE)
    t.run(flattened(closed, leaves), {})
    op = next(op for op in t.ops if op.kind == "opaque")
    return op, rule_of(op, t.types)


def cuts(op: Op, extent: int) -> bool:
    """Whether a loop of this extent, that stands in every result, may be cut."""
    rule = str(op.attr("rule") or "->")
    last = rule.partition("->")[2].split(",")[-1].split()
    return len(last) == 3 and last[{B: 1, H: 2}[extent]].startswith("n")


@pytest.mark.parametrize(("step", "samples", "features"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_loop_is_cut_where_running_parts_gives_the_whole(step: Step, samples: bool, features: bool) -> None:
    """Never where it does not; where it does, and the rules of its operators say so. Gradients of what all steps read
    are sums over parts, others are put together."""
    op = operator_of(step)
    assert (cuts(op, B), cuts(op, H)) == (samples, features)
    for dim, extent, claimed in ((0, B, samples), (1, H, features)):
        if not claimed:
            continue
        for seed in range(3):
            check_parts(step, dim, extent, seed)


def check_parts(step: Step, dim: int, extent: int, seed: int) -> None:
    w, h, xs = given(seed)

    def total(w: Any, h: Any, xs: Any, by: Any) -> Any:
        left, ys = whole(step, w, h, xs)
        return (left * by[0]).sum() + (ys * by[1:]).sum()

    by = jnp.asarray(np.random.default_rng(seed + 9).standard_normal((T + 1, B, H)), jnp.float32)
    expected, grads = whole(step, w, h, xs), jax.grad(total, argnums=(0, 1, 2))(w, h, xs, by)
    parts = [np.arange(extent)[: extent // 2], np.arange(extent)[extent // 2 :]]
    if step is grouped:
        return  # its code says how many samples there are
    found = []
    for part in parts:
        own = [jnp.take(one, part, at) for one, at in ((h, dim), (xs, dim + 1), (by, dim + 1))]
        weights = {name: one[:, part] if dim == 1 else one for name, one in w.items()}
        found.append((whole(step, weights, *own[:2]), jax.grad(total, argnums=(0, 1, 2))(weights, *own)))
    for at, along in ((0, dim), (1, dim + 1)):
        joined = jnp.concatenate([one[0][at] for one in found], along)
        np.testing.assert_allclose(joined, expected[at], rtol=2e-5, atol=2e-5)
        joined = jnp.concatenate([one[1][at + 1] for one in found], along)
        np.testing.assert_allclose(joined, grads[at + 1], rtol=2e-4, atol=2e-4)
    if dim == 0:
        for name in w:
            np.testing.assert_allclose(sum(one[1][0][name] for one in found), grads[0][name], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["linen", "dropped", "mapped", "states"])
def test_recurrent_models_have_a_batch_in_their_loops(name: str) -> None:
    captured = capture(load_model(f"{ZOO}/recurrent.py:{name}"), batch=2, seq=16)
    loops = [op for body in captured.fold.bodies for op in body.graph.ops if op.kind == "opaque"]
    assert len(loops) == (2 if name == "linen" else 1)
    assert all(op.attr("steps") == 24 and "n0" in str(op.attr("rule")) for op in loops)


@pytest.mark.parametrize("step", [gated, by_feature, inner, long_term, updated], ids=lambda one: one.__name__)
def test_what_a_loop_keeps_is_what_xla_holds_for_it(step: Step) -> None:
    """By how the temporary memory of the compiled gradient grows with the number of steps. A device has its part."""

    def total(w: Any, h: Any, xs: Any) -> Any:
        return sum(one.sum() for one in whole(step, w, h, xs))

    held, planned, halves = [], [], []
    for steps in (40, 80):
        compiled = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*given(0, steps)).compile()
        held.append(compiled.memory_analysis().temp_size_in_bytes)
        _, rule = ruled(step, steps)
        sizes = {factor.name: factor.size for factor in rule.factors}
        extras = [save for save in rule.saves if save.what == "extra"]
        planned.append(sum(extra_bytes(save, sizes) for save in extras))
        halves.append(sum(extra_bytes(save, sizes | {"n0": sizes["n0"] // 2}) for save in extras))
    assert planned[1] - planned[0] == pytest.approx(held[1] - held[0], rel=0.02)
    assert halves[1] - halves[0] == (planned[1] - planned[0]) // 2


def test_kernels_of_steps_run_one_by_one() -> None:
    """Products, twice for gradients, and one kernel of all else; of a loop in each step all of its own."""
    assert operator_of(gated).attr("kernels") == (T * (2 + 1), T * (4 + 1))
    assert operator_of(by_feature).attr("kernels") == (T, T)
    assert operator_of(inner).attr("kernels") == (T * (T * 2 + 1), T * (T * 3 + 1))


def test_a_loop_that_jax_does_not_differentiate_keeps_all_it_is_given() -> None:
    def whiled(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h + 1, h)
        return h + x, h

    _, rule = ruled(whiled, T)
    assert [save.what for save in rule.saves].count("operand") == len(rule.operands)


@pytest.mark.parametrize("name", ["linen", "dropped", "mapped"])
def test_what_recurrent_models_keep_is_what_jax_keeps(name: str) -> None:
    """Of the whole model: what the closure of its derivative holds of all tokens."""
    source: Any = load_model(f"{ZOO}/recurrent.py:{name}")
    captured, batch = capture(source, batch=8, seq=16), example_batch(source, 8, 16)
    planned = saved_bytes(unfold(captured.fold), "xla")
    model = source.made(batch)
    leaves, tree = jax.tree.flatten(model.state)
    trained = [leaf.kind == "param" for leaf in model.leaves]

    def pull(params: Any, others: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            parts = {True: iter(params), False: iter(others)}
            outputs, _ = model.run(jax.tree.unflatten(tree, [next(parts[one]) for one in trained]), batch)
            return source.hooks["loss"](outputs, batch)

        return jax.vjp(loss, params)[1]

    sides = [[one for one, its in zip(leaves, trained, strict=True) if its is kind] for kind in (True, False)]
    found = jax.tree.leaves(jax.eval_shape(pull, *sides, batch))
    held = sum(one.size * one.dtype.itemsize for one in found if 24 in one.shape)
    assert planned == pytest.approx(held, rel=0.1)


def test_what_follows_is_said() -> None:
    captured = capture(load_model(f"{ZOO}/recurrent.py:states"), batch=2, seq=16)
    assert [note for note in captured.notes if "a loop of 24 steps is one operator" in note]


def test_drawn_operands_are_no_reason_to_stay_whole() -> None:
    """Keys in what is scanned: where they lie is no matter of its own."""

    def dropped(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
        x, key = x
        h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h + x, 0)
        return h, h

    op = operator_of(dropped, lambda xs: (xs, jax.random.split(jax.random.key(0), T)))
    assert cuts(op, B)
    assert cuts(op, H)
