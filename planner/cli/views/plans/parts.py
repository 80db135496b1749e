"""Tables that several views of plans share: stages by group of ranks, where the time goes, other plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.cost_models.prediction import Held, Prediction
from meshwright.planner.cli.views.tables import Table, Way, number, text
from meshwright.planner.plan.notes import EMISSION_REFUSES
from meshwright.planner.plan.types import Plan, Rival
from meshwright.planner.plan.units import nbytes, percent, seconds
from meshwright.planner.plan.words import GOES_TO, more, ranged, share_name, short, told

BAR = 30
"""Characters of the longest bar."""
MOST_ROWS = 6
"""Of groups of ranks, and of shares of the time, where not all are asked for."""
WORTH_A_ROW = 0.01
"""Of the step: smaller shares are told together."""


# Stages --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of ranks that follow each other and are shown as one row; one group runs stages, one or several."""

    ranks: tuple[int, ...]
    stages: tuple[tuple[int, int], ...]
    """The first and the last of every run of stages; downwards where a pipeline is folded to a V."""
    blocks: tuple[tuple[str, int, int], ...]
    """What a group runs, and how often at least and at most."""
    mesh: str
    memory: Held
    """Of the fullest of its ranks."""

    def joined(self, other: Group) -> Group:
        """Both as one row. Must: they run the same kinds of blocks."""
        return Group(
            self.ranks + other.ranks,
            tuple((first, last) for (first, _), (_, last) in zip(self.stages, other.stages, strict=True)),
            tuple(
                (name, min(least, less), max(most, greater))
                for (name, least, most), (_, less, greater) in zip(self.blocks, other.blocks, strict=True)
            ),
            self.mesh,
            max(self.memory, other.memory, key=lambda held: held.lacks_bytes),
        )

    @property
    def kinds(self) -> tuple[object, ...]:
        """What it runs, whatever the numbers."""
        return tuple(name for name, _, _ in self.blocks), self.mesh, len(self.stages), self.memory.device_bytes


def groups_of(plan: Plan) -> list[Group]:
    """The groups of ranks, in the order of their first stages."""
    runs: dict[tuple[int, ...], list[int]] = {}
    for at, stage in enumerate(plan.decisions.stages):
        runs.setdefault(stage.ranks, []).append(at)
    found = []
    for ranks, stages in runs.items():
        counts: dict[str, int] = {}
        for name, times in (block for at in stages for block in plan.blocks[at]):
            counts[name] = counts.get(name, 0) + times
        held = max((plan.prediction.stages[at].memory for at in stages), key=lambda memory: memory.lacks_bytes)
        blocks = tuple((name, times, times) for name, times in counts.items())
        mesh = str(plan.decisions.stages[stages[0]].mesh)
        found.append(Group(ranks, tuple((at, at) for at in stages), blocks, mesh, held))
    return found


def stage_table(plan: Plan, most: int | None = MOST_ROWS) -> Table:
    """Groups of ranks: neighbours that run the same are one row, with the memory of the fullest. Where that are more
    rows than `most`, so are those that differ in numbers of blocks alone, and then all between the first and the last
    few."""
    rows = [_joined(run) for run in _alike(groups_of(plan), lambda one: (one.kinds, one.blocks))]
    if most is not None and len(rows) > most:
        rows = [_joined(run) for run in _alike(rows, lambda one: one.kinds)]
    shown = Table(
        "stages, by group of ranks",
        (
            text("ranks", 8),
            text("stages", 4, Way.DROP),
            text("blocks", 7, least=20),
            text("mesh", 5, least=10),
            number("peak memory"),
            number("of", 3),
            number("left", 6),
            text("fullest at", 2, Way.DROP),
        ),
    )
    cut = len(rows) if most is None or len(rows) <= most else most - 2
    for row in rows[:cut]:
        shown.add(*_cells(row))
    if cut < len(rows):
        between = rows[cut:-1]
        fullest = max((row.memory for row in between), key=lambda held: held.lacks_bytes)
        shown.add(f"{len(between)} rows more", "", "of other blocks: -v", "", *_held(fullest))
        shown.add(*_cells(rows[-1]))
    return shown


