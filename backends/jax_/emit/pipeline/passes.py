"""Code of a pipeline that runs: both passes of its parts, and the ticks of all stages.

Both passes of a part are one `jax.vjp`, of which what the backward pass needs waits in a buffer until its turn;
parameters, and what follows from a micro-batch alone, are not kept but taken again.
"""

from __future__ import annotations

PASSES = '''\
def has_grad(one: Any) -> bool:
    return bool(jnp.issubdtype(one.dtype, jnp.inexact))


class Part:
    """A part of the loss whose passes run apart: of the first it keeps what the second needs besides its operands."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, params: Tree, value: Any, beside: Any) -> tuple[Any, list[Any]]:
        made, pull = jax.vjp(lambda params, value: self.function(params, value, beside), params, value)
        self.made = jax.tree.map(lambda one: jax.ShapeDtypeStruct(jnp.shape(one), jnp.result_type(one)), made)
        leaves, self.tree = jax.tree.flatten(pull)
        again = {id(one): at for at, one in enumerate(jax.tree.leaves((params, beside)))}
        self.again = [again.get(id(one)) for one in leaves]
        return made, [one for one, at in zip(leaves, self.again, strict=True) if at is None]

    def backward(self, params: Tree, beside: Any, kept: list[Any], grad: Any) -> Any:
        """The gradients of parameters, and of the values that have them."""
        left, again, grads = iter(kept), jax.tree.leaves((params, beside)), iter(grad)
        pull = jax.tree.unflatten(self.tree, [next(left) if at is None else again[at] for at in self.again])
        whole = jax.tree.map(lambda one: next(grads) if has_grad(one) else np.zeros(one.shape, float0), self.made)
        of_params, of_value = pull(whole)
        return of_params, [one for one in of_value if one.dtype != float0]


def forwards(block: Part, stack: Tree, numbers: Any, value: Any, beside: Any) -> Any:
    def step(value: Any, given: Any) -> tuple[Any, Any]:
        params, number = given
        return block.forward(params, value, (beside, number))

    return jax.lax.scan(step, value, (stack, numbers))


def backwards(block: Part, stack: Tree, numbers: Any, beside: Any, kept: Any, grad: Any) -> Any:
    def step(grad: Any, given: Any) -> tuple[Any, Tree]:
        params, number, kept = given
        of_params, grad = block.backward(params, (beside, number), kept, grad)
        return grad, of_params

    return jax.lax.scan(step, grad, (stack, numbers, kept), reverse=True)


added = partial(jax.tree.map, jnp.add)


def zeros(tree: Tree, *several: int) -> Tree:
    return jax.tree.map(lambda one: jnp.zeros((*several, *one.shape), one.dtype), tree)


def taken(tree: Tree, at: Any) -> Tree:
    return jax.tree.map(lambda one: jax.lax.dynamic_index_in_dim(one, at, keepdims=False), tree)


def put(tree: Tree, at: Any, new: Tree, where: Any = True) -> Tree:
    """The same with an element replaced, if that holds."""
    new = jax.tree.map(partial(jnp.where, where), new, taken(tree, at))
    return jax.tree.map(lambda one, new: jax.lax.dynamic_update_index_in_dim(one, new, at, 0), tree, new)


'''

