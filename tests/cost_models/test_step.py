"""What crosses between stages of different meshes, counted by hand."""

from __future__ import annotations

import pytest

from meshwright.cost_models.collectives.collective import collective
from meshwright.cost_models.collectives.topology import pair_shape
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.cost_models.step import Step
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.names import Degrees
from meshwright.ir.program.lower import lower
from meshwright.ir.target.workload import STACKS, Workload
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.cost_models.programs import DENSE, SEQ, fold


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (4, 1), (2, 2)])
def test_between_different_meshes_the_larger_part_travels(sizes: tuple[int, int]) -> None:
    """Of two sequences of 1,024 tokens and 1,024 channels in bf16, cut along tokens by each mesh, a rank of the smaller
    one receives, or sends back, its share; the two rotary tables, of 128 numbers a token, cross whole and one way."""
    left, right = (Degrees(tp=size, sequence_parallel=size > 1) for size in sizes)
    schedule, cluster = Schedule("1f1b", 2), read_cluster("1x8xA100")
    model = fold(DENSE, 2)
    plan = over_parts(model, neighbours(left, right), (2, 2), schedule, "any")
    workload = Workload(global_batch=4, seq=SEQ, stack=STACKS["torch"])
    program = lower(model, plan, workload=workload)
    step = Step(Prices(cluster, published()), program, workload)
    first, second = (stage.ranks for stage in program.stages)

    def crossing(nbytes: float, senders: tuple[int, ...], receivers: tuple[int, ...]) -> float:
        return collective("p2p", nbytes, pair_shape(cluster, senders, receivers)).seconds

    part, table = 2 * SEQ * 1024 * 2 / min(sizes), SEQ * 128 * 2
    assert step.transfers() == {
        (0, 1): pytest.approx(crossing(part, first, second) + 2 * crossing(table, first, second)),
        (1, 0): pytest.approx(crossing(part, second, first)),
    }
