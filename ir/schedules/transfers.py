"""Sends and receives, put around computing actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshwright.ir.program.program import Action

Pairs = frozenset[tuple[int, int]]


def with_transfers(
    actions: tuple[tuple[Action, ...], ...], forward: Pairs, backward: Pairs
) -> tuple[tuple[Action, ...], ...]:
    """Add sends and receives. `forward` holds the (from, to) stage pairs that values cross, `backward` those that
    gradients cross (the same pairs, where anything differentiable crosses)."""
    back = frozenset((to, from_) for from_, to in backward)
    mail = {"F": (_sources(forward), _targets(forward)), "B": (_sources(back), _targets(back))}
    return tuple(tuple(step for action in one for step in _around(action, mail)) for one in actions)


def _around(
    action: Action, mail: Mapping[str, tuple[Mapping[int, list[int]], Mapping[int, list[int]]]]
) -> Iterable[Action]:
    if action.kind == "W":
        return (action,)
    what = "F" if action.kind == "F" else "B"
    sources, targets = mail[what]
    stage, mb = action.stage, action.microbatch
    return (
        *(Action(f"recv_{what}", stage, mb, peer) for peer in sources.get(stage, ())),
        action,
        *(Action(f"send_{what}", stage, mb, peer) for peer in targets.get(stage, ())),
    )


def _sources(pairs: Pairs) -> Mapping[int, list[int]]:
    """The stages from which every stage receives."""
    found: dict[int, list[int]] = {}
    for from_, to in sorted(pairs):
        found.setdefault(to, []).append(from_)
    return found


def _targets(pairs: Pairs) -> Mapping[int, list[int]]:
    """The stages to which every stage sends."""
    return _sources(frozenset((to, from_) for from_, to in pairs))
