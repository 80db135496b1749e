"""Words of the verbs that tell what commands and files may hold."""

from __future__ import annotations

from argparse import ArgumentParser

from meshwright.planner.cli.arguments.common import CLUSTER_FORMS, MODEL_FORMS, add_force
from meshwright.planner.cli.arguments.plans import add_question

SCHEMAS = ("plan", "cluster", "matrix", "shape", "config", "configs", "pins", "log", "profile", "question")


def schema(parser: ArgumentParser) -> None:
    """``plan schema``."""
    parser.add_argument(
        "kind",
        choices=SCHEMAS,
        help="plan: plan.json; cluster: the TOML of --cluster; matrix: its link matrix; shape: the TOML of MODEL; "
        "config: a Hugging Face config.json; configs: a line of --configs; pins: --fix as JSON; log: a step of a log; "
        "profile: what `plan calibrate` writes; question: the plan.toml of --config",
    )


def errors(parser: ArgumentParser) -> None:
    """``plan errors``."""
    parser.add_argument("code", metavar="CODE", nargs="?", help="one: MW6007, DeviceUnknown; or a family: MW6")
    parser.add_argument("-v", "--verbose", action="store_true", help="list all of them")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")


def init(parser: ArgumentParser) -> None:
    """``plan init``."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_FORMS)
    parser.add_argument("--cluster", metavar="CLUSTER", help=CLUSTER_FORMS)
    add_question(parser)
    parser.add_argument("--out", metavar="FILE", default="plan.toml", help="the file to write (default: %(default)s)")
    add_force(parser)


SHELLS = ("bash", "zsh", "fish")


def completion(parser: ArgumentParser) -> None:
    """``plan completion``."""
    parser.add_argument("shell", choices=SHELLS, help="bash: source <(plan completion bash); zsh and fish alike")
