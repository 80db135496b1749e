"""`plan errors`: what a code means, an example of it and the fix; those of a family; without a code, what there are.

It is the catalogue that docs/errors.md is generated from (`ir/errors/page.py`).
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from meshwright import __version__
from meshwright.ir.errors import CodeUnknown, Page, nearest, pages
from meshwright.planner.cli.views.reference.errors import show_all, show_families, show_one

FORMAT_VERSION = 1


def run(args: Namespace) -> int:
    """The verb."""
    found = pages() if args.code is None else of_family(args.code) or (page_of(args.code),)
    if args.json:
        told = {"format_version": FORMAT_VERSION, "meshwright": __version__, "errors": [one.to_json() for one in found]}
        sys.stdout.write(f"{json.dumps(told, indent=2, ensure_ascii=False)}\n")
    elif len(found) == 1:
        show_one(found[0])
    elif args.code is None and not args.verbose:
        show_families(found)
    else:
        show_all(found)
    return 0


def of_family(code: str) -> tuple[Page, ...]:
    """The pages of a family, asked for in either case: MW6, or MW6xxx as they are listed."""
    return tuple(page for page in pages() if code.upper().removesuffix("XXX") == page.family)


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
            fix=f"did you mean {found[meant].code} {found[meant].kind}?" if meant else "`plan errors -v` lists all",
        )
    return page