def _alike(rows: Sequence[Group], key: Callable[[Group], object]) -> Iterator[list[Group]]:
    return (list(run) for _, run in groupby(rows, key))


def _joined(rows: Sequence[Group]) -> Group:
    found = rows[0]
    for row in rows[1:]:
        found = found.joined(row)
    return found


def _cells(row: Group) -> tuple[str, ...]:
    blocks = ", ".join(
        name if most == 1 else f"{least if least == most else f'{least}-{most}'} x {name}"
        for name, least, most in row.blocks
    )
    return (
        ranks_text(row.ranks),
        ", ".join(ranged(*sorted(run)) for run in row.stages),
        blocks,
        row.mesh,
        *_held(row.memory),
    )


def _held(held: Held) -> tuple[str, ...]:
    left = nbytes(held.left_bytes) if held.fits else f"short {nbytes(held.lacks_bytes)}"
    return nbytes(held.peak_bytes), nbytes(held.capacity_bytes), left, held.instant


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as a range, or how many where they are none."""
    return ranged(min(ranks), max(ranks)) if in_a_row(ranks) else f"{len(ranks):,} from {min(ranks):,} on"


def in_a_row(ranks: Sequence[int]) -> bool:
    """Whether ranks are all those from the first to the last."""
    return max(ranks) - min(ranks) + 1 == len(ranks)


# Time ----------------------------------------------------------------------------------------------------------------


def share_table(prediction: Prediction, most: int | None = None) -> Table:
    """Where a step's time goes; with `most`, in so many rows, the largest first and small ones together."""
    step_s = prediction.step_time_s
    shares = [(name, share_s) for name, share_s in prediction.shares if share_s > 0]
    if most is not None:
        shares.sort(key=lambda share: -share[1])
        kept = [share for share in shares if share[1] >= WORTH_A_ROW * step_s][: most - 1]
        rest_s = sum(share_s for _, share_s in shares[len(kept) :])
        shares = [*kept, ("other", rest_s)] if len(shares) > len(kept) + 1 else shares
    longest = max((share_s for _, share_s in shares), default=1.0)
    shown = Table(
        "where the step goes, on the busiest ranks",
        (text("", 9), number(""), number(""), text("", 1, Way.DROP), text("", 2, Way.SHORTEN, least=20)),
    )
    for name, share_s in shares:
        bar = "#" * max(1, round(BAR * share_s / longest))
        shown.add(share_name(name), seconds(share_s), percent(share_s / step_s), bar, GOES_TO.get(name, ""))
    return shown


def difference_table(title: str, differences: Sequence[tuple[str, float]]) -> Table:
    """Seconds more or less, by share; they add up to the difference of two step times."""
    shown = Table(title, (text("", 2), number("time"), text("", 1, Way.SHORTEN, least=20)))
    for name, more_s in differences:
        if more_s:
            shown.add(share_name(name), f"{'+' if more_s > 0 else '-'}{seconds(abs(more_s))}", GOES_TO.get(name, ""))
    total_s = sum(more_s for _, more_s in differences)
    shown.add("together", f"{'-' if total_s < 0 else '+'}{seconds(abs(total_s))}", "")
    return shown


# Other plans ---------------------------------------------------------------------------------------------------------


def rival_table(title: str, rivals: Sequence[Rival], most: int | None = None) -> Table:
    """Other plans, each with why it lost; of the differences only so many."""
    shown = Table(
        title,
        (
            text("", 6, least=10),
            text("configuration", 5, least=25),
            number("step time"),
            number("more"),
            number("peak memory", 3),
            text("why it lost", 2, Way.BELOW),
        ),
    )
    for one in rivals:
        numbers = (seconds(one.step_time_s), more(one.slower), nbytes(one.peak_memory_bytes))
        cells = (short(one.config), *numbers) if one.config else ("", "-", "-", "-")
        shown.add(one.name, *cells, told(brief(one, most)))
    return shown


def brief(one: Rival, most: int | None) -> str:
    """Why a plan lost, with so many differences."""
    if most is None:
        return one.lost
    why, _, refusal = one.lost.partition(f"; {EMISSION_REFUSES}")
    first = ", ".join(why.split(", ")[:most]) if one.fits else why
    return f"{first}; not emitted{refusal}" if refusal else first
