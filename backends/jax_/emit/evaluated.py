"""The user's loss run as it is traced: the jaxpr equation by equation, with values where the plan has them.

Shardings of values stand in tables by place (`tables`); what runs the jaxpr puts a constraint where one has something
to say. Blocks that are computed again are run under `jax.checkpoint` (`recompute`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from meshwright.backends.jax_.emit import recompute
from meshwright.backends.jax_.emit.model import CARRIED_ARGUMENTS, changes, draws, has_rest, invoked, loss_of
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.tables import values_tables
from meshwright.backends.subject import Subject

COMPUTE = "jnp.bfloat16"
LOSS = '''\
def loss_of(state: Tree, batch: Batch) -> jax.Array:
    """The user's loss, run as it is traced, with values where the plan has them."""
CASTUSED    given = (state, batchREST)
TRACED
    if crc32(" ".join(primitives(traced.jaxpr)).encode()) != TRACE:
        sys.exit("values have other places than when this was written: the model or JAX has changed, so emit it again")
RETURN
'''
TRACED = "    traced = jax.make_jaxpr(lambda *given: LOSS)(*given)"
RETURN = "    return evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(given)<paths>)[0]"
TRACED_CHANGES = """
    def whole(state: Tree, batch: Batch, rest: Tree) -> tuple[jax.Array, Tree]:
        outputs, rest = outputs_of(state, batch, rest)
        return LOSS, rest

AS_TRACED"""
AS_TRACED = "    traced = jax.make_jaxpr(whole)(*given)"
AS_PLANNED = """\
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), given)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # what is drawn asks where it lies
        traced = jax.make_jaxpr(whole)(*shapes)"""
"""Where the step draws: Flax traces other equations for values that lie on a mesh."""
RETURN_CHANGES = """\
    loss, *left = evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(given)<paths>)
    return loss, jax.tree.unflatten(jax.tree.structure(rest), left)"""
"""Where the forward pass changes what the model holds beside its parameters."""

MOVED = '''\
def moved(place: str, first: int) -> str:
    """A place in a block that begins at this equation."""
    number, mark, rest = re.split("([/:])", place, maxsplit=1)
    return f"{first + int(number)}{mark}{rest}"


'''

EVALUATE = '''\
def path_of(keys: Any) -> Any:
    return PATH


def alike(path: str) -> str:
    """A path with any number for its numbers."""
    return re.sub(r"(?<![^.])\\d+(?![^.])", "*", path)


def lie(table: dict[str, P], tree: Any) -> Any:
    """For every leaf the sharding that a table has for its path."""

    def of(keys: Any, leaf: Any) -> NamedSharding:
        path = path_of(keys)
        return NamedSharding(mesh, table[path] if path in table else table[alike(path)])

    return tree_map_with_path(of, tree)


def lying(value: Any, spec: P | None) -> Any:
    return LYING


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def both_lying(value: jax.Array, spec: P | None, gradient: P | None) -> Any:
    return lying(value, spec)


both_lying.defvjp(
    lambda value, spec, gradient: (lying(value, spec), None),
    lambda spec, gradient, _, grad: (lying(grad, gradient),),
)


def pinned(value: Any, place: str) -> Any:
    """A value where the plan has it. XLA would cut, and pad, dimensions of a single element: these stay whole."""
    if place not in VALUES and 1 in jnp.shape(value):
        return lying(value, P(*(None if extent == 1 else P.UNCONSTRAINED for extent in value.shape)))
<keys>    for spec, gradient in VALUES.get(place, ()):
        trained = jnp.issubdtype(value.dtype, jnp.inexact)
        value = both_lying(value, spec, gradient) if trained else lying(value, spec)
    return <pinned>


def evaluate(jaxpr: Any, consts: Any, given: Any, place: str = ""<names>) -> list[Any]:
    """Run a jaxpr equation by equation: the user's own code, with values pinned."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))
<own>LOOP    return [read(one, known) for one in jaxpr.outvars]


def read(one: Any, known: dict[Any, Any]) -> Any:
    return one.val if isinstance(one, Literal) else known[one]


def made(equation: Any, known: dict[Any, Any], here: str) -> dict[Any, Any]:
    """What an equation makes."""
    results = run(equation, [read(one, known) for one in equation.invars], here)
    pairs = zip(equation.outvars, results, strict=True)
    return {var: pinned(one, f"{here}:{at}") for at, (var, one) in enumerate(pairs)}


BLOCKSdef spoken_of(equation: Any, here: str) -> bool:
    """Whether the plan has something to say of an equation's body: it does of what is computed again."""
    name, bodies = equation.primitive.name, jaxprs_in_params(equation.params)
    names = (name, *(inner for body in bodies for inner in primitives(body)))
    inside = name in ("jit", "scan", *CHECKPOINT) and not set(CHECKPOINT).isdisjoint(names)
    return inside or any(place.startswith(f"{here}/") for place in <places>)


