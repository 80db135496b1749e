"""What groups of ranks hold, added up by hand: a real pipeline whose body programs are given round summaries.

An embedding, four blocks (one body program), and a head that holds the embedding's table again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.parts import Pool, PoolLink
from meshwright.cost_models.hardware.quantity import given as stated
from meshwright.cost_models.memory import peak as memory
from meshwright.cost_models.memory.body import BodyMemory
from meshwright.cost_models.memory.fullest import Fullest, Mix
from meshwright.cost_models.memory.peak import Held, MemoryConstants, held, holdings, stepped_on_host, tensors_held
from meshwright.cost_models.prediction import HELD
from meshwright.ir.errors import WorkloadImpossible
from meshwright.ir.names import Degrees
from meshwright.ir.program.program import Program
from meshwright.ir.sharding.rank_classes import RankClass
from tests.cost_models.programs import DENSE, SEQ, program
from tests.cost_models.test_memory import cluster
from tests.cost_models.test_stage_memory_by_hand import made

TIED = "embedding.weight"
EMBED = made(
    {"parameters": 1000.0, "optimizer": 2000.0, "gradients": 100.0, "pooled_gradients": 10.0, "host_state": 5.0}
    | {"unit": 11.0, "message": 6.0, "pooled": True, "left_behind": 20.0, "stepped": 3.0, "stepping": 7.0}
    | {"buckets": 1.0, "slots": ((TIED, 400.0, 40.0, 800.0),)},
    kept=Mix(60.0),
)
BLOCK = made(
    {"parameters": 3000.0, "optimizer": 500.0, "gradients": 200.0, "pooled_gradients": 30.0, "host_state": 6.0}
    | {"unit": 13.0, "unit_kept": True, "message": 26.0, "pooled": True, "left_behind": 50.0, "stepped": 4.0}
    | {"stepping": 9.0, "buckets": 2.0, "products": (((8, 8), 77.0),)},
    kept=Mix(70.0),
    inputs=Fullest(Mix()),
)
HEAD = made(
    {"parameters": 5000.0, "optimizer": 3000.0, "gradients": 300.0, "host_state": 7.0, "unit": 17.0, "stepped": 1.0}
    | {"stepping": 8.0, "buckets": 1000.0, "products": (((8, 8), 77.0), ((9, 9), 33.0))}
    | {"slots": (("weight", 1.0, 1.0, 1.0), (TIED, 400.0, 40.0, 800.0), ("bias", 9.0, 9.0, 9.0))},
    kept=Mix(80.0),
    backward=Fullest(Mix(transient=900.0, logits=40.0)),
    inputs=Fullest(Mix(transient=5.0)),
)
BODIES = {"embed": EMBED, "Block": BLOCK, "head": HEAD}
PROFILE = MemoryConstants(
    communicator_bytes=1e3,
    context_bytes=2e4,
    workspace_bytes=500.0,
    block_bytes=64.0,
    fragments_share=0.5,
    margin_share=0.25,
)
CAPACITY = 81_559 * 2**20
"""What the driver of an H100 reports."""
BATCH = 2 * SEQ * 8
"""Tokens and targets of a micro-batch."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has body programs hold what is said, and pipelines pass nothing."""
    own = dict(BODIES)
    monkeypatch.setattr(memory, "body_memory", lambda body, *_, **__: own[body.name])
    monkeypatch.setattr(memory, "stage_buffers", lambda *_: None)
    return own


def single(**names: Any) -> Program:
    return program(DENSE, Degrees(**{"microbatches": 2, "schedule": "1f1b", **names}))


def joined(*names: str) -> Cluster:
    """A device of each kind, in a pool of its own."""
    pools = tuple(Pool(name=f"p{at}", hosts=1, device=device(name), gpus_per_host=1) for at, name in enumerate(names))
    link = PoolLink(between=("p0", "p1"), kind="roce", rate=stated(100, "Gb/s"), latency=stated(1e-5, "s"))
    return Cluster(pools=pools, links=(link,))


def parts(one: Held) -> dict[str, float]:
    return {name: size for name, size in one.parts if size}


def finished(sizes: Mapping[str, float], *, idle: float, communicators: int) -> dict[str, float]:
    """With what the runtime takes: fragments of half of all that its allocator has, workspaces among it."""
    whole = {**sizes, "transient": sizes.get("transient", 0.0) + 500, "idle": idle}
    total = sum(whole.values())
    return {
        name: size
        for name, size in (
            *whole.items(),
            ("communicators", 1e3 * communicators),
            ("context", 2e4),
            ("rounding", total / 2 + 64),
        )
        if size
    }


