"""The training script of a plan, as text that is read from top to bottom, and the file of shardings beside it.

XLA is told where parameters and values lie, and finds the collectives. Parameters are told by their shardings. Values
are inside of the user's functions, which stay as they are: the script traces the loss, and runs the jaxpr equation by
equation, with a constraint where the plan has one (`evaluate`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from meshwright.backends.jax_.emit import accumulation, recompute
from meshwright.backends.jax_.emit.model import model, needs
from meshwright.backends.jax_.emit.pipeline import step as piped
from meshwright.backends.jax_.emit.pipeline.stages import Stages, whole_mesh
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.tables import gradients_table, params_tables, states_table, values_tables, written
from meshwright.backends.subject import Subject
from meshwright.ir.quoting import literal, said

SCRIPT, BESIDE = "train.py", "train_shardings.py"
WIDTH = 116
COMPUTE = "jnp.bfloat16"
IN_MICROBATCHES = "    batch = jax.tree.map(lambda one: one.reshape(MICROBATCHES, -1, *one.shape[1:]), batch)\n"

LOAD = """\
def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model_file", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


model_file = load(Path(__file__).resolve().parent / MODEL)
"""

LOSS = '''\
def loss_of(state: Tree, batch: Batch) -> jax.Array:
    """The user's loss, run as it is traced, with values where the plan has them."""
CASTUSED    given = (state, batchREST)
    traced = jax.make_jaxpr(lambda *given: model_file.loss(outputs_of(*given), given[1]))(*given)
    if crc32(" ".join(primitives(traced.jaxpr)).encode()) != TRACE:
        sys.exit("values have other places than when this was written: the model or JAX has changed, so emit it again")
    return evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(given))[0]
'''

CAST = '''\
def cast(tree: Tree, dtype: Any) -> Tree:
    """The same in another precision, but for what are no such numbers."""
    return jax.tree.map(lambda one: one.astype(dtype) if jnp.issubdtype(one.dtype, jnp.floating) else one, tree)


'''
KEPT = '''\
def begin() -> Tree:
    """The parameters that training begins with, as they are kept: in fp32."""
    return cast(as_made(), jnp.float32)


'''
TOLD = '        print(f"step {number}: loss {loss:.6f}", flush=True)'
TOLD_ONCE = """\
        if jax.process_index() == 0:
            print(f"step {number}: loss {loss:.6f}", flush=True)"""
PUT = "    return jax.device_put(batch, NamedSharding(mesh, ROWS))"
PUT_OWN = """\
    rows = NamedSharding(mesh, ROWS)
    made = jax.make_array_from_callback
    return jax.tree.map(lambda one: made(one.shape, rows, np.asarray(one).__getitem__), batch)"""
"""On each of several hosts: the parts of its own devices."""

STEP = '''\
def updated(state: Tree, states: Tree, grads: Tree) -> tuple[Tree, Tree]:
    """The parameters and the optimizer's states after its step."""
    grads = jax.lax.with_sharding_constraint(grads, lie(STATES, grads))
    updates, states = optimizer.update(grads, states, state)
    return optax.apply_updates(state, updates), states


def train_step(state: Tree, states: Tree, batch: Batch) -> tuple[Tree, Tree, jax.Array]:
    """A step, and the loss before it."""
    loss, grads = gradients_of(state, batch)
    return *updated(state, states, grads), loss


shape = jax.eval_shape(begin)
stored, whole = lie(PARAMS, shape), NamedSharding(mesh, P())
kept = optax.tree_map_params(
    optimizer,
    lambda _, sharding: sharding,
    jax.eval_shape(optimizer.init, shape),
    lie(STATES, shape),
    transform_non_params=lambda _: whole,
)
step = jax.jit(train_step, donate_argnums=(0, 1), out_shardings=(stored, kept, whole))


def start() -> tuple[Tree, Tree]:
    """The parameters and the optimizer's states, every device with its own part."""
    state = jax.jit(begin, out_shardings=stored)()
    return state, jax.jit(optimizer.init, out_shardings=kept)(state)


def placed(batch: Any) -> Batch:
    """A batch on the devices."""
CUTPUT


def batch_of(number: int) -> Batch:
    """The sequences of a step. Your own data goes here."""
    return placed(model_file.example_inputs(GLOBAL_BATCH, SEQ))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    state, states = start()
    for number in range(steps):
        state, states, loss = step(state, states, batch_of(number))
TOLD


if __name__ == "__main__":
    main()
