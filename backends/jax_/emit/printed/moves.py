"""The functions that printed code calls and JAX lacks: moves of values between devices, and operators that depend on
which part a device has. A script has those that it uses, and what these use."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache

from meshwright.backends.jax_.emit.printed.attention import ATTENTION_TEXT
from meshwright.backends.jax_.emit.printed.functions import FUNCTIONS_TEXT
from meshwright.backends.jax_.emit.recompute import BUT_CHEAP, POLICY

MOVES = '''\
@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def moved(x: Array, there: Move, back: Move) -> Array:
    """What `there` makes of a value; `back` makes of its gradient that of the value."""
    return there(x)


moved.defvjp(lambda x, there, back: (there(x), None), lambda there, back, _, grad: (back(grad),))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def brought(x: Array, ways: Ways) -> tuple[Array, ...]:
    """A value brought to several places at once: alike ways are gone once, there and back."""
    made = {number: there(x) for number, there, _, _ in ways}
    return tuple(made[number] for number, _, _, _ in ways)


def brought_back(ways: Ways, _: None, grads: Sequence[Array]) -> tuple[Array]:
    sums: dict[int, Array] = {}
    for (_, _, number, _), grad in zip(ways, grads, strict=True):
        sums[number] = sums[number] + grad if number in sums else grad
    backs = {number: back for _, _, number, back in ways}
    return (sum(backs[number](grad) for number, grad in sums.items()),)


brought.defvjp(lambda x, ways: (brought(x, ways), None), brought_back)


def several(x: Array, *ways: tuple[int, Move, int, Move]) -> tuple[Array, ...]:
    """A value for several readers; of each, the number of a move and the move, there and back."""
    return brought(x, ways)


def as_it_is(x: Array) -> Array:
    return x


def kept(x: Any) -> Any:
    """What was moved, which blocks keep that gather nothing but their parameters again."""
    return jax.tree.map(lambda one: checkpoint_name(one, "kept"), x)


BUT_CHEAPdef but_parameters(primitive: Any, *_: Any, **params: Any) -> bool:
    """The same where a block gathers its parameters again; of those that are not trained the move is one primitive."""
    gathers = ("all_gather", "custom_vjp_call", "gather")
    return primitive.name not in gathers and but_cheap(primitive, **params)


def waiting(block: Callable[..., Any], there: tuple[int, ...]) -> Any:
    """A block that the backward pass runs again. Of what it reads, these wait in the host's memory until then."""

    def named(params: Params, *given: Array) -> Any:
        return block(params, *(checkpoint_name(x, "waiting") if at in there else x for at, x in enumerate(given)))

POLICY    return jax.checkpoint(named, policy=policy)


