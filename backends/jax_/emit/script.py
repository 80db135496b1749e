"""The training script of a plan, as text that is read from top to bottom, and the file of shardings beside it.

XLA is told where parameters and values lie, and finds the collectives: the user's own functions are run as they are
traced (`evaluated`). Where that cannot say a plan, the file beside it has the model as every device computes it
(`printed`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import takewhile

from meshwright.backends.jax_.emit import accumulation, recompute
from meshwright.backends.jax_.emit.evaluated import IMPORTS, evaluated, loss
from meshwright.backends.jax_.emit.model import model, needs
from meshwright.backends.jax_.emit.printed.script import PrintedScript
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.emit.tables import gradients_table, params_tables, states_table, written
from meshwright.backends.subject import Subject
from meshwright.ir.errors import EmissionModule, EmissionRecompute, EmissionStorage
from meshwright.ir.quoting import literal, said

SCRIPT, BESIDE = "train.py", "train_shardings.py"
WIDTH = 116
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

CAST = '''\
def cast(tree: Tree, dtype: Any) -> Tree:
    """The same in another precision, but for what are no such numbers."""
    return jax.tree.map(lambda one: one.astype(dtype) if jnp.issubdtype(one.dtype, jnp.floating) else one, tree)


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


def texts(subject: Subject, model_path: str, *, cpus: bool) -> tuple[tuple[str, str], ...]:
    """train.py, and the file beside it, by name. `cpus`: devices are parts of this machine's CPU."""
    shardings = Shardings(subject)
    printed = printed_in(shardings)
    beside = _beside(subject, shardings, printed, cpus=cpus)
    return (SCRIPT, _script(subject, shardings, printed, model_path, cpus=cpus)), (BESIDE, beside)


def printed_in(shardings: Shardings) -> PrintedScript | None:
    """The printed model of a plan; None where shardings of values say all of it, and the user's own code runs. Raises a
    `NotEmitted` where neither does."""
    if not shardings.subject.prints:
        try:
            shardings.check()
            recompute.again(shardings)
        except (EmissionModule, EmissionStorage, EmissionRecompute):
            return PrintedScript.of(shardings.subject)
        return None
    return PrintedScript.of(shardings.subject)


def _script(
    subject: Subject, shardings: Shardings, printed: PrintedScript | None, model_path: str, *, cpus: bool
) -> str:
    """train.py: the model, its loss, the step, and what runs it."""
    calls = subject.calls
    assert calls.invoked is not None
    apart, first = needs(calls.invoked)
    casts = subject.workload.states.casts
    optimizer = "model_file.optimizer()" if calls.has_optimizer else "optax.adamw(3e-4, weight_decay=0.01)"
    several = subject.program.microbatches
    numpy = ["import jax.numpy as jnp"] * (several > 1 or casts) + ["import numpy as np"] * (not cpus)
    rows = written((((),) if several > 1 else ()) + (shardings.data,) if shardings.data else ())
    made = (line.replace("def begin()", "def as_made()") if casts else line for line in model(calls))
    if printed is None:
        sums = accumulation.gradients(subject, shardings.data, stored=gradients_table(shardings))
        body = [*made, "", "", *(CAST.splitlines() if casts else ()), *loss(subject, shardings), "", *sums]
    else:
        own = takewhile(lambda line: not line.startswith("def outputs_of"), made)
        body = [*own, *(CAST.splitlines() if casts else ()), *printed.gradients()]
    return "\n".join(
        (
            *_title(subject),
            "",
            "import argparse",
            "import importlib.util",
            "import sys",
            "from pathlib import Path",
            "from typing import Any",
            *(["from zlib import crc32"] if printed is None else []),
            "",
            *sorted((*apart, "import jax", *numpy, "import optax")),
            *sorted((*first, "from jax.sharding import NamedSharding", "from jax.sharding import PartitionSpec as P")),
            "",
            f"from train_shardings import {_shared(shardings, printed)}",
            "",
            "Tree = Any",
            "Batch = dict[str, jax.Array]",
            "",
            f"MODEL = {literal(model_path)}",
            f"GLOBAL_BATCH = {subject.workload.global_batch}",
            *([f"MICROBATCHES = {several}"] if several > 1 else ()),
            f"SEQ = {subject.workload.seq}",
            f"ROWS = {rows}  # of the batch",
            "SEED = 0",
            "",
            "",
            f"{LOAD}optimizer = {optimizer}",
            *body,
            "",
            "",
            STEP.replace("STATES", states_table(shardings))
            .replace("CUT", IN_MICROBATCHES * (several > 1))
            .replace("PUT", PUT if cpus else PUT_OWN)
            .replace("TOLD", TOLD if cpus else TOLD_ONCE),
        )
    )