'''

JOIN = """\
if "COORDINATOR" in os.environ:
    jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["HOSTS"]), int(os.environ["HOST"]))
elif "HOSTS" in os.environ:
    jax.distributed.initialize()  # JAX finds out where it runs
"""
MOVED = '''\
def moved(place: str, first: int) -> str:
    """A place in a block that begins at this equation."""
    number, mark, rest = re.split("([/:])", place, maxsplit=1)
    return f"{first + int(number)}{mark}{rest}"


'''

EVALUATE = '''\
def path_of(keys: Any) -> Any:
    return PATH


def lie(table: dict[str, P], tree: Any) -> Any:
    """For every leaf the sharding that a table has for its path."""

    def of(keys: Any, leaf: Any) -> NamedSharding:
        path = path_of(keys)
        alike = re.sub(r"(?<![^.])\\d+(?![^.])", "*", path)
        return NamedSharding(mesh, table[path] if path in table else table[alike])

    return tree_map_with_path(of, tree)


def lying(value: Any, spec: P | None) -> Any:
    return LYING


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def both_lying(value: jax.Array, spec: P | None, gradient: P | None) -> Any:
    return lying(value, spec)


both_lying.defvjp(
    lambda value, spec, gradient: (lying(value, spec), None),
    lambda spec, gradient, _, grad: (lying(grad, gradient),),
)


def pinned(value: Any, place: str) -> Any:
    """A value where the plan has it. XLA would cut, and pad, dimensions of a single element: these stay whole."""
    if place not in VALUES and 1 in jnp.shape(value):
        return lying(value, P(*(None if extent == 1 else P.UNCONSTRAINED for extent in value.shape)))
    for spec, gradient in VALUES.get(place, ()):
        trained = jnp.issubdtype(value.dtype, jnp.inexact)
        value = both_lying(value, spec, gradient) if trained else lying(value, spec)
    return value


def evaluate(jaxpr: Any, consts: Any, given: Any, place: str = "") -> list[Any]:
    """Run a jaxpr equation by equation: the user's own code, with values pinned."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))
LOOP    return [read(one, known) for one in jaxpr.outvars]


def read(one: Any, known: dict[Any, Any]) -> Any:
    return one.val if isinstance(one, Literal) else known[one]


def made(equation: Any, known: dict[Any, Any], here: str) -> dict[Any, Any]:
    """What an equation makes."""
    results = run(equation, [read(one, known) for one in equation.invars], here)
    pairs = zip(equation.outvars, results, strict=True)
    return {var: pinned(one, f"{here}:{at}") for at, (var, one) in enumerate(pairs)}


BLOCKSdef spoken_of(equation: Any, here: str) -> bool:
    """Whether the plan has something to say of an equation's body: it does of what is computed again."""
    name, bodies = equation.primitive.name, jaxprs_in_params(equation.params)
    names = (name, *(inner for body in bodies for inner in primitives(body)))
    inside = name in ("jit", "scan", *CHECKPOINT) and not set(CHECKPOINT).isdisjoint(names)
    return inside or any(place.startswith(f"{here}/") for place in VALUES)


def run(equation: Any, operands: list[Any], here: str) -> list[Any]:
    """One equation; of one whose body the plan speaks of, that body."""
    params = equation.params
    if not spoken_of(equation, here):
        given = {var: one for var, one in zip(equation.invars, operands, strict=True) if not isinstance(var, Literal)}
        return list(eval_jaxpr(Jaxpr((), list(given), equation.outvars, [equation]), (), *given.values()))
    jaxpr, consts = getattr(params["jaxpr"], "jaxpr", params["jaxpr"]), getattr(params["jaxpr"], "consts", ())
    if equation.primitive.name != "scan":
        return evaluate(jaxpr, consts, operands, f"{here}/")
    fixed, carried = params["num_consts"], params["num_carry"]

    def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        given = [pinned(one, f"{here}.{at}") for at, one in enumerate((*operands[:fixed], *carry, *rows))]
        results = evaluate(jaxpr, consts, given, f"{here}/")
        return results[:carried], results[carried:]

    carry, rows = operands[fixed : fixed + carried], operands[fixed + carried :]
    carry, rows = jax.lax.scan(body, carry, rows, **{key: params[key] for key in ("length", "reverse", "unroll")})
    return [*carry, *rows]


def primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives, in order."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for body in jaxprs_in_params(equation.params):
            yield from primitives(body)
