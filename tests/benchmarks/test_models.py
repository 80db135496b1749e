"""Models of the table: every count against what the table claims, and what the columns leave open."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from benchmarks.models import CLOSE, Model, fold_of, parameters, read_models, shape_of
from tests.benchmarks.rows import MODEL, table

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
MODELS = read_models(DATA / "models.csv")

EXPLAINED = {
    "nemotron3_8b": 0.07,  # printed as 8: 7.5 with tied embeddings, 8.5 without
    "gpt_1.7b_sc21": 0.03,  # printed with one digit
    "gpt_1.7b_mcore": 0.03,
    "gpt2_345m_amp": 0.11,  # called 345m, and printed as 0.4
}


def one(tmp_path: Path, **changes: str) -> Model:
    (model,) = read_models(table(tmp_path / "models.csv", [MODEL | changes])).values()
    return model


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.missing and model.parameters])
def test_parameters_are_those_of_the_table(name: str) -> None:
    model = MODELS[name]
    assert parameters(shape_of(model, seq=2048)) == pytest.approx(model.parameters, rel=EXPLAINED.get(name, CLOSE))


def test_parameters_to_the_last_one() -> None:
    """Counts that the notes of some runs print: learned positions grow with the sequence, and layers have biases."""
    checked = set()
    with (DATA / "training_runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if printed := re.search(r"params=(\d+)", row["notes"]):
                case = (row["model"], int(row["seq_len"]))
                if case not in checked and case[1] <= 1024:
                    assert parameters(shape_of(MODELS[case[0]], seq=case[1])) == int(printed[1]), case
                    checked.add(case)
    assert len(checked) > 10


@pytest.mark.parametrize("name", ["mpt_125m", "gpt_oss_120b", "deepseek_v3", "palm_540b", "gemma3_12b"])
def test_a_fold_holds_what_the_shape_holds(name: str) -> None:
    shape = shape_of(MODELS[name], seq=512)
    captured = fold_of(shape, seq=512)
    assert captured.parameters == parameters(shape)
    assert not captured.notes
    assert fold_of(shape, seq=512) is captured


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": "64", "hybrid_notes": "5 local:1 global"}, {"full_attention_every": 6}),
        ({"sliding_window": "64", "hybrid_notes": "alternating sliding/full attention"}, {"full_attention_every": 2}),
        ({"attention": "mqa_parallel_block"}, {"parallel_block": True}),
        ({"glu": ""}, {"glu": True, "learned_positions": 0}),
        ({"glu": "", "family": "gpt_like"}, {"glu": False, "learned_positions": 2048}),
        ({"glu": "0", "family": "gpt", "hybrid_notes": "rotary"}, {"learned_positions": 0}),
        ({"tied_embeddings": "1"}, {"tied_embeddings": True}),
        ({"tied_embeddings": "1", "params_total_b": "0.0194"}, {"tied_embeddings": True}),
        ({"tied_embeddings": "1", "params_total_b": "0.0199"}, {"tied_embeddings": False}),
    ],
)
def test_columns(tmp_path: Path, changes: dict[str, str], expected: dict[str, object]) -> None:
    shape = shape_of(one(tmp_path, **changes), seq=2048)
    assert {key: getattr(shape, key) for key in expected} == expected


def test_what_a_row_lacks(tmp_path: Path) -> None:
    assert one(tmp_path, vocab="", heads="?").missing == ("heads", "vocab")


def test_one_more_block(tmp_path: Path) -> None:
    assert shape_of(one(tmp_path), seq=8, mtp=1).layers == 9
