"""Questions in Python have the answers of the command line."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.ir.errors import MeshwrightError, NoPlanFits, PinValue, PlanUnwritable
from meshwright.planner.api.asking import words
from meshwright.planner.api.model import named
from meshwright.planner.cli.main import main
from meshwright.planner.plan.file import plan_text

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = str(EXAMPLES / "tiny_decoder.toml")
WORKLOAD: dict[str, Any] = {"global_batch": 8, "seq": 64}


def by_command(folder: Path, *words_: str) -> str:
    asked = [MODEL, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "64", *words_]
    assert main(["plan", *asked, "--out", str(folder), "--force"]) == 0
    return (folder / "plan.json").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ()),
        ({"fix": {"tp": 2}, "objective": "memory"}, ("--fix", "tp=2", "--objective", "memory")),
        (
            {"allow": {"zero": [0, 1]}, "forbid": "tp", "top": 2},
            ("--allow", "zero=0|1", "--forbid", "tp", "--top", "2"),
        ),
        ({"fix": ["dp=2", "sp=off"], "optimizer": "sgd"}, ("--fix", "dp=2", "--fix", "sp=off", "--optimizer", "sgd")),
        ({"micro_batch": 2, "dtype": "fp32", "seed": 3}, ("--micro-batch", "2", "--dtype", "fp32", "--seed", "3")),
    ],
)
def test_a_plan_is_that_of_the_command_line(given: Any, said: tuple[str, ...], tmp_path: Path) -> None:
    plan = meshwright.plan(MODEL, "cpu:2", **WORKLOAD, **given)
    assert plan_text(plan) == by_command(tmp_path, *said)
    assert str(plan.config) in repr(plan)
    assert len(repr(plan).splitlines()) == 1


def test_a_cluster_may_be_at_hand() -> None:
    """It is the same plan, of a cluster without a name."""
    by_name = meshwright.plan(MODEL, "cpu:2", **WORKLOAD)
    at_hand = meshwright.plan(MODEL, meshwright.read_cluster("cpu:2"), **WORKLOAD)
    assert at_hand.decisions == by_name.decisions
    assert at_hand.prediction == by_name.prediction
    assert at_hand.machines.ref == "Python"


def test_a_model_may_be_a_function_or_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    """A function of a file is that file's; one with hooks, and a module, are as they stand."""
    sys.path.append(str(EXAMPLES))
    import llama

    reference = f"{EXAMPLES / 'llama.py'}:tiny"
    hooks: dict[str, Any] = {"example_inputs": llama.example_inputs, "loss": llama.loss}
    plans = [
        meshwright.plan(model, "cpu:2", **WORKLOAD, **given)
        for model, given in [
            (reference, {}),
            (llama.tiny, {}),
            (llama.tiny, hooks),
            (llama.tiny(), hooks),
        ]
    ]
    assert len({str(plan.config) for plan in plans}) == 1
    assert [plan.model.ref for plan in plans] == [reference, reference, "tiny in Python", "Llama in Python"]
    assert plans[0] == plans[1]
    assert capsys.readouterr().err.count("executes the file") == 2  # where it was named


def test_a_file_that_asks_while_it_is_loaded_is_told_to_wait(tmp_path: Path) -> None:
    """Else it would be loaded without end."""
    file = tmp_path / "asking.py"
    asks = 'meshwright.plan(tiny, "cpu:2", global_batch=8, seq=64)'
    file.write_text(
        f"import sys\nimport meshwright\nsys.path.append({str(EXAMPLES)!r})\nfrom llama import *\n"
        f"def tiny():\n    return Llama(**{{}})\n{asks}\n"
    )
    with pytest.raises(MeshwrightError, match="while that is being loaded"):
        meshwright.plan(f"{file}:tiny", "cpu:2", **WORKLOAD)


def test_a_function_of_a_notebook_has_no_file() -> None:
    space: dict[str, Any] = {}
    exec("def make():\n    return 1", space)  # noqa: S102
    with pytest.raises(MeshwrightError, match="MW1003 at Python"):
        named(space["make"], {})


def test_changed_questions_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["hosts=1", "global_batch=16"]
    found = meshwright.what_if(MODEL, "cpu:2", changes, **WORKLOAD, fix={"tp": 2}, top=1)
    asked = [MODEL, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "64", "--fix", "tp=2", "--top", "1"]
    assert main(["plan", *asked, *(word for one in changes for word in ("--what-if", one)), "--json"]) == 0
    assert [one.to_json() for one in found] == json.loads(capsys.readouterr().out)["what_if"]
    assert repr(found[0]).startswith("WhatIf(hosts=1, 1.000 of the step before: Plan(tp=2,")
    assert found[0].before == meshwright.plan(MODEL, "cpu:2", **WORKLOAD, fix={"tp": 2}, top=1)
    with pytest.raises(MeshwrightError, match="MW8003"):
        meshwright.what_if(MODEL, "cpu:2", "hosts=1", seq=64)