def run(equation: Any, operands: list[Any], here: str) -> list[Any]:
    """One equation; of one whose body the plan speaks of, that body."""
    params = equation.params
    if not spoken_of(equation, here):
        given = {var: one for var, one in zip(equation.invars, operands, strict=True) if not isinstance(var, Literal)}
        return list(eval_jaxpr(Jaxpr((), list(given), equation.outvars, [equation]), (), *given.values()))
    jaxpr, consts = getattr(params["jaxpr"], "jaxpr", params["jaxpr"]), getattr(params["jaxpr"], "consts", ())
    if equation.primitive.name != "scan":
        return evaluate(jaxpr, consts, operands, f"{here}/")
    fixed, carried = params["num_consts"], params["num_carry"]
<listed>
    def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        given = [pinned(one, f"{here}.{at}") for at, one in enumerate((*operands[:fixed], *carry, *rows))]
        results = evaluate(jaxpr, consts, given, f"{here}/"<operands>)
        return results[:carried], results[carried:]

    carry, rows = operands[fixed : fixed + carried], operands[fixed + carried :]
    carry, rows = jax.lax.scan(body, carry, rows, **{key: params[key] for key in ("length", "reverse", "unroll")})
    return [*carry, *rows]


def primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives, in order."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for body in jaxprs_in_params(equation.params):
            yield from primitives(body)
'''


LOOP = """\
    for number, equation in enumerate(jaxpr.eqns):
        known |= made(equation, known, f"{place}{number}")
"""

LOOP_OF_BLOCKS = """\
    numbered, first = list(enumerate(jaxpr.eqns)), 0
    while first < len(numbered):
        here = f"{place}{first}"
        last = AGAIN.get(here, first + 1) or len(numbered)
        if here in AGAIN:
            later = {*read_by(numbered[last:]), *(id(one) for one in jaxpr.outvars)}
            known |= again(numbered[first:last], known, later, place<given>)
        else:
            known |= made(jaxpr.eqns[first], known, here)
        first = last
"""

BLOCKS = '''\
def read_by(numbered: Any) -> dict[int, Any]:
    return {id(one): one for _, equation in numbered for one in equation.invars if not isinstance(one, Literal)}


def again(numbered: Any, known: dict[Any, Any], later: set[int], place: str<argument>) -> dict[Any, Any]:
    """What the equations of a block make that is read later. The backward pass runs them again, from what they read."""
    given = [one for one in read_by(numbered).values() if one in known]
    left = [var for _, equation in numbered for var in equation.outvars if id(var) in later]

    @<checkpoint>
    def block(values: list[Any]) -> list[Any]:
        inside = <inside>
        for number, equation in numbered:
            inside |= made(equation, inside, f"{place}{number}")
        return [inside[var] for var in left]

    return dict(zip(left, block([known[one] for one in given]), strict=True))


'''

GATHERS = '''\
def gathered(value: Any, name: str | None) -> Any:
    """What a block reads; of a parameter that it gathers, all of it."""
    spec = GATHERED.get(name or "", GATHERED.get(alike(name or "")))
    return value if spec is None else checkpoint_name(lying(value, spec), "gathered")


'''
WAITS = '''\
def waiting(value: Any, name: str | None) -> Any:
    """What a block reads, named where it waits in the host's memory until the backward pass runs the block again."""
    waits = name in ON_HOST and jnp.issubdtype(value.dtype, jnp.inexact)
    return checkpoint_name(value, "waiting") if waits else value


'''
PATHS = '''\
def paths_of(state: Any) -> list[str]:
    """The paths of parameters, in the order in which they are given."""
    return [path_of(keys) for keys, _ in tree_leaves_with_path(state)]


