"""Laws of every target's tables, on runs of all kinds: what is said is meant, and what is not said is told."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from meshwright.ir.errors import BatchIndivisible
from meshwright.planner.cli.arguments.common import FORMATS
from meshwright.planner.exchange.published import published
from meshwright.planner.exchange.run import FIELDS, Room, Run, unlike, worded
from meshwright.planner.exchange.target import REASONS, Projection, projected
from meshwright.planner.exchange.targets.every import TARGETS
from meshwright.planner.exchange.targets.megatron import NEGATED
from tests.planner.exchange.runs import completed, read_back, runs

EVERY = pytest.mark.parametrize("name", TARGETS)


def projection(name: str, run: Run, room: Room) -> Projection:
    try:
        return projected(TARGETS[name], run, room)
    except BatchIndivisible:
        assume(False)
        raise


@EVERY
@given(asked=runs())
def test_what_a_target_says_is_what_it_means(name: str, asked: tuple[Run, Room]) -> None:
    run, room = asked
    now = projection(name, run, room).run
    found = read_back(TARGETS[name], now, room)
    again = completed(TARGETS[name], found, now, room)
    assert {field: getattr(again, field) for field in unlike(again, now)} == {}


@EVERY
@given(asked=runs())
def test_a_projection_is_within_the_limits(name: str, asked: tuple[Run, Room]) -> None:
    run, room = asked
    now = projection(name, run, room).run
    again = projection(name, now, room)
    assert again.run == now
    assert again.lost == ()


@EVERY
@given(asked=runs())
def test_nothing_is_dropped_in_silence(name: str, asked: tuple[Run, Room]) -> None:
    run, room = asked
    found = projection(name, run, room)
    now = found.run
    assert (now.tp * now.pp * now.cp * now.dp, now.global_batch, now.seq) == (room.ranks, run.global_batch, run.seq)
    assert {one.name for one in found.lost} == set(unlike(run, now))
    for one in found.lost:
        assert one.name in FIELDS
        assert one.reason in REASONS
        assert one.why
        assert one.was == worded(getattr(run, one.name))
        assert one.becomes == worded(getattr(now, one.name))


def test_the_command_line_knows_every_target() -> None:
    assert tuple(TARGETS) == FORMATS


# Names ---------------------------------------------------------------------------------------------------------------


@EVERY
def test_every_option_is_published(name: str) -> None:
    """The tables know no option that the target does not have; what has it is a source with a commit and a date."""
    target, known = TARGETS[name], published(name)
    assert target.name == known.target == name
    assert known.source.startswith("https://github.com/")
    assert len(known.commit) == 40
    assert len(known.options) > 90
    options = [option.name for option in target.options] + [one.name for one in target.unpriced]
    assert set(target.aliases.values()) <= {option.name for option in target.options}
    options += target.aliases
    written = {on: off for off, on in NEGATED.items()}
    assert [one for one in options if not known.has(written.get(one, one))] == []
    assert len(options) == len(set(options))
