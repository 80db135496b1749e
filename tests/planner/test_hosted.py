"""The optimizer's state on the host: found where nothing fits with it on the device, or nothing as fast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.searches import Case, opened, searched
from meshwright.planner.hosted import improve, may
from meshwright.planner.plan_view import in_words
from meshwright.planner.space import Wishes

FULL = Case(model="llama-3.1-8b", cluster="1x1xH100", batch=16, seq=2048)


def never() -> bool:
    return False


def test_what_fits_only_without_the_state_is_found() -> None:
    own = opened(FULL)
    search = searched(own)
    assert search.best is None
    improve(search, never)
    found = search.best
    assert found is not None
    assert found.fits
    assert found.config.offload == "optimizer"
    assert not own.setting.predict(replace(found.config, offload="none"), own.space.global_batch).fits
    assert any("the host makes the step" in line for line in in_words(found.config))
    priced = [one for one in search.found.values() if one.config.offload == "optimizer" and one.fits]
    assert found.step_s == min(one.step_s for one in priced)


def test_the_answer_stays_where_there_is_room() -> None:
    search = searched(opened(replace(FULL, cluster="1x8xH100")))
    before = search.best
    assert before is not None
    improve(search, never)
    assert search.best is before


@pytest.mark.parametrize("wishes", [Wishes(only={"offload": ("none",)}), Wishes(never={"offload": ("optimizer",)})])
def test_what_is_asked_of_offload_is_kept(wishes: Wishes) -> None:
    search = opened(FULL, wishes).search()
    assert not may(search)


def test_only_targets_that_can_have_it_get_it() -> None:
    assert may(opened(FULL).search())
    assert may(opened(replace(FULL, target="torch-cuda")).search())
    own = opened(replace(FULL, target="torch-cuda"))
    cannot = replace(own, space=replace(own.space, target=replace(own.space.target, offload=())))
    assert not may(cannot.search())
