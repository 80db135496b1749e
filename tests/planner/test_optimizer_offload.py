"""The optimizer's state on the host: found where nothing fits with it on the device, or nothing as fast."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.searches import Case, opened, searched
from meshwright.ir.errors import HostUnknown, LayersIndivisible
from meshwright.planner.plan.words import in_words
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import offload
from meshwright.planner.refine.offload import OptimizerOffload
from meshwright.planner.refine.order import widened
from meshwright.planner.space.declared import Storage
from tests.planner.told import config

FULL = Case(model="llama-3.1-8b", cluster="1x1xH100", batch=16, seq=2048)
OFFLOAD = OptimizerOffload()


def improve(search: Any, stop: Any) -> None:
    widened(search, stop, (OFFLOAD,))


def never() -> bool:
    return False


def test_what_fits_only_without_the_state_is_found() -> None:
    own = opened(FULL)
    search = searched(own)
    assert search.best is None
    improve(search, never)
    found = search.best
    assert found is not None
    assert found.fits
    assert found.config.offload == "optimizer"
    assert not own.setting.predict(replace(found.config, offload="none"), own.space.global_batch).fits
    assert any("the host makes the step" in line for line in in_words(found.config))
    priced = [one for one in search.found.values() if one.config.offload == "optimizer" and one.fits]
    assert found.step_s == min(one.step_s for one in priced)


def test_the_answer_stays_where_there_is_room() -> None:
    search = searched(opened(replace(FULL, cluster="1x8xH100")))
    before = search.best
    assert before is not None
    improve(search, never)
    assert search.best is before


@pytest.mark.parametrize(
    "constraints", [Constraints(only={"offload": ("none",)}), Constraints(never={"offload": ("optimizer",)})]
)
def test_what_is_asked_of_offload_is_kept(constraints: Constraints) -> None:
    search = opened(FULL, constraints).search()
    assert not OFFLOAD.accepts(search)


def test_only_targets_that_can_have_it_get_it() -> None:
    assert OFFLOAD.accepts(opened(FULL).search())
    assert OFFLOAD.accepts(opened(replace(FULL, target="torch-cuda")).search())
    own = opened(replace(FULL, target="torch-cuda"))
    cannot = replace(own, space=replace(own.space, target=replace(own.space.target, offload=())))
    assert not OFFLOAD.accepts(cannot.search())


# In numbers ----------------------------------------------------------------------------------------------------------


class Shapes:
    """Bounds: 10 s of a shape, 30 s with wires; ZeRO-1 and 2 do not fit for the state, 80 bytes of it."""

    def __init__(self, common: str, base: Config) -> None:
        assert common == "common"

    def step_s(self, own: Config, wires: object = None) -> float:
        return 30.0 + own.zero if wires == own.zero else {2: 10.0, 4: 99.0, 8: 98.9}[own.pp]

    def wires(self, own: Config) -> int:
        return own.zero

    def loads(self, pipeline: Config) -> str:
        return "loads"

    def lacks_bytes(self, loads: str, pipeline: Config, storage: Storage, *, offloaded: bool) -> float:
        assert loads == "loads"
        return {0: (5.0, 0.5), 1: (5.0, 0.0), 2: (0.5, -5.0), 3: (0.0, -9.0)}[storage.zero][offloaded]

    def stepped_bytes(self, loads: str, pipeline: Config, storage: Storage) -> float:
        return 160.0 / (1 + storage.zero)


class CoarseBounds:
    """Half a second of work for every sequence, as much again for who straggles; all has room but what has eight."""

    common: Any = SimpleNamespace(straggling=2.0, capacity=100.0, with_runtime=lambda nbytes: nbytes + 50.0)

    def used_bytes(self, base: Config, sequences: int) -> tuple[Config, int]:
        return base, sequences

    def work_s(self, base: Config, sequences: int) -> float:
        assert sequences == 4
        return base.mbs / 2

    def fullest(self, sized: Config, used: tuple[Config, int], *, offloaded: bool) -> Any:
        assert offloaded
        assert used == (replace(sized, pp=1, microbatches=1), 4)
        if sized.mbs == 3:
            return None
        return np.array([[60.0, 51.0], [70.0, 50.5 if sized.mbs == 8 else 50.0]])

    def priced(self, base: Config) -> Config:
        if base.mbs == 7:
            raise LayersIndivisible(place="here", cause="seven", fix="six")
        return base


def told(monkeypatch: pytest.MonkeyPatch, bases: list[Config], **changes: Any) -> Any:
    """The host steps 4 bytes a second at the least, and moves 24 bytes for each parameter, whose state takes 12."""
    asked: list[Config] = []
    monkeypatch.setattr(offload, "Bounds", Shapes)
    monkeypatch.setattr(offload, "may_wait", lambda search, kind: kind == "optimizer")
    monkeypatch.setattr(offload, "stepped_bytes_per_s", lambda device: device)
    monkeypatch.setattr(offload, "step_bytes_per_element", lambda workload: 24.0)
    workload = SimpleNamespace(states=SimpleNamespace(master=4.0), moments=8.0)
    space = SimpleNamespace(
        most_sequences=4,
        bases=lambda: iter(bases),
        pipelined=lambda base: [replace(base, pp=pp, microbatches=8) for pp in (2, 4)],
        pipelines=lambda base: [replace(base, pp=pp) for pp in changes.get("pps", (2,))],
        storages=lambda pipeline: [Storage(zero, 0, True) for zero in range(4)],
    )
    pools = [SimpleNamespace(device=rate) for rate in (8.0, 4.0)]
    own = SimpleNamespace(
        setting=SimpleNamespace(workload=workload),
        prices=SimpleNamespace(cluster=SimpleNamespace(pools=pools)),
        coarse=CoarseBounds(),
        common="common",
        space=space,
        upper_s=changes.get("upper_s", 100.0),
        price=asked.append,
        asked=asked,
        settled=[],
    )
    own.settle = lambda: own.settled.append(len(asked))
    return own


@pytest.mark.parametrize(
    ("changes", "zeros"),
    [
        # Half a second for each byte of state: 31 + 80 / 2 and 32 + 53.3 / 2 s; what has no room even so, or has room
        # as it is, is left.
        ({}, [2, 1]),
        ({"upper_s": 71.0 / 0.99}, [2]),
        ({"upper_s": 71.01 / 0.99}, [2, 1]),
        ({"upper_s": 50.0}, []),
        ({"pps": (4,)}, []),
        ({"pps": (8,)}, [2, 1]),
    ],
)
def test_what_does_not_fit_for_the_state_is_estimated(
    monkeypatch: pytest.MonkeyPatch, changes: Any, zeros: list[int]
) -> None:
    base = config(mbs=2)
    own = told(monkeypatch, [base], **changes)
    improve(own, never)
    (pp,) = changes.get("pps", (2,))
    assert own.asked == [replace(base, pp=pp, zero=zero, offload="optimizer") for zero in zeros]
    assert own.settled == [len(zeros)]


def test_the_quickest_bases_that_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight micro-batches in two stages or four: 8 / 4 x n / 2 x 2 s. Eight sequences have no room, three no
    schedule; what would take as long as the answer is left, and what the model refuses."""
    few = [config(mbs=n) for n in (8, 7, 6, 5, 3, 2, 50)]
    own = told(monkeypatch, few)
    improve(own, never)
    assert [one.mbs for one in own.asked] == [2, 5, 6, 2, 5, 6]
    own = told(monkeypatch, few, upper_s=11.95)
    monkeypatch.setattr(Shapes, "step_s", lambda self, own, wires=None: -100.0)
    improve(own, never)
    assert [one.mbs for one in own.asked] == [2, 5, 2, 5]
    many = [config(mbs=2, tp=n) for n in range(1, 15)]
    own = told(monkeypatch, many)
    improve(own, never)
    assert [one.tp for one in own.asked] == list(range(1, 13))
    assert own.settled == [12]
    own = told(monkeypatch, many)
    improve(own, lambda: len(own.asked) == 3)
    assert (len(own.asked), own.settled) == (3, [])


def test_nothing_is_tried_without_a_state_or_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own = told(monkeypatch, [config(mbs=2)])
    states = own.setting.workload
    for master, moments, expected in ((4.0, 0.0, True), (0.0, 8.0, True), (0.0, 0.0, False)):
        states.states.master, states.moments = master, moments
        assert OFFLOAD.accepts(own) == expected
    improve(own, never)
    states.moments = 8.0

    def unknown(device: object) -> float:
        raise HostUnknown(place="host", cause="unknown", fix="say it")

    monkeypatch.setattr(offload, "stepped_bytes_per_s", unknown)
    improve(own, never)
    assert (own.asked, own.settled) == ([], [])
