"""Prices of a machine that was measured: kernels, launches and collectives take what was found there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.cost_models.collectives.topology import group_shape
from meshwright.cost_models.compute.kernels import Compute, Kernel
from meshwright.cost_models.hardware import changed as otherwise
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.measured.file import load_measured, measured_text, measured_to_json
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import calibrated, digest, published
from meshwright.ir.errors import BadQuantity, MeshwrightError, ProfileBroken, ProfileElsewhere, ProfileUnreadable
from meshwright.ir.rules.base import Engine
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import Workload, stack_named
from tests.cost_models.measured_cpu import RATE, START_S, hand, product_s, stream_s, wire_s

CLUSTER = read_cluster("cpu:2")
WORKLOAD = Workload(global_batch=2, seq=64, precision="fp32", stack=stack_named("torch"), recipe="fp32")


def prices(*, least: bool = False) -> Prices:
    own = Prices(CLUSTER, calibrated(hand()))
    return own.least if least else own


def compute(*, least: bool = False) -> Compute:
    own = prices(least=least)
    return own.compute(own.cluster.pools[0].device, WORKLOAD)


def product(*shape: int) -> Kernel:
    groups, m, n, k = shape
    return Kernel(Engine.MATMUL, "forward", "fp32", 2.0 * groups * m * n * k, 0.0, shape)


def stream(nbytes: float) -> Kernel:
    return Kernel(Engine.MEMORY, "forward", "fp32", 0.0, nbytes)


def attention(sq: int, d: int) -> Kernel:
    flops = 2.0 * 8 * sq * sk if (sk := sq) else 0.0
    return Kernel(Engine.ATTENTION, "forward", "f32", flops * 2 * d, 0.0, (1, 8, 8, sq, sk, d, d), causal=True)


# Kernels -------------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_its_own_price() -> None:
    """Two ranks are at work, and each is half as fast as one alone."""
    own = compute()
    for kernel, seconds in (
        (product(1, 256, 1024, 64), 2 * product_s(256, 1024, 64)),
        (attention(256, 64), 2 * (START_S + 8 * 256 * 256 * 128 / 1e10)),
    ):
        found = own.seconds(kernel)
        assert (found.seconds, found.kind) == (pytest.approx(seconds), "measured")
    assert own.seconds(stream(4**8)).seconds == pytest.approx(2 * stream_s(4**8))


def test_what_lies_between_is_near_the_law_that_measurements_follow() -> None:
    own = compute()
    for shape in ((128, 512, 512), (200, 300, 700), (1024, 48, 2000)):
        found = own.seconds(product(1, *shape))
        assert (found.seconds, found.kind) == (pytest.approx(2 * product_s(*shape), rel=0.05), "fitted")
    assert own.seconds(product(3, 256, 256, 256)).seconds == pytest.approx(3 * 2 * product_s(256, 256, 256))


def test_beyond_what_was_measured_products_go_on_at_the_same_rate() -> None:
    found = compute().seconds(product(1, 16384, 16384, 4096))
    assert found.seconds == pytest.approx(2 * 2 * 16384 * 16384 * 4096 / RATE, rel=0.15)
    assert found.efficiency <= 1


def test_streams_between_and_beyond() -> None:
    own = compute()
    assert own.seconds(stream(7)).seconds == pytest.approx(2 * stream_s(1024))
    assert own.seconds(stream(4.0**15)).seconds == pytest.approx(2 * stream_s(4**13) * 16)
    inside = own.seconds(stream(2.0 * 4**8)).seconds
    assert inside == pytest.approx(2 * (stream_s(4**8) * stream_s(4**9)) ** 0.5)


def test_attention_takes_the_pace_of_what_is_near() -> None:
    """Half as wide takes half as long, and less than a shorter sequence does."""
    own = compute()
    wide, narrow = own.seconds(attention(1024, 64)).seconds, own.seconds(attention(1024, 32)).seconds
    assert wide / 4 < narrow < wide
    assert own.seconds(attention(1024, 32)).kind == "fitted"


def test_kernels_inside_a_step_take_a_share_more() -> None:
    measured = hand(2)
    slower = replace(measured, busy=(replace(measured.busy[0], scale=1.5),))
    times = []
    for one in (measured, slower):
        own = Prices(CLUSTER, calibrated(one))
        device = own.cluster.pools[0].device
        times.append([own.compute(device, WORKLOAD).seconds(k).seconds for k in (product(1, 64, 64, 64), stream(4096))])
    assert times[1] == pytest.approx([1.5 * seconds for seconds in times[0]])


def test_the_nearest_number_of_busy_ranks_counts() -> None:
    measured = hand(1, 2, 8)
    assert [measured.with_ranks(count).ranks for count in (1, 2, 3, 4, 5, 64)] == [1, 2, 2, 8, 8, 8]


def test_the_device_has_the_rates_that_were_measured() -> None:
    device = calibrated(hand()).on(CLUSTER).pools[0].device
    best = max(row.flops / row.p50_s for row in hand().busy[1].products)
    assert (device.peak("fp32").value, device.peak("fp32").kind) == (best, "measured")
    assert device.memory_bandwidth.value == pytest.approx(4**13 / (2 * stream_s(4**13)))
    assert device.peak("fp64") == CLUSTER.pools[0].device.peak("fp64")
    assert published().on(CLUSTER) is CLUSTER


# Parts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 8, 64])
@pytest.mark.parametrize("whole", [product(1, 4096, 4096, 1024), stream(2.0**25), attention(1024, 64)])
def test_no_parts_of_a_kernel_take_less_than_the_least(whole: Kernel, parts: int) -> None:
    """What is small is quicker here, byte for byte, so that the whole is no bound."""
    if whole.engine is Engine.MATMUL:
        _, m, n, k = whole.shape
        part = product(1, -(-m // parts), n, k)
    elif whole.engine is Engine.MEMORY:
        part = stream(whole.nbytes / parts)
    else:
        part = attention(1024 // parts, 64)  # fewer operations than a part has
    least = compute(least=True).seconds(whole).seconds
    times = 1.0 if whole.engine is Engine.ATTENTION else parts
    share = part.flops / whole.flops if whole.engine is Engine.ATTENTION else 1.0
    assert least * share <= times * compute().seconds(part).seconds
    assert least <= compute().seconds(whole).seconds


def test_no_parts_of_a_collective_take_less_than_the_least() -> None:
    shape = group_shape(CLUSTER, (0, 1), Mesh.parse("dp=2"), ("dp",))
    whole = prices(least=True).moved("all_reduce", 2.0**24, shape, "gloo").seconds
    for parts in (1, 2, 16, 256):
        assert whole <= parts * prices().moved("all_reduce", 2.0**24 / parts, shape, "gloo").seconds
    assert prices().moved("all_reduce", 2.0**24, shape, "gloo").seconds > 2 * whole


# Collectives and launches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "p2p", "shift"])
def test_collectives_are_read_from_their_curves(kind: Any) -> None:
    shape = group_shape(CLUSTER, (0, 1), Mesh.parse("dp=2"), ("dp",))
    found = prices().moved(kind, 4.0**8, shape, "gloo")
    assert (found.seconds, found.provenance) == (pytest.approx(wire_s(4**8)), "measured")
    wider = group_shape(read_cluster("cpu:4"), (0, 1, 2, 3), Mesh.parse("dp=4"), ("dp",))
    assert (prices().moved(kind, 4.0**8, wider, "gloo").how == "measured curve") == (kind in ("p2p", "shift"))


OWN = """\
[[pool]]
name = "a"
hosts = 1
gpu = "own"
gpus_per_host = 2
[[device]]
name = "own"
like = "CPU"
"""


def test_a_device_that_is_like_the_measured_one_takes_its_times_at_the_rates_that_it_is_given() -> None:
    """A quarter of the best measured rate of products; half of the memory's; what is not given is as measured."""
    profile, base = calibrated(hand()), calibrated(hand()).times(CLUSTER.pools[0].device, 2)
    assert base is not None
    peak, rate = base.busy.peak_flops_per_s("fp32"), base.busy.bytes_per_s
    for given, products, streams in (
        ("", 1.0, 1.0),
        (f"fp32_tflops = {peak / 4e12}", 4.0, 1.0),
        (f"memory_gb_per_s = {rate / 2e9}", 1.0, 2.0),
    ):
        own = read(f"{OWN}{given}\n").pools[0].device
        found = profile.times(own, 2)
        assert found is not None
        seconds, kind = found.product("fp32", 1, 64, 64, 64) or (0.0, "assumed")
        assert kind == "fitted"
        assert seconds == pytest.approx(products * (base.product("fp32", 1, 64, 64, 64) or (0.0, ""))[0])
        assert found.stream(4.0**8) == pytest.approx(streams * base.stream(4.0**8))
        shape = (1, 8, 8, 64, 64, 64, 64)
        attended = (base.attention("fp32", "forward", True, 0, shape) or (0.0, ""))[0]
        assert (found.attention("fp32", "forward", True, 0, shape) or (0.0, ""))[0] == pytest.approx(
            products * attended
        )
    assert profile.times(read_cluster("1x2xH100").pools[0].device, 2) is None


