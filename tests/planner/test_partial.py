"""Plans between those of the space: found where memory binds, with no more layers treated than must be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.searches import Case, opened, searched
from meshwright.planner.partial import HOSTED, RECOMPUTED, improve, ways
from meshwright.planner.space import Wishes

TIGHT = Case(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192, target="torch-cuda")


def never() -> bool:
    return False


def test_as_few_layers_are_computed_again_as_fit() -> None:
    own = opened(TIGHT, Wishes(only={"cp": (1,), "offload": ("none",)}))
    search = searched(own)
    assert search.best
    before, proved = search.best, search.lower_s
    improve(search, never)
    after = search.best
    assert after.fits
    assert search.lower_s <= after.step_s < proved <= before.step_s
    word, _, layers = after.config.recompute.partition(":")
    assert word == RECOMPUTED.word
    fewer = replace(after.config, recompute=f"{word}:{int(layers) - 1}")
    assert not own.setting.predict(fewer, own.space.global_batch).fits


@pytest.mark.parametrize("wishes", [Wishes(only={"recompute": ("none",)}), Wishes(never={"recompute": ("full",)})])
def test_what_is_asked_of_recomputation_is_kept(wishes: Wishes) -> None:
    search = searched(opened(TIGHT, wishes))
    answer = search.best
    assert RECOMPUTED not in ways(search)
    improve(search, never)
    assert search.best is not None
    assert search.best is answer or search.best.config.offload.startswith(HOSTED.word)


def test_only_targets_that_can_keep_activations_on_the_host() -> None:
    for target in ("any", "torch-cuda"):
        assert ways(opened(replace(TIGHT, target=target)).search()) == [RECOMPUTED, HOSTED]
    own = opened(TIGHT)
    cannot = replace(own, space=replace(own.space, target=replace(own.space.target, offload=())))
    assert ways(cannot.search()) == [RECOMPUTED]
