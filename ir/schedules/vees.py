"""Schedules of two stages per group, folded to a V: group g of p holds stages g and 2p - 1 - g.

The first group holds both ends of the model; a forward runs down the groups through stages 0 … p-1 and back up through
p … 2p-1, the backward the same way again. What a group keeps of an early stage it keeps long, of a late one briefly, so
memory is even over the groups.

- ZB-V (Qi et al. 2024, arXiv 2401.10241, section 6): at equal F, I and W no group waits between its first and
  last action, and the peak is that of the first group of 1F1B: p micro-batches of a whole group, 2p of a stage.
- V-Min and V-Half (Qi et al. 2024, arXiv 2405.15362): see `_building_blocks`; peaks about p/3 and p/2.
  Their slots are made for equal F, I and W: with unequal ones V-Min waits in every micro-batch, not once a step.
- DualPipeV (DeepSeek-AI 2024, arXiv 2412.19437, and github.com/deepseek-ai/DualPipe, folded as in "Cut-in-half"):
  forwards and full backwards of opposite ends in turn, weight gradients split only at the ends. DeepSeek's kernels run
  such a pair at once, so that one's communication hides behind the other's compute; here they stand one behind the
  other.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from meshwright.ir.schedules.phases import write_phases
from meshwright.ir.schedules.work import KINDS, Shape

Lists = tuple[tuple[int, ...], ...]

INTERVAL = 6
"""Slots after which a building block repeats: F, I and W of two stages, one slot each."""

MIN_GAPS = (1, 1, 1, 1)
HALF_GAPS = (2, 1, 2, 1)
"""Slots from one group to the next, of the four waves of a micro-batch: F down, F up, I down, I up."""


def zb_v(shape: Shape) -> Lists:
    """The hand-made order of the paper's section 6."""
    groups = len(shape.stages)
    full = max(shape.microbatches, 2 * groups - 1)
    lists = []
    for group, stages in enumerate(shape.stages):
        after = groups - group
        phases = (
            ("F0", 2 * after - 1),
            ("F1 F0", group),
            ("F1 I1 W1", after),
            ("F0 I0 W0 F1 I1 W1", full - groups - after + 1),
            ("I0 W0 F1 I1 W1", after - 1),
            ("I0 I1", group),
            ("I0 W0", after),
            ("W1", group),
            ("W0", group),
        )
        lists.append(write_phases(phases, stages, shape))
    return tuple(lists)


def dualpipe_v(shape: Shape) -> Lists:
    """The eight steps of DualPipeV, with overlapped pairs written out."""
    groups = len(shape.stages)
    lists = []
    for group, stages in enumerate(shape.stages):
        after, whole = groups - group - 1, (group + 1) // 2
        odd = group % 2
        phases = (
            ("F0", 2 * after),
            ("F0 F1", group + 1),
            ("I1 W F1", after),
            ("F0 B1 F1 B0", shape.microbatches - groups - after),
            ("B1 F1 B0", after),
            ("B1 B0", whole),
            ("B1 I0", 1 - odd),
            ("I1 I0", group + odd - whole),
            ("W I0", after),
            ("W", group + 1),
        )
        lists.append(write_phases(phases, stages, shape))
    return tuple(lists)


def v_min(shape: Shape) -> Lists:
    """The V schedule with the least memory: every wave goes on at once."""
    return _repeated(shape, MIN_GAPS)


def v_half(shape: Shape) -> Lists:
    """The V schedule with half the memory of 1F1B."""
    return _repeated(shape, HALF_GAPS)


def _repeated(shape: Shape, gaps: tuple[int, int, int, int]) -> Lists:
    """The building block of every group, again every `INTERVAL` slots, in order of the slots."""
    depth = shape.depth
    lists = []
    for stages, block in zip(shape.stages, _building_blocks(len(shape.stages), gaps), strict=True):
        slots = sorted(
            (slot + INTERVAL * mb, 4 * (mb * depth + stages[position]) + kind)
            for kind, position, slot in block
            for mb in range(shape.microbatches)
        )
        lists.append(tuple(code for _, code in slots))
    return tuple(lists)


@lru_cache(maxsize=64)
def _building_blocks(groups: int, gaps: tuple[int, int, int, int]) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each group the (kind, position, slot) of the six actions of micro-batch 0.

    The four waves start as soon as what they wait for is there and no group is asked for two actions in one slot
    (modulo the interval). W follows its I in the first slot left. The peak, in micro-batches of one stage, is the sum
    over both stages of the slots from F to W, divided by the interval: of the first group (p-1)(sum of gaps) / 6, so
    the gaps decide the memory: 4p/6 of the 2p that a group of 1F1B holds, or 6p/6.
    """
    down, up = range(groups), range(groups - 1, -1, -1)
    taken: list[set[int]] = [set() for _ in range(groups)]
    blocks: list[list[tuple[int, int, int]]] = [[] for _ in range(groups)]
    ready = 0
    for (kind, position), gap, path in zip(((0, 0), (0, 1), (2, 1), (2, 0)), gaps, (down, up, down, up), strict=True):
        start = next(
            start
            for start in count(ready)
            if all((start + gap * step) % INTERVAL not in taken[group] for step, group in enumerate(path))
        )
        for step, group in enumerate(path):
            slot = start + gap * step
            taken[group].add(slot % INTERVAL)
            blocks[group].append((kind, position, slot))
        ready = start + gap * (groups - 1) + 1
    for block, used in zip(blocks, taken, strict=True):
        for _, position, slot in block[2:]:
            later = next(later for later in count(slot + 1) if later % INTERVAL not in used)
            used.add(later % INTERVAL)
            block.append((KINDS.index("W"), position, later))
    return tuple(tuple(block) for block in blocks)