def _shared(shardings: Shardings, printed: PrintedScript | None) -> str:
    """What train.py takes from the file beside it."""
    if printed is not None:
        tables = dict.fromkeys(("PARAMS", states_table(shardings), *printed.shared))
        return ", ".join([*sorted(tables), "lie", "loss_of", "mesh", "specs_of", *printed.calls])
    tables = dict.fromkeys(("PARAMS", states_table(shardings), gradients_table(shardings), "TRACE"))
    used = ["USED"] if shardings.used_apart else []
    return ", ".join([*sorted(filter(None, tables)), *used, "evaluate", "lie", "mesh", "primitives"])


def _beside(subject: Subject, shardings: Shardings, printed: PrintedScript | None, *, cpus: bool) -> str:
    """train_shardings.py: where parameters lie, and values, and what puts them there; or the printed model."""
    calls = subject.calls
    assert calls.places is not None
    assert calls.invoked is not None
    keys = 'keystr(keys, simple=True, separator=".")'
    path = f're.sub(r"\\.(raw_)?value$", "", {keys})' if calls.invoked.way == "nnx" else keys
    if printed is None:
        body = list(evaluated(shardings, calls.places.check, path))
        title = "Where parameters and values of train.py lie on the devices, and what puts them there."
        imported = IMPORTS
    else:
        body = list(printed.beside(path))
        title = "Where parameters of train.py lie on the devices, and its loss as each computes it on its own parts."
        imported = printed.imports(body)
    return "\n".join(
        (
            f'"""{title}"""',
            "",
            *sorted([*(["import os"] * (not cpus)), *imported[0]], key=_import_order),
            "",
            *imported[1],
            "",
            *_mesh(subject, cpus=cpus),
            *params_tables(shardings, used=printed is None),
            *body,
        )
    )


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _mesh(subject: Subject, *, cpus: bool) -> Iterator[str]:
    """The mesh."""
    sizes = ", ".join(f"{literal(axis.name)}: {axis.size}" for axis in subject.mesh.axes)
    yield f"MESH{': dict[str, int]' * (not sizes)} = {{{sizes}}}"
    if cpus:
        devices = f"max({subject.ranks}, jax.config.jax_num_cpu_devices)"
        yield f'jax.config.update("jax_num_cpu_devices", {devices})'
    else:
        yield from JOIN.splitlines()
    yield f"devices = {_devices(subject)}"
    yield "types = (AxisType.Auto,) * len(MESH)"
    yield "mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=types, devices=devices)"
    yield ""


def _devices(subject: Subject) -> str:
    """The devices in the order of the mesh, as code: JAX counts those of the first host, then those of the next."""
    (stage,) = subject.decisions.stages
    first, *_ = stage.ranks
    if stage.ranks == tuple(range(first, first + subject.ranks)):
        return f"jax.devices()[{first or ''}:{first + subject.ranks}]"
    return f"[jax.devices()[at] for at in {stage.ranks}]"


def _title(subject: Subject) -> Iterator[str]:
    calls = subject.calls
    yield f'"""Train {said(calls.file.name)}:{said(calls.factory)} on {subject.ranks} devices.'
    yield ""
    yield "    python train.py --steps 10"
    yield ""
    yield from textwrap.wrap(f"Planned as {said(subject.config.replace(',', ' '))}.", WIDTH)
    yield '"""'