STATE = {
    "parameters": 1000 + 4 * 3000 + 5000 - 400,
    "optimizer": 2000 + 4 * 500 + 3000 - 800,
    "activations": 2 * BATCH,
}
BUCKETS = 1 + 4 * 2 + 1000 - 40
"""What DDP sums in, the table once."""
GRADIENTS = 100 + 4 * 200 + 300 - 40
PLACEHOLDERS = 77 + 33
"""Shapes alike share one."""
POOLED = 10 + 4 * 30
MESSAGES = 26 + 26
"""Of a block, and of the one before it."""


def test_the_fullest_instant_is_a_backward_pass(given: Any) -> None:
    """Of the head, behind what the embedding and four blocks keep; their units stay."""
    (one,) = held(single(), cluster(1), PROFILE)
    assert one.instant == "loss"
    assert parts(one) == pytest.approx(
        finished(
            STATE
            | {
                "activations": 2 * BATCH + 60 + 4 * 70,
                "gradients": BUCKETS + PLACEHOLDERS + GRADIENTS,
                "transient": 900,
                "gathered": 17 + 4 * 13,
                "logits": 40,
            },
            idle=MESSAGES,
            communicators=1,
        )
    )
    assert one.peak_bytes == pytest.approx(sum(size for _, size in one.parts))
    assert tuple(name for name, _ in one.parts) == HELD
    assert (one.device_bytes, one.margin_bytes, one.host_bytes) == (CAPACITY, CAPACITY / 4, 5 + 4 * 6 + 7)


def test_the_fullest_instant_may_be_the_optimizers(given: Any) -> None:
    """Its gradients, less those that went when their sums were scattered; what it makes of one parameter at a time."""
    given["Block"] = replace(BLOCK, stepped=2000.0)
    (one,) = held(single(), cluster(1), PROFILE)
    assert one.instant == "optimizer"
    assert parts(one) == pytest.approx(
        finished(
            STATE
            | {
                "gradients": BUCKETS + PLACEHOLDERS + GRADIENTS - 20 - 4 * 50,
                "transient": 3 + 4 * 2000 + 1 + 9,
            },
            idle=MESSAGES,
            communicators=1,
        )
    )


def test_a_table_in_a_unit_of_its_own_is_held_there_too(given: Any) -> None:
    """Its shards are there twice; the optimizer's state is not."""
    given["head"] = replace(HEAD, units=frozenset([TIED]))
    found = parts(held(single(), cluster(1), PROFILE)[0])
    assert found["parameters"] == STATE["parameters"] + 400
    assert found["optimizer"] == STATE["optimizer"]
    assert found["gradients"] == BUCKETS + PLACEHOLDERS + GRADIENTS + 40 + 40


def test_ranks_that_cut_a_parameter_sum_in_place(given: Any) -> None:
    given["Block"] = replace(BLOCK, cut=True)
    found = parts(held(single(), cluster(1), PROFILE)[0])
    assert found["gradients"] == PLACEHOLDERS + GRADIENTS
    given["Block"] = replace(BLOCK, buckets=0.0)
    given["head"] = replace(HEAD, buckets=0.0)
    assert parts(held(single(), cluster(1), PROFILE)[0])["gradients"] == PLACEHOLDERS + GRADIENTS


def test_what_waits_on_the_host_is_there_for_every_micro_batch_in_flight(given: Any) -> None:
    given["embed"] = replace(EMBED, passes=replace(EMBED.passes, offloaded=40.0))
    (one,) = held(single(), cluster(1), PROFILE)
    assert one.host_bytes == 36 + 40
    first, second = held(single(pp=2, microbatches=4), cluster(2), PROFILE)
    assert (first.host_bytes, second.host_bytes) == (5 + 2 * 6 + 2 * 40, 2 * 6 + 7)
    assert stepped_on_host(single(pp=2)) == {0: 17, 1: 19}


