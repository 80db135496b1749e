"""One question that many tests ask: a tiny model on four devices. It is captured once."""

from __future__ import annotations

from argparse import Namespace
from functools import cache
from pathlib import Path

from meshwright.planner.cli.main import VERBS, build_parser, with_verb
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting

TINY = f"{Path(__file__).parents[2] / 'examples' / 'llama.py'}:tiny"
"""Four blocks, four key-value heads."""
ARGV = (TINY, "--cluster", "1x4xA100", "--global-batch", "8", "--seq", "64")


def parsed(*argv: str) -> Namespace:
    """A command line, read."""
    return build_parser().parse_args(with_verb(argv, VERBS))


@cache
def question(*argv: str) -> tuple[Ask, Setting, Asked]:
    """What a command line asks."""
    ask, wished = read_asked(parsed(*(argv or ARGV)))
    return ask, ask.setting(), wished
