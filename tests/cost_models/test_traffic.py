"""Bytes of a step by tier and by pair of hosts, counted by hand for a pipeline, for copies and for experts."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.host_traffic import between_hosts
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.cost_models.traffic import traffic
from meshwright.ir.names import Degrees
from tests.cost_models.programs import DENSE, MOE, SEQ, program

VALUE = SEQ * 1024 * 2
"""A micro-batch of one sequence in bf16."""
TABLE = SEQ * 128 * 2
"""One of the two rotary tables, which cross too."""
WORDS = 32_000 * 1024
"""Elements of the table of words, which the first and the last stage hold."""
BLOCK = 1024 * (1024 + 512 + 512 + 1024) + 3 * 1024 * 4096 + 2 * 1024
"""Elements of a block: q, k, v, o; gate, up, down; two norms."""
PARAMETERS = WORDS + 4 * BLOCK + 1024
"""Of all, the table once, with the last norm."""


def of(cluster: str, shape: Any = DENSE, **degrees: Any) -> tuple[dict[str, float], dict[tuple[int, int], float]]:
    """By tier, and by pair of hosts."""
    made = program(shape, Degrees(**degrees))
    assert made.workload is not None
    prices = Prices(read_cluster(cluster), published())
    accumulates = made.microbatches > 1
    ledgers = {body.name: prices.ledger(body, made.workload, accumulates) for body in made.bodies}
    return dict(traffic(made, prices.cluster, ledgers, made.workload)), between_hosts(made, prices)


def test_a_pipeline_passes_values_and_gradients_and_sums_what_it_shares() -> None:
    """Four micro-batches there with both tables, and back without; each of two ranks receives the table's gradient in
    four bytes an element."""
    nbytes = 4 * (2 * VALUE + 2 * TABLE) + 2 * 4 * WORDS
    assert of("2x1xA100", pp=2, microbatches=4) == ({"rail": nbytes}, {(0, 1): nbytes})
    assert of("1x2xA100", pp=2, microbatches=4) == ({"island": nbytes}, {})


def test_stages_send_to_their_neighbours() -> None:
    passed = 4 * (2 * VALUE + 2 * TABLE)
    tiers, hosts = of("2x2xA100", pp=4, microbatches=4)
    assert tiers == {"island": 2 * passed, "rail": passed + 2 * 4 * WORDS}
    assert hosts == {(0, 1): passed + 2 * 4 * WORDS}
    _, apart = of("4x1xA100", pp=4, microbatches=4)
    assert apart == {(0, 1): passed, (1, 2): passed, (2, 3): passed, (0, 3): 2 * 4 * WORDS}


def test_copies_sum_gradients_once_a_step() -> None:
    """In a ring of two each receives as many bytes as all gradients have in four bytes an element."""
    nbytes = 2 * 4 * PARAMETERS
    for microbatches in (1, 4):
        tiers, hosts = of("2x1xA100", dp=2, microbatches=microbatches)
        assert tiers["rail"] == pytest.approx(nbytes, rel=1e-4)  # and a few numbers of the loss
        assert hosts == {(0, 1): pytest.approx(nbytes, rel=1e-4)}


def test_experts_exchange_with_every_micro_batch() -> None:
    """Of each block twice forward and twice backward half of what a rank's tokens make, two rows each."""
    rows = 4 * 4 * (2 * VALUE) / 2
    one, two = (of("2x1xA100", MOE, dp=2, ep=2, microbatches=count) for count in (1, 2))
    assert two[0]["rail"] - one[0]["rail"] == pytest.approx(2 * rows, rel=1e-4)
    assert two[1][0, 1] - one[1][0, 1] == pytest.approx(2 * rows, rel=1e-4)
