"""The table of devices: complete, sane, and free of the traps that datasheets set."""

import csv
from pathlib import Path

import pytest

from meshwright.cost_models.hardware.devices import (
    DTYPES,
    NIC_KINDS,
    Device,
    HostLink,
    Island,
    UsualNic,
    device,
    device_names,
    devices,
    latency_of,
    unknown_fix,
)
from meshwright.cost_models.hardware.quantity import KINDS, UNITS, Quantity, derived, given, weakest
from meshwright.ir.errors import BadQuantity, DeviceIncomplete, DeviceUnknown, LinkKindUnknown, PeakUnknown

DATA = Path(__file__).parents[2] / "benchmarks" / "data"

ASKED_FOR = (
    "V100", "T4", "L4", "A100-40", "A100-80", "A800", "A10", "RTX 3090", "RTX 4090", "L40S", "H100", "H100-SXM",
    "H100-PCIe", "H800", "H200", "H20", "GH200", "B200", "B300", "GB200", "GB300", "MI250X", "MI300X", "TPU v4",
    "TPU v5e", "TPU v5p", "TPU v6e", "TPU 7x", "CPU",
)  # fmt: skip

each = pytest.mark.parametrize("one", devices(), ids=lambda one: one.name)


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_device_is_found_by_its_usual_names(name: str) -> None:
    found = device(name)
    assert device(name.lower()) is found
    assert device(name.upper().replace(" ", "-")) is found


@pytest.mark.parametrize("file", ["training_runs.csv", "b200_single_node.csv", "nccl_curves.csv"])
def test_every_device_of_the_published_runs_is_known(file: str) -> None:
    with (DATA / file).open(newline="") as opened:
        names = {row["gpu"].partition("(")[0] for row in csv.DictReader(opened)}
    assert names
    assert [device(name).name for name in sorted(names)]


