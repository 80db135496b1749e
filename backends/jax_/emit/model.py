"""How the user's model is made and called in a script, by the four ways of writing one (`Invoked`).

Each defines `begin()`, which makes the trained parameters (under `jit`, so that every device makes its own part), and
`outputs_of(state, batch)`, the forward pass. What a model holds besides (running statistics, tables, keys) is a tree of
its own, `rest`, which the forward pass is given. Where that changes it (`changes`), `begin_rest()` makes it, the
forward pass returns what is left of it, and each step hands it to the next; else it stands in the script once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from meshwright.backends.lines import fitted
from meshwright.backends.subject import Subject
from meshwright.ir.graph.calls import Invoked
from meshwright.ir.quoting import attribute, keywords, literal


def model(subject: Subject) -> Iterator[str]:
    """The functions `begin` and `outputs_of`, and what there is of a rest."""
    own = invoked(subject)
    for line in WAYS[own.way](own, attribute("model_file", subject.calls.factory), changes(subject)):
        yield from fitted(line)


def invoked(subject: Subject) -> Invoked:
    """How the model is made and called."""
    assert subject.calls.invoked is not None
    return subject.calls.invoked


def changes(subject: Subject) -> bool:
    """Whether a step changes what the model holds beside its parameters."""
    return draws(subject) or any(body.updates for body in subject.program.bodies)


def loss_of(subject: Subject, outputs: str, batch: str) -> str:
    """The loss of what a model returns for a batch, as code: by the file's hook, or the model's own."""
    own = subject.calls.own_loss
    return f"model_file.loss({outputs}, {batch})" if own is None else f"{outputs}{own}"


def draws(subject: Subject) -> bool:
    """Whether a step draws random numbers."""
    return invoked(subject).draws


def carried(text: str, changed: bool) -> str:
    """A text with what stands in marks, or without it: what is carried from step to step."""
    return re.sub(r"<<(.*?)>>", r"\1" if changed else "", text, flags=re.DOTALL)


CARRIED_ARGUMENTS = "state: Tree, rest: Tree, batch: Batch"
"""Of functions of a step, where the forward pass changes the rest."""
RNGS = ("rngs.count", "rngs.key")
"""The last of the rest, where every step is given a key: how many steps there were, and the key that theirs are made
of."""


def with_keys(subject: Subject) -> Subject:
    """The same model, given a key for every step if it draws: printed code draws by that, not by what a model holds."""
    own = invoked(subject)
    if own.keyed or not own.draws:
        return subject
    return replace(subject, calls=replace(subject.calls, invoked=replace(own, keyed=True, rest=(*own.rest, *RNGS))))


def has_rest(invoked: Invoked) -> bool:
    """Whether a model holds more than its parameters; of an NNX module that is what is left when these are taken."""
    return invoked.way == "nnx" or bool(invoked.rest)


def rest_paths(invoked: Invoked) -> dict[str, str]:
    """Of what the model holds besides the paths in the script's `rest`, by the model's own."""
    if not invoked.keyed:
        return {path: path for path in invoked.rest}
    return {path: f"held.{path}" for path in invoked.rest[: -len(RNGS)]}


def _has_own_rest(invoked: Invoked) -> bool:
    return invoked.way == "nnx" or bool(rest_paths(invoked))


def needs(invoked: Invoked) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The imports that these functions need beside JAX: of modules, and from modules."""
    calls = ("from flax import linen",) * invoked.forward
    return {
        "nnx": ((), ("from flax import nnx",)),
        "linen": ((), (*calls, "from flax.core import meta")),
        "equinox": (("import equinox",), ()),
    }.get(invoked.way, ((), ()))


def _arguments(invoked: Invoked, batch: str = "batch", key: str = "key") -> str:
    """What a forward pass is given."""
    by_place = [f"{batch}[{literal(entry)}]" for name, entry in invoked.arguments if not name]
    named = {name: f"{batch}[{literal(entry)}]" for name, entry in invoked.arguments if name}
    keys = _keys(invoked, key)
    if invoked.way == "nnx" and "rngs" in keys:
        keys["rngs"] = f"nnx.Rngs({keys['rngs']})"
    modes = {name: repr(value) for name, value in invoked.modes}
    return ", ".join((*by_place, *keywords({**named, **modes, **keys})))


