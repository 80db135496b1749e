"""docs/plan.md: the options and the keys that it names are those that there are; and a real model, planned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from meshwright.planner.cli.main import build_parser, main
from meshwright.planner.cli.verbs.plans.plan import AFTER, BEFORE
from meshwright.planner.cli.views.plans.plan import show
from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.schema import PlanTable
from tests.e2e.spine import EXAMPLES
from tests.e2e.test_inspect import keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plan.md").read_text()
TINY = f"{EXAMPLES / 'llama.py'}:tiny"
MOE = str(EXAMPLES / "tiny_decoder.toml")
TIGHT = """
[[device]]
name = "Tight"
like = "A100"
memory_gb = 1.09
[[pool]]
name = "p"
hosts = 1
gpu = "Tight"
gpus_per_host = 2
nics = [{kind = "infiniband", gbps = 25, count = 2}]
"""


def documented() -> list[str]:
    return re.findall(r"^\| `([a-z][^`]*)` \|", PAGE[PAGE.index("## `plan.json`") :], re.MULTILINE)


def starred(key: str, known: list[str]) -> str:
    """A key as the page writes it: names that vary are a star, and so are lists in lists."""
    if key.replace("[][]", "[]") in known:
        return key.replace("[][]", "[]")
    return next((name for name in known if name.endswith("*") and key.startswith(name[:-1])), key)


@pytest.mark.e2e
def test_the_documented_keys_are_the_written_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between them, plans fill every list: things sharded and forbidden, notes, baselines that cannot be or do not
    fit."""
    (tmp_path / "tight.toml").write_text(TIGHT)
    tight = (TINY, "--cluster", str(tmp_path / "tight.toml"), "--global-batch", "4", "--seq", "4096")
    roomy = ("--cluster", "1x4xA100", "--global-batch", "8", "--seq", "64")
    found: list[Any] = []
    for argv in (
        (*tight, "--forbid", "tp=2,recompute"),
        (TINY, *roomy, "--fix", "zero=3,recompute=full,dp=4"),
        (MOE, *roomy, "--fix", "pp=1,mbs=1,recompute=none,head:sharding=replicate"),
    ):
        assert main([*argv, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    known = documented()
    emitted = {starred(key, known) for one in found for key in keys(one)}
    lists = {"offload[]", "schedule.actions[]", "provenance.profile.measured"}  # nothing unless someone asks for them
    assert emitted | lists == set(known)
    assert len(known) == len(set(known))
    assert {re.split(r"[.\[]", key)[0] for key in known} == set(PlanTable.model_fields)


def test_the_page_names_every_option_and_step() -> None:
    options = re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE)
    workload = re.findall(r"`(--[a-z-]+)`", PAGE.split("## Options")[1].split("| option |")[0])
    parsed = vars(build_parser().parse_args(["plan", "m", "--cluster", "c"]))
    named = {option.lstrip("-").replace("-", "_") for option in (*options, *workload)}
    assert named | {"model", "cluster", "module", "verb", "detail"} == set(parsed)
    assert "\n| `-v`, `--verbose` |" in PAGE
    assert "\n| `-q`, `--quiet` |" in PAGE
    assert parsed["target"] is None
    row = next(line for line in PAGE.splitlines() if line.startswith("| `--dump-after"))
    assert all(f"`{step}`" in row for step in (*BEFORE, *AFTER))


@pytest.mark.e2e
def test_a_real_model_from_its_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And docs/plan.md and README.md show what is printed of it."""
    monkeypatch.chdir(ROOT)
    argv = ("examples/configs/llama-3.1-8b", "--cluster", "8x8xH100", "--global-batch", "128", "--seq", "8192")
    assert main([*argv, "--max-gap", "0.02", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predicted"]["fits"]
    assert len([one for one in found["baselines"] if one["config"]]) == 5
    assert all(one["slower"] >= 1 for one in found["baselines"] if one["fits"])
    assert sum(stage["blocks"].get("LlamaDecoderLayer", 0) for stage in found["stages"]) == 32
    assert found["bounds"]["lower_s"] <= found["predicted"]["step_time_s"]
    show(load_plan(tmp_path), Path("out/plan.json"))
    shown = f"```console\n$ plan {' '.join(argv)} --out out\n{capsys.readouterr().out}```"
    assert shown in PAGE
    assert shown in (ROOT / "README.md").read_text()
