"""Code of a pipeline that divides: the parameters over stages, and the traced loss into parts.

The loss is divided where its trace shows it: what leads to the first unit's input, a unit of blocks, and what leads
from the last unit's output to the loss. What follows from a micro-batch alone is made where it is read.
"""

from __future__ import annotations

STATE = '''\
def by_path(tree: Tree) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in tree_flatten_with_path(tree)[0]}


def staged(tree: Tree) -> Tree:
    """Parameters as stages hold them: one stage's after the other's, along their first dimension."""
HELD    def of(keys: Any, leaf: Any) -> Any:
        path = path_of(keys)
        if path in SHARED:
            return leaf
        if path in ENDS:
            rows = [leaf if stage in ENDS[path] else jnp.zeros_like(leaf) for stage in range(STAGES)]
            return jnp.concatenate([jnp.atleast_1d(one) for one in rows])
FORM_0

    return tree_map_with_path(of, tree)


def unstaged(state: Tree, shapes: Tree) -> Tree:
    """Parameters as the user's model holds them."""
    leaves = by_path(state)

    def of(keys: Any, shape: Any) -> Any:
        path = path_of(keys)
        if path in SHARED:
            return leaves[path]
        if path in ENDS:
            return leaves[path].reshape(STAGES, *shape.shape)[ENDS[path][0]]
FORM_1

    return tree_map_with_path(of, shapes)


def rows(tree: Tree) -> Tree:
    """Where parameters lie along the stages."""
    return tree_map_with_path(lambda keys, _: P() if path_of(keys) in SHARED else P("pp"), tree)


def stack_of(leaves: dict[str, Any], shapes: dict[str, Any]) -> Tree:
    """The parameters of a stage's blocks, of each as [chunk, block, ...]."""
FORM_2


def leaves_of(stack: Tree) -> dict[str, Any]:
    """The same by the paths that the state has."""
FORM_3


'''

STAGED_SCAN, UNSTAGED_SCAN = "        return leaf\n", "        return leaves[path]\n"
STAGED_CHUNKS = "        return leaf[jnp.array(ORDER)]\n"
UNSTAGED_CHUNKS = "        return leaves[path][jnp.argsort(jnp.array(ORDER))]\n"
STACK_SCAN = """\
    blocks = {path: leaf for path, leaf in leaves.items() if path not in ENDS}
    return {path: leaf.reshape(CHUNKS, -1, *leaf.shape[1:]) for path, leaf in blocks.items()}
"""
LEAVES_SCAN = """\
    return {path: one.reshape(-1, *one.shape[2:]) for path, one in stack.items()}
"""

STAGED_BLOCKS = """\
        unit, name = unit_of(path)
        if unit not in FIRST_UNITS:
            return None  # in the rows of a block of the first stage
        rows = [leaves[path_in(unit + EACH * stage, name)] for stage in range(STAGES)]
        return jnp.concatenate([jnp.atleast_1d(one) for one in rows])
"""
UNSTAGED_BLOCKS = """\
        unit, name = unit_of(path)
        stage = unit // EACH % STAGES
        return leaves[path_in(unit - EACH * stage, name)].reshape(STAGES, *shape.shape)[stage]
"""
UNIT_OF = '''\
def unit_of(path: str) -> tuple[int, tuple[int, str]]:
    """The unit that has a parameter; which of its blocks, and the path there."""
    places = ((unit, at, room) for unit, rooms in enumerate(UNITS) for at, room in enumerate(rooms))
    unit, at, room = next(place for place in places if path.startswith(f"{place[2]}."))
    return unit, (at, path.removeprefix(f"{room}."))


def path_in(unit: int, name: tuple[int, str]) -> str:
    return f"{UNITS[unit][name[0]]}.{name[1]}"


'''
STACK_BLOCKS = """\
    names = [name for unit, name in (unit_of(path) for path in leaves if path not in ENDS) if unit == 0]
    rows = {name: [leaves[path_in(unit, name)] for unit in FIRST_UNITS] for name in names}
    each = {name: shapes[path_in(0, name)].shape for name in names}
    return {name: jnp.stack(row).reshape(CHUNKS, -1, *each[name]) for name, row in rows.items()}
"""
LEAVES_BLOCKS = """\
    flat = {name: one.reshape(-1, *one.shape[2:]) for name, one in stack.items()}
    return {path_in(unit, name): one[at] for name, one in flat.items() for at, unit in enumerate(FIRST_UNITS)}
"""

PARTS = '''\
def reach(jaxpr: Any, wanted: Any, known: dict[Any, Any]) -> list[Any]:
    """Values of the traced loss, by the equations that lead to them from what is known."""
    needed, leading = set(variables(wanted)), []
    for number, equation in reversed(list(enumerate(jaxpr.eqns))):
        if not needed.isdisjoint(set(equation.outvars) - set(known)):
            leading.append((number, equation))
            needed |= set(variables(equation.invars))
    for number, equation in reversed(leading):
        known = known | made(equation, known, str(number))
    return [read(one, known) for one in wanted]


def variables(several: Any) -> list[Any]:
    return [one for one in several if not isinstance(one, Literal)]


PARTS_OF
    if crc32(" ".join(primitives(traced.jaxpr)).encode()) != TRACE:
        sys.exit("values have other places than when this was written: the model or JAX has changed, so emit it again")
    jaxpr = traced.jaxpr
    held = dict(zip(by_path(shapes), jaxpr.invars, strict=False))
    fixed = dict(zip(jaxpr.constvars, traced.consts, strict=True))

    def known(params: Tree, micro: Tree) -> dict[Any, Any]:
        given = zip(jaxpr.invars[len(held) :], jax.tree.leaves(GIVEN), strict=True)
        return {**fixed, **dict(given), **{held[path]: one for path, one in params.items()}}

DIVIDED
    def last(params: Tree, value: Any, micro: Tree) -> Any:
        return reach(jaxpr, jaxpr.outvars[:1], known(params, micro) | dict(zip(leaving, value, strict=True)))[0]

RETURNED


'''