def test_two_groups_of_a_pipeline(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's backward pass has another micro-batch in flight; messages lie beside."""
    passed = SimpleNamespace(
        always=5000.0,
        most=7000.0,
        beside=lambda state, own: 6000.0 + own + sum(state.live) + 10 * (state.kind == "B"),
    )
    monkeypatch.setattr(memory, "stage_buffers", lambda *_: passed)
    given["Block"] = replace(
        BLOCK, passes=replace(BLOCK.passes, backward=Fullest(Mix(transient=800.0))), unit_kept=False
    )
    first, second = held(single(pp=2, microbatches=4), cluster(2), PROFILE)
    # Kept twice, but for the last block's; the unit of a block, and behind it that of the block before.
    kept = 60 + 2 * 70
    assert first.instant == "backward"
    assert parts(first) == pytest.approx(
        finished(
            {
                "parameters": 1000 + 2 * 3000,
                "optimizer": 2000 + 2 * 500,
                "activations": 4 * BATCH + kept + 60 + 70 + 6011,
                "gradients": 77 + 100 + 2 * 200,
                "transient": 800,
                "gathered": 13 + 26,
            },
            idle=(10 + 60 + MESSAGES) - (10 + 60 + 26),
            communicators=2,
        )
    )
    assert parts(second)["communicators"] == 2e3
    assert parts(second)["parameters"] == 2 * 3000 + 5000
    assert parts(second)["gradients"] == 77 + 33 + 2 * 200 + 300


def test_what_the_order_of_work_decides(given: Any) -> None:
    """Behind all else that is always there: state, units that stay, gradients, messages, a workspace, blocks."""
    (one,) = holdings(single(), cluster(1), PROFILE)
    runtime = 64 + 2e4 + 1e3
    always = sum(STATE.values()) + 4 * 13 + BUCKETS + GRADIENTS + PLACEHOLDERS + 500 + MESSAGES
    assert one.room_bytes == pytest.approx((CAPACITY * 0.75 - runtime) / 1.5 - always, rel=0, abs=0.01)
    assert one.kept_bytes == one.waiting_bytes == (60 + 4 * 70 + 80,)
    backward = 60 + 4 * 70 + 900 + 40 + 17
    # A forward pass of the head, whose unit comes while the message of the last block is there.
    assert one.working_bytes == ((60 + 4 * 70 + 17 + 26, backward, backward, backward),)


def test_the_order_of_work_beside_messages(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = SimpleNamespace(always=5000.0, most=7000.0, beside=lambda state, own: 6000.0)
    monkeypatch.setattr(memory, "stage_buffers", lambda *_: passed)
    first, second = holdings(single(pp=2, microbatches=4), cluster(2), PROFILE)
    state = 2 * 3000 + 5000 + 2 * 500 + 3000 + 4 * BATCH + 2 * 13
    always = state + 2 * 200 + 300 + 77 + 33 + 500 + MESSAGES + 7000
    always += (2 * 200 + 300) * 2 / 4  # gradients in two bytes of four, which linger where those of weights come apart
    assert second.room_bytes == pytest.approx((CAPACITY * 0.75 - 64 - 2e4 - 2e3) / 1.5 - always, rel=0, abs=0.01)
    assert second.kept_bytes == (2 * 70 + 80,)
    # Gradients of inputs: all that is kept stays, with the head's unit; of weights: what waits.
    (working,) = second.working_bytes
    assert working == (2 * 70 + 17 + 26, 2 * 70 + 900 + 40 + 17, 2 * 70 + 5 + 17, 2 * 70 + 80)
    assert first.kept_bytes == (60 + 2 * 70,)


def test_the_order_of_work_where_units_cast_what_ranks_hold(given: Any) -> None:
    """Two blocks' units and the head's stay from a backward pass to the next forward pass: 43 bytes, all of them there
    when another backward pass comes first; behind it each forward pass finds those after it."""
    for name, one in BODIES.items():
        given[name] = replace(one, message=0.0, unit_kept=False)
    _, second = holdings(single(pp=2, microbatches=4), cluster(2), PROFILE)
    state = 2 * 3000 + 5000 + 2 * 500 + 3000 + 4 * BATCH
    lingering = (2 * 200 + 300) * 2 / 4  # in two bytes of four
    always = state + 2 * 200 + 300 + 77 + 33 + 500 + 43 + lingering
    assert second.room_bytes == pytest.approx((CAPACITY * 0.75 - 64 - 2e4 - 2e3) / 1.5 - always, rel=0, abs=0.01)
    (working,) = second.working_bytes
    # While a block makes gradients of inputs, what the other two calls keep is there, and its unit.
    assert working == (2 * 70 + 17, 2 * 70 + 900 + 40 + 43, 70 + 80 + 13, 2 * 70 + 80)


def test_sums_behind_the_last_backward_pass_count_once_a_step(given: Any) -> None:
    """Of two micro-batches the last one's: 5,000 bytes that set out, in a buffer and in what is summed."""
    given["head"] = replace(HEAD, travelling_last=5000.0)
    found = parts(held(single(), cluster(1), PROFILE)[0])
    assert found["transient"] == 5000 + 500
    assert "logits" not in found
    only = parts(held(single(microbatches=1), cluster(1), PROFILE)[0])
    assert only["transient"] == 5000 + 500


def test_tensors_alone_have_no_limit_and_no_runtime(given: Any) -> None:
    found = tensors_held(single(pp=2, microbatches=4))
    assert set(found) == {0, 1}
    for one in found.values():
        assert one.device_bytes == float("inf")
        told = dict(one.parts)
        assert told["communicators"] == told["context"] == told["idle"] == told["rounding"] == 0
        assert one.peak_bytes == sum(told.values())
    assert dict(found[1].parts)["transient"] == 900


def test_the_smallest_device_of_a_group_counts(given: Any) -> None:
    assert [one.device_bytes for one in held(single(pp=2), cluster(2, "A100-40G"), PROFILE)] == [
        held(single(), cluster(1, "A100-40G"), PROFILE)[0].device_bytes
    ] * 2


@pytest.mark.parametrize(
    "change",
    [
        {name: -1.0}
        for name in ("communicator_bytes", "context_bytes", "workspace_bytes", "block_bytes", "fragments_share")
    ]
    + [{"margin_share": -0.1}, {"margin_share": 1.0}],
)
def test_constants_are_sizes_and_shares(change: dict[str, float]) -> None:
    assert replace(PROFILE, margin_share=0.0, fragments_share=0.0, block_bytes=0.0)
    with pytest.raises(WorkloadImpossible, match="negative size or no room"):
        replace(PROFILE, **change)


def test_gradients_of_weights_may_come_apart_whatever_a_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of work are searched with actions that the program has not: its summaries must know of them."""
    asked: list[tuple[str, bool, bool]] = []

    def told(body: Any, _: Any, repeated: bool, *, apart: bool) -> BodyMemory:
        asked.append((body.name, repeated, apart))
        return BODIES[body.name]

    monkeypatch.setattr(memory, "body_memory", told)
    monkeypatch.setattr(memory, "stage_buffers", lambda *_: None)
    held(single(), cluster(1), PROFILE)
    assert sorted(asked) == [("Block", True, False), ("embed", False, False), ("head", False, False)]
    asked.clear()
    holdings(single(), cluster(1), PROFILE)
    assert sorted(asked) == [("Block", True, True), ("embed", False, True), ("head", False, True)]
    asked.clear()
    held(single(pp=2, schedule="zb-h1"), cluster(2), PROFILE)
    assert {apart for _, _, apart in asked} == {True}


def test_the_last_backward_pass_of_one_of_two_stages(given: Any) -> None:
    """Nothing else is in flight when a block of either stage sums what was added up: in the first group the fullest is
    that of the first stage, behind what the embedding keeps."""
    for name, one in BODIES.items():
        given[name] = replace(one, unit_kept=False, message=0.0)
    given["Block"] = replace(given["Block"], travelling_last=5000.0)
    degrees = Degrees(pp=2, vp=2, schedule="interleaved", microbatches=2)
    first, _, _, second = held(program(DENSE, degrees, stack="megatron"), cluster(2), PROFILE)
    assert (first.instant, second.instant) == ("backward", "backward")
    state = {"parameters": 1000 + 2 * 3000, "optimizer": 2000 + 2 * 500, "activations": 2 * BATCH + 60}
    gradients = 100 + 2 * 200 + 77
    assert parts(first) == pytest.approx(
        finished(state | {"gradients": gradients, "transient": 5000}, idle=0, communicators=2)
    )
    state = {"parameters": 2 * 3000 + 5000, "optimizer": 2 * 500 + 3000, "activations": 2 * BATCH}
    gradients = 2 * 200 + 300 + 77 + 33
    assert parts(second) == pytest.approx(
        finished(state | {"gradients": gradients, "transient": 5000}, idle=0, communicators=2)
    )


def test_units_of_two_stages_cast_a_table_each(given: Any) -> None:
    """In a V the first and the last stage of the first group hold it; the optimizer steps it once all the same."""
    degrees = Degrees(pp=2, vp=2, schedule="zbv", microbatches=4)
    state = {"parameters": 1000 + 2 * 3000 + 5000, "optimizer": 2000 + 2 * 500 + 3000}
    for stack, twice in (("torch", 0), ("megatron", 400)):
        first, *_, last = held(program(DENSE, degrees, stack=stack), cluster(2), PROFILE)
        assert first == last
        assert parts(first)["parameters"] == state["parameters"] - twice
        assert parts(first)["optimizer"] == state["optimizer"] - 800


def test_a_tie_is_of_the_longest_path_that_ends_like_it(given: Any) -> None:
    """Parameters of a call are named from its own module on."""
    for slots in ((("weight", 400.0, 40.0, 800.0),), (("g.weight", 1.0, 1.0, 1.0), ("weight", 400.0, 40.0, 800.0))):
        given["head"] = replace(HEAD, slots=slots)
        found = parts(held(single(), cluster(1), PROFILE)[0])
        assert (found["parameters"], found["optimizer"]) == (STATE["parameters"], STATE["optimizer"])


def test_a_communicator_for_everybody_for_each_axis_and_for_a_pipeline(given: Any) -> None:
    for names, communicators in (({}, 1), ({"dp": 2}, 2), ({"dp": 2, "tp": 2}, 3), ({"dp": 2, "tp": 2, "pp": 2}, 4)):
        (one, *_) = held(single(**names), cluster(2 ** len(names)), PROFILE)
        assert parts(one)["communicators"] == 1e3 * communicators


def test_gradients_of_weights_keep_nothing_on_the_host(given: Any) -> None:
    """Two micro-batches are in flight in the first stage of two, and one whose gradients of weights are due is not."""
    given["embed"] = replace(EMBED, passes=replace(EMBED.passes, offloaded=40.0))
    first, second = held(single(pp=2, microbatches=4, schedule="zb-h1"), cluster(2), PROFILE)
    assert (first.host_bytes, second.host_bytes) == (5 + 2 * 6 + 2 * 40, 2 * 6 + 7)


def test_ranks_that_are_not_alike(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is on a device of 40 GB, the second on one of 80, and keeps more: of each the worse counts for the
    order of work, and for a stage that which has less room."""
    seen: list[Any] = []
    fuller = replace(BLOCK, parameters=9000.0, passes=replace(BLOCK.passes, kept=Mix(90.0)))
    leaner = replace(HEAD, passes=replace(HEAD.passes, kept=Mix(10.0), backward=Fullest(Mix(transient=300.0))))
    own: dict[Any, dict[str, BodyMemory]] = {(): BODIES, (("dp", 1),): {**BODIES, "Block": fuller, "head": leaner}}
    alike = (RankClass((0,)), RankClass((1,), (("dp", 1),)))

    def seen_by(one: Program, at: Any) -> Program:
        seen.append(at)
        return one

    monkeypatch.setattr(memory, "rank_classes", lambda *_: alike)
    monkeypatch.setattr(memory, "seen_by", seen_by)
    monkeypatch.setattr(memory, "body_memory", lambda body, *_, **__: own[seen[-1]][body.name])
    # Whole stages of torch make all gradients at once, whatever is asked of them.
    backward = 60 + 4 * 70 + 900 + 40 + 17
    working = (60 + 4 * 90 + 17 + 26, backward, backward, backward)
    always = sum(STATE.values()) + 4 * 13 + BUCKETS + GRADIENTS + PLACEHOLDERS + 500 + MESSAGES
    for names, least in ((("A100-40G", "H100-80G"), 0), (("H100-80G", "H100-80G"), 1), (("H100-80G", "A100-40G"), 1)):
        where = joined(*names)
        sizes = [(where.device(rank).driver_memory or where.device(rank).memory).value for rank in (0, 1)]
        (told,) = held(single(dp=2), where, PROFILE)
        both = [one for _, one in memory.held_by_class(single(dp=2), where, PROFILE)[0]]
        assert [one.device_bytes for one in both] == sizes
        assert both[1].peak_bytes - both[0].peak_bytes > 0
        assert told == both[least]
        (order,) = holdings(single(dp=2), where, PROFILE)
        room = min((size * 0.75 - 64 - 2e4 - 2e3) / 1.5 - more for size, more in zip(sizes, (0, 24_000), strict=True))
        assert order.room_bytes == pytest.approx(room - always, rel=0, abs=0.01)
        assert order.kept_bytes == order.waiting_bytes == (60 + 4 * 90 + 10,)
        assert order.working_bytes == (working,)


def test_ranks_alike_on_unlike_devices_have_the_smallest_ones_room(given: Any) -> None:
    small = min(one.value for one in (device("A100-40G").memory, device("A100-40G").driver_memory) if one)
    for names in (("A100-40G", "H100-80G"), ("H100-80G", "A100-40G")):
        (told,) = held(single(dp=2), joined(*names), PROFILE)
        assert told.device_bytes == small
