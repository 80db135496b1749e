"""How the gradients of several micro-batches are added up, and the code that does it.

    "copies"    every copy adds up those of its own sequences, and all copies sum what came of it once: the step is
                manual along the axes that cut the batch (`jax.shard_map`), XLA's along all others
    "all"       all devices share every micro-batch, and its gradients are summed, where the plan stores them, each time

The plan says which: its Program sums gradients along axes of the batch after the last micro-batch, or in each. A copy
that runs apart exchanges nothing inside of a micro-batch, and losses add up by their weights (`ir.analysis.weights`).
Copies that draw random numbers have keys of their own (`KEYS`), and hand on what all of them have.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshwright.backends.counting import counted
from meshwright.backends.jax_.emit.model import CARRIED_ARGUMENTS, changes, draws
from meshwright.backends.jax_.emit.views import stem
from meshwright.backends.lines import fitted
from meshwright.backends.subject import Subject
from meshwright.ir.analysis.weights import COUNT, MEAN, Step, Weight, shows_sums, weights_in
from meshwright.ir.errors import EmissionLoss, EmissionModel, EmissionModule, EmissionStorage
from meshwright.ir.program.program import BodyProgram, Gradient, Move, Program, operands_of, results_of
from meshwright.ir.quoting import literal
from meshwright.ir.same import Same

ONCE, EACH = "copies", "all"
ONE_MICROBATCH = ("--fix microbatches=1",)
SEVERAL_SAMPLES = ("--fix mbs=2",)


KEYS = '''\
def is_key(one: jax.Array) -> bool:
    return bool(jnp.issubdtype(one.dtype, jax.dtypes.prng_key))


def of_copy(rest: Tree, copy: Any) -> Tree:
    """What the model holds besides, with keys of random numbers that a copy has for itself."""

    def own(keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, copy))(keys.reshape(-1)).reshape(keys.shape)

    return jax.tree.map(lambda one: own(one) if is_key(one) else one, rest)


def of_all(rest: Tree, left: Tree) -> Tree:
    """What a copy left of it, with the keys that all of them have."""
    return jax.tree.map(lambda one, own: one if is_key(one) else own, rest, left)


'''


def data_axes(program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes that cut a batch, of these."""
    cutting = {shard.axis for entry in program.entries for shard in entry.placement.dims[0]}
    return tuple(axis for axis in names if axis in cutting)


def form_of(program: Program, data: tuple[str, ...]) -> str:
    """How micro-batches are added up; empty for one alone. Stages of a pipeline add up their own. Copies run by
    themselves what XLA would sum in every step of a loop."""
    if len(program.stages) > 1:
        return ONCE
    if program.microbatches == 1:
        return "" if set(data).isdisjoint(set().union(*map(_summed_in_steps, program.bodies))) else ONCE
    return ONCE if any(_summed(one, data) for body in program.bodies for one in body.sync) else EACH


def _summed_in_steps(body: BodyProgram) -> set[str]:
    """The mesh axes along which the gradient of an operand of a loop is a partial sum, since the loop's work is cut
    along them and the operand (a weight that all steps read) is not. XLA reduces such a gradient in every step."""
    return {
        axis
        for one in body.backward
        if isinstance(one, Gradient) and one.signature.attr("steps") is not None
        for index in one.wanted
        for axis, _ in one.strategy.choices
        if axis not in body.locals[one.operands[index]].placement.axes
    }


def _summed(one: object, data: tuple[str, ...]) -> bool:
    """Whether a statement exchanges something along axes of the batch."""
    return isinstance(one, Move) and not one.step.free and not set(data).isdisjoint(one.step.axes)


