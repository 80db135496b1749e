"""Plans between those of the space: found where memory binds, with no more layers treated than must be."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.searches import Case, opened, searched
from meshwright.cost_models.hardware.devices import LOOPBACK
from meshwright.ir.errors import LayersIndivisible
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.refine import partial_recompute
from meshwright.planner.refine.order import widened
from meshwright.planner.refine.partial_recompute import OFFLOADED, RECOMPUTED, Partial, Treated, bases, promising
from meshwright.planner.search.search import Found
from meshwright.planner.space.declared import Storage
from tests.planner.told import config, price

TIGHT = Case(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192, target="torch-cuda")


def improve(search: Any, stop: Any) -> None:
    widened(search, stop, (RECOMPUTED, OFFLOADED))


def ways(search: Any) -> list[Partial]:
    """Those that can be, if the search has an answer."""
    search.best = search.best or 1
    return [way for way in (RECOMPUTED, OFFLOADED) if way.accepts(search)]


def never() -> bool:
    return False


def test_as_few_layers_are_computed_again_as_fit() -> None:
    own = opened(TIGHT, Constraints(only={"cp": (1,), "offload": ("none",)}))
    search = searched(own)
    assert search.best
    before, proved = search.best, search.lower_s
    improve(search, never)
    after = search.best
    assert after.fits
    assert search.lower_s <= after.step_s < proved <= before.step_s
    word, _, layers = after.config.recompute.partition(":")
    assert word == RECOMPUTED.word
    fewer = replace(after.config, recompute=f"{word}:{int(layers) - 1}")
    assert not own.setting.predict(fewer, own.space.global_batch).fits


@pytest.mark.parametrize(
    "constraints", [Constraints(only={"recompute": ("none",)}), Constraints(never={"recompute": ("full",)})]
)
def test_what_is_asked_of_recomputation_is_kept(constraints: Constraints) -> None:
    search = searched(opened(TIGHT, constraints))
    answer = search.best
    assert RECOMPUTED not in ways(search)
    improve(search, never)
    assert search.best is not None
    assert search.best is answer or search.best.config.offload.startswith(OFFLOADED.word)


def test_only_targets_that_can_keep_activations_on_the_host() -> None:
    for target in ("any", "torch-cuda"):
        assert ways(opened(replace(TIGHT, target=target)).search()) == [RECOMPUTED, OFFLOADED]
    own = opened(TIGHT)
    cannot = replace(own, space=replace(own.space, target=replace(own.space.target, offload=())))
    assert ways(cannot.search()) == [RECOMPUTED]


# In numbers ----------------------------------------------------------------------------------------------------------


def link(bytes_per_s: float, kind: str = "pcie") -> Any:
    wire = SimpleNamespace(kind=kind, share_bytes_per_s=bytes_per_s)
    return SimpleNamespace(device=SimpleNamespace(host_link=wire))


class CoarseBounds:
    """A micro-batch of so many sequences takes 6 s, 8 s if all is computed again, and as often more as there are
    tensor parallel ranks; it keeps 10 and 20 bytes in its bodies, or 1 and 2. Devices have 100 bytes, 40 of them for
    the runtime."""

    def __init__(self, fullest: dict[Config, tuple[float, float]] | None = None) -> None:
        self.known = fullest or {}
        self.asked: list[int] = []
        self.common: Any = SimpleNamespace(
            calls=(("a", 2), ("b", 3)), capacity=100.0, with_runtime=lambda nbytes: nbytes + 40.0, straggling=1.5
        )

    def work_s(self, base: Config, sequences: int) -> float:
        self.asked.append(sequences)
        return base.tp * (8.0 if base.recompute == "full" else 6.0)

    def kept_bytes(self, base: Config, sequences: int) -> Any:
        self.asked.append(sequences)
        return np.array([1.0, 2.0] if base.recompute == "full" else [10.0, 20.0])

    def fullest_bytes(self, config: Config, kept: Any, *, sharded: bool) -> float:
        assert sharded
        return self.known.get(config, (80.0, 20.0))[int(kept[0] == 1.0)]

    def priced(self, base: Config) -> Config:
        if base.mbs == 7:
            raise LayersIndivisible(place="here", cause="seven", fix="six")
        return base


def told_search(**changes: Any) -> Any:
    """Four sequences at most; a wire to the host of 8 bytes a second."""
    space: Any = SimpleNamespace(most_sequences=4, layers=8)
    space.recompute = lambda: ["none"]
    space.target = SimpleNamespace(waits=lambda *, again: not again)
    vars(space).update(changes.pop("space", {}))
    pools = [link(4.0), link(8.0)]
    own: Any = SimpleNamespace(coarse=CoarseBounds(), space=space, common="common", upper_s=100.0, best=1, found={})
    own.prices = SimpleNamespace(cluster=SimpleNamespace(pools=pools))
    for name, value in changes.items():
        setattr(own, name, value)
    return own


def test_what_it_costs_to_treat_all_layers() -> None:
    """Computed again, two more seconds. To the host and back go 2 x (2 x 10 + 3 x 20) bytes, behind a third of six
    seconds forward and another one backward."""
    own = told_search()
    again, away = Treated.of(own, config(), RECOMPUTED), Treated.of(own, config(), OFFLOADED)
    assert (again, away) == (Treated(6.0, 2.0, 0.0), Treated(6.0, 20.0, 4.0))
    assert set(own.coarse.asked) == {4}
    assert [again.seconds(share) for share in (0.0, 0.25)] == [0.0, 0.5]
    assert [away.seconds(share) for share in (0.1, 0.25, 1.0)] == [0.0, 1.0, 16.0]


def test_layers_are_treated_by_a_word() -> None:
    assert RECOMPUTED.of(config(), 3) == config(recompute="full_layers:3")
    assert OFFLOADED.of(config(), 2) == config(offload="activations:2")
    assert OFFLOADED.of(config(), 0) == config(offload="activations")


@pytest.mark.parametrize(
    ("fullest", "upper_s", "taken"),
    [
        ((80.0, 20.0), 20.0, True),  # 9 s of work
        ((80.0, 20.0), 9.1, True),
        ((80.0, 20.0), 9.05, False),  # less than a hundredth to be gained
        ((80.0, 60.0), 20.0, False),  # no room for the state alone
        ((80.0, 59.0), 20.0, True),
        ((50.0, 50.0), 20.0, False),  # nothing to be gained by it
        ((inf, 20.0), 20.0, False),
    ],
)
def test_which_bases_are_looked_into(fullest: tuple[float, float], upper_s: float, taken: bool) -> None:
    """One micro-batch of 6 s, half as much again for who straggles; devices have room for 60 bytes."""
    base = config()
    space = {"bases": lambda: iter([base]), "pipelined": lambda base: iter([base])}
    own = told_search(space=space, upper_s=upper_s, found={base: Found(base, price(30.0))})
    own.coarse = CoarseBounds({base: fullest})
    assert bases(own, RECOMPUTED) == ([base] if taken else [])


def test_of_each_kind_the_quickest_bases_the_quickest_kinds_first() -> None:
    """Kinds of what was priced; each base by the best of its shapes, the share that does not fit computed again: of 2 s
    a third where 20 bytes of 60 are too much."""
    wide = [config(tp=2, mbs=n) for n in (1, 2, 4)]
    narrow = [config(mbs=n) for n in (1, 2, 4)]
    other = [config(cp=2), config(recompute="full"), config(tp=2, recompute="selective_op")]
    sizes = {wide[0]: 4, wide[1]: 2, wide[2]: 3, narrow[0]: 2, narrow[1]: 2, narrow[2]: 1}

    def pipelined(base: Config) -> list[Config]:
        return [replace(base, pp=pp, microbatches=pp * sizes.get(base, 1)) for pp in (2, 1)]

    space = {"bases": lambda: iter([*narrow, *other, *wide]), "pipelined": pipelined}
    found = {one: Found(one, price(step_s)) for one, step_s in ((narrow[0], 3.0), (wide[1], 2.0), (narrow[2], 1.5))}
    own = told_search(space=space, found=found)
    assert bases(own, RECOMPUTED) == [narrow[2], narrow[1], wide[1], wide[2]]  # of equals that of more sequences
    # One with a shape that has room for all is the quicker one of two that work as long.
    own.coarse = CoarseBounds({replace(narrow[0], pp=2, microbatches=4): (60.0, 20.0)})
    assert bases(own, RECOMPUTED) == [narrow[2], narrow[0], wide[1], wide[2]]
    own.found = {one: found[one] for one in (wide[1],)}
    assert bases(own, RECOMPUTED) == wide[1:]


def test_at_most_eight_kinds() -> None:
    every = [config(tp=n) for n in range(1, 11)]
    space = {"bases": lambda: iter(every), "pipelined": lambda base: iter([base])}
    own = told_search(space=space, found={one: Found(one, price(20.0 - one.tp)) for one in every}, upper_s=1e3)
    assert bases(own, RECOMPUTED) == every[:1:-1]


class Shapes:
    """Bounds: 10 s for every shape, 20 s with wires; 40 bytes are kept by the fullest group."""

    def __init__(self, common: str, base: Config) -> None:
        assert common == "common"
        self.base = base

    def step_s(self, own: Config, wires: object = None) -> float:
        return 20.0 if wires == own.zero else 10.0 + (90.0 if own.pp == 4 else 0.0)

    def wires(self, own: Config) -> int:
        return own.zero

    def loads(self, pipeline: Config) -> list[Any]:
        return [SimpleNamespace(before=before) for before in (30.0, 40.0, 10.0)]

    def lacks_bytes(self, loads: Any, pipeline: Config, storage: Storage) -> float:
        return {0: 40.0, 1: 39.0, 2: 10.0, 3: 0.0}[storage.zero]


def shapes_of(base: Config) -> Any:
    return (replace(base, pp=pp, microbatches=8) for pp in (2, 4))


def levels_of(pipeline: Config) -> Any:
    return (Storage(zero, 0, True) for zero in range(4))


def test_what_does_not_fit_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lacks nothing needs no treatment, and what lacks all that is kept has none. With wires 20 s; the share that
    is lacking, 39 or 10 of 40 bytes, of 2 s for each of eight micro-batches in two stages. Four stages are too slow."""
    monkeypatch.setattr(partial_recompute, "Bounds", Shapes)
    own = told_search(space={"pipelines": shapes_of, "storages": levels_of})
    shaped = {zero: config(pp=2, microbatches=8, zero=zero) for zero in (1, 2)}
    assert list(promising(own, config(), RECOMPUTED)) == [(20 + 4 * 2 * 39 / 40, shaped[1]), (22.0, shaped[2])]
    own.upper_s = 27.8 / 0.99
    assert list(promising(own, config(), RECOMPUTED)) == [(22.0, shaped[2])]
    own.upper_s = 22.0 / 0.99
    assert list(promising(own, config(), RECOMPUTED)) == []
    assert list(promising(own, config(mbs=7), RECOMPUTED)) == []


