"""What a factory of a JAX model may return, as one thing: leaves by path, and a function of them.

    Flax NNX module     its state: `Param` is trained, random state is drawn from, any other variable is a buffer
    Flax Linen module   what `init` makes of the batch: collection `params` is trained, others are buffers
    Equinox module      its arrays: floating ones are trained; it is called for each example of the batch (`jax.vmap`)
    (init, apply)       `init(key)` makes the parameters, `apply(params, …)` is the forward pass

Factories and `init` run under `jax.eval_shape`: no weight is made. Models are put into training mode. A forward pass
receives the entries of the batch that it has parameters for; a parameter called `key` or `rng` gets a random key,
`train` and its like say that this is training.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.errors import EmptyModel, FactoryRaised, NoExampleInputs
from meshwright.ir.frontends.jax_.dtypes import type_of
from meshwright.ir.frontends.jax_.flat import Leaf

KEYS = ("key", "rng", "rngs", "dropout_key")
TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}
"""Parameters that say in which mode a model runs, and what they are in training."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A model as its state (a tree of shapes) and a function: `run(state, batch)` gives outputs and new state."""

    state: Any
    leaves: tuple[Leaf, ...]
    run: Callable[[Any, Any], tuple[Any, Any]]
    way: str
    """`nnx`, `linen`, `equinox` or `pair`."""
    accepted: Mapping[str, bool]
    """The parameters of its forward pass, and whether they are given by position alone."""
    named: bool = False
    """Whether parameters carry names of mesh axes of their own, for which NNX wants a mesh as it makes them."""


Made = Callable[[Any], Stated]
"""The model, given the shapes of a batch."""


Said = Callable[[Any], Spec]
"""Names of dimensions by mesh axes."""


def model_of(
    factory: Callable[[], Any], place: str, forward: Callable[..., Any] | None, said: Said = lambda _: ()
) -> tuple[Made, str] | Any:
    """What a factory returns, and what it is called; something else than a model of JAX as it is."""
    box: list[Any] = []

    def make() -> Any:
        made = factory()
        parts = _parted(made)
        box.append((made, parts))
        return parts[0] if parts else None

    state = jax.eval_shape(make)
    made, parts = box[-1]
    name = type(made).__name__
    if parts is not None:
        _, kind, static = parts
        if kind == "equinox":
            return _equinox(state, static, place, forward), name
        return _nnx(state, static, place, forward, said), name
    if is_linen(made):
        return _linen(made, place, forward, said), name
    if isinstance(made, tuple | list) and len(made) == 2 and all(map(callable, made)):
        return _pair(made[0], made[1], place, forward), getattr(made[1], "__name__", "model")
    return made


def _parted(made: Any) -> tuple[Any, str, Any] | None:
    """A module that holds its arrays, as arrays and the rest."""
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and isinstance(made, nnx.Module):
        made.train()
        static, state = nnx.split(made)
        return state, "nnx", static
    if equinox is not None and isinstance(made, equinox.Module):
        made = equinox.nn.inference_mode(made, value=False)
        arrays, static = equinox.partition(made, equinox.is_array)
        return arrays, "equinox", static
    return None


def is_linen(made: Any) -> bool:
    """Whether something is a Linen module."""
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(made, linen.Module)


# What is handed to a forward pass ------------------------------------------------------------------------------------


def arguments(
    call: Callable[..., Any], batch: Any, place: str, skip: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of the batch a forward pass is given: a dict's entries by parameter name, anything else by position."""
    accepted = dict(list(inspect.signature(call).parameters.items())[skip:])
    modes = {name: value for name, value in TRAINING.items() if name in accepted}
    if not isinstance(batch, Mapping):
        return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), modes
    chosen = {name: value for name, value in batch.items() if name in accepted}
    if not chosen:
        raise NoExampleInputs(
            place=place,
            cause=f"the batch has {sorted(batch)}, but the forward pass takes {list(accepted) or 'nothing'}",
            fix="name the entries of example_inputs after the parameters of the forward pass",
        )
    modes = {name: value for name, value in modes.items() if name not in chosen}
    positional = [name for name, one in accepted.items() if one.kind is one.POSITIONAL_ONLY]
    return tuple(chosen.pop(name) for name in positional if name in chosen), {**chosen, **modes}


def _accepted(call: Callable[..., Any], skip: int = 0) -> dict[str, bool]:
    """The parameters of a forward pass, and whether they are given by position alone."""
    parameters = list(inspect.signature(call).parameters.items())[skip:]
    return {name: one.kind is one.POSITIONAL_ONLY for name, one in parameters}


def _keyed(call: Callable[..., Any], given: Mapping[str, Any], skip: int = 0) -> dict[str, Any]:
    names = list(inspect.signature(call).parameters)[skip:]
    return {name: jax.random.key(0) for name in KEYS if name in names and name not in given}


# The four ways --------------------------------------------------------------------------------------------------------


def _leaves(state: Any, place: str, kind_of: Callable[[str, Any], tuple[str, bool]]) -> tuple[Leaf, ...]:
    """The leaves of a tree of shapes; `kind_of` says what one is by its path, and whether it is drawn from."""
    found = []
    for keys, one in jax.tree_util.tree_flatten_with_path(state)[0]:
        path = path_of(keys)
        kind, random = kind_of(path, one)
        found.append(Leaf(kind, path, type_of(one, f"{place}, {path}"), random=random))
    if not any(leaf.kind == "param" for leaf in found):
        raise EmptyModel(place=place, cause="the model has no parameters", fix="plan for a model that has some")
    return tuple(found)


