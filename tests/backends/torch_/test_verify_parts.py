"""Parts of a verdict: how far tensors are apart, what was communicated and what was planned, how a batch is cut."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.backends.torch_.verify import apart
from meshwright.backends.torch_.verify.apart import Apart, apart_of
from meshwright.backends.torch_.verify.equal import close, compared, distances
from meshwright.backends.torch_.verify.groups import Group, unlike, unlike_together
from meshwright.backends.torch_.verify.interpreted.simulate import exact
from meshwright.backends.torch_.verify.predicted import Predicted
from meshwright.backends.torch_.verify.run.counting import Collective
from meshwright.backends.torch_.verify.run.fake import make_fake
from meshwright.backends.torch_.verify.run.ranks import bits, parameters_of
from meshwright.ir.analysis.weights import Step, Weight
from meshwright.ir.sharding.mesh import Mesh
from tests.backends.torch_.small import subject


def targets(ignored: int) -> Weight:
    """A loss that is a mean over labels but these."""
    return Weight("count", "labels", (Step("ne", (("scalar", ignored),)),))


# How far apart ------------------------------------------------------------------------------------------------------


def tensors(**values: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def test_distances_are_of_the_largest_element() -> None:
    """Its own, or a thousandth of the largest of all, if that is more."""
    expected = tensors(large=[100.0, -400.0], small=[0.1, 0.0], lacking=[1.0], other=[1.0])
    found = tensors(large=[104.0, -400.0], small=[0.1, 0.2], other=[1.0, 1.0])
    assert distances(found, expected) == pytest.approx({"large": 0.01, "small": 0.5})
    assert distances(found, expected, 0.0) == pytest.approx({"large": 0.01, "small": 2.0})
    assert distances(tensors(zero=[0.0]), tensors(zero=[0.0])) == {"zero": 0.0}
    assert distances(tensors(zero=[1.0]), tensors(zero=[0.0]))["zero"] > 1e300


def test_what_differs_is_named() -> None:
    expected = tensors(a=[1.0], b=[1.0], c=[1.0], d=[1.0], e=[1.0])
    found = tensors(a=[1.0], b=[1.1], c=[1.0, 2.0], d=[1.05], f=[1.0])
    one = compared("gradient of ", found, expected, 0.0625)
    assert one.unlike == (
        "gradient of e is missing",
        "gradient of f is not the model's",
        "gradient of c is (2,), not (1,)",
    )
    assert {name: str(off) for name, off in one.off.items()} == {"b": "gradient of b is off by 1.0e-01, 6e-02 allowed"}
    assert one.worst == pytest.approx(0.1)
    assert not close(found, expected, 0.0625)
    assert close(found, tensors(a=[1.0], c=[7.0], d=[1.0]), 0.0625)
    assert compared("", {}, {}, 0.1).worst == 0.0
    at_most = tensors(a=[1.5])
    assert compared("", at_most, tensors(a=[1.0]), 0.5).off == {}
    assert close(at_most, tensors(a=[1.0]), 0.5)


def test_exact_is_of_the_largest_element_or_a_floor() -> None:
    one, other = torch.tensor([4.0, 0.0]).double(), torch.tensor([4.0, 1.0]).double()
    assert exact(one, other, 0.25)
    assert not exact(one, other, 0.24)
    assert exact(one, other, 0.1, floor=10.0)
    assert not exact(one, other[:1], 1.0)
    assert exact(one[:0], other[:0], 0.0)
    assert exact(one * 0, one * 0, 0.0)


# What was communicated ----------------------------------------------------------------------------------------------

MESH = Mesh.parse("dp=2 tp=2")
TP, DP, ALL = ("tp",), ("dp",), ("dp", "tp")


def group(messages: dict[Collective, int] | None = None, **planned: Any) -> Group:
    """Ranks 4 to 7, the second group of a pipeline."""
    one = Predicted(**{"values": {}, "packed": {}, "whole": {}} | planned)
    return Group(
        ranks=range(4, 8),
        mesh=MESH,
        predicted=(one,) * 4,
        messages=messages or {},
        parameters=(("embedding", "head"), ("norm",)),
        last=True,
    )


def test_ranks_of_a_group() -> None:
    own = group()
    assert [own.along(rank, TP) for rank in range(4, 8)] == [(4, 5), (4, 5), (6, 7), (6, 7)]
    assert [own.along(rank, DP) for rank in range(4, 8)] == [(4, 6), (5, 7), (4, 6), (5, 7)]
    assert own.along(6, ALL) == (4, 5, 6, 7)


def test_parameters_of_a_group_go_by_the_name_that_was_found() -> None:
    named = {"embedding": 1, "head": 2, "norm": 3, "other": 4}
    assert group().of(named, named) == {"embedding": 1, "head": 2, "norm": 3}
    assert group().of(named, {"head": 0}) == {"head": 2, "norm": 3}
    assert group().of(named, {}) == {"embedding": 1, "norm": 3}
    assert group().of({"norm": 3}, {}) == {"norm": 3}


def differing(found: dict[Collective, int], own: Group, rank: int = 4) -> list[str]:
    return unlike(found, own, rank, Counter())


def test_every_planned_collective_is_looked_for() -> None:
    own = group(values={("all_gather", TP, 8): 2}, counts={("all_gather", TP, 8): 1, ("all_reduce", DP, 4): 1})
    right: dict[Collective, int] = {("all_gather", (4, 5), 8): 3, ("all_reduce", (4, 6), 4): 1}
    assert differing(right, own) == []
    assert differing(right | {("all_gather", (4, 5), 8): 2}, own) == [
        "all_gather over tp of 8 bytes: 3 planned, 2 executed"
    ]
    assert differing(right | {("all_gather", (4, 5), 8): 5}, own) == [
        "all_gather over ranks (4, 5): 16 bytes executed, and not planned"
    ]
    assert differing(right, own, 5) == [
        "all_reduce over dp of 4 bytes: 1 planned, 0 executed",
        "all_reduce over ranks (4, 6): 4 bytes executed, and not planned",
    ]


def test_what_is_packed_is_counted_by_its_bytes() -> None:
    own = group(packed={("reduce_scatter", DP): 100}, values={("reduce_scatter", DP, 8): 1})
    right: dict[Collective, int] = {("reduce_scatter", (4, 6), 8): 2, ("reduce_scatter", (4, 6), 46): 2}
    assert differing(right, own) == []
    assert differing(right | {("reduce_scatter", (4, 6), 46): 1}, own) == [
        "reduce_scatter over dp, packed: 100 bytes planned, 54 executed"
    ]
    assert differing({("reduce_scatter", (4, 6), 8): 1}, own) == [
        "reduce_scatter over dp, packed: 100 bytes planned, 0 executed"
    ]


def test_messages_are_looked_for_at_both_of_their_ends() -> None:
    ends: dict[Collective, int] = {("send", (4, 0), 16): 2, ("recv", (4, 0), 16): 2, ("all_reduce", (0, 4), 4): 1}
    own = group(ends)
    assert differing({("send", (4, 0), 16): 2, ("all_reduce", (0, 4), 4): 1}, own) == []
    assert differing({("all_reduce", (0, 4), 4): 1}, own) == ["send between 4 and 0 of 16 bytes: 2 planned, 0 executed"]
    assert differing({}, own, 5) == []
    there = group({("send", (0, 4), 16): 1, ("recv", (0, 4), 16): 1})
    assert differing({("recv", (0, 4), 16): 1}, there) == []
    assert differing({}, there) == ["recv between 0 and 4 of 16 bytes: 1 planned, 0 executed"]


def test_rows_for_experts_are_counted_and_their_bytes_summed_over_ranks() -> None:
    """How many go where depends on routing: their exchanges are counted, and their bytes among all that have them."""
    own = group(routed={TP: (2, 50, ALL)}, values={("all_to_all", TP, 8): 1})
    sent: Counter[tuple[int, ...]] = Counter()
    found: dict[Collective, int] = {
        ("all_to_all", (4, 5), 8): 1,
        ("all_to_all", (4, 5), 60): 1,
        ("all_to_all", (4, 5), 40): 1,
    }
    assert unlike(found, own, 4, sent) == []
    assert sent == {(4, 5): 100}
    more = found | {("all_to_all", (4, 5), 60): 2}
    assert differing(more, own) == ["all_to_all over tp of rows for experts: 2 planned, 3 executed"]
    assert unlike_together({(4, 5): 150, (6, 7): 50}, own) == []
    (wrong,) = unlike_together({(4, 5): 150, (6, 7): 60}, own)
    among = "all_to_all over tp among ranks (4, 5, 6, 7) of rows for experts"
    assert wrong == f"{among}: 200 bytes planned of all of them, 210 executed"
    apart = group(routed={TP: (2, 50, TP)})
    assert unlike_together({(4, 5): 100, (6, 7): 100}, apart) == []
    (wrong,) = unlike_together({(4, 5): 100}, apart)
    assert wrong.endswith("ranks (6, 7) of rows for experts: 100 bytes planned of all of them, 0 executed")


# Micro-batches one by one -------------------------------------------------------------------------------------------


def test_every_rank_cuts_its_own_part() -> None:
    """Six sequences, two thirds of them on the first copy; a part weighs as much as it has targets."""
    batch = {"ids": torch.arange(6), "labels": torch.tensor([[1, 1], [1, -1], [1, 1], [-1, -1], [1, 1], [1, 1]])}
    first, second = Apart(2, (2, 1), targets(-1)).parts(batch)
    assert first[1]["ids"].tolist() == [0, 1, 4]
    assert second[1]["ids"].tolist() == [2, 3, 5]
    assert (first[0], second[0]) == (5 / 9, 4 / 9)
    assert second[1]["labels"].tolist() == [[1, 1], [-1, -1], [1, 1]]
    (whole,) = Apart(1, (1,), targets(-1)).parts(batch)
    assert whole[0] == 1.0
    assert whole[1]["ids"].tolist() == list(range(6))


@pytest.mark.parametrize(
    ("degrees", "legal", "shares"),
    [
        ({"dp": 2, "microbatches": 2}, False, (1, 1)),
        ({"dp": 2, "microbatches": 2}, True, None),
        ({"dp": 2}, False, None),
        ({"dp": 4, "shard": 2, "zero": 3, "microbatches": 2}, False, (1, 1, 1, 1)),
        ({"tp": 2, "microbatches": 2}, False, (1,)),
        ({"pp": 2, "microbatches": 2, "schedule": "gpipe"}, False, (1,)),
    ],
)
def test_micro_batches_run_one_by_one_where_they_mean_something_else(
    degrees: dict[str, Any], legal: bool, shares: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many parts as ranks along the axes that cut the batch; labels of the loss, where -100 is no target."""
    monkeypatch.setattr(apart, "microbatch", lambda graph: SimpleNamespace(legal=legal))
    found = apart_of(subject(**degrees))
    assert found == (None if shares is None else Apart(2, shares, targets(-100)))


