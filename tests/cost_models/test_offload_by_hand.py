"""The host of a small pipeline, in round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.cost import Cost, Taken
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.devices import device
from meshwright.cost_models.hardware.quantity import given, weakest_kind
from meshwright.cost_models.offload import (
    Host,
    Moved,
    host_constants,
    host_traffic,
    moved,
    step_bytes_per_element,
    streamed_s,
)
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.names import Degrees
from meshwright.ir.target.workload import STACKS, Workload
from tests.cost_models.programs import DENSE, pool, program
from tests.cost_models.test_liveness import U
from tests.cost_models.test_liveness import program as small

COPIED, STEPPED, _ = host_constants()


def host(*, offload: str = "optimizer+activations", **names: Any) -> Host:
    """Devices whose links carry a byte a second once copies reach their share, and whose hosts step two."""
    made = program(DENSE, Degrees(**{"pp": 2, "microbatches": 4, "offload": offload, **names}))
    assert made.workload is not None
    base = device("H100")
    wire = replace(
        base.host_link, bandwidth=given(1 / COPIED, "bytes/s"), memory=given(2 / STEPPED, "bytes/s"), sharers=None
    )
    where = Cluster(pools=(pool(replace(base, name="own", like=base.name, aliases=(), host_link=wire), 1, 8),))
    prices = Prices(where, published())
    ledgers = {body.name: prices.ledger(body, made.workload, True) for body in made.bodies}
    return Host(prices, made, made.workload, ledgers)


def test_rates_of_the_slowest_device() -> None:
    own = host()
    stage = own.program.stages[0]
    assert own.link_s(3.0, stage) == pytest.approx(3)
    assert own.step_s(3.0, stage) == pytest.approx(1.5)
    assert own.step_s(0.0, stage) == 0
    assert own.kind == weakest_kind("user", host_constants()[2])


def test_a_forward_pass_waits_for_what_is_not_copied_by_then() -> None:
    """Seven and two blocks of eleven seconds of copies on the first stage."""
    own = host()
    own.moved = {"embed": Moved(1.0, 7.0), "Block": Moved(2.0, 11.0)}
    stage = own.program.stages[0]
    assert own.copies(stage) == pytest.approx([7, 11, 11])
    found = own.forward(stage, Taken(20.0, (("matmul", 20.0),), 3.0))
    assert (found.seconds, found.beside_s) == (pytest.approx(29), 3)
    assert found.shares == (("matmul", 20.0), ("host", pytest.approx(9)))
    slow = Taken(29.5, (("matmul", 29.5),))
    assert own.forward(stage, slow) is slow


@pytest.mark.parametrize(("apart", "seconds"), [(False, 29 + 6 - 4), (True, 29 + 3)])
def test_a_backward_pass_waits_call_by_call(apart: bool, seconds: float) -> None:
    """Two blocks come back, eleven seconds each, and then the embedding, seven; it runs for six, three of them for
    gradients of weights, which may come apart. What those take is counted elsewhere."""
    own = host()
    own.moved = {"embed": Moved(1.0, 7.0), "Block": Moved(2.0, 11.0)}
    stage = own.program.stages[0]
    costs = {"recompute": Cost((1.0, 0.0, 0.0)), "inputs": Cost((0.0, 2.0, 0.0)), "weights": Cost((0.0, 0.0, 3.0))}
    own.prices.costs = lambda *_: costs  # type: ignore[method-assign]
    taken, weights = Taken(10.0), Taken(4.0)
    found = own.backward(stage, taken, weights, apart)
    assert found.seconds == pytest.approx(seconds)
    own.moved = {}
    assert own.backward(stage, taken, weights, apart) is taken


def test_the_optimizer_streams_body_by_body() -> None:
    """Three parts: 5 + 2 x 7 seconds down, half of 8 + 2 x 10 on the host, 3 + 2 x 2 up."""
    own = host()
    own.moved = {
        "embed": Moved(0.0, 0.0, 5.0, 3.0, 8.0),
        "Block": Moved(0.0, 0.0, 7.0, 2.0, 10.0),
        "head": Moved(9.0, 9.0),
    }
    first, second = own.program.stages
    assert own.ending_s([first], 0.0) == pytest.approx(19 + (14 + 7) / 3)
    assert own.ending_s([first], 10.0) == pytest.approx(14 + (9 + 7) / 3)
    assert own.ending_s([first], 100.0) == pytest.approx(14 + 7 / 3)
    assert own.ending_s([second], 0.0) == pytest.approx(14 + (10 + 4) / 2)
    assert own.ending_s([first, second], 0.0) == pytest.approx(33 + (24 + 11) / 5)
    own.moved = {}
    assert own.ending_s([first], 0.0) == 0
    assert streamed_s(3.0, 5.0, 2.0, 0) == 10


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [("megatron", 4 + 2 * 4 + 2 * 8 + 2), ("fsdp", 4 + 2 * 4 + 2 * 8), ("fp32", 4 + 2 * 4 + 2 * 8)],
)
def test_what_a_host_reads_and_writes_for_an_element(recipe: str, expected: float) -> None:
    workload = Workload(global_batch=1, seq=1, stack=STACKS["torch"], recipe=recipe)
    assert step_bytes_per_element(workload) == expected


def test_what_a_call_moves() -> None:
    """Half of 2,048 elements in fp32 down and up, 28 bytes of each on the host."""
    made = small(dp=2, zero=1, offload="optimizer")
    assert made.workload is not None
    assert moved(made.body("block"), made.workload) == Moved(0, 0, 2 * U, 2 * U, 1024 * 28)
    kept = small(offload="activations")
    assert kept.workload is not None
    found = moved(kept.body("block"), kept.workload)
    assert (found.down_bytes, found.up_bytes, found.touched_bytes) == (0, 0, 0)
    assert found.kept_bytes == found.busiest_bytes > 0
    assert host_traffic(kept, kept.workload) == 2 * 2 * found.kept_bytes
    # two blocks, the first linear and the head, of 256 and 512 elements: 2,560 + 2,304, down and up once
    assert host_traffic(made, made.workload) == 2 * 4 * (2 * 2048 + 256 + 512)