def size_of(axes: Axes) -> int:
    """How many devices there are along axes."""
    return math.prod(MESH[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def order_of(extent: int, parts: int, sections: Sequence[int], zigzag: bool) -> Array:
    """The indices that each device has of a dimension, one row each. Each of its `sections` is cut; `zigzag` gives a
    device the n-th run from the front and the n-th from the back."""
    ends = list(itertools.accumulate(sections or [extent]))
    runs = np.split(np.arange(extent), ends[:-1])
    if not zigzag:
        return jnp.array([np.concatenate([np.split(run, parts)[n] for run in runs]) for n in range(parts)])
    halves = [np.split(run, 2 * parts) for run in runs]
    return jnp.array([np.concatenate([half for run in halves for half in (run[n], run[-1 - n])]) for n in range(parts)])


def cut(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """This device's part of what all have."""
    here, parts = jax.lax.axis_index(axes), size_of(axes)
    if not sections and not zigzag:
        length = x.shape[dim] // parts
        return jax.lax.dynamic_slice_in_dim(x, here * length, length, dim)
    return jnp.take(x, order_of(x.shape[dim], parts, sections, zigzag)[here], dim)


def all_gather(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """The whole, of the parts that devices have."""
    whole = jax.lax.all_gather(x, axes, axis=dim, tiled=True)
    return in_order(whole, axes, dim, sections, zigzag) if sections or zigzag else whole


def all_reduce(x: Array, axes: Axes, by: str = "sum") -> Array:
    """The sum over devices, or the maximum."""
    return jax.lax.psum(x, axes) if by == "sum" else jax.lax.pmax(x, axes)


def reduce_scatter(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """This device's part of the sum over devices."""
    if sections or zigzag:
        x = jnp.take(x, order_of(x.shape[dim], size_of(axes), sections, zigzag).ravel(), dim)
    return jax.lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


def all_to_all(
    x: Array, axes: Axes, joined: int, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Array:
    """Parts along `joined` are put together, and the whole is cut along `dim`."""
    if sections or zigzag:
        x = jnp.take(x, order_of(x.shape[dim], size_of(axes), sections, zigzag).ravel(), dim)
    return jax.lax.all_to_all(x, axes, split_axis=dim, concat_axis=joined, tiled=True)


def in_order(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """The whole of a dimension in which the parts of devices, cut in sections or zigzag, stand one after another."""
    return jnp.take(x, jnp.argsort(order_of(x.shape[dim], size_of(axes), sections, zigzag).ravel()), dim)


def on_first(x: Array, axes: Axes) -> Array:
    """The value on the first device, zeros on the others: so that the sum is the value."""
    return jnp.where(jax.lax.axis_index(axes) == 0, x, jnp.zeros_like(x))


def among_zeros(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """This device's part where it stands in the whole, and zeros: so that the sum is the whole."""
    here, extent = jax.lax.axis_index(axes), x.shape[dim] * size_of(axes)
    own = order_of(extent, size_of(axes), sections, zigzag)[here]
    whole = jnp.zeros((extent, *jnp.moveaxis(x, dim, 0).shape[1:]), x.dtype)
    return jnp.moveaxis(whole.at[own].set(jnp.moveaxis(x, dim, 0)), 0, dim)


def copy_to(x: Array, axes: Axes) -> Array:
    """A value for operators of which each device has a part; the gradients that devices have are added up."""
    return moved(x, as_it_is, lambda grad: all_reduce(grad, axes))


def reduce_from(x: Array, axes: Axes) -> Array:
    """The sum of what devices have."""
    return moved(x, lambda own: all_reduce(own, axes), as_it_is)


def gather_from(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """The whole, for operators of which each device has a part; gradients are added up, and each device gets its
    part."""
    return moved(
        x,
        lambda own: all_gather(own, axes, dim, sections, zigzag),
        lambda grad: reduce_scatter(grad, axes, dim, sections, zigzag),
    )


def gather_copies(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """The whole, for operators that all devices run alike; of the gradient each takes its part."""
    return moved(
        x,
        lambda own: all_gather(own, axes, dim, sections, zigzag),
        lambda grad: cut(grad, axes, dim, sections, zigzag),
    )


def scatter_to(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """This device's part; the parts of the gradient are put together."""
    return moved(
        x,
        lambda whole: cut(whole, axes, dim, sections, zigzag),
        lambda grad: all_gather(grad, axes, dim, sections, zigzag),
    )


def reduce_scatter_to(x: Array, axes: Axes, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Array:
    """This device's part of the sum of what devices have; the parts of the gradient are put together."""
    return moved(
        x,
        lambda whole: reduce_scatter(whole, axes, dim, sections, zigzag),
        lambda grad: all_gather(grad, axes, dim, sections, zigzag),
    )


def exchange(x: Array, axes: Axes, joined: int, dim: int) -> Array:
    """What is cut along `joined`, cut along `dim` instead; the gradient goes the other way."""
    return moved(x, lambda own: all_to_all(own, axes, joined, dim), lambda grad: all_to_all(grad, axes, dim, joined))


def inside(params: Params, room: str) -> Params:
    """The parameters of a block, by their paths in it."""
    return {path.removeprefix(room): one for path, one in params.items() if path.startswith(room)}
'''
SHARED = {"BUT_CHEAP": f"{BUT_CHEAP}\n\n", "POLICY": textwrap.indent(POLICY.replace("WAITING", "policy"), "    ")}
"""What scripts that run the user's own code have, too, by its place in the text."""
for mark, own in SHARED.items():
    MOVES = MOVES.replace(mark, own)
TEXT = "\n\n".join((MOVES, FUNCTIONS_TEXT, ATTENTION_TEXT))


@lru_cache(maxsize=1)
def _parts() -> dict[str, tuple[str, frozenset[str]]]:
    """Every function of the text, by name, and the names that it uses; with it, what is done to it after it is defined
    (`f.defvjp(…)`)."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    lines = TEXT.splitlines()
    for node in ast.parse(TEXT).body:
        used = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno]), used
            continue
        assert isinstance(node, ast.Expr)
        text, owner = ast.get_source_segment(TEXT, node), ast.unparse(node).partition(".")[0]
        before, others = found.pop(owner)  # and last again: it stands after what it is given
        found[owner] = f"{before}\n\n\n{text}", others | used - {owner}
    return found


NAMES = frozenset(_parts())
"""The names of these functions: code around them calls nothing else so."""


def used_by(names: Iterable[str]) -> Iterator[str]:
    """The functions with these names, and all that they use, in the order of the text."""
    parts, wanted, left = _parts(), set[str](), list(names)
    while left:
        name = left.pop()
        if name in parts and name not in wanted:
            wanted.add(name)
            left += parts[name][1]
    yield from (text for name, (text, _) in parts.items() if name in wanted)