def path_of(keys: Any) -> str:
    """A path in a tree as modules have it: `blocks.0.kernel`."""
    words = []
    for key in keys:
        for name in ("name", "key", "idx"):
            if hasattr(key, name):
                words.append(str(getattr(key, name)))
                break
    if len(words) > 1 and words[-1] in ("value", "raw_value"):
        words.pop()
    return ".".join(words)


def _is_key(one: Any) -> bool:
    return str(one.dtype).startswith("key<")


def _floating(one: Any) -> bool:
    return bool(jax.numpy.issubdtype(one.dtype, jax.numpy.floating))


def _nnx(state: Any, static: Any, place: str, forward: Callable[..., Any] | None, said: Said) -> Made:
    nnx: Any = sys.modules["flax.nnx"]
    kinds = {".".join(map(str, path)): one for path, one in nnx.to_flat_state(state)}

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        variable = kinds.get(path)
        if isinstance(variable, nnx.Param):
            return "param", False
        drawn = isinstance(variable, nnx.RngState) or _is_key(one)
        return ("constant", True) if drawn else ("buffer", False)

    metadata: dict[str, Any] = {path: getattr(one, "get_metadata", dict)() for path, one in kinds.items()}
    names = {path: one.get("out_sharding") or one.get("sharding") for path, one in metadata.items()}
    leaves = tuple(replace(leaf, spec=said(names.get(leaf.path))) for leaf in _leaves(state, place, kind_of))

    def run(state: Any, batch: Any) -> tuple[Any, Any]:
        model = nnx.merge(static, state)
        if forward is not None:
            return forward(model, batch), nnx.state(model)
        positional, keyword = arguments(model.__call__, batch, place)
        outputs = model(*positional, **keyword, **_keyed(model.__call__, keyword))
        return outputs, nnx.state(model)

    named = any(names.values())
    return lambda batch: Stated(state, leaves, run, "nnx", _accepted(nnx.merge(static, state).__call__), named)


def _equinox(state: Any, static: Any, place: str, forward: Callable[..., Any] | None) -> Made:
    equinox: Any = sys.modules["equinox"]

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        if _is_key(one):
            return "constant", True
        return ("param", False) if _floating(one) else ("buffer", False)

    leaves = _leaves(state, place, kind_of)

    def run(state: Any, batch: Any) -> tuple[Any, Any]:
        model = equinox.combine(state, static)
        if forward is not None:
            return forward(model, batch), state
        positional, keyword = arguments(model.__call__, batch, place)
        drawn = _keyed(model.__call__, keyword)
        modes = {name: keyword.pop(name) for name in TRAINING if name in keyword}
        size = jax.tree.leaves((positional, keyword))[0].shape[0]
        keys = {name: jax.random.split(key, size) for name, key in drawn.items()}

        def one(given: Any, named: Any, key: Any) -> Any:
            return model(*given, **named, **key, **modes)

        return jax.vmap(one)(positional, keyword, keys), state

    return lambda batch: Stated(state, leaves, run, "equinox", _accepted(equinox.combine(state, static).__call__))


def _linen(module: Any, place: str, forward: Callable[..., Any] | None, said: Said) -> Made:
    from flax.core import meta

    keys = {name: jax.random.key(0) for name in ("params", "dropout")}

    def made(batch: Any) -> Stated:
        names: dict[str, Any] = {}

        def begin(batch: Any) -> Any:
            positional, keyword = arguments(module.__call__, batch, place)
            boxed = module.init(keys, *positional, **keyword, **_keyed(module.__call__, keyword))
            leaves = jax.tree_util.tree_flatten_with_path(boxed, is_leaf=meta.is_axis_metadata)[0]
            names.update({path_of(at): getattr(one, "names", None) for at, one in leaves})
            return meta.unbox(boxed)

        whole = jax.eval_shape(begin, batch)
        held = {name: dict(whole[name]) for name in whole}
        flat = {"params": held.pop("params", {}), **held}

        def kind_of(path: str, one: Any) -> tuple[str, bool]:
            return ("param", False) if path.startswith("params.") else ("buffer", False)

        leaves = tuple(
            Leaf(
                one.kind,
                one.path.removeprefix("params."),
                one.type,
                random=one.random,
                spec=said(names.get(one.path)),
            )
            for one in _leaves(flat, place, kind_of)
        )

        def run(state: Any, batch: Any) -> tuple[Any, Any]:
            if forward is not None:
                return forward(module.bind(state, rngs=keys), batch), state
            positional, keyword = arguments(module.__call__, batch, place)
            keyword |= _keyed(module.__call__, keyword)
            others = [name for name in state if name != "params"]
            result = module.apply(state, *positional, **keyword, rngs=keys, mutable=others or False)
            if not others:
                return result, state
            outputs, changed = result
            return outputs, {**state, **{name: changed.get(name, state[name]) for name in others}}

        return Stated(flat, leaves, run, "linen", _accepted(module.__call__))

    return made


def _pair(init: Callable[..., Any], apply: Callable[..., Any], place: str, forward: Callable[..., Any] | None) -> Made:
    try:
        state = jax.eval_shape(init, jax.random.key(0))
    except TypeError as error:
        raise FactoryRaised(
            place=place, cause=f"init cannot be called with a key: {error}", fix="return (init, apply), init(key)"
        ) from None

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        if _is_key(one):
            return "constant", True
        return ("param", False) if _floating(one) else ("buffer", False)

    leaves = _leaves(state, place, kind_of)

    def run(state: Any, batch: Any) -> tuple[Any, Any]:
        if forward is not None:
            return forward((init, apply), state, batch), state
        positional, keyword = arguments(apply, batch, place, skip=1)
        return apply(state, *positional, **keyword, **_keyed(apply, keyword, skip=1)), state

    return lambda batch: Stated(state, leaves, run, "pair", _accepted(apply, skip=1))
