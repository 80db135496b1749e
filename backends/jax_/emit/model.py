"""How the user's model is made and called in a script, by the four ways of writing one (`Invoked`).

Each defines `begin()`, which makes the trained parameters (under `jit`, so that every device makes its own part), and
`outputs_of(state, batch)`, the forward pass. What a model holds besides (running statistics, tables, keys) is a tree of
its own, `rest`, which the forward pass is given. Where that changes it (`changes`), `begin_rest()` makes it, the
forward pass returns what is left of it, and each step hands it to the next; else it stands in the script once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from meshwright.backends.subject import Subject
from meshwright.ir.graph.calls import Invoked
from meshwright.ir.quoting import attribute, keywords, literal


def model(subject: Subject) -> Iterator[str]:
    """The functions `begin` and `outputs_of`, and what there is of a rest."""
    calls = subject.calls
    assert calls.invoked is not None
    factory = attribute("model_file", calls.factory)
    yield from WAYS[calls.invoked.way](calls.invoked, factory, changes(subject))


def changes(subject: Subject) -> bool:
    """Whether the forward pass changes what the model holds beside its parameters."""
    return any(body.updates for body in subject.program.bodies)


CARRIED_ARGUMENTS = "state: Tree, rest: Tree, batch: Batch"
"""Of functions of a step, where the forward pass changes the rest."""


def has_rest(invoked: Invoked) -> bool:
    """Whether a model holds more than its parameters; of an NNX module that is what is left when these are taken."""
    return invoked.way == "nnx" or bool(invoked.rest)


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


def _begin_rest(made: str, *, changed: bool) -> Iterator[str]:
    if changed:
        yield "def begin_rest() -> Tree:"
        yield '    """What the model holds besides."""'
        yield f"    return {made}"
    else:
        yield f"rest = jax.jit(lambda: {made})()  # no step changes it"
    yield from ("", "")


def _outputs(*lines: str, rest: bool = False, changed: bool = False) -> Iterator[str]:
    yield f"def outputs_of(state: Tree, batch: Batch{', rest: Tree' * rest}) -> Any:"
    yield f'    """The forward pass{", and what the model holds besides then" * changed}."""'
    yield from (f"    {line}" for line in lines)


def _pair(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = has_rest(invoked)
    yield f"init, apply = {factory}()"
    yield ""
    yield ""
    if rest:
        yield "def of(tree: Tree, trained: bool) -> Tree:"
        kept = "one if jnp.issubdtype(one.dtype, jnp.floating) is trained else None"
        yield f"    return jax.tree.map(lambda one: {kept}, tree)"
        yield from ("", "")
        yield "def either(one: Any, other: Any) -> Any:"
        yield "    return other if one is None else one"
        yield from ("", "")
    made = "init(jax.random.key(SEED))"
    yield from _begin(f"return of({made}, True)" if rest else f"return {made}")
    yield from _begin_rest(f"of({made}, False)", changed=changed) if rest else ()
    own = f"apply(state, {_arguments(invoked)})"
    yield from _outputs(
        *["state = jax.tree.map(either, state, rest, is_leaf=lambda one: one is None)"] * rest,
        f"return {'model_file.forward((init, apply), state, batch)' if invoked.forward else own}",
        rest=rest,
    )


def _nnx(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    if invoked.named:
        yield "nnx.use_eager_sharding(False)  # where parameters lie is said here, not in the model"
    yield from _made(f"model = {factory}()", "model.train()", "return model")
    yield "static = nnx.graphdef(nnx.eval_shape(made))"
    yield from ("", "") if changed else ()
    yield from _begin_rest("nnx.state(made(), nnx.Not(nnx.Param))", changed=changed)
    yield from _begin("return nnx.state(made(), nnx.Param)")
    own = "model_file.forward(model, batch)" if invoked.forward else f"model({_arguments(invoked)})"
    yield from _outputs(
        "model = nnx.merge(static, state, rest)",
        f"return {own}{', nnx.state(model, nnx.Not(nnx.Param))' * changed}",
        rest=True,
        changed=changed,
    )


def _linen(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = has_rest(invoked)
    yield f"model = {factory}()"
    yield 'keys = {name: jax.random.key(SEED) for name in ("params", "dropout")}'
    made = (
        "batch = model_file.example_inputs(GLOBAL_BATCH, SEQ)",
        f"return meta.unbox(model.init(keys, {_arguments(invoked)}))",
    )
    yield ""
    yield ""
    if rest:
        yield "def variables() -> Tree:"
        yield from (f"    {line}" for line in made)
        yield ""
        yield ""
        yield from _begin('return variables()["params"]')
        others = '{name: one for name, one in variables().items() if name != "params"}'
        yield from _begin_rest(others, changed=changed)
    else:
        yield from _begin(made[0], f'{made[1].removesuffix(")")}["params"])')
    held = f'{{"params": state{", **rest" * rest}}}'
    if invoked.forward:
        yield from _outputs(f"return model_file.forward(model.bind({held}, rngs=keys), batch)", rest=rest)
        return
    given = [f"held = {held}"] * rest
    own = f"model.apply({'held' if rest else held}, {_arguments(invoked)}, rngs=keys{', mutable=list(rest)' * rest})"
    lines = (
        (f"outputs, left = {own}", "return outputs, {**rest, **left}") if changed else (f"return {own}{'[0]' * rest}",)
    )
    yield from _outputs(*given, *lines, rest=rest, changed=changed)


def _equinox(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = has_rest(invoked)
    yield from _made(f"return equinox.nn.inference_mode({factory}(), value=False)")
    yield "shapes = equinox.filter_eval_shape(made)"
    yield "static = equinox.partition(shapes, lambda one: isinstance(one, jax.ShapeDtypeStruct))[1]"
    yield ""
    yield ""
    yield from _begin(f"return equinox.partition(made(), equinox.is_{'inexact_' * rest}array)[0]")
    others = "equinox.filter(arrays(), equinox.is_inexact_array, inverse=True)"
    if rest:
        yield from ("def arrays() -> Tree:", "    return equinox.filter(made(), equinox.is_array)", "", "")
    yield from _begin_rest(others, changed=changed) if rest else ()
    whole = f"equinox.combine(state{', rest' * rest}, static)"
    if invoked.forward:
        yield from _outputs(f"return model_file.forward({whole}, batch)", rest=rest)
        return
    bare = Invoked(way=invoked.way, arguments=invoked.arguments, modes=invoked.modes)
    entries = ", ".join(f"{literal(entry)}: batch[{literal(entry)}]" for _, entry in invoked.arguments)
    yield from _outputs(
        f"model = {whole}",
        f"return jax.vmap(lambda one: model({_arguments(bare, 'one')}))({{{entries}}})",
        rest=rest,
    )


WAYS: Mapping[str, Callable[[Invoked, str, bool], Iterator[str]]] = {
    "pair": _pair,
    "nnx": _nnx,
    "linen": _linen,
    "equinox": _equinox,
}
"""The four ways."""
