"""What tests of the search are told instead of working it out: configurations and prices in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.cost_models.prediction import SHARES, Held, Prediction, StagePrediction
from meshwright.planner.question.pins import Config


def config(**changes: Any) -> Config:
    """One rank, one sequence, and whatever else is said."""
    own: dict[str, Any] = {
        **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vp", "mbs", "microbatches"), 1),
        "etp": 0,
        "shard": 0,
        "zero": 0,
        "recompute": "none",
        "schedule": "1f1b",
        "sp": False,
        "context": "all_gather",
        "zigzag": False,
        "split": "even",
        "regather": True,
        "offload": "none",
    }
    return Config(**own | changes)


def price(
    step_s: float, *lacks: float, stages_s: Sequence[tuple[float, float]] = ((1.0, 2.0),), **shares: float
) -> Prediction:
    """A step of so many seconds on devices of 100 bytes, each stage with so many bytes more than it has; forward and
    backward seconds of the stages."""
    stages = []
    for number, (forward_s, backward_s) in enumerate(stages_s):
        peak = 100.0 + (lacks[number] if number < len(lacks) else 0.0)
        memory = Held(peak_bytes=peak, device_bytes=110.0, margin_bytes=10.0, instant="loss", parts=())
        stages.append(
            StagePrediction(
                stage=number, ranks=1, forward_s=forward_s, backward_s=backward_s, weight_s=0.0, memory=memory
            )
        )
    return Prediction(
        step_time_s=step_s,
        step_time_low_s=step_s,
        step_time_high_s=step_s,
        tokens_per_s_per_gpu=1.0,
        mfu=0.5,
        stages=tuple(stages),
        shares=tuple((dict.fromkeys(SHARES, 0.0) | {name.replace("_", "-"): s for name, s in shares.items()}).items()),
        traffic=(),
        provenance=(),
    )
