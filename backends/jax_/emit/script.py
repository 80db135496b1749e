"""The training script of a plan, as text that is read from top to bottom, and the file of shardings beside it.

XLA is told where parameters and values lie, and finds the collectives: the user's own functions are run as they are
traced (`evaluated`). Where that cannot say a plan, the file beside it has the model as every device computes it
(`printed`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from meshwright.backends.jax_.emit import accumulation, recompute
from meshwright.backends.jax_.emit.evaluated import evaluated, imports, loss
from meshwright.backends.jax_.emit.model import carried, changes, invoked, model, needs, with_keys
from meshwright.backends.jax_.emit.pipeline import step as piped
from meshwright.backends.jax_.emit.pipeline.stages import Stages, whole_mesh
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


def train_step(state: Tree, states: Tree, <<rest: Tree, >>batch: Batch) -> tuple[Tree, Tree, <<Tree, >>jax.Array]:
    """A step, and the loss before it."""
    <<(>>loss<<, rest)>>, grads = gradients_of(state, <<rest, >>batch)
    return *updated(state, states, grads), <<rest, >>loss


shape = jax.eval_shape(begin)
stored, whole = lie(PARAMS, shape), NamedSharding(mesh, P())
kept = optax.tree_map_params(
    optimizer,
    lambda _, sharding: sharding,
    jax.eval_shape(optimizer.init, shape),
    lie(STATES, shape),
    transform_non_params=lambda _: whole,
)
<<held = lie(REST, jax.eval_shape(begin_rest))
>>step = jax.jit(train_step, donate_argnums=(0, 1<<, 2>>), out_shardings=(stored, kept, <<held, >>whole))


def start() -> tuple[Tree, Tree<<, Tree>>]:
    """The parameters and the optimizer's states<<, and what else the model holds>>: every device has its own part."""
    state = jax.jit(begin, out_shardings=stored)()
    return state, jax.jit(optimizer.init, out_shardings=kept)(state)<<, jax.jit(begin_rest, out_shardings=held)()>>


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
    state, states<<, rest>> = start()
    for number in range(steps):
        state, states, <<rest, >>loss = step(state, states, <<rest, >>batch_of(number))
TOLD


if __name__ == "__main__":
    main()
