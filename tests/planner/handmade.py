"""Plans, predictions and their like made by hand, of few and round numbers: what is said of them follows on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.cost_models.prediction import Held, Prediction, StagePrediction
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, StagePlan
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.types import Binding, Bounds, Machines, Model, Plan, Point, Provenance, Rival
from meshwright.planner.question.pins import Config, fill, parse

GIB = 2**30


def config(pins: str, ranks: int = 1, batch: int = 8) -> Config:
    """As --fix means it."""
    return fill(parse([pins]), ranks=ranks, global_batch=batch)


def held(peak: float, device: float, margin: float, instant: str = "loss", host: float = 0.0, **parts: float) -> Held:
    """Memory in GiB."""
    return Held(
        peak_bytes=peak * GIB,
        device_bytes=device * GIB,
        margin_bytes=margin * GIB,
        instant=instant,
        parts=tuple((name, size * GIB) for name, size in parts.items()),
        host_bytes=host * GIB,
    )


def stage(number: int, memory: Held, *, ranks: int = 2, forward_s: float = 0.01, backward_s: float = 0.02) -> Any:
    """One stage, its weights half of the way back."""
    return StagePrediction(
        stage=number, ranks=ranks, forward_s=forward_s, backward_s=backward_s, weight_s=backward_s / 2, memory=memory
    )


ROOMY = (
    stage(0, held(6.0, 10.0, 1.0, "loss")),
    stage(1, held(4.0, 5.0, 0.5, "backward")),
    stage(2, held(3.5, 4.0, 0.25, "optimizer"), ranks=4),
)
"""The first stage holds most, the second is fuller by what it may hold; the third has other ranks."""


def prediction(**words: Any) -> Prediction:
    """Two seconds a step, of which a quarter is bubble."""
    usual: dict[str, Any] = {
        "step_time_s": 2.0,
        "step_time_low_s": 1.5,
        "step_time_high_s": 4.0,
        "tokens_per_s_per_gpu": 1234.4,
        "mfu": 0.4,
        "stages": ROOMY,
        "shares": (("matmul", 1.5), ("bubble", 0.5), ("host", 0.0)),
        "traffic": (("island", 2e9), ("rail", 5e8)),
        "provenance": (("compute", "fitted"), ("memory", "datasheet")),
    }
    return Prediction(**usual | words)


def rival(name: str, pins: str | None, lost: str, *, slower: float = 1.0) -> Rival:
    """One that takes so many times two seconds, in 3 GiB; without pins, one that cannot be."""
    there = pins is not None
    return Rival(
        name=name,
        config=config(pins, 8) if pins is not None else None,
        step_time_s=2.0 * slower * there,
        peak_memory_bytes=3.0 * GIB * there,
        short_stage=-1,
        short_bytes=0.0,
        slower=slower * there,
        differences=(),
        lost=lost,
    )


def point(pins: str, step_s: float, gib: float, *, fits: bool = True) -> Point:
    """A configuration of a frontier on eight ranks."""
    own = replace(config(pins, 8), open=())
    return Point(config=own, step_time_s=step_s, peak_memory_bytes=gib * GIB, fits=fits)


def bounds(**words: Any) -> Bounds:
    """Time, a quarter of it unproved."""
    usual: dict[str, Any] = {"objective": "time", "lower": 1.5, "upper": 2.0, "gap": 0.25, "complete": True}
    usual |= {"only": {}, "never": {}, "modules": (), "truncated": ("context parallel",)}
    usual |= {"operators_s": 1.0, "more_axes_s": 1.0}
    return Bounds(**usual | {"counts": {"bases": 1200, "full": 0, "priced": 3}} | words)


def plan(**words: Any) -> Plan:
    """Eight ranks in three stages: two of two ranks that run the same, and one of four with the head."""
    meshes = Mesh.parse("tp=2"), Mesh.parse("tp=2"), Mesh.parse("dp=2 tp=2")
    ranks, calls = ((0, 1), (2, 3), (4, 5, 6, 7)), ((0, 2), (2, 4), (4, 6))
    usual: dict[str, Any] = {
        "decisions": Decisions(
            plans=(BodyPlan("block", "block"), BodyPlan("head", "head")),
            stages=tuple(
                StagePlan(first, last, mesh, own, ("block", "head"))
                for (first, last), mesh, own in zip(calls, meshes, ranks, strict=True)
            ),
            target="torch-cuda",
        ),
        "config": config("tp=2,pp=2,dp=2,recompute=full", 8),
        "model": Model(ref="small.toml", digest="ab12", parameters=1_234_567, tensors=(("a", "bf16[2]"),)),
        "machines": Machines(ref="big.toml", hosts=1024, ranks=8192, devices=("H100", "A100"), toml="hosts = 1024\n"),
        "workload": Workload(global_batch=2048, seq=4096),
        "prediction": prediction(),
        "bounds": bounds(),
        "baselines": (rival("data parallel", None, "not possible"), rival("fsdp", "zero=3", "+1 s tensor", slower=1.5)),
        "alternatives": (rival("", "tp=8,zero=0", "+2 s host", slower=2.0),),
        "binding": (Binding(kind="heads", what="tp=8: 4 heads"), Binding(kind="constraint", what="tp was to be 2")),
        "provenance": Provenance(
            meshwright="1", profile="published", profile_digest="cd34", weakest="datasheet", seed=0
        ),
        "blocks": ((("Block", 2),), (("Block", 2),), (("Block", 1), ("Head", 1))),
        "notes": ("a note", "another"),
    }
    return Plan(**usual | words)