'''
OWN = "    own = dict(zip(jaxpr.invars, names, strict=False))  # of what blocks gather\n"
OWN_MADE = """\
    own = dict(zip(jaxpr.invars, names, strict=False))  # of what blocks gather, and of what waits on the host
    own |= {var: f"{place}{at}:{nth}" for at, one in enumerate(jaxpr.eqns) for nth, var in enumerate(one.outvars)}
"""
LISTED = '    names = [f"{here}@{at}" for at in range(len(operands))]\n'
LISTED_CARRIED = '    names[fixed : fixed + carried] = [f"{here}@+"] * carried\n'
KEYS = """\
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return lying(value, P())  # every device makes all keys
"""
CHEAPLY = 'partial(jax.checkpoint, policy=but_cheap if f"{place}{numbered[0][0]}" in CHEAPLY else None)'


def marks(shardings: Shardings, blocks: Collection[str]) -> Mapping[str, str]:
    """What stands in marks of these names, where these blocks are run again."""
    cheaply, chooses = recompute.cheaply(shardings), recompute.chooses(shardings)
    gathers = bool(shardings.gathered_again)
    waits = bool(recompute.waiting(shardings))
    few = CHEAPLY if len(cheaply) < len(blocks) else "partial(jax.checkpoint, policy=but_cheap)"
    policy = "partial(jax.checkpoint, policy=WAITING)" if waits else few if cheaply else "jax.checkpoint"
    one = "gathered(one, own.get(var))" if gathers else "one"
    one = f"waiting({one}, own.get(var))" if waits else one
    inside = f"{{var: {one} for var, one in zip(given, values, strict=True)}}"
    if gathers and waits:
        inside = f"{{\n            {inside[1:-1]}\n        }}"
    named = gathers or waits
    return {
        "keys": KEYS * draws(shardings.subject),
        "places": "(*VALUES, *AGAIN)" if blocks else "VALUES",
        "names": ", names: Any = ()" * named,
        "own": (OWN_MADE if waits else OWN) * named,
        "listed": (LISTED + LISTED_CARRIED * waits) * named,
        "operands": ", names" * named,
        "given": ", own" * named,
        "argument": ", own: Any" * named,
        "pinned": 'checkpoint_name(value, "kept") if place in VALUES else value' if chooses else "value",
        "checkpoint": policy,
        "inside": inside if named else "dict(zip(given, values, strict=True))",
    }


def imports(shardings: Shardings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the file in which the user's loss is run: from Python, and from JAX."""
    named = any((recompute.chooses(shardings), recompute.waiting(shardings), shardings.gathered_again))
    trees = ("tree_leaves_with_path", "tree_map_with_path") if shardings.blocks_gather else ("tree_map_with_path",)
    return (
        (
            "import re",
            "from collections.abc import Iterator",
            "from functools import partial",
            "from typing import Any",
        ),
        (
            "import jax",
            "import jax.numpy as jnp",
            *["from jax.ad_checkpoint import checkpoint_name"] * named,
            "from jax.core import eval_jaxpr",
            "from jax.extend.core import Jaxpr, Literal, jaxprs_in_params",
            "from jax.sharding import AxisType, NamedSharding",
            "from jax.sharding import PartitionSpec as P",
            f"from jax.tree_util import {', '.join(('keystr', *trees))}",
        ),
    )


def loss(subject: Subject, shardings: Shardings) -> Iterator[str]:
    """The user's loss, run as it is traced."""
    used = "    state = jax.lax.with_sharding_constraint(state, lie(USED, state))\n" if shardings.used_apart else ""
    used = (f"    state = cast(state, {COMPUTE})  # what is kept is in fp32\n" * subject.workload.states.casts) + used
    text = LOSS.replace("CASTUSED", used).replace("REST", ", rest" * has_rest(invoked(subject)))
    if changes(subject):
        text = text.replace(
            "state: Tree, batch: Batch) -> jax.Array", f"{CARRIED_ARGUMENTS}) -> tuple[jax.Array, Tree]"
        )
        text = text.replace("TRACED", TRACED_CHANGES).replace("RETURN", RETURN_CHANGES)
        text = text.replace("AS_TRACED", AS_PLANNED if draws(subject) else AS_TRACED)
    text = text.replace("TRACED", TRACED).replace("RETURN", RETURN)
    outputs, batch = ("outputs", "batch") if changes(subject) else ("outputs_of(*given)", "given[1]")
    text = text.replace("LOSS", loss_of(subject, outputs, batch))
    yield from text.replace("<paths>", ", names=paths_of(state)" * shardings.blocks_gather).split("\n")


def evaluated(shardings: Shardings, check: int, path: str) -> Iterator[str]:
    """Where values lie, and what runs the user's loss."""
    blocks = recompute.again(shardings)
    yield from ("", "", *MOVED.rstrip().split("\n"), "", "") if shardings.blocks else ()
    yield from values_tables(shardings)
    yield from recompute.tables(shardings, blocks) if blocks else ()
    yield 'CHECKPOINT = ("checkpoint", "remat", "remat2")  # the names that JAX has given to it'
    yield f"TRACE = {check}  # of the loss that this is for: a sum over its primitives"
    yield from ("", "")
    before = "".join(
        f"{text}{apart}" * bool(used)
        for text, apart, used in (
            (recompute.BUT_CHEAP, "\n\n", recompute.chooses(shardings)),
            (GATHERS, "", shardings.gathered_again),
            (WAITS, "", recompute.waiting(shardings)),
            (PATHS, "", shardings.blocks_gather),
        )
    )
    text = (
        EVALUATE.replace("PATH", path)
        .replace("LYING", _lying(shardings))
        .replace("LOOP", LOOP_OF_BLOCKS if blocks else LOOP)
        .replace("BLOCKS", before + BLOCKS * bool(blocks))
    )
    for mark, line in marks(shardings, blocks).items():
        text = text.replace(f"<{mark}>", line)
    yield text


def _lying(shardings: Shardings) -> str:
    """A value where a PartitionSpec has it, as code; inside of what is manual, where its mesh has it."""
    if set(shardings.manual) == set(shardings.subject.mesh.names):
        return "value  # every device has its own"
    where = "spec" if shardings.manual or shardings.piped else "NamedSharding(mesh, spec)"
    return f"value if spec is None else jax.lax.with_sharding_constraint(value, {where})"
