"""Schedules whose groups hold stages g, g + G, g + 2G, …: GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-H2.

- GPipe (Huang et al. 2019, arXiv 1811.06965); with several stages per group breadth first, stage by stage
  (Lamy-Poirier 2023, arXiv 2211.05953).
- 1F1B (Narayanan et al. 2019), interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473).
- ZB-H1 and ZB-H2 (Qi et al. 2024, arXiv 2401.10241): weight gradients W are split from input gradients I and fill what
  would be idle. Group g of p delays W by g micro-batches in ZB-H1, which holds as much as the first group of 1F1B
  everywhere (p), and by 2g in ZB-H2, which starts with twice as many forwards and holds 2p - 1.

Idle time, with F, B, I, W the seconds of one stage and B = I + W:

    GPipe, 1F1B   (p - 1)(F + B)        interleaved   (p - 1)(F + B) with F, B of one of v stages
    ZB-H1         (p - 1)(F + I - W)    ZB-H2         (p - 1)(F + I - 2W)
"""

from __future__ import annotations

from meshwright.ir.schedules.phases import write_phases
from meshwright.ir.schedules.work import BACKWARD, FORWARD, Shape

Lists = tuple[tuple[int, ...], ...]


def gpipe(shape: Shape) -> Lists:
    """All forwards, then all backwards."""
    depth, cells = shape.depth, range(shape.microbatches)
    return tuple(
        (
            *(4 * (mb * depth + stage) + FORWARD for stage in stages for mb in cells),
            *(4 * (mb * depth + stage) + BACKWARD for stage in reversed(stages) for mb in cells),
        )
        for stages in shape.stages
    )


def one_f_one_b(shape: Shape) -> Lists:
    """Fill the pipe, then alternate one forward and one backward, then drain."""
    groups = len(shape.stages)
    full = max(shape.microbatches, groups)
    lists = []
    for group, stages in enumerate(shape.stages):
        ahead = groups - 1 - group
        phases = (("F0", ahead), ("F0 B0", full - ahead), ("B0", ahead))
        lists.append(write_phases(phases, stages, shape))
    return tuple(lists)


def eager_one_f_one_b(shape: Shape) -> Lists:
    """1F1B with twice as many forward passes ahead (Zhuang et al. 2022, arXiv 2211.05322): what a stage waits for was
    sent a whole step before, so that all stages may run in step."""
    groups = len(shape.stages)
    lists = []
    for group, stages in enumerate(shape.stages):
        ahead = min(2 * (groups - 1 - group), shape.microbatches)
        phases = (("F0", ahead), ("F0 B0", shape.microbatches - ahead), ("B0", ahead))
        lists.append(write_phases(phases, stages, shape))
    return tuple(lists)


def interleaved(shape: Shape) -> Lists:
    """Interleaved 1F1B: micro-batches in rounds of G, each round through all virtual stages of a group in turn."""
    groups, virtual, depth = len(shape.stages), len(shape.stages[0]), shape.depth
    total = shape.microbatches * virtual
    lists = []
    for group, stages in enumerate(shape.stages):
        rounds = range(shape.microbatches // groups)
        forward = _rounds(rounds, stages, groups, depth, FORWARD)
        backward = _rounds(rounds, stages[::-1], groups, depth, BACKWARD)
        warmup = min(total, 2 * (groups - 1 - group) + (virtual - 1) * groups)
        pairs = zip(forward[warmup:], backward, strict=False)
        lists.append((*forward[:warmup], *(code for pair in pairs for code in pair), *backward[total - warmup :]))
    return tuple(lists)


def _rounds(rounds: range, stages: tuple[int, ...], groups: int, depth: int, kind: int) -> list[int]:
    return [
        4 * ((number * groups + mb) * depth + stage) + kind
        for number in rounds
        for stage in stages
        for mb in range(groups)
    ]


def zb_h1(shape: Shape) -> Lists:
    """As 1F1B, with every W moved behind as many forwards as keep the first group's memory."""
    return _zero_bubble(shape, 1)


def zb_h2(shape: Shape) -> Lists:
    """Twice as many forwards ahead: at equal F, I and W no group ever waits between its first and last action."""
    return _zero_bubble(shape, 2)


def _zero_bubble(shape: Shape, reach: int) -> Lists:
    groups = len(shape.stages)
    full = max(shape.microbatches, reach * (groups - 1) + 1)
    lists = []
    for group, stages in enumerate(shape.stages):
        ahead, behind = reach * (groups - 1 - group), reach * group
        phases = (
            ("F0", ahead),
            ("F0 I0", behind),
            ("F0 I0 W0", full - ahead - behind),
            ("I0 W0", ahead),
            ("W0", behind),
        )
        lists.append(write_phases(phases, stages, shape))
    return tuple(lists)
