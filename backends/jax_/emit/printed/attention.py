"""The functions of attention: whole, for a part of the queries, or in a ring."""

from __future__ import annotations

ATTENTION_TEXT = '''\
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
    dropped: Callable[[Array], Array] = lambda shares: shares,
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
    shares = dropped(jax.nn.softmax(scores).astype(query.dtype)).reshape(batch, many, heads // many, length, -1)
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


def passed(x: Array, axis: str, by: int = 1) -> Array:
    """What the device before has, or the one behind (-1)."""
    parts = size_of(axis)
    return jax.lax.ppermute(x, axis, [(at, (at + by) % parts) for at in range(parts)])


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
    made, most = kept((total.reshape(query.shape[:3] + value.shape[-1:]), most))
    return made, (*given, made, most)


def ring_backward(axis: str, mask: str, width: int, scale: float, zigzag: bool, kept: Any, grad: Array) -> Any:
    """The gradients of queries, keys and values; those of the latter travel on with them, and home.

    They go the other way round than in the forward pass, of which XLA would else keep what was passed. Between two
    devices both ways are one: a barrier keeps the passes apart."""
    query, key, value, made, most = kept
    key, value = jax.lax.optimization_barrier((key, value))
    batch, heads, length, _ = query.shape
    parts, many = size_of(axis), key.shape[1]
    apart = (batch, many, heads // many, length, -1)
    grads, own = grad.reshape(apart), query.reshape(apart)
    rest = (grads * made.reshape(apart)).sum(-1, keepdims=True)
    of_query, of_key, of_value = jnp.zeros_like(own), jnp.zeros_like(key), jnp.zeros_like(value)
    for hop in range(parts):
        shares = jnp.exp(scores_of(query, key, scale, shown_of(mask, width, length, axis, -hop, zigzag)) - most)
        of_value += jnp.einsum("bhgqk,bhgqd->bhkd", shares, grads)
        of_scores = shares * (jnp.einsum("bhgqd,bhkd->bhgqk", grads, value) - rest) * scale
        of_query += jnp.einsum("bhgqk,bhkd->bhgqd", of_scores, key)
        of_key += jnp.einsum("bhgqk,bhgqd->bhkd", of_scores, own)
        if hop < parts - 1:
            key, value = passed(key, axis, -1), passed(value, axis, -1)
        of_key, of_value = passed(of_key, axis, -1), passed(of_value, axis, -1)
    return of_query.reshape(query.shape), of_key, of_value


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7))
def ring(query: Array, key: Array, value: Array, axis: str, mask: str, width: int, scale: float, zigzag: bool) -> Array:
    """Attention of this device's queries to all keys, which pass from device to device."""
    return ring_forward(query, key, value, axis, mask, width, scale, zigzag)[0]


ring.defvjp(ring_forward, ring_backward)
'''
