"""`plan profile`: what `plan calibrate` found, shown, listed, joined and compared."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from meshwright.calibrate.kept import folder, kept_for
from meshwright.calibrate.samples import replaced
from meshwright.cost_models.measured.file import load_measured, measured_text, measured_to_json
from meshwright.cost_models.measured.measured import Measured
from meshwright.cost_models.measured.several import differences, joined
from meshwright.ir.errors import ArgumentsMissing, MeshwrightError
from meshwright.ir.target.capabilities import PROCESSOR
from meshwright.planner.cli.output import unwritable
from meshwright.planner.cli.views.machines.profile import row, show, show_differences


def run(args: Namespace) -> int:
    """The verb."""
    ACTIONS[args.action](args)
    return 0


def _show(args: Namespace) -> None:
    kept = None if args.paths else kept_for((PROCESSOR,))
    path = _paths(args, 1, args.paths if kept is None else [str(kept)])[0]
    one = load_measured(path)
    if not _as_json(args, measured_to_json(one)):
        show(one, path)


def _list(args: Namespace) -> None:
    found = _listed(Path(_paths(args, 1, args.paths or [str(folder())])[0]))
    told = [{"file": file, "name": one.name, "made": one.made, "of": str(one.identity)} for file, one in found]
    if not _as_json(args, told):
        sys.stdout.write("".join(f"{row(file, one)}\n" for file, one in found))


def _merge(args: Namespace) -> None:
    paths = _paths(args, 2, args.paths, more=True)
    if not args.out:
        raise ArgumentsMissing(
            place="plan profile merge", cause="--out is missing", fix="name a file to write: --out FILE"
        )
    out = Path(args.out)
    one = joined([load_measured(path) for path in paths], out.stem)
    try:
        replaced(out, measured_text(one).splitlines())
    except OSError as error:
        raise unwritable(out, error, "a file") from None
    if not _as_json(args, measured_to_json(one)):
        show(one, str(out))


def _diff(args: Namespace) -> None:
    paths = _paths(args, 2, args.paths)
    one, other = map(load_measured, paths)
    found = list(differences(one, other))
    if not _as_json(args, [asdict(each) for each in found]):
        show_differences(one, other, found)


ACTIONS: dict[str, Callable[[Namespace], None]] = {"show": _show, "list": _list, "merge": _merge, "diff": _diff}


def _paths(args: Namespace, count: int, paths: Sequence[str], *, more: bool = False) -> Sequence[str]:
    """The paths of an action that takes so many, or `more`."""
    if len(paths) == count or (more and len(paths) > count):
        return paths
    wanted = f"{count} or more" if more else str(count)
    raise ArgumentsMissing(
        place=f"plan profile {args.action}",
        cause=f"it takes {wanted} paths, and {len(paths)} are given",
        fix="name profiles, or run `plan calibrate`",
    )


def _as_json(args: Namespace, told: object) -> bool:
    if args.json:
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
    return bool(args.json)


def _listed(folder: Path) -> list[tuple[str, Measured]]:
    """The profiles of a folder; other files are passed over."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append((str(file), load_measured(file)))
        except MeshwrightError:
            continue
    return found
