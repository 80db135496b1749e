"""The functions that printed code calls and JAX lacks: moves of values between devices, and operators that depend on
which part a device has. A script has those that it uses, and what these use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

TEXT = '''\
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


def own_rows(index: Array, axis: str, rows: int) -> tuple[Array, Array]:
    """Global indices as those of this device's rows, and which of them it has; the others are 0."""
    row = index - jax.lax.axis_index(axis) * rows
    found = (row >= 0) & (row < rows)
    return jnp.where(found, row, 0), found


def rows_part(table: Array, index: Array, axis: str) -> Array:
    """Rows of a table of which each device has a part; zeros for what others have."""
    row, found = own_rows(index, axis, len(table))
    return jnp.where(found[..., None], table[row], 0)


def gather(x: Array, dim: int, index: Array) -> Array:
    """Elements along a dimension, for every place of an index."""
    first = tuple(slice(None if one == dim else extent) for one, extent in enumerate(index.shape))
    return jnp.take_along_axis(x[first], index, dim)


def gather_part(x: Array, dim: int, index: Array, axis: str) -> Array:
    """Elements along a dimension of which each device has a part; zeros for what others have."""
    row, found = own_rows(index, axis, x.shape[dim])
    return jnp.where(found, gather(x, dim, row), 0)


def select_part(x: Array, dim: int, index: Array, axis: str) -> Array:
    """Slices along a dimension of which each device has a part; zeros for what others have."""
    row, found = own_rows(index % (x.shape[dim] * size_of(axis)), axis, x.shape[dim])
    return jnp.where(found.reshape(-1, *[1] * (x.ndim - 1 - dim)), jnp.take(x, row, dim), 0)


def scatter(x: Array, dim: int, index: Array, source: Array | float, add: bool = False) -> Array:
    """Writes along a dimension."""
    at: list[Any] = list(jnp.meshgrid(*map(jnp.arange, index.shape), indexing="ij"))
    at[dim] = index
    return x.at[tuple(at)].add(source) if add else x.at[tuple(at)].set(source)


def nll(scores: Array, labels: Array, ignored: int, axis: str = "") -> Array:
    """The negative log-likelihood of each label; where devices have parts of the classes, zeros for what others
    have."""
    counts = labels != ignored
    label = jnp.where(counts, labels, 0)
    row, found = own_rows(label, axis, scores.shape[-1]) if axis else (label, counts)
    return jnp.where(found & counts, -jnp.take_along_axis(scores, row[..., None], -1)[..., 0], 0)


def layer_norm(x: Array, dims: int, eps: float, weight: Array | None = None, bias: Array | None = None) -> Array:
    """Values less their mean, over their spread, along the last dimensions."""
    axes, wide = tuple(range(-dims, 0)), x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide - wide.mean(axes, keepdims=True)
    made = (wide * jax.lax.rsqrt((wide**2).mean(axes, keepdims=True) + eps)).astype(x.dtype)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


def rms_norm(x: Array, dims: int, eps: float, weight: Array | None = None) -> Array:
    """Values over the root of the mean of their squares, along the last dimensions."""
    axes, wide = tuple(range(-dims, 0)), x.astype(jnp.promote_types(x.dtype, jnp.float32))
    made = (wide * jax.lax.rsqrt((wide**2).mean(axes, keepdims=True) + eps)).astype(x.dtype)
    return made if weight is None else made * weight


def group_norm(x: Array, groups: int, eps: float, weight: Array | None = None, bias: Array | None = None) -> Array:
    """Channels, which are the second dimension, normalized in groups."""
    wide = x.reshape(x.shape[0], groups, -1)
    wide = wide - wide.mean(-1, keepdims=True)
    made = (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + eps)).reshape(x.shape)
    each = (-1, *[1] * (x.ndim - 2))
    made = made if weight is None else made * weight.reshape(each)
    return made if bias is None else made + bias.reshape(each)


