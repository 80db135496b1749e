"""What `plan` answers can be emitted; what cannot be is refused by `plan`, with a fix that leads somewhere else."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshwright.ir.errors import EmissionStorage, NothingEmitted, StrategyNotExpressible
from meshwright.planner import pricing
from meshwright.planner.cli import main
from meshwright.planner.estimate import Ask
from meshwright.planner.pricing import Folds, Setting
from tests.planner.tiny_models import SEQ, written

SEED, DRAWS, PARTS = 20261123, 44, 4
CLUSTERS = (
    ("1x4xH100",),
    ("2x4xA100",),
    ("1x8xH100",),
    ("cpu:4", "--target", "torch-gloo", "--dtype", "fp32"),
)
WISHES = (
    *("",) * 8,
    *("tp=2", "tp=4", "cp=2", "tp=2,cp=2", "pp=2", "pp=2,schedule=zbv", "pp=2,tp=2", "ep=2", "recompute=full"),
    *("zero=1", "zero=2", "zero=3", "tp=2,zero=3", "dp=4,zero=3", "zero=0", "dp=4"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Tiny models, each of them loaded and traced once per precision."""
    made: dict[tuple[str, int, str], Folds] = {}
    load = Ask.setting

    def shared(ask: Ask) -> Setting:
        key = ask.model, ask.workload.seq, ask.workload.precision
        if key not in made:
            made[key] = load(ask).folds
        price = pricing.price_of(ask.cluster)
        return Setting(made[key], ask.cluster.ranks, ask.workload, ask.target, price, modules=ask.modules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ask, "setting", shared)
        yield written(tmp_path_factory.mktemp("models"))


Plans = Callable[..., tuple[int, str]]


@pytest.fixture
def planned(models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plans:
    """Plan a model by its name, and emit the answer: the exit code of `plan`, and what it had to say."""

    def run(model: str, cluster: tuple[str, ...], wishes: str) -> tuple[int, str]:
        question = (models[model], "--cluster", *cluster, "--global-batch", "8", "--seq", str(SEQ))
        capsys.readouterr()
        code = main([*question, *(("--fix", wishes) if wishes else ()), "--out", str(tmp_path)])
        said = capsys.readouterr()
        if code == 0:
            emitted = main(["emit", str(tmp_path), "--out", str(tmp_path / "code")])
            assert emitted == 0, f"{question} {wishes}: {capsys.readouterr().err}"
        return code, said.out if code == 0 else said.err

    return run


def drawn(names: list[str]) -> list[tuple[str, tuple[str, ...], str]]:
    """Questions, every model several times."""
    dice = random.Random(SEED)
    return [(names[n % len(names)], dice.choice(CLUSTERS), dice.choice(WISHES)) for n in range(DRAWS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_answered_is_emitted(part: int, models: dict[str, str], planned: Plans) -> None:
    answered = 0
    for question in drawn(list(models))[part::PARTS]:
        code, said = planned(*question)
        answered += code == 0
        if code:
            shown = f"seed {SEED}, {question}: {said}"
            assert re.search(r"error MW\d{4} at ", said) or code == 3, shown
            goes_on(question, said, planned, shown)
    print(f"seed {SEED}, part {part}: {answered} answered and emitted")  # noqa: T201
    assert answered > DRAWS // PARTS // 2


def goes_on(question: tuple[str, tuple[str, ...], str], said: str, planned: Plans, shown: str) -> None:
    """Must: no fix names what is asked already, and a wish that is to be taken back is what stood in the way."""
    model, cluster, wishes = question
    fix = said.partition("fix: ")[2]
    for wish in filter(None, wishes.split(",")):
        assert f"--fix {wish}" not in fix, shown
    for name in re.findall(r"ask nothing of (\w+)", fix)[:1]:
        left = ",".join(wish for wish in wishes.split(",") if wish.partition("=")[0] != name)
        assert planned(model, cluster, left)[0] == 0, shown


# One by one ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_what_was_passed_over_is_told(planned: Plans, tmp_path: Path) -> None:
    """A head of two classes has no even shares on four ranks; copies of it do."""
    code, said = planned("classifier", ("1x4xH100",), "dp=4,zero=3")
    assert code == EmissionStorage.exit_code
    assert f"error {EmissionStorage.code} at plan, dp=4, zero=3: no code is written for any plan that fits" in said
    assert "fix: ask nothing of dp: with dp=" in said
    assert "ask nothing of zero: with zero=0 there is a plan" in said
    assert "zero=3" not in said.partition("fix: ")[2]
    assert planned("classifier", ("1x4xH100",), "")[0] == 0
    found = json.loads((tmp_path / "plan.json").read_text())
    (note,) = (note for note in found["notes"] if note.startswith("passed over, for no code is written for it: tp=4"))
    assert "(MW5014: plan head, %mean (mean) of the model" in note
    assert found["bounds"]["space"]["counts"]["unwritten"] > 0


@pytest.mark.filterwarnings("ignore")
def test_reasons_of_several_kinds_are_listed(planned: Plans) -> None:
    code, said = planned("GptOssForCausalLM", ("1x8xH100",), "tp=2")
    assert code == NothingEmitted.exit_code
    assert f"error {NothingEmitted.code} at plan, tp=2" in said
    assert {"MW5012", "MW5014"} <= set(re.findall(r"MW\d{4}", said))
    assert "fix: ask nothing of tp: with tp=1 there is a plan" in said


@pytest.mark.filterwarnings("ignore")
def test_an_operator_that_an_axis_must_leave_out_is_told_with_a_fix_that_works(planned: Plans) -> None:
    """Attention of torch's encoder takes sequences major to samples, so that no axis may cut either."""
    gloo = ("cpu:4", "--target", "torch-gloo", "--dtype", "fp32")
    code, said = planned("encoder", gloo, "dp=4")
    assert code == StrategyNotExpressible.exit_code
    assert said.rstrip().endswith("fix: plan with --target any, which is for prices: no code is written for it")
