"""`plan MODEL` around its search: exit codes, what is refused where there is no plan, and artefacts as text."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.errors import (
    DegreeImpossible,
    HeadsIndivisible,
    MeshwrightError,
    ModulePinUnmet,
    NoPlanInTime,
    PinValue,
    PlanUnwritable,
    SpaceEmpty,
    UnknownStep,
)
from meshwright.planner.answer import kept, remedies
from meshwright.planner.answer.relax import Nothing, Relaxation, nothing_to_json
from meshwright.planner.answer.remedies import empty, is_empty
from meshwright.planner.answer.solve import Solved
from meshwright.planner.cli.progress import Progress
from meshwright.planner.cli.verbs.plans import plan as module
from meshwright.planner.cli.verbs.plans.plan import AFTER, BEFORE, nothing_found
from meshwright.planner.plan.file import plan_text
from meshwright.planner.question.constraints import Asked, Constraints, asked
from meshwright.planner.question.pins import parse
from meshwright.planner.search.emittable import Passed
from meshwright.planner.search.search import Counts, Found
from tests.planner.handmade import GIB, bounds, config, held, plan, prediction, stage
from tests.planner.test_space import space

SILENT = Progress(io.StringIO())
BEST = Found(config("tp=2,zero=0", 8), prediction())
FULL = Found(config("tp=4,zero=0", 8), prediction(step_time_s=1.0, stages=(stage(0, held(4.5, 5.0, 1.0)),)))


def refusal(kind: type[MeshwrightError]) -> MeshwrightError:
    return kind(place="here", cause="it is so", fix="take another")


# There is a plan -----------------------------------------------------------------------------------------------------


def ran(
    monkeypatch: pytest.MonkeyPatch,
    *,
    interrupted: bool = False,
    gap: float = 0.25,
    best: Found | None = BEST,
    **words: Any,
) -> tuple[int, list[str]]:
    """The exit code, and what was called."""
    done: list[str] = []
    made = plan(bounds=bounds(gap=gap))

    class Stop:
        def __init__(self, until_s: float | None) -> None:
            self.until_s, self.interrupted = until_s, interrupted
            done.append(f"until {until_s}")

        def loading(self) -> Any:
            return nullcontext()

        @contextmanager
        def watching(self) -> Any:
            done.append("watched")
            yield self

    ask = SimpleNamespace(model="small.toml", store=None)
    ask.loaded = lambda: (ask, "setting")
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(module, "Stop", Stop)
    monkeypatch.setattr(module, "read_asked", lambda args: (ask, "constraints"))
    solved = Solved.__new__(Solved)
    monkeypatch.setattr(Solved, "best", best)
    for asking in (module, kept):
        monkeypatch.setattr(asking, "solve", lambda *of: done.append(f"by {of[-1]}") or solved)
    monkeypatch.setattr(kept, "plan_of", lambda solved, top: done.append(f"{top} others") or made)
    monkeypatch.setattr(module, "nothing_found", lambda *of: done.append("nothing") or 3)
    shown = {"page": lambda plan, written: done.append(f"shown, {written}")}
    monkeypatch.setattr("meshwright.planner.cli.views.plans.plan.SHOWN", shown)
    usual = {"dump_after": None, "out": None, "force": False, "time_limit": None, "objective": "time", "top": 5}
    usual |= {"detail": "page", "progress": SILENT, "what_if": [], "scale": None, "beat": None}
    return module.run(Namespace(**usual | {"json": False, "max_gap": None} | words)), done


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({}, 0),
        ({"max_gap": 0.25}, 0),
        ({"max_gap": 0.2}, 4),
        ({"max_gap": 0.3}, 0),
        ({"max_gap": 0.0, "gap": 0.0}, 0),
        ({"interrupted": True}, 130),
        ({"interrupted": True, "max_gap": 0.2}, 130),
    ],
)
def test_the_exit_code_of_a_plan(monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], code: int) -> None:
    ended, done = ran(monkeypatch, **words)
    assert ended == code
    assert done == ["until None", "watched", "by time", "5 others", "shown, None"]


def test_a_plan_is_written_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a folder that is made before the search; over a plan of the same model."""
    for _ in range(2):
        code, done = ran(monkeypatch, out=str(tmp_path / "a" / "b"), time_limit=2.5, objective="cost", top=7)
        assert (code, done[0], done[2:4]) == (0, "until 102.5", ["by cost", "7 others"])
        assert done[-1] == f"shown, {tmp_path / 'a' / 'b' / 'plan.json'}"
    assert (tmp_path / "a" / "b" / "plan.json").read_text() == plan_text(plan())
    code, done = ran(monkeypatch, json=True)
    assert not any(what.startswith("shown") for what in done)
    assert capsys.readouterr().out == f"{json.dumps(module.plan_to_json(plan()), indent=2, ensure_ascii=False)}\n"
    code, done = ran(monkeypatch, best=None)
    assert (code, done[-1]) == (3, "nothing")
    with pytest.raises(PlanUnwritable) as refused:
        ran(monkeypatch, out="")
    assert refused.value.place == "--out ''"


