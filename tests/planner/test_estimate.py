"""`plan estimate` around an evaluator: what is asked, what is planned, what is shown, one or many at a time.

The evaluator here is `FlatRates`, whose prices tests can compute again; the real one is in tests/e2e/test_estimate.py.
"""

from __future__ import annotations

import json
import os
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.profile import published
from meshwright.ir.decisions.text import parse_decisions
from meshwright.ir.errors import CannotRebatch, ForwardRaised
from meshwright.ir.program.reading import parse_program
from meshwright.ir.schedules import Shape, compute_actions
from meshwright.planner.answer import estimates
from meshwright.planner.answer.estimate import STEPS, in_flight
from meshwright.planner.cli.main import main
from meshwright.planner.question import ask, pricing
from tests.planner.flat_rates import FlatRates

ROOT = Path(__file__).parents[2]
LLAMA = f"{ROOT / 'examples' / 'llama.py'}:tiny"
"""Four blocks, four key-value heads."""
MOE = str(ROOT / "examples" / "tiny_decoder.toml")
"""One dense block and five of experts."""
WORKLOAD = ("--global-batch", "16", "--seq", "64")
CLUSTER = ("--cluster", "2x4xA100")


loaded = lru_cache(ask.read_again)
captured: dict[object, Any] = {}


@pytest.fixture(autouse=True)
def flat_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator of these tests; and what was captured once is not captured again, as it takes a second."""
    real = pricing.capture

    def capture(source: Any, **shape: int) -> Any:
        key = (id(source), *shape.items())
        if key not in captured:
            captured[key] = real(source, **shape), source  # held, so that no other has its identity
        return captured[key][0]

    monkeypatch.setattr(pricing, "price_of", lambda cluster, profile: FlatRates(cluster).evaluate)
    monkeypatch.setattr(
        ask, "read_again", lambda reference, dtype, mesh, store: loaded(reference, dtype=dtype, mesh=mesh)
    )
    monkeypatch.setattr(pricing, "capture", capture)


def estimated(capsys: pytest.CaptureFixture[str], *argv: str, model: str = LLAMA, exit_code: int = 0) -> Any:
    assert main(["estimate", model, *CLUSTER, *WORKLOAD, "--json", *argv]) == exit_code
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out == f"{json.dumps(found, indent=2)}\n"
    return found


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


def shown(capsys: pytest.CaptureFixture[str], *argv: str, model: str = LLAMA) -> str:
    assert main(["estimate", model, *CLUSTER, *WORKLOAD, *argv]) == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


# One -----------------------------------------------------------------------------------------------------------------


def test_what_is_left_open_is_filled_in(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimated(capsys, "--fix", "tp=2,pp=2")
    config = found["config"]
    assert (config["dp"], config["mbs"], config["microbatches"]) == (2, 1, 8)
    assert (config["zero"], config["sp"], config["schedule"], config["split"]) == (1, True, "1f1b", "even")
    assert [stage["ranks"] for stage in found["predicted"]["stages"]] == [4, 4]
    assert found["work"] == [{"layers": 2, "in_flight": 2}, {"layers": 2, "in_flight": 1}]


def test_layers_that_do_not_divide_are_shared_with_the_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Six layers on four stages: with embedding and head they are eight."""
    found = estimated(capsys, "--fix", "pp=4", model=MOE)
    assert found["config"]["split"] == "ends"
    assert [one["layers"] for one in found["work"]] == [1, 2, 2, 1]


def test_layers_are_shared_as_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimated(capsys, "--fix", "pp=4,stage_blocks=1+3+1+1", model=MOE)
    assert found["config"]["stage_blocks"] == "1+3+1+1"
    assert [one["layers"] for one in found["work"]] == [1, 3, 1, 1]
    assert estimated(capsys, "--fix", "pp=4", model=MOE)["config"]["stage_blocks"] == ""