def _keys(invoked: Invoked, key: str) -> dict[str, str]:
    """A key for each parameter of a forward pass that gets one, as code."""
    several = len(invoked.keys) > 1
    return {name: f"jax.random.fold_in({key}, {at})" if several else key for at, name in enumerate(invoked.keys)}


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


def _begin_rest(invoked: Invoked, made: str, *, changed: bool) -> Iterator[str]:
    """What makes the rest, or the rest itself; `made`: what the model holds, as code."""
    own = _has_own_rest(invoked)
    if invoked.keyed:
        yield "def begin_rest() -> Tree:"
        yield f'    """What {"the model holds besides, and what " * own}random keys are made of."""'
        yield '    rngs = {"count": jnp.zeros((), jnp.uint32), "key": jax.random.key(SEED)}'
        held = f'"held": {made}, ' * own
        yield f'    return {{{held}"rngs": rngs}}'
    elif not own:
        return
    elif changed:
        yield "def begin_rest() -> Tree:"
        yield '    """What the model holds besides."""'
        yield f"    return {made}"
    else:
        yield f"rest = jax.jit(lambda: {made})()  # no step changes it"
    yield from ("", "")


def _held(invoked: Invoked) -> str:
    """What the model holds besides, as code."""
    return 'rest["held"]' if invoked.keyed else "rest"


def _outputs(invoked: Invoked, *lines: str, made: str, after: str = "", changed: bool) -> Iterator[str]:
    """The function `outputs_of`; `made` is what it returns, `after` what the model holds besides then, as code."""
    yield f"def outputs_of(state: Tree, batch: Batch{', rest: Tree' * has_rest(invoked)}) -> Any:"
    yield f'    """The forward pass{", and what the model holds besides then" * changed}."""'
    if invoked.keyed:
        yield '    rngs = rest["rngs"]'
        yield '    key = jax.random.fold_in(rngs["key"], rngs["count"])'
    yield from (f"    {line}" for line in lines)
    after = after or _held(invoked)
    if not changed:
        yield f"    return {made}"
    elif not invoked.keyed:
        yield f"    return {made}, {after}"
    else:
        yield f"    outputs = {made}"
        held = f'"held": {after}, ' * _has_own_rest(invoked)
        yield f'    return outputs, {{{held}"rngs": {{**rngs, "count": rngs["count"] + 1}}}}'


