"""Plans of small models by way of settings: what is read is decided as what was written, so it has the same price."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import assume, given

from meshwright.backends.door import TARGETS as CODE
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.door import read_again
from meshwright.ir.target.workload import Workload
from meshwright.planner.exchange.run import Room, Run, config_of, pins_of, workload_of
from meshwright.planner.exchange.taken import room_of
from meshwright.planner.exchange.target import projected
from meshwright.planner.exchange.targets.every import TARGETS
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import fill
from meshwright.planner.question.pricing import Folds, Setting, price_of
from tests.planner.exchange.runs import ROOM, read_back, replace, runs

MOE = "examples/tiny_decoder.toml"
"""Five blocks of experts after a dense one."""
CLUSTER = read_cluster("2x4xH100")


@lru_cache(maxsize=1)
def setting() -> Setting:
    workload = Workload(global_batch=16, seq=64)
    source = read_again(MOE, dtype="bf16", mesh=(), store=None)
    return Setting(Folds(source, 64), CLUSTER.ranks, workload, CODE["any"], price_of(CLUSTER))


@lru_cache(maxsize=1)
def room() -> Room:
    return room_of(CLUSTER, setting())


SMALL = replace(ROOM, ranks=8, per_host=4, layers=6, experts=True)


def test_the_room_of_a_cluster_and_a_model() -> None:
    assert room() == replace(SMALL, per_slice=4)


@pytest.mark.parametrize("name", TARGETS)
@given(asked=runs(SMALL))
def test_the_plan_that_is_read_is_the_plan_that_was_written(name: str, asked: tuple[Run, Room]) -> None:
    """Of projections that the model can have: the same decisions and the same workload are the same program."""
    target, own = TARGETS[name], setting()
    try:
        run = projected(target, replace(asked[0], seq=64), room()).run
        config, batch = config_of(run, room()), run.global_batch
        written = own.decisions(config, batch)
    except MeshwrightError:
        assume(False)
        raise
    found: dict[str, Any] = read_back(target, run, room())
    beside = {field: getattr(run, field) for field in target.elsewhere}
    known = beside | found
    pins = pins_of(known, room())
    again = fill(pins, ranks=room().ranks, global_batch=batch)
    held = replace(own, constraints=Constraints.of(pins))
    assert held.decisions(held.settled(again, batch), batch) == written
    one, other = (workload_of(each, own.workload) for each in (run, replace(run, **_fields(known))))
    assert replace(one, stack=other.stack) == other


def _fields(known: dict[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in ("seq", "precision", "optimizer", "recipe") if name in known}
