"""Blocks that take turns: attention that sees a window twice and everything once, as Gemma's; exact, and one loop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.turns import among, counted, merged, stacked
from meshwright.ir.graph.fold import FromPrevious, Segment
from tests.backends.torch_.emitted import subject, unclean, written
from tests.backends.torch_.proved import proved

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
LOOP = "for index in"
LOOPS = {"for index in range(8):", "for index in BLOCKS[self.index]:", "for index in BLOCKS[model.index]:"}
"""Loops over all blocks, of whatever body; but functions are those of a body."""
CASES: dict[str, dict[str, Any]] = {
    "shards, computed again": {"dp": 2, "zero": 3, "recompute": "full"},
    "tensor": {"tp": 2},
    "sequences gathered": {"cp": 2},
    "sequences exchanged": {"cp": 2, "context": "ulysses"},
    "in a ring": {"cp": 4, "context": "ring"},
    "stages": {"pp": 2, "microbatches": 2, "schedule": "1f1b", "recompute": "full"},
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
    scripts = {name: (plan, written(plan, folder / name.replace(" ", "_"))) for name, plan in plans.items()}
    for _, script in scripts.values():
        texts = [path.read_text() for path in script.parent.glob("train*.py")]
        lines = [line.strip() for text in texts for line in text.splitlines()]
        loops = [
            (one, after) for one, _, after in zip(lines, lines[1:], lines[2:], strict=False) if one.startswith(LOOP)
        ]
        assert {loop for loop, after in loops if not after.startswith("block.forward = partial(")} <= LOOPS, loops
    assert not unclean(folder)
    return proved("turns", scripts, steps=2, limit_s=240)


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_a_script_of_blocks_that_take_turns_is_exact(name: str, found: dict[str, Verified]) -> None:
    assert found[name].differences == ()
    assert found[name].losses[1] < found[name].losses[0]


def test_windows_in_a_ring_may_be_planned(model: str) -> None:
    ring = subject(reference=model, **CASES["in a ring"])
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


def test_bodies_that_take_turns_are_segments_of_their_own() -> None:
    """Worked out by hand: l, l and g twice, and two l that are left over; each has the places where it is called, and
    is wired as where it stands first. Other lists, and those of one body alone, stay as they are."""

    def segment(period: str, home: str, first: int, last: int, *wires: int, glue: bool = False) -> Segment:
        paths = ("",) if glue else tuple(f"{home}.{number}" for number in range(first, last))
        return Segment(tuple(period), paths, (FromPrevious(9),), tuple((FromPrevious(n),) for n in wires), glue)

    turns = [segment("llg", "m.layers", 0, 6, 0, 1, 2), segment("l", "m.layers", 6, 8, 3)]
    embed, head = segment("e", "", 0, 1, 0, glue=True), segment("h", "", 0, 1, 0, glue=True)
    one = [segment("a", "m.dense", 0, 2, 0), segment("b", "m.dense", 2, 4, 1)]
    fold: Any = SimpleNamespace(segments=(embed, *turns, *one, segment("cd", "n.dense", 0, 2, 4, 5), head))
    of_l = replace(turns[0], period=("l",), wires=((FromPrevious(0),),))
    local = replace(of_l, paths=tuple(f"m.layers.{number}" for number in (0, 1, 3, 4, 6, 7)))
    third, sixth = (FromPrevious(2),), (FromPrevious(5),)
    wide = replace(of_l, period=("g",), paths=("m.layers.2", "m.layers.5"), entry=third, wires=(third,))
    c = replace(of_l, period=("c",), paths=("n.dense.0",), wires=((FromPrevious(4),),))
    d = replace(of_l, period=("d",), paths=("n.dense.1",), entry=sixth, wires=(sixth,))
    assert stacked(fold) == ((embed,), (local, wide), (one[0],), (one[1],), (c, d), (head,))


def test_a_loop_over_some_of_a_stage_is_written_and_read_again() -> None:
    head = f"    for index in {among('HELD[0]', (1, 3, 5), (1, 3, 5, 7))}:"
    assert head == "    for index in HELD[0] among range(1, 6, 2) of range(1, 8, 2):"
    some = "    for index in [number for number in HELD[0] if number in range(1, 6, 2)]:"
    assert merged([head, "        a", "    b"]) == [some, "        a", "    b"]
    last = f"    for index in {among('HELD[0]', (7,), (1, 3, 5, 7))}:"
    assert merged([last, "        a", head, "        a"]) == ["    for index in HELD[0]:", "        a"]


def test_loops_that_differ_in_depth_or_in_what_a_stage_has_stay_apart() -> None:
    """And what follows a loop without being in it is no part of it."""
    deeper = ["for index in range(1):", "    a", "    for index in range(1, 2):", "        a"]
    assert merged(deeper) == deeper
    held = ["for index in A among (0, 2) of (0, 2):", "    a", "for index in B among (1, 4) of (1, 4):", "    a"]
    assert merged(held) == ["for index in A:", "    a", "for index in B:", "    a"]
    every = ["for index in A among (0, 2) of (0, 2):", "    a", "for index in A among (1,) of (0, 1, 2):", "    a"]
    alone = "for index in [number for number in A if number in range(1, 2)]:"
    assert merged(every) == ["for index in A:", "    a", alone, "    a"]
    between = ["for index in range(1):", "    a", "b", "for index in range(1, 2):", "    a", "c", "d"]
    assert merged(between) == between


def test_neighbouring_loops_that_say_the_same_are_one() -> None:
    def loop(numbers: str, *inside: str) -> list[str]:
        return [f"for index in {numbers}:", *(f"    {line}" for line in inside)]

    same = [*loop("(0, 1, 3)", "a", "if b:", "    c"), *loop("range(2, 5, 2)", "a", "if b:", "    c")]
    assert merged(same) == loop("range(5)", "a", "if b:", "    c")
    three = [*loop("(0, 3)", "a"), *loop("(1, 4)", "a"), *loop("(2, 5)", "a"), "d"]
    assert merged(three) == [*loop("range(6)", "a"), "d"]
    for others in ([*loop("(0, 3)", "a"), "d", *loop("(1, 4)", "a")], [*loop("(0, 3)", "a"), *loop("(1, 4)", "b")]):
        assert merged(others) == others


def test_loops_over_a_part_of_a_stage_become_one_where_they_are_all_of_it() -> None:
    parts = [f"for index in BLOCKS[model.index] among {numbers} of range(6):" for numbers in ("(0, 1, 3, 4)", "(2, 5)")]
    assert merged([parts[0], "    a", parts[1], "    a"]) == ["for index in BLOCKS[model.index]:", "    a"]
    alone = "for index in [number for number in BLOCKS[model.index] if number in (2, 5)]:"
    assert merged([parts[1], "    a"]) == [alone, "    a"]
