"""`plan completion SHELL`: a script by which a shell completes command lines, made of the parsers that read them."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib import import_module

from meshwright.planner.cli.completion.grammar import grammar
from meshwright.planner.cli.main import VERBS


def run(args: Namespace) -> int:
    """The verb."""
    sys.stdout.write(script(args.shell))
    return 0


def script(shell: str) -> str:
    """The script of a shell."""
    found = grammar(tuple((verb.name, verb.help, verb.arguments) for verb in VERBS))
    text: str = import_module(f"meshwright.planner.cli.completion.{shell}").script(found)
    return text