class Pricing:
    """Prices what a search asks for: what fits from so many layers on, and takes so long for each."""

    def __init__(self, fits_from: int, step_s: float = 1.0, each_s: float = 1.0) -> None:
        self.fits_from, self.step_s, self.each_s = fits_from, step_s, each_s
        self.asked: list[str] = []

    def __call__(self, own: Config) -> Found | None:
        word = own.recompute if own.recompute != "none" else own.offload
        self.asked.append(word)
        layers = int(word.partition(":")[2] or -(-8 // (own.pp * own.vp)))
        if self.fits_from < 0:
            return None
        lacks = 0.0 if layers >= self.fits_from else 1.0
        return Found(own, price(self.step_s + self.each_s * layers, lacks))


@pytest.mark.parametrize(
    ("way", "shape", "pricing", "layers"),
    [
        # Of eight layers all but one at most are computed again, and all are sent to the host.
        (RECOMPUTED, {}, Pricing(1), [7, 3, 1]),
        (RECOMPUTED, {}, Pricing(2), [7, 3, 1, 2]),
        (RECOMPUTED, {}, Pricing(5), [7, 3, 5, 4]),
        (RECOMPUTED, {}, Pricing(7), [7, 3, 5, 6]),
        (RECOMPUTED, {}, Pricing(8), [7]),
        (OFFLOADED, {}, Pricing(8), [8, 4, 6, 7]),
        (OFFLOADED, {}, Pricing(9), [8]),
        (OFFLOADED, {}, Pricing(-1), [8]),
        # Stages of three layers at most; two in each of three groups have two, one in each of eight has one.
        (RECOMPUTED, {"pp": 3}, Pricing(1), [2, 1]),
        (OFFLOADED, {"pp": 3}, Pricing(1), [3, 1]),
        (RECOMPUTED, {"pp": 2, "vp": 2}, Pricing(1), [1]),
        (RECOMPUTED, {"pp": 8}, Pricing(1), []),
        (OFFLOADED, {"pp": 8}, Pricing(1), [1]),
        # What does not fit with four and takes as long as the answer is not tried with more.
        (OFFLOADED, {}, Pricing(8, 95.0, 1.25), [8, 4]),
        (OFFLOADED, {}, Pricing(8, 95.0, 1.24), [8, 4, 6]),
    ],
)
def test_as_few_layers_are_sought_as_fit(
    monkeypatch: pytest.MonkeyPatch, way: Partial, shape: Any, pricing: Pricing, layers: list[int]
) -> None:
    settled: list[int] = []
    own = told_search(price=pricing, settle=lambda: settled.append(1), space={"recompute": lambda: ["none"]})
    monkeypatch.setattr(partial_recompute, "bases", lambda search, way: [config()])
    monkeypatch.setattr(partial_recompute, "promising", lambda search, base, way: [(1.0, config(**shape))])
    monkeypatch.setattr(Partial, "accepts", lambda self, search: True)
    pricing.asked.clear()
    widened(own, never, (way,))
    every = -(-8 // (config(**shape).pp * config(**shape).vp))
    words = [way.word if way.whole and count == every else f"{way.word}:{count}" for count in layers]
    assert pricing.asked == words
    assert settled == [1]


def test_the_quickest_of_those_that_differ_in_schedule_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every base, number of stages and kind of storage one."""
    asked: list[Config] = []

    def pricing(own: Config) -> Found:
        asked.append(own)
        return Found(own, price(0.0, 1.0))

    own = told_search(price=pricing, settle=lambda: None, space={"recompute": lambda: ["none"]})
    rows = {
        config(): [
            (5.0, config(pp=2)),
            (4.0, config(pp=2, schedule="gpipe")),
            (4.0, config(pp=2, schedule="zb-h1")),
            (6.0, config(pp=2, zero=3)),
            (7.0, config(pp=2, zero=3, regather=False)),
            (3.0, config(pp=1)),
        ],
        config(mbs=2): [(20.0 - n, config(mbs=2, pp=n)) for n in range(2, 10)],
    }
    monkeypatch.setattr(partial_recompute, "may_wait", lambda search, kind: True)
    monkeypatch.setattr(partial_recompute, "bases", lambda search, way: list(rows))
    monkeypatch.setattr(partial_recompute, "promising", lambda search, base, way: rows[base])
    improve(own, never)
    expected = [config(), config(pp=2, schedule="gpipe"), config(pp=2, zero=3), config(pp=2, zero=3, regather=False)]
    expected += [config(mbs=2, pp=n) for n in range(9, 1, -1)]
    assert [replace(one, offload="none") for one in asked] == expected
    asked.clear()
    improve(own, lambda: len(asked) == 2)
    assert len(asked) == 2
    again = SimpleNamespace(recompute=lambda: ["full"], target=own.space.target)
    for changes in ({"best": None}, {"space": again}):
        asked.clear()
        improve(SimpleNamespace(**{**vars(own), **changes}), never)  # type: ignore[arg-type]
        assert asked == []


@pytest.mark.parametrize(
    ("fits_from", "again", "tried"), [(4, 1, 10), (99, 1, 30), (4, 2, 10), (99, 3, 36), (4, 3, 12)]
)
def test_ten_are_tried_that_fit_once_treated_or_thirty_that_do_not(
    monkeypatch: pytest.MonkeyPatch, fits_from: int, again: int, tried: int
) -> None:
    """As many of each recomputation beside which layers are treated."""
    monkeypatch.setattr(partial_recompute, "MOST_TRIED", 10)
    kinds = ["none", "full", "selective"][:again]
    space = {"recompute": lambda: kinds, "target": SimpleNamespace(waits=lambda *, again: True)}
    asked: list[Config] = []

    def pricing(own: Config) -> Found:
        asked.append(own)
        return Found(own, price(1.0, 0.0 if int(own.offload.partition(":")[2] or 8) >= fits_from else 1.0))

    rows = {
        config(mbs=n, recompute=kind): [(1.0 + n, config(mbs=n, recompute=kind))] for n in range(40) for kind in kinds
    }
    monkeypatch.setattr(partial_recompute, "bases", lambda search, way: list(rows))
    monkeypatch.setattr(partial_recompute, "promising", lambda search, base, way: rows[base])
    list(OFFLOADED.neighbours(told_search(price=pricing, space=space)))
    assert len({(one.mbs, one.recompute) for one in asked}) == tried


def test_what_one_takes_above_its_estimate_holds_for_others_that_store_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards within hosts take twice their estimates: those of all ranks are tried before more of the kind; others of a
    schedule that was refused are not."""
    asked: list[Config] = []

    def pricing(own: Config) -> Found | None:
        asked.append(replace(own, offload="none"))
        if own.schedule == "zb-h1":
            return None
        return Found(own, price(2.0 if own.shard else 1.6, 1.0))

    rows = {
        config(): [
            (1.0, config(zero=3, shard=8)),
            (1.1, config(zero=2, schedule="zb-h1")),
            (1.2, config(zero=1, schedule="zb-h1")),
            (1.6, config(zero=3)),
        ],
        config(mbs=2): [(1.3, config(mbs=2, zero=3, shard=8)), (1.7, config(mbs=2, zero=3))],
    }
    monkeypatch.setattr(partial_recompute, "bases", lambda search, way: list(rows))
    monkeypatch.setattr(partial_recompute, "promising", lambda search, base, way: rows[base])
    list(OFFLOADED.neighbours(told_search(price=pricing, upper_s=2.5)))
    tried = [config(zero=3, shard=8), config(zero=2, schedule="zb-h1"), config(zero=3), config(mbs=2, zero=3)]
    tried += [config(mbs=2, zero=3, shard=8)]
    assert asked == tried


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [RECOMPUTED, OFFLOADED]),
        ({"again": ["none"]}, [OFFLOADED]),
        ({"constraints": Constraints({"recompute": ("none", "full")})}, [OFFLOADED]),
        ({"constraints": Constraints({}, {"recompute": ("full",)})}, [OFFLOADED]),
        ({"constraints": Constraints({"offload": ("none",)})}, [RECOMPUTED]),
        ({"constraints": Constraints({}, {"offload": ("optimizer",)})}, [RECOMPUTED]),
        ({"offload": ("optimizer",)}, [RECOMPUTED]),
        ({"kind": LOOPBACK}, [RECOMPUTED]),
    ],
)
def test_how_layers_may_be_treated(changes: Any, expected: list[Partial]) -> None:
    """As the target can and nobody asks otherwise; the host's memory must be another one than every device's."""
    own = told_search()
    own.space.recompute = lambda: changes.get("again", ["none", "full"])
    own.space.constraints = changes.get("constraints", Constraints())
    lines = tuple(SimpleNamespace(name=name) for name in changes.get("offload", ("optimizer", "activations")))
    own.space.target = SimpleNamespace(offload=lines, waits=lambda *, again: not again)
    own.prices.cluster.pools = [link(1.0), link(1.0, changes.get("kind", "pcie"))]
    assert ways(own) == expected
