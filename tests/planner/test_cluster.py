"""`plan cluster show`: what it draws, and what its JSON holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwright.cost_models.hardware import toml as cluster_toml
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.planner.cli.main import main
from meshwright.planner.plan.units import bytes_per_s, decimal_bytes, flops_per_s, seconds
from meshwright.planner.question.clusters import look


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["cluster", "show", *words]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_every_printed_number_says_what_it_is_worth(capsys: pytest.CaptureFixture[str]) -> None:
    for line in printed(capsys, "2x8xH100,inter=100G,price=2"):
        if re.search(r"\d (.?B|.?FLOP|Gb|µs|devices|per)", line) and not line.startswith("["):
            assert re.search(r"measured|fitted|datasheet|user", line), line


def test_json_holds_every_number_with_its_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "2x8xH100,inter=50G", "--json")
    shown = json.loads("\n".join(lines))
    assert lines == json.dumps(shown, indent=2).splitlines()
    assert cluster_toml.read(shown["cluster"]["text"]) == read_cluster("2x8xH100,inter=50G")
    numbers = [*shown["devices"][0]["numbers"], *(link["bandwidth"] for link in shown["links"])]
    assert {key for number in numbers for key in number} == {"name", "value", "unit", "kind", "source", "date"}
    assert [link["tier"] for link in shown["links"]] == ["island", "rail"]
    assert shown["totals"]["memory_bytes"] == 16 * 80e9
    assert shown["totals"]["peaks_flops_per_s"]["bf16"] == 16 * 989e12
    assert "looks like GB/s" in shown["warnings"][0]


def test_a_warning_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.startswith("warning: pool") for line in printed(capsys, "2x8xH100,inter=50G"))
    assert main(["cluster", "show", "2x8xH100,inter=50G", "--json"]) == 0
    assert capsys.readouterr().err.startswith("warning: pool")


def test_totals_of_unlike_pools_are_sums(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'price_per_gpu_hour = 2\n[[pool]]\nname = "a"\nhosts = 1\ngpu = "V100"\ngpus_per_host = 4\n'
        '[[pool]]\nname = "b"\nhosts = 1\ngpu = "H100"\ngpus_per_host = 2\n'
        '[[link]]\nbetween = ["a", "b"]\nkind = "ethernet"\ngbps = 100\nlatency_us = 5\n'
    )
    shown = look(str(path))
    assert shown.memory_bytes == 4 * 32e9 + 2 * 80e9
    assert list(shown.peaks_flops_per_s) == ["fp64", "fp32", "fp16"]
    assert shown.peaks_flops_per_s["fp16"] == 4 * 125e12 + 2 * 989e12
    assert shown.price_per_hour == 12
    assert [sample.where for sample in shown.samples] == ["a", "b", "a - b"]


def test_a_bad_cluster_exits_with_6(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "show", "2x8xH101", "--json"]) == 6
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "DeviceUnknown"
    assert "MW6007" in err


def test_units_of_rates_are_decimal() -> None:
    assert flops_per_s(989e12) == "989 TFLOP/s"
    assert bytes_per_s(450e9) == "450 GB/s"
    assert decimal_bytes(80e9) == "80.0 GB"
    assert (seconds(6e-7), seconds(0.0025), seconds(3)) == ("0.6 µs", "2.5 ms", "3 s")


THREE = """
price_per_gpu_hour = 2
link_matrix = [[0, 20, 30], [20, 0, 40], [30, 40, 0]]
[[device]]
name = "Own"
like = "A100"
memory_gb = 10
[[pool]]
name = "a"
hosts = 2
gpu = "Own"
gpus_per_host = 1
nics = [{ kind = "infiniband", gbps = 200, count = 2 }]
[[pool]]
name = "b"
hosts = 1
gpu = "H100"
gpus_per_host = 2
[[link]]
between = ["a", "b"]
kind = "ethernet"
gbps = 100
latency_us = 5
"""


def test_a_cluster_with_measured_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A matrix of 20 Gb/s between the hosts of the first pool: 2.5 GB/s. Four devices at two an hour."""
    path = tmp_path / "c.toml"
    path.write_text(THREE)
    lines = printed(capsys, str(path), "-v")
    assert lines[0] == f"{path}: 4 ranks on 3 hosts"
    assert lines[1] == "pool a: 2 x 1 Own, ranks 0 to 1"
    assert lines[6] == "pool b: 1 x 2 H100-80G, ranks 2 to 3"
    assert "  NICs of a host: 2 x infiniband, 200 Gb/s (user)" in lines
    assert "  2 per GPU-hour (user)" in lines
    rows = [" ".join(line.split()) for line in lines]
    assert "a 0 - 1 rail infiniband 2.50 GB/s 2.50 GB/s 2.7 µs user, fitted" in rows
    assert "link matrix: 3 x 3, its rates replace those of the pairs that it covers (user)" in lines
    assert "Own, like A100-80G" in lines
    assert lines[-4].startswith("total memory: 180 GB (")
    assert lines[-2:] == ["price: 8.00 per hour (user)", "the weakest provenance among these numbers: datasheet"]
    shown = json.loads("\n".join(printed(capsys, str(path), "--json")))
    assert shown["cluster"]["link_matrix"] == [[0, 20, 30], [20, 0, 40], [30, 40, 0]]
    assert (shown["cluster"]["hosts"], shown["cluster"]["ranks"]) == (3, 4)
    assert [(link["where"], link["tier"], link["ranks"]) for link in shown["links"]] == [
        ("a", "rail", [0, 1]),
        ("b", "island", [2, 3]),
        ("a - b", "pools", [0, 2]),
    ]
    pools = [(pool["name"], pool["hosts"], pool["gpus_per_host"], pool["device"]) for pool in shown["pools"]]
    assert pools == [("a", 2, 1, "Own"), ("b", 1, 2, "H100-80G")]
    assert [(nic["kind"], nic["count"], nic["rate"]["value"]) for nic in shown["pools"][0]["nics"]] == [
        ("infiniband", 2, 200)
    ]
    assert shown["pools"][0]["price_per_gpu_hour"]["value"] == 2
    assert [(one["name"], one["like"]) for one in shown["devices"]] == [("Own", "A100-80G"), ("H100-80G", "")]
    assert shown["totals"]["price_per_hour"] == 8
    assert shown["totals"]["memory_bytes"] == 2 * 10e9 + 2 * 80e9


