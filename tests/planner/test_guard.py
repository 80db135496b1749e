"""The guard of what a search answers: what it asks, remembers and passes over; and where ranks sit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Seat
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.ir.errors import (
    EmissionModule,
    EmissionPrinted,
    EmissionStorage,
    HeadsIndivisible,
    MeshwrightError,
    NotEmitted,
    PinValue,
)
from meshwright.ir.errors.capability import BODIES, CUTS, STORAGE
from meshwright.planner.plan.emitted import seats
from meshwright.planner.question.pins import Config
from meshwright.planner.search import emittable as module
from meshwright.planner.search.emittable import Emission, Passed, by_code
from meshwright.planner.search.masks import values_of
from tests.planner.handmade import config, prediction

ODD = PinValue(place="axis tp", cause="it is odd", fix="take another")
FORM, PART = (kind(place="here", cause="it is cut", fix="do without") for kind in (EmissionPrinted, EmissionModule))


def guard(monkeypatch: pytest.MonkeyPatch, *outright: MeshwrightError, target: str = "torch-gloo") -> Any:
    """A guard that refuses so much of all plans; `refuses` is what it refuses of the next."""
    made = SimpleNamespace(refuses=None, emitted=0)

    def emit(subject: object, folder: object) -> None:
        made.emitted += 1
        if made.refuses:
            raise made.refuses

    def check(*_: object) -> None:
        if outright:
            raise outright[0]

    monkeypatch.setattr(module, "subject_of", lambda *_: "subject")
    made.backend = SimpleNamespace(
        emit=emit,
        check_software=check,
        check_model=lambda calls: None,
    )
    monkeypatch.setattr(module, "backend", lambda target: None if target == "any" else made.backend)
    folds = SimpleNamespace(
        calls=lambda *_: None, calls_tried=lambda *_: None, first=lambda batch: SimpleNamespace(fold="fold")
    )
    setting: Any = SimpleNamespace(
        target=SimpleNamespace(target=target, unwritten=lambda workload, fold: outright[1:]),
        workload=SimpleNamespace(stack=SimpleNamespace(style="eager"), global_batch=8),
        folds=folds,
        ran=lambda config: config,
        decisions=lambda config, batch: SimpleNamespace(target=target, groups=f"groups of {config.tp}, {batch}"),
    )
    made.of = Emission.of(setting, "m")
    made.decisions = SimpleNamespace(target=target, groups="groups")
    return made


def test_there_is_none_where_the_target_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guard(monkeypatch, target="any").of is None
    assert guard(monkeypatch).of is not None


def test_what_is_refused_of_all_plans_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each of them is an answer, and the answer says so."""
    one = guard(monkeypatch, ODD, FORM)
    assert one.of.refused() == (ODD, FORM)
    one.backend.check_software = lambda *_: pytest.fail("asked again")
    assert one.of.refused() == (ODD, FORM)
    one.refuses = PART
    assert one.of.refusal(config("", 8), one.decisions) is None
    assert one.emitted == 0
    assert list(one.of.notes()) == [
        f"plan emit refuses this plan ({PinValue.code}), axis tp: it is odd; take another",
        f"plan emit refuses this plan ({EmissionPrinted.code}), here: it is cut; do without",
    ]
    assert list(guard(monkeypatch).of.notes()) == []


def test_what_is_not_emitted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    one = guard(monkeypatch)
    assert one.of.writes(config("tp=2", 8), one.decisions, prediction())
    assert one.of.passed == []
    one.refuses = ODD
    assert one.of.writes(config("tp=2", 8), one.decisions, prediction())  # it is not asked again of one plan
    assert not one.of.writes(config("tp=4", 8), one.decisions, prediction())
    assert one.of.passed == [Passed(config("tp=4", 8), prediction(), ODD)]


OF_MODEL = EmissionPrinted(place="the model", cause="it says too little", depends=())
OF_AXES = EmissionPrinted(place="the model", cause="it says too little", depends=(CUTS,))
OF_STORAGE = EmissionStorage(place="storage", cause="it is written into", depends=(STORAGE,))


