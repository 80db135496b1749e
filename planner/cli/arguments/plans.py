"""Words of the verbs that answer questions about plans."""

from __future__ import annotations

from argparse import ArgumentParser

from meshwright.planner.cli.arguments.common import (
    add_cache,
    add_config,
    add_detail,
    add_force,
    add_format,
    add_model,
    add_output,
    add_plan,
    add_profile,
    add_seed,
    add_workload,
    at_least_zero,
    count,
    positive,
)


def estimate(parser: ArgumentParser) -> None:
    """``plan estimate``."""
    add_model(parser)
    parser.add_argument("--cluster", required=True, metavar="CLUSTER", help="as in `plan cluster show CLUSTER`")
    add_config(parser)
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
    add("--from", dest="from_", metavar="FILE", help="price the settings of another framework: see docs/exchange.md")
    add_format(parser)
    add("--jobs", type=positive, default=2, metavar="N", help="processes for --configs (default: %(default)s)")
    add("--top", type=positive, default=20, metavar="N", help="rows of the ranked table (default: %(default)s)")
    add("--check", action="store_true", help="exit with 3 if it, or with --configs nothing, fits in memory")
    add_cache(parser)
    add_output(parser)
    add_seed(parser)


def add_question(parser: ArgumentParser) -> None:
    """Add what is asked of a model on a cluster: the workload, what the plan may be, and the search."""
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
    add_seed(parser)


def plan(parser: ArgumentParser) -> None:
    """``plan plan``, or ``plan`` without a verb."""
    add_model(parser)
    parser.add_argument("--cluster", required=True, metavar="CLUSTER", help="as in `plan cluster show CLUSTER`")
    add_config(parser)
    add_question(parser)
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGES",
        help="inter=800G,global_batch=512,…: what the plan would be then, and what this one would cost; may be given "
        "again, for another question",
    )
    parser.add_argument(
        "--scale",
        metavar="SIZES",
        help="64..4096 (doubling) or 64,96,128: a plan for each number of GPUs, in hosts like those of --cluster",
    )
    parser.add_argument(
        "--scaling", choices=("strong", "weak"), default="strong",
        help="strong: the same global batch at every size; weak: as many sequences for each GPU as on --cluster "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--beat", metavar="FILE", help="what would be faster than these settings of another framework, and by how much"
    )
    add_format(parser)
    parser.add_argument("--out", metavar="DIR", help="write plan.json there")
    add_force(parser)
    add_detail(parser)
    add_cache(parser)
    add_output(parser)


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
    add_detail(parser)
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def report(parser: ArgumentParser) -> None:
    """``plan report``."""
    add_plan(parser)
    _add_file(parser, "the page to write, one HTML file")


def trace(parser: ArgumentParser) -> None:
    """``plan trace``."""
    add_plan(parser)
    parser.add_argument(
        "--measured",
        nargs="+",
        default=[],
        metavar="FILE",
        help="show a step of a run beside it: traces of torch's or JAX's profiler, one for each rank",
    )
    _add_skip(parser)
    _add_file(parser, "the trace to write, JSON of trace events")


def _add_file(parser: ArgumentParser, what: str) -> None:
    """Add the file that is written."""
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help=what)
    add_force(parser)


def _add_skip(parser: ArgumentParser) -> None:
    """Add the measured steps that do not count."""
    parser.add_argument(
        "--skip",
        type=count,
        default=1,
        metavar="N",
        help="measured steps at the start that are left out, in which memory is allocated (default: %(default)s)",
    )


def compare(parser: ArgumentParser) -> None:
    """``plan compare``."""
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, or the directory that holds it")
    parser.add_argument(
        "log",
        nargs="+",
        metavar="LOG",
        help="what a script printed that was emitted from it; or traces of torch's or JAX's profiler, one a rank",
    )
    _add_skip(parser)
    parser.add_argument(
        "--learn",
        nargs="?",
        const="",
        metavar="PROFILE",
        help="teach a profile by the run, so that later plans are priced nearer to it: that of this machine, or a file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
