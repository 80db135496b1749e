"""The files of an emitted plan, by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.backends.results import Files
from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.printed import Printed, printed_of
from meshwright.backends.torch_.emit.printed.axes import in_one_sum, printed_axes
from meshwright.backends.torch_.emit.read.allowed import check_plan
from meshwright.backends.torch_.emit.read.axes import Axes, cuts_more
from meshwright.backends.torch_.emit.read.copies import COPIED, Copies
from meshwright.backends.torch_.emit.read.heterogeneous import joined_kinds, kinds_of
from meshwright.backends.torch_.emit.read.precision import Precision, precision_of
from meshwright.backends.torch_.emit.read.recompute import recomputed
from meshwright.backends.torch_.emit.read.storage import (
    Kept,
    around_units,
    check_passed,
    check_shared,
    kept_of,
    scalars_of,
    whole_of,
)
from meshwright.backends.torch_.emit.write.initial import built_whole
from meshwright.backends.torch_.emit.write.launch import launch_script, rank_map
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.script import heterogeneous_scripts, scripts
from meshwright.backends.torch_.emit.write.stages.heterogeneous import heterogeneous_orders
from meshwright.backends.torch_.emit.write.stages.schedule import LISTS, action_lists, class_of
from meshwright.ir.errors import EmissionModule, EmissionPrinted, NotEmitted
from meshwright.ir.errors.capability import CUTS

__all__ = ["Files", "Subject", "emit"]

LAUNCH, RANKS = "launch.sh", "ranks.json"


def emit(subject: Subject, folder: Path) -> Files:
    """The files of a plan for this folder, from which the script finds the model. Raises a `NotEmitted` for plans that
    no code is written for; its fix is none that the plan has already."""
    refusals, printed = [], subject.prints or cuts_more(subject)
    for prints in (True,) if printed else (False, True):
        try:
            return _emitted(replace(subject, prints=prints), folder)
        except NotEmitted as refusal:
            refusals.append(refusal)
    told = [one for one in refusals if not isinstance(one, EmissionPrinted)] or refusals
    raise told[0].with_others(told[1:], (CUTS,) if printed else ()).apart_from(subject.has) from None


def _emitted(subject: Subject, folder: Path) -> Files:
    check_plan(subject)
    kinds = list[Parts]()
    for kind in kinds_of(subject):
        kinds.append(parts_of(kind, folder, [one.printed for one in kinds if one.printed is not None]))
    parts, lists = kinds[0], list[tuple[str, str]]()
    if len(kinds) > 1:
        heterogeneous = joined_kinds(kinds)
        parts, texts, lists = (
            heterogeneous.main,
            heterogeneous_scripts(heterogeneous),
            [(LISTS, heterogeneous_orders(heterogeneous))],
        )
    else:
        texts = scripts(parts)
        if parts.pipeline and class_of(parts) is None:
            lists = [(LISTS, action_lists(parts))]
    texts = (*texts, (LAUNCH, launch_script(subject)), (RANKS, rank_map(subject)))
    told = built_whole(parts.subject, parts=parts.drawn_in_parts)
    return Files((*texts, *lists, *subject.calls.beside), (told,) if told else ())


def parts_of(subject: Subject, folder: Path, beside: Sequence[Printed]) -> Parts:
    """The parts of a plan's script; with stages of different meshes, those of one kind, `beside` the function names of
    others."""
    return _printed_parts(subject, folder, beside) if subject.prints else _own_parts(subject, folder)


def _own_parts(subject: Subject, folder: Path) -> Parts:
    """The parts of a script that runs the model's own code."""
    axes = Axes(subject.mesh.names, None)
    kept, precision = _kept(subject, axes, COPIED)
    check_called(subject, kept)
    return Parts(subject=subject, axes=axes, kept=kept, precision=precision, model=_model(subject, folder))


def _printed_parts(subject: Subject, folder: Path, beside: Sequence[Printed]) -> Parts:
    axes, copies = printed_axes(subject)
    kept, precision = _kept(subject, axes, copies)
    copies = copies if kept.units else in_one_sum(subject, copies)
    check_copies(subject, axes, copies, kept)
    return Parts(
        subject=subject,
        axes=axes,
        kept=kept,
        precision=precision,
        model=_model(subject, folder),
        printed=printed_of(
            subject, axes, copies, called_modules(subject, kept), {n for one in beside for n in one.called}
        ),
    )


def check_called(subject: Subject, kept: Kept) -> None:
    """Refuse blocks that the model's own code does not call, where something depends on their calls."""
    hung = [unit.piece for unit in kept.units] + [again.piece for again in recomputed(subject)]
    for piece in subject.pieces if subject.compiled else hung:
        if piece.repeated and not subject.calls_blocks(piece):
            ways = ("--fix zero=0,recompute=none", *["--style eager"] * subject.compiled)
            raise EmissionModule(place=piece.first, cause="the model does not call it, but modules in it", ways=ways)


def check_copies(subject: Subject, axes: Axes, copies: Copies, kept: Kept) -> None:
    """Refuse parameters of which some data and context axes have copies and others parts, or alike ones, where neither
    `fully_shard` nor the script adds their gradients up as they are kept."""
    heterogeneous = len({stage.mesh for stage in subject.decisions.stages}) > 1
    paths = {(piece.plan.name, path) for piece in subject.pieces for path in scalars_of(piece)}
    for name, along in (*copies.of_apart.items(), *copies.of_alike.items()):
        place = f"plan {', '.join(name)}"
        if kept.whole:
            raise EmissionPrinted(place=place, cause=f"it has no copies to add up along {'.'.join(along)}")
        others = set(axes.copies) - set(along)
        if name in copies.of_apart:  # the others shard it, or the script adds up its gradients over these
            wrong = not others <= set(kept.over) and (heterogeneous or bool(others.intersection(kept.over)))
        else:
            wrong = not set(along) <= set(kept.over)
        if kept.units and (bool(others) if name in paths else wrong):
            raise EmissionPrinted(place=place, cause=f"along {'.'.join(along)} it is otherwise than along other axes")


def _kept(subject: Subject, axes: Axes, copies: Copies) -> tuple[Kept, Precision]:
    precision = precision_of(subject)
    kept = kept_of(subject, axes, copies)
    kept = whole_of(subject, axes) if precision.sums and not kept.units else kept
    check_passed(subject, kept)
    if kept.units:
        check_shared(subject)
    return kept, precision


def _model(subject: Subject, folder: Path) -> str:
    return Path(os.path.relpath(folder.resolve() / subject.calls.file, folder.resolve())).as_posix()


def called_modules(subject: Subject, kept: Kept) -> dict[str, tuple[str, ...]]:
    """Modules of every body, relative to it, on whose calls something depends: units of storage, and recomputation."""
    found: dict[str, list[str]] = {}
    root = around_units(kept.units) if len(subject.decisions.stages) == 1 else frozenset()
    for unit in kept.units:
        found.setdefault(unit.piece.plan.body, []).extend(unit.inner)
        if not unit.piece.repeated:
            found.setdefault(unit.piece.plan.body, []).extend(one for one in unit.piece.owners() if one not in root)
    for again in recomputed(subject):
        found.setdefault(again.piece.plan.body, []).extend((*again.paths, *again.attention))
    return {body: tuple(dict.fromkeys(path for path in paths if path)) for body, paths in found.items()}