@pytest.mark.parametrize(
    ("refusal", "held"), [(PART, True), (OF_AXES, True), (OF_STORAGE, True), (FORM, False), (ODD, False)]
)
def test_a_refusal_holds_for_all_with_the_same_of_what_it_depends_on(
    monkeypatch: pytest.MonkeyPatch, refusal: MeshwrightError, held: bool
) -> None:
    """It is not asked again; one that may depend on all of a plan is."""
    one = guard(monkeypatch)
    assert one.of.masks.of(config("tp=2", 8)) is None
    one.refuses = refusal
    assert not one.of.writes_config(config("tp=2", 8), prediction())
    assert not one.of.writes_config(config("tp=2,mbs=2", 8), prediction())
    assert one.emitted == (1 if held else 2)
    assert [found.refusal for found in one.of.passed] == [refusal, refusal]
    assert one.of.masks.of(config("tp=2,pp=2", 8)) is (refusal if held else None)
    assert one.of.masks.of(config("tp=4", 8)) is (OF_STORAGE if refusal is OF_STORAGE else None)
    one.refuses = None
    assert one.of.writes_config(config("tp=2,pp=2", 8), prediction()) != held
    assert one.of.writes_config(config("tp=4", 8), prediction()) == (refusal is not OF_STORAGE)


def test_a_refusal_of_the_model_holds_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    one = guard(monkeypatch)
    one.refuses = OF_MODEL
    assert not one.of.writes_config(config("tp=2", 8), prediction())
    assert one.of.masks.of(config("pp=2,zero=3,recompute=full", 8)) is OF_MODEL


def test_refusals_together_depend_on_what_each_does() -> None:
    """And on all of a plan, if one of them does."""

    def together(*several: NotEmitted, because: tuple[str, ...] = ()) -> frozenset[str] | None:
        first, *others = (type(one)(place="", cause="", depends=one.depends) for one in several)
        return first.with_others(others, because).apart_from(lambda way: True).depends

    assert together(OF_STORAGE) == {STORAGE}
    assert together(OF_STORAGE, PART) == {STORAGE, BODIES}
    assert together(OF_MODEL, because=(CUTS,)) == {CUTS}
    assert together(OF_STORAGE, FORM) is None


ALIKE = ("tp=2,mbs=2", "tp=2,pp=2", "tp=2,pp=2,schedule=gpipe", "tp=2,microbatches=1")
UNLIKE = (
    *("tp=4", "tp=2,cp=2", "tp=2,ep=2", "tp=2,ep=2,etp=1", "tp=2,sp=off", "tp=2,cp=2,context=ring"),
    *("tp=2,cp=2,zigzag=off", "tp=2,zero=2", "tp=2,zero=3", "tp=2,zero=3,regather=off", "tp=2,recompute=full"),
    *("tp=2,offload=optimizer", "tp=2,shard=2", "tp=2,dp=1,pp=4"),
)


def test_the_values_that_bodies_follow_from() -> None:
    """One copy has no axis of copies; how many there are, and what is around bodies, is nothing."""
    first = values_of(config("tp=2", 8), (BODIES,))
    assert [values_of(config(pins, 8), (BODIES,)) for pins in ALIKE] == [first] * len(ALIKE)
    others = [first, *(values_of(config(pins, 8), (BODIES,)) for pins in UNLIKE)]
    assert len(set(others)) == 1 + len(UNLIKE)


def test_what_is_passed_over_by_code() -> None:
    even = HeadsIndivisible(place="", cause="", fix="")

    def passed(one: Config, refusal: MeshwrightError) -> Passed:
        return Passed(one, prediction(), refusal)

    several = [passed(config("", 8), ODD), passed(config("tp=2", 8), even), passed(config("tp=4", 8), ODD)]
    found = by_code(several)
    assert found == {PinValue.code: [several[0], several[2]], HeadsIndivisible.code: [several[1]]}
    assert list(found) == [PinValue.code, HeadsIndivisible.code]


def test_where_ranks_sit() -> None:
    """Two GPUs at each adapter; then, in a pool that names none, one at each of the usual ones. CPUs have none."""
    cluster = read(
        '[[pool]]\nname = "a"\nhosts = 2\ngpu = "A100"\ngpus_per_host = 4\n'
        'nics = [{ kind = "roce", gbps = 200, count = 2 }]\n'
        '[[pool]]\nname = "b"\nhosts = 1\ngpu = "A100"\ngpus_per_host = 2\n'
        '[[link]]\nbetween = ["a", "b"]\nkind = "ethernet"\ngbps = 100\nlatency_us = 5\n'
    )
    first = [(host, gpu, gpu // 2, "roce") for host in (0, 1) for gpu in range(4)]
    assert seats(cluster) == [
        Seat(host=host, device="A100-80G", gpu=gpu, nic=nic, network=network)
        for host, gpu, nic, network in (*first, (2, 0, 0, "infiniband"), (2, 1, 1, "infiniband"))
    ]
    assert seats(read_cluster("cpu:2")) == [Seat(host=0, device="CPU", gpu=gpu, nic=-1, network="") for gpu in (0, 1)]
