"""The simulator: closed forms of the papers, the longest path of a graph, and what must never happen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost_models.schedule import Seconds, Simulated, compiled, simulate
from meshwright.ir.errors import SecondsImpossible, WaitCircle
from meshwright.ir.program.program import Action
from meshwright.ir.schedules import SCHEDULES, Shape, encode, parse_action, stage_groups, work_lists
from tests.ir.schedules.lists import Actions, random_lists

TIGHT = 1e-9


def equal(
    depth: int, f: float, i: float, w: float, *, value: float = 0.0, gradient: float = 0.0, exposed: bool = False
) -> Seconds:
    """Stages alike, B = I + W."""
    return Seconds(
        forward_s=(f,) * depth,
        backward_s=(i + w,) * depth,
        input_s=(i,) * depth,
        weight_s=(w,) * depth,
        value_s=(value,) * (depth - 1),
        gradient_s=(gradient,) * (depth - 1),
        exposed=exposed,
    )


def run(name: str, groups: int, microbatches: int, seconds: Seconds) -> Simulated:
    shape = Shape(stage_groups(name, groups, seconds.depth // groups), microbatches)
    return simulate(compiled(work_lists(name, shape)), seconds)


def near(expected: float) -> float:
    return pytest.approx(expected, rel=TIGHT)  # type: ignore[no-any-return]


# Closed forms --------------------------------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 4), (2, 2), (2, 5), (3, 7), (4, 4), (4, 16), (7, 30), (8, 64), (16, 32)]
TIMES = [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (0.7, 0.9, 0.4)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("groups", "microbatches"), SIZES)
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_gpipe_and_1f1b(name: str, groups: int, microbatches: int, f: float, i: float, w: float) -> None:
    """(m + p - 1)(F + B): Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1."""
    found = run(name, groups, microbatches, equal(groups, f, i, w))
    assert found.makespan_s == near((microbatches + groups - 1) * (f + i + w))


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize(("groups", "rounds"), [(1, 1), (2, 1), (2, 4), (3, 2), (4, 4), (8, 3)])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_interleaved(virtual: int, groups: int, rounds: int, f: float, i: float, w: float) -> None:
    """m (F + B) and a bubble of (p - 1)(F + B) / v, with F and B of a whole group: the same, section 2.2.2."""
    found = run("interleaved", groups, rounds * groups, equal(groups * virtual, f / virtual, i / virtual, w / virtual))
    assert found.makespan_s == near((rounds * groups + (groups - 1) / virtual) * (f + i + w))


@pytest.mark.parametrize(("groups", "rounds"), [(1, 1), (2, 2), (3, 2), (4, 4), (8, 3), (16, 2)])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_zb_h1(groups: int, rounds: int, f: float, i: float, w: float) -> None:
    """A bubble of (p - 1)(F + I - W): Qi et al. 2024 (arXiv 2401.10241), table 2."""
    found = run("zb-h1", groups, rounds * groups, equal(groups, f, i, w))
    assert found.makespan_s == near(rounds * groups * (f + i + w) + (groups - 1) * (f + i - w))


@pytest.mark.parametrize(("groups", "rounds"), [(1, 2), (2, 2), (3, 2), (4, 4), (8, 3), (16, 2)])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_zb_h2(groups: int, rounds: int, f: float, i: float, w: float) -> None:
    """A bubble of (p - 1)(F + I - 2W) within every group's own span, which begins later from group to group: the same
    table. With the optimizer behind a barrier, the last group's F of (p - 1) stages before its start are added."""
    found = run("zb-h2", groups, rounds * groups, equal(groups, f, i, w))
    work = rounds * groups * (f + i + w)
    assert max(found.span_s) == near(work + (groups - 1) * (f + i - 2 * w))
    if f == i == w:
        assert found.makespan_s == near(work + (groups - 1) * f)


