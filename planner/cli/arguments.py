"""The words of the command line, each declared once.

A verb's function here adds what the verb understands to its parser; the words that several verbs share have a function
of their own. Nothing is imported that ``plan --help`` should not pay for, so help and usage errors are instant for
every verb.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, _SubParsersAction
from math import inf

from meshwright.ir.target.workload import OPTIMIZERS, PRECISIONS, RECIPES, STACKS
from meshwright.ir.target.workload import STYLES as STACK_STYLES

DTYPES = ("bf16", "fp16", "fp32")
STYLES = ("eager", "compiled", "fused")
DEVICES = ("cuda", "cpu")
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


def add_model(parser: ArgumentParser) -> None:
    """Add MODEL, in its three forms."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file.py:factory (the file is executed), a directory with or a path to a Hugging Face config.json, "
        "or a shape .toml",
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
    parser.add_argument(
        "cluster",
        metavar="CLUSTER",
        help="HOSTSxGPUSxGPU, as in 2x8xH100 or 2x8xH100,inter=400G (inter is per GPU, in Gb/s), cpu:N, "
        "or a cluster .toml",
    )


def cluster(parser: ArgumentParser) -> None:
    """``plan cluster``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = _action(actions, "show", "draw a cluster, every number with its provenance")
    add_cluster(show)
    show.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
    detect = _action(actions, "detect", "write the cluster file of this machine, or of the job that it is in")
    detect.add_argument("--hostfile", metavar="FILE", help="hosts like this one, one a line (default: those of Slurm)")
    add_found(detect)
    imported = _action(actions, "import", "write the cluster file of machines whose tools' outputs were saved")
    imported.add_argument(
        "files",
        metavar="FILES",
        nargs="+",
        help="outputs of nvidia-smi, ibstat, ethtool, lscpu, NCCL, Slurm; hostfiles; a folder holds those of one host",
    )
    add_found(imported)


def _action(actions: _SubParsersAction[ArgumentParser], name: str, told: str) -> ArgumentParser:
    return actions.add_parser(name, help=told, description=told, allow_abbrev=False)


def add_found(parser: ArgumentParser) -> None:
    """Add how a cluster that was found is described, and where it is written."""
    parser.add_argument("--like", metavar="GPU", help="describe GPUs that the table of devices lacks as this one")
    parser.add_argument("--out", metavar="FILE", help="write the cluster file there (default: standard output)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


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


def estimate(parser: ArgumentParser) -> None:
    """``plan estimate``."""
    add_model(parser)
    parser.add_argument("--cluster", required=True, metavar="CLUSTER", help="as in `plan cluster show CLUSTER`")
    add_profile(parser)
    add_workload(parser)
    add = parser.add_argument_group("configuration").add_argument
    add(
        "--fix",
        action="append",
        default=[],
        metavar="PINS",
        help="tp=8,pp=4,…: see docs/estimate.md; may be given again",
    )
    add("--configs", metavar="FILE", help="price many: a JSON object of pins per line; --fix gives what it leaves open")
    add(
        "--annotated",
        metavar="MESH",
        help="price the shardings that a JAX model's own code has, on a mesh: dp=8,tp=4",
    )
    add("--jobs", type=positive, default=2, metavar="N", help="processes for --configs (default: %(default)s)")
    add("--top", type=positive, default=20, metavar="N", help="rows of the ranked table (default: %(default)s)")
    add("--check", action="store_true", help="exit with 3 if it, or with --configs nothing, fits in memory")
    add_output(parser)
    add_seed(parser)


def plan(parser: ArgumentParser) -> None:
    """``plan plan``, or ``plan`` without a verb."""
    add_model(parser)
    parser.add_argument("--cluster", required=True, metavar="CLUSTER", help="as in `plan cluster show CLUSTER`")
    add_profile(parser)
    add_workload(parser, target=None)
    add = parser.add_argument_group("what the plan may be").add_argument
    add(
        "--fix",
        action="append",
        default=[],
        metavar="PINS",
        help="tp=8,pp=4,…, or of modules 'layers.*.mlp:sharding=column': see docs/plan.md; may be given again",
    )
    add("--allow", action="append", default=[], metavar="VALUES", help="tp=2|4,…: the only values")
    add("--forbid", action="append", default=[], metavar="VALUES", help="tp=8|16,cp,…: values that must not be; or any")
    add("--objective", default="time", metavar="O", help="time, cost or memory (default: %(default)s)")
    add = parser.add_argument_group("the search").add_argument
    add("--time-limit", type=at_least_zero, metavar="S", help="end after S seconds, with what was found by then")
    add(
        "--operators",
        action="store_true",
        help="choose what axes do in every operator on meshes of three axes too, which takes seconds more",
    )
    add("--max-gap", type=at_least_zero, metavar="G", help="exit with 4 if more is left unproved, as in 0.02")
    add("--top", type=positive, default=5, metavar="N", help="alternatives that are shown (default: %(default)s)")
    add("--out", metavar="DIR", help="write plan.json there")
    add_force(parser)
    add_output(parser)
    add_seed(parser)


def diff(parser: ArgumentParser) -> None:
    """``plan diff``."""
    parser.add_argument("a", metavar="A", help="a plan.json, or the directory that holds it")
    parser.add_argument("b", metavar="B", help="another one; or pins that change A, as in tp=4,zero=3")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def explain(parser: ArgumentParser) -> None:
    """``plan explain``."""
    parser.add_argument(
        "plan", metavar="PLAN", nargs="?", default=".", help="a plan.json, or its directory (default: .)"
    )
    parser.add_argument(
        "--why-not",
        metavar="PINS",
        help="tp=4,pp=2,…, or pins of modules: what the best plan with these would cost, and why",
    )
    parser.add_argument("--model", metavar="MODEL", help="where the model is, if it has moved")
    parser.add_argument(
        "--cluster", metavar="CLUSTER", help="another cluster of as many devices: the plan is priced again"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def add_plan(parser: ArgumentParser) -> None:
    """Add PLAN, and the place of its model."""
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, or the directory that holds it")
    parser.add_argument("--model", metavar="MODEL", help="where the model is, if it has moved")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def emit(parser: ArgumentParser) -> None:
    """``plan emit``."""
    add_plan(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="write train.py, launch.sh and ranks.json there")
    add_force(parser)
    parser.add_argument("--target", metavar="TARGET", help=f"{TARGETS}: for that, whatever the plan was made for")
    add_tiny(parser)
    parser.add_argument(
        "--init",
        choices=("whole", "meta"),
        help="where weights come from: every rank draws the whole model, or its part only (default: by its size)",
    )


def add_force(parser: ArgumentParser) -> None:
    """Add --force."""
    parser.add_argument("--force", action="store_true", help="write over files that are of something else, or changed")


def add_tiny(parser: ArgumentParser) -> None:
    """Add --tiny."""
    parser.add_argument(
        "--tiny", action="store_true", help="of the plan's small twin: the same structure, for a few processes here"
    )


def verify(parser: ArgumentParser) -> None:
    """``plan verify``."""
    add_plan(parser)
    add_tiny(parser)
    parser.add_argument(
        "--steps",
        type=positive,
        default=2,
        metavar="N",
        help="optimizer steps that are compared (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit", type=at_least_zero, default=120.0, metavar="S", help="end all ranks then (default: %(default)s)"
    )
    parser.add_argument(
        "--memory-limit",
        type=at_least_zero,
        metavar="GIB",
        help="run nothing that is estimated to take more (default: what is available)",
    )
    parser.add_argument("--out", metavar="DIR", help="keep the files that are run there")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="one rank of each stage by itself, without data: what it communicates, on a mesh of any size",
    )


def compare(parser: ArgumentParser) -> None:
    """``plan compare``."""
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, or the directory that holds it")
    parser.add_argument("log", metavar="LOG", help="what a script printed that was emitted from it")
    parser.add_argument(
        "--skip",
        type=count,
        default=1,
        metavar="N",
        help="steps at the start that are left out, in which memory is allocated (default: %(default)s)",
    )
    parser.add_argument(
        "--learn",
        nargs="?",
        const="",
        metavar="PROFILE",
        help="teach a profile by the run, so that later plans are priced nearer to it: that of this machine, or a file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def inspect(parser: ArgumentParser) -> None:
    """``plan inspect``."""
    add_model(parser)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="sequences (default: %(default)s)")
    parser.add_argument("--seq", type=positive, default=1024, metavar="N", help="tokens in each (default: %(default)s)")
    add_execution(parser)
    add_output(parser)
    add_seed(parser)


def calibrate(parser: ArgumentParser) -> None:
    """``plan calibrate``."""
    add = parser.add_argument
    add("--ranks", type=positive, default=2, metavar="N", help="ranks of a host (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="threads of a rank (default: %(default)s)")
    add("--target", default="torch-gloo", metavar="TARGET", help="what runs there (default: %(default)s)")
    add("--dtype", choices=("fp32", "bf16", "fp64"), action="append", help="precisions (default: fp32)")
    add("--for", dest="model", metavar="MODEL", help="measure what its plans run, too")
    add("--global-batch", type=positive, default=8, metavar="N", help="of --for (default: %(default)s)")
    add("--seq", type=positive, default=128, metavar="N", help="of --for (default: %(default)s)")
    add("--quick", action="store_true", help="a coarser grid, and fewer samples")
    add("--plan-only", action="store_true", help="list the cases and about how long they take, and measure nothing")
    add("--force", action="store_true", help="measure though something else runs, which the profile will say")
    add("--name", metavar="NAME", help="of the profile (default: what --out is called)")
    add("--out", metavar="FILE", help="write the profile there, samples beside it (default: where plans look for it)")
    add("--json", action="store_true", help="print JSON on standard output, errors included")


def profile(parser: ArgumentParser) -> None:
    """``plan profile``."""
    parser.add_argument(
        "action",
        choices=("show", "list", "merge", "diff"),
        help="show: what one holds; list: those in a folder; merge: several of one machine as one; diff: two of them",
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="profiles, or a folder (default: those that are kept)")
    parser.add_argument("--out", metavar="FILE", help="where merge writes")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


SCHEMAS = ("plan", "cluster", "matrix", "shape", "config", "configs", "pins", "log", "profile")


def schema(parser: ArgumentParser) -> None:
    """``plan schema``."""
    parser.add_argument(
        "kind",
        choices=SCHEMAS,
        help="plan: plan.json; cluster: the TOML of --cluster; matrix: its link matrix; shape: the TOML of MODEL; "
        "config: a Hugging Face config.json; configs: a line of --configs; pins: --fix as JSON; log: a step of a log; "
        "profile: what `plan calibrate` writes",
    )
