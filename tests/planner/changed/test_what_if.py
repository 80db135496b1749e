"""What would change an answer: plans of changed questions are those of these questions, and plans kept obey laws."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost_models.hardware.changed import Wish
from meshwright.cost_models.hardware.changed import changed as with_wishes
from meshwright.ir.frontends import remembered
from meshwright.planner.answer import kept as answers
from meshwright.planner.answer.changed.what_if import WhatIf, keep, read_changed, what_ifs
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.solve import Stop
from meshwright.planner.cli.main import main
from meshwright.planner.plan.types import Plan
from meshwright.planner.question.ask import Ask, read_asked
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pricing import Setting, price_of
from tests.planner.solved import TINY, parsed, question

CLUSTER = "2x2xA100"


def argv(*more: str, cluster: str = CLUSTER) -> tuple[str, ...]:
    return TINY, "--cluster", cluster, "--global-batch", "8", "--seq", "64", *more


@cache
def solved(*words: str) -> tuple[Ask, Setting, Asked, Plan]:
    """A question and its answer."""
    args = parsed(*words)
    ask, asked = read_asked(args)
    ask, setting = ask.loaded()
    plan = Question.of(args, ask, setting, asked).answer(Stop())
    assert isinstance(plan, Plan)
    return ask, setting, asked, plan


def asked_otherwise(text: str, *words: str) -> WhatIf:
    args = parsed(*(words or argv()))
    _, setting, _, before = solved(*(words or argv()))
    (found,) = what_ifs(args, read_changed(args, [text]), before, setting, Stop())
    return found


@pytest.mark.parametrize("text", ["inter=200G", "hosts=2", "global_batch=8", "dtype=bf16", f"cluster={CLUSTER}"])
def test_a_change_that_changes_nothing_brings_nothing(text: str) -> None:
    """200 Gb/s are what such a device usually has."""
    found = asked_otherwise(text)
    assert (found.ratio, found.kept_ratio, found.beyond, found.same) == (1.0, 1.0, False, True)
    assert found.plan is not None
    assert found.plan.prediction == solved(*argv())[3].prediction


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inter=10G", argv(cluster=f"{CLUSTER},inter=10G")),
        ("hosts=4", argv(cluster="4x2xA100")),
        ("gpus_per_host=4,hosts=1", argv(cluster="1x4xA100")),
        ("gpu=H100", argv(cluster="2x2xH100")),
        ("cluster=1x2xA100", argv(cluster="1x2xA100")),
        ("global_batch=16", argv("--global-batch", "16")),
        ("seq=128", argv("--seq", "128")),
        ("dtype=fp32", argv("--dtype", "fp32")),
        ("stack=megatron", argv("--stack", "megatron")),
        ("gpu=T4", argv(cluster="2x2xT4,inter=100G,nic=infiniband")),
    ],
)
def test_it_is_the_plan_of_the_changed_question(text: str, words: tuple[str, ...]) -> None:
    """Also where what nobody named is otherwise there, such as the precision of devices without bf16. The model is
    traced once, as long as it is the same."""
    base = argv(cluster=f"{CLUSTER},inter=100G") if "T4" in text else argv()
    found = asked_otherwise(text, *base)
    direct = solved(*words)[3]
    assert found.plan is not None
    machines = replace(found.plan.machines, ref=direct.machines.ref)
    assert replace(found.plan, machines=machines) == direct


def test_where_nothing_fits_it_is_said_by_how_much() -> None:
    found = asked_otherwise("memory_gb=0.01")
    assert found.plan is None
    assert found.why.startswith("nothing fits: what lacks least is short ")
    assert found.kept.prediction is not None
    assert not found.kept.prediction.fits
    assert (found.ratio, found.beyond, found.same, found.kept_ratio) == (None, None, False, 1.0)


def test_a_refusal_is_a_row() -> None:
    """Its question can be asked, and has no plan."""
    found = asked_otherwise("global_batch=6", *argv("--fix", "dp=4"))
    assert found.plan is None
    assert "MW7044" in found.why
    assert "6 sequences are no whole micro-batches of its 8" in found.kept.why


# The plan kept -------------------------------------------------------------------------------------------------------


def kept(text: str) -> Any:
    """The plan of the answer with 10 Gb/s, and Megatron's kind of plan, each kept in a changed cluster."""
    key, _, value = text.partition("=")
    found = []
    for words in (argv(), argv("--fix", "tp=4"), argv("--fix", "pp=2,dp=2,zero=1"), argv("--fix", "dp=4,zero=3")):
        ask, setting, asked, plan = solved(*words)
        cluster = with_wishes(ask.cluster, [Wish(key=key, text=value)])
        own = replace(setting, price=price_of(cluster, ask.profile))
        one = keep(plan, replace(ask, cluster=cluster), own, asked)
        assert one.prediction is not None, one.why
        found.append(one.prediction.step_time_s)
    return found


@pytest.mark.parametrize("key", ["inter", "island_gb_per_s", "host_gb_per_s", "memory_gb_per_s", "bf16_tflops"])
@given(rates=st.tuples(st.integers(1, 4000), st.integers(1, 4000)))
def test_more_bandwidth_never_makes_a_plan_slower(key: str, rates: tuple[int, int]) -> None:
    less, more = (kept(f"{key}={rate}") for rate in sorted(rates))
    assert all(fast <= slow * (1 + 1e-12) for fast, slow in zip(more, less, strict=True))


