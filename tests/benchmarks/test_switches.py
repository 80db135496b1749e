"""The kind of context parallelism that is fastest depends on length."""

from __future__ import annotations

from benchmarks.switches import SWITCHES, shown


def test_a_short_sequence_is_exchanged_and_a_long_one_goes_round() -> None:
    """Exchanges of heads grow with the length, what hides the steps of a ring with its square."""
    short, long = (shown(one) for one in SWITCHES if one.case.model == "phi-3-mini" and "A100" in one.case.cluster)
    assert (short.fastest, long.fastest) == ("ulysses", "ring")
    assert long.saving > 0.05
