"""What configurations share: a model captured once, at whatever batch is asked for first; and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.ir.analysis.microbatch import Blocker
from meshwright.ir.errors import CannotRebatch, HeadsIndivisible, MeshwrightError, PinValue, WorkloadImpossible
from meshwright.ir.frontends.folding import captured
from meshwright.ir.target.capabilities import ANY
from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.question import pricing as module
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pricing import MOST_BODIES, Folds, Setting, layers_of, target_of
from tests.planner.handmade import config, plan

REBATCH = CannotRebatch(place="", cause="it depends on the batch", fix="")
FORWARD = PinValue(place="", cause="products of two dtypes", fix="")


@dataclass(frozen=True)
class Captured:
    """What was captured: its fold is the name of how."""

    fold: Any
    notes: tuple[str, ...] = ()
    constants: Any = field(default_factory=dict)
    stacks: tuple[str, ...] = ("as traced",)


@dataclass(frozen=True)
class Told:
    """How a model is called."""

    name: str
    constants: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A model that is cast to a dtype, or as it was made."""

    cast: bool = False
    name: str = "model"

    def as_made(self) -> Source | None:
        return Source(name="as made") if self.cast else None


class Model:
    """Captures of a model, noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, inputs: Any = (), fails: bool = False) -> None:
        self.captured, self.written, self.verified = list[Any](), list[Any](), list[Any]()
        self.refused: dict[int, MeshwrightError] = {}
        self.unlike = set[int]()

        def capture(source: Source, *, batch: int, seq: int, seed: int) -> Captured:
            self.captured.append((source.name, batch, seq, seed))
            if fails and source.name == "model":
                raise FORWARD
            own = inputs if source.name == "model" else ()
            return Captured(SimpleNamespace(name=f"{source.name} at {batch}", inputs=own), ("a note",))

        def rebatched(few: Captured, more: Captured, rows: int, batch: int) -> Captured:
            if batch in self.unlike:
                raise REBATCH
            return Captured(SimpleNamespace(name=f"{few.fold.name}, in proportion at {batch}"))

        def with_batch(fold: Any, batch: int) -> Any:
            if batch in self.refused:
                raise self.refused[batch]
            self.written.append(batch)
            return SimpleNamespace(name=f"{fold.name}, written at {batch}")

        monkeypatch.setattr(module, "capture", capture)
        monkeypatch.setattr(module, "rebatched", rebatched)
        monkeypatch.setattr(module, "with_batch", with_batch)
        monkeypatch.setattr(module, "share_loops", lambda made, fold: None)
        monkeypatch.setattr(module, "verify_fold", self.verified.append)


def folds(source: Any = None) -> Folds:
    made: Any = source or Source()
    return Folds(made, 64, 3)


def test_a_model_is_captured_once_and_written_at_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    one, own = Model(monkeypatch), folds()
    found: list[Any] = [own.at(batch) for batch in (4, 8, 4, 8)]
    assert [fold.name for fold in found] == ["model at 4", "model at 4, written at 8"] * 2
    assert (one.captured, one.written) == ([("model", 4, 64, 3)], [8])
    first: Any = own.first(16)
    assert first.fold.name == "model at 4"
    assert [fold.name for fold in one.verified] == ["model at 4"]


def test_other_batches_are_in_proportion_to_two_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; those at which the model is another are captured."""
    one, own = Model(monkeypatch), folds()
    one.refused, one.unlike = dict.fromkeys((8, 16, 32, 64), REBATCH), {64}
    own.first(4)
    found: list[Any] = [own.at(batch) for batch in (16, 32, 8, 64)]
    proportional = [f"model at 4, in proportion at {batch}" for batch in (16, 32)]
    assert [fold.name for fold in found] == [*proportional, "model at 8", "model at 64"]
    assert [batch for _, batch, _, _ in one.captured] == [4, 8, 64]


