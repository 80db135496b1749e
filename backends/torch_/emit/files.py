"""The files of an emitted plan, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshwright.backends.torch_.emit.axes import Axes, axes_of
from meshwright.backends.torch_.emit.context import context_of
from meshwright.backends.torch_.emit.experts import experts_of
from meshwright.backends.torch_.emit.initial import built_whole
from meshwright.backends.torch_.emit.launch import launch_script, rank_map
from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.precision import precision_of
from meshwright.backends.torch_.emit.printed import printed_of
from meshwright.backends.torch_.emit.recompute import recomputed
from meshwright.backends.torch_.emit.script import scripts, unlike_scripts
from meshwright.backends.torch_.emit.storage import Kept, kept_of, whole_of
from meshwright.backends.torch_.emit.styles import styles_of
from meshwright.backends.torch_.emit.subject import Subject
from meshwright.backends.torch_.emit.unlike import joined_kinds, kinds_of
from meshwright.backends.torch_.emit.writing.schedule import LISTS, action_lists, class_of
from meshwright.backends.torch_.emit.writing.unlike import unlike_orders
from meshwright.ir.errors import NotEmitted

__all__ = ["Files", "Subject", "emit"]

LAUNCH, RANKS = "launch.sh", "ranks.json"


@dataclass(frozen=True, slots=True)
class Files:
    """What is written: texts by file name."""

    texts: tuple[tuple[str, str], ...]
    told: tuple[str, ...] = ()
    """What is to be said of them."""

    def write(self, folder: Path) -> None:
        """Write them; the launch script may be executed."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts:
            (folder / name).write_text(text, encoding="utf-8")
        (folder / LAUNCH).chmod(0o755)


def emit(subject: Subject, folder: Path) -> Files:
    """The files of a plan, for this folder: the script finds the model from there. Raises a `NotEmitted` for what no
    code is written for; its fix is none that the plan has already."""
    try:
        return _emitted(subject, folder)
    except NotEmitted as refusal:
        raise refusal.apart_from(subject.has) from None


def _emitted(subject: Subject, folder: Path) -> Files:
    subject.check()
    kinds = [_parts(kind, folder) for kind in kinds_of(subject)]
    parts, lists = kinds[0], list[tuple[str, str]]()
    if len(kinds) > 1:
        unlike = joined_kinds(kinds)
        parts, texts, lists = unlike.main, unlike_scripts(unlike), [(LISTS, unlike_orders(unlike))]
    else:
        texts = scripts(parts)
        if parts.pipeline and class_of(parts) is None:
            lists = [(LISTS, action_lists(parts))]
    texts = (*texts, (LAUNCH, launch_script(subject)), (RANKS, rank_map(subject)))
    told = built_whole(parts.subject, parts=parts.drawn_in_parts)
    return Files((*texts, *lists, *subject.calls.beside), (told,) if told else ())


def _parts(subject: Subject, folder: Path) -> Parts:
    """What the script of a plan says; of one with unlike stages, of those of one kind."""
    axes = axes_of(subject)
    printed = prints(subject, axes)
    experts = experts_of(subject, axes.experts) if axes.experts and not printed else None
    styles = {
        piece.plan.name: styles_of(subject, piece, axes.tensor)
        for piece in subject.pieces
        if axes.tensor is not None and not printed
    }
    precision = precision_of(subject)
    kept = kept_of(subject, axes, experts)
    if precision.sums and not kept.units:
        kept = whole_of(subject, axes)
    return Parts(
        subject=subject,
        axes=axes,
        styles=styles,
        kept=kept,
        precision=precision,
        context=context_of(subject, axes.context) if axes.context is not None and not printed else None,
        experts=experts,
        model=Path(os.path.relpath(folder.resolve() / subject.calls.file, folder.resolve())).as_posix(),
        printed=printed_of(subject, axes, called_modules(subject, kept)) if printed else None,
    )


def prints(subject: Subject, axes: Axes) -> bool:
    """Whether the model is printed."""
    return subject.prints


def called_modules(subject: Subject, kept: Kept) -> dict[str, tuple[str, ...]]:
    """The modules of every body, relative to it, on whose calls something hangs: units of storage, and what is computed
    again."""
    found: dict[str, list[str]] = {}
    for unit in kept.units:
        if not unit.piece.repeated:
            found.setdefault(unit.piece.plan.body, []).extend(unit.piece.owners())
    for again in recomputed(subject):
        found.setdefault(again.piece.plan.body, []).extend((*again.paths, *again.attention))
    return {body: tuple(dict.fromkeys(path for path in paths if path)) for body, paths in found.items()}
