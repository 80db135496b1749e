"""What `make demo` shows: a real model planned for a GPU cluster and written as code; and the proof that this code does
what the plan says, on a tiny twin.

    1. `plan` for Llama-3.1-8B on 64 H100, from its configuration: the fastest plan that fits, its proof, and why not
    another one. No weights, no GPU.
    2. `plan emit`: the plan as a training script in stock PyTorch, for CUDA.
    3. `plan verify --tiny`: the same decisions for a small Llama on four processes of this machine (torch-gloo). The
    files are written, exactly these are run, and everything is compared with the small model on one device: loss,
    gradients, parameters after the step; and the collectives with those that were priced.
    4. The same for a model in JAX: a Llama planned for 64 H100 and written as code; a tiny one planned for four devices
    of this machine, run and compared, with the collectives that XLA compiled.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from meshwright.planner.cli.main import main as plan

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
MODEL = str(EXAMPLES / "configs" / "llama-3.1-8b")
QUESTION = (MODEL, "--cluster", "8x8xH100", "--global-batch", "64", "--seq", "8192")
WHY_NOT = "tp=8"
JAX = str(EXAMPLES / "jax_llama.py")
IN_JAX = (f"{JAX}:llama_8b_scan", "--cluster", "8x8xH100", "--global-batch", "128", "--seq", "4096")
TINY_IN_JAX = (f"{JAX}:tiny_scan", "--cluster", "cpu:4", "--global-batch", "16", "--seq", "32", "--fix", "dp=2,tp=2")


def main() -> int:
    """Run the four parts; 0 if everything agrees."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out, train, twin, in_jax, tiny = (str(folder / part) for part in ("out", "train", "twin", "jax", "tiny"))

        def run(*words: str) -> int:
            shown = " ".join(words).replace(f"{folder}/", "").removeprefix("plan ")
            console.print(f"\n$ plan {shown}\n", markup=False)
            sys.stdout.flush()
            return plan(words)

        console.rule("1. the fastest plan that fits, for Llama-3.1-8B on 64 H100")
        if code := run("plan", *QUESTION, "--out", out) or run("explain", out, "--why-not", WHY_NOT):
            return code
        console.rule("2. its code, in stock PyTorch")
        if code := run("emit", out, "--out", train):
            return code
        console.print("\nwhat it does to the model:\n\n" + "\n".join(body_of(Path(train, "train.py"))), markup=False)
        console.rule("3. the same decisions on a tiny twin, executed")
        if code := run("verify", out, "--tiny", "--steps", "1", "--out", twin):
            return code
        console.rule("4. a model in JAX: planned for 64 H100, and a tiny one executed here")
        if code := run("plan", *IN_JAX, "--out", in_jax) or run("emit", in_jax, "--out", in_jax):
            return code
        console.print("\nwhere its parameters lie:\n\n" + tables_of(Path(in_jax, "train_shardings.py")), markup=False)
        if code := run("plan", *TINY_IN_JAX, "--out", tiny) or run("verify", tiny, "--steps", "1"):
            return code
    console.print(f"\n{time.perf_counter() - started:.0f} s")
    return 0


def body_of(script: Path) -> Iterator[str]:
    """The function that makes a rank's part of the model."""
    _, _, rest = script.read_text().partition("def parallelize(")
    yield from ("def parallelize(" + rest.partition("\n\n\n")[0]).splitlines()


def tables_of(script: Path) -> str:
    """The mesh, and the table of parameters."""
    _, _, rest = script.read_text().partition("\nMESH")
    return "MESH" + rest.partition("\n}")[0] + "\n}"


if __name__ == "__main__":
    raise SystemExit(main())
