"""Lists that are written when they are read are the lists."""

from itertools import pairwise

from meshwright.ir.program.program import Action
from meshwright.ir.schedules import ActionList, Shape, decode, stage_groups, with_transfers, work_lists
from meshwright.ir.schedules.written import computing, shared_work


def test_written_lists_are_those_with_transfers() -> None:
    for name, virtual in [("1f1b", 1), ("interleaved", 2), ("zbv", 2)]:
        shape = Shape(stage_groups(name, 2, virtual), 4)
        work = work_lists(name, shape)
        group = shape.group_of()
        pairs = frozenset(pair for pair in pairwise(range(shape.depth)) if group[pair[0]] != group[pair[1]])
        lists = tuple(ActionList(work, index, pairs, pairs) for index in range(2))
        expected = tuple((*one, Action("sync"), Action("step")) for one in with_transfers(decode(work), pairs, pairs))
        assert lists == expected
        assert expected == lists
        assert tuple(map(len, lists)) == tuple(map(len, expected))
        assert lists[0][-2:] == expected[0][-2:]
        assert hash(lists) == hash(expected)
        assert shared_work(lists) is work
        kinds = ["".join(one.kind for one in actions if one.kind in "FBIW") for actions in expected]
        assert [computing(one) for one in lists] == [computing(one) for one in expected] == kinds


def test_lists_of_several_works_share_none() -> None:
    shape = Shape(stage_groups("1f1b", 2, 1), 4)
    one, other = (work_lists(name, shape) for name in ("1f1b", "gpipe"))
    none: frozenset[tuple[int, int]] = frozenset()
    assert shared_work((ActionList(one, 0, none, none), ActionList(other, 1, none, none))) is None
    assert shared_work((ActionList(one, 1, none, none), ActionList(one, 0, none, none))) is None
    assert shared_work((ActionList(one, 0, none, none), (Action("F", 1, 0),))) is None
    assert shared_work((ActionList(one, 0, none, none),)) is None