@pytest.mark.parametrize(("groups", "rounds"), [(1, 2), (2, 2), (3, 2), (4, 4), (5, 3), (8, 3), (16, 2)])
def test_zbv(groups: int, rounds: int) -> None:
    """No bubble within any group's span at F = I = W: the same, section 6."""
    found = run("zbv", groups, rounds * groups, equal(2 * groups, 0.5, 0.5, 0.5))
    assert found.span_s == near_all(3.0 * rounds * groups, groups)
    assert found.begin_s == tuple(0.5 * group for group in range(groups))
    assert found.makespan_s == near(3.0 * rounds * groups + 0.5 * (groups - 1))


def near_all(expected: float, count: int) -> object:
    return pytest.approx((expected,) * count, rel=TIGHT)


@pytest.mark.parametrize("groups", [4, 8, 16])
def test_v_schedules_trade_memory_for_idle_time(groups: int) -> None:
    """At F = I = W the bubble is 2/3 of that of 1F1B (V-Min), and in the paper 1/2 (V-Half): Qi et al. 2024 (arXiv
    2405.15362), table 1, which leaves out constants. Our V-Half drains a little slower: 13/24."""
    one = equal(2 * groups, 0.5, 0.5, 0.5)
    bubble = {name: run(name, groups, 6 * groups, one).makespan_s - 18.0 * groups for name in ("v-half", "v-min")}
    whole = 3.0 * (groups - 1)
    assert whole / 2 <= bubble["v-half"] <= whole * 13 / 24 + 1
    assert whole * 0.6 <= bubble["v-min"] <= whole * 2 / 3 + 1


@given(seed=st.integers(0, 2**32), exposed=st.booleans())
def test_uneven_gpipe_is_two_flow_shops(seed: int, exposed: bool) -> None:
    """Every micro-batch visits stages and links as jobs of one kind visit machines: all machines once, and the slowest
    m - 1 times more; backward alike."""
    random = Random(seed)
    depth, m = random.randint(1, 6), random.randint(1, 8)
    seconds = replace(random_seconds(random, depth), exposed=exposed)
    found = run("gpipe", depth, m, seconds).makespan_s

    def flow(stages: tuple[float, ...], links: tuple[float, ...]) -> float:
        machines = (*stages, *links)
        if exposed:
            machines = tuple(one + link for one, link in zip(stages, (*links, 0.0), strict=True))
        return sum(machines) + (m - 1) * max(machines)

    forward = flow(seconds.forward_s, seconds.value_s)
    assert found == near(forward + flow(seconds.backward_s[::-1], seconds.gradient_s[::-1]))


# The longest path ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """Random lists with random seconds."""

    shape: Shape
    actions: Actions
    seconds: Seconds
    own: dict[Action, float] | None

    def run(self) -> Simulated:
        own = self.own
        timed = None if own is None else (lambda kind, stage, mb: own[Action(kind, stage, mb)])
        return simulate(compiled(encode(self.actions, self.shape)), self.seconds, timed)

    def of(self, action: Action) -> float:
        if self.own is not None:
            return self.own[action]
        table = {
            "F": self.seconds.forward_s,
            "B": self.seconds.backward_s,
            "I": self.seconds.input_s,
            "W": self.seconds.weight_s,
        }
        return table[action.kind][action.stage]


def random_seconds(random: Random, depth: int) -> Seconds:
    def some(count: int) -> tuple[float, ...]:
        return tuple(random.choice((0.0, random.random(), 3 * random.random())) for _ in range(count))

    return Seconds(
        forward_s=some(depth),
        backward_s=some(depth),
        input_s=some(depth),
        weight_s=some(depth),
        value_s=some(depth - 1),
        gradient_s=some(depth - 1),
        exposed=random.random() < 0.3,
    )


def case(seed: int) -> Case:
    random = Random(seed)
    shape, actions = random_lists(random)
    own = {action: random.random() for row in actions for action in row} if random.random() < 0.3 else None
    return Case(shape, actions, random_seconds(random, shape.depth), own)


