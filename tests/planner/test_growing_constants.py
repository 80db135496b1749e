"""Constants that grow with the batch: what a search says of code with them, from one capture, is what emission says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ir.errors import EmissionPrinted, MeshwrightError
from meshwright.planner.question import pricing
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.pricing import LEAST_BATCH, Folds, Setting
from meshwright.planner.search.emittable import NOWHERE, Emission, subject_of
from tests.planner import handmade
from tests.planner.solved import parsed

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, grown):
        super().__init__()
        self.up, self.down, self.grown = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False), grown

    def forward(self, x):
        rows, seq, _ = x.shape
        return self.down(torch.relu(self.up(x))) + self.grown(rows, seq).view(rows, -1, 1)


def state():
    return Model(lambda rows, seq: torch.zeros(rows, seq, 1))


def positions():
    return Model(lambda rows, seq: torch.arange(seq).view(1, 1, seq).expand(4, rows, -1)[1:][2].float())


def masked():
    return Model(lambda rows, seq: (torch.zeros(rows, seq, dtype=torch.int64) == 2).cumsum(1) / 7)


def twice():
    return Model(lambda rows, seq: torch.ones(rows, seq, 2)[..., 0] + torch.zeros(rows, 2 * seq)[:, ::2])


def shares():
    return Model(lambda rows, seq: torch.ones(rows, seq) / rows**2)


def listed():
    return Model(lambda rows, seq: torch.tensor([[float(at) for at in range(seq)]] * rows))


def example_inputs(batch, seq):
    return {"x": torch.randn(batch, seq, 16)}


def loss(outputs, batch):
    return outputs.pow(2).mean()


dims = {"x": ("b", "s", "")}
"""
SEQ, BATCHES = 16, (1, 2, 4, 8)
FORMS = ("state", "positions", "masked", "twice", "shares")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches at which models are captured."""
    found, own = list[int](), pricing.capture

    def capture(source: Any, *, batch: int, **words: int) -> Any:
        found.append(batch)
        return own(source, batch=batch, **words)

    monkeypatch.setattr(pricing, "capture", capture)
    return found


def asked(tmp_path: Path, form: str) -> tuple[Ask, Setting]:
    """A question about a model, captured at the batch of all searches."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    target = ("--cluster", "cpu:2", "--target", "torch-gloo", "--dtype", "fp32")
    argv = (f"{tmp_path}/model.py:{form}", *target, "--global-batch", "8", "--seq", str(SEQ))
    ask, _ = read_asked(parsed(*argv))
    setting = ask.setting()
    setting.folds.first(LEAST_BATCH)
    return ask, setting


def said(ask: Ask, setting: Setting, batch: int) -> tuple[MeshwrightError | None, MeshwrightError | None]:
    """What a search says of a plan whose bodies are printed, and what the emission of that plan does."""
    emission = Emission.of(setting, ask.model)
    assert emission is not None
    config = handmade.config(f"tp=2,mbs={batch}", 2)
    decisions = setting.decisions(config, 8)
    folds = Folds(setting.folds.source, SEQ)
    folds.first(batch)
    own = replace(setting, folds=folds, bodies={})
    try:
        emission.backend.emit(subject_of(own, folds.calls(ask.model, batch), config, decisions), NOWHERE)
    except MeshwrightError as refusal:
        return emission.refusal(config, decisions), refusal
    return emission.refusal(config, decisions), None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_a_search_captures_a_model_once(tmp_path: Path, captures: list[int], form: str) -> None:
    """However its constants grow: their lines are written by emission, from a capture at the batch of the plan."""
    ask, setting = asked(tmp_path, form)
    assert any(one.batched for one in setting.folds.first(LEAST_BATCH).constants.values())
    for batch in BATCHES[1:]:
        captures.clear()
        assert said(ask, setting, batch) == (None, None)
        assert captures == [batch]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "refused"), [("state", False), ("shares", True)])
def test_one_sequence_is_written_from_two_captures(
    tmp_path: Path, captures: list[int], form: str, refused: bool
) -> None:
    """By emission, too, so that a search has to know whether they are in proportion."""
    ask, setting = asked(tmp_path, form)
    captures.clear()
    assert [isinstance(one, EmissionPrinted) for one in said(ask, setting, 1)] == [refused, refused]
    assert captures == [2, 4, 4]


@pytest.mark.filterwarnings("ignore")
def test_what_lists_values_may_list_too_many(tmp_path: Path, captures: list[int]) -> None:
    """That is known from two captures, and what is emitted lists few."""
    ask, setting = asked(tmp_path, "listed")
    found = {batch: said(ask, setting, batch) for batch in BATCHES[1:]}
    assert [isinstance(emitted, EmissionPrinted) for _, emitted in found.values()] == [False, False, True]
    assert [isinstance(searched, EmissionPrinted) for searched, _ in found.values()] == [False, True, True]
    assert captures == [2, 2, 4, 4, 8]