def test_launches_take_what_was_measured_and_nothing_runs_ahead() -> None:
    own, device = prices(), CLUSTER.pools[0].device
    assert own.host_s(device, WORKLOAD) == 1e-5
    assert own.profile.synchronous
    assert own.profile.step.slowdown == 0.75
    shipped = Prices(CLUSTER, published())
    assert shipped.host_s(device, WORKLOAD) == published().compute.host_s
    assert not shipped.profile.synchronous
    assert shipped.least is shipped


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(measured_text(hand()))
    assert load_measured(file) == hand()
    assert measured_text(load_measured(file)) == file.read_text()


def test_digests_are_of_shipped_and_measured_numbers() -> None:
    other = replace(hand(), slowdown=0.5)
    assert len({digest(), digest(hand()), digest(other)}) == 3
    assert digest(hand()) == digest(hand())


def changed(**changes: Any) -> dict[str, Any]:
    return measured_to_json(hand()) | changes


def test_what_no_calibration_writes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    busy = measured_to_json(hand())["busy"]
    row = busy[0]["products"][0]
    for told in (
        changed(made="yesterday"),
        changed(format_version=1),
        changed(covered=1.5),
        changed(more=1),
        changed(busy=[]),
        changed(spreads=[{"family": "pipeline", "plans": 3, "low": 1.1, "high": 1.2}]),
        changed(busy=busy[::-1]),
        changed(busy=[{**busy[0], "products": [{**row, "shape": [1, 2, 3]}]}]),
        changed(busy=[{**busy[0], "products": [row, row]}]),
        changed(busy=[{**busy[0], "products": [{**row, "p50_s": 2.0, "p90_s": 1.0}]}]),
        changed(collectives=[{**measured_to_json(hand())["collectives"][0], "bytes_s": [[1.0, 2.0, 3.0]]}]),
    ):
        file.write_text(json.dumps(told))
        with pytest.raises(ProfileBroken):
            load_measured(file)
    file.write_text(measured_text(hand())[:-100])
    with pytest.raises(ProfileBroken, match="ends in the middle"):
        load_measured(file)
    with pytest.raises(ProfileUnreadable):
        load_measured(tmp_path / "none.json")


def test_times_that_cannot_be_are_refused() -> None:
    one = hand().busy[0]
    changes: list[dict[str, Any]] = [{"ranks": 0}, {"scale": 0.0}, {"launch_s": -1.0}, {"products": ()}]
    for change in changes:
        with pytest.raises(BadQuantity, match="busy ranks"):
            replace(one, **change)


def test_a_profile_of_another_device_is_refused() -> None:
    with pytest.raises(ProfileElsewhere, match="of CPU, and the cluster has H100"):
        calibrated(hand()).check_of(read_cluster("1x2xH100"))
    calibrated(hand()).check_of(CLUSTER)
    calibrated(hand()).check_of(otherwise.changed(CLUSTER, [otherwise.Wish(key="memory_gb", text="4")]))
    published().check_of(read_cluster("1x2xH100"))
    assert issubclass(ProfileElsewhere, MeshwrightError)