def test_no_two_devices_share_a_name() -> None:
    names = [name.lower().replace("-", "").replace(" ", "") for one in devices() for name in (one.name, *one.aliases)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@each
def test_every_number_says_where_it_comes_from(one: Device) -> None:
    for name, quantity in one.quantities():
        assert quantity.unit in UNITS, name
        assert quantity.kind in KINDS, name
        assert quantity.kind != "user", name
        assert len(quantity.source) > 8, name
        assert "2017" <= quantity.date[:4] <= "2030", name


@each
def test_numbers_are_sane(one: Device) -> None:
    peaks = {dtype: quantity.value for dtype, quantity in one.peaks}
    ladder = [peaks[dtype] for dtype in ("fp32", "tf32", "bf16", "fp8", "nvfp4") if dtype in peaks]
    assert ladder == sorted(ladder), "a narrower dtype is never slower"
    assert peaks.get("bf16", peaks.get("fp16")) == peaks.get("fp16", peaks.get("bf16"))
    assert one.memory_bandwidth.value < one.memory.value * 1000
    assert one.host_link.bandwidth.value <= 450e9
    if one.name != "CPU":
        assert 10e9 <= one.memory.value <= 300e9
        assert 200e9 <= one.memory_bandwidth.value <= 10e12
        assert 50e12 <= max(peaks.values()) <= 20e15
    if one.island:
        assert one.island.devices == one.island.size.value >= 2
        assert one.host_link.bandwidth.value < one.memory_bandwidth.value
        assert one.island.bandwidth.value < one.memory_bandwidth.value
        assert latency_of(one.island.kind).value < 1e-5
    assert latency_of(one.host_link.kind).unit == "s"
    if one.nic:
        assert one.nic.kind in NIC_KINDS
        assert 1 <= one.nic.rate.value <= 1600


@each
def test_the_table_agrees_with_the_published_one(one: Device) -> None:
    """`hardware.csv` is read again here, by the names in it."""
    with (DATA / "hardware.csv").open(newline="") as opened:
        rows = {row["device"].lower().replace("-", ""): row for row in csv.DictReader(opened)}
    names = [name.lower().replace("-", "") for name in (one.name, *one.aliases)]
    row = next((rows[name] for name in names if name in rows), None)
    if row is None:
        assert not any("hardware.csv" in quantity.source for _, quantity in one.quantities())
        return
    assert one.memory.value == float(row["hbm_gb"]) * 1e9
    assert one.memory_bandwidth.value == float(row["hbm_gb_per_s"]) * 1e9
    assert one.peak("bf16" if "bf16" in one.dtypes else "fp16").value == pytest.approx(
        float(row["peak_bf16_tflops_dense"].partition("(")[0]) * 1e12
    )
    if row["peak_fp8_tflops_dense"]:
        assert one.peak("fp8").value == pytest.approx(float(row["peak_fp8_tflops_dense"]) * 1e12)
    each_way = row["scaleup_gb_per_s_per_dir"].partition("(")[0]
    if one.island and each_way:
        assert one.island.bandwidth.value == float(each_way) * 1e9


def test_peaks_are_dense_links_count_one_direction_and_memory_is_decimal() -> None:
    """Datasheets print 1,979 TFLOP/s (sparse), 900 GB/s (both ways) and 80 GB (not GiB) for one and the same H100."""
    h100 = device("H100")
    assert h100.peak("bf16").value == 989e12
    assert h100.island is not None
    assert h100.island.bandwidth.value == 450e9
    assert h100.memory.value == 80e9


def test_what_the_driver_reports_is_kept_apart_and_is_binary() -> None:
    h100 = device("H100")
    assert h100.driver_memory is not None
    assert h100.driver_memory.value == 81_559 * 2**20
    assert h100.driver_memory.kind == "measured"
    for one in devices():
        if one.driver_memory:
            assert 0.95 <= one.driver_memory.value / (one.memory.value * 1.0737) <= 1.01, one.name


def test_an_unknown_device_is_told_its_neighbours_and_how_to_describe_it() -> None:
    with pytest.raises(DeviceUnknown) as caught:
        device("H101")
    assert "H100-80G" in caught.value.fix
    assert "[[device]]" in caught.value.fix
    assert "bf16_tflops" in caught.value.fix


def test_a_missing_peak_is_an_error_and_not_zero() -> None:
    with pytest.raises(PeakUnknown) as caught:
        device("V100").peak("bf16")
    assert "fp64, fp32, fp16" in caught.value.fix


def test_a_device_without_peaks_or_with_disordered_ones_is_refused() -> None:
    number = given(1.0, "bytes")
    for peaks in ((), (("fp16", number), ("fp64", number)), (("int3", number),)):
        with pytest.raises(DeviceIncomplete):
            Device(
                name="x",
                vendor="x",
                peaks=peaks,
                memory=number,
                memory_bandwidth=number,
                host_link=HostLink(kind="pcie", bandwidth=number),
            )


def test_a_kind_of_link_without_latency_is_refused() -> None:
    assert latency_of("nvlink2") == latency_of("nvlink5")
    with pytest.raises(LinkKindUnknown):
        latency_of("pigeon")


@pytest.mark.parametrize(
    "change",
    [{"value": 0.0}, {"value": float("nan")}, {"unit": "GB"}, {"kind": "guess"}, {"date": "soon"}, {"source": ""}],
    ids=str,
)
def test_a_number_without_provenance_is_refused(change: dict[str, object]) -> None:
    good = {"value": 1.0, "unit": "s", "source": "a paper", "date": "2024-05", "kind": "measured"}
    Quantity(**good)
    with pytest.raises(BadQuantity):
        Quantity(**(good | change))


def test_a_derived_number_is_worth_what_its_weakest_origin_is() -> None:
    paper = Quantity(value=2.0, unit="s", source="a paper", date="2024-05", kind="datasheet")
    both = derived(3.0, "s", "sum", paper, given(1.0, "s"))
    assert (both.kind, both.source, both.date) == ("datasheet", "sum; a paper", "2024-05")
    assert weakest(given(1.0, "s"), paper) is paper


def test_dtypes_are_all_used() -> None:
    assert {dtype for one in devices() for dtype in one.dtypes} == set(DTYPES)


def test_an_unknown_cpu_is_labelled_as_a_stand_in() -> None:
    cpu = device("CPU")
    assert {cpu.memory.kind, cpu.peak("fp32").kind} == {"assumed"}


def test_what_a_device_says_of_itself() -> None:
    """Every number once, under its name; what is not known is left out. Four that share a way have a quarter each."""
    number = [given(float(value), "bytes/s") for value in range(1, 12)]
    least = Device(
        name="x",
        vendor="y",
        peaks=(("fp32", number[0]), ("bf16", number[1])),
        memory=number[2],
        memory_bandwidth=number[3],
        host_link=HostLink(kind="pcie4", bandwidth=number[4]),
    )
    told = [("peak fp32", 1), ("peak bf16", 2), ("memory", 3), ("memory bandwidth", 4), ("host link, pcie4", 5)]
    assert [(name, quantity.value) for name, quantity in least.quantities()] == told
    assert (least.dtypes, least.peak("bf16")) == (("fp32", "bf16"), number[1])
    assert least.host_link.share_bytes_per_s == 5
    most = Device(
        name="x",
        vendor="y",
        peaks=least.peaks,
        memory=number[2],
        driver_memory=number[5],
        memory_bandwidth=number[3],
        island=Island(kind="nvlink4", bandwidth=number[6], size=number[7]),
        host_link=HostLink(kind="pcie4", bandwidth=number[7], sharers=given(4.0, "devices"), memory=number[9]),
        nic=UsualNic(kind="roce", rate=number[10]),
    )
    assert [(name, quantity.value) for name, quantity in most.quantities()] == [
        ("peak fp32", 1),
        ("peak bf16", 2),
        ("memory", 3),
        ("memory that the driver reports", 6),
        ("memory bandwidth", 4),
        ("island, nvlink4", 7),
        ("island size", 8),
        ("host link, pcie4", 8),
        ("devices that share it", 4),
        ("host memory bandwidth, each", 10),
        ("usual NIC, roce", 11),
    ]
    assert most.host_link.share_bytes_per_s == 2
    assert most.island is not None
    assert (most.island.devices, most.island.spans_hosts) == (8, False)


def test_who_does_not_know_a_device_knows_others() -> None:
    """Three at most, those of the cluster too, or all where none is near; and how to give its numbers."""
    described = (
        "; or give its peaks in the cluster's TOML:\n"
        '[[device]]\nname = "{}"\nbf16_tflops = 500\nmemory_gb = 80\nmemory_gb_per_s = 3000\nhost_gb_per_s = 63'
    )
    before = "the nearest known ones are "
    for name, own, names in (("quux_zzyy ww", ("Quux-ZZyy",), ["Quux-ZZyy"]), ("?!", (), list(device_names()))):
        assert unknown_fix(name, own) == before + ", ".join(names) + described.format(name)
    several = unknown_fix("H101").removeprefix(before).partition(";")[0].split(", ")
    assert len(several) == len(set(several)) == 3
    assert set(several) <= set(device_names())
    assert device("h100_sxm") is device("H 100 SXM") is device("H100-80G")
