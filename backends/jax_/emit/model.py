"""How the user's model is made and called in a script, by the four ways of writing one (`Invoked`).

Each defines `begin()`, which makes the state (under `jit`, so that every device makes its own part), and
`outputs_of(state, batch)`, the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from meshwright.ir.graph.calls import Calls, Invoked
from meshwright.ir.quoting import attribute, keywords, literal


def model(calls: Calls) -> Iterator[str]:
    """The functions `begin` and `outputs_of`."""
    assert calls.invoked is not None
    yield from WAYS[calls.invoked.way](calls.invoked, attribute("model_file", calls.factory))


def needs(invoked: Invoked) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The imports that these functions need beside JAX: of modules, and from modules."""
    return {
        "nnx": ((), ("from flax import nnx",)),
        "linen": ((), ("from flax.core import meta",)),
        "equinox": (("import equinox",), ()),
    }.get(invoked.way, ((), ()))


def _arguments(invoked: Invoked, batch: str = "batch") -> str:
    """What a forward pass is given."""
    by_place = [f"{batch}[{literal(entry)}]" for name, entry in invoked.arguments if not name]
    named = {name: f"{batch}[{literal(entry)}]" for name, entry in invoked.arguments if name}
    return ", ".join((*by_place, *keywords({**named, **{name: repr(value) for name, value in invoked.modes}})))


def _made(*lines: str) -> Iterator[str]:
    yield from ("", "", "def made() -> Any:")
    yield from (f"    {line}" for line in lines)
    yield ""
    yield ""


def _begin(*lines: str) -> Iterator[str]:
    yield "def begin() -> Tree:"
    yield '    """The parameters that training begins with."""'
    yield from (f"    {line}" for line in lines)
    yield ""
    yield ""


def _outputs(*lines: str, rest: bool = False) -> Iterator[str]:
    yield f"def outputs_of(state: Tree, batch: Batch{', rest: Tree' * rest}) -> Any:"
    yield '    """The forward pass."""'
    yield from (f"    {line}" for line in lines)


def _pair(invoked: Invoked, factory: str) -> Iterator[str]:
    yield f"init, apply = {factory}()"
    yield ""
    yield ""
    yield from _begin("return init(jax.random.key(SEED))")
    own = f"apply(state, {_arguments(invoked)})"
    yield from _outputs(f"return {'model_file.forward((init, apply), state, batch)' if invoked.forward else own}")


def _nnx(invoked: Invoked, factory: str) -> Iterator[str]:
    yield from _made(f"model = {factory}()", "model.train()", "return model")
    yield "static = nnx.graphdef(nnx.eval_shape(made))"
    yield "rest = jax.jit(lambda: nnx.state(made(), nnx.Not(nnx.Param)))()  # keys of a model that draws nothing"
    yield ""
    yield ""
    yield from _begin("return nnx.state(made(), nnx.Param)")
    own = "model_file.forward(model, batch)" if invoked.forward else f"model({_arguments(invoked)})"
    yield from _outputs("model = nnx.merge(static, state, rest)", f"return {own}", rest=True)


def _linen(invoked: Invoked, factory: str) -> Iterator[str]:
    yield f"model = {factory}()"
    yield 'keys = {name: jax.random.key(SEED) for name in ("params", "dropout")}'
    yield ""
    yield ""
    yield from _begin(
        "batch = model_file.example_inputs(GLOBAL_BATCH, SEQ)",
        f'return meta.unbox(model.init(keys, {_arguments(invoked)})["params"])',
    )
    forward = 'model_file.forward(model.bind({"params": state}, rngs=keys), batch)'
    own = f'model.apply({{"params": state}}, {_arguments(invoked)}, rngs=keys)'
    yield from _outputs(f"return {forward if invoked.forward else own}")


def _equinox(invoked: Invoked, factory: str) -> Iterator[str]:
    yield from _made(f"return equinox.nn.inference_mode({factory}(), value=False)")
    yield "shapes = equinox.filter_eval_shape(made)"
    yield "static = equinox.partition(shapes, lambda one: isinstance(one, jax.ShapeDtypeStruct))[1]"
    yield ""
    yield ""
    yield from _begin("return equinox.partition(made(), equinox.is_array)[0]")
    if invoked.forward:
        yield from _outputs("return model_file.forward(equinox.combine(state, static), batch)")
        return
    bare = Invoked(way=invoked.way, arguments=invoked.arguments, modes=invoked.modes)
    entries = ", ".join(f"{literal(entry)}: batch[{literal(entry)}]" for _, entry in invoked.arguments)
    yield from _outputs(
        "model = equinox.combine(state, static)",
        f"return jax.vmap(lambda one: model({_arguments(bare, 'one')}))({{{entries}}})",
    )


WAYS: Mapping[str, Callable[[Invoked, str], Iterator[str]]] = {
    "pair": _pair,
    "nnx": _nnx,
    "linen": _linen,
    "equinox": _equinox,
}
"""The four ways."""
