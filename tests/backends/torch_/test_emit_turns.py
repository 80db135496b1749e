"""Blocks that take turns: attention that sees a window twice and everything once, as Gemma's; exact, and one loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit.turns import counted, merged
from meshwright.backends.torch_.verify.emitted import Verified, verify
from meshwright.ir.errors import EmissionSchedule, NotExpressible
from tests.backends.torch_.emitted import job, subject, unclean, written

ROOT = Path(__file__).parents[3]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 64,
    "sliding_window": 8,
    "torch_dtype": "float32",
    "query_pre_attn_scalar": 8,
    "layer_types": [*["sliding_attention", "sliding_attention", "full_attention"] * 2, *["sliding_attention"] * 2],
}
CASES: dict[str, dict[str, Any]] = {
    "shards, computed again": {"dp": 2, "zero": 3, "recompute": "full"},
    "tensor": {"tp": 2},
    "sequences gathered": {"cp": 2},
    "sequences exchanged": {"cp": 2, "context": "ulysses"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("gemma")
    whole = json.loads((ROOT / "examples" / "configs" / "gemma-3-1b" / "config.json").read_text())
    whole.pop("sliding_window_pattern")
    (folder / "config.json").write_text(json.dumps(whole | SMALL))
    return str(folder)


@pytest.fixture(scope="module")
def found(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All scripts, in one launch."""
    folder = tmp_path_factory.mktemp("turns")
    plans = {name: subject(reference=model, **degrees) for name, degrees in CASES.items()}
    jobs = [job(plan, written(plan, folder / name.replace(" ", "_"))) for name, plan in plans.items()]
    for one in jobs:
        loops = [line for line in one.script.read_text().splitlines() if "for index in" in line]
        assert all("range(8)" in line for line in loops), loops
    assert not unclean(folder)
    return dict(zip(CASES, verify(jobs, steps=2, limit_s=240), strict=True))


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_a_script_of_blocks_that_take_turns_is_exact(name: str, found: dict[str, Verified]) -> None:
    assert found[name].differences == ()
    assert found[name].losses[1] < found[name].losses[0]


def test_what_is_not_emitted_of_turns_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(EmissionSchedule, match="take turns"):
        written(subject(reference=model, pp=2, microbatches=2, schedule="1f1b"), tmp_path)
    ring = subject(reference=model, cp=2, context="ring")
    with pytest.raises(NotExpressible, match="attention sees a window"):
        TORCH_GLOO.check(ring.decisions, ring.fold)


NUMBERS = {
    (0, 1, 2): "range(3)",
    (3, 4): "range(3, 5)",
    (7,): "range(7, 8)",
    (5, 11, 17): "range(5, 18, 6)",
    (0, 1, 3): "(0, 1, 3)",
    (2, 5): "(2, 5)",
}


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_are_counted_as_loops_take_them(numbers: tuple[int, ...]) -> None:
    said = counted(numbers)
    assert said == NUMBERS[numbers]
    assert tuple(eval(said)) == numbers  # noqa: S307


def test_neighbouring_loops_that_say_the_same_are_one() -> None:
    def loop(numbers: str, *inside: str) -> list[str]:
        return [f"for index in {numbers}:", *(f"    {line}" for line in inside)]

    same = [*loop("(0, 1, 3)", "a", "if b:", "    c"), *loop("range(2, 5, 2)", "a", "if b:", "    c")]
    assert merged(same) == loop("range(5)", "a", "if b:", "    c")
    three = [*loop("(0, 3)", "a"), *loop("(1, 4)", "a"), *loop("(2, 5)", "a"), "d"]
    assert merged(three) == [*loop("range(6)", "a"), "d"]
    for others in ([*loop("(0, 3)", "a"), "d", *loop("(1, 2)", "a")], [*loop("(0, 3)", "a"), *loop("(1, 2)", "b")]):
        assert merged(others) == others
