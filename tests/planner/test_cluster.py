"""`plan cluster show`: what it draws, what its JSON holds, and that its page shows what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwright.cost_models import cluster_toml
from meshwright.cost_models.cluster_text import read_cluster
from meshwright.planner.cli import main
from meshwright.planner.cluster import look
from meshwright.planner.units import bytes_per_s, decimal_bytes, flops_per_s, seconds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["cluster", "show", *words]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_page_shows_what_plan_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = re.findall(r"```console\n\$ plan cluster show (.*)\n((?:.*\n)*?)```", PAGE.read_text())
    assert examples
    for words, shown in examples:
        assert printed(capsys, *words.split()) == shown.splitlines()


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