def _pair(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = _has_own_rest(invoked)
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
    yield from _begin_rest(invoked, f"of({made}, False)", changed=changed)
    own = f"apply(state, {_arguments(invoked)})"
    yield from _outputs(
        invoked,
        *[f"state = jax.tree.map(either, state, {_held(invoked)}, is_leaf=lambda one: one is None)"] * rest,
        made="model_file.forward((init, apply), state, batch)" if invoked.forward else own,
        changed=changed,
    )


def _nnx(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    if invoked.named:
        yield "nnx.use_eager_sharding(False)  # where parameters lie is said here, not in the model"
    yield from _made(f"model = {factory}()", "model.train()", "return model")
    yield "static = nnx.graphdef(nnx.eval_shape(made))"
    yield from ("", "") if changed else ()
    yield from _begin_rest(invoked, "nnx.state(made(), nnx.Not(nnx.Param))", changed=changed)
    yield from _begin("return nnx.state(made(), nnx.Param)")
    yield from _outputs(
        invoked,
        f"model = nnx.merge(static, state, {_held(invoked)})",
        made="model_file.forward(model, batch)" if invoked.forward else f"model({_arguments(invoked)})",
        after="nnx.state(model, nnx.Not(nnx.Param))",
        changed=changed,
    )


def _linen(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = _has_own_rest(invoked)
    yield f"model = {factory}()"
    if invoked.keyed:
        yield from ("", "", "def keys_of(key: jax.Array) -> dict[str, jax.Array]:")
        yield '    return dict(zip(("params", "dropout"), jax.random.split(key), strict=True))'
    first = "jax.random.key(SEED)"
    keys = f"keys_of({first})" if invoked.keyed else first
    init = f"model.init({keys}, {_arguments(invoked, key=first)})"
    if invoked.forward:
        init = f"linen.init(model_file.forward, model)({keys}, batch)"
    made = ("batch = model_file.example_inputs(GLOBAL_BATCH, SEQ)", f"return meta.unbox({init})")
    yield ""
    yield ""
    if rest:
        yield "def variables() -> Tree:"
        yield from (f"    {line}" for line in made)
        yield ""
        yield ""
        yield from _begin('return variables()["params"]')
    else:
        yield from _begin(made[0], f'{made[1].removesuffix(")")}["params"])')
    others = '{name: one for name, one in variables().items() if name != "params"}'
    yield from _begin_rest(invoked, others, changed=changed)
    held = f'{{"params": state{f", **{_held(invoked)}" * rest}}}'
    rngs = ", rngs=keys_of(key)" * invoked.keyed
    given = [f"held = {held}"] * rest
    mutable = f", mutable=list({_held(invoked)})" * rest
    own = f"model.apply({'held' if rest else held}, {_arguments(invoked)}{rngs}{mutable})"
    if invoked.forward:
        own = f"linen.apply(model_file.forward, model{mutable})({'held' if rest else held}, batch{rngs})"
    if changed and rest:
        left = f"{{**{_held(invoked)}, **left}}"
        yield from _outputs(invoked, *given, f"outputs, left = {own}", made="outputs", after=left, changed=True)
    else:
        yield from _outputs(invoked, *given, made=f"{own}{'[0]' * rest}", changed=changed)


def _equinox(invoked: Invoked, factory: str, changed: bool) -> Iterator[str]:
    rest = _has_own_rest(invoked)
    yield from _made(f"return equinox.nn.inference_mode({factory}(), value=False)")
    yield "shapes = equinox.filter_eval_shape(made)"
    yield "static = equinox.partition(shapes, lambda one: isinstance(one, jax.ShapeDtypeStruct))[1]"
    yield ""
    yield ""
    yield from _begin(f"return equinox.partition(made(), equinox.is_{'inexact_' * rest}array)[0]")
    if rest:
        yield from ("def arrays() -> Tree:", "    return equinox.filter(made(), equinox.is_array)", "", "")
    others = "equinox.filter(arrays(), equinox.is_inexact_array, inverse=True)"
    yield from _begin_rest(invoked, others, changed=changed)
    whole = f"equinox.combine(state{f', {_held(invoked)}' * rest}, static)"
    if invoked.forward:
        yield from _outputs(invoked, made=f"model_file.forward({whole}, batch)", changed=changed)
        return
    bare = replace(invoked, keys=())
    entries = ", ".join(f"{literal(entry)}: batch[{literal(entry)}]" for _, entry in invoked.arguments)
    if not invoked.keys:
        one = f"lambda one: model({_arguments(bare, 'one')})"
        yield from _outputs(invoked, f"model = {whole}", made=f"jax.vmap({one})({{{entries}}})", changed=changed)
        return
    keys = ", ".join(f"{literal(name)}: jax.random.split({key}, size)" for name, key in _keys(invoked, "key").items())
    yield from _outputs(
        invoked,
        f"model = {whole}",
        f"batch = {{{entries}}}",
        "size = len(jax.tree.leaves(batch)[0])",
        f"keys = {{{keys}}}",
        made=f"jax.vmap(lambda one, keys: model({_arguments(bare, 'one')}, **keys))(batch, keys)",
        changed=changed,
    )


WAYS: Mapping[str, Callable[[Invoked, str, bool], Iterator[str]]] = {
    "pair": _pair,
    "nnx": _nnx,
    "linen": _linen,
    "equinox": _equinox,
}
"""The four ways."""
