"""A JAX model with its hooks, and one training step of it as a jaxpr.

The hooks are those of the model contract (`meshwright.ir.frontends.contract`), in JAX:

    example_inputs(batch, seq)    one batch: an array, a tuple, or a dict of arrays; only shapes are looked at
    loss(outputs, batch)          a scalar; not needed if the model returns its loss
    dims = {"tokens": ("b", "s")} names for the dimensions of the inputs
    optimizer()                   the optax transformation that training will use
    forward(model, batch)         how the model is called, where its own parameters do not say it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax

from meshwright.ir.errors import (
    DataDependentControlFlow,
    FactoryRaised,
    ForwardRaised,
    MeshwrightError,
    NoExampleInputs,
    NoLoss,
)
from meshwright.ir.frontends.contract import Factory, check_hooks
from meshwright.ir.frontends.foreign import (
    TIME_LIMIT_S,
    Interrupted,
    TimeIsUp,
    contained,
    described,
    guarded,
    user_line,
)
from meshwright.ir.frontends.jax_.annotated import RULES, Sizes, meshed, spec_of
from meshwright.ir.frontends.jax_.dtypes import type_of
from meshwright.ir.frontends.jax_.flat import Leaf
from meshwright.ir.frontends.jax_.models import Made, model_of, path_of

TRACE_LIMIT_S = 600.0
CAST = {"bf16": jax.numpy.bfloat16, "f16": jax.numpy.float16, "f64": jax.numpy.float64}
TAKEN = {
    "example_inputs": ("batch", "seq"),
    "loss": ("outputs", "batch"),
    "optimizer": (),
    "forward": ("model", "batch"),
}
"""What each hook is called with."""
WORKLOAD_DTYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
"""By the names that a workload gives them (`--dtype`)."""

INPUTS = """\
def example_inputs(batch, seq):
    import jax.numpy as jnp

    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}
"""
LOSS = """\
def loss(outputs, batch):
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()
"""


@dataclass(frozen=True, slots=True)
class JaxSource:
    """A model to plan for. `dtype`, if any, is that of parameters which the factory made in fp32."""

    framework: ClassVar = "jax_"

    made: Made
    name: str
    hooks: Mapping[str, Any]
    place: str
    config: str = ""
    dtype: str = ""
    mesh: Sizes = ()
    """The axes of the mesh that its own shardings are of, where they are asked for."""
    beside: Mapping[str, Any] = field(default_factory=dict)

    def in_dtype(self, dtype: str) -> JaxSource:
        """With the parameters that the factory made in fp32 in the dtype of a workload."""
        wanted = WORKLOAD_DTYPES[dtype]
        return replace(self, dtype="" if wanted == "f32" else wanted)

    def as_made(self) -> JaxSource | None:
        """With all parameters in the dtypes in which the factory made them; None if they are."""
        return replace(self, dtype="") if self.dtype else None


def source_of(factory: Factory, time_limit_s: float = TIME_LIMIT_S, mesh: Sizes = ()) -> JaxSource | Any:
    """The model of a factory with the hooks beside it; what is no model of JAX as it is. `mesh`: its own shardings are
    asked for, which are of that."""
    beside, place = factory.beside, factory.path
    hooks = {name: beside.get(name) for name in (*TAKEN, "dims")}
    check_hooks(hooks, TAKEN, place)
    rules = beside.get(RULES)
    with guarded(place, time_limit_s), meshed(mesh, rules, place):
        found = model_of(factory.make, place, hooks["forward"], lambda names: spec_of(names, mesh, rules, place))
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[0]):
        return found
    made, name = found
    return JaxSource(made, name, hooks, place, mesh=mesh, beside=beside)


def refused(made: Any, place: str) -> FactoryRaised:
    """What is said of a factory that returns no model."""
    return FactoryRaised(
        place=place,
        cause=f"the factory returned {type(made).__name__}, which is no model",
        fix="return a torch, Flax or Equinox module, or a pair (init, apply)",
    )


def example_batch(source: JaxSource, batch: int, seq: int) -> Any:
    """The shapes of one batch, by the model's own hook."""
    make = source.hooks["example_inputs"]
    if make is None:
        raise NoExampleInputs(
            place=source.place,
            cause=f"nothing says what {source.name} takes as input",
            fix=f"put this beside the factory:\n\n{INPUTS}",
        )
    with guarded(source.place, TIME_LIMIT_S):
        return jax.eval_shape(lambda: make(batch, seq))