# Ranks that are not there -------------------------------------------------------------------------------------------


class Shared(torch.nn.Module):
    """A parameter in two places, one that is not trained, one that is not there, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(2, 3, bias=False)
        self.other.weight = self.one.weight
        self.still = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_parameter("none", None)
        self.register_buffer("table", torch.ones(5))


def test_tensors_without_memory_take_the_places_of_a_models_own() -> None:
    with torch.device("meta"):
        model = Shared()
    make_fake(model)
    assert model.one.weight is model.other.weight
    assert isinstance(model.one.weight, torch.nn.Parameter)
    assert [one.requires_grad for one in (model.one.weight, model.still, model.table)] == [True, False, False]
    assert [tuple(one.shape) for one in (model.one.weight, model.still, model.table)] == [(3, 2), (4,), (5,)]
    assert {one.device.type for one in (model.one.weight, model.still, model.table)} == {"cpu"}
    assert not isinstance(model.table, torch.nn.Parameter)
    assert model.none is None


def test_what_a_rank_holds_of_its_stages() -> None:
    called = torch.nn.Module()
    called.stages = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False), torch.nn.Sequential(torch.nn.Linear(2, 2))])
    script, staged = SimpleNamespace(), SimpleNamespace(Pipeline=object)
    assert [name for name, _ in parameters_of(staged, called)] == ["weight", "0.weight", "0.bias"]
    assert [name for name, _ in parameters_of(script, called)] == [
        "stages.0.weight",
        "stages.1.0.weight",
        "stages.1.0.bias",
    ]
    assert [name for name, _ in parameters_of(script, Shared())] == ["still", "one.weight", "other.weight"]


def test_bits_are_those_of_every_dtype_and_layout() -> None:
    assert bits(torch.tensor([1.0], dtype=torch.bfloat16)) == b"\x80\x3f"
    assert bits(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).t()) == bytes([1, 3, 2, 4])
