"""Action lists of whole programs, without the programs: three stages, written by hand and spoilt one by one."""

from __future__ import annotations

import pytest

from meshwright.ir.errors import ActionMismatch, MeshwrightError, WaitCircle, WorkForeign, WorkMiscounted
from meshwright.ir.graph.graph import Type
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import Action, Program, Stage
from meshwright.ir.program.reading import parse_program
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.verify.actions import crossings, verify_actions


def hop(from_stage: int, to_stage: int, *, differentiable: bool = True) -> Transfer:
    whole = Placement.parse("[-]")
    return Transfer(from_stage, 0, from_stage, to_stage, Type((4,), "f32"), whole, whole, differentiable)


def program(
    *lists: str, ranks: tuple[int, ...] = (0, 1, 2), hops: tuple[Transfer, ...] = (hop(0, 1), hop(1, 2))
) -> Program:
    """Stages on these ranks, a list of actions for each rank."""
    text = "".join(f"  actions ranks {rank}: {one}\n" for rank, one in enumerate(lists))
    actions = parse_program(f"program x 1\n{text}").actions
    micro = 1 + max(action.microbatch for _, own in actions for action in own)
    return Program(
        (),
        tuple(Stage(Mesh(), (rank,), (), at, at + 1) for at, rank in enumerate(ranks)),
        hops,
        actions,
        microbatches=micro,
    )


LINE = (
    "0F0 0send_F0>1 0recv_B0<1 0B0 sync step",
    "1recv_F0<0 1F0 1send_F0>2 1recv_B0<2 1I0 1send_B0>0 1W0 sync step",
    "2recv_F0<1 2F0 2B0 2send_B0>1 sync step",
)
LATER = "0recv_B0<1 waits for ever"
"""The first rank waits for whoever waits for ever behind it."""
VEE = (
    "0F0 0send_F0>1 2recv_F0<1 2F0 2I0 2send_B0>1 2W0 0recv_B0<1 0B0 sync step",
    "1recv_F0<0 1F0 1send_F0>2 1recv_B0<2 1B0 1send_B0>0 sync step",
)


def test_lists_that_are_a_step_pass() -> None:
    verify_actions(program(*LINE))
    verify_actions(program(*VEE, ranks=(0, 1, 0)))
    # Neighbours on one rank hand on what they made without a message.
    verify_actions(program("0F0 1F0 1B0 0B0 sync step", ranks=(0, 0), hops=(hop(0, 1),)))
    # What has no gradient is sent one way.
    one_way = (hop(0, 1, differentiable=False),)
    verify_actions(program("0F0 0send_F0>1 0B0 sync step", "1recv_F0<0 1F0 1B0 sync step", ranks=(0, 1), hops=one_way))
    assert crossings(program(*LINE)) == crossings(program(*LINE), gradients=True) == ((0, 1), (1, 2))
    assert crossings(program(*VEE, ranks=(0, 1, 0), hops=(hop(1, 2), hop(0, 1), hop(0, 2), hop(0, 1)))) == (
        (0, 1),
        (1, 2),
    )
    mixed = (hop(0, 1, differentiable=False), hop(1, 2))
    assert crossings(program(*LINE, hops=mixed), gradients=True) == ((1, 2),)


@pytest.mark.parametrize(
    ("at", "old", "new", "kind", "says"),
    [
        (0, "0B0 ", "", WorkMiscounted, r"stage 0, micro-batch 0.*\(1, 0, 0, 0\)"),
        (0, "0F0 ", "0F0 0F0 ", WorkMiscounted, r"\(2, 1, 0, 0\)"),
        (1, "1W0 ", "", WorkMiscounted, r"stage 1, micro-batch 0.*\(1, 0, 1, 0\)"),
        (1, "1W0 ", "1B0 ", WorkMiscounted, r"\(1, 1, 1, 0\)"),
        (0, "0F0", "0F0 1F0", WorkForeign, "1F0 is not theirs"),
        (0, " sync step", " step sync", WorkMiscounted, "do not end with one sync"),
        (0, " sync step", " sync sync step", WorkMiscounted, "do not end with one sync"),
        (0, " sync step", " step", WorkMiscounted, "do not end with one sync"),
        (0, " sync step", "", WorkMiscounted, "do not end with one sync"),
        (0, "0send_F0>1 ", "", ActionMismatch, "0send_F0>1 appears 0 times"),
        (1, "1recv_B0<2 ", "", ActionMismatch, "1recv_B0<2 appears 0 times"),
        (2, "2send_B0>1 ", "2send_B0>1 2send_B0>1 ", ActionMismatch, "2send_B0>1 appears 2 times"),
        (0, "0send_F0>1 ", "0send_F0>1 0send_F0>2 ", ActionMismatch, "0send_F0>2 appears 1 times"),
        (1, "1recv_F0<0 1F0", "1F0 1recv_F0<0", WaitCircle, LATER),
        (1, "1F0 1send_F0>2", "1send_F0>2 1F0", WaitCircle, LATER),
        (1, "1recv_B0<2 1I0", "1I0 1recv_B0<2", WaitCircle, LATER),
        (1, "1I0 1send_B0>0", "1send_B0>0 1I0", WaitCircle, LATER),
        (1, "1I0 1send_B0>0 1W0", "1W0 1I0 1send_B0>0", WaitCircle, LATER),
        (2, "2F0 2B0", "2B0 2F0", WaitCircle, LATER),
        (0, "0F0 0send_F0>1 0recv_B0<1", "0recv_B0<1 0F0 0send_F0>1", WaitCircle, "0recv_B0<1 waits for ever"),
    ],
)
def test_lists_that_are_no_step_are_refused(
    at: int, old: str, new: str, kind: type[MeshwrightError], says: str
) -> None:
    lists = list(LINE)
    assert old in lists[at]
    lists[at] = lists[at].replace(old, new, 1)
    with pytest.raises(kind, match=says):
        verify_actions(program(*lists))


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ("1F0 0F0 1B0 0B0 sync step", "1F0 waits for ever"),
        ("0F0 1F0 0B0 1B0 sync step", "0B0 waits for ever"),
    ],
)
def test_stages_on_one_rank_wait_for_each_other_too(lists: str, says: str) -> None:
    with pytest.raises(WaitCircle, match=says):
        verify_actions(program(lists, ranks=(0, 0), hops=(hop(0, 1),)))


def test_micro_batches_are_those_of_the_program() -> None:
    made = program("0F0 0B0 sync step", ranks=(0,), hops=())
    verify_actions(made)
    ((ranks, actions),) = made.actions
    for wrong in (Action("F", 0, 1), Action("F", 0, -1), Action("F", 1, 0)):
        spoilt = Program((), made.stages, (), ((ranks, (wrong, *actions)),), microbatches=1)
        with pytest.raises(WorkForeign):
            verify_actions(spoilt)
    with pytest.raises(WorkMiscounted, match="stage 0, micro-batch 1"):
        verify_actions(Program((), made.stages, (), made.actions, microbatches=2))
