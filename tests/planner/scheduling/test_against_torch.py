"""What torch's pipelining says to schedules made to measure: it validates them, puts sends and receives in between, and
runs through them without waiting for ever. Its functions are not public: where a version has none, nothing is asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from torch.distributed.pipelining import schedules as theirs

from meshwright.ir.schedules import WorkLists, decode
from meshwright.planner.scheduling import Budget, Job, schedule
from tests.planner.scheduling.jobs import jobs

NEEDED = ("_Action", "_validate_schedule", "_add_send_recv", "_simulate_comms_compute")


@pytest.mark.skipif(not all(hasattr(theirs, name) for name in NEEDED), reason="this torch has other functions")
@settings(max_examples=20)
@given(jobs())
def test_torch_takes_the_lists(one: Job) -> None:
    answer = schedule(one, budget=Budget(0))
    assert answer is not None
    rows = decode(WorkLists(one.shape, answer.best.lists))
    actions = {rank: [theirs._Action.from_str(str(action)) for action in row] for rank, row in enumerate(rows)}
    ranks = theirs._validate_schedule(actions, len(rows), one.shape.depth, one.shape.microbatches)
    assert [ranks[stage] for stage in range(one.shape.depth)] == one.group_of
    with_transfers = theirs._add_send_recv(actions, stage_to_rank=ranks.__getitem__, num_stages=one.shape.depth)
    theirs._simulate_comms_compute(with_transfers, stage_to_rank=ranks.__getitem__, num_stages=one.shape.depth)