def test_the_prediction_is_the_evaluators(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the program that --dump-after lower prints."""
    argv = ("--fix", "tp=2,pp=2,vp=2,zero=2,recompute=full")
    program = parse_program(shown(capsys, *argv, "--dump-after", "lower"))
    expected = FlatRates(read_cluster(CLUSTER[1])).evaluate(program).to_json()
    assert estimated(capsys, *argv)["predicted"] == expected
    assert shown(capsys, *argv, "--dump-after", "evaluate") == json.dumps(expected, indent=2)


def test_every_step_is_dumped(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--fix", "tp=2", "--stack", "megatron", "--dump-after")
    assert set(STEPS) == {"load", "fold", "decide", "lower", "evaluate"}
    assert "blocks.3.feed_forward" in shown(capsys, *argv, "load")
    assert "Block" in shown(capsys, *argv, "fold")
    decisions = parse_decisions(shown(capsys, *argv, "decide"))
    assert decisions.style == "fused"
    assert decisions.stages[0].mesh.size == 8


def test_micro_batch_is_a_pin_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert estimated(capsys, "--micro-batch", "2")["config"] == estimated(capsys, "--fix", "mbs=2")["config"]


def test_the_batch_that_a_model_is_captured_at_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written anew from another batch, or captured at once."""
    argv = ("--cluster", "1x1xA100", "--fix", "mbs=8")
    direct = estimated(capsys, *argv)
    monkeypatch.setattr(pricing.Folds, "first", lambda folds, batch: _first(folds, 4))
    assert estimated(capsys, *argv) == direct


_first = pricing.Folds.first


def test_where_a_batch_cannot_be_written_the_model_is_captured_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("--cluster", "1x1xA100", "--fix", "mbs=1")
    rewritten = estimated(capsys, *argv)
    asked: list[int] = []

    def refuse(fold: object, batch: int) -> None:
        asked.append(batch)
        raise CannotRebatch(place="fold", cause="a test", fix="none")

    monkeypatch.setattr(pricing, "with_batch", refuse)
    assert estimated(capsys, *argv)["predicted"] == rewritten["predicted"]
    assert asked == [1]


def test_in_flight_is_what_the_schedule_keeps() -> None:
    """1F1B keeps one micro-batch per stage that follows, itself included; GPipe all of them."""
    stages: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (3,))
    for name, kept in (("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8])):
        lists = compute_actions(name, Shape(stages, 8))
        assert [in_flight(actions)[stage] for stage, actions in enumerate(lists)] == kept


def test_fits_or_what_is_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tight = tmp_path / "tight.toml"
    tight.write_text(
        '[[device]]\nname = "Tiny"\nlike = "A100"\nmemory_gb = 0.0005\n'
        '[[pool]]\nname = "p"\nhosts = 2\ngpu = "Tiny"\ngpus_per_host = 4\n'
    )
    argv = ("--cluster", str(tight), "--fix", "pp=2")
    found = estimated(capsys, *argv)
    assert found["fits"] is found["predicted"]["fits"] is False
    for entry in found["short"]:
        stage = found["predicted"]["stages"][entry["stage"]]
        assert entry["bytes"] == stage["peak_memory_bytes"] - stage["capacity_bytes"] > 0
    assert "fits          no: short " in shown(capsys, *argv)
    assert estimated(capsys, *argv, "--check", exit_code=3) == found
    assert estimated(capsys, "--check")["short"] == []


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--fix", "tp=2,pp=4", "--stack", "megatron", "--dtype", "fp8_tensorwise")
    found = estimated(capsys, "--fix", "tp=2,pp=4", "--stack", "megatron", "--dtype", "fp8_tensorwise")
    assert f"digest {found['model']['digest']}" in text
    assert "16 x 64 tokens in fp8_tensorwise with adamw" in text
    assert "8 ranks (A100-80G) on 2 hosts" in text
    assert "stack megatron: fused kernels, recipe megatron; target any" in text
    assert "configuration tp=2,pp=4,dp=1,zero=0,mbs=1,microbatches=16,recompute=none,schedule=1f1b" in text
    assert "less a margin of" in text
    assert "provenance: compute fitted, collectives measured, memory datasheet" in text
    assert "no better than datasheet (uncalibrated" in text
    assert "bubble" in text
    assert "\ntensor" not in text  # nothing was spent on it


@pytest.mark.parametrize("kind", ["full_layers:1", "selective:core_attn+layernorm", "selective_op"])
def test_recomputation_has_shades(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    none, full, between = (
        estimated(capsys, "--fix", f"recompute={word}")["predicted"] for word in ("none", "full", kind)
    )
    assert none["step_time_s"] < between["step_time_s"] < full["step_time_s"]
    assert full["peak_memory_bytes"] < between["peak_memory_bytes"] <= none["peak_memory_bytes"]


def test_what_waits_on_the_host_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the real evaluator."""
    monkeypatch.setattr(pricing, "price_of", lambda cluster, profile: Evaluator(cluster, published()))
    plain, there = (estimated(capsys, "--fix", f"offload={word}")["predicted"] for word in ("none", "optimizer"))
    assert there["peak_memory_bytes"] < plain["peak_memory_bytes"]
    assert there["shares"]["host"] > 0 == plain["shares"]["host"]
    assert there["traffic"]["host"] > 0
    assert "host" not in plain["traffic"]
    assert there["stages"][0]["host_bytes"] > plain["stages"][0]["memory"]["optimizer"]
    (line,) = priced(capsys, written(tmp_path, {"offload": "optimizer"}))
    assert line["predicted"] == there
    text = shown(capsys, "--fix", "offload=optimizer+activations:2,pp=2")
    assert "offload=optimizer+activations:2" in text
    assert "\nhost memory   " in text
    assert "\nhost " in text
    dump = shown(capsys, "--fix", "offload=optimizer", "--dump-after", "decide")
    assert "\n  offload optimizer\n" in dump


def test_stages_that_show_the_same_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--fix", "pp=4,schedule=gpipe")
    assert re.search(r"^1-2 +1 +2 ", text, re.MULTILINE)


def test_precision_decides_dtype_and_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "examples" / "configs" / "gpt2")
    traced = {
        dtype: shown(capsys, "--dtype", dtype, "--dump-after", "fold", model=config)
        for dtype in ("tf32", "fp8_blockwise")
    }
    assert "bf16" not in traced["tf32"]
    assert "bf16" in traced["fp8_blockwise"]
    assert estimated(capsys, "--dtype", "tf32")["workload"]["recipe"] == "fp32"
    assert estimated(capsys, "--dtype", "tf32", "--recipe", "bf16")["workload"]["recipe"] == "bf16"
    assert estimated(capsys, "--style", "xla")["workload"]["stack"] == "jax"


def test_a_model_that_micro_batches_change_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{ROOT / 'tests' / 'e2e' / 'odd_model.py'}:build"
    notes = estimated(capsys, "--cluster", "1x1xA100", "--fix", "microbatches=4", model=model)["notes"]
    assert any("batch_norm" in note for note in notes)
    assert not any("batch_norm" in note for note in estimated(capsys, "--fix", "mbs=2", model=model)["notes"])


# Refusals ------------------------------------------------------------------------------------------------------------

REFUSALS = {
    "no global batch": (LLAMA, [*CLUSTER, "--seq", "64"], 2, "WorkloadMissing", "--global-batch"),
    "no sequence": (LLAMA, [*CLUSTER, "--global-batch", "16"], 2, "WorkloadMissing", "--seq"),
    "unknown pin": (LLAMA, ["--fix", "tpp=2"], 2, "PinUnknown", "'tp'"),
    "pin without value": (LLAMA, ["--fix", "tp"], 2, "PinValue", "tp=1"),
    "pin twice": (LLAMA, ["--fix", "tp=2", "--fix", "tp=4"], 2, "PinRepeated", "2 and 4"),
    "micro-batch twice": (LLAMA, ["--fix", "mbs=2", "--micro-batch", "1"], 2, "PinRepeated", "mbs=2"),
    "contradiction": (LLAMA, ["--fix", "vp=2"], 2, "PinsContradict", "pp"),
    "recomputation": ("missing.py:f", ["--fix", "recompute=selective:attn"], 2, "DegreeImpossible", "core_attn"),
    "ranks": (LLAMA, ["--fix", "tp=2,pp=2,dp=1"], 2, "RanksMismatch", "multiply to 4"),
    "batch": (LLAMA, ["--fix", "mbs=3"], 2, "BatchIndivisible", "8 * 3"),
    "heads": (LLAMA, ["--fix", "tp=8"], 2, "HeadsIndivisible", "one of 1, 2, 4"),
    "layers": (LLAMA, ["--fix", "pp=8"], 2, "DegreeImpossible", "4 blocks"),
    "experts": (LLAMA, ["--fix", "ep=2"], 2, "ExpertsIndivisible", "no experts"),
    "style of a stack": (LLAMA, ["--stack", "jax", "--style", "eager"], 2, "WorkloadImpossible", "xla"),
    "target": (LLAMA, ["--target", "torch-cud"], 2, "WorkloadImpossible", "torch-cuda"),
    "step": ("missing.py:f", ["--dump-after", "lwer"], 2, "UnknownStep", "lower"),
    "cluster": (LLAMA, ["--cluster", "2x8xH101"], 6, "DeviceUnknown", "H101"),
    "bytes for bits": (LLAMA, ["--cluster", "2x4xA100,inter=25GB/s"], 6, "ClusterValueBad", "inter=200G"),
    "model": ("missing.py:f", [], 2, "ModelFileMissing", "missing.py"),
    "no file": (LLAMA, ["--configs", "missing.jsonl"], 2, "ConfigsUnreadable", "missing.jsonl"),
    "offload": ("missing.py:f", ["--fix", "offload=optimiser"], 2, "PinValue", "'optimizer'"),
    "blocks on the host": (LLAMA, ["--fix", "pp=2,offload=activations:3"], 2, "OffloadImpossible", "activations:2"),
    "a host that a target does not use": (
        LLAMA,
        ["--target", "torch-cuda", "--fix", "offload=activations,recompute=full"],
        6,
        "CombinationNotExpressible",
        "activations on the host beside blocks computed again",
    ),
    "what a target cannot do": (
        LLAMA,
        ["--target", "torch-gloo", "--fix", "pp=2,vp=2,schedule=dualpipev,microbatches=2"],
        6,
        "MicrobatchesNotExpressible",
        "at least 4",
    ),
}
"""MODEL, arguments, the exit code, the kind of error, and what the message must name."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, argv, exit_code, kind, told = REFUSALS[name]
    asked = argv if name.startswith("no ") and "--cluster" in argv else [*CLUSTER, *WORKLOAD, *argv]
    assert main(["estimate", model, *asked, "--json"]) == exit_code
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["exit_code"] == exit_code
    assert error["kind"] == kind or not kind
    assert told in printed.err
    assert error["fix"]


# Many ----------------------------------------------------------------------------------------------------------------

CONFIGS = [
    {"tp": 2, "pp": 4},
    {"tp": 2, "pp": 2, "dp": 2, "mbs": 1, "recompute": "full", "zero": 1, "schedule": "1f1b"},
    {"pp": 2, "vp": 2, "mbs": 2, "sp": False},
    {"global_batch": 32, "recompute": "selective"},
    {"tp": 2, "zero": 3},
]


def priced(capsys: pytest.CaptureFixture[str], path: Path, *argv: str, exit_code: int = 0) -> list[Any]:
    assert main(["estimate", LLAMA, *CLUSTER, *WORKLOAD, "--configs", str(path), "--json", *argv]) == exit_code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "configs.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_many_are_priced_as_each_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = priced(capsys, written(tmp_path, *CONFIGS))
    assert [line["index"] for line in lines] == list(range(len(CONFIGS)))
    for given, line in zip(CONFIGS, lines, strict=True):
        pins = {name: value for name, value in given.items() if name != "global_batch"}
        fix = ",".join(f"{name}={'off' if value is False else value}" for name, value in pins.items())
        batch = str(given.get("global_batch", 16))
        alone = estimated(capsys, "--fix", fix, "--global-batch", batch)
        assert {key: line[key] for key in ("config", "predicted", "fits")} == {
            key: alone[key] for key in ("config", "predicted", "fits")
        }
        assert line["global_batch"] == int(batch)


def test_jobs_and_windows_change_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, *CONFIGS, *reversed(CONFIGS))
    one = priced(capsys, path, "--jobs", "1")
    monkeypatch.setattr(estimates, "WINDOW", 3)
    monkeypatch.setattr(estimates, "MOST_TOGETHER", 2)
    assert priced(capsys, path, "--jobs", "3") == one


def test_what_is_fixed_holds_where_a_line_leaves_it_open(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = priced(capsys, written(tmp_path, {"pp": 2}, {"tp": 1}), "--fix", "tp=2,recompute=full")
    assert [(line["config"]["tp"], line["config"]["recompute"]) for line in lines] == [(2, "full"), (1, "full")]


BAD = {
    "no JSON": ("{'tp': 8}", "ConfigLineBad"),
    "no object": ("[8]", "ConfigLineBad"),
    "unknown pin": ('{"tpp": 8}', "PinUnknown"),
    "bad value": ('{"tp": "two"}', "PinValue"),
    "bad batch": ('{"global_batch": "16"}', "PinValue"),
    "ranks": ('{"tp": 3}', "RanksMismatch"),
    "batch": ('{"mbs": 5}', "BatchIndivisible"),
    "heads": ('{"tp": 8}', "HeadsIndivisible"),
    "layers": ('{"pp": 8}', ""),
}


def test_a_bad_line_stops_no_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS[0], "", *(text for text, _ in BAD.values()), CONFIGS[1])
    assert main(["estimate", LLAMA, *CLUSTER, *WORKLOAD, "--configs", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    first, *bad, last = (json.loads(line) for line in out.splitlines())
    assert first["fits"]
    assert last["fits"]
    for number, line, (name, (_, kind)) in zip(range(3, 99), bad, BAD.items(), strict=False):
        assert line["line"] == number, name
        assert line["error"]["kind"] == kind or not kind, name
        assert f"{path}:{number}: error {line['error']['code']}" in err
    assert len(bad) == len(BAD)


def test_if_no_line_can_be_priced_the_exit_code_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (line,) = priced(capsys, written(tmp_path, {"tp": 3}), exit_code=2)
    assert line["config"] == {"tp": 3}


def test_an_empty_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for content in (b"", b"\n \n", b"\xff\xfe"):
        (tmp_path / "configs.jsonl").write_bytes(content)
        argv = [*CLUSTER, *WORKLOAD, "--configs", str(tmp_path / "configs.jsonl")]
        assert main(["estimate", LLAMA, *argv]) == 2
        assert "MW8008" in capsys.readouterr().err


def test_lines_may_bring_their_own_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, {"global_batch": 8}, {"tp": 2})
    assert main(["estimate", LLAMA, *CLUSTER, "--seq", "64", "--configs", str(path), "--json"]) == 0
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert good["global_batch"] == 8
    assert bad["error"]["kind"] == "WorkloadMissing"


def test_check_asks_for_one_that_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, *CONFIGS)
    priced(capsys, path, "--check")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates.Prediction, "fits", property(lambda _: False))
        priced(capsys, path, "--check", exit_code=3)


def test_a_lost_process_costs_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "TIME_LIMIT_S", 2.0)
    predict = pricing.Setting.predict

    def sabotaged(setting: pricing.Setting, config: Any, global_batch: int) -> Any:
        if config.recompute == "selective":
            os._exit(9)
        if config.zero == 3:
            time.sleep(600)
        if config.vp == 2:
            raise ZeroDivisionError("oops")
        return predict(setting, config, global_batch)

    monkeypatch.setattr(pricing.Setting, "predict", sabotaged)
    kinds = [line.get("error", {}).get("kind") for line in priced(capsys, written(tmp_path, *CONFIGS))]
    assert kinds == [None, None, "InternalError", "PricingLost", "PricingLost"]


def test_a_batch_at_which_the_model_cannot_be_captured_costs_its_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pricing.Folds._made

    def refuse(folds: pricing.Folds, batch: int) -> Any:
        if batch == 16:
            raise ForwardRaised(place="batch", cause="sixteen", fix="none")
        return made(folds, batch)

    monkeypatch.setattr(pricing.Folds, "_made", refuse)
    lines = priced(capsys, written(tmp_path, {"mbs": 1}, {"mbs": 2}))
    assert ["error" in line for line in lines] == [False, True]


def test_the_table_ranks_what_fits_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, *CONFIGS, {"tp": 3})
    lines = [line for line in priced(capsys, path) if "error" not in line]
    best = sorted(lines, key=lambda line: line["predicted"]["step_time_s"])
    assert main(["estimate", LLAMA, *CLUSTER, *WORKLOAD, "--configs", str(path), "--top", "3"]) == 0
    out = capsys.readouterr().out
    ranked = re.findall(r"^([1-9]) +(\d+) ", out, re.MULTILINE)
    assert [int(number) for _, number in ranked] == [line["line"] for line in best[:3]]
    assert "5 priced, 5 of them fit; 1 could not be priced; 2 more are not shown (--top)" in out
