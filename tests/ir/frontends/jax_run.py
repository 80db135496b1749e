"""Runs the graph of a JAX model with torch, to compare it with `jax.value_and_grad` of the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import DTYPES, EAGER
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.jax_.capture import capture
from meshwright.ir.frontends.jax_.models import path_of
from meshwright.ir.frontends.jax_.source import JaxSource, example_batch, loss_of
from meshwright.ir.frontends.torch_.constants.code import constant_of
from meshwright.ir.graph.fold import unfold
from meshwright.ir.graph.graph import Graph
from tests.ir.frontends.run import lines_run


def drawn(source: JaxSource, batch: int, seq: int, classes: int) -> tuple[Any, Any]:
    """Values for the state of a model and for a batch; integers are below the number of classes."""
    draw = np.random.default_rng(0)
    shapes = example_batch(source, batch, seq)
    model = source.made(shapes)
    trained = {leaf.path for leaf in model.leaves if leaf.kind == "param"}
    state = model.state

    def weight(keys: Any, one: Any) -> Any:
        if str(one.dtype).startswith("key<"):
            return jax.random.split(jax.random.key(0), one.shape) if one.shape else jax.random.key(0)
        values = draw.standard_normal(one.shape) * (0.3 if len(one.shape) > 1 else 0.1)
        flat = len(one.shape) <= 1 or "norm" in path_of(keys).lower()
        own = path_of(keys).removeprefix("params.") in trained and str(one.dtype) == "float32"
        dtype = source.dtype and "float64" if own else one.dtype
        return jax.numpy.asarray(np.abs(values) + 0.8 if flat else values, dtype or one.dtype)

    def entry(one: Any) -> Any:
        if "int" in str(one.dtype):
            return jax.numpy.asarray(draw.integers(0, classes, one.shape), one.dtype)
        return jax.numpy.asarray(draw.standard_normal(one.shape), one.dtype)

    return jax.tree_util.tree_map_with_path(weight, state), jax.tree.map(entry, shapes)


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""What makes a compilation quick."""


def reference(source: JaxSource, state: Any, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients by JAX's own differentiation."""
    model = source.made(batch)
    leaves, tree = jax.tree.flatten(state)
    trained = [at for at, leaf in enumerate(model.leaves) if leaf.kind == "param"]

    def loss(values: list[Any]) -> Any:
        whole = list(leaves)
        for at, value in zip(trained, values, strict=True):
            whole[at] = value
        outputs, _ = model.run(jax.tree.unflatten(tree, whole), batch)
        return loss_of(source, outputs, batch)

    given = [leaves[at] for at in trained]
    value, grads = jax.jit(jax.value_and_grad(loss)).lower(given).compile(QUICK)(given)
    return float(value), {model.leaves[at].path: np.asarray(grad) for at, grad in zip(trained, grads, strict=True)}


def ran(captured: Captured, values: Mapping[str, np.ndarray], batch: Any) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients of the unfolded graph, operator by operator."""
    graph = unfold(captured.fold)
    whole = {path: torch.tensor(np.array(value)) for path, value in values.items()}
    params = {param.value: of_block(whole, param.path) for param in graph.params}
    trained = [param for param in graph.params if param.requires_grad]
    for param in trained:
        params[param.value] = params[param.value].clone().requires_grad_()
    names = {path_of(keys) or "inputs": one for keys, one in jax.tree_util.tree_flatten_with_path(batch)[0]}
    given = {item.value: torch.tensor(np.array(names[item.value])) for item in graph.inputs}
    found = evaluated(graph, {**given, **params}, captured)
    assert graph.loss is not None
    loss = found[graph.loss]
    grads = torch.autograd.grad(loss, [params[one.value] for one in trained], allow_unused=True)
    by_path = {
        one.path: np.zeros(graph.types[one.value].shape) if grad is None else grad.numpy()
        for one, grad in zip(trained, grads, strict=True)
    }
    return float(loss.detach()), by_path


def of_block(whole: Mapping[str, Any], path: str) -> Any:
    """A parameter by path, or its row of a stacked one: `blocks.2.w` is row 2 of `blocks.w`."""
    if path in whole:
        return whole[path]
    words = path.split(".")
    for at, word in enumerate(words):
        if word.isdigit():
            outer = ".".join((*words[:at], *words[at + 1 :]))
            bare = ".".join((*words[: max(at - 1, 0)], *words[at + 1 :]))
            found = whole.get(outer, whole.get(bare))
            if found is not None:
                return found[int(word)]
    raise KeyError(path)


WIDE_INDEX = ("cross_entropy", "gather", "scatter", "scatter_add", "index_select", "dispatch", "combine")
"""Kinds that torch runs with indices of 64 bits only."""


def evaluated(graph: Graph, values: dict[str, Tensor], captured: Captured) -> dict[str, Tensor]:
    """Every value of a graph."""

    def nothing(one: Any) -> Tensor:
        raise AssertionError(one)

    for op in graph.ops:
        attrs: dict[str, Any] = dict(op.attrs)
        with torch.set_grad_enabled(not op.no_grad):
            if op.kind == "constant":
                results: tuple[Tensor, ...] = (lines_run(captured.constants[attrs["law"]], nothing),)
            else:
                operands = tuple(values[value] for value in op.operands)
                if op.kind in WIDE_INDEX:
                    operands = tuple(one.long() if one.dtype == torch.int32 else one for one in operands)
                results = EAGER[op.kind](operands, attrs)
        for name, result in zip(op.results, results, strict=True):
            expected = graph.types[name]
            assert tuple(result.shape) == expected.shape, (op, result.shape)
            assert result.dtype == DTYPES[expected.dtype], (op, result.dtype)
            values[name] = result
    return values


def with_code(source: JaxSource, *, batch: int, seq: int) -> Captured:
    """A model whose constants are made by torch, as `evaluated` runs them."""
    return capture(source, batch=batch, seq=seq, written=constant_of)


def in_fp64(source: JaxSource) -> JaxSource:
    """The model with its parameters in fp64, where JAX has them enabled."""
    return replace(source, dtype="f64")


def apart(source: JaxSource, captured: Captured, batch: int, seq: int, classes: int) -> float:
    """How far the graph is from the model: of loss and gradients the largest difference, over the largest gradient."""
    state, entries = drawn(source, batch, seq, classes)
    loss, expected = reference(source, state, entries)
    leaves = source.made(entries).leaves
    flat = jax.tree.leaves(state)
    values = {
        leaf.path: np.asarray(one) for leaf, one in zip(leaves, flat, strict=True) if leaf.kind in ("param", "buffer")
    }
    own, grads = ran(captured, values, entries)
    scale = max(float(np.abs(one).max()) for one in expected.values())
    worst = abs(own - loss) / max(abs(loss), 1e-3)
    for path, grad in grads.items():
        wanted = of_block(expected, path)
        worst = max(worst, float(np.abs(grad - wanted).max()) / max(float(np.abs(wanted).max()), 1e-3 * scale))
    return worst
