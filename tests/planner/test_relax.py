"""Where nothing fits: exit 3, what lacks least, and changes that do help when they are made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.ledger import books
from meshwright.ir.errors import NoPlanInTime, PinValue
from meshwright.ir.program import lower
from meshwright.planner.answer import relax as module
from meshwright.planner.answer.relax import Nothing, _halved, _hosts, _largest, _margin, nearest, relax
from meshwright.planner.answer.solve import solve
from meshwright.planner.cli.main import main
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Folds
from meshwright.planner.search.search import Found
from tests.planner.solved import TINY, question
from tests.planner.told import config, price

PINS = "recompute=none,tp=1,cp=1,pp=1"


def small(folder: Path, gb: float) -> tuple[str, ...]:
    """Two devices of little memory; sequences so long that what is kept for the backward pass counts."""
    file = folder / "small.toml"
    file.write_text(
        f'[[device]]\nname = "Small"\nlike = "A100"\nmemory_gb = {gb}\n'
        '[[pool]]\nname = "p"\nhosts = 1\ngpu = "Small"\ngpus_per_host = 2\n'
        'nics = [{ kind = "infiniband", gbps = 200, count = 2 }]\n'
    )
    return (TINY, "--cluster", str(file), "--global-batch", "4", "--seq", "4096")


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Nothing:
    ask, setting, wished = question(*small(tmp_path_factory.mktemp("small"), 1.09), "--fix", PINS)
    solved = solve(ask, setting, wished)
    assert solved.complete
    assert solved.best is None
    return relax(solved)


def test_what_lacks_least_is_the_leanest_plan(nothing: Nothing) -> None:
    """By hand: one sequence at a time, everything in shards."""
    assert nothing.nearest is not None
    stage, short = nothing.short
    memory = nothing.nearest.prediction.stages[stage].memory
    assert short == memory.peak_bytes - memory.capacity_bytes > 0
    assert (nothing.nearest.config.zero, nothing.nearest.config.mbs) == (3, 1)


def test_every_kind_that_helps_is_told(nothing: Nothing) -> None:
    said = [(one.kind, one.what.split(":")[0]) for one in nothing.relaxations]
    assert ("constraint", "ask nothing of recompute") in said
    assert ("constraint", "ask nothing of cp") in said
    assert ("margin", "keep 5% of the memory free instead of 10%") in said
    assert ("sequence", "sequences of 2,048 tokens") in said
    assert not any(kind == "batch" for kind, _ in said)  # one sequence at a time is as full in any batch


def test_relaxations_fit_when_they_are_made(nothing: Nothing) -> None:
    """Priced again, by themselves, under the question as it was, but for the constraints that were taken back."""
    solved = nothing.solved
    unasked = replace(solved.setting, constraints=Constraints())
    for one in nothing.relaxations:
        assert one.found.fits
        if one.kind == "constraint":
            assert unasked.predict(one.found.config, solved.global_batch).fits
        if one.kind == "margin":
            assert not solved.setting.predict(one.found.config, solved.global_batch).fits
            short = one.found.prediction.stages[0].memory
            assert short.margin_bytes / short.device_bytes == pytest.approx(0.05)


@pytest.mark.parametrize("enough", [2, 3, 5, 8, 13, 33, 50, 64, 65, 10**6])
def test_more_hosts_are_the_fewest_that_do(nothing: Nothing, monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    """Where a plan fits from some number of hosts on, that number is told, or one that is an eighth larger at most; 64
    are the most that are tried."""
    tried: list[int] = []

    def with_hosts(_: object, hosts: int) -> object:
        tried.append(hosts)
        return nothing.nearest if hosts >= enough else None

    monkeypatch.setattr("meshwright.planner.answer.relax._with_hosts", with_hosts)
    told = [int(one.what.split()[0]) for one in _hosts(nothing.solved, nothing.nearest)]
    assert len(told) == (enough <= 64)
    assert all(enough <= hosts <= max(enough, enough * 9 / 8) for hosts in told)
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("numbers", "enough", "expected"),
    [
        ([[256, 128, 64, 32]], 200, 128),
        ([[256, 128, 64, 32]], 1000, 256),
        ([[256, 128, 64, 32]], 32, 32),
        ([[256, 128, 64], [32], [16]], 20, 16),
        ([[256, 128], [64]], 7, None),
        ([[], [3]], 3, 3),
    ],
)
def test_the_largest_of_falling_numbers(
    nothing: Nothing, numbers: list[list[int]], enough: int, expected: int | None
) -> None:
    asked: list[int] = []

    def fits(number: int) -> Any:
        asked.append(number)
        return nothing.nearest if number <= enough else None

    assert [number for number, _ in _largest(numbers, fits)] == ([] if expected is None else [expected])
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("number", "least", "expected"),
    [(512, 1, [256, 128, 64, 32, 16, 8]), (12, 1, [6, 3]), (512, 128, [256, 128]), (7, 1, []), (128, 128, [])],
)
def test_numbers_are_halved_while_that_may_be(number: int, least: int, expected: list[int]) -> None:
    assert _halved(number, least) == expected


def test_hosts_that_nothing_is_known_to_join_are_no_help(nothing: Nothing) -> None:
    """CPUs have no usual NIC: a cluster of two such hosts must name one."""
    alone = replace(nothing.solved, ask=replace(nothing.solved.ask, cluster=read_cluster("cpu:2")))
    assert list(_hosts(alone, nothing.nearest)) == []


def test_what_the_model_cannot_have_is_refused_and_not_called_too_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Four heads for three ranks."""
    argv = (TINY, "--cluster", "cpu:6", "--global-batch", "12", "--seq", "128", "--fix", "pp=2,tp=3", "--json")
    assert main(argv) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["place"], error["fix"]) == ("tp", "use one of 1, 2, 4")


