"""What a factory of a JAX model may return, as one thing: leaves by path, and a function of them.

    Flax NNX module     its state: `Param` is trained, random state is drawn from, any other variable is a buffer
    Flax Linen module   what `init` makes of the batch: collection `params` is trained, others are buffers
    Equinox module      its arrays: floating ones are trained; it is called for each example of the batch (`jax.vmap`)
    (init, apply)       `init(key)` makes the parameters, `apply(params, …)` is the forward pass

Factories and `init` run under `jax.eval_shape`: no weight is made. Models are put into training mode. A forward pass
receives the entries of the batch that it has parameters for; a parameter called `key` or `rng` gets a random key,
`train` and its like say that this is training. A model that needs such keys has two leaves more, of which every step
makes its own (`drawn_from`); what an NNX module draws from is part of its state.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.errors import EmptyModel, FactoryRaised, NoExampleInputs
from meshwright.ir.frontends.jax_.dtypes import is_key, type_of
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
    keyed: bool = False
    """Whether keys are made for it, of two leaves that are its state's last ones (`drawn_from`)."""


Run = Callable[[Any, Any, Any], tuple[Any, Any]]
"""A model as a function of its state, a batch, and the key of a step, if it needs one."""
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


def keys_taken(accepted: Mapping[str, bool], batch: Any) -> tuple[str, ...]:
    """The parameters of a forward pass that get random keys."""
    return tuple(name for name in KEYS if name in accepted and not (isinstance(batch, Mapping) and name in batch))


def _keys(taken: Sequence[str], key: Any) -> dict[str, Any]:
    """A key for each parameter that gets one."""
    if len(taken) == 1:
        return {taken[0]: key}
    return {name: jax.random.fold_in(key, at) for at, name in enumerate(taken)}


