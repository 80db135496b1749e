"""Words of the verbs of a model's code."""

from __future__ import annotations

from argparse import ArgumentParser

from meshwright.planner.cli.arguments.common import (
    FORMATS,
    TARGETS,
    add_config,
    add_execution,
    add_force,
    add_model,
    add_output,
    add_plan,
    add_seed,
    at_least_zero,
    positive,
)


def emit(parser: ArgumentParser) -> None:
    """``plan emit``."""
    add_plan(parser)
    parser.add_argument(
        "-o", "--out", required=True, metavar="DIR", help="write train.py, launch.sh and ranks.json there, or settings"
    )
    parser.add_argument(
        "--to",
        choices=FORMATS,
        metavar="FRAMEWORK",
        help=f"write the plan's settings for {', '.join(FORMATS)}, instead of a script: see docs/exchange.md",
    )
    add_force(parser)
    parser.add_argument("--target", metavar="TARGET", help=f"{TARGETS}: for that, whatever the plan was made for")
    add_tiny(parser)
    parser.add_argument(
        "--init",
        choices=("whole", "meta"),
        help="where weights come from: every rank draws the whole model, or its part only (default: by its size)",
    )


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


def inspect(parser: ArgumentParser) -> None:
    """``plan inspect``."""
    add_model(parser)
    add_config(parser)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="sequences (default: %(default)s)")
    parser.add_argument("--seq", type=positive, default=1024, metavar="N", help="tokens in each (default: %(default)s)")
    add_execution(parser)
    add_output(parser)
    add_seed(parser)