def check(subject: Subject, data: tuple[str, ...]) -> None:
    """Refuse micro-batches that neither form adds up."""
    form = form_of(subject.program, data)
    _check_samples(subject, data if form == ONCE else ())
    if form:
        weight_of(subject)
    for body in subject.program.bodies:
        if not _summed_in_steps(body) <= set(data if form == ONCE else ()):
            raise EmissionStorage(
                place=f"plan {body.name}",
                cause="XLA would sum the gradient of what all steps of a loop read in every step",
                ways=("--fix zero=1", "--fix tp=1", *ONE_MICROBATCH),
            )
    if len(subject.program.stages) > 1 and any(body.updates for body in subject.program.bodies):
        raise EmissionModel(
            place="the model",
            cause="its forward pass changes more than it returns, and stages hand on what it returns alone",
            ways=("--fix pp=1",),
        )
    for body in subject.program.bodies if form == ONCE else ():
        if value := _changed_by_batch(body):
            raise EmissionModule(
                place=f"plan {body.name}, %{value}",
                cause="the batch changes it in every micro-batch, and each copy runs its own by itself",
                ways=ONE_MICROBATCH,
            )
        for one in (*body.forward, *body.backward):
            if not isinstance(one, Move) or not _summed(one, data):
                continue
            if one.reason not in ("value", "gradient"):
                raise EmissionStorage(
                    place=f"plan {body.name}, %{one.operand}",
                    cause="it is exchanged in every micro-batch, and other gradients once, after the last",
                    ways=("--fix zero=1", *ONE_MICROBATCH),
                )
            if body.elements[one.operand] > 1 or shows_sums(Same(subject.fold)):
                raise EmissionModule(
                    place=f"plan {body.name}, %{one.operand}",
                    cause="copies exchange it in every micro-batch, and each runs its own by itself",
                    ways=ONE_MICROBATCH,
                )


def _check_samples(subject: Subject, copies: tuple[str, ...]) -> None:
    """Refuse batches of one sample, where JAX traces other equations for one than for several."""
    parts, places = subject.program.microbatches, subject.calls.places
    parts *= prod(subject.mesh.axis(axis).size for axis in copies)
    if places is not None and places.check_alone != places.check and subject.workload.global_batch <= parts:
        raise EmissionModule(
            place="the model",
            cause="one sample by itself is traced as other equations than several",
            ways=SEVERAL_SAMPLES,
        )


def _changed_by_batch(body: BodyProgram) -> str:
    """The new value of what the model holds besides that is made of more than what it held; empty if there is none."""
    made = {name: one for one in body.forward for name in results_of(one)}
    for update in body.updates:
        left = [update.value]
        while left:
            name = left.pop()
            if stem(name) in body.inputs:
                return update.value
            left += operands_of(made[name]) if name in made else ()
    return ""


def weight_of(subject: Subject) -> Weight:
    """How losses of micro-batches weigh. Raises `EmissionLoss`."""
    found = weights_in(Same(subject.fold))
    if len(found) > 1:
        raise EmissionLoss(
            place="the loss", cause="parts of a batch weigh differently in its terms", ways=ONE_MICROBATCH
        )
    return found[0]


def counted_in(weight: Weight) -> str:
    """The number of elements of a micro-batch that count, as code."""
    return counted(weight, f"micro[{literal(weight.entry)}]", _padded)


def _padded(text: str, step: Step) -> str:
    raise EmissionLoss(
        place="the loss",
        cause=f"no code is written for a count of {text}, padded",
        ways=ONE_MICROBATCH,
    )