def drawn_from(model: Stated, run: Run) -> Stated:
    """A model that is called with a key, with what keys are made of in its state: a key that stays, and how many steps
    there were, which every step changes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    rngs = {"count": jax.ShapeDtypeStruct((), jax.numpy.uint32), "key": key}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        own = state["rngs"]
        outputs, after = run(state["held"], batch, jax.random.fold_in(own["key"], own["count"]))
        return outputs, {"held": after, "rngs": {**own, "count": own["count"] + 1}}

    leaves = (Leaf("constant", f"rngs.{name}", type_of(one), random=True) for name, one in rngs.items())
    state = {"held": model.state, "rngs": rngs}
    return replace(model, state=state, leaves=(*model.leaves, *leaves), run=step, keyed=True)


def _stated(
    state: Any, leaves: tuple[Leaf, ...], run: Run, way: str, accepted: Mapping[str, bool], *, keyed: bool
) -> Stated:
    """A model, with what keys are made of where it is called with some."""
    model = Stated(state, leaves, lambda state, batch: run(state, batch, None), way, accepted)
    return drawn_from(model, run) if keyed else model


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


def _floating(one: Any) -> bool:
    return bool(jax.numpy.issubdtype(one.dtype, jax.numpy.floating))


def _nnx(state: Any, static: Any, place: str, forward: Callable[..., Any] | None, said: Said) -> Made:
    nnx: Any = sys.modules["flax.nnx"]
    kinds = {".".join(map(str, path)): one for path, one in nnx.to_flat_state(state)}

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        variable = kinds.get(path)
        if isinstance(variable, nnx.Param):
            return "param", False
        drawn = isinstance(variable, nnx.RngState) or is_key(one)
        return ("constant", True) if drawn else ("buffer", False)

    metadata: dict[str, Any] = {path: getattr(one, "get_metadata", dict)() for path, one in kinds.items()}
    names = {path: one.get("out_sharding") or one.get("sharding") for path, one in metadata.items()}
    leaves = tuple(replace(leaf, spec=said(names.get(leaf.path))) for leaf in _leaves(state, place, kind_of))

    accepted = _accepted(nnx.merge(static, state).__call__) if forward is None else {}

    def run(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        model = nnx.merge(static, state)
        if forward is not None:
            return forward(model, batch), nnx.state(model)
        positional, keyword = arguments(model.__call__, batch, place)
        keys = _keys(keys_taken(accepted, batch), key)
        keys |= {name: nnx.Rngs(key) for name, key in keys.items() if name == "rngs"}
        return model(*positional, **keyword, **keys), nnx.state(model)

    def made(batch: Any) -> Stated:
        keyed = bool(keys_taken(accepted, batch))
        return replace(_stated(state, leaves, run, "nnx", accepted, keyed=keyed), named=any(names.values()))

    return made


def _equinox(state: Any, static: Any, place: str, forward: Callable[..., Any] | None) -> Made:
    equinox: Any = sys.modules["equinox"]

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        if is_key(one):
            return "constant", True
        return ("param", False) if _floating(one) else ("buffer", False)

    leaves = _leaves(state, place, kind_of)

    accepted = _accepted(equinox.combine(state, static).__call__) if forward is None else {}

    def run(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        model = equinox.combine(state, static)
        if forward is not None:
            return forward(model, batch), state
        positional, keyword = arguments(model.__call__, batch, place)
        modes = {name: keyword.pop(name) for name in TRAINING if name in keyword}
        size = jax.tree.leaves((positional, keyword))[0].shape[0]
        keys = {name: jax.random.split(one, size) for name, one in _keys(keys_taken(accepted, batch), key).items()}

        def one(given: Any, named: Any, key: Any) -> Any:
            return model(*given, **named, **key, **modes)

        return jax.vmap(one)(positional, keyword, keys), state

    return lambda batch: _stated(state, leaves, run, "equinox", accepted, keyed=bool(keys_taken(accepted, batch)))


def _linen(module: Any, place: str, forward: Callable[..., Any] | None, said: Said) -> Made:
    from flax import linen
    from flax.core import meta
    from flax.errors import InvalidRngError

    def keys_of(key: Any) -> dict[str, Any]:
        return dict(zip(("params", "dropout"), jax.random.split(key), strict=True))

    accepted = _accepted(module.__call__) if forward is None else {}

    def made(batch: Any) -> Stated:
        names: dict[str, Any] = {}
        taken = keys_taken(_accepted(module.__call__), batch)

        def begin(batch: Any) -> Any:
            key = jax.random.key(0)
            if forward is not None:
                boxed = linen.init(forward, module)(keys_of(key), batch)
            else:
                positional, keyword = arguments(module.__call__, batch, place)
                boxed = module.init(keys_of(key), *positional, **keyword, **_keys(taken, key))
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

        def run(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
            rngs = {} if key is None else keys_of(key)
            others = [name for name in state if name != "params"]
            if forward is not None:
                result = linen.apply(forward, module, mutable=others or False)(state, batch, rngs=rngs)
            else:
                positional, keyword = arguments(module.__call__, batch, place)
                keyword |= {} if key is None else _keys(taken, key)
                result = module.apply(state, *positional, **keyword, rngs=rngs, mutable=others or False)
            if not others:
                return result, state
            outputs, changed = result
            return outputs, {**state, **{name: changed.get(name, state[name]) for name in others}}

        def draws() -> bool:
            """Whether it asks for a key by itself."""
            try:
                jax.eval_shape(lambda state, batch: run(state, batch, None)[0], flat, batch)
            except InvalidRngError:
                return True
            return False

        keyed = bool(taken and forward is None) or draws()
        return _stated(flat, leaves, run, "linen", accepted, keyed=keyed)

    return made


def _pair(init: Callable[..., Any], apply: Callable[..., Any], place: str, forward: Callable[..., Any] | None) -> Made:
    try:
        state = jax.eval_shape(init, jax.random.key(0))
    except TypeError as error:
        raise FactoryRaised(
            place=place, cause=f"init cannot be called with a key: {error}", fix="return (init, apply), init(key)"
        ) from None

    def kind_of(path: str, one: Any) -> tuple[str, bool]:
        if is_key(one):
            return "constant", True
        return ("param", False) if _floating(one) else ("buffer", False)

    leaves = _leaves(state, place, kind_of)

    accepted = _accepted(apply, skip=1) if forward is None else {}

    def run(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        if forward is not None:
            return forward((init, apply), state, batch), state
        positional, keyword = arguments(apply, batch, place, skip=1)
        return apply(state, *positional, **keyword, **_keys(keys_taken(accepted, batch), key)), state

    return lambda batch: _stated(state, leaves, run, "pair", accepted, keyed=bool(keys_taken(accepted, batch)))