ARGUMENTS = "loss: Any, share: Any, shapes: Tree, rest: Any, state: Tree, batch: Any"
ARGUMENTS_DRAWN = "loss: Any, share: Any, shapes: Tree, state: Tree, rest: Tree, batch: Any"
RUN = '''\
def pipelined(ARGUMENTS) -> tuple[Any, Tree]:
    """The loss and its gradients on one stage, of a batch [micro-batch, sequence, ...]<<; with the loss, what the
    model holds besides then>>."""
    stage = jax.lax.axis_index("pp")
    sizes, leaves = by_path(shapes), by_path(state)
CAST    before, behind = (
        {path: leaves[path].reshape(sizes[path].shape) for path in ENDS if end in ENDS[path]} for end in (0, STAGES - 1)
    )
    stack, micro = stack_of(leaves, sizes), taken(batch, 0)
    <<left, KEYED>>beside, *parts = parts_of(loss, shapes, micro, rest)
<<OF_COPY    then, rests = jax.lax.scan(lambda rest, micro: (left((micro, rest)), rest), OF_IT, batch)
    batch = batch, restsDRAWN_BY
    micro = taken(batch, 0)
>>    first, block, last = map(Part, parts)
    value, of_first = jax.eval_shape(first.forward, before, (), micro)
    grads_of = [one for one in value if has_grad(one)]
    told, of_last = jax.eval_shape(last.forward, behind, value, micro)
    chunk = taken(stack, 0), jnp.arange(EACH), value, beside(micro)
    of_blocks = jax.eval_shape(partial(forwards, block), *chunk)[1]
    total = WHOLE

    def numbers(chunk: Any) -> Any:
        return (chunk * STAGES + stage) * EACH + jnp.arange(EACH)

    def at(turn: Any, back: bool) -> Any:
        """Whether a turn is one, its chunk and its micro-batch, and whether it begins or ends the model."""
        valid, turn = (turn >= 0) & (turn < TURNS), jnp.clip(turn, 0, TURNS - 1)
        chunk = turn // STAGES % CHUNKS
        chunk = CHUNKS - 1 - chunk if back else chunk
        number = turn // (STAGES * CHUNKS) * STAGES + turn % STAGES
        begins, ends = (stage == 0) & (chunk == 0), (stage == STAGES - 1) & (chunk == CHUNKS - 1)
        slot = (number // STAGES * CHUNKS + chunk) * STAGES + number % STAGES
        return valid, chunk, number, slot % KEPT, begins, ends

    def forward(tick: Any, arrived: Any, kept: Any, loss: Any) -> Any:
        valid, chunk, number, slot, begins, ends = at(tick - stage, back=False)
        micro = taken(batch, number)

        def run() -> Any:
            given, by_first = jax.lax.cond(
                begins, lambda: first.forward(before, (), micro), lambda: (arrived, zeros(of_first))
            )
            value, by_blocks = forwards(block, taken(stack, chunk), numbers(chunk), given, beside(micro))
            loss, by_last = jax.lax.cond(
                ends, lambda: last.forward(behind, value, micro), lambda: zeros((told, of_last))
            )
            return value, (by_first, by_blocks, by_last), loss * share(ENTRIES) / total

        made = jax.eval_shape(run)
        value, new, part = jax.lax.cond(valid, run, lambda: zeros(made))
        slots, where = (number % KEPT_FIRST, slot, number % KEPT_LAST), (valid & begins, valid, valid & ends)
        kept = tuple(map(put, kept, slots, new, where))
        return jax.lax.ppermute(value, "pp", FORTH), kept, loss + part

    def backward(tick: Any, arrived: Any, kept: Any, grads: Any) -> Any:
        valid, chunk, number, slot, begins, ends = at(tick - START - (STAGES - 1 - stage), back=True)
        micro = taken(batch, number)

        def at_the_end() -> Any:
            weight = jnp.asarray(share(ENTRIES) / total, told.dtype)
            of_behind, grad = last.backward(behind, micro, taken(kept[2], number % KEPT_LAST), [weight])
            return added(grads[2], of_behind), grad

        def at_the_beginning(grad: Any) -> Any:
            return added(grads[0], first.backward(before, micro, taken(kept[0], number % KEPT_FIRST), grad)[0])

        def run() -> Any:
            of_behind, grad = jax.lax.cond(ends, at_the_end, lambda: (grads[2], arrived))
            own = taken(stack, chunk), numbers(chunk), beside(micro)
            grad, of_stack = backwards(block, *own, taken(kept[1], slot), grad)
            of_stack = put(grads[1], chunk, added(taken(grads[1], chunk), of_stack))
            return grad, (jax.lax.cond(begins, at_the_beginning, lambda _: grads[0], grad), of_stack, of_behind)

        grad, grads = jax.lax.cond(valid, run, lambda: (zeros(grads_of), grads))
        return jax.lax.ppermute(grad, "pp", BACK), grads

    def tick(carry: Any, number: Any, forth: bool, back: bool) -> Any:
        ahead, behind = carry
        ahead = forward(number, *ahead) if forth else ahead
        return (ahead, backward(number, behind[0], ahead[1], behind[1]) if back else behind), None

    buffers = zeros(of_first, KEPT_FIRST), zeros(of_blocks, KEPT), zeros(of_last, KEPT_LAST)
    sums = SUMS
    carry = (zeros(value), buffers, jnp.zeros(())), (zeros(grads_of), sums)
    for begin, end, forth, back in LOOPS:
        carry, _ = jax.lax.scan(partial(tick, forth=forth, back=back), carry, jnp.arange(begin, end))
    of_before, of_stack, of_behind = carry[1][1]
    shared = {path: jax.lax.psum(of_before[path] + of_behind[path], "pp") for path in SHARED}
    grads = {**of_before, **leaves_of(of_stack), **of_behind, **shared}
SUMMED    held = [grads[path].reshape(leaf.shape)WIDE for path, leaf in leaves.items()]
<<OF_ALL>>    return TOLD, jax.tree.unflatten(jax.tree.structure(state), held)
'''