def gradients(subject: Subject, data: tuple[str, ...], *, stored: str, read: str) -> Iterator[str]:
    """The function `gradients_of`: the loss of a batch and its gradients. `stored` names the table of where the latter
    are added up; `read`, where optimizers have shards of what operators read whole, that of how they read it: else XLA
    cuts what gradients are computed of as it cuts these, and gathers it."""
    form = form_of(subject.program, data)
    if not form:
        if changes(subject):
            made, called = "(loss, rest)", "jax.value_and_grad(loss_of, has_aux=True)(state, rest, batch)"
            yield f"def gradients_of({CARRIED_ARGUMENTS}) -> tuple[tuple[jax.Array, Tree], Tree]:"
            yield '    """The loss with what the model holds besides then, and the gradients."""'
        else:
            made, called = "loss", "jax.value_and_grad(loss_of)(state, batch)"
            yield "def gradients_of(state: Tree, batch: Batch) -> tuple[jax.Array, Tree]:"
            yield '    """The loss and its gradients."""'
        if read:
            yield f"    {made}, grads = {called}"
            yield f"    return {made}, jax.lax.with_sharding_constraint(grads, lie({read}, grads))  # cut only then"
        else:
            yield f"    return {called}"
        return
    drawn = form == ONCE and draws(subject)
    yield from KEYS.splitlines() if drawn else ()
    weight, axes, changed = weight_of(subject), ", ".join(literal(axis) for axis in data), changes(subject)
    weighs, held = weight.kind == COUNT, "held" if form == EACH else "state"
    arguments = CARRIED_ARGUMENTS if changed else "state: Tree, batch: Batch"
    result = "tuple[tuple[jax.Array, Tree], Tree]" if changed else "tuple[jax.Array, Tree]"
    yield f"def {'gradients_of' if form == EACH else 'added_up'}({arguments}) -> {result}:"
    where = ", summed where they are stored" if form == EACH else " on every copy, then over copies"
    yield f'    """The loss and its gradients, added up over micro-batches{where}."""'
    yield ""
    yield f"    def added({'carry' if changed else 'sums'}: Any, micro: Batch) -> tuple[Any, None]:"
    yield from ["        sums, rest = carry"] * changed
    if form == EACH:
        yield "        held, micro = jax.lax.optimization_barrier((state, micro))  # gathered for every micro-batch"
    if changed:
        yield f"        (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)({held}, rest, micro)"
    else:
        yield f"        loss, grads = jax.value_and_grad(loss_of)({held}, micro)"
    if form == EACH:
        yield f"        grads = jax.lax.with_sharding_constraint(grads, lie({stored}, grads))"
    total = "jax.tree.map(jnp.add, sums, (loss, grads))"
    if weighs:
        yield f"        count = {counted_in(weight)}"
        total = "jax.tree.map(lambda total, one: total + count * one, sums, (loss, grads, 1))"
    yield f"        return {f'({total}, rest)' if changed else total}, None"
    yield ""
    zeros = "jax.tree.map(jnp.zeros_like, state)"
    if form == EACH:
        yield f"    zeros = jax.lax.with_sharding_constraint({zeros}, lie({stored}, state))"
        zeros = "zeros"
    begin = f"(jnp.zeros(()), {zeros}{', jnp.zeros(())' * weighs})"
    held = f"of_copy(rest, jax.lax.axis_index(({axes},)))" if drawn else "rest"
    left = "left" if drawn else "rest"
    sums, begin = (f"(sums, {left})", f"({begin}, {held})") if changed else ("sums", begin)
    yield from fitted(f"    {sums}, _ = jax.lax.scan(added, {begin}, batch)")
    yield from ["    rest = of_all(rest, left)"] * drawn
    casts = subject.workload.states.casts and form == ONCE
    given = "(sums[0], cast(sums[1], jnp.bfloat16), *sums[2:])" if casts else "sums"
    of_all = f"jax.lax.psum({given}, ({axes},))" if form == ONCE else "sums"
    yield f"    loss, grads{', count' * weighs} = {of_all}"
    yield from ["    grads = cast(grads, jnp.float32)"] * casts
    parts = " * ".join(("MICROBATCHES", *(f"mesh.shape[{literal(axis)}]" for axis in data if form == ONCE)))
    if weighs or weight == MEAN:
        by = "count" if weighs else "parts"
        yield from [f"    parts = {parts}"] * (not weighs)
        loss, grads = f"loss / {by}", f"jax.tree.map(lambda grad: grad / {by}, grads)"
    else:
        loss, grads = "loss", "grads"
    yield f"    return {f'({loss}, rest)' if changed else loss}, {grads}"
    if form == ONCE:
        yield ""
        yield ""
        given = f"{'P(), ' * changed}ROWS), out_specs=P(), axis_names={{{axes}}}, check_vma=False"
        given = f"added_up, mesh=mesh, in_specs=(P(), {given}"
        yield from fitted(f"gradients_of = jax.shard_map({given})")
