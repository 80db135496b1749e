"""Many configurations: what is captured for them, in which order they are handed out and told, and a counter."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import InternalError, PinValue, PricingLost
from meshwright.planner.answer import estimates
from meshwright.planner.answer.estimates import Line, Outcome, Pricer, in_order, kinds, read_lines
from meshwright.planner.cli import progress as of_progress
from meshwright.planner.cli.progress import Progress
from meshwright.planner.cli.verbs.plans import estimate as module
from meshwright.planner.cli.verbs.plans.estimate import run_many
from meshwright.planner.question.pins import Config, Pins
from tests.planner.handmade import GIB, config, prediction

REFUSED = PinValue(place="line 9", cause="it cannot be", fix="take another")


def line(number: int, pins: str = "", ranks: int = 8, batch: int = 8) -> Line:
    return Line(number=number, global_batch=batch, config=config(pins, ranks, batch), pins=Pins())


# The order -----------------------------------------------------------------------------------------------------------


def test_outcomes_are_told_by_index_as_soon_as_they_can_be() -> None:
    one, two, three, four = (Outcome(text=str(number)) for number in range(4))
    came: list[int] = []

    def arriving() -> Iterator[tuple[int, Outcome]]:
        for index, outcome in ((2, three), (0, one), (1, two), (3, four)):
            came.append(index)
            yield index, outcome

    told = [(outcome.text, len(came)) for outcome in in_order(arriving())]
    assert told == [("0", 2), ("1", 3), ("2", 3), ("3", 4)]


def test_batches_split_operators_alike_and_neighbours_have_most_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ranks of a copy, sequences, then tensor parallelism and copies; of one kind at most two together, of a window
    of seven lines. Lines that are none are left out."""
    monkeypatch.setattr(estimates, "WINDOW", 7)
    monkeypatch.setattr(estimates, "MOST_TOGETHER", 2)
    lines = (
        line(1, "tp=4"),
        line(2, "tp=2,zero=3"),
        line(3, "mbs=2", 4),
        Line(number=4, error=REFUSED),
        line(5, "tp=2,zero=1"),
        line(6, "tp=2,zero=2"),
        line(7, "mbs=1"),
        line(8, "tp=2,zero=1"),
    )
    assert kinds(lines) == [[[6], [2], [4, 5], [1], [0]], [[7]]]


def test_of_as_many_ranks_the_context_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of four ranks and two sequences of a micro-batch is after one of four and one, and before one of eight."""
    lines = tuple(line(1, pins) for pins in ("tp=8", "tp=2,cp=2,mbs=2,dp=2", "cp=4", "tp=4", "tp=2,cp=2", "cp=2,pp=4"))
    assert [index for batch in kinds(lines)[0] for index in batch] == [5, 2, 4, 3, 1, 0]


# What is captured ----------------------------------------------------------------------------------------------------


class Folds:
    """Of a model that runs at some batches."""

    def __init__(self, *good: int) -> None:
        self.good, self.asked = good, list[int]()
        self.captured: Any = None

    def at(self, batch: int) -> None:
        self.asked.append(batch)
        if batch not in self.good:
            raise REFUSED
        self.captured = self.captured or "captured"

    def first(self, batch: int) -> Any:
        return SimpleNamespace(notes=(f"captured at {batch}",))


def pricer(*lines: Line, folds: Folds | None = None, as_json: bool = True) -> Pricer:
    setting = SimpleNamespace(folds=folds or Folds(8, 4), cautions=lambda: ["be careful"])
    cluster = read_cluster("2x8xH100,inter=50G")
    ask: Any = SimpleNamespace(notes=("of the question",), cluster=cluster)
    ask.loaded = lambda: (ask, setting)
    return Pricer(ask, lines, as_json=as_json)


def test_the_model_is_captured_once_at_every_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight sequences at a time, or four; where there are micro-batches, with what is to be said of them."""
    folds = Folds(8, 4)
    lines = line(1, "tp=1"), line(2, "tp=2"), line(3, "pp=2"), line(4, "tp=1,zero=0")
    one = pricer(*lines, folds=folds)
    one.warm([own.config for own in lines if own.config])
    assert folds.asked == [8, 4]
    assert one.refused == {}
    first, suspicion, *rest = capsys.readouterr().err.splitlines()
    assert first == "note: of the question"
    assert suspicion.startswith("note: pool ")
    assert rest == ["note: captured at 8", "note: be careful"]
    one.warm([config("", 8)])
    assert capsys.readouterr().err.splitlines()[2:] == ["note: captured at 8"]