def named(batch: Any) -> dict[str, Any]:
    """The leaves of a batch by name."""
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    return {path_of(keys) or "inputs": leaf for keys, leaf in leaves}


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: its jaxpr, what its arguments are, and the buffers whose new values follow the loss."""

    jaxpr: Any
    leaves: tuple[Leaf, ...]
    buffers: tuple[str, ...]
    whole: Any = None
    """The jaxpr with what nothing reads."""
    draws: bool = False
    """Whether it draws random numbers, and hands on what later steps draw from."""


def traced(source: JaxSource, batch: Any) -> Step:
    """The jaxpr of a training step on a batch of these shapes."""
    called: list[str] = []
    with _user_code(source.place, called), meshed(source.mesh, source.beside.get(RULES), source.place):
        model = source.made(batch)
        called += [model.way] * (source.hooks["forward"] is None)
        shapes, tree = jax.tree.flatten(model.state)
        leaves = tuple(_in_dtype(leaf, source.dtype) for leaf in model.leaves)
        given = [
            one if leaf.type == own.type else jax.ShapeDtypeStruct(one.shape, CAST[leaf.type.dtype])
            for one, leaf, own in zip(shapes, leaves, model.leaves, strict=True)
        ]
        entries, batch_tree = jax.tree.flatten(batch)
        changing = [at for at, leaf in enumerate(leaves) if leaf.kind == "buffer"]

        def step(state: list[Any], entries: list[Any]) -> Any:
            whole = jax.tree.unflatten(batch_tree, entries)
            outputs, after = model.run(jax.tree.unflatten(tree, state), whole)
            loss = loss_of(source, outputs, whole)
            now = jax.tree.leaves(after)
            return loss, [now[at] for at in changing]

        closed = jax.make_jaxpr(step)(given, entries)
    inputs = tuple(Leaf("input", name, type_of(one, name)) for name, one in named(batch).items())
    leaves, jaxpr = (*leaves, *inputs), _without_waste(closed)
    return Step(
        jaxpr=jaxpr,
        leaves=leaves,
        buffers=tuple(leaves[at].path for at in changing),
        whole=closed,
        draws=model.keyed or _reads(jaxpr.jaxpr, [leaf.random for leaf in leaves]),
    )


def _reads(jaxpr: Any, among: Sequence[bool]) -> bool:
    """Whether an equation reads an argument among these."""
    read = {id(var) for equation in jaxpr.eqns for var in equation.invars}
    return any(id(var) in read for var, own in zip(jaxpr.invars, among, strict=True) if own)


def _in_dtype(leaf: Leaf, dtype: str) -> Leaf:
    if not dtype or leaf.kind != "param" or leaf.type.dtype != "f32":
        return leaf
    return replace(leaf, type=replace(leaf.type, dtype=dtype))


def _without_waste(closed: Any) -> Any:
    """What reaches an output: rows that a scan gives and nobody reads would keep its blocks apart."""
    from jax.interpreters import partial_eval

    remove = getattr(partial_eval, "dce_jaxpr", None)
    if remove is None:
        return closed
    jaxpr, _ = remove(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def loss_of(source: JaxSource, outputs: Any, batch: Any) -> Any:
    """The loss of what a model returned for a batch."""
    hook = source.hooks["loss"]
    loss = hook(outputs, batch) if hook is not None else own_loss(outputs)[1]
    if getattr(loss, "shape", None) != ():
        raise NoLoss(
            place=source.place,
            cause=f"the {'model' if hook is None else 'loss'} returns no scalar",
            fix=f"put this beside the factory, and adapt it:\n\n{LOSS}",
        )
    return loss


def own_loss(outputs: Any) -> tuple[str, Any]:
    """The scalar among what a model returns, and the code for it: itself, an entry called loss, or the only one of a
    tuple."""
    if isinstance(outputs, Mapping):
        return '["loss"]', outputs.get("loss")
    if isinstance(outputs, tuple | list):
        scalars = [at for at, one in enumerate(outputs) if getattr(one, "shape", None) == ()]
        return (f"[{scalars[0]}]", outputs[scalars[0]]) if len(scalars) == 1 else ("", None)
    return "", outputs


def where_its_loss_is(source: JaxSource, batch: Any) -> str | None:
    """The code for a model's own loss, behind what it returns; None for one that has a hook for it."""
    if source.hooks["loss"] is not None:
        return None
    found: list[str] = []
    model = source.made(batch)

    def run(state: Any, batch: Any) -> Any:
        where, loss = own_loss(model.run(state, batch)[0])
        found.append(where)
        return loss

    jax.eval_shape(run, model.state, batch)
    return found[-1]


HINTS = {
    "equinox": "an Equinox module is called for each example of the batch; one that takes whole batches needs "
    "forward(model, batch) beside its factory. Else "
}
"""What may be wrong besides, by the way a model is called."""


@contextlib.contextmanager
def _user_code(place: str, called: Sequence[str] = ()) -> Iterator[None]:
    """Where code of the user's is traced: what it raises is said with its line. `called`: the way of a model that is
    called as usual, once it is known."""
    try:
        with contained(place, TRACE_LIMIT_S):
            yield
    except (MeshwrightError, Interrupted, TimeIsUp):
        raise
    except jax.errors.ConcretizationTypeError as error:
        raise DataDependentControlFlow(
            place=user_line(error, place),
            cause="the code needs the value of an array, and plans are made without values",
            fix="compute with arrays (jnp.where, masks, static capacities) instead of if and int()",
        ) from None
    except BaseException as error:  # noqa: BLE001 - it is whatever the user's code raises
        raise ForwardRaised(
            place=user_line(error, place),
            cause=f"the forward pass or the loss raised {described(error)}",
            fix="".join(HINTS.get(way, "") for way in called)
            + "correct this line; the step is traced on shapes, with the batch of example_inputs",
        ) from None