'''
"""In marks (`carried`): what goes from step to step where the forward pass changes what the model holds besides."""

JOIN = """\
if "COORDINATOR" in os.environ:
    jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["HOSTS"]), int(os.environ["HOST"]))
elif "HOSTS" in os.environ:
    jax.distributed.initialize()  # JAX finds out where it runs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to compute a loss and its gradients: lines of `train.py`, and what they need.

    - `shared` imports from the files beside it; `python` are modules of Python that it needs besides.
    - `rows` are the axes that cut the batch; `cut`: whether it is given in micro-batches.
    """

    lines: tuple[str, ...]
    shared: tuple[str, ...]
    python: tuple[str, ...] = ()
    rows: tuple[str, ...]
    cut: bool
    files: tuple[tuple[str, str], ...] = ()
    """Those beside the script, but for that of shardings."""


def texts(subject: Subject, model_path: str, *, cpus: bool) -> tuple[tuple[str, str], ...]:
    """train.py, and the files beside it, by name. `cpus`: devices are parts of this machine's CPU."""
    shardings = Shardings(subject)
    printed = printed_in(shardings)
    form = _piped(shardings) if shardings.piped else _evaluated(shardings) if printed is None else _printed(printed)
    script = _script(subject, shardings, form, model_path, cpus=cpus)
    held = shardings if printed is None else Shardings(with_keys(subject))
    return (SCRIPT, script), (BESIDE, _beside(subject, held, printed, cpus=cpus)), *form.files


def printed_in(shardings: Shardings) -> PrintedScript | None:
    """The printed model of a plan; None where shardings of values say all of it, and the user's own code runs. Raises a
    `NotEmitted` where neither does."""
    if shardings.piped:
        Stages(shardings.subject).check()
        shardings.check()
        return None
    if not shardings.subject.prints:
        try:
            shardings.check()
            recompute.again(shardings)
            recompute.waiting(shardings)
        except (EmissionModule, EmissionStorage, EmissionRecompute):
            return PrintedScript.of(shardings.subject)
        return None
    return PrintedScript.of(shardings.subject)


def _made(subject: Subject, *, apart: bool) -> list[str]:
    """How the model is made and called; `apart`: parameters begin otherwise than they are made."""
    lines = model(subject)
    return [line.replace("def begin()", "def as_made()") if apart else line for line in lines]


def _evaluated(shardings: Shardings) -> Form:
    """The user's loss is run as it is traced, with values where the plan has them."""
    subject, casts = shardings.subject, shardings.subject.workload.states.casts
    rest = "REST" if changes(subject) else ""
    tables = dict.fromkeys(("PARAMS", states_table(shardings), gradients_table(shardings), rest, "TRACE"))
    named = [*sorted(filter(None, tables)), *["USED"] * shardings.used_apart, "evaluate", "lie", "mesh"]
    named += [*["paths_of"] * shardings.blocks_gather, "primitives"]
    read = ("USED" if shardings.used_apart else "PARAMS") if shardings.states_apart else ""
    sums = accumulation.gradients(subject, shardings.data, stored=gradients_table(shardings), read=read)
    kept = (CAST + KEPT).splitlines() if casts else []
    return Form(
        lines=(*_made(subject, apart=casts), "", "", *kept, *loss(subject, shardings), "", *sums),
        shared=(f"from train_shardings import {', '.join(named)}",),
        python=("from zlib import crc32",),
        rows=shardings.data,
        cut=bool(shardings.form),
    )


def _printed(printed: PrintedScript) -> Form:
    """Every device runs code of its own on its parts."""
    subject, casts = printed.subject, printed.subject.workload.states.casts
    made = takewhile(lambda line: not line.startswith("def outputs_of"), _made(subject, apart=casts))
    tables = sorted(dict.fromkeys(("PARAMS", states_table(printed.shardings), *printed.shared)))
    named = [*tables, "lie", "loss_of", "mesh", "specs_of", *printed.calls]
    return Form(
        lines=(*made, *((CAST + KEPT).splitlines() if casts else ()), *printed.gradients()),
        shared=(f"from train_shardings import {', '.join(named)}",),
        rows=printed.printed.batch,
        cut=subject.program.microbatches > 1,
    )


def _piped(shardings: Shardings) -> Form:
    """Stages run in step, each a part of the model."""
    subject = shardings.subject
    stages = Stages(subject)
    rest = "REST" if changes(subject) else ""
    tables = dict.fromkeys(("PARAMS", states_table(shardings), gradients_table(shardings), rest))
    named = [*sorted(filter(None, tables)), *["USED"] * shardings.used_apart, "lie", "mesh"]
    kept = CAST.splitlines() if subject.workload.states.casts else []
    return Form(
        lines=(*_made(subject, apart=True), "", "", *kept, *piped.step(stages, shardings.data)),
        shared=(
            "from train_pipeline import pipelined, rows, staged, unstaged",
            f"from train_shardings import {', '.join(named)}",
        ),
        python=("from functools import partial",),
        rows=shardings.data,
        cut=True,
        files=(piped.beside(stages, shardings.data),),
    )


def _script(subject: Subject, shardings: Shardings, form: Form, model_path: str, *, cpus: bool) -> str:
    """train.py: the model, its loss, the step, and what runs it."""
    calls = subject.calls
    apart, first = needs(invoked(subject))
    optimizer = "model_file.optimizer()" if calls.has_optimizer else "optax.adamw(3e-4, weight_decay=0.01)"
    numpy = ["import jax.numpy as jnp"] * any("jnp." in line for line in form.lines)
    numpy += ["import numpy as np"] * (not cpus)
    rows = written((((),) if form.cut else ()) + (form.rows,) if form.rows else ())
    python = ("from pathlib import Path", "from typing import Any", *form.python)
    return "\n".join(
        (
            *_title(subject),
            "",
            "import argparse",
            "import importlib.util",
            "import sys",
            *sorted(python),
            "",
            *sorted((*apart, "import jax", *numpy, "import optax")),
            *sorted((*first, "from jax.sharding import NamedSharding", "from jax.sharding import PartitionSpec as P")),
            "",
            *form.shared,
            "",
            "Tree = Any",
            "Batch = dict[str, jax.Array]",
            "",
            f"MODEL = {literal(model_path)}",
            f"GLOBAL_BATCH = {subject.workload.global_batch}",
            *([f"MICROBATCHES = {subject.program.microbatches}"] if form.cut else ()),
            f"SEQ = {subject.workload.seq}",
            f"ROWS = {rows}  # of the batch",
            "SEED = 0",
            "",
            "",
            f"{LOAD}optimizer = {optimizer}",
            *form.lines,
            "",
            "",
            carried(STEP, changes(subject))
            .replace("STATES", states_table(shardings))
            .replace("CUT", IN_MICROBATCHES * form.cut)
            .replace("PUT", PUT if cpus else PUT_OWN)
            .replace("TOLD", TOLD if cpus else TOLD_ONCE),
        )
    )


def _beside(subject: Subject, shardings: Shardings, printed: PrintedScript | None, *, cpus: bool) -> str:
    """train_shardings.py: where parameters lie, and values, and what puts them there; or the printed model."""
    calls = subject.calls
    assert calls.places is not None
    keys = 'keystr(keys, simple=True, separator=".")'
    path = f're.sub(r"\\.(raw_)?value$", "", {keys})' if invoked(subject).way == "nnx" else keys
    if printed is None:
        body = list(evaluated(shardings, calls.places.check, path))
        title = "Where parameters and values of train.py lie on the devices, and what puts them there."
        imported = imports(shardings)
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
    sizes = ", ".join(f"{literal(axis.name)}: {axis.size}" for axis in whole_mesh(subject).axes)
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
    ranks = tuple(rank for group in subject.decisions.groups for rank in group)
    first, *_ = ranks
    if ranks == tuple(range(first, first + subject.ranks)):
        return f"jax.devices()[{first or ''}:{first + subject.ranks}]"
    return f"[jax.devices()[at] for at in {ranks}]"


def _title(subject: Subject) -> Iterator[str]:
    calls = subject.calls
    yield f'"""Train {said(calls.file.name)}:{said(calls.factory)} on {subject.ranks} devices.'
    yield ""
    yield "    python train.py --steps 10"
    yield ""
    yield from textwrap.wrap(f"Planned as {said(subject.config.replace(',', ' '))}.", WIDTH)
    yield '"""'