def test_the_command_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = (*small(tmp_path, 1.09), "--fix", PINS)
    assert main([*argv, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert found["nearest"]["short"]["bytes"] > 0
    assert {"constraint", "margin", "sequence"} <= {one["kind"] for one in found["relaxations"]}
    assert main(list(argv)) == 3
    out = capsys.readouterr().out
    assert "nothing fits\nwhat lacks least is short " in out
    assert "ask nothing of recompute: with recompute=" in out


def test_too_little_time_for_any_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*small(tmp_path, 1.09), "--time-limit", "0", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == NoPlanInTime.__name__


def test_shorter_sequences_are_captured_anew(nothing: Nothing) -> None:
    (one,) = [one for one in nothing.relaxations if one.kind == "sequence"]
    source = nothing.solved.setting.folds.source
    assert Folds(source, 2048).at(one.found.config.batch) != nothing.solved.setting.folds.at(one.found.config.batch)


def test_the_nearest_is_the_leanest_shape_that_was_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bases of at most two sequences at a time, which the evaluator does not refuse, by hand: what every storage of
    every pipeline lacks. The first of those that lack least is priced; of everything priced, what lacks least is the
    nearest, then the fastest, then the first by name. Bases that lack as much at least are not looked at."""
    lacks = {("none", 1): (9.0, 8.0), ("none", 2): (7.0, 3.0), ("full", 1): (3.0, 5.0), ("full", 2): (6.0, 4.0)}
    bases = [config(mbs=4), config(mbs=2, zero=3), config(mbs=2), config(recompute="full"), config(mbs=3)]
    bases.insert(1, config(tp=8))

    def priced(base: Config) -> Config:
        assert base.tp == 1
        if base.zero == 3:
            raise PinValue(place="", cause="", fix="")
        return base

    def least(base: Config) -> float:
        return 3.0 if base.tp > 1 else 2.0 if base.recompute == "none" else 2.5

    def storage(zero: int) -> Any:
        return SimpleNamespace(zero=zero, on=lambda pipeline: replace(pipeline, zero=zero))

    def lack(loads: object, pipeline: Config, chosen: Any) -> float:
        assert loads == f"loads of {pipeline.pp}"
        return lacks[pipeline.recompute, pipeline.pp][chosen.zero - 1]

    monkeypatch.setattr(
        module,
        "Bounds",
        lambda common, base: SimpleNamespace(loads=lambda one: f"loads of {one.pp}", lacks_bytes=lack),
    )
    space = SimpleNamespace(
        bases=lambda: bases,
        sequences=(4, 2),
        pipelines=lambda base: [replace(base, pp=pp) for pp in (1, 2)],
        storages=lambda pipeline: [storage(1), storage(2)],
    )
    asked: list[Config] = []
    table = (
        ([], None),
        ([(config(tp=2), price(1.0, 5.0))], 0),
        ([(config(tp=2), price(1.0, 5.0)), (config(tp=4), price(9.0, 0.0, 4.0))], 1),
        ([(config(tp=2), price(2.0, 5.0)), (config(tp=4), price(1.0, 5.0))], 1),
        ([(config(tp=4), price(1.0, 5.0)), (config(tp=2), price(1.0, 5.0))], 1),
    )
    for known, at in table:
        found = {one: Found(one, predicted) for one, predicted in known}
        coarse = SimpleNamespace(priced=priced, lacks_bytes=least)
        search = SimpleNamespace(space=space, common=None, coarse=coarse, price=asked.append, found=found)
        solved: Any = SimpleNamespace(search=search, setting=None)
        assert nearest(solved) == (list(found.values())[at] if at is not None else None)
    assert asked == [config(mbs=2, pp=2, zero=2)] * len(table)
    space.bases = lambda: [bases[0], bases[2]]
    assert nearest(solved) is not None
    assert len(asked) == len(table)


def test_what_is_tried_out_lowers_and_writes_down_no_body_again(
    nothing: Nothing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Body programs and their ledgers are those of the search that found nothing, or of another one after it."""

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("made before")

    monkeypatch.setattr(lower, "lower_body", again)
    monkeypatch.setattr(books, "ledger", again)
    assert [one for one in nothing.relaxations if one.kind == "margin"] == list(_margin(nothing.solved))