def longest_path(case: Case) -> float:
    """The makespan as the heaviest path of a graph: actions, and transfers as nodes of their own."""
    graph = nx.DiGraph()
    owner = case.shape.group_of()
    backward = {(a.stage, a.microbatch): a for row in case.actions for a in row if a.kind in "BI"}
    graph.add_node("end", seconds=0.0)
    for group, row in enumerate(case.actions):
        before: object = None
        on_link: dict[int, object] = {}
        for action in row:
            graph.add_node(action, seconds=case.of(action))
            if before is not None:
                graph.add_edge(before, action)
            before = action
            step = {"F": 1, "B": -1, "I": -1, "W": 0}[action.kind]
            to = action.stage + step
            if not step or not 0 <= to < case.shape.depth:
                continue
            reader = Action("F", to, action.microbatch) if step == 1 else backward[to, action.microbatch]
            if owner[to] == group:
                graph.add_edge(action, reader)
                continue
            hop = ("hop", action)
            seconds = case.seconds.value_s[action.stage] if step == 1 else case.seconds.gradient_s[to]
            graph.add_node(hop, seconds=seconds)
            graph.add_edge(action, hop)
            graph.add_edge(hop, reader)
            if case.seconds.exposed:
                before = hop
            if owner[to] in on_link:
                graph.add_edge(on_link[owner[to]], hop)
            on_link[owner[to]] = hop
        if before is not None:
            graph.add_edge(before, "end")
    ends: dict[object, float] = {}
    for node in nx.topological_sort(graph):
        begin = max((ends[one] for one in graph.predecessors(node)), default=0.0)
        ends[node] = begin + graph.nodes[node]["seconds"]
    return ends["end"]


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32))
def test_any_lists_take_their_longest_path(seed: int) -> None:
    one = case(seed)
    assert one.run().makespan_s == near(longest_path(one))


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_more_seconds_never_make_a_step_shorter(seed: int, data: st.DataObject) -> None:
    one = replace(case(seed), own=None)
    before = one.run().makespan_s
    names = ["forward_s", "backward_s", "input_s", "weight_s", "value_s", "gradient_s"]
    name = data.draw(st.sampled_from(names))
    now: tuple[float, ...] = getattr(one.seconds, name)
    if now:
        at = data.draw(st.integers(0, len(now) - 1))
        longer = (*now[:at], now[at] + data.draw(st.floats(0, 5)), *now[at + 1 :])
        after = replace(one, seconds=replace(one.seconds, **{name: longer})).run().makespan_s
        assert after >= before - TIGHT


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_to_expose_transfers_never_helps_gpipe_and_1f1b(seed: int) -> None:
    random = Random(seed)
    groups, m = random.randint(1, 5), random.randint(1, 6)
    seconds = random_seconds(random, groups)
    for name in ("gpipe", "1f1b"):
        beside, exposed = (run(name, groups, m, replace(seconds, exposed=how)).makespan_s for how in (False, True))
        assert exposed >= beside - TIGHT


# What a step says of itself ------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_the_timeline_is_a_legal_run(seed: int) -> None:
    """In order, one at a time, after what is waited for; and the sums are those of the summary."""
    one = case(seed)
    found = one.run()
    events = list(found.timeline())
    assert len(events) == sum(map(len, one.actions))
    ends = {(kind, stage, mb): end for _, kind, stage, mb, _, end in events}
    for kinds in (("F",), ("B", "W")):
        last = {stage: start for _, kind, stage, _, start, _ in events if kind in kinds}
        assert found.last_start_s(kinds) == tuple(last.get(stage, 0.0) for stage in range(one.seconds.depth))
    for group, row in enumerate(one.actions):
        mine = [event for event in events if event[0] == group]
        assert [Action(*event[1:4]) for event in mine] == list(row)
        assert all(later[4] >= earlier[5] for earlier, later in pairwise(mine))
        assert found.begin_s[group] == mine[0][4]
        assert found.finish_s[group] == mine[-1][5]
        assert found.busy_s[group] == near(sum(map(one.of, row)))
        assert sum(end - start for *_, start, end in mine) == near(found.busy_s[group] + found.sending_s[group])
    for _, kind, stage, mb, start, _ in events:
        if kind == "F" and stage:
            assert start >= ends["F", stage - 1, mb] - TIGHT
        if kind in "BI" and stage + 1 < one.shape.depth:
            behind = ends.get(("B", stage + 1, mb), ends.get(("I", stage + 1, mb)))
            assert behind is not None
            assert start >= behind - TIGHT


