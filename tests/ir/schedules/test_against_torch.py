"""The schedules that torch has too, action by action. Its lists come from methods that are not public: where a version
of torch has none, there is nothing to compare with."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import schedules as theirs

from meshwright.ir.schedules import Shape, compute_actions, stage_groups


def torch_rows(kind: Any, groups: int, microbatches: int) -> list[list[str]]:
    """What torch gives each rank; pairs that it overlaps are written out."""
    made = object.__new__(kind)
    made.pp_group_size, made._n_microbatches, made.num_stages = groups, microbatches, 2 * groups
    rows = []
    for rank in range(groups):
        row: list[str] = []
        for action in made._calculate_single_rank_operations(rank):
            if action is not None:
                row += [str(one) for one in action.sub_actions or (action,)]
        rows.append(row)
    return rows


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(("name", "kind"), [("zbv", "ScheduleZBVZeroBubble"), ("dualpipev", "ScheduleDualPipeV")])
def test_torch_runs_the_same_lists(name: str, kind: str, groups: int) -> None:
    made = getattr(theirs, kind, None)
    if not hasattr(made, "_calculate_single_rank_operations"):
        pytest.skip(f"this torch has no {kind}")
    for microbatches in (2 * groups, 2 * groups + 1, 5 * groups):
        ours = compute_actions(name, Shape(stage_groups(name, groups, 2), microbatches))
        assert [list(map(str, row)) for row in ours] == torch_rows(made, groups, microbatches)
