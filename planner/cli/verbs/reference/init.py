"""`plan init`: a question to `plan` as a file to be edited, with every key, what it means and what it is otherwise.

What is given on the command line is filled in; what is written is read back before it is kept.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from meshwright.planner.cli.arguments.reference import init
from meshwright.planner.cli.declared import declared
from meshwright.planner.cli.output import free_file, write_file
from meshwright.planner.cli.questions.keys import FILES, HOME
from meshwright.planner.cli.questions.reading import question, seen_from
from meshwright.planner.cli.questions.template import template


def run(args: Namespace) -> int:
    """The verb."""
    out = free_file(args.out, force=args.force)
    verb = declared(init)
    known = {key: value for key in HOME if (value := getattr(args, key)) not in (None, verb.of(key).default)}
    for key in FILES:
        if key in known:
            known[key] = seen_from(str(out.parent), key, known[key])
    text = template(known, verb, out.name)
    question(text, str(out))
    write_file(out, text)
    sys.stdout.write(f"{out}: ask it with `plan --config {out}`\n")
    return 0