def test_a_batch_that_is_refused_costs_its_lines_if_another_is_not() -> None:
    folds = Folds(8)
    one = pricer(line(1), folds=folds)
    one.warm([config("", 8), config("", 4), config("", 2)])
    assert (folds.asked, one.refused) == ([8, 4, 2], {4: REFUSED, 2: REFUSED})
    with pytest.raises(PinValue):
        pricer(line(1), folds=Folds()).warm([config("", 8)])


# One line ------------------------------------------------------------------------------------------------------------


def test_what_a_line_is_told_as() -> None:
    """As JSON what was given where it is no configuration; a batch that is not known is none."""
    given = Line(number=9, given={"tp": "two"}, error=REFUSED)
    one = pricer(line(3, "tp=2"), given)
    error = {"error": REFUSED.to_json()}
    assert (
        json.loads(one.failed(1, REFUSED).text)
        == {
            "index": 1,
            "line": 9,
            "global_batch": None,
            "config": {"tp": "two"},
        }
        | error
    )
    refused = one.failed(0, REFUSED)
    assert (
        json.loads(refused.text)
        == {
            "index": 0,
            "line": 3,
            "global_batch": 8,
            "config": config("tp=2", 8).to_json(),
        }
        | error
    )
    assert (refused.exit_code, refused.error, refused.fits) == (2, str(REFUSED), False)
    other = config("tp=4", 8)
    done = one.priced(0, other, prediction())
    assert json.loads(done.text) == {
        "index": 0,
        "line": 3,
        "global_batch": 8,
        "config": other.to_json(),
        "predicted": json.loads(json.dumps(prediction().to_json())),
        "fits": True,
    }
    plain = pricer(line(3, "tp=2"), given, as_json=False)
    assert plain.failed(1, REFUSED) == Outcome(exit_code=2, error=str(REFUSED))
    assert plain.priced(0, other, prediction()) == Outcome(
        fits=True,
        step_time_s=2.0,
        tokens_per_s_per_gpu=1234.4,
        mfu=0.4,
        peak_memory_bytes=6.0 * GIB,
        config=other.to_json(),
        weakest="datasheet",
    )


def test_a_process_that_is_lost_says_which_line_it_was_at() -> None:
    lost = pricer(line(3), line(7), as_json=False).lost(1, "it took too long")
    assert lost.error.startswith(f"error {PricingLost.code} at line 7: it took too long\n")
    assert lost.exit_code == PricingLost.exit_code


def test_whatever_is_raised_costs_one_line() -> None:
    """A batch that was refused is not tried again; a fault of ours is told as one."""

    def settled(one: Config, batch: int) -> Config:
        if one.tp == 4:
            raise ZeroDivisionError("oops")
        raise REFUSED

    lines = line(3, "tp=2"), line(4, "tp=4"), line(5, "dp=8")
    one = pricer(*lines, as_json=False)
    _, setting = one.ask.loaded()
    one.setting = setting
    one.refused = {8: PinValue(place="batch", cause="eight", fix="none")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "replace", lambda own, constraints: SimpleNamespace(settled=settled))
        said = [one.price(index).error.splitlines()[0] for index in range(3)]
    assert said == [
        f"error {PinValue.code} at line 9: it cannot be",
        f"error {InternalError.code} at line 4: internal error: ZeroDivisionError: oops",
        f"error {PinValue.code} at batch: eight",
    ]


# The file ------------------------------------------------------------------------------------------------------------