PARTS_OF = '''\
def parts_of(loss: Any, shapes: Tree, micro: Tree, rest: Any) -> tuple[Any, Any, Any, Any]:
    """The parts of a loss, as it is traced: what all blocks read of a micro-batch; and, each of parameters, a value and
    what is beside it, what leads to the first blocks, a unit of blocks, and what leads from the last to the loss."""
    traced = jax.make_jaxpr(loss)(shapes, micro, *rest)
'''
PARTS_OF_DRAWN = '''\
def parts_of(loss: Any, shapes: Tree, micro: Tree, rest: Tree) -> tuple[Any, ...]:
    """The parts of a loss, as it is traced. Of a micro-batch, with what the model holds besides: what it holds then,
    KEYS_TOLDand what all blocks read. Each of parameters, a value and what is beside it: what leads
    to the first blocks, a unit of blocks, and what leads from the last to the loss."""
    given = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), (shapes, micro, rest))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # what is drawn asks where it lies
        traced = jax.make_jaxpr(loss)(*given)
'''
RETURNED = """\
    return BESIDE_ALL, first, block, last
"""
RETURNED_DRAWN = """\
    def left(micro: Tree) -> Tree:
        none = zeros(by_path(shapes))  # it follows from no parameter, but a scan that leaves it reads some
        return jax.tree.unflatten(jax.tree.structure(rest), reach(jaxpr, jaxpr.outvars[1:], known(none, micro)))

    return left, KEYEDBESIDE_ALL, first, block, last
"""

SCANNED = """\
    scan = jaxpr.eqns[SCAN]
    fixed_to, carry = scan.params["num_consts"], scan.params["num_carry"]
    common, entering, rows = scan.invars[:fixed_to], scan.invars[fixed_to:][:carry], scan.invars[fixed_to + carry :]
    stacks, body = [scan.outvars[at] for at in STACKS], scan.params["jaxpr"]
    leaving = [*scan.outvars[:carry], *stacks]
    names = {var: path for path, var in held.items()}
    untrained = [one for one in rows if one not in names]
    common = [*common, *untrained]

    def block(params: Tree, value: Any, beside: Any) -> Any:
        common, number = beside
        others = {var: one[number] for var, one in zip(untrained, common[fixed_to:], strict=True)}
        own = [others[one] if one in others else params[names[one]] for one in rows]
        given = [pinned(one, f"{SCAN}.{at}") for at, one in enumerate((*common[:fixed_to], *value[:carry], *own))]
        made = evaluate(body.jaxpr, body.consts, given, f"{SCAN}/")
        return [*made[:carry], *(one.at[number].set(made[at]) for at, one in zip(STACKS, value[carry:], strict=True))]

    def first(params: Tree, _: Any, micro: Tree) -> Any:
        begun = reach(jaxpr, entering, known(params, micro))
        return [*begun, *(jnp.zeros(one.aval.shape, one.aval.dtype) for one in stacks)]

"""

WRITTEN_OUT = """\
    handed = [placed(jaxpr, places) for places in HANDED]
    entering, leaving, common = (placed(jaxpr, places) for places in (ENTERING, LEAVING, BESIDE))
KEYS_OF
    def part(at: int, params: Tree, value: Any, beside: Any) -> Any:
        own = {held[path_in(1, name)]: one for name, one in params.items() if name[0] == at}
        given = dict(zip((*handed[at], READ), (*value, BESIDE_IT), strict=True))
        return reach(jaxpr, handed[at + 1], own | given)

    def block(params: Tree, value: Any, beside: Any) -> Any:
        for at, again in enumerate(AGAIN):
            value = again(partial(part, at))(params, value, beside)
        return value

    def first(params: Tree, _: Any, micro: Tree) -> Any:
        return reach(jaxpr, entering, known(params, micro))

"""
KEYS_OF = """\
    keys = [placed(jaxpr, places) for places in KEYS]

    def keys_of(micro: Tree) -> list[Any]:
        made = iter(reach(jaxpr, [key for own in keys for key in own], known({}, micro)))
        return [jnp.stack(several) for several in zip(*([next(made) for _ in own] for own in keys), strict=True)]

    def read_by(beside: Any) -> list[Any]:
        (shared, own), number = beside
        return [*shared, *(one[number] for one in own)]

"""
PLACED = '''\
def placed(jaxpr: Any, places: Any) -> list[Any]:
    """The values that stand at places: `17:0` is what an equation makes, `17.0` what it reads."""
    split = [re.split("([:.])", place) for place in places]
    equations = [(jaxpr.eqns[int(number)], mark, int(at)) for number, mark, at in split]
    return [(one.outvars if mark == ":" else one.invars)[at] for one, mark, at in equations]


'''
