"""Words of the verbs that tell what commands and files may hold."""

from __future__ import annotations

from argparse import ArgumentParser

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


def errors(parser: ArgumentParser) -> None:
    """``plan errors``."""
    parser.add_argument("code", metavar="CODE", nargs="?", help="one of them, as in MW6007 or DeviceUnknown")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, errors included")
