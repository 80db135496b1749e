"""`plan trace --measured` and `plan compare` of traces, from saved plans and real traces to what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import ArgumentsMissing, TraceUnreadable
from meshwright.planner.answer.traced.file import read_trace
from meshwright.planner.answer.traced.step import Measured, Rank, measured_step
from meshwright.planner.answer.traced.tracks import Span, Track, in_order, nested
from meshwright.planner.cli.main import main
from meshwright.planner.cli.views.plans.compare import show_traced
from meshwright.planner.plan.file import load_plan
from meshwright.planner.report.facts.timeline import KINDS
from meshwright.planner.report.trace import MEASURED, trace_text
from tests.planner.handmade import plan
from tests.planner.report.checked import timeline
from tests.planner.report.test_trace import read, tracks
from tests.planner.solved import ARGV
from tests.planner.traced.profiled import by_jax, by_torch

PAGE = (Path(__file__).parents[3] / "docs" / "emit.md").read_text()
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main([*ARGV, "--fix", "pp=2,mbs=1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_torch(tmp_path_factory.mktemp("torch") / "trace.json")


@pytest.fixture(scope="module")
def of_jax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_jax(tmp_path_factory.mktemp("jax"))


def overlaid(file: Path) -> tuple[dict[str, Any], Events, Events]:
    """What a file says of itself, and its predicted and measured events; times are sane, and names whole."""
    found = json.loads(file.read_text(encoding="utf-8"))
    events: Events = found["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert all(name.startswith(("predicted: ", "measured: ")) for name in names.values())
    assert {one["pid"] for one in events} == set(names)
    slices = [one for one in events if one["ph"] == "X"]
    assert all(one["ts"] >= 0 and one["dur"] >= 0 for one in slices)
    known = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in slices} <= known
    predicted = [one for one in slices if names[one["pid"]].startswith("predicted")]
    return found["otherData"], predicted, [one for one in slices if one not in predicted]


@pytest.mark.parametrize("by", ["torch", "jax"])
def test_a_step_of_a_run_stands_beside_the_predicted_one(
    by: str, saved: Path, of_torch: Path, of_jax: Path, tmp_path: Path
) -> None:
    """Both begin at 0; the predicted one is as long as it is without the other, the measured one as it ran."""
    trace, both = of_torch if by == "torch" else of_jax, tmp_path / "both.json"
    assert main(["trace", str(saved), "--measured", str(trace), "-o", str(both)]) == 0
    assert main(["trace", str(saved), "-o", str(tmp_path / "alone.json")]) == 0
    about, predicted, measured = overlaid(both)
    alone = json.loads((tmp_path / "alone.json").read_text())["traceEvents"]
    assert predicted == [one for one in alone if one["ph"] == "X"]
    run = measured_step([read_trace(trace)], 1)
    assert about["measured"] == {
        "by": by,
        "step": run.number,
        "step_time_us": pytest.approx(run.step_time_s * 1e6, abs=1e-3),
        "one_clock": True,
    }
    _, events = read(both.read_text(), (*KINDS, "step", "compute"))
    assert {pid for pid, _ in tracks(events)} > {MEASURED}  # slices of a track nest
    (step,) = (one for one in measured if one["cat"] == "step")
    assert (step["ts"], step["dur"]) == (0, pytest.approx(run.ranks[0].step_us, abs=1e-3))
    assert all(one["ts"] + one["dur"] <= step["dur"] + 2e-3 for one in measured)
    assert {one["cat"] for one in measured} <= {"step", "compute", "communication"}
    if by == "torch":
        assert any(one["name"] == "aten::addmm" for one in measured)
    assert main(["trace", str(saved), "--measured", str(trace), "-o", str(both)]) == 0, "it is known to be ours"


def run(*ranks: Rank, **words: Any) -> Measured:
    usual: dict[str, Any] = {
        "by": "torch",
        "number": 7,
        "steps": 3,
        "skipped": 1,
        "step_time_s": 1.0,
        "slowest_s": 1.25,
    }
    return Measured(**usual | {"ranks": ranks, "one_clock": True, "on_device": True} | words)


def rank(name: str, start_us: float, *tracks: Track) -> Rank:
    return Rank(name=name, start_us=start_us, step_us=1e6, tracks=tracks)


GEMM = Track("gpu 0", "stream 7", (Span("gemm", 0.0, 6e5),))
LATER = Track("gpu 1", "stream 7", (Span("gemm", 5e5, 1e6), Span("all_reduce", 1e6, 1.2e6)))


def test_ranks_have_processes_and_streams_have_threads() -> None:
    found = json.loads(trace_text(timeline(), "m", run(rank("rank 0", 0.0, GEMM), rank("rank 1", 5e5, GEMM, LATER))))
    events = [one for one in found["traceEvents"] if one["pid"] >= MEASURED]
    named = [(one["pid"], one["tid"], one["args"]["name"]) for one in events if one["name"].endswith("_name")]
    assert named == [
        (11, 0, "measured: rank 0"),
        (11, 0, "step"),
        (11, 1, "stream 7"),
        (12, 0, "measured: rank 1"),
        (12, 0, "step"),
        (12, 1, "gpu 0, stream 7"),
        (12, 2, "gpu 1, stream 7"),
    ]
    assert [(one["tid"], one["name"], one["cat"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"] == [
        (0, "step 7", "step", 0, 1e6),
        (1, "gemm", "compute", 0, 6e5),
        (0, "step 7", "step", 5e5, 1e6),
        (1, "gemm", "compute", 0, 6e5),
        (2, "gemm", "compute", 5e5, 5e5),
        (2, "all_reduce", "communication", 1e6, 2e5),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 900_000), st.integers(1, 100_000)), max_size=12),
)
def test_what_crosses_has_a_track_beside(times: list[tuple[int, int]]) -> None:
    """Slices of a written track lie apart or in one another, and none is lost."""
    spans = in_order(Span(f"k{at}", float(start), float(start + took)) for at, (start, took) in enumerate(times))
    text = trace_text(timeline(), "m", run(rank("rank 0", 0.0, Track("gpu 0", "stream 7", spans))))
    _, events = read(text, (*KINDS, "step", "compute"))
    assert tracks(events)
    shown = [(one["name"], one["ts"], one["dur"]) for one in events if one["pid"] >= MEASURED and one["ph"] == "X"]
    assert sorted(shown[1:]) == sorted((one.name, one.start_us, one.end_us - one.start_us) for one in spans)


def test_what_nests_stays_on_its_track() -> None:
    spans = in_order((Span("loop", 0, 10), Span("body", 0, 4), Span("inner", 1, 4), Span("later", 10, 12)))
    (one,) = nested(Track("gpu 0", "stream 7", spans))
    assert one == Track("gpu 0", "stream 7", spans)
    crossing = in_order((*spans, Span("crosses", 3, 8)))
    first, beside = nested(Track("gpu 0", "stream 7", crossing))
    assert first.spans == spans
    assert (beside.thread, [span.name for span in beside.spans]) == ("stream 7, beside (1)", ["crosses"])


def test_traces_are_compared_with_the_plan(saved: Path, of_torch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(saved), str(of_torch), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured, predicted = measured_step([read_trace(of_torch)], 1), load_plan(saved).prediction
    figures = told["figures"]
    assert figures["step_time_s"]["measured"] == measured.step_time_s
    assert figures["step_time_s"]["predicted"] == predicted.step_time_s
    assert figures["tokens_per_s"]["measured"] == pytest.approx(8 * 64 / measured.step_time_s)
    parts = ("compute", "communication", "waiting")
    assert sum(figures[name]["measured"] for name in parts) == pytest.approx(measured.ranks[0].step_us / 1e6)
    assert sum(figures[name]["predicted"] for name in parts) == pytest.approx(predicted.step_time_s)
    assert (told["by"], told["ranks"], told["steps"], told["skipped"]) == ("torch", ["rank 0"], 2, 1)
    assert [key for key in told if key not in PAGE] == []
    assert main(["compare", str(saved), str(of_torch)]) == 0
    assert "communication that nothing hides" in capsys.readouterr().out


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that everything fits on."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("_wide")
def test_a_whole_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted are two seconds, of which half a one is bubble."""
    show_traced(plan(), run(rank("rank 0", 0.0, GEMM), step_time_s=1.0))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "plan     tp=2,pp=2,dp=2,zero=1,mbs=1,recompute=full,schedule=1f1b",
        "run      3 steps, the first 1 left out; the slowest took 1.25 s",
        "traces   1 of 8,192 ranks, by torch; parts are of step 7",
        "",
        "measured beside predicted",
        "                                  measured  predicted  measured / predicted",
        "step time                              1 s        2 s                 0.500",
        "tokens per second                   8.39 M     10.1 M                 0.830",
        "compute                             600 ms      1.5 s                 0.400",
        "communication that nothing hides      0 µs       0 µs",
        "waiting                             400 ms     500 ms                 0.800",
        "",
        "the step is outside of what was predicted: 1.5 s to 4 s",
    ]


@pytest.mark.parametrize("verb", ["compare", "trace"])
def test_what_is_no_trace_is_refused(verb: str, saved: Path, tmp_path: Path, capsys: Any, of_torch: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    words = {"compare": [], "trace": ["--measured"]}
    for files, said in (([bad], "no list of traceEvents"), ([of_torch, of_torch], "it is of rank 0, as ")):
        end = ["-o", str(tmp_path / "out.json")] if verb == "trace" else []
        assert main([verb, str(saved), *words[verb], *map(str, files), *end]) == TraceUnreadable.exit_code
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_several_logs_and_lessons_of_traces_are_refused(
    saved: Path, tmp_path: Path, of_torch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("step 0 loss 1.0\n")
    assert main(["compare", str(saved), str(tmp_path / "a"), str(tmp_path / "b")]) == ArgumentsMissing.exit_code
    assert "a run has one log" in capsys.readouterr().err
    assert main(["compare", str(saved), str(of_torch), "--learn"]) == ArgumentsMissing.exit_code
    assert "a processor writes the trace in the time of what it traces" in capsys.readouterr().err