def many(tmp_path: Path) -> Path:
    """Pools of twelve devices, any two of which have a link of their own."""
    names = ("H100", "A100", "V100", "T4", "L4", "L40S", "H200", "B200", "A10", "RTX 4090", "MI300X", "A100-40G")
    pools = "".join(f'[[pool]]\nname = "{one}"\nhosts = 2\ngpu = "{one}"\ngpus_per_host = 2\n' for one in names)
    nics = "nics = [{ kind = 'ethernet', gbps = 100, count = 1 }]\n"
    links = "".join(
        f'[[link]]\nbetween = ["{one}", "{other}"]\nkind = "ethernet"\ngbps = {10 * at + later + 1}\nlatency_us = 5\n'
        for at, one in enumerate(names)
        for later, other in enumerate(names[at + 1 :])
    )
    path = tmp_path / "many.toml"
    path.write_text(pools.replace("gpus_per_host = 2\n", f"gpus_per_host = 2\n{nics}") + links)
    return path


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_cluster_of_many_pools_fits_a_screen(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first rows of tables, and how many more there are; with -v all of it."""
    monkeypatch.setenv("COLUMNS", str(width))
    path = many(tmp_path)
    short, whole = printed(capsys, str(path)), printed(capsys, str(path), "-v")
    assert max(map(len, (*short[1:], *whole[1:]))) <= width
    assert len(short) <= 45 or width < 80
    said = " ".join(short)
    assert "and 7 more" in said
    assert "With -v: every number of every device" in said
    found = look(str(path))
    for device in found.devices:
        assert device.name in whole
    assert len(found.samples) > 66
    for sample in found.samples:
        assert any(" ".join(line.split()).startswith(f"{sample.where} {sample.ranks[0]} - ") for line in whole)


def test_links_that_are_alike_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    pools = "".join(POOL.format(name) for name in "abc")
    path.write_text(pools + "".join(LINK.format(*pair) for pair in ("ab", "ac", "bc")))
    rows = [" ".join(line.split()) for line in printed(capsys, str(path))]
    assert "a - b and 2 like it 0 - 4 pools ethernet 12.5 GB/s 3.12 GB/s 5 µs user" in rows
    assert "a 2 x 2 H100-80G 0 - 3 2 x infiniband 400 Gb/s 2" in rows
    alike = [row for row in rows if "like it" in row]
    assert len(alike) == 3, "in hosts, between hosts, between pools"


POOL = '[[pool]]\nname = "{}"\nhosts = 2\ngpu = "H100"\ngpus_per_host = 2\nprice_per_gpu_hour = 2\n'
LINK = '[[link]]\nbetween = ["{}", "{}"]\nkind = "ethernet"\ngbps = 100\nlatency_us = 5\n'


def test_what_a_single_host_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    """No price, no adapters, no matrix, and no second pool."""
    lines = printed(capsys, "cpu:2")
    assert lines[0] == "cpu:2: 2 ranks on 1 host"
    assert "  no NICs" in lines
    assert not any(line.startswith(("price", "link matrix", "warning")) for line in lines)
    shown = json.loads("\n".join(printed(capsys, "cpu:2", "--json")))
    assert shown["cluster"]["link_matrix"] is None
    assert shown["pools"][0]["price_per_gpu_hour"] is None
    assert shown["pools"][0]["nics"] == []
    assert shown["totals"]["price_per_hour"] is None
