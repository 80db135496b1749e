"""Models beyond the tiny Llama, from the matrix of docs/emitted.md: a pair of each that says something of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.emitted_matrix import Made, Small, rows
from meshwright.backends.results import Verified
from tests.backends.torch_.emitted import unclean
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved

PAIRS = {
    "gemma-3": (
        "tp+sp",
        "norms over heads, and an embedding that is the head, cut as vocabulary, whose rows are scaled",
    ),
    "gemma-3, stages": ("v-half", "a stage that begins and ends, and waits for gradients of weights alone"),
    "lora": ("zero 3", "frozen parameters whole, beside shards"),
    "vit": ("tp+sp", "images, patches, a table of positions"),
    "phi-3": ("cp, ulysses", "a mask that stays whole: heads attend within a window of all tokens"),
    "gemma-3, rows": ("cp", "a mask of which a rank has its rows"),
    "deepseek-v3": ("zero 3", "buffers whole, beside shards"),
    "deepseek-v3, heads": (
        "tp+sp",
        "keys that all heads share, and experts that all tokens run through, beside others",
    ),
    "deepseek-v3, ring": ("cp, ring", "values narrower than keys, in a kernel that wants them alike"),
    "lora, heads": ("tp+sp", "adapters of low rank beside products that are cut"),
    "t5": ("zero 3", "a bias of positions that blocks hand on, and a parameter of four names, one of them unread"),
    "t5, heads": (
        "tp+sp",
        "a bias of positions of own heads, a mask made for all of them, and keys of what is made outside of blocks",
    ),
    "t5, ring": (
        "cp, ring",
        "rows of a bias that is trained, with all keys gathered, in a ring where the decoder reads what is encoded",
    ),
    "t5, exchanged": ("cp, ulysses", "a bias of whose rows each rank gets those of its heads"),
    "t5, both ways": ("dualpipev", "gradients of some stages of a rank before others have run"),
    "t5, stages": ("zbv", "stages of encoder and decoder, gradients of weights that several blocks read apart"),
}
"""By model; after a comma, a second one of it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    small = {name: Small(name, folder(tmp_path_factory)) for name in {model.partition(",")[0]: None for model in PAIRS}}
    written = {
        model: small[model.partition(",")[0]].made(kind, folder(tmp_path_factory)) for model, (kind, _) in PAIRS.items()
    }
    return {model: one for model, one in written.items() if isinstance(one, Made)}


@pytest.fixture(scope="module")
def found(made: dict[str, Made]) -> dict[str, Verified]:
    """All in one launch."""
    assert made.keys() == PAIRS.keys()
    return proved("models", {model: (one.subject, one.script) for model, one in made.items()}, steps=2, limit_s=900)


def folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("pair")


@pytest.mark.e2e
@pytest.mark.parametrize("model", PAIRS)
def test_a_model_is_exact(model: str, found: dict[str, Verified]) -> None:
    assert found[model].differences == ()


@pytest.mark.e2e
@pytest.mark.parametrize("model", PAIRS)
def test_every_rank_of_it_holds_as_much_as_planned(
    model: str, made: dict[str, Made], found: dict[str, Verified]
) -> None:
    assert_planned(made[model].subject, found[model])


@pytest.mark.parametrize("model", PAIRS)
def test_scripts_are_clean(model: str, made: dict[str, Made]) -> None:
    assert unclean(made[model].script.parent) == ""


def test_images_are_no_sequence_that_can_be_cut() -> None:
    (row,) = rows("vit", ["cp"], run=False)
    assert row.outcome == "none"
    assert "no input of the model is a sequence" in row.detail