def test_a_link_carries_one_transfer_at_a_time() -> None:
    """Three forwards of 1 s each, transfers of 2 s: the last arrives at 1 + 3 · 2. The way back is another link."""
    seconds = replace(equal(2, 1, 1, 1, value=2, gradient=2), forward_s=(1, 0), backward_s=(0, 0))
    assert run("gpipe", 2, 3, seconds).makespan_s == near(7 + 3 * 2)


def test_neighbours_within_a_group_hand_over_at_once() -> None:
    """The turn of the V, and stages of one group, cross no link."""
    for name in ("gpipe", "interleaved"):
        assert run(name, 1, 2, equal(3, 1, 1, 1, value=9, gradient=9)).makespan_s == near(2 * 3 * 3)
    found = run("zbv", 1, 2, equal(2, 1, 1, 1, value=9, gradient=9))
    assert found.makespan_s == near(12)
    assert found.busy_s == near_all(12, 1)


def test_exposed_transfers_cost_1f1b_two_per_micro_batch() -> None:
    """In the steady state a middle group sends a value and a gradient per micro-batch, receiving at the same time."""
    m, x = 512, 0.1
    found = run("1f1b", 4, m, equal(4, 1, 1, 1, value=x, gradient=x, exposed=True))
    assert found.sending_s == pytest.approx((m * x, 2 * m * x, 2 * m * x, m * x))
    assert found.makespan_s / m == pytest.approx(3 + 2 * x, rel=0.03)


@pytest.mark.parametrize("name", ["interleaved", "gpipe"])
def test_a_large_schedule_stays_within_bounds(name: str) -> None:
    """16 groups, 8 stages each, 512 micro-batches, uneven: between the slowest group's work, and all stages as slow as
    the slowest."""
    random, groups, depth, m = Random(0), 16, 128, 512
    seconds = replace(
        equal(depth, 1, 1, 1, value=0.1, gradient=0.1),
        forward_s=tuple(1 + random.random() for _ in range(depth)),
        backward_s=tuple(2 + random.random() for _ in range(depth)),
    )
    found = run(name, groups, m, seconds)
    one = sum(seconds.forward_s) + sum(seconds.backward_s) + sum(seconds.value_s) + sum(seconds.gradient_s)
    slowest = max(
        m * sum(seconds.forward_s[s] + seconds.backward_s[s] for s in range(group, depth, groups))
        for group in range(groups)
    )
    assert max(found.busy_s) == near(slowest)
    assert found.makespan_s >= max(slowest, one)
    beside = run(name, groups, m, replace(seconds, value_s=(0.0,) * (depth - 1), gradient_s=(0.0,) * (depth - 1)))
    longest = max(seconds.forward_s) + max(seconds.backward_s)
    assert slowest <= beside.makespan_s <= min(found.makespan_s, (8 * m + groups - 1) * longest)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_group_never_idles(name: str) -> None:
    depth = 2 if SCHEDULES[name].vee else 1
    found = run(name, 1, 6, equal(depth, 1.5, 1.25, 0.5))
    assert found.makespan_s == near(6 * depth * 3.25)
    assert found.span_s == found.finish_s == (found.makespan_s,)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_s": (1.0,)}, "1 entries for 2 stages"),
        ({"value_s": ()}, "give 1"),
        ({"forward_s": (1.0, -1.0)}, "none negative"),
        ({"input_s": (1.0, float("nan"))}, "finite"),
        ({"gradient_s": (float("inf"),)}, "finite"),
    ],
)
def test_seconds_that_mean_nothing_are_refused(change: dict[str, tuple[float, ...]], words: str) -> None:
    with pytest.raises(SecondsImpossible, match=words):
        replace(equal(2, 1, 1, 1), **change)  # type: ignore[arg-type]


