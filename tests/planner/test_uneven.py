"""Copies on unlike devices take unequal shares: priced as each kind of rank has it, and found where that is faster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.torch_.capabilities import TORCH_CUDA
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.prediction import Held
from meshwright.ir.decisions.sharding import ZERO
from meshwright.ir.errors import LayoutNotExpressible
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.shares import batch_shares, shares_of, state_shares, weights_of
from meshwright.planner.plan.words import in_words
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import uneven as module
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.uneven import Uneven, by_speed, sizes_of
from meshwright.planner.search.search import Found
from tests.planner.refining import LLAMA, Case, example, hosts
from tests.planner.told import config, price

POOL = """
[[pool]]
name = "{name}"
hosts = 1
gpu = "{gpu}"
gpus_per_host = {count}
nics = [{{ kind = "infiniband", gbps = 200, count = 4 }}]
"""
LINK = """
[[link]]
between = ["{one}", "{other}"]
kind = "infiniband"
gbps = 800
latency_us = 5
"""


def pools(one: str, other: str, count: int = 4) -> Cluster:
    """A host of each of two kinds, on one fabric."""
    held = "".join(POOL.format(name=gpu.lower(), gpu=gpu, count=count) for gpu in (one, other))
    return read(held + LINK.format(one=one.lower(), other=other.lower()))


# Shares --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 7))
def test_shares_by_speed_are_done_first(copies_s: list[int], more: int) -> None:
    """No other way to give out the sequences has its slowest copy done before."""
    batch = len(copies_s) + more
    found = by_speed(batch, copies_s)
    assert sum(found) == batch
    every = (sizes for sizes in product(range(1, batch + 1), repeat=len(copies_s)) if sum(sizes) == batch)
    assert _done(found, copies_s) == min(_done(sizes, copies_s) for sizes in every)


def _done(sizes: tuple[int, ...], copies_s: list[int]) -> int:
    return max(size * seconds for size, seconds in zip(sizes, copies_s, strict=True))


# Prices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pins", ["mbs=4,zero=1", "mbs=4,zero=3", "tp=2,mbs=4,zero=2", "mbs=4,recompute=full,zero=1"])
def test_equal_sizes_cost_what_equal_shares_do(small: str, pins: str) -> None:
    case = Case(small, pools("H100", "A100-80G"))
    fold, plan = case.plan(pins)
    copies = case.config(pins).dp
    assert case.price(fold, batch_shares(plan, fold, (4,) * copies)) == case.price(fold, plan)


def test_the_busiest_rank_of_like_devices_has_the_price_of_its_share(small: str) -> None:
    """Whichever it is: seconds and memory of a stage are those of equal shares as large as the largest."""
    case = Case(small, hosts(1))
    fold, plan = case.plan("mbs=4")
    busiest = case.price(*case.plan("mbs=8")).stages[0]
    for sizes in ((8, 4, 2, 2), (2, 2, 4, 8)):
        found = case.price(fold, batch_shares(plan, fold, sizes)).stages[0]
        assert found.forward_s == pytest.approx(busiest.forward_s, rel=1e-6)
        assert found.backward_s == pytest.approx(busiest.backward_s, rel=1e-6)
        assert found.memory.peak_bytes == pytest.approx(busiest.memory.peak_bytes, rel=1e-3)


def test_the_slowest_kind_of_rank_is_the_pace(small: str) -> None:
    """What fast devices take from slow ones makes all faster, until the fast ones are the slowest."""
    case = Case(small, pools("H100", "A100-80G"))
    fold, plan = case.plan("mbs=4,zero=1")
    plans = [batch_shares(plan, fold, (fast,) * 4 + (8 - fast,) * 4) for fast in (4, 5, 6, 7)]
    paces_s = [one.forward_s + one.backward_s for made in plans for one in case.price(fold, made).stages]
    assert paces_s[0] > paces_s[1] > paces_s[2] < paces_s[3]
    assert paces_s[0] > 1.3 * paces_s[2]


def test_shards_of_sizes_of_their_own_travel_padded(small: str) -> None:
    """Gathers of parameters take longer, and a rank holds what its part is."""
    case = Case(small, pools("H100", "A100-80G"))
    fold, plan = case.plan("mbs=4,zero=3")
    uneven = state_shares(plan, fold, (3,) * 4 + (1,) * 4)
    assert weights_of(uneven) != ()
    before, after = case.price(fold, plan), case.price(fold, uneven)
    assert after.step_time_s > before.step_time_s
    assert dict(after.stages[0].memory.parts)["optimizer"] != dict(before.stages[0].memory.parts)["optimizer"]


# Search --------------------------------------------------------------------------------------------------------------


def unevenly(bench: Bench | Any, below_s: float = inf) -> Candidate | None:
    """What becomes of what was priced, beside a plan that takes so long."""
    plan = Candidate((), price(below_s, 0.0 if below_s < inf else 1.0))  # type: ignore[arg-type]
    return next(Uneven().neighbours(plan, bench), None) if Uneven().accepts(plan, bench) else None


def found_of(case: Case, pins: str, **changes: Any) -> Candidate | None:
    config = case.config(pins)
    return unevenly(case.bench(found={config: Found(config, price(1.0))}, **changes))


def test_two_generations_share_a_batch_by_speed() -> None:
    """Eight H100 beside eight A100: 1.3 times as fast as equal shares, and faster than with layers shared out."""
    case = Case(LLAMA, example("two_generations"), batch=256)
    config = case.config("zero=3,mbs=2,recompute=full")
    found = found_of(case, "zero=3,mbs=2,recompute=full")
    assert found is not None
    assert found.prediction.fits
    sizes = sizes_of(found.decisions, config.batch)
    assert sizes[0] > sizes[-1]
    assert case.setting.predict(config, case.batch).step_time_s >= 1.3 * found.prediction.step_time_s
    (words, *_) = in_words(config, shares_of(found.decisions))
    assert f"8 x {sizes[0]}, 8 x {sizes[-1]}" in words


def test_a_small_device_holds_less_of_the_state() -> None:
    """T4s of 16 GB beside A100s of 80: what does not fit in equal shards does in unequal ones."""
    case = Case(LLAMA, pools("A100-80G", "T4"), fp16=True)
    config = case.config("zero=3,mbs=4,recompute=full")
    assert not case.setting.predict(config, case.batch).fits
    found = found_of(case, "zero=3,mbs=4,recompute=full")
    assert found is not None
    assert found.prediction.fits
    weights = weights_of(found.decisions)
    assert weights[0] > 4 * weights[-1]
    assert sizes_of(found.decisions, 64)[0] > sizes_of(found.decisions, 64)[-1]


def test_copies_over_pipelines_take_unequal_shares(small: str) -> None:
    """Each copy, all its stages, on one kind of device."""
    case = Case(small, pools("H100", "A100-80G"))
    found = found_of(case, "pp=2,tp=2,mbs=4")
    assert found is not None
    kinds = [[case.cluster.device(rank).name for rank in stage.ranks] for stage in found.decisions.stages]
    assert kinds[0] == kinds[1] == ["H100-80G"] * 2 + ["A100-80G"] * 2
    assert sizes_of(found.decisions, 64)[0] > sizes_of(found.decisions, 64)[1]
    assert found.prediction.step_time_s < case.setting.predict(case.config("pp=2,tp=2,mbs=4"), case.batch).step_time_s


def test_only_unlike_devices_and_targets_that_can_have_them_get_them(small: str) -> None:
    like = Case(small, hosts(2))
    assert found_of(like, "mbs=4,zero=1") is None
    case = Case(small, pools("H100", "A100-80G"))
    lines = tuple(line for line in TORCH_CUDA.layouts if line.name != "shares")
    without = replace(TORCH_CUDA, layouts=lines)
    assert found_of(case, "mbs=4,zero=1", setting=replace(case.setting, target=without)) is None
    fold, plan = case.plan("mbs=4,zero=1")
    shared = batch_shares(plan, fold, (5,) * 4 + (3,) * 4)
    TORCH_CUDA.check(shared, fold)
    with pytest.raises(LayoutNotExpressible, match="layout shares"):
        without.check(shared, fold)
    space = SimpleNamespace(global_batch=case.batch, grants=lambda one: False)
    assert found_of(case, "mbs=4,zero=1", space=space) is None


# In numbers ----------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """A configuration in one order of ranks: about what it takes with shares by speed, and what comes of them."""

    shared_s: float
    result: Candidate | None
    asked: list[float] = field(default_factory=list)

    def answer(self, below_s: float) -> Candidate | None:
        self.asked.append(below_s)
        return self.result


def uneven(own: Config, step_s: float, lacks: float = 0.0) -> Candidate:
    return Candidate((2, 1), price(step_s, lacks), config=own)  # type: ignore[arg-type]


def found_among(
    monkeypatch: pytest.MonkeyPatch,
    cases: dict[Config, list[Told]],
    configs: list[Config],
    below_s: float = inf,
    grants: Any = lambda one: True,
    stop: Any = lambda: False,
) -> tuple[Candidate | None, list[Config]]:
    """The answer on two pools, and of which configurations cases were made, in order."""
    made: list[Config] = []

    def cases_of(own: Config, bench: Any) -> list[Told]:
        made.append(own)
        return cases.get(own, [])

    monkeypatch.setattr(module, "_cases", cases_of)
    setting: Any = SimpleNamespace(target=SimpleNamespace(layouts=(SimpleNamespace(name="shares"),)))
    found = {own: Found(own, price(1.0 + at)) for at, own in enumerate(configs)}
    search = SimpleNamespace(found=found, space=SimpleNamespace(grants=grants))
    bench = SimpleNamespace(search=search, setting=setting, stop=stop, global_batch=64, fold=lambda plan: None)
    bench.cluster = SimpleNamespace(pools=(1, 2))
    bench.candidate = lambda decisions, prediction, fold, config: Candidate(decisions, prediction, config=config)
    return unevenly(bench, below_s), made


def test_of_each_kind_the_quickest_and_of_that_every_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kinds at most, by what they would take with shares by speed; micro-batches as they are, half, twice and a
    quarter, of two sequences at least, where they divide the batch of 64."""
    own = [config(dp=4, mbs=4, tp=tp, microbatches=4) for tp in (1, 2, 3, 4)]
    slow = [config(dp=4, mbs=8), config(dp=1, mbs=4), config(dp=4, mbs=3, tp=9)]
    cases = {one: [Told(9.0, None), Told(5.0 - one.tp, uneven(one, 5.0 - one.tp))] for one in own}
    cases[slow[0]] = [Told(4.5, None)]
    found, made = found_among(monkeypatch, cases, [*own, *slow])
    assert found == cases[own[3]][1].result
    looked = [*own, slow[0], slow[2]]
    assert made[: len(looked)] == looked

    def sized(tp: int, *sizes: int) -> list[Config]:
        return [config(dp=4, mbs=mbs, tp=tp, microbatches=16 // mbs) for mbs in sizes]

    assert made[len(looked) :] == [*sized(4, 4, 2, 8), *sized(3, 4, 2, 8), *sized(2, 4, 2, 8)]
    odd = config(dp=4, mbs=6)
    _, made = found_among(monkeypatch, {odd: [Told(1.0, None)]}, [odd])
    assert made == [odd], "three and six do not divide the batch, twelve neither"
    small = config(dp=4, mbs=2)
    _, made = found_among(monkeypatch, {small: [Told(1.0, None)]}, [small])
    assert made == [small, *(config(dp=4, mbs=mbs, microbatches=16 // mbs) for mbs in (2, 4))]


@pytest.mark.parametrize(
    ("below_s", "first", "second", "expected", "asked"),
    [
        # An estimate may be a twentieth too high; what fits sets the pace for what comes after.
        (9.4, (10.0, 1.0, 0.0), (10.0, 2.0, 0.0), None, ([], [])),
        (9.6, (10.0, 8.0, 0.0), (9.0, 7.0, 0.0), 8.0, ([9.6], [])),
        (9.6, (10.0, 8.0, 0.0), (8.0, 7.0, 0.0), 7.0, ([9.6], [8.0])),
        (9.6, (10.0, 8.0, 1.0), (9.0, 7.0, 2.0), 8.0, ([9.6], [9.6])),
        (9.6, (10.0, 8.0, 1.0), (9.0, 9.0, 0.0), 9.0, ([9.6], [9.6])),
        (7.0, (7.0, 8.0, 0.0), (7.0, 9.0, 0.0), 8.0, ([7.0], [7.0])),
    ],
)
def test_what_may_be_better_is_tried(
    monkeypatch: pytest.MonkeyPatch, below_s: float, first: Any, second: Any, expected: float | None, asked: Any
) -> None:
    own = config(dp=32, mbs=2, microbatches=1)
    told = [Told(one[0], uneven(own, *one[1:])) for one in (first, second)]
    found, _ = found_among(monkeypatch, {own: told}, [own], below_s=below_s)
    assert (found and found.prediction.step_time_s) == expected
    assert tuple(one.asked for one in told) == asked


def test_only_what_is_granted_and_in_time_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    own = config(dp=4, mbs=4)
    cases = {own: [Told(1.0, uneven(own, 1.0))]}
    assert found_among(monkeypatch, cases, [own], grants=lambda one: one.mbs == 2)[1] == [
        own,
        config(dp=4, mbs=2, microbatches=8),
    ]
    assert found_among(monkeypatch, cases, [own], stop=lambda: True) == (None, [])


@pytest.fixture
def told_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions are the sequences of each copy."""
    monkeypatch.setattr(module, "sizes_of", lambda decisions, batch: decisions)


class Given(module._Case):
    """Copies whose speeds, and plans whose prices, are told: by the sequences of each copy."""

    def __init__(
        self, copies_s: tuple[float, ...], batch: int, told: dict[tuple[int, ...], Candidate] | None = None
    ) -> None:
        own: Any = SimpleNamespace(batch=batch)
        bench: Any = None
        self.copies_s, self.config, self.told, self.bench = copies_s, own, told, bench
        self.asked: list[tuple[int, ...]] = []

    def tried(self, sizes: tuple[int, ...]) -> Candidate | None:
        self.asked.append(sizes)
        if self.told is None:  # ever faster
            return replace(uneven(config(), 10.0 - 0.1 * len(self.asked), self.lacks), decisions=sizes)  # type: ignore[arg-type]
        found = self.told.get(sizes)
        return found and replace(found, decisions=sizes)  # type: ignore[arg-type]

    lacks = 0.0


def test_sequences_move_from_the_slowest_kind_of_copy(told_sizes: None) -> None:
    """From as many as there are on the other side, and from one to one; none is left without. Of plans that do not fit
    from any kind."""
    for copies_s, sizes, lacks, expected in (
        # paces of 4 and 6
        ((1, 1, 2, 2), (4, 4, 2, 3), 0.0, [(5, 5, 1, 2), (5, 4, 2, 2)]),
        ((1, 1, 2, 2), (4, 4, 2, 3), 1.0, [(5, 5, 1, 2), (5, 4, 2, 2), (3, 3, 3, 4), (4, 3, 3, 3)]),
        ((1, 1, 2, 2), (4, 4, 1, 3), 0.0, [(5, 4, 1, 2)]),
        ((1, 1, 2, 2), (4, 4, 1, 1), 0.0, [(3, 3, 2, 2), (4, 3, 2, 1)]),
        ((1, 1, 2, 2), (1, 1, 1, 1), 0.0, []),
        ((1, 2, 2), (4, 4, 3), 0.0, [(5, 4, 2)]),
        # three kinds, of which the second has a pace of 8
        ((1, 2, 3), (5, 4, 2), 0.0, [(5, 3, 3), (6, 3, 2)]),
    ):
        case = Given(copies_s, sum(sizes), {})
        best = replace(uneven(config(), 1.0, lacks), decisions=sizes)  # type: ignore[arg-type]
        assert list(case._moves(best)) == expected


def test_shares_by_speed_are_moved_as_long_as_that_helps(told_sizes: None) -> None:
    """Copies of 1 and 3 s: five and one of six. What is a twentieth above what is known is not moved."""
    told = {(5, 1): uneven(config(), 10.0), (4, 2): uneven(config(), 9.0), (3, 3): uneven(config(), 8.0)}
    for below_s, step_s, asked in (
        (9.4, 10.0, [(5, 1)]),
        (9.5, 9.0, [(5, 1), (4, 2), (5, 1)]),
        (99.0, 9.0, [(5, 1), (4, 2), (5, 1)]),
    ):
        case = Given((1.0, 3.0), 6, told)
        found = case.answer(below_s)
        assert found is not None
        assert (found.prediction.step_time_s, case.asked) == (step_s, asked)
    assert Given((1.0, 3.0), 6, {}).answer(99.0) is None
    # As good is not better.
    case = Given((1.0, 3.0), 6, told | {(4, 2): uneven(config(), 10.0)})
    found = case.answer(99.0)
    assert found is not None
    assert (found.decisions, case.asked) == ((5, 1), [(5, 1), (4, 2)])
    # Six moves of a plan that fits; two of one that does not, each from either copy.
    for lacks, tried in ((0.0, 1 + 6), (1.0, 1 + 2 * 2)):
        case = Given((1.0, 3.0), 24)
        case.lacks = lacks
        assert case.answer(99.0) is not None
        assert len(case.asked) == tried


def test_room_for_states_where_there_is_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies of two stages. Of 100 bytes what is left, less a fiftieth, beside what ZeRO cuts of what is there;
    a copy counts its own kinds of devices only, and never as having nothing."""
    mesh = Mesh.parse("dp=2 tp=2")
    stages = [SimpleNamespace(mesh=mesh, ranks=ranks) for ranks in ((0, 1, 2, 3), (4, 5, 6, 7))]
    stored = (("parameters", 3.0), ("gradients", 5.0), ("optimizer", 7.0), ("activations", 11.0))

    def held(ranks: tuple[int, ...], peak: float) -> tuple[Any, Held]:
        own = Held(peak_bytes=peak, device_bytes=110.0, margin_bytes=10.0, instant="loss", parts=stored)
        return SimpleNamespace(ranks=ranks), own

    case: Any = object.__new__(module._Case)
    kinds = "AABBAABB"
    cluster = SimpleNamespace(device=lambda rank: SimpleNamespace(name=kinds[rank]))
    prices = SimpleNamespace(profile=SimpleNamespace(memory="memory"))
    case.bench = SimpleNamespace(cluster=cluster, prices=prices)
    case.axis, case.copies_s = "dp", (1.0, 2.0)
    told: list[Any] = []
    monkeypatch.setattr(module, "held_by_class", lambda program, *given: told)
    for peaks, zero, rooms in (
        ((60, 80, 70, 70), 0, [0.98 * 30, 0.98 * 20]),
        ((60, 80, 70, 70), 1, [0.98 * 30 + 7, 0.98 * 20 + 7]),
        ((60, 80, 70, 90), 2, [0.98 * 30 + 12, 0.98 * 10 + 12]),
        ((60, 80, 70, 90), 3, [0.98 * 30 + 15, 0.98 * 10 + 15]),
        ((90, 80, 70, 150), 0, [0.98 * 10, 0.98 * 10 / 1000]),
    ):
        told[:] = [
            [held((0, 1), peaks[0]), held((2, 3), peaks[1])],
            [held((4, 5), peaks[2]), held((6, 7), peaks[3])],
        ]
        case.config = SimpleNamespace(sharding=ZERO[zero])
        assert case._rooms(SimpleNamespace(stages=stages)) == pytest.approx(rooms)
