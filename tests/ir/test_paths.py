"""Paths of blocks, as numbers between two texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.graph.paths import counted_by, counting, number_in

WORDS = st.lists(st.sampled_from(["layers", "block", "h2o", "0", "7", "12", "007", "layer3"]), min_size=1, max_size=4)


@given(WORDS.map(".".join))
def test_a_path_is_what_it_is_seen_as(path: str) -> None:
    ways = list(counted_by(path))
    for before, after in ways:
        assert f"{before}{number_in(path, before, after)}{after}" == path
        assert counting([path], before, after) == (number_in(path, before, after),)
    assert [len(after) for _, after in ways] == sorted(len(after) for _, after in ways), "innermost first"
    parts = path.split(".")
    assert len(ways) == sum(part in ("0", "7", "12", "layer3") for part in parts)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_blocks_count_as_long_as_their_numbers_rise(numbers: list[int]) -> None:
    rising = next((at for at in range(1, len(numbers)) if numbers[at] <= numbers[at - 1]), len(numbers))
    assert counting([f"a.{number}.b" for number in numbers], "a.", ".b") == tuple(numbers[:rising])


def test_another_name_ends_the_count() -> None:
    assert counting(["a.0", "a.1", "b.2", "a.3"], "a.", "") == (0, 1)
    assert counting(["b.0"], "a.", "") == ()
    assert number_in("a.07", "a.", "") == -1
