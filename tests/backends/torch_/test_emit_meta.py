"""Scripts whose ranks draw the weights of their part only: what they do, held against one device, and which models
cannot be drawn so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.write import initial
from meshwright.backends.torch_.verify.emitted import drawn_apart
from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.door import calls_of, load_model
from meshwright.planner.plan.twin import twinned
from tests.backends.torch_.emitted import TINY, subject, unclean, written
from tests.backends.torch_.proved import proved
from tests.planner.twins import LLAMA, planned

FUSED = f"{Path(__file__).parent / 'llama_fused.py'}:fused"
ODD = f"{Path(__file__).parent / 'llama_odd.py'}:odd"
KINDS: dict[str, dict[str, Any]] = {
    "tp x fsdp, rows that shards do not divide": {"tp": 2, "dp": 2, "zero": 3, "reference": ODD},
    "tp x fsdp, fused weights": {"tp": 2, "dp": 2, "zero": 3, "reference": FUSED},
    "stages": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "gpipe", "sequence_parallel": True},
}

HUGGING_FACE = "stages of the twin of a model of transformers"


def plan_of(kind: str) -> Subject:
    return replace(subject(**KINDS[kind]), init="meta")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All in one launch; a model of transformers fills its tables of positions itself."""
    folders = {kind: tmp_path_factory.mktemp("plan") for kind in (*KINDS, HUGGING_FACE)}
    whole = planned(LLAMA, "pp=2,tp=2,dp=16,zero=1,schedule=1f1b")
    plans = {kind: plan_of(kind) for kind in KINDS}
    plans[HUGGING_FACE] = replace(twinned(whole, folders[HUGGING_FACE]).subject, init="meta")
    scripts = {kind: (plan, written(plan, folders[kind])) for kind, plan in plans.items()}
    return proved("meta", scripts, steps=1, limit_s=600)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [*KINDS, HUGGING_FACE])
def test_ranks_that_draw_their_part_are_exact_from_given_weights(kind: str, found: dict[str, Verified]) -> None:
    """Ranks draw copies alike (`drawn_apart`), then take up the weights of one device from a checkpoint."""
    assert found[kind].differences == ()
    assert found[kind].tensors > 0


def test_what_ranks_drew_apart_is_told() -> None:
    drawn = [{"a": 1, "b": 2}, {"b": 2}, {"a": 3}]
    assert list(drawn_apart(drawn)) == ["rank 2: a was not drawn as on rank 0"]


def test_the_script_builds_nothing_whole(tmp_path: Path) -> None:
    text = written(plan_of("stages"), tmp_path).read_text()
    assert '    with torch.device("meta"):\n        model: nn.Module = model_file.tiny()\n' in text
    assert "    draw(model, mesh)\n" in text
    assert unclean(tmp_path) == ""


def test_big_models_are_drawn_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_of("stages"), init="")
    assert "def draw(" not in written(plan, tmp_path).read_text()
    monkeypatch.setattr(initial, "MOST_WHOLE_BYTES", initial.whole_bytes(plan) - 1)
    assert "def draw(" in written(plan, tmp_path).read_text()
    assert "def draw(" not in written(replace(plan, init="whole"), tmp_path).read_text()
    held = replace(plan, calls=replace(plan.calls, undrawn=("blocks.0.attention",)))
    (told,) = emit(held, tmp_path).told
    assert "module blocks.0.attention has no reset_parameters()" in told


@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        (lambda: subject(dp=4), "every rank holds the whole model"),
        (lambda: undrawn(plan_of("stages")), "has no reset_parameters"),
    ],
)
def test_what_cannot_be_drawn_in_parts_is_refused(plan: Any, cause: str, tmp_path: Path) -> None:
    with pytest.raises(EmissionModel, match=cause) as refused:
        emit(replace(plan(), init="meta"), tmp_path)
    assert "--init whole" in refused.value.fix


def undrawn(plan: Subject) -> Subject:
    return replace(plan, calls=replace(plan.calls, undrawn=("norm",)))


def test_which_modules_draw_what_they_hold(tmp_path: Path) -> None:
    assert calls_of(load_model(TINY), TINY, batch=2, seq=8).undrawn == ()
    text = Path(TINY.rpartition(":")[0]).read_text()
    file = tmp_path / "model.py"
    file.write_text(text.replace("self.norm = ", "self.scale = nn.Parameter(torch.ones(1))\n        self.norm = "))
    own = f"{file}:tiny"
    assert calls_of(load_model(own), own, batch=2, seq=8).undrawn == ("",)
    file.write_text(file.read_text() + "\n\ndef draw_weights(module):\n    pass\n")
    found = calls_of(load_model(own), own, batch=2, seq=8)
    assert (found.undrawn, found.draws) == ((), True)
