"""Copies on unlike devices take unequal shares: priced as each kind of rank has it, and found where that is faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.torch_.capabilities import TORCH_CUDA
from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.cluster_toml import read
from meshwright.ir.errors import LayoutNotExpressible
from meshwright.ir.shares import batch_shares, shares_of, state_shares, weights_of
from meshwright.planner.plan_view import in_words
from meshwright.planner.shares import Uneven, by_speed, unevenly
from tests.planner.refining import LLAMA, Case, example, hosts

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


def found_of(case: Case, pins: str) -> Uneven | None:
    return unevenly(case.setting, [case.config(pins)], case.batch, case.prices)


def test_two_generations_share_a_batch_by_speed() -> None:
    """Eight H100 beside eight A100: 1.3 times as fast as equal shares, and faster than with layers shared out."""
    case = Case(LLAMA, example("two_generations"), batch=256)
    config = case.config("zero=3,mbs=2,recompute=full")
    found = found_of(case, "zero=3,mbs=2,recompute=full")
    assert found is not None
    assert found.prediction.fits
    assert found.sizes[0] > found.sizes[-1]
    assert case.setting.predict(config, case.batch).step_time_s >= 1.3 * found.prediction.step_time_s
    (words, *_) = in_words(found.config, shares_of(found.decisions))
    assert f"8 x {found.sizes[0]}, 8 x {found.sizes[-1]}" in words


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
    assert found.sizes[0] > found.sizes[-1]


def test_copies_over_pipelines_take_unequal_shares(small: str) -> None:
    """Each copy, all its stages, on one kind of device."""
    case = Case(small, pools("H100", "A100-80G"))
    found = found_of(case, "pp=2,tp=2,mbs=4")
    assert found is not None
    kinds = [[case.cluster.device(rank).name for rank in stage.ranks] for stage in found.decisions.stages]
    assert kinds[0] == kinds[1] == ["H100-80G"] * 2 + ["A100-80G"] * 2
    assert found.sizes[0] > found.sizes[1]
    assert found.prediction.step_time_s < case.setting.predict(case.config("pp=2,tp=2,mbs=4"), case.batch).step_time_s


def test_only_unlike_devices_and_targets_that_can_have_them_get_them(small: str) -> None:
    like = Case(small, hosts(2))
    assert found_of(like, "mbs=4,zero=1") is None
    case = Case(small, pools("H100", "A100-80G"))
    config = case.config("mbs=4,zero=1")
    lines = tuple(line for line in TORCH_CUDA.layouts if line.name != "shares")
    without = replace(TORCH_CUDA, layouts=lines)
    assert unevenly(replace(case.setting, target=without), [config], case.batch, case.prices) is None
    fold, plan = case.plan("mbs=4,zero=1")
    shared = batch_shares(plan, fold, (5,) * 4 + (3,) * 4)
    TORCH_CUDA.check(shared, fold)
    with pytest.raises(LayoutNotExpressible, match="layout shares"):
        without.check(shared, fold)
    assert unevenly(case.setting, [config], case.batch, case.prices, grants=lambda one: False) is None