def conv(
    x: Array,
    weight: Array,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """A convolution of channels that are the second dimension."""
    ones, pads = [1] * (x.ndim - 2), [(pad, pad) for pad in padding or [0] * (x.ndim - 2)]
    numbers = (tuple(range(x.ndim)),) * 3
    given = {"rhs_dilation": dilation or ones, "feature_group_count": groups}
    numbers_ = jax.lax.ConvDimensionNumbers(*numbers)
    return jax.lax.conv_general_dilated(x, weight, stride or ones, pads, dimension_numbers=numbers_, **given)


def windows(
    x: Array, by: Any, start: float, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *, gaps: Any
) -> Array:
    """Windows of the last dimensions, reduced."""
    lead, pads = x.ndim - len(kernel), [(pad, pad) for pad in padding or [0] * len(kernel)]
    before = (1,) * lead
    sizes, steps = (*before, *kernel), (*before, *(stride or kernel))
    dilated = (*before, *(gaps or [1] * len(kernel)))
    return jax.lax.reduce_window(x, start, by, sizes, steps, [(0, 0)] * lead + pads, window_dilation=dilated)


def max_pool(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> Array:
    """The maximum of every window."""
    return windows(x, jax.lax.max, -jnp.inf, kernel, stride, padding, gaps=dilation)


def avg_pool(x: Array, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = ()) -> Array:
    """The mean of every window."""
    return windows(x, jax.lax.add, 0.0, kernel, stride, padding, gaps=()) / math.prod(kernel)


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """A smooth rectifier."""
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


def vector_norm(x: Array, order: float, axis: Any = None, keepdims: bool = False) -> Array:
    """The root of a sum of powers."""
    if math.isinf(order):
        return jnp.abs(x).max(axis, keepdims=keepdims)
    if order == 2:
        return jnp.sqrt((x * x).sum(axis, keepdims=keepdims))
    return ((jnp.abs(x) ** order).sum(axis, keepdims=keepdims)) ** (1 / order)


def largest(x: Array, count: int, dim: int) -> tuple[Array, Array]:
    """The largest elements along a dimension, and where they are."""
    values, places = jax.lax.top_k(jnp.moveaxis(x, dim, -1), count)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


def sort(x: Array, dim: int, descending: bool = False) -> tuple[Array, Array]:
    """Elements in order along a dimension, and where they were."""
    places = jnp.argsort(x, dim, descending=descending)
    return jnp.take_along_axis(x, places, dim), places


def seen(mask: str, width: int, queries: Array, keys: Array, shift: int) -> Array:
    """Which keys each query sees, both given by position; `shift` lines the last query up with the last key."""
    at, key = (queries + shift)[:, None], keys[None, :]
    if mask == "causal":
        return key <= at
    if mask == "window":
        return (key <= at) & (key > at - width)
    if mask == "band":
        return (key < at + width) & (key > at - width)
    return (key <= at) & (key >= at // width * width)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: str = "",
    *,
    width: int = 0,
    queries: Array | None = None,
    shift: int = 0,
    bias: Array | None = None,
    scale: float | None = None,
) -> Array:
    """Attention of queries at certain positions to all keys; heads stand before tokens, and may share keys."""
    batch, heads, length, depth = query.shape
    many = key.shape[1]
    own = query.reshape(batch, many, heads // many, length, depth)
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", own, key) * (1 / math.sqrt(depth) if scale is None else scale)
    scores = scores.reshape(batch, heads, length, -1).astype(jnp.promote_types(query.dtype, jnp.float32))
    scores = scores if bias is None else scores + bias
    if mask:
        at = jnp.arange(length) if queries is None else queries
        scores = jnp.where(seen(mask, width, at, jnp.arange(key.shape[2]), shift), scores, -jnp.inf)
    shares = jax.nn.softmax(scores).astype(query.dtype).reshape(batch, many, heads // many, length, -1)
    return jnp.einsum("bhgqk,bhkd->bhgqd", shares, value).reshape(batch, heads, length, -1)


def scores_of(query: Array, key: Array, scale: float, shown: Array) -> Array:
    """Scaled products of queries and keys by [batch, heads of keys, queries that share one, query, key]; minus infinity
    for what is not shown."""
    batch, heads, length, depth = query.shape
    own = query.reshape(batch, key.shape[1], heads // key.shape[1], length, depth)
    return jnp.where(shown, jnp.einsum("bhgqd,bhkd->bhgqk", own, key) * scale, -jnp.inf)


def shown_of(mask: str, width: int, length: int, axis: str, hop: int, zigzag: bool) -> Array:
    """Which keys this device's queries see, of those that have come by so many devices."""
    here, parts = jax.lax.axis_index(axis), size_of(axis)
    runs = order_of(length * parts, parts, (), zigzag)
    own, others = runs[here], runs[(here - hop) % parts]
    return jnp.full((length, length), True) if mask == "full" else seen(mask, width, own, others, 0)


def passed(x: Array, axis: str) -> Array:
    """What the device before has."""
    parts = size_of(axis)
    return jax.lax.ppermute(x, axis, [(at, (at + 1) % parts) for at in range(parts)])


def ring_forward(
    query: Array, key: Array, value: Array, axis: str, mask: str, width: int, scale: float, zigzag: bool
) -> tuple[Array, Any]:
    """Attention whose keys and values pass from device to device; what the backward pass reads of it."""
    given, parts = (query, key, value), size_of(axis)
    total, most = jnp.zeros(()), jnp.full((), -jnp.inf)
    for hop in range(parts):
        scores = scores_of(query, key, scale, shown_of(mask, width, query.shape[2], axis, hop, zigzag))
        highest = scores.max(-1, keepdims=True)
        shares = jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0))
        sums = shares.sum(-1, keepdims=True)
        own = jnp.where(jnp.isfinite(highest), highest, 0) + jnp.log(sums)
        both = jnp.logaddexp(most, own)
        part = jnp.einsum("bhgqk,bhkd->bhgqd", shares / jnp.maximum(sums, jnp.finfo(sums.dtype).tiny), value)
        total, most = total * jnp.exp(most - both) + part * jnp.exp(own - both), both
        if hop < parts - 1:
            key, value = passed(key, axis), passed(value, axis)
    made = total.reshape(query.shape[:3] + value.shape[-1:])
    return made, (*given, made, most)


def ring_backward(axis: str, mask: str, width: int, scale: float, zigzag: bool, kept: Any, grad: Array) -> Any:
    """The gradients of queries, keys and values; those of the latter travel on with them, and home."""
    query, key, value, made, most = kept
    batch, heads, length, _ = query.shape
    parts, many = size_of(axis), key.shape[1]
    apart = (batch, many, heads // many, length, -1)
    grads, own = grad.reshape(apart), query.reshape(apart)
    rest = (grads * made.reshape(apart)).sum(-1, keepdims=True)
    of_query, of_key, of_value = jnp.zeros_like(own), jnp.zeros_like(key), jnp.zeros_like(value)
    for hop in range(parts):
        shares = jnp.exp(scores_of(query, key, scale, shown_of(mask, width, length, axis, hop, zigzag)) - most)
        of_value += jnp.einsum("bhgqk,bhgqd->bhkd", shares, grads)
        of_scores = shares * (jnp.einsum("bhgqd,bhkd->bhgqk", grads, value) - rest) * scale
        of_query += jnp.einsum("bhgqk,bhkd->bhgqd", of_scores, key)
        of_key += jnp.einsum("bhgqk,bhgqd->bhkd", of_scores, own)
        if hop < parts - 1:
            key, value = passed(key, axis), passed(value, axis)
        of_key, of_value = passed(of_key, axis), passed(of_value, axis)
    return of_query.reshape(query.shape), of_key, of_value


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7))
def ring(query: Array, key: Array, value: Array, axis: str, mask: str, width: int, scale: float, zigzag: bool) -> Array:
    """Attention of this device's queries to all keys, which pass from device to device."""
    return ring_forward(query, key, value, axis, mask, width, scale, zigzag)[0]


ring.defvjp(ring_forward, ring_backward)
'''


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
