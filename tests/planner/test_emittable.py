"""What `plan` answers can be emitted; what cannot be is refused by `plan`, with a fix that leads somewhere else."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import (
    EmissionStorage,
    MeshwrightError,
    NoPlanInTime,
    NotEmitted,
    NothingEmitted,
    StorageNotExpressible,
)
from meshwright.ir.errors.capability import AGAIN
from meshwright.planner.answer import remedies
from meshwright.planner.answer.report import plan_of
from meshwright.planner.answer.solve import Stop, solve, space_of
from meshwright.planner.cli.main import main
from meshwright.planner.cli.verbs.plans.plan import nothing_found
from meshwright.planner.question import pricing
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.pins import Config, word
from meshwright.planner.question.pricing import Folds, Setting
from meshwright.planner.search import emittable as module
from meshwright.planner.search.emittable import Emission
from meshwright.planner.search.masks import Masks
from tests.planner import handmade
from tests.planner.solved import parsed
from tests.planner.tiny_models import SEQ, written

SEED, DRAWS, PARTS = 20261123, 4, 2
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

    def run(model: str, cluster: tuple[str, ...], constraints: str) -> tuple[int, str]:
        question = (models[model], "--cluster", *cluster, "--global-batch", "8", "--seq", str(SEQ))
        capsys.readouterr()
        code = main([*question, *(("--fix", constraints) if constraints else ()), "--out", str(tmp_path), "--force"])
        said = capsys.readouterr()
        if code == 0:
            emitted = main(["emit", str(tmp_path), "--out", str(tmp_path / "code"), "--force"])
            assert emitted == 0, f"{question} {constraints}: {capsys.readouterr().err}"
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
    model, cluster, constraints = question
    fix = said.partition("fix: ")[2]
    for wish in filter(None, constraints.split(",")):
        assert f"--fix {wish}" not in fix, shown
    for name in re.findall(r"ask nothing of (\w+)", fix)[:1]:
        left = ",".join(wish for wish in constraints.split(",") if wish.partition("=")[0] != name)
        assert planned(model, cluster, left)[0] == 0, shown


# One by one ----------------------------------------------------------------------------------------------------------


PART = "recompute=selective"
"""Attention of this model is written out, in a module that does more: that part of it alone is not computed again."""


@pytest.mark.filterwarnings("ignore")
def test_experts_beside_what_no_style_says_are_printed(planned: Plans) -> None:
    assert planned("GptOssForCausalLM", ("1x8xH100",), "tp=2")[0] == 0


@pytest.mark.filterwarnings("ignore")
def test_a_head_of_two_classes_has_shards_on_four_ranks(planned: Plans) -> None:
    """Two ranks have a row each, and two have none: fully_shard pads."""
    assert planned("classifier", ("1x4xH100",), "dp=4,zero=3")[0] == 0


@pytest.mark.filterwarnings("ignore")
def test_why_not_what_cannot_be_emitted(planned: Plans, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned("GptOssForCausalLM", ("1x8xH100",), "")[0] == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path), "--why-not", PART, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["why_not"]
    assert verdict["verdict"] == "cannot be"
    assert verdict["why"].startswith("no code is written for any plan that fits: MW50")


@pytest.mark.filterwarnings("ignore")
def test_what_no_plan_can_have_is_refused_with_what_to_take_back(planned: Plans) -> None:
    code, said = planned("GptOssForCausalLM", ("1x8xH100",), PART)
    assert code == StorageNotExpressible.exit_code
    assert f"at plan, {PART}: no code is written for any plan that fits: MW5016 at plan GptOssDecoderLayer" in said
    assert "fix: ask nothing of recompute: with recompute=none there is a plan" in said


@pytest.mark.filterwarnings("ignore")
def test_samples_inside_of_positions_are_cut(planned: Plans) -> None:
    """Attention of torch's encoder takes sequences major to samples: they are cut in runs."""
    gloo = ("cpu:4", "--target", "torch-gloo", "--dtype", "fp32")
    assert planned("encoder", gloo, "dp=4")[0] == 0


# Fixes ---------------------------------------------------------------------------------------------------------------

LOOKED_AT = 20


@dataclass(frozen=True)
class Looked:
    """A configuration that was drawn, as its target runs it, and the refusal of it."""

    model: str
    config: Config
    ran: Config
    refusal: MeshwrightError | None


@pytest.fixture(scope="module")
def looked(models: dict[str, str]) -> list[Looked]:
    """Configurations that are drawn from the space of every model, whatever their price."""
    dice, found = random.Random(SEED), []
    for reference in models.values():
        question = (reference, "--cluster", "1x8xH100", "--global-batch", "8", "--seq", str(SEQ), "--fix", "cp=1")
        ask, wished = read_asked(parsed(*question))
        setting = ask.setting()
        space = space_of(setting, ask.cluster, replace(wished.constraints, only={"cp": (1, 2)}))
        emission = Emission.of(setting, reference)
        assert emission is not None
        for config in dice.sample([one for base in space.bases() for one in space.shapes(base)], LOOKED_AT):
            try:
                refusal = emission.refusal(config, setting.decisions(config, space.global_batch))
            except MeshwrightError as refused:
                refusal = refused
            found.append(Looked(reference, config, setting.ran(config), refusal))
    return found


