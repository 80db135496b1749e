"""Code of a pipeline that runs: both passes of its parts, and the ticks of all stages.

Both passes of a part are one `jax.vjp`, of which what the backward pass needs waits in a buffer until its turn;
parameters, and what follows from a micro-batch alone, are not kept but taken again.
"""

from __future__ import annotations

PASSES = '''\
class Part:
    """A part of the loss whose passes run apart: of the first it keeps what the second needs besides its operands."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, params: Tree, value: Any, beside: Any) -> tuple[Any, list[Any]]:
        made, pull = jax.vjp(lambda params, value: self.function(params, value, beside), params, value)
        leaves, self.tree = jax.tree.flatten(pull)
        again = {id(one): at for at, one in enumerate(jax.tree.leaves((params, beside)))}
        self.again = [again.get(id(one)) for one in leaves]
        return made, [one for one, at in zip(leaves, self.again, strict=True) if at is None]

    def backward(self, params: Tree, beside: Any, kept: list[Any], grad: Any) -> Any:
        """The gradients of parameters, and of the value."""
        left, again = iter(kept), jax.tree.leaves((params, beside))
        return jax.tree.unflatten(self.tree, [next(left) if at is None else again[at] for at in self.again])(grad)


def forwards(block: Part, stack: Tree, value: Any, beside: Any) -> tuple[Any, Any]:
    return jax.lax.scan(lambda value, params: block.forward(params, value, beside), value, stack)


def backwards(block: Part, stack: Tree, beside: Any, kept: Any, grad: Any) -> tuple[Any, Tree]:
    def step(grad: Any, given: Any) -> tuple[Any, Tree]:
        params, kept = given
        of_params, grad = block.backward(params, beside, kept, grad)
        return grad, of_params

    return jax.lax.scan(step, grad, (stack, kept), reverse=True)


def zeros(tree: Tree, *several: int) -> Tree:
    return jax.tree.map(lambda one: jnp.zeros((*several, *one.shape), one.dtype), tree)


def taken(tree: Tree, at: Any) -> Tree:
    return jax.tree.map(lambda one: jax.lax.dynamic_index_in_dim(one, at, keepdims=False), tree)


def put(tree: Tree, at: Any, new: Tree, where: Any = True) -> Tree:
    """The same with an element replaced, if that holds."""
    new = jax.tree.map(partial(jnp.where, where), new, taken(tree, at))
    return jax.tree.map(lambda one, new: jax.lax.dynamic_update_index_in_dim(one, new, at, 0), tree, new)


'''

RUN = '''\
def pipelined(loss: Any, share: Any, shapes: Tree, rest: Any, state: Tree, batch: Any) -> tuple[Any, Tree]:
    """The loss and its gradients on one stage, of a batch [micro-batch, sequence, ...]."""
    stage = jax.lax.axis_index("pp")
    sizes = dict(zip(paths_of(shapes), jax.tree.leaves(shapes), strict=True))
    leaves = dict(zip(paths_of(state), jax.tree.leaves(state), strict=True))
    before, behind = (
        {path: leaves[path].reshape(sizes[path].shape) for path in ENDS if ENDS[path] == end} for end in (0, STAGES - 1)
    )
    stack, micro = stack_of(leaves, sizes), taken(batch, 0)
    parts = parts_of(loss, shapes, micro, rest)
    first, block, last = Part(parts.first), Part(parts.block), Part(parts.last)
    value, of_first = jax.eval_shape(first.forward, before, (), micro)
    of_last = jax.eval_shape(last.forward, behind, value, micro)[1]
    of_blocks = jax.eval_shape(partial(forwards, block), taken(stack, 0), value, parts.beside(micro))[1]
    total = WHOLE

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
            value, by_blocks = forwards(block, taken(stack, chunk), given, parts.beside(micro))
            loss, by_last = jax.lax.cond(
                ends, lambda: last.forward(behind, value, micro), lambda: (jnp.zeros(()), zeros(of_last))
            )
            return value, (by_first, by_blocks, by_last), loss * share(micro) / total

        made = jax.eval_shape(run)
        value, new, part = jax.lax.cond(valid, run, lambda: zeros(made))
        slots, where = (number % KEPT_FIRST, slot, number % KEPT_LAST), (valid & begins, valid, valid & ends)
        kept = tuple(map(put, kept, slots, new, where))
        return jax.lax.ppermute(value, "pp", FORTH), kept, loss + part

    def backward(tick: Any, arrived: Any, kept: Any, grads: Any) -> Any:
        valid, chunk, number, slot, begins, ends = at(tick - START - (STAGES - 1 - stage), back=True)
        micro = taken(batch, number)
        slots = number % KEPT_FIRST, slot, number % KEPT_LAST

        def run() -> Any:
            by_first, by_blocks, by_last = map(taken, kept, slots)
            of_behind, grad = jax.lax.cond(
                ends,
                lambda: last.backward(behind, micro, by_last, share(micro) / total),
                lambda: (zeros(behind), arrived),
            )
            grad, of_stack = backwards(block, taken(stack, chunk), parts.beside(micro), by_blocks, grad)
            of_before = jax.lax.cond(
                begins, lambda: first.backward(before, micro, by_first, grad)[0], lambda: zeros(before)
            )
            old = grads[0], taken(grads[1], chunk), grads[2]
            added = jax.tree.map(jnp.add, old, (of_before, of_stack, of_behind))
            return grad, (added[0], put(grads[1], chunk, added[1]), added[2])

        grad, grads = jax.lax.cond(valid, run, lambda: (zeros(value), grads))
        return jax.lax.ppermute(grad, "pp", BACK), grads

    def tick(carry: Any, number: Any, forth: bool, back: bool) -> Any:
        ahead, behind = carry
        ahead = forward(number, *ahead) if forth else ahead
        return (ahead, backward(number, behind[0], ahead[1], behind[1]) if back else behind), None

    buffers = zeros(of_first, KEPT_FIRST), zeros(of_blocks, KEPT), zeros(of_last, KEPT_LAST)
    carry = (zeros(value), buffers, jnp.zeros(())), (zeros(value), (zeros(before), zeros(stack), zeros(behind)))
    for begin, end, forth, back in LOOPS:
        carry, _ = jax.lax.scan(partial(tick, forth=forth, back=back), carry, jnp.arange(begin, end))
    of_before, of_stack, of_behind = carry[1][1]
    grads = SUMMED
    held = [grads[path].reshape(leaf.shape) for path, leaf in leaves.items()]
    return jax.lax.psum(carry[0][2], AXES), jax.tree.unflatten(jax.tree.structure(state), held)
'''