def test_seconds_of_other_stages_are_refused() -> None:
    made = compiled(work_lists("1f1b", Shape(((0,), (1,)), 2)))
    with pytest.raises(SecondsImpossible, match="3 stages"):
        simulate(made, equal(3, 1, 1, 1))
    with pytest.raises(SecondsImpossible, match="takes -1 s"):
        simulate(made, equal(2, 1, 1, 1), lambda kind, stage, mb: -1)


def test_lists_that_wait_for_ever_are_refused() -> None:
    lists = [[parse_action(text) for text in row.split()] for row in ("0F0 0F1 0B1 0B0", "1B0 1F0 1F1 1B1")]
    with pytest.raises(WaitCircle):
        compiled(encode(lists, Shape(((0,), (1,)), 2)))


def test_groups_begin_when_they_are_released() -> None:
    """All held up alike, the step is later by that; a group that waits for others anyway holds up nobody."""
    made = compiled(work_lists("1f1b", Shape(((0,), (1,), (2,)), 4)))
    each = equal(3, 1.0, 1.0, 1.0)
    plain = simulate(made, each)
    assert simulate(made, each, release_s=(0.5,) * 3).makespan_s == plain.makespan_s + 0.5
    late = simulate(made, each, release_s=(0.0, 1.0, 2.0))
    assert (late.makespan_s, late.begin_s) == (plain.makespan_s, (0.0, 1.0, 2.0))
    assert simulate(made, each, release_s=(0.0, 0.0, 3.0)).begin_s == (0.0, 1.0, 3.0)


def test_what_runs_and_begins_last_counts_from_the_release_on() -> None:
    """Two stages of a second each way; the second group is held up for five. Its first value comes at 1, and waits."""
    made = compiled(work_lists("gpipe", Shape(((0,), (1,)), 2)))
    found = simulate(made, equal(2, 1.0, 0.5, 0.5), release_s=(0.5, 5.0))
    assert sorted(found.timeline()) == [
        (0, "B", 0, 0, 8.0, 9.0),
        (0, "B", 0, 1, 9.0, 10.0),
        (0, "F", 0, 0, 0.5, 1.5),
        (0, "F", 0, 1, 1.5, 2.5),
        (1, "B", 1, 0, 7.0, 8.0),
        (1, "B", 1, 1, 8.0, 9.0),
        (1, "F", 1, 0, 5.0, 6.0),
        (1, "F", 1, 1, 6.0, 7.0),
    ]
    assert found.last_start_s(("F",)) == (1.5, 6.0)
    assert found.last_start_s(("B", "W")) == (9.0, 8.0)
    assert (found.span_s, found.busy_s, found.sending_s) == ((9.5, 4.0), (4.0, 4.0), (0.0, 0.0))


def test_exposed_transfers_come_on_top_of_seconds_of_ones_own() -> None:
    """One micro-batch: 2 and 3 forward, 5 and 7 backward, with 10 and 100 between."""
    own = {("F", 0): 2.0, ("F", 1): 3.0, ("B", 1): 5.0, ("B", 0): 7.0}
    made = compiled(work_lists("gpipe", Shape(((0,), (1,)), 1)))
    for exposed, finish, sending in ((True, (127.0, 120.0), (10.0, 100.0)), (False, (127.0, 20.0), (0.0, 0.0))):
        seconds = equal(2, 1.0, 1.0, 1.0, value=10.0, gradient=100.0, exposed=exposed)
        found = simulate(made, seconds, lambda kind, stage, _: own[kind, stage])
        assert (found.makespan_s, found.finish_s, found.begin_s) == (127.0, finish, (0.0, 12.0))
        assert (found.busy_s, found.sending_s) == ((9.0, 8.0), sending)
    for wrong in (float("inf"), float("nan"), -0.5):
        with pytest.raises(SecondsImpossible, match="none negative"):
            simulate(made, equal(2, 1.0, 1.0, 1.0), lambda kind, stage, _, given=wrong: given)
    nothing = simulate(made, equal(2, 1.0, 1.0, 1.0), lambda kind, stage, _: 0.0)
    assert (nothing.makespan_s, nothing.begin_s) == (0.0, (0.0, 0.0))
