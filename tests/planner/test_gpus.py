"""`plan gpus`: every device of the table with its numbers, and each number with where it is from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwright.cost_models.compute.known import all_known, known
from meshwright.cost_models.hardware.devices import devices, latency_of
from meshwright.planner.cli.main import main
from meshwright.planner.cli.views.machines.numbers import shown

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "cost_models" / "profiles" / "devices.json").read_text())
CHIPS = json.loads((ROOT / "cost_models" / "profiles" / "compute.json").read_text())


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["gpus", *words]) == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


def test_every_device_has_a_line_by_vendor_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(named) == sorted(entry["name"] for entry in DATA["devices"])
    vendors = {entry["name"]: entry["vendor"] for entry in DATA["devices"]}
    peaks = {entry["name"]: entry["peaks_flops_per_s"] for entry in DATA["devices"]}
    order = [vendors[name] for name in named]
    assert list(dict.fromkeys(order)) == [*sorted(set(order) - {"any"}), "any"]
    for vendor in set(order):
        speeds = [
            (peaks[name].get("bf16") or peaks[name].get("fp16") or [0])[0] for name in named if vendors[name] == vendor
        ]
        assert speeds == sorted(speeds, reverse=True)
    (h100,) = (line for line in lines if line.startswith("  H100-80G "))
    assert re.sub(r" {2,}", " | ", h100.strip()) == (
        "H100-80G | 80.0 GB | 989 TFLOP/s | 1.98 PFLOP/s | 3.35 TB/s | nvlink4 450 GB/s x 8 | pcie5 63.0 GB/s | "
        "infiniband 400 Gb/s | 80.33 % measured | datasheet"
    )
    (v100,) = (line for line in lines if line.startswith("  V100-32G "))
    assert "125 TFLOP/s (fp16)" in v100
    (rack,) = (line for line in lines if line.startswith("  GB200 "))
    assert "nvlink5 900 GB/s x 72 (across hosts, 64 a job)" in rack
    assert rack.endswith(" assumed"), "schedulers' segments are"


@pytest.mark.parametrize("entry", DATA["devices"], ids=lambda entry: entry["name"])
def test_all_that_is_known_of_one_is_in_json(entry: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    """By any of its names; every pair of a value and a source in the entry, and the shares of its chip."""
    for name in (entry["name"], *entry["aliases"]):
        (found,) = json.loads(printed(capsys, name.lower(), "--json"))["devices"]
        assert found["name"] == entry["name"]
    told = {(number["value"], number["source"]) for number in found["numbers"]}
    chip = CHIPS["chips"].get(entry["name"])
    for pair in pairs(entry):
        assert (pair[0], DATA["sources"][pair[1]]["document"]) in told
    for share, source in chip["ceilings"].values() if chip else ():
        assert (share, CHIPS["sources"][source]["document"]) in told
    assert found["architecture"] == (chip["architecture"] if chip else None)
    assert {key for number in found["numbers"] for key in number} == {"name", "value", "unit", "kind", "source", "date"}
    assert found["aliases"] == entry["aliases"]


def pairs(found: object) -> list[tuple[float, str]]:
    """The pairs of a number and a source that stand in a document."""
    if isinstance(found, dict):
        return [pair for value in found.values() for pair in pairs(value)]
    if isinstance(found, list) and len(found) == 2 and isinstance(found[1], str) and not isinstance(found[0], str):
        return [(found[0], found[1])]
    return []


def test_every_number_of_one_is_printed_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("GB200", "V100", "MI300X", "TPU-v5e", "CPU"):
        lines = printed(capsys, name).splitlines()
        one = known(name)
        for number, quantity in one.quantities():
            (line,) = (line for line in lines if line.startswith(f"{number}  "))
            found = re.fullmatch(rf"{re.escape(number)} +{re.escape(shown(quantity))}  (\w+) \[(\d+)\]", line)
            assert found, line
            assert found[1] == quantity.kind
            assert f"[{found[2]}] {quantity.source}, {quantity.date}" in lines


def test_links_have_their_latency_and_every_peak_a_share() -> None:
    for one in all_known():
        numbers = dict(one.quantities())
        assert numbers[f"latency, {one.device.host_link.kind}"] == latency_of(one.device.host_link.kind)
        shares = [name.partition(", ")[2].split(", ") for name in numbers if name.startswith("share of the peak")]
        told = {dtype for names in shares for dtype in names}
        assert told | ({"bf16", "fp16"} if told & {"bf16", "fp16"} else set()) >= set(one.device.dtypes)
        assert 0 < one.reached.value <= 1
    assert {one.device.name for one in all_known()} == {one.name for one in devices()}


def test_an_unknown_one_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "H10O", "--json"]) == 6
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["code"], error["place"]) == ("MW6007", "device 'H10O'")
    assert "H100-80G" in error["fix"]
    assert err.startswith("error MW6007 at device 'H10O'")