def test_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    """Blank ones count and are not read; what a line leaves open is as it was asked for all."""
    path = tmp_path / "configs"
    path.write_text('\n{"tp": 2}\n  \n{"tp": 4, "global_batch": 16}\n{"tp": 3}\n')
    ask: Any = SimpleNamespace(global_batch=8, pins=Pins(recompute="full"), cluster=SimpleNamespace(ranks=8))
    first, second, third = read_lines(path, ask)
    assert (first.number, first.global_batch, first.pins) == (2, 8, Pins(tp=2, recompute="full"))
    assert first.config == config("tp=2,recompute=full", 8)
    assert first.given == {"tp": 2}
    assert (second.number, second.global_batch, second.config) == (4, 16, config("tp=4,recompute=full", 8, 16))
    assert (third.number, third.given, third.config) == (5, {"tp": 3}, None)
    assert third.error is not None


class Terminal(io.StringIO):
    """One that can be written over."""

    def isatty(self) -> bool:
        return True


# The command ---------------------------------------------------------------------------------------------------------


def ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *outcomes: Outcome, **words: Any
) -> tuple[int, str, str]:
    """What is printed where lines come to this, and the exit code."""
    lines = tuple(replace(line(number), config=None) for number in range(3, 3 + len(outcomes)))
    monkeypatch.setattr(module, "read_lines", lambda path, ask: lines)

    def arriving(self: Pricer, jobs: int) -> Iterator[tuple[int, Outcome]]:
        yield from reversed(list(enumerate(outcomes)))

    monkeypatch.setattr(Pricer, "outcomes", arriving)
    ask: Any = SimpleNamespace()
    usual = {"configs": "file", "json": True, "jobs": 1, "top": 5, "check": False, "progress": Progress(io.StringIO())}
    args = Namespace(**usual | words)
    code = run_many(ask, args)
    out, err = capsys.readouterr()
    return code, out, err


GOOD, FULL = Outcome(text="good", fits=True), Outcome(text="full")
BAD, WORSE = Outcome(text="bad", error="bad it is", exit_code=5), Outcome(error="worse it is", exit_code=6)


@pytest.mark.parametrize(
    ("outcomes", "check", "code"),
    [
        ((GOOD, BAD), False, 0),
        ((BAD, FULL), False, 0),
        ((BAD, FULL), True, 3),
        ((FULL, GOOD), True, 0),
        ((BAD, WORSE), False, 5),
        ((WORSE, BAD), True, 6),
    ],
)
def test_the_exit_code_of_many(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcomes: tuple[Outcome, ...],
    check: bool,
    code: int,
) -> None:
    """Of the first refusal, if all are; 3 if nothing fits, and that was asked."""
    ended, out, err = ran(monkeypatch, capsys, *outcomes, check=check)
    assert ended == code
    assert out.splitlines() == [one.text for one in outcomes if one.text]
    assert err.splitlines() == [f"file:{at}: {one.error}" for at, one in enumerate(outcomes, 3) if one.error]


def test_a_table_is_shown_where_no_json_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("meshwright.planner.cli.views.plans.estimate.show_ranked", lambda *what: shown.append(what[1:]))
    ran(monkeypatch, capsys, GOOD, BAD, json=False)
    assert shown == [([3, 4], [GOOD, BAD], 5)]
    ran(monkeypatch, capsys, GOOD, BAD)
    assert len(shown) == 1


def test_a_terminal_is_kept_clear_for_refusals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line is counted; the counter is wiped off before a result, a refusal, and at the end."""
    terminal = Terminal()
    monkeypatch.setattr(of_progress, "EVERY_S", 0.0)
    monkeypatch.setattr(module.sys, "stderr", terminal)
    ran(monkeypatch, capsys, GOOD, BAD, progress=Progress(terminal))
    lines = terminal.getvalue().split("\r\x1b[2K")
    counted = [f"{number} of 2 configurations" for number in range(3)]
    assert [line.partition(" s  ")[2] or line for line in lines] == [
        *("", counted[0], "", counted[1], "file:4: bad it is\n", counted[2], "")
    ]