def test_a_plan_is_kept_with_more_micro_batches() -> None:
    """As pins would have it; of a smaller cluster on a part of a larger one, where hosts stay idle."""
    ask, setting, asked = question(*argv("--global-batch", "16"))
    before = solved(*argv())[3]
    once = replace(before.config, zero=0)
    named = replace(before, config=once, decisions=setting.decisions(once, 8))
    twice = replace(once, microbatches=2 * once.microbatches)
    assert keep(named, ask, setting, asked).prediction == setting.predict(twice, 16)
    larger = asked_otherwise("hosts=4")
    assert (larger.idle, larger.kept_ratio, larger.same) == (2, 1.0, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts=1", "it is for 4 devices, and there are 2 (MW8014)"),
        ("dtype=fp32", "it is for operators of the model in bf16, and these are of fp32"),
        ("global_batch=4", "4 sequences are no whole micro-batches of its 8"),
    ],
)
def test_where_a_plan_cannot_be_kept_it_is_said_why(text: str, said: str) -> None:
    found = asked_otherwise(text)
    assert said in found.kept.why
    assert found.kept_ratio is None


def test_a_plan_of_one_pool_is_kept_on_that_pool() -> None:
    """Where one pool alone is the answer, the other one stays idle, and is the same plan for another pool no less
    another."""
    pools = str(Path(__file__).parents[3] / "benchmarks" / "data" / "clusters" / "unlike_pair.toml")
    words = argv("--dtype", "fp16", cluster=pools)
    assert [pool.name for pool in solved(*words)[3].machines.cluster().pools] == ["a100"]
    slower = asked_otherwise("a100-l4.gbps=4", *words)
    assert (slower.kept_ratio, slower.idle, slower.same) == (1.0, 1, True)
    small = asked_otherwise("a100.memory_gb=0.01", *words)
    assert small.plan is not None
    assert [pool.name for pool in small.plan.machines.cluster().pools] == ["l4"]
    assert (small.kept_ratio, small.same) == (1.0, False)


# The command line ----------------------------------------------------------------------------------------------------


def test_it_stands_below_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ("-q", "-v"):
        assert main([*argv("--what-if", "inter=200G", "--what-if", "hosts=1", more)]) == 0
        lines = capsys.readouterr().out.splitlines()
        at = lines.index("what if")
        assert lines[0].startswith("plan  ")
        assert lines[at + 2].split()[:3] == ["inter=200G", "the", "same"]
        assert "1.000  inside" in lines[at + 2]
        assert lines[-1].startswith("hosts=1: the plan cannot be kept: ")


def test_it_is_a_key_of_the_json_and_of_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv("--what-if", "hosts=1", "--json", "--out", str(tmp_path / "with"))]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main([*argv("--json", "--out", str(tmp_path / "without"))]) == 0
    assert {key: value for key, value in told.items() if key != "what_if"} == json.loads(capsys.readouterr().out)
    assert (tmp_path / "with" / "plan.json").read_bytes() == (tmp_path / "without" / "plan.json").read_bytes()
    (row,) = told["what_if"]
    direct = solved(*argv(cluster="1x2xA100"))[3].prediction.to_json()
    assert row["plan"]["step_time_s"] == direct["step_time_s"]
    assert row["ratio"] == direct["step_time_s"] / told["predicted"]["step_time_s"]
    assert row["cluster"] == {"ref": "2x2xA100 with hosts=1", "hosts": 1, "ranks": 2}
    assert (row["change"], row["kept"], row["same"]) == ("hosts=1", None, False)
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    assert [key for key in row if f"`what_if[].{key}`" not in page] == []


def test_where_nothing_fits_changes_are_answered_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(Path(__file__).parents[3] / "examples" / "configs" / "gpt2")
    words = [config, "--cluster", "1x1xT4", "--global-batch", "64", "--seq", "1024", "--fix", "dp=1,mbs=64"]
    assert main([*words, "--dtype", "fp16", "--what-if", "gpu=B300", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False
    assert told["what_if"][0]["plan"]["fits"]
    assert told["what_if"][0]["ratio"] is None


def test_where_the_question_is_refused_nothing_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[str] = []
    solve = answers.solve

    def counted(ask: Ask, *rest: Any) -> Any:
        searched.append(ask.cluster_reference)
        return solve(ask, *rest)

    monkeypatch.setattr(answers, "solve", counted)
    assert main([*argv("--fix", "dp=3", "--what-if", "hosts=1")]) == 2
    assert "MW7044" in capsys.readouterr().err
    assert searched == [CLUSTER]


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ("intre=8G", (), "MW8013"),
        ("a.hosts=3", (), "MW8014"),
        ("global_batch=0", (), "MW8002"),
        ("hosts=1", ("--dump-after", "fold"), "an artefact is of one question"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_searched(
    change: str, more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "solve", None)
    assert main([*argv("--what-if", change, *more)]) == 2
    assert said in capsys.readouterr().err


def test_a_second_look_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of changed questions too, and of those that nothing fits."""
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered, "_imported", lambda: ())
    words = argv("--what-if", "cluster=1x2xA100", "--what-if", "memory_gb=0.01")
    assert main([*words]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(answers, "solve", None)
    assert main([*words]) == 0
    assert capsys.readouterr().out == first
    assert main([*argv(cluster="1x2xA100")]) == 0


def test_an_interrupt_ends_it_with_what_is_there() -> None:
    args = parsed(*argv())
    _, setting, _, before = solved(*argv())
    stop = Stop()
    rows = what_ifs(args, read_changed(args, ["hosts=2", "hosts=1"]), before, setting, stop)
    assert next(rows).same
    stop.interrupted = True
    assert list(rows) == []
