"""An evaluator for tests of what stands around one: every statement takes as long as any other, memory is what is kept.

Its prices are made up and follow from the program alone, so tests can compute them again.
"""

from __future__ import annotations

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prediction import SHARES, Held, Prediction, StagePrediction
from meshwright.ir.program.program import BodyProgram, Program
from meshwright.planner.answer.estimate import in_flight

STATEMENT_S = 1e-4
MARGIN = 0.9
"""The share of a device's memory that may be used."""


class FlatRates:
    """Prices programs on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def evaluate(self, program: Program) -> Prediction:
        assert program.workload is not None
        bodies = {body.name: body for body in program.bodies}
        flight: dict[int, int] = {}
        for _, actions in program.actions:
            flight |= in_flight(actions)
        stages = []
        for index, stage in enumerate(program.stages):
            ran = [bodies[name] for _, name in stage.calls()]
            stages.append(self._stage(index, ran, len(stage.ranks), flight[index]))
        busy_s = program.microbatches * max(stage.forward_s + stage.backward_s for stage in stages)
        bubble_s = sum(stage.forward_s + stage.backward_s for stage in stages[1:])
        step_s = busy_s + bubble_s
        shares = dict.fromkeys(SHARES, 0.0) | {"matmul": busy_s, "bubble": bubble_s}
        return Prediction(
            step_time_s=step_s,
            step_time_low_s=0.9 * step_s,
            step_time_high_s=1.1 * step_s,
            tokens_per_s_per_gpu=program.workload.tokens / step_s / self.cluster.ranks,
            mfu=busy_s / step_s / 2,
            stages=tuple(stages),
            shares=tuple(shares.items()),
            traffic=(("island", 1e9), ("rail", 2e9)),
            provenance=(("compute", "fitted"), ("collectives", "measured"), ("memory", "datasheet")),
        )

    def _stage(self, index: int, ran: list[BodyProgram], ranks: int, in_flight_: int) -> StagePrediction:
        forward, backward = (sum(len(getattr(body, way)) for body in ran) for way in ("forward", "backward"))
        kept = float(in_flight_ * sum(kept.nbytes for body in ran for kept in body.kept))
        weights = float(sum(16 * body.locals[slot.stored].type.elements for body in ran for slot in body.params))
        memory = Held(
            peak_bytes=kept + weights / ranks,
            device_bytes=self.cluster.pools[0].device.memory.value,
            margin_bytes=(1 - MARGIN) * self.cluster.pools[0].device.memory.value,
            instant="forward end",
            parts=(("parameters", weights / ranks), ("activations", kept)),
        )
        return StagePrediction(
            stage=index,
            ranks=ranks,
            forward_s=STATEMENT_S * forward,
            backward_s=STATEMENT_S * backward,
            weight_s=STATEMENT_S * backward / 2,
            memory=memory,
        )