'''


LOOP = """\
    for number, equation in enumerate(jaxpr.eqns):
        known |= made(equation, known, f"{place}{number}")
"""

LOOP_OF_BLOCKS = """\
    numbered, first = list(enumerate(jaxpr.eqns)), 0
    while first < len(numbered):
        here = f"{place}{first}"
        last = AGAIN.get(here, first + 1) or len(numbered)
        if here in AGAIN:
            later = {*read_by(numbered[last:]), *(id(one) for one in jaxpr.outvars)}
            known |= again(numbered[first:last], known, later, place)
        else:
            known |= made(jaxpr.eqns[first], known, here)
        first = last
"""

BLOCKS = '''\
def read_by(numbered: Any) -> dict[int, Any]:
    return {id(one): one for _, equation in numbered for one in equation.invars if not isinstance(one, Literal)}


def again(numbered: Any, known: dict[Any, Any], later: set[int], place: str) -> dict[Any, Any]:
    """What the equations of a block make that is read later. The backward pass runs them again, from what they read."""
    given = [one for one in read_by(numbered).values() if one in known]
    left = [var for _, equation in numbered for var in equation.outvars if id(var) in later]

    @jax.checkpoint
    def block(values: list[Any]) -> list[Any]:
        inside = dict(zip(given, values, strict=True))
        for number, equation in numbered:
            inside |= made(equation, inside, f"{place}{number}")
        return [inside[var] for var in left]

    return dict(zip(left, block([known[one] for one in given]), strict=True))


