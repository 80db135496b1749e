"""The functions of operators that JAX lacks, or that depend on which part a device has."""

from __future__ import annotations

FUNCTIONS_TEXT = '''\
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


def dropout(x: Array, key: Array, site: int, keep: float, axes: Axes = (), same: Sequence[int] = ()) -> Array:
    """Each element over the share that is kept, or zero. Devices along these axes draw apart, others alike; elements
    along these dimensions have the same draw."""
    key = jax.random.fold_in(key, site)
    for axis in axes:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis))
    shape = [1 if dim in same else extent for dim, extent in enumerate(x.shape)]
    return jnp.where(jax.random.bernoulli(key, keep, shape), x / keep, 0)


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
'''