def test_artefacts_come_before_and_after_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "BEFORE", {"space": lambda *of: f"space of {of[1]}, {of[2]}"})
    monkeypatch.setattr(module, "AFTER", {"search": lambda solved: f"search, {solved.best is BEST}"})
    assert ran(monkeypatch, dump_after="space")[1] == ["until None"]
    assert capsys.readouterr().out == "space of setting, constraints\n"
    code, done = ran(monkeypatch, dump_after="search")
    assert (code, done) == (0, ["until None", "watched", "by time"])
    assert capsys.readouterr().out == "search, True\n"
    with pytest.raises(UnknownStep) as refused:
        ran(monkeypatch, dump_after="nothing")
    assert refused.value.fix == "use one of space, search"


def test_the_space_and_the_search_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device and one layer: one base. Every configuration that was priced, in order."""
    own = space(ranks=1, per_host=1, layers=1, global_batch=1, heads=1, seq=64, pins="recompute=none")
    constraints = Constraints({"recompute": ("none",), "sp": (True, False)}, {"zero": (2, 3)})
    own = replace(own, constraints=constraints)
    monkeypatch.setattr(module, "space_of", lambda *of: own)
    nothing: Any = SimpleNamespace(cluster=None)
    lines = BEFORE["space"](nothing, nothing, Asked()).splitlines()
    assert lines[:4] == [
        "space of 1 ranks, 1 sequences, 1 layers",
        "  only recompute=none",
        "  only sp=on|off",
        "  never zero=2|3",
    ]
    assert lines[4:-1] == [f"  without {what}" for what in own.truncated]
    assert lines[-1] == "  kernel configuration tp=1,pp=1,dp=1,zero=0,mbs=1,microbatches=1,recompute=none,schedule=1f1b"
    search = SimpleNamespace(counts=Counts(bases=2, priced=3), lower_s=0.5, upper_s=2.0, found={1: BEST, 2: FULL})
    solved: Any = SimpleNamespace(search=search, best=BEST)
    assert AFTER["evaluate"](solved) == json.dumps(BEST.prediction.to_json(), indent=2)
    assert AFTER["search"](solved) == (
        "search bases=2 shapes=0 full=0 slow=0 priced=3 refused=0 unwritten=0 left=0\n"
        "  bounds 0.5 2.0\n"
        f"  2.0 fits {BEST.config}\n"
        f"  1.0 full {FULL.config}"
    )


# There is none -------------------------------------------------------------------------------------------------------


def unsolved(**words: Any) -> Any:
    """A search that ended and found nothing that fits."""
    search: dict[str, Any] = {"found": {1: FULL}, "space": space(), "emission": None, "refusal": None}
    search |= {"priced_any": True} | {name: words.pop(name) for name in list(words) if name in (*search, "priced_any")}
    usual = {"complete": True, "stop": SimpleNamespace(interrupted=False), "asked": Asked()}
    return SimpleNamespace(search=SimpleNamespace(**search), **usual | words)


PASSED = [Passed(BEST.config, BEST.prediction, refusal(kind)) for kind in (PinValue, HeadsIndivisible, PinValue)]
CODES = f"; 3 that fit was passed over ({PinValue.code}, {HeadsIndivisible.code})"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ({}, "no plan that fits was found before --time-limit 2.5 ended it"),
        ({"stop": SimpleNamespace(interrupted=True)}, "no plan that fits was found before it was interrupted"),
        (
            {"emission": SimpleNamespace(passed=PASSED)},
            f"no plan that fits was found before --time-limit 2.5 ended it{CODES}",
        ),
        (
            {"emission": SimpleNamespace(passed=[])},
            "no plan that fits was found before --time-limit 2.5 ended it",
        ),
    ],
)
def test_a_search_that_is_cut_short_finds_nothing(words: dict[str, Any], cause: str) -> None:
    with pytest.raises(NoPlanInTime) as refused:
        nothing_found(unsolved(complete=False, **words), Namespace(time_limit=2.5, json=True))
    assert refused.value.cause == cause


def nothing(*found: Relaxation, nearest: Found | None = FULL) -> Nothing:
    solved: Any = None
    return Nothing(solved=solved, nearest=nearest, relaxations=found)


NO_SPACE = space(pins="tp=3")


@pytest.mark.parametrize(
    ("words", "refused", "code"),
    [
        ({}, None, 3),
        ({"found": {}, "space": NO_SPACE}, "empty", 0),
        ({"found": {}}, None, 3),
        ({"space": NO_SPACE}, None, 3),
        ({"emission": "passed"}, "unwritten", 0),
        ({"refusal": refusal(PinValue), "priced_any": False}, "inexpressible", 0),
        ({"refusal": refusal(PinValue), "priced_any": True}, None, 3),
        ({"refusal": refusal(ModulePinUnmet), "priced_any": False}, None, 3),
        ({"refusal": None, "priced_any": False}, None, 3),
    ],
)
def test_what_is_said_where_there_is_no_plan(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: dict[str, Any],
    refused: str | None,
    code: int,
) -> None:
    """An empty space before what is not emitted, before what cannot be; else what would help."""
    said = {name: PinValue(place=name, cause="", fix="") for name in ("unwritten", "inexpressible", "empty")}
    monkeypatch.setattr(
        remedies, "unwritten", lambda solved: said["unwritten"] if solved.search.emission == "passed" else None
    )
    monkeypatch.setattr(remedies, "inexpressible", lambda solved, refusal: said["inexpressible"])
    monkeypatch.setattr(remedies, "empty", lambda solved: said["empty"])
    monkeypatch.setattr(module, "relax", lambda solved: nothing())
    case = unsolved(**words)
    if refused:
        with pytest.raises(PinValue) as raised:
            nothing_found(case, Namespace(time_limit=None, json=True, progress=SILENT))
        assert raised.value is said[refused]
        return
    assert nothing_found(case, Namespace(time_limit=None, json=True, progress=SILENT)) == code
    assert capsys.readouterr().out == f"{json.dumps(nothing_to_json(nothing()), indent=2, ensure_ascii=False)}\n"
    shown: list[object] = []
    monkeypatch.setattr("meshwright.planner.cli.views.plans.nothing.show_nothing", shown.append)
    assert nothing_found(case, Namespace(time_limit=None, json=False, progress=SILENT)) == code
    assert shown == [nothing()]
    assert capsys.readouterr().out == ""


def test_nothing_as_json() -> None:
    helps = Relaxation(kind="batch", what="fewer", found=BEST)
    lacks = {"config": FULL.config.to_json(), "step_time_s": 1.0, "peak_memory_bytes": 4.5 * GIB}
    other = {"config": BEST.config.to_json(), "step_time_s": 2.0, "peak_memory_bytes": 6.0 * GIB}
    assert nothing_to_json(nothing(helps)) == {
        "fits": False,
        "nearest": lacks | {"short": {"stage": 0, "bytes": GIB / 2}},
        "relaxations": [{"kind": "batch", "what": "fewer"} | other],
    }
    assert nothing_to_json(nothing(nearest=None)) == {"fits": False, "nearest": None, "relaxations": []}
    assert nothing(nearest=None).short == (-1, 0.0)


def test_more_stages_than_blocks_are_no_matter_of_what_else_is_asked() -> None:
    wished = asked(parse(["pp=8"]))
    own = replace(space(), constraints=wished.constraints)
    case: Any = SimpleNamespace(search=SimpleNamespace(space=own), asked=wished)
    refused = empty(case)
    assert isinstance(refused, DegreeImpossible)
    assert (refused.cause, refused.fix) == ("8 stages for 4 blocks", "use at most 4")


@pytest.mark.parametrize(
    ("fix", "fault"),
    [
        ("", None),
        ("tp=3", "take back what was asked of tp"),
        ("tp=4,pp=4", "take back what was asked of tp or pp"),
        ("tp=3,pp=3", "take back more than one of them"),
    ],
)
def test_an_empty_space_is_laid_to_what_was_asked(fix: str, fault: str | None) -> None:
    """Eight ranks, four layers, four heads: three ranks share no heads, three stages do not divide eight, and
    four times four ranks are more than there are."""
    wished = asked(parse([fix]))
    own = replace(space(), constraints=wished.constraints)
    assert is_empty(own) == (fault is not None)
    if fault is None:
        return
    case: Any = SimpleNamespace(search=SimpleNamespace(space=own), asked=wished)
    refused = empty(case)
    assert isinstance(refused, SpaceEmpty)
    assert refused.place == f"plan, {wished.text}"
    assert refused.cause == "8 ranks, 8 sequences and 4 layers cannot be shared out so"
    assert refused.fix == fault