'''


def texts(subject: Subject, model_path: str, *, cpus: bool) -> tuple[tuple[str, str], ...]:
    """train.py, and the files beside it, by name. `cpus`: devices are parts of this machine's CPU."""
    shardings = Shardings(subject)
    stages = Stages(subject) if shardings.piped else None
    if stages is not None:
        stages.check()
    shardings.check()
    return (
        (SCRIPT, _script(subject, shardings, stages, model_path, cpus=cpus)),
        (BESIDE, _beside(subject, shardings, cpus=cpus)),
        *([piped.beside(stages, shardings.data)] if stages is not None else []),
    )


def _script(subject: Subject, shardings: Shardings, stages: Stages | None, model_path: str, *, cpus: bool) -> str:
    """train.py: the model, its loss, the step, and what runs it."""
    calls = subject.calls
    assert calls.invoked is not None
    apart, first = needs(calls.invoked)
    whole = stages is None  # the loss
    tables = dict.fromkeys(("PARAMS", states_table(shardings), gradients_table(shardings), "TRACE" * whole))
    used_table = ["USED"] if shardings.used_apart else []
    runs = ["evaluate", "lie", "mesh", "primitives"] if whole else ["lie", "mesh"]
    shared = ", ".join([*sorted(filter(None, tables)), *used_table, *runs])
    used = "    state = jax.lax.with_sharding_constraint(state, lie(USED, state))\n" if shardings.used_apart else ""
    casts = subject.workload.states.casts
    used = (f"    state = cast(state, {COMPUTE})  # what is kept is in fp32\n" * casts) + used
    optimizer = "model_file.optimizer()" if calls.has_optimizer else "optax.adamw(3e-4, weight_decay=0.01)"
    several = subject.program.microbatches
    numpy = ["import jax.numpy as jnp"] * ((several > 1 and whole) or casts) + ["import numpy as np"] * (not cpus)
    cut = several > 1 or not whole  # into micro-batches
    rows = written((((),) if cut else ()) + (shardings.data,) if shardings.data else ())
    return "\n".join(
        (
            *_title(subject),
            "",
            "import argparse",
            "import importlib.util",
            "import sys",
            *(["from functools import partial"] * (not whole)),
            "from pathlib import Path",
            "from typing import Any",
            *(["from zlib import crc32"] * whole),
            "",
            *sorted((*apart, "import jax", *numpy, "import optax")),
            *sorted((*first, "from jax.sharding import NamedSharding", "from jax.sharding import PartitionSpec as P")),
            "",
            *(["from train_pipeline import pipelined, rows, staged, unstaged"] * (not whole)),
            f"from train_shardings import {shared}",
            "",
            "Tree = Any",
            "Batch = dict[str, jax.Array]",
            "",
            f"MODEL = {literal(model_path)}",
            f"GLOBAL_BATCH = {subject.workload.global_batch}",
            *([f"MICROBATCHES = {several}"] if cut else ()),
            f"SEQ = {subject.workload.seq}",
            f"ROWS = {rows}  # of the batch",
            "SEED = 0",
            "",
            "",
            f"{LOAD}optimizer = {optimizer}",
            *(line.replace("def begin()", "def as_made()") if casts or not whole else line for line in model(calls)),
            "",
            "",
            *((CAST + KEPT * whole).splitlines() if casts else ()),
            *(
                piped.step(stages, shardings.data)
                if stages is not None
                else (
                    LOSS.replace("CASTUSED", used).replace("REST", ", rest" if calls.invoked.way == "nnx" else ""),
                    "",
                    *accumulation.gradients(subject, shardings.data, stored=gradients_table(shardings)),
                )
            ),
            "",
            "",
            STEP.replace("STATES", states_table(shardings))
            .replace("CUT", IN_MICROBATCHES * cut)
            .replace("PUT", PUT if cpus else PUT_OWN)
            .replace("TOLD", TOLD if cpus else TOLD_ONCE),
        )
    )


def _beside(subject: Subject, shardings: Shardings, *, cpus: bool) -> str:
    """train_shardings.py: where parameters and values lie, and what puts them there."""
    calls = subject.calls
    assert calls.places is not None
    assert calls.invoked is not None
    blocks = recompute.again(shardings)
    keys = 'keystr(keys, simple=True, separator=".")'
    path = f're.sub(r"\\.(raw_)?value$", "", {keys})' if calls.invoked.way == "nnx" else keys
    sizes = ", ".join(f"{literal(axis.name)}: {axis.size}" for axis in whole_mesh(subject).axes)
    devices = f"max({subject.ranks}, jax.config.jax_num_cpu_devices)"
    return "\n".join(
        (
            '"""Where parameters and values of train.py lie on the devices, and what puts them there."""',
            "",
            *(["import os"] * (not cpus)),
            "import re",
            "from collections.abc import Iterator",
            "from functools import partial",
            "from typing import Any",
            "",
            "import jax",
            "import jax.numpy as jnp",
            "from jax.core import eval_jaxpr",
            "from jax.extend.core import Jaxpr, Literal, jaxprs_in_params",
            "from jax.sharding import AxisType, NamedSharding",
            "from jax.sharding import PartitionSpec as P",
            "from jax.tree_util import keystr, tree_map_with_path",
            "",
            f"MESH{': dict[str, int]' * (not sizes)} = {{{sizes}}}",
            f"TRACE = {calls.places.check}  # of the loss that this is for: a sum over its primitives",
            *params_tables(shardings),
            *(("", "", *MOVED.rstrip().split("\n"), "", "") if shardings.blocks else ()),
            *values_tables(shardings),
            *(recompute.table(blocks) if blocks else ()),
            'CHECKPOINT = ("checkpoint", "remat", "remat2")  # the names that JAX has given to it',
            "",
            *([f'jax.config.update("jax_num_cpu_devices", {devices})'] if cpus else ()),
            *([] if cpus else JOIN.splitlines()),
            f"devices = {_devices(subject)}",
            "types = (AxisType.Auto,) * len(MESH)",
            "mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=types, devices=devices)",
            "",
            "",
            EVALUATE.replace("PATH", path)
            .replace("LYING", _lying(shardings))
            .replace("LOOP", LOOP_OF_BLOCKS if blocks else LOOP)
            .replace("BLOCKS", BLOCKS if blocks else ""),
        )
    )


def _devices(subject: Subject) -> str:
    """The devices in the order of the mesh, as code: JAX counts those of the first host, then those of the next."""
    ranks = tuple(rank for group in subject.decisions.groups for rank in group)
    first, *_ = ranks
    if ranks == tuple(range(first, first + subject.ranks)):
        return f"jax.devices()[{first or ''}:{first + subject.ranks}]"
    return f"[jax.devices()[at] for at in {ranks}]"


def _lying(shardings: Shardings) -> str:
    """A value where a PartitionSpec has it, as code; inside of what is manual, where its mesh has it."""
    if set(shardings.manual) == set(shardings.subject.mesh.names):
        return "value  # every device has its own"
    where = "spec" if shardings.manual or shardings.piped else "NamedSharding(mesh, spec)"
    return f"value if spec is None else jax.lax.with_sharding_constraint(value, {where})"


def _title(subject: Subject) -> Iterator[str]:
    calls = subject.calls
    yield f'"""Train {said(calls.file.name)}:{said(calls.factory)} on {subject.ranks} devices.'
    yield ""
    yield "    python train.py --steps 10"
    yield ""
    yield from textwrap.wrap(f"Planned as {said(subject.config.replace(',', ' '))}.", WIDTH)
    yield '"""'
