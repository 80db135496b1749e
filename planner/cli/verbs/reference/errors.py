"""`plan errors`: what a code means, an example of it and the fix; without a code, all of them by what they are about.

It is the catalogue that docs/errors.md is generated from (`ir/errors/page.py`).
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright import __version__
from meshwright.ir.errors import CodeUnknown, Page, nearest, pages
from meshwright.planner.cli.views.reference.errors import show_all, show_one

FORMAT_VERSION = 1


def run(args: Namespace) -> int:
    """The verb."""
    found = pages() if args.code is None else (page_of(args.code),)
    if args.json:
        told = {"format_version": FORMAT_VERSION, "meshwright": __version__, "errors": [one.to_json() for one in found]}
        sys.stdout.write(f"{json.dumps(told, indent=2, ensure_ascii=False)}\n")
    elif args.code is None:
        show_all(found)
    else:
        show_one(found[0])
    return 0


def page_of(code: str) -> Page:
    """The page of a code, in either case and with or without its letters, or of the name of an error."""
    found = {name: page for page in pages() for name in (page.code, page.kind)}
    asked = {name.lower(): page for name, page in found.items()}
    page = asked.get(code.lower()) or asked.get(f"mw{code}")
    if page is None:
        meant = nearest(code, found) or nearest(code.upper(), found)
        raise CodeUnknown(
            place=f"plan errors {code}",
            cause="no error has this code or name",
            fix=f"did you mean {found[meant].code} {found[meant].kind}?" if meant else "`plan errors` lists them all",
        )
    return page
