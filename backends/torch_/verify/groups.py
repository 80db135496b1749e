"""Groups of ranks of a pipeline: the parameters of each, and its planned communication.

Ranks are numbered as emitted scripts number them: group by group, in the order of the mesh within. Without a pipeline
there is one group.

Between stages every value is a message of its own: who sends it, who receives it, and its bytes
(`ir.program.crossing`). Where both stages are arranged alike, every rank sends its shard to the one that stands where
it does. In a ring of attention keys and values are messages to the next rank, each of its own; on the way back their
gradients are, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TypeVar

from meshwright.backends.torch_.verify.predicted import Predicted, predicted
from meshwright.backends.torch_.verify.run.counting import Collective
from meshwright.ir.graph.fold import Fold, joined
from meshwright.ir.graph.graph import ITEMSIZE
from meshwright.ir.program.crossing import End, messages
from meshwright.ir.program.program import Program, Ring, Tie
from meshwright.ir.program.ties import ends_of, exchanged
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.rank_classes import places_of, seen_by
from meshwright.ir.target.workload import Workload

FINITE_BYTES = 4
"""By which ranks tell one another whether gradients are finite, where losses are scaled."""
LEAST_BYTES = 2
"""Of scalars, where there are any: of one loss, in the shortest precision."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks that hold the same stages."""

    ranks: range
    mesh: Mesh
    predicted: tuple[Predicted, ...]
    """Of every rank."""
    messages: Mapping[Collective, int]
    parameters: tuple[tuple[str, ...], ...]
    """What of the model it holds: of each parameter all names."""
    last: bool
    """Whether the loss is computed here."""

    def along(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from this one along mesh axes only."""
        return tuple(sorted(self.ranks[0] + one for one in self.mesh.group(rank - self.ranks[0], axes)))

    def of(self, named: Mapping[str, T], found: Mapping[str, T]) -> dict[str, T]:
        """The model's parameters that this group holds, by the names under which they were found."""
        wanted = [[name for name in names if name in found] or names[:1] for names in self.parameters]
        return {name: named[name] for names in wanted for name in names if name in named}


def groups_of(program: Program, fold: Fold) -> tuple[Group, ...]:
    """The groups of a program."""
    held: dict[tuple[int, ...], list[int]] = {}
    for index, stage in enumerate(program.stages):
        held.setdefault(stage.ranks, []).append(index)
    first, ranks_of = 0, {}
    for ranks in held:
        ranks_of[ranks] = range(first, first + len(ranks))
        first += len(ranks)
    placed = [ranks_of[stage.ranks] for stage in program.stages]
    messages = _messages(program, placed) | _shifts(program, placed)
    calls = list(fold.calls())
    found = []
    for ranks, stages in held.items():
        numbers = [number for index in stages for number, _ in program.stages[index].calls()]
        places = places_of(program, stages)
        planned = {at: predicted(seen_by(program, at), fold, stages) for at in dict.fromkeys(places)}
        params = [(calls[number].path, param) for number in numbers for param in calls[number].body.graph.params]
        found.append(
            Group(
                ranks=ranks_of[ranks],
                mesh=program.stages[stages[0]].mesh,
                predicted=tuple(planned[at] for at in places),
                messages=messages,
                parameters=tuple(tuple(joined(path, name) for name in param.paths) for path, param in params),
                last=len(program.stages) - 1 in stages,
            )
        )
    return tuple(found)


def _messages(program: Program, ranks: list[range]) -> dict[Collective, int]:
    """All messages between stages in one step, twice: as they are sent, and as they are received."""
    found: Counter[Collective] = Counter()
    for hop in program.transfers:
        source, target = ranks[hop.from_stage], ranks[hop.to_stage]
        if source == target:
            continue
        one_end = source, End(program.stages[hop.from_stage].mesh, hop.source)
        other_end = target, End(program.stages[hop.to_stage].mesh, hop.target)
        ways = (one_end, other_end), (other_end, one_end)
        for (here, left), (there, arrives) in ways[: 1 + hop.differentiable]:
            for one, other, elements in messages(hop.type.shape, left, arrives):
                pair, size = (here[one], there[other]), int(elements * ITEMSIZE[hop.type.dtype])
                found["send", pair, size] += program.microbatches
                found["recv", pair, size] += program.microbatches
    everyone = tuple(sorted({rank for own in ranks for rank in own}))
    if program.workload is not None and program.workload.scaled and len(everyone) > 1:
        found["all_reduce", everyone, FINITE_BYTES] += 1
    unlike = len({stage.mesh for stage in program.stages}) > 1
    for tie in program.ties:
        for (one, other), (sender, receiver), elements in exchanged(program, tie) if unlike else ():
            pair, size = (ranks[one][sender], ranks[other][receiver]), elements * _gradient_bytes(program)
            found["send", pair, size] += 1
            found["recv", pair, size] += 1
        groups = list(dict.fromkeys(ranks[stage] for stage, _ in tie.holders))
        for members in zip(*groups, strict=True) if len(groups) > 1 and not unlike else ():
            found["all_reduce", tuple(sorted(members)), _tied_bytes(program, tie)] += 1
    return dict(found)


def _shifts(program: Program, ranks: list[range]) -> dict[Collective, int]:
    """All messages of rings in one step. No two stages exchange them, so that none is between the same ranks as those
    of `_messages`."""
    found: Counter[Collective] = Counter()
    for number, stage in enumerate(program.stages):
        passed: Counter[tuple[str, int]] = Counter()
        for body in (program.body(name) for _, name in stage.calls()):
            for one in (one for one in (*body.forward, *body.backward) if isinstance(one, Ring)):
                for operand in one.operands[1:3]:
                    passed[one.axis, int(body.nbytes[operand])] += one.shifts(stage.mesh) * program.microbatches
        for (axis, size), times in passed.items():
            for rank in range(stage.mesh.size):
                ring = stage.mesh.group(rank, (axis,))
                after = ring[(ring.index(rank) + 1) % len(ring)]
                ends = ranks[number][rank], ranks[number][after]
                found["send", ends, size] += times
                found["recv", ends, size] += times
    return dict(found)


def _tied_bytes(program: Program, tie: Tie) -> int:
    """Bytes of one rank's part of the gradient of a parameter that several stages hold, as it is kept."""
    shape, end = next(iter(ends_of(program, tie).values()))
    return prod(end.placement.local_shape(shape, end.mesh)) * _gradient_bytes(program)


def _gradient_bytes(program: Program) -> int:
    return int((program.workload or Workload(global_batch=1, seq=1, recipe="fp32")).states.gradient)


def unlike(found: Mapping[Collective, int], group: Group, rank: int, sent: Counter[tuple[int, ...]]) -> list[str]:
    """Differences between the collectives and messages of a rank and the planned ones. The bytes that ranks send with
    rows of experts are added to `sent`: see `unlike_together`."""
    left: Counter[Collective] = Counter(found)
    planned, wrong = group.predicted[rank - group.ranks[0]], []
    for (kind, ranks, size), number, between in _one_by_one(group, rank, planned):
        executed = left[kind, ranks, size]
        if executed < number:
            wrong.append(f"{kind} {between} of {size} bytes: {number} planned, {executed} executed")
        left[kind, ranks, size] = max(0, executed - number)
    rest: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for (kind, ranks, size), number in left.items():
        rest[kind, ranks] += number * size
    for axes, (number, _, _) in sorted(planned.routed.items()):
        peers = group.along(rank, axes)
        executed = sum(times for (kind, ranks, _), times in left.items() if (kind, ranks) == ("all_to_all", peers))
        sent[peers] += rest.pop(("all_to_all", peers), 0)
        if executed != number:
            wrong.append(f"all_to_all over {'.'.join(axes)} of rows for experts: {number} planned, {executed} executed")
    telling = _telling(group, rank, planned)
    for kind, axes in sorted(planned.packed.keys() | planned.scalars.keys()):
        size, scalars = planned.packed.get((kind, axes), 0), planned.scalars.get((kind, axes), 0)
        executed = rest.pop((kind, group.along(rank, axes)), 0)
        more = planned.told if (kind, group.along(rank, axes)) in telling else 0
        if not size + min(scalars, LEAST_BYTES) <= executed <= size + scalars + more:
            wrong.append(f"{kind} over {'.'.join(axes)}, packed: {size + scalars} bytes planned, {executed} executed")
    extra = [(*peers, size) for peers, size in sorted(rest.items()) if size > (planned.told if peers in telling else 0)]
    return [
        *wrong,
        *(f"{kind} over ranks {ranks}: {size} bytes executed, and not planned" for kind, ranks, size in extra),
    ]


def _telling(group: Group, rank: int, planned: Predicted) -> set[tuple[str, tuple[int, ...]]]:
    """Pairs of ranks that may tell each other what micro-batches count for: along some of the axes that scalars are
    summed on."""
    some = {part for _, axes in planned.scalars for many in range(len(axes)) for part in combinations(axes, many + 1)}
    return {("all_reduce", group.along(rank, part)) for part in some}


def _one_by_one(group: Group, rank: int, planned: Predicted) -> Iterator[tuple[Collective, int, str]]:
    """Collectives that a rank must execute a number of times, each by itself, with their groups in words."""
    for (kind, ends, size), number in sorted(group.messages.items()):
        if rank in ends if kind == "all_reduce" else rank == ends[kind == "recv"]:
            yield (kind, ends, size), number, f"between {' and '.join(map(str, ends))}"
    for (kind, axes, size), number in sorted((Counter(planned.values) + Counter(planned.counts)).items()):
        yield (kind, group.along(rank, axes), size), number, f"over {'.'.join(axes)}"


def unlike_together(sent: Mapping[tuple[int, ...], int], group: Group) -> list[str]:
    """Differences between the bytes that ranks send to the experts among them and the planned ones."""
    wrong = []
    for axes, (_, size, within) in sorted(group.predicted[0].routed.items()):
        for ranks in dict.fromkeys(group.along(rank, within) for rank in group.ranks):
            executed = sum(sent.get(peers, 0) for peers in {group.along(rank, axes) for rank in ranks})
            if executed != size * len(ranks):
                shown = f"all_to_all over {'.'.join(axes)} among ranks {ranks} of rows for experts"
                wrong.append(f"{shown}: {size * len(ranks)} bytes planned of all of them, {executed} executed")
    return wrong
