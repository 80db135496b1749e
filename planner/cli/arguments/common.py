"""Words that several verbs share, and how their values are read."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from math import inf

from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.ir.target.workload import STYLES as STACK_STYLES

DTYPES = ("bf16", "fp16", "fp32")
STYLES = ("eager", "compiled", "fused")
DEVICES = ("cuda", "cpu")
FORMATS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "maxtext")
"""Frameworks whose settings are written and read."""
TARGETS = "any, torch-cuda, torch-gloo, jax-cuda, jax-tpu or jax-cpu"


LONGEST, SHOWN = 20, 60
"""Digits of a number, and characters of a value that are repeated."""
# Python reads more: digits of other scripts, underscores, blanks.
_DIGITS = re.compile(rf"[0-9]{{1,{LONGEST}}}")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?|\.[0-9]+")


def positive(text: str) -> int:
    """Parse a count."""
    number = int(text) if _DIGITS.fullmatch(text) else 0
    if number < 1:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a positive whole number")
    return number


def whole(text: str) -> int:
    """Parse a seed."""
    if not _DIGITS.fullmatch(text.removeprefix("-")):
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a whole number of at most {LONGEST} digits")
    return int(text)


MODEL_FORMS = (
    "file.py:factory (the file is executed), a directory with or a path to a Hugging Face config.json, or a shape .toml"
)
CLUSTER_FORMS = (
    "HOSTSxGPUSxGPU, as in 2x8xH100 or 2x8xH100,inter=400G (inter is per GPU, in Gb/s), cpu:N, or a cluster .toml"
)


def add_model(parser: ArgumentParser) -> None:
    """Add MODEL, in its three forms."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_FORMS)


def add_config(parser: ArgumentParser) -> None:
    """Add --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the question in a file, as `plan init` writes it; what is said here takes the place of what it says",
    )


def add_execution(parser: ArgumentParser) -> None:
    """Add how the model is run, which decides what is saved for backward, and its size."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="dtype of the computation (default: %(default)s)"
    )
    parser.add_argument("--style", choices=STYLES, default="eager", help="how operators run (default: %(default)s)")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="where they run (default: %(default)s)")


def add_output(parser: ArgumentParser) -> None:
    """Add the choice of output."""
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
    parser.add_argument("--dump-after", metavar="STEP", help="print the text form of the artefact that STEP produces")


def add_cache(parser: ArgumentParser) -> None:
    """Add --no-cache."""
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="load the model and search, whatever earlier runs kept (`plan cache`), and keep nothing",
    )


def add_seed(parser: ArgumentParser) -> None:
    """Add the seed of tracing."""
    parser.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="N",
        help="seed of the draw of blocks that are traced for all that are like them (default: %(default)s)",
    )


def add_cluster(parser: ArgumentParser) -> None:
    """Add CLUSTER, in its three forms."""
    parser.add_argument("cluster", metavar="CLUSTER", help=CLUSTER_FORMS)


def count(text: str) -> int:
    """Parse a number that may be zero."""
    if not _DIGITS.fullmatch(text):
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a whole number of at least 0")
    return int(text)


def at_least_one(text: str) -> float:
    """Parse an imbalance."""
    number = _number(text)
    if not number >= 1:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a number of at least 1")
    return number


def at_least_zero(text: str) -> float:
    """Parse a time limit, or a gap."""
    number = _number(text)
    if not number >= 0:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a number of at least 0")
    return number


def _number(text: str) -> float:
    """Parse a finite number; anything else is below every minimum."""
    number = float(text) if _DECIMAL.fullmatch(text) else -inf
    return number if number < inf else -inf


def add_workload(parser: ArgumentParser, target: str | None = "any") -> None:
    """Add the workload and its software stack."""
    add = parser.add_argument_group("workload").add_argument
    add("--global-batch", type=positive, metavar="N", help="sequences per optimizer step")
    add("--micro-batch", type=positive, metavar="N", help="sequences of a micro-batch on one copy, as --fix mbs=N")
    add("--seq", type=positive, metavar="N", help="tokens in each sequence")
    add(
        "--dtype",
        choices=PRECISIONS,
        help="what matrix products multiply in; configurations are traced in fp32 for fp32 and tf32, in fp16 for fp16, "
        "else in bf16 (default: bf16; fp32 where a device has no bf16)",
    )
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="(default: %(default)s)")
    add(
        "--stack",
        choices=tuple(STACKS),
        help="the software that runs it (default: torch, jax for JAX, or that of --style)",
    )
    add("--style", choices=STACK_STYLES, help="how operators run, instead of a whole stack")
    add("--recipe", choices=tuple(RECIPES), help="bytes of parameters and states (default: the stack's; fp32 for fp32)")
    add(
        "--imbalance",
        type=at_least_one,
        default=1.0,
        metavar="X",
        help="the busiest expert's load over the mean (default: %(default)s)",
    )
    add(
        "--target",
        default=target,
        metavar="TARGET",
        help=f"{TARGETS} (default: {target or 'torch-cuda, or for JAX that of the devices'})",
    )


def add_profile(parser: ArgumentParser) -> None:
    """Add --profile."""
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="what `plan calibrate` measured there; `published`: the shipped prices (default: what was measured of "
        "this machine, for its own devices)",
    )


def add_plan(parser: ArgumentParser) -> None:
    """Add PLAN, and the place of its model."""
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, or the directory that holds it")
    parser.add_argument("--model", metavar="MODEL", help="where the model is, if it has moved")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def add_force(parser: ArgumentParser) -> None:
    """Add --force."""
    parser.add_argument("--force", action="store_true", help="write over files that are of something else, or changed")


def add_format(parser: ArgumentParser) -> None:
    """Add --from-format: whose settings a file has."""
    parser.add_argument(
        "--from-format",
        choices=FORMATS,
        metavar="FRAMEWORK",
        help=f"whose settings these are: {', '.join(FORMATS)} (default: by the file)",
    )


def add_detail(parser: ArgumentParser) -> None:
    """Add -v and -q: how much of a plan is shown."""
    parser.set_defaults(detail="page")
    add = parser.add_mutually_exclusive_group().add_argument
    for short, long, detail, said in (
        ("-v", "--verbose", "whole", "show all that is known of the plan"),
        ("-q", "--quiet", "brief", "show the plan and its step time alone"),
    ):
        add(short, long, dest="detail", action="store_const", const=detail, help=said)
