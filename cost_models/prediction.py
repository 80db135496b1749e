"""Predictions: what the evaluator answers, as plain data.

One `Prediction` is the price of one Program on one cluster. It says how long a step takes and within which interval,
what every stage does in that time and what it holds at its fullest instant, how many bytes cross which kind of link,
and what the numbers stand on. `--json` prints exactly this.

    step_time_s      one optimizer step, from the first forward to updated parameters everywhere
    mfu              the model's own FLOPs, forward and backward as the rules count them (attention unhalved, nothing
                     recomputed, nothing twice), over the dense 16-bit peak of all devices (else their first)
    shares           where the step goes on the busiest group of ranks: they add up to the step time
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.cost_models.hardware.quantity import Kind

SHARES = (
    "matmul", "attention", "memory-bound", "launch", "recompute",
    "tensor", "context", "expert", "parameters", "transfers", "bubble", "gradients", "optimizer", "publish", "host",
)  # fmt: skip
"""What a step's time is spent on. From `tensor` on: communication that nothing hides, by what it is for; `host`: what
waits for the host, its link or its processors."""

HELD = (
    "parameters", "gradients", "optimizer", "activations", "recomputed", "transient", "gathered", "staging", "logits",
    "communicators", "context", "idle", "rounding",
)  # fmt: skip
"""What memory is held by; `staging`: what is on its way to the host, or back; `idle`: what torch's allocator keeps for
streams that communicate and that is not in use at that instant."""


class Worth(NamedTuple):
    """The sort key of plans, least first."""

    lacks_bytes: float
    """What all stages together lack of memory."""
    step_s: float
    stages_s: float
    """Of all stages together, so that of equal steps the one with less work is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Memory of one rank of a stage at its fullest instant.

    - The parts add up to `peak_bytes`.
    - `capacity_bytes` is what a plan may use: `device_bytes`, which the device has, less `margin_bytes`.
    """

    peak_bytes: float
    device_bytes: float
    margin_bytes: float
    instant: str
    """When it is fullest: "forward end", "loss", "recompute", "backward", "optimizer"."""
    parts: tuple[tuple[str, float], ...]
    host_bytes: float = 0.0
    """What waits in the host's memory, at most."""

    @property
    def capacity_bytes(self) -> float:
        return self.device_bytes - self.margin_bytes

    @property
    def left_bytes(self) -> float:
        """Bytes that are free; negative where the rank is too full."""
        return self.capacity_bytes - self.peak_bytes

    @property
    def lacks_bytes(self) -> float:
        """Bytes by which the rank is too full; negative where there is room."""
        return self.peak_bytes - self.capacity_bytes

    @property
    def fits(self) -> bool:
        return self.lacks_bytes <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One pipeline stage: seconds of one micro-batch, and the memory of the ranks that run it.

    Virtual stages that share ranks share their memory too: all of them show the same `memory`.
    """

    stage: int
    ranks: int
    forward_s: float
    backward_s: float
    """All of the backward pass: recomputation, gradients of inputs and of weights."""
    weight_s: float
    """The part of it that makes gradients of weights, which schedules may put off."""
    memory: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The price of one Program on one cluster."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    stages: tuple[StagePrediction, ...]
    shares: tuple[tuple[str, float], ...]
    traffic: tuple[tuple[str, float], ...]
    """Bytes that all ranks together receive in a step, by the widest tier that their group spans."""
    provenance: tuple[tuple[str, Kind], ...]
    """For each kind of number that went into the price, the weakest it stands on."""

    @property
    def peak_memory_bytes(self) -> float:
        return max(stage.memory.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        return all(stage.memory.fits for stage in self.stages)

    @property
    def lacks_bytes(self) -> float:
        """Bytes that the fullest stage lacks; 0 where all stages fit."""
        return max(0.0, *(stage.memory.lacks_bytes for stage in self.stages))

    @property
    def worth(self) -> Worth:
        """The sort key of plans, least first."""
        lacks_bytes = sum(max(0.0, stage.memory.lacks_bytes) for stage in self.stages)
        return Worth(lacks_bytes, self.step_time_s, sum(stage.forward_s + stage.backward_s for stage in self.stages))

    def to_json(self) -> dict[str, Any]:
        return {
            "step_time_s": self.step_time_s,
            "step_time_low_s": self.step_time_low_s,
            "step_time_high_s": self.step_time_high_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "peak_memory_bytes": self.peak_memory_bytes,
            "fits": self.fits,
            "stages": [
                {
                    "stage": stage.stage,
                    "ranks": stage.ranks,
                    "forward_s": stage.forward_s,
                    "backward_s": stage.backward_s,
                    "weight_s": stage.weight_s,
                    "peak_memory_bytes": stage.memory.peak_bytes,
                    "capacity_bytes": stage.memory.capacity_bytes,
                    "device_bytes": stage.memory.device_bytes,
                    "margin_bytes": stage.memory.margin_bytes,
                    "instant": stage.memory.instant,
                    "memory": dict(stage.memory.parts),
                    "host_bytes": stage.memory.host_bytes,
                }
                for stage in self.stages
            ],
            "shares": dict(self.shares),
            "traffic": dict(self.traffic),
            "provenance": dict(self.provenance),
        }