def test_one_sequence_is_written_from_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a trace of one there is no loop over them to be seen."""
    one, own = Model(monkeypatch), folds()
    found: Any = own.at(1)
    assert found.name == "model at 2, written at 1"
    again: Any = own.at(2)
    assert again.name == "model at 2"
    assert one.captured == [("model", 2, 64, 3)]


def test_a_batch_that_cannot_be_written_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    one, own = Model(monkeypatch), folds()
    one.refused = {8: REBATCH, 16: FORWARD}
    own.first(4)
    found: Any = own.at(8)
    assert found.name == "model at 8"
    assert [batch for _, batch, _, _ in one.captured] == [4, 8]
    with pytest.raises(PinValue):
        own.at(16)


def test_constants_that_grow_with_the_batch_are_captured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first batch and, once one of them is read at another, at twice that. A batch that is captured anew has
    constants of its own."""
    one, own = Model(monkeypatch), folds()
    written: list[Any] = []
    at_batch = lambda few, more, rows, batch: written.append((rows, batch)) or {"grows": f"at {batch}"}  # noqa: E731
    monkeypatch.setattr(captured, "at_batch", at_batch)
    grows, stays = SimpleNamespace(batched=True), SimpleNamespace(batched=False)
    own.captured = Captured(own.first(4).fold, (), {"grows": grows, "stays": stays})  # type: ignore[assignment]
    made: list[Any] = [own.constants(batch) for batch in (8, 16)]
    assert [(list(found), found["stays"]) for found in made] == [(["grows", "stays"], stays)] * 2
    assert [batch for _, batch, _, _ in one.captured] == [4]
    assert [found["grows"] for found in made + made] == ["at 8", "at 16"] * 2
    assert own.constants(4)["grows"] == grows
    assert written == [(4, 8), (4, 16)]
    one.refused, one.unlike = {32: REBATCH}, {32}
    assert own.constants(32) == {}
    assert [batch for _, batch, _, _ in one.captured] == [4, 8, 32]


FP32 = tuple(
    (SimpleNamespace(value=name), SimpleNamespace(dtype=dtype)) for name, dtype in (("image", "f32"), ("text", "i64"))
)
KEPT = "parameters stay in fp32, and products alone have another precision: "


@pytest.mark.parametrize(
    ("cast", "inputs", "fails", "made", "note"),
    [
        (False, (), False, "model", None),
        (True, (), False, "model", None),
        (True, FP32[1:], False, "model", None),
        (True, FP32, False, "model", None),
        (False, FP32, False, "model", None),
        (True, (), True, "as made", f"{KEPT}products of two dtypes"),
    ],
)
def test_a_model_that_does_not_run_in_a_dtype_stays_as_it_was_made(
    monkeypatch: pytest.MonkeyPatch, cast: bool, inputs: Any, fails: bool, made: str, note: str | None
) -> None:
    Model(monkeypatch, inputs=inputs, fails=fails)
    found: Any = folds(Source(cast=cast)).first(4)
    assert found.fold.name == f"{made} at 4"
    assert found.notes == ("a note", *(() if note is None else (note,)))


def test_what_raises_in_the_dtype_that_it_was_made_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Model(monkeypatch, fails=True)
    with pytest.raises(PinValue):
        folds().first(4)


