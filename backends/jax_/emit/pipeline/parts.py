"""Code of a pipeline that divides: the parameters over stages, and the traced loss into parts.

The loss is divided where its trace shows it: what leads to the first block's input, a block, and what leads from the
last block's output to the loss. What follows from a micro-batch alone is made where it is read.
"""

from __future__ import annotations

STATE = '''\
def paths_of(tree: Tree) -> list[Any]:
    return [path_of(keys) for keys, _ in tree_flatten_with_path(tree)[0]]


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
    leaves = dict(zip(paths_of(state), jax.tree.leaves(state), strict=True))

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
        number, name = block_of(path)
        if BLOCKS[number] not in FIRST_BLOCKS:
            return None  # in the rows of a block of the first stage
        rows = [leaves[f"{BLOCKS[number + EACH * stage]}.{name}"] for stage in range(STAGES)]
        return jnp.concatenate([jnp.atleast_1d(one) for one in rows])
"""
UNSTAGED_BLOCKS = """\
        number, name = block_of(path)
        stage = number // EACH % STAGES
        return leaves[f"{BLOCKS[number - EACH * stage]}.{name}"].reshape(STAGES, *shape.shape)[stage]
"""
BLOCK_OF = '''\
def block_of(path: str) -> tuple[int, str]:
    """The number of the block that has a parameter, and its path there."""
    number = next(number for number, room in enumerate(BLOCKS) if path.startswith(f"{room}."))
    return number, path.removeprefix(f"{BLOCKS[number]}.")


'''
STACK_BLOCKS = """\
    names = [path.removeprefix(f"{BLOCKS[0]}.") for path in leaves if path.startswith(f"{BLOCKS[0]}.")]
    rows = {name: [leaves[f"{room}.{name}"] for room in FIRST_BLOCKS] for name in names}
    each = {name: shapes[f"{BLOCKS[0]}.{name}"].shape for name in names}
    return {name: jnp.stack(row).reshape(CHUNKS, -1, *each[name]) for name, row in rows.items()}
"""
LEAVES_BLOCKS = """\
    flat = {name: one.reshape(-1, *one.shape[2:]) for name, one in stack.items()}
    return {f"{room}.{name}": one[at] for name, one in flat.items() for at, room in enumerate(FIRST_BLOCKS)}
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


class Parts(NamedTuple):
    """The loss of a micro-batch in parts: functions of parameters, a value, and what is beside it."""

    beside: Any  # of parameters and a micro-batch: what all blocks read
    first: Any  # beside a micro-batch: what the first block is given
    block: Any  # what the next block is given
    last: Any  # beside a micro-batch: the loss


def parts_of(loss: Any, shapes: Tree, micro: Tree, rest: Any) -> Parts:
    """The parts of a loss, as it is traced."""
    traced = jax.make_jaxpr(loss)(shapes, micro, *rest)
    if crc32(" ".join(primitives(traced.jaxpr)).encode()) != TRACE:
        sys.exit("values have other places than when this was written: the model or JAX has changed, so emit it again")
    jaxpr = traced.jaxpr
    held = dict(zip(paths_of(shapes), jaxpr.invars, strict=False))
    fixed = dict(zip(jaxpr.constvars, traced.consts, strict=True))

    def known(params: Tree, micro: Tree) -> dict[Any, Any]:
        given = zip(jaxpr.invars[len(held) :], jax.tree.leaves((micro, *rest)), strict=True)
        return {**fixed, **dict(given), **{held[path]: one for path, one in params.items()}}

DIVIDED
    def first(params: Tree, _: Any, micro: Tree) -> Any:
        return reach(jaxpr, entering, known(params, micro))

    def last(params: Tree, value: Any, micro: Tree) -> Any:
        return reach(jaxpr, jaxpr.outvars, known(params, micro) | dict(zip(leaving, value, strict=True)))[0]

    return Parts(lambda micro: reach(jaxpr, common, known({}, micro)), first, block, last)


'''

SCANNED = """\
    scan = jaxpr.eqns[SCAN]
    carried = scan.params["num_consts"], scan.params["num_consts"] + scan.params["num_carry"]
    common, entering, rows = scan.invars[: carried[0]], scan.invars[slice(*carried)], scan.invars[carried[1] :]
    leaving, body = scan.outvars[: len(entering)], scan.params["jaxpr"]
    names = {var: path for path, var in held.items()}
    untrained = [one for one in rows if one not in names]
    common = [*common, *untrained]

    def block(params: Tree, value: Any, beside: Any) -> Any:
        common, number = beside
        others = {var: one[number] for var, one in zip(untrained, common[carried[0] :], strict=True)}
        own = [others[one] if one in others else params[names[one]] for one in rows]
        given = [pinned(one, f"{SCAN}.{at}") for at, one in enumerate((*common[: carried[0]], *value, *own))]
        return evaluate(body.jaxpr, body.consts, given, f"{SCAN}/")[: len(entering)]
"""

CROSSED = """\
    trained = trained_in(jaxpr, held.values())
    between = min(range(BETWEEN + 1), key=lambda one: len(crossing(jaxpr, trained, SECOND + one)))
    given, made_of, leaving = (crossing(jaxpr, trained, at + between) for at in (SECOND, THIRD, END))
    firsts = [crossing(jaxpr, trained, at + between) for at in BEGIN]
    entering = [one for one in firsts if [var.aval for var in one] == [var.aval for var in given]][-1]
    inside = jaxpr.eqns[SECOND + between : THIRD + between]
    own = {one for equation in inside for one in equation.outvars} | trained
    common = [one for one in dict.fromkeys(read_in(inside)) if one not in own]

AGAIN    def block(params: Tree, value: Any, beside: Any) -> Any:
        own = {held[f"{BLOCKS[1]}.{name}"]: one for name, one in params.items()}
        return reach(jaxpr, made_of, own | dict(zip((*given, *common), (*value, *beside[0]), strict=True)))
"""
CROSSING = '''\
def read_in(equations: Any) -> list[Any]:
    return [one for equation in equations for one in variables(equation.invars)]


def trained_in(jaxpr: Any, params: Any) -> set[Any]:
    """Parameters, and what is made of them."""
    found = set(params)
    for equation in jaxpr.eqns:
        found |= set() if found.isdisjoint(variables(equation.invars)) else set(equation.outvars)
    return found


def crossing(jaxpr: Any, trained: set[Any], number: int) -> list[Any]:
    """What equations before this one make of parameters, and later ones read."""
    before = {one for equation in jaxpr.eqns[:number] for one in equation.outvars} & trained
    return [one for one in dict.fromkeys(read_in(jaxpr.eqns[number:])) if one in before]


'''
