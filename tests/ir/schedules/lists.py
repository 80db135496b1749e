"""Random action lists that can run: whatever is ready is appended to its group's list, until nothing is left."""

from __future__ import annotations

from random import Random

from meshwright.ir.program.program import Action
from meshwright.ir.schedules import Shape

Actions = tuple[tuple[Action, ...], ...]


def random_lists(random: Random, most: int = 4) -> tuple[Shape, Actions]:
    """Up to `most` groups, twice as many stages, anyhow spread over them, and `most` micro-batches."""
    groups = random.randint(1, most)
    depth = random.randint(groups, 2 * most)
    owner = [*range(groups), *(random.randrange(groups) for _ in range(depth - groups))]
    random.shuffle(owner)
    held = tuple(tuple(stage for stage in range(depth) if owner[stage] == group) for group in range(groups))
    shape = Shape(held, random.randint(1, most))
    lists: list[list[Action]] = [[] for _ in range(groups)]
    ready = [Action("F", 0, mb) for mb in range(shape.microbatches)]
    while ready:
        action = ready.pop(random.randrange(len(ready)))
        lists[owner[action.stage]].append(action)
        ready += _made_ready(action, depth, random)
    return shape, tuple(map(tuple, lists))


def _made_ready(action: Action, depth: int, random: Random) -> list[Action]:
    stage, mb = action.stage, action.microbatch
    if action.kind == "W":
        return []
    if action.kind == "F" and stage + 1 < depth:
        return [Action("F", stage + 1, mb)]
    later = [Action("W", stage, mb)] if action.kind == "I" else []
    before = stage if action.kind == "F" else stage - 1
    return later if before < 0 else [*later, Action(random.choice("BI"), before, mb)]