def test_a_model_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the least batch, with its lists as they were traced."""
    Model(monkeypatch)
    watched: list[Any] = []

    def of(source: Source, reference: str, **shape: Any) -> Any:
        watched.append((source.name, reference, shape))
        return Told("calls")

    monkeypatch.setattr(module, "calls_of", of)
    own = folds()
    told: list[Any] = [own.calls("m", batch) for batch in (8, 4)]
    assert told == [Told("calls"), Told("calls")]
    assert watched == [("model", "m", {"batch": 2, "seq": 64, "stacks": ("as traced",)})]


# A setting -----------------------------------------------------------------------------------------------------------


def setting(**words: Any) -> Setting:
    own: Any = SimpleNamespace(at=lambda batch: f"fold at {batch}", first=lambda batch: SimpleNamespace(fold="first"))
    usual: dict[str, Any] = {"folds": own, "ranks": 8, "workload": Workload(global_batch=8, seq=64), "target": ANY}
    return Setting(**usual | {"price": lambda program: f"price of {program}"} | words)


def test_body_programs_are_forgotten_when_there_are_too_many() -> None:
    bodies: Any = dict.fromkeys(range(MOST_BODIES), "program")
    own = setting(bodies=bodies)
    assert len(own.room()) == MOST_BODIES
    bodies["one more"] = "program"
    assert own.room() is bodies
    assert bodies == {}


@pytest.mark.parametrize(
    ("blockers", "said"),
    [
        (0, ()),
        (1, ("micro-batches change this model's result: %n0 = norm: it averages",)),
        (3, ("micro-batches change this model's result: %n0 = norm: it averages, and 2 more",)),
    ],
)
def test_what_micro_batches_change_is_said(
    monkeypatch: pytest.MonkeyPatch, blockers: int, said: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "unfolded_short", lambda key: SimpleNamespace(graph=("short", key.of)))
    found = tuple(Blocker(f"n{at}", "norm", "", "", "averages") for at in range(blockers))
    monkeypatch.setattr(
        module, "microbatch", lambda graph: SimpleNamespace(blockers=found if graph == ("short", "first") else None)
    )
    assert setting().cautions() == said


def test_a_precision_that_is_not_emitted_is_said() -> None:
    refusal = PinValue(place="dtype", cause="it is odd", fix="take bf16")
    target: Any = SimpleNamespace(unwritten=lambda workload, fold: [refusal] if fold == "fold at 4" else [])
    own = setting(target=target)
    assert own.unwritten(config("dp=4,mbs=1", 4)) == (
        f"plan emit refuses this plan ({PinValue.code}), dtype: it is odd; take bf16",
    )
    assert own.unwritten(config("dp=2,mbs=1", 2)) == ()


def test_plans_are_held_to_what_was_asked_and_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are in the style of the workload."""
    done: list[str] = []
    monkeypatch.setattr(module, "check_held", lambda *_: done.append("modules"))
    monkeypatch.setattr(module, "check_constraints", lambda *_: done.append("constraints"))
    monkeypatch.setattr(module, "resolved", lambda *_: None)
    made, fold = plan().decisions, "fold"
    same: Any = fold
    assert setting().allowed(made, same) is made
    compiled = Workload(global_batch=8, seq=64, stack=stack_named("torch-compile"))
    assert setting(workload=compiled).allowed(made, same) == replace(made, style="compiled")
    assert done == []
    pins: Any = ("pin",)
    target: Any = SimpleNamespace(check=lambda made, fold, workload: done.append(made.style))
    setting(modules=pins, target=target).allowed(made, same)
    setting(constraints=Constraints({"tp": (2,)}), target=target, workload=compiled).allowed(made, same)
    setting(constraints=Constraints({}, {"tp": (2,)})).allowed(made, same)
    assert done == ["modules", "eager", "constraints", "compiled", "constraints"]


def test_what_is_open_is_settled_on_the_ranks_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a runtime by degrees alone, for one by the whole plan; four heads are shared out by two ranks at most."""
    asked: list[Any] = []

    def check(degrees: Any, fold: object, ranks: int, batch: int) -> None:
        asked.append((degrees.sequence_parallel, fold, ranks, batch))
        if degrees.sequence_parallel:
            raise HeadsIndivisible(place="", cause="", fix="")

    monkeypatch.setattr(module, "check", check)
    closed = replace(config("tp=2", 4), open=())
    assert setting().settled(closed, 8) is closed
    found = setting().settled(config("tp=2,etp=1,zero=1", 4), 8)
    assert (found.sp, found.open) == (False, ())
    assert asked == [(True, "fold at 2", 4, 8), (False, "fold at 2", 4, 8)]
    ranks: list[int] = []
    monkeypatch.setattr(Setting, "decisions", lambda self, tried, batch: ranks.append(self.ranks))
    target: Any = SimpleNamespace()
    assert setting(target=target).settled(config("tp=2,pp=2,cp=2", 16), 8).sp
    assert ranks == [16]


def test_layers_are_calls_of_repeated_blocks() -> None:
    segments = [
        SimpleNamespace(glue=glue, calls=calls) for glue, calls in ((True, 1), (False, 8), (False, 3), (True, 2))
    ]
    fold: Any = SimpleNamespace(segments=segments)
    assert layers_of(fold) == 11


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("torch-cud", "did you mean 'torch-cuda'?"),
        ("qqqqqq", "use one of any, torch-cuda, torch-gloo, jax-cuda, jax-tpu, jax-cpu"),
    ],
)
def test_a_target_that_is_not_known(name: str, fix: str) -> None:
    with pytest.raises(WorkloadImpossible) as refused:
        target_of(name)
    assert (refused.value.cause, refused.value.fix) == (f"{name!r} is not known", fix)
