"""The names of a small twin, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan
from meshwright.ir.decisions.project import Sizes
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.plan.twin import _config, _told
from tests.planner.handmade import config


def sizes(*meshes: str, microbatches: int = 4) -> Sizes:
    return Sizes(tuple(map(Mesh.parse, meshes)), tuple(range(len(meshes))), microbatches)


@pytest.mark.parametrize(
    ("pins", "ranks", "small", "expected"),
    [
        # axes that are context outside and experts inside
        (
            "tp=4,cp=2,dp=4,ep=2,etp=4,mbs=4,pp=2",
            64,
            sizes("dp=2 cp_ep=2 tp=2", "dp=2 cp_ep=2 tp=2"),
            {"dp": 2, "cp": 2, "tp": 2, "ep": 2, "etp": 2, "shard": 0, "pp": 2, "mbs": 2},
        ),
        # copies and tensor parallelism both in two pieces, of which experts take one each
        (
            "tp=4,dp=8,ep=8,etp=2,pp=2,shard=4,zero=1",
            64,
            sizes("dp=1 ep=3 tp_ep=2 tp=2"),
            {"dp": 3, "cp": 1, "tp": 4, "ep": 6, "etp": 2, "shard": 2, "pp": 1, "mbs": 1},
        ),
        (
            "tp=2,dp=8,ep=8,etp=1",
            16,
            sizes("dp=2 ep=2 tp_ep=2"),
            {"dp": 4, "cp": 1, "tp": 2, "ep": 4, "etp": 1, "shard": 0, "pp": 1, "mbs": 1},
        ),
        (
            "tp=2,dp=8,shard=1,zero=1,mbs=2",
            16,
            sizes("dp=4 tp=2"),
            {"dp": 4, "cp": 1, "tp": 2, "ep": 1, "etp": 0, "shard": 1, "pp": 1, "mbs": 2},
        ),
        # stages of different meshes have names of their own: as many sequences as the largest of them has ranks
        (
            "tp=2,cp=2,dp=2,ep=2,etp=1,shard=2,zero=1,pp=2",
            16,
            sizes("dp=2", "dp=2 tp=2", "tp=3"),
            {"dp": 1, "cp": 1, "tp": 1, "ep": 1, "etp": 0, "shard": 0, "pp": 3, "mbs": 4},
        ),
    ],
)
def test_degrees_of_the_twin_are_those_of_its_axes(
    pins: str, ranks: int, small: Sizes, expected: dict[str, int]
) -> None:
    plain = config(pins, ranks, 256)
    one = replace(plain, stage_blocks=(2,) * plain.pp, split="ends")
    made = _config(one, small)
    changed = expected | {"microbatches": 4, "stage_blocks": (), "split": "even"}
    assert made == replace(one, **changed)  # type: ignore[arg-type]


def decided(*meshes: str, **words: Any) -> Decisions:
    stages, rank = [], 0
    for at, mesh in enumerate(map(Mesh.parse, meshes)):
        stages.append(StagePlan(at, at + 1, mesh, tuple(range(rank, rank + mesh.size)), ("block",)))
        rank += mesh.size
    return Decisions(plans=(BodyPlan("block", "block"),), stages=tuple(stages), **words)


def test_what_the_twin_has_not_is_told() -> None:
    """Axes that have one rank left, by name, and not those that had one before; kinds of stages; schedule and style."""
    plan = decided(
        "dp=4 cp=2 tp=1", "tp=8", "dp=2 tp=4", style="compiled", schedule=Schedule("custom", 2, ((), (), ()))
    )
    twin = decided("dp=1 cp=1 tp=1", "dp=1 tp=2", schedule=Schedule("1f1b", 2))
    kept = Sizes(tuple(stage.mesh for stage in twin.stages), (0, 2), 2)
    assert list(_told(plan, twin, kept)) == [
        "axis cp of 2 ranks has one rank: 8 processes have no room for it",
        "axis dp of 2 ranks has one rank: 8 processes have no room for it",
        "axis dp of 4 ranks has one rank: 8 processes have no room for it",
        "kinds of stages that 8 processes have no room for are left out: 1",
        "its schedule is 1f1b: the plan's is a list of actions for its own ranks",
        "it runs eager, not compiled",
    ]
    same = decided("dp=4", "dp=4", "dp=4")
    assert list(_told(same, decided("dp=2", "dp=2"), sizes("dp=2", "dp=2"))) == []