@pytest.mark.filterwarnings("ignore")
def test_no_fix_names_what_the_plan_has(looked: list[Looked]) -> None:
    met = dict[str, set[str]]()
    for one in looked:
        if not isinstance(one.refusal, NotEmitted):
            continue
        met.setdefault(one.refusal.code, set()).add(one.refusal.cause)
        ways = [way.split(",") for way in re.findall(r"--fix ([\w=,]+)", one.refusal.fix)]
        has = {f"{name}={word(value)}" for name, value in one.config.to_json().items()}
        assert not any(has.issuperset(way) for way in ways), f"seed {SEED}, {one}"
        assert "--target" not in one.refusal.fix, f"seed {SEED}, {one}"
    assert {"MW5013", "MW5016"} <= set(met), met


@pytest.mark.filterwarnings("ignore")
def test_what_a_refusal_is_said_to_hold_for_is_refused(looked: list[Looked]) -> None:
    """Whatever was refused first, all that has the same of what the refusal depends on is refused."""
    held = 0
    for model in {one.model for one in looked}:
        masks, own = Masks(), [one for one in looked if one.model == model]
        for one in own:
            if one.refusal is not None:
                masks.note(one.ran, one.refusal)
        for one in own:
            masked = masks.of(one.ran)
            assert masked is None or one.refusal is not None, f"seed {SEED}, {one}: {masked}"
            held += masked is not None
    assert held > len(looked) // 10


def test_a_way_that_the_plan_has_gone_is_left_out() -> None:
    ways = ("--fix zero=3", "--fix zero=0")
    refusal = EmissionStorage(place="storage", cause="no", ways=ways)
    assert refusal.fix == "plan with --fix zero=3, or with --fix zero=0"
    assert refusal.apart_from(lambda way: way == "--fix zero=3").fix == "plan with --fix zero=0"
    assert refusal.apart_from(lambda way: False) is refusal
    assert refusal.apart_from(lambda way: True).fix == AGAIN
    other = EmissionStorage(place="storage", cause="no", ways=ways, fix="repeat a block")
    assert other.apart_from(lambda way: True).fix == "repeat a block"


def test_a_plan_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked about; other plans of a configuration are other questions."""
    printed: list[Any] = []
    monkeypatch.setattr(module, "subject_of", lambda *given: given[-1])
    backend: Any = SimpleNamespace(emit=lambda subject, folder: printed.append(subject))
    setting: Any = SimpleNamespace(folds=SimpleNamespace(calls_tried=lambda *_: None))
    emission = Emission(backend, setting, "m", outright=())
    one, other = (SimpleNamespace(target="torch-gloo", name=name) for name in ("one", "other"))
    asked: list[Any] = [one, one, other]
    assert [emission.refusal(handmade.config("tp=1"), decisions) for decisions in asked] == [None] * 3
    assert printed == [one, other]


# A guard that holds --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_stays_out_of_the_proof(models: dict[str, str]) -> None:
    """Where the guard refuses all that has stages or copies, the answer is the best of the rest, and proved to be."""
    ask, wished = read_asked(parsed(models["llama"], "--cluster", "1x4xH100", "--global-batch", "8", "--seq", str(SEQ)))
    setting = ask.setting()
    free = solve(ask, setting, wished)
    assert free.best is not None
    assert free.best.config.dp > 1

    def refuse(self: Emission, config: Config, decisions: Decisions) -> MeshwrightError | None:
        spread = len(decisions.stages) > 1 or config.dp > 1
        return EmissionStorage(place="storage", cause="copies") if spread else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emission, "refusal", refuse)
        kept = solve(ask, setting, wished)
        notes = plan_of(kept).notes
    assert kept.best is not None
    assert kept.best.config.dp == kept.best.config.pp == 1
    assert kept.complete
    assert kept.search.counts.left == 0
    fitting = [one for one in kept.search.found.values() if one.fits and one.config.dp == one.config.pp == 1]
    assert kept.best.step_s <= min(one.step_s for one in fitting)
    assert kept.lower > free.best.step_s
    assert [
        note for note in notes if note.startswith("passed over, for no code is written for it") and "MW5013" in note
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_search_that_is_out_of_time_says_what_it_passed_over(models: dict[str, str]) -> None:
    """The guard is part of the search: it ends with it."""
    argv = (models["llama"], "--cluster", "1x4xH100", "--global-batch", "8", "--seq", str(SEQ))
    ask, wished = read_asked(parsed(*argv))
    stop = Stop()

    def refuse(self: Emission, config: Config, decisions: Decisions) -> MeshwrightError:
        stop.interrupted = True
        return EmissionStorage(place="storage", cause="copies")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emission, "refusal", refuse)
        solved = solve(ask, ask.setting(), wished, stop)
    assert solved.best is None
    assert not solved.complete
    assert solved.search.emission is not None
    assert len(solved.search.emission.passed) == 1
    with pytest.raises(NoPlanInTime, match=r"1 that fit was passed over \(MW5013\)"):
        nothing_found(solved, parsed(*argv))


def test_reasons_of_several_kinds_have_a_code_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "remedy", lambda solved: "ask less")
    kinds = (EmissionStorage, StorageNotExpressible)
    passed = [SimpleNamespace(refusal=kind(place="a", cause="b", fix="c"), config="tp=2") for kind in kinds]
    asked = SimpleNamespace(text="tp=2")
    solved: Any = SimpleNamespace(
        search=SimpleNamespace(emission=SimpleNamespace(passed=passed)), best=None, asked=asked
    )
    refused = remedies.unwritten(solved)
    assert isinstance(refused, NothingEmitted)
    assert all(kind.code in refused.cause for kind in kinds)
    del passed[1:]
    assert isinstance(remedies.unwritten(solved), EmissionStorage)
