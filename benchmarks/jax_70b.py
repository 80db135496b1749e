"""What a JAX model of 70 billion parameters costs to plan for: Llama-3.1-70B on 64 host devices of this machine.

    python -m benchmarks.jax_70b [--json]

    inspected   CPU seconds of `plan inspect`, of blocks in a scan and of blocks written out, in a process of its own
    planned     seconds to capture the model (in a scan), plan it by names in bf16, lower it and write its script
    compiled    seconds in which XLA compiles the script's step; nothing is run, and no array is made
    arguments   bytes of the step's arguments on a device, as XLA counts them, beside those of the Program: parameters,
                the optimizer's states, the batch, and the number of steps

The exit code is 1 if a limit is passed, or bytes differ.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.emitted_jax import ROOT, WORKLOADS
from meshwright.backends.jax_.capabilities import JAX_CUDA
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.subject import Subject
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.names import Degrees, check, template
from meshwright.ir.program.lower import lower

MODEL = "examples/jax_llama.py:llama_70b"
DEGREES = Degrees(dp=8, tp=8, zero=3, sequence_parallel=True, recompute="full")
BATCH, SEQ, DEVICES = 64, 4096, 64
MOMENTS, COUNTER_BYTES, KEPT_BYTES = 2, 4, 4
"""Of AdamW: tensors of every parameter, and its number of steps; and of an element of a parameter and its moments,
which are kept in fp32."""
LIMITS = {"inspected_scan_cpu_s": 3.0, "inspected_unrolled_cpu_s": 12.0, "ready_s": 90.0}


def main(argv: Sequence[str]) -> int:
    """Measure, and print."""
    parser = ArgumentParser(prog="python -m benchmarks.jax_70b", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found: dict[str, float] = {
        "inspected_scan_cpu_s": inspected(f"{MODEL}_scan"),
        "inspected_unrolled_cpu_s": inspected(MODEL),
    }
    with tempfile.TemporaryDirectory() as name:
        begun = perf_counter()
        subject = planned(f"{MODEL}_scan", DEGREES, BATCH, SEQ)
        emit(subject, Path(name)).write(Path(name))
        found["planned_s"] = perf_counter() - begun
        found["compiled_s"], found["argument_bytes"] = compiled(Path(name), DEVICES)
    found["planned_argument_bytes"] = held(subject)
    found["ready_s"] = found["planned_s"] + found["compiled_s"]
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        for what, value in found.items():
            print(f"{what:26} {value:16,.1f}" + (f"  (at most {LIMITS[what]:g})" if what in LIMITS else ""))
    beyond = any(found[what] > limit for what, limit in LIMITS.items())
    return int(beyond or found["argument_bytes"] != found["planned_argument_bytes"])


def inspected(model: str) -> float:
    """CPU seconds of `plan inspect`, of all threads of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "meshwright", "inspect", "--json", str(ROOT / model)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def planned(model: str, degrees: Degrees, batch: int, seq: int) -> Subject:
    """The plan of a model by names, in bf16."""
    reference = str(ROOT / model)
    source = load_model(reference).in_dtype("bf16")
    fold = capture(source, batch=batch, seq=seq).fold
    workload = replace(WORKLOADS["bf16"], global_batch=batch, seq=seq)
    check(degrees, fold, degrees.ranks, batch)
    ran = replace(degrees, **JAX_CUDA.ran(degrees.zero, 1))
    decisions = replace(JAX_CUDA.stored(template(fold, ran, "jax-cuda"), fold), style="xla")
    program = lower(fold, decisions, JAX_CUDA.lowering().for_stack(workload.stack), workload)
    calls = calls_of(source, reference, batch=batch, seq=seq)
    return Subject(fold=fold, decisions=decisions, program=program, workload=workload, calls=calls, config="")


def compiled(folder: Path, devices: int) -> tuple[float, int]:
    """Seconds to compile the step of a script, and the bytes of its arguments on a device: in a process of its own, in
    which JAX has as many devices as the plan."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder), str(devices)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    seconds, size = json.loads(done.stdout.splitlines()[-1])
    return seconds, size


COMPILE = """
import json, sys
from time import perf_counter
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
begun = perf_counter()
sys.path.insert(0, sys.argv[1])
import train
placed = lambda shapes, where: jax.tree.map(
    lambda one, at: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=at), shapes, where)
shape = jax.eval_shape(train.begin)
state, states = placed(shape, train.stored), placed(jax.eval_shape(train.optimizer.init, shape), train.kept)
rows = jax.sharding.NamedSharding(train.mesh, train.ROWS)
batch = jax.eval_shape(lambda: train.model_file.example_inputs(train.GLOBAL_BATCH, train.SEQ))
batch = {name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=rows) for name, one in batch.items()}
step = train.step.lower(state, states, batch).compile()
print(json.dumps([perf_counter() - begun, step.memory_analysis().argument_size_in_bytes]))
"""


def held(subject: Subject) -> int:
    """Bytes of a step's arguments on a rank, by the Program."""
    program, found = subject.program, COUNTER_BYTES
    copies = subject.mesh.axis("dp").size
    for _, name in program.stages[0].calls():
        body: Any = program.body(name)
        for slot in body.params:
            local = body.locals[slot.stored]
            shape = local.placement.local_shape(local.type.shape, subject.mesh, 0)
            states = slot.optimizer.local_shape(local.type.shape, subject.mesh, 0)
            found += KEPT_BYTES * (prod(shape) + MOMENTS * prod(states))
    entries = sum(int(prod(one.type.shape) * ITEMSIZE[one.type.dtype]) for one in program.entries)
    return found + entries // copies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
