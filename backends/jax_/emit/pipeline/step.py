"""What train.py has of a pipeline: parameters as stages hold them, and the function of the loss and its gradients."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.jax_.emit import accumulation
from meshwright.backends.jax_.emit.model import carried, draws, has_rest, invoked, loss_of
from meshwright.backends.jax_.emit.pipeline.code import PIPELINE, text
from meshwright.backends.jax_.emit.pipeline.stages import AXIS, Stages
from meshwright.ir.analysis.weights import COUNT, MEAN, Weight
from meshwright.ir.quoting import literal

STEP = '''\
def begin() -> Tree:
    """The parameters that training begins with, as stages hold them."""
    return staged(MADE)


def model_state(state: Tree) -> Tree:
    """Parameters as the model holds them."""
    return unstaged(state, shapes)


def loss_of(state: Tree, batch: BatchREST_ARGUMENT) -> RESULT:
    """The user's loss of a micro-batch<<, and what the model holds besides then>>."""
<<    outputs, rest = outputs_of(state, batch, rest)
>>    return LOSS<<, rest>>


def share(micro: Batch) -> Any:
    """What a micro-batch weighs in the loss."""
    return SHARE


shapes = jax.eval_shape(USED)
gradients_of = jax.shard_map(
    partial(pipelined, loss_of, share, shapesHELD),
    mesh=mesh,
    in_specs=(rows(jax.eval_shape(begin)), <<P(), >>ROWS),
    out_specs=(P(), rows(jax.eval_shape(begin))),
    axis_names={MANUAL},
    check_vma=False,
)'''


def step(stages: Stages, data: tuple[str, ...]) -> Iterator[str]:
    """The lines of train.py, for copies along these axes."""
    rest, drawn = has_rest(invoked(stages.subject)), draws(stages.subject)
    weight = accumulation.weight_of(stages.subject)
    share = accumulation.counted_in(weight) if weight.kind == COUNT else "1.0"
    made = "cast(as_made(), jnp.float32)" if stages.subject.workload.states.casts else "as_made()"
    used = "lambda: cast(as_made(), jnp.bfloat16)" if stages.subject.workload.states.casts else "as_made"
    code = (
        carried(STEP, drawn)
        .replace("LOSS", loss_of(stages.subject, "outputs" if drawn else "outputs_of(state, batchREST)", "batch"))
        .replace("RESULT", "tuple[jax.Array, Tree]" if drawn else "jax.Array")
        .replace("MADE", made)
        .replace("USED", used)
        .replace("REST_ARGUMENT", ", rest: Tree" * rest)
        .replace("REST", ", rest" * rest)
    )
    code = code.replace("SHARE", share).replace("HELD", "" if drawn else f", ({'rest,' * rest})")
    yield from code.replace("MANUAL", ", ".join(map(literal, (AXIS, *data)))).split("\n")


def beside(stages: Stages, data: tuple[str, ...]) -> tuple[str, str]:
    """The file of the pipeline, by name."""
    return PIPELINE, text(stages, data, _whole(stages, accumulation.weight_of(stages.subject), data))


def _whole(stages: Stages, weight: Weight, data: tuple[str, ...]) -> str:
    """What all micro-batches weigh together, as code."""
    if weight.kind == COUNT:
        own = f"jnp.sum(jax.vmap(share)({'batch[0]' if draws(stages.subject) else 'batch'}))"
        return f"jax.lax.psum({own}, ({', '.join(map(literal, data))},))" if data else own
    copies = 1
    for axis in stages.subject.mesh.axes:
        copies *= axis.size if axis.name in data else 1
    return str(stages.ticks.microbatches * copies if weight == MEAN else 1)
