"""The work lists of a program: its action lists read back as codes, or others in their place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.program.program import Action, Program
from meshwright.ir.schedules.verify import verify_work
from meshwright.ir.schedules.work import Shape, WorkLists, encode
from meshwright.ir.schedules.written import ActionList, shared_work

_REMEMBERED = 32
"""Programs whose lists were written by hand, or read, and are kept as codes."""

Lists = tuple[Sequence[Action], ...]

_known: OrderedDict[tuple[object, ...], tuple[Lists, WorkLists]] = OrderedDict()
"""By identity of the lists: to hash 10⁵ actions takes longer than to simulate them. The lists are held here, so that
their identities stay theirs."""


def work_of(program: Program) -> WorkLists:
    """The work of every group of a program, in order; verified. The same object for the same lists."""
    lists = tuple(actions for _, actions in program.actions)
    shared = shared_work(lists)
    held = tuple(
        tuple(index for index, stage in enumerate(program.stages) if stage.ranks == ranks)
        for ranks, _ in program.actions
    )
    shape = Shape(held, program.microbatches)
    if shared is not None and shared.shape == shape:
        verify_work(shared)
        return shared
    key = (*map(id, lists), held, program.microbatches)
    if key not in _known:
        work = encode(lists, shape)
        verify_work(work)
        _known[key] = lists, work
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    _known.move_to_end(key)
    return _known[key][1]


def with_work(program: Program, work: WorkLists) -> Program:
    """A program whose groups do this work, of the same shape, with the lists that `lower` would make."""
    verify_work(work)
    lists = [actions.doing(work) for _, actions in program.actions if isinstance(actions, ActionList)]
    return replace(program, actions=tuple((ranks, one) for (ranks, _), one in zip(program.actions, lists, strict=True)))