def test_sizes_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = meshwright.scale(MODEL, "cpu:2", [2, 1], scaling="weak", **WORKLOAD, fix={"tp": 1})
    asked = [MODEL, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "64", "--fix", "tp=1"]
    assert main(["plan", *asked, "--scale", "1..2", "--scaling", "weak", "--json"]) == 0
    assert found.to_json() == json.loads(capsys.readouterr().out)
    assert found.sizes[-1].plan is not None
    assert len(repr(found).splitlines()) == 2
    with pytest.raises(MeshwrightError, match="did you mean 'weak'"):
        meshwright.scale(MODEL, "cpu:2", "1..2", scaling="week", **WORKLOAD)


def test_a_limit_of_time_is_of_this_question() -> None:
    """Not of the machine's clock: a plan that is found long before it is whole."""
    assert meshwright.plan(MODEL, "cpu:2", **WORKLOAD, time_limit=600).bounds.complete


def test_an_estimate_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = meshwright.estimate(MODEL, "cpu:2", **WORKLOAD, fix="tp=2")
    asked = [MODEL, "--cluster", "cpu:2", "--global-batch", "8", "--seq", "64", "--fix", "tp=2"]
    assert main(["estimate", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"]["step_time_s"] == found.prediction.step_time_s
    assert repr(found).startswith("Estimate(tp=2,pp=1,dp=1,")


def test_an_explanation_is_that_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = meshwright.plan(MODEL, "cpu:2", **WORKLOAD)
    assert meshwright.save_plan(plan, tmp_path / "new") == tmp_path / "new" / "plan.json"
    assert meshwright.load_plan(tmp_path / "new") == plan
    assert main(["explain", str(tmp_path / "new"), "--why-not", "tp=2", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    for given in (plan, tmp_path / "new"):
        found = meshwright.explain(given, why_not={"tp": 2})
        assert json.loads(json.dumps(found.to_json())) == expected
        assert f"why not tp=2? {expected['why_not']['verdict']}" in str(found)
    assert "why not" not in repr(meshwright.explain(plan))
    with pytest.raises(PinValue, match="names no pin"):
        meshwright.explain(plan, why_not={})


def test_a_plan_in_a_notebook_is_a_table_without_markup_of_others() -> None:
    from dataclasses import replace

    plan = meshwright.plan(MODEL, "cpu:2", **WORKLOAD)
    shown = replace(plan, model=replace(plan.model, ref="<script>1</script>"))._repr_html_()
    assert shown.startswith("<table><tr>")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_where_nothing_fits_it_is_said_by_how_much() -> None:
    with pytest.raises(NoPlanFits, match=r"(?s)MW7011 .* short .* GiB .*fix: what would help, each tried: "):
        meshwright.plan(str(EXAMPLES / "configs" / "llama-3.1-8b"), "1x8xT4", global_batch=8, seq=8192)


def test_what_cannot_be_asked_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(MeshwrightError, match="did you mean"):
        meshwright.plan(MODEL, "cpu:2", **WORKLOAD, fix={"zerro": 1})
    with pytest.raises(PlanUnwritable):
        meshwright.save_plan(meshwright.plan(MODEL, "cpu:2", **WORKLOAD), MODEL)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (None, []),
        ("tp=2,pp=4", ["tp=2,pp=4"]),
        (("tp=2", "layers.*:recompute"), ["tp=2", "layers.*:recompute"]),
        ({"tp": 2, "sp": False, "zero": (1, 3)}, ["tp=2", "sp=off", "zero=1|3"]),
    ],
)
def test_wishes_are_words_of_the_command_line(wish: Any, expected: list[str]) -> None:
    assert words(wish) == expected


def test_what_is_public_costs_nothing_to_import() -> None:
    script = (
        "import time, sys; t = time.process_time(); import meshwright; print(time.process_time() - t, len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout.split()[0]) < 0.15


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cell by cell, as it would be run; what the last line of a cell gives is what it shows."""
    monkeypatch.chdir(EXAMPLES)
    cells = json.loads((EXAMPLES / "plan.ipynb").read_text())["cells"]
    space: dict[str, Any] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            *body, last = ast.parse("".join(cell["source"])).body
            value = None
            if not isinstance(last, ast.Expr):
                body, last = [*body, last], None
            exec(compile(ast.Module(body, []), "cell", "exec"), space)  # noqa: S102
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)  # noqa: S307
            shown.append(value)
    assert isinstance(shown[0], meshwright.Plan)
    assert shown[1] >= 1 - space["plan"].bounds.gap
    assert isinstance(shown[3], meshwright.Estimate)
    assert shown[4] is True
    said = capsys.readouterr().out
    assert "why not tp=8?" in said
    assert "error MW" in said
