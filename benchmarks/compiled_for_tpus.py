"""Scripts of plans for jax-tpu, compiled for eight TPUs of v5e without one: what they communicate, and what they hold.

    python -m benchmarks.compiled_for_tpus [--model "llama, scanned"] [--fix dp=4,tp=2,zero=3,sp=on] [--dtype bf16]

`libtpu` compiles for a topology that is only described (`jax.experimental.topologies`); nothing is run. Printed are
the collectives of the compiled step by kind and type, a loop's body once; the reduce-scatters among them (a fusion of
XLA's, `all-reduce-scatter`); and the bytes that a device holds, as XLA counts them (it pads small tensors to tiles),
beside what was planned; for models of `benchmarks.jax_wide` that is on record (`data/compiled_for_tpus.json`). It
needs the wheel of libtpu, which nothing else here does: `pip install libtpu`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from benchmarks.emitted_jax import BATCH, MODELS, SEQ, WORKLOADS, subject_of
from meshwright.backends.jax_.capabilities import JAX_TPU
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.run import load
from meshwright.backends.subject import Subject
from meshwright.ir.names import Degrees
from meshwright.planner.plan.needs import planned_memory
from meshwright.planner.question.pins import parse

TOPOLOGY, DEVICES = "v5e:2x4", 8
WIDE = ("loop_of_6", "loop_of_24", "wide_loop_of_4", "written_out_8")
"""Models of `benchmarks.jax_wide`."""
RECORD = Path(__file__).parent / "data" / "compiled_for_tpus.json"
"""What steps of these hold, as they were compiled."""
_COLLECTIVE = re.compile(
    r"= (\(?[a-z]+\d*\[[\d,]*\]).* (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\("
)

_SCATTER = re.compile(r"calls=(%all-reduce-scatter[.\w]*)")


def main(argv: Sequence[str]) -> int:
    """Emit, compile, and tell."""
    parser = ArgumentParser(prog="python -m benchmarks.compiled_for_tpus", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=(*MODELS, *WIDE), default="llama, scanned")
    parser.add_argument("--fix", default="dp=4,tp=2,zero=3,sp=on", help="degrees (default: %(default)s)")
    parser.add_argument("--dtype", choices=WORKLOADS, default="bf16")
    parser.add_argument("--batch", type=int, help="sequences of a step")
    parser.add_argument("--seq", type=int, help="tokens of a sequence")
    args = parser.parse_args(argv)
    if find_spec("libtpu") is None:
        sys.stderr.write("skipped, for libtpu is not installed: pip install libtpu\n")
        return 0
    pins = dict(parse([args.fix]).given)
    if "sp" in pins:
        pins["sequence_parallel"] = pins.pop("sp")
    subject = planned(args.model, pins, args.dtype, args.batch, args.seq)
    with tempfile.TemporaryDirectory() as name:
        emit(subject, Path(name)).write(Path(name))
        step = compiled(Path(name))
    text, memory = step.as_text(), step.memory_analysis()
    for (kind, dtype), number in sorted(told(text).items()):
        print(f"{number:4} {kind} of {dtype}")
    print(f"{len(set(_SCATTER.findall(text))):4} of these sums are reduce-scatters, fused")
    held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    print(f"{held:,} bytes held, {max(planned_memory(subject.program)):,.0f} planned")
    if memory.host_temp_size_in_bytes:
        print(f"{memory.host_temp_size_in_bytes:,} bytes wait in the host's memory")
    return 0


def planned(
    model: str, degrees: Mapping[str, Any], dtype: str = "bf16", batch: int | None = None, seq: int | None = None
) -> Subject:
    """The plan of a model by its name; where nothing is asked, wide ones have few sequences of many tokens."""
    batch, seq = batch or (8 if model in WIDE else BATCH), seq or (512 if model in WIDE else SEQ)
    reference = f"benchmarks/jax_wide.py:{model}" if model in WIDE else MODELS[model]
    return subject_of(reference, Degrees(**degrees), on=JAX_TPU, dtype=dtype, batch=batch, seq=seq)


def described() -> list[Any]:
    """The devices of the topology, which nobody has to have."""
    from jax.experimental import topologies

    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": f"v5litepod-{DEVICES}"}
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    return list(topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices)


def compiled(folder: Path) -> Any:
    """The step of a script, compiled for the topology in place of this machine's devices."""
    devices = described()
    own, jax.devices = jax.devices, lambda *_: devices
    try:
        script: Any = load(str(folder / "train.py"))
    finally:
        jax.devices = own

    def shaped(tree: Any, shardings: Any) -> Any:
        return jax.tree.map(
            lambda one, where: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=where), tree, shardings
        )

    state = jax.eval_shape(script.begin)
    states = jax.eval_shape(script.optimizer.init, state)
    batch = script.model_file.example_inputs(script.GLOBAL_BATCH, script.SEQ)
    if hasattr(script, "MICROBATCHES"):
        batch = jax.tree.map(lambda one: one.reshape(script.MICROBATCHES, -1, *one.shape[1:]), batch)
    rows = jax.sharding.NamedSharding(script.mesh, script.ROWS)
    given = (
        shaped(state, script.stored),
        shaped(states, script.kept),
        shaped(batch, jax.tree.map(lambda _: rows, batch)),
    )
    return script.step.lower(*given).compile()


def told(text: str) -> Counter[tuple[str, str]]:
    """Collectives by kind and type."""
    found = (_COLLECTIVE.search(line) for line in text.splitlines())
    return Counter((one[2], one[1].lstrip("(").partition("[")[0]) for one in found if one)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
