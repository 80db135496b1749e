"""The work lists of a program: its action lists read back as codes."""

from __future__ import annotations

from collections import OrderedDict

from meshwright.ir.program import Action, Program
from meshwright.ir.schedules.verify import verify_work
from meshwright.ir.schedules.work import Shape, WorkLists, encode

_REMEMBERED = 32
"""Schedules whose lists are kept, as in `lower`: a search meets few, each in many plans."""

Lists = tuple[tuple[Action, ...], ...]

_known: OrderedDict[tuple[object, ...], tuple[Lists, WorkLists]] = OrderedDict()
"""By identity of the lists (`lower` gives equal schedules the same ones): to hash 10⁵ actions takes longer than to
simulate them. The lists are held here, so that their identities stay theirs."""


def work_of(program: Program) -> WorkLists:
    """What every group of a program computes, in order; verified. The same object for the same lists."""
    lists = tuple(actions for _, actions in program.actions)
    held = tuple(
        tuple(index for index, stage in enumerate(program.stages) if stage.ranks == ranks)
        for ranks, _ in program.actions
    )
    key = (*map(id, lists), held, program.microbatches)
    if key not in _known:
        work = encode(lists, Shape(held, program.microbatches))
        verify_work(work)
        _known[key] = lists, work
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    _known.move_to_end(key)
    return _known[key][1]
