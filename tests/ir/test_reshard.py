"""Reshards: there is always a path, it is exact, it costs no more than gathering everything, and it is the one that an
expert would take."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.compare import TOLERANCE, spread
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels
from meshwright.ir.errors import NoReshard
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import collect, move
from meshwright.ir.names.storage import cut_further
from meshwright.ir.program.program import Local, Move
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Padded, Sections
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.sharding.placement import Partial, Placement, Shard
from meshwright.ir.sharding.reshard import (
    FREE,
    MOVES,
    Step,
    after,
    at_once,
    given_elements,
    path,
    reshard,
    traffic_bytes,
)
from tests.ir.strategies import layouts

SHAPE = (32, 64)
MESH = Mesh.parse("a=2 b=4 c=2")
KERNELS = TorchKernels(TOLERANCE)


@st.composite
def cut(draw: st.DrawFn) -> Layout:
    return draw(st.sampled_from([CONTIGUOUS, CONTIGUOUS, ZIGZAG]))


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh) -> Placement:
    """Any placement of a matrix: every axis cuts a dim, is partial, or holds copies."""
    dims: list[list[Shard]] = [[], []]
    partial = []
    for axis in draw(st.permutations(mesh.names)):
        use = draw(st.sampled_from(["copies", "sum", 0, 1]))
        if use == "sum":
            partial.append(Partial(axis))
        elif isinstance(use, int):
            dims[use].append(Shard(axis, draw(cut())))
    return Placement((tuple(dims[0]), tuple(dims[1])), tuple(partial))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mesh, Placement, Placement]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3))
    mesh = Mesh(tuple(MeshAxis(name, size) for name, size in zip("abc", sizes, strict=False)))
    return mesh, draw(placements(mesh)), draw(placements(mesh))


def cost(source: Placement, steps: tuple[Step, ...], mesh: Mesh) -> float:
    """Bytes that a rank receives over a path, for a tensor of one byte."""
    total, now = 0.0, source
    for step in steps:
        held = 1.0
        for dim in now.dims:
            for shard in dim:
                held /= mesh.axis(shard.axis).size
        total += traffic_bytes(step, held, mesh)
        now = after(now, step)
    return total


def gather_everything(source: Placement, target: Placement) -> tuple[Step, ...]:
    """The path that always exists: gather and reduce to copies, then cut."""
    steps = [Step("all_reduce", (partial.axis,), reduction=partial.reduction) for partial in source.partial]
    for dim, shards in enumerate(source.dims):
        steps += [Step("all_gather", (shard.axis,), dim, layout=shard.layout) for shard in reversed(shards)]
    for dim, shards in enumerate(target.dims):
        steps += [Step("slice", (shard.axis,), dim, layout=shard.layout) for shard in shards]
    return (*steps, *(Step("mask", (partial.axis,), reduction=partial.reduction) for partial in target.partial))


@given(cases())
def test_a_path_exists_and_leads_there(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, source, target = case
    now = source
    for step in reshard(source, target, mesh):
        now = after(now, step)
    assert now == target


@given(cases())
def test_executing_the_path_changes_nothing_but_the_placement(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, source, target = case
    whole = torch.randn(SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    shards: list[Tensor] = spread(KERNELS, whole, Local(Type(SHAPE, "f64"), source), mesh)
    now = source
    for step in reshard(source, target, mesh):
        shards = move(KERNELS, shards, Move(step, "x", "y"), now, mesh, "f64")
        now = after(now, step)
    assert [tuple(shard.shape) for shard in shards] == [
        target.local_shape(SHAPE, mesh, rank) for rank in range(mesh.size)
    ]
    assert torch.allclose(collect(KERNELS, shards, target, mesh, "test"), whole, rtol=0, atol=1e-9)


def test_scattered_at_once_is_scattered_in_turn() -> None:
    mesh = Mesh.parse("dp=2 cp=2")
    source, target = Placement.parse("[-, -]+sum(cp)+sum(dp)"), Placement.parse("[dp.cp, -]")
    in_turn = path(source, target, mesh)
    joined = at_once(in_turn, mesh)
    assert [str(step) for step, _ in in_turn] == ["reduce_scatter(dp, dim 0)", "reduce_scatter(cp, dim 0)"]
    assert [str(step) for step, _ in joined] == ["reduce_scatter(dp.cp, dim 0)"]
    assert after(source, joined[0][0]) == joined[0][1] == target
    whole = torch.randn((8, 3), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = []
    for steps in (in_turn, joined):
        shards: list[Tensor] = spread(KERNELS, whole, Local(Type((8, 3), "f64"), source), mesh)
        now = source
        for step, reached in steps:
            shards, now = move(KERNELS, shards, Move(step, "x", "y"), now, mesh, "f64"), reached
        found.append(shards)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(*found, strict=True))


def tensor(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 11), min_size=1, max_size=2).map(tuple),
    st.booleans(),
)
def test_what_no_number_of_shards_divides_is_padded(sizes: list[int], shape: tuple[int, ...], first: bool) -> None:
    """Scattered to its shards, in turn or at once, and gathered from them, for any shape over any axes: as
    `fully_shard` cuts dimension 0 over all ranks together, if none divides. A first axis may cut it already."""
    mesh = Mesh(tuple(MeshAxis(name, size) for name, size in zip("abc", sizes, strict=False)))
    tensored = first and shape[0] % sizes[0] == 0
    compute = Placement(((Shard("a"),) if tensored else (), *((),) * (len(shape) - 1)))
    over = mesh.names[1:] if tensored else mesh.names
    stored = cut_further(compute, shape, over, mesh)
    stored.check(shape, mesh, "here")
    ranks, local = prod(mesh.axis(axis).size for axis in over), compute.local_shape(shape, mesh)
    even = any(extent % ranks == 0 for extent in local)
    assert any(isinstance(one.layout, Padded) for dim in stored.dims for one in dim) == (not even and bool(over))
    held = [stored.local_shape(shape, mesh, rank) for rank in range(mesh.size)]
    if not even:
        chunks = torch.arange(local[0]).chunk(ranks) if over else ()
        lengths = [len(chunk) for chunk in chunks] + [0] * (ranks - len(chunks))
        assert [one[0] for one in held] == lengths * (sizes[0] if tensored else 1)
        assert held[0][0] == ceil(local[0] / ranks)
    summed = Placement(compute.dims, tuple(map(Partial, over)))
    whole = tensor(shape)
    type_ = Type(shape, "f64")
    for source, target in ((summed, stored), (stored, compute)):
        for steps in (path(source, target, mesh), at_once(path(source, target, mesh), mesh)):
            shards: list[Tensor] = spread(KERNELS, whole, Local(type_, source), mesh)
            now = source
            for step, reached in steps:
                assert after(now, step) == reached
                shards, now = move(KERNELS, shards, Move(step, "x", "y"), now, mesh, "f64"), reached
            assert [tuple(one.shape) for one in shards] == [
                target.local_shape(shape, mesh, rank) for rank in range(mesh.size)
            ]
            assert torch.allclose(collect(KERNELS, shards, target, mesh, "test"), whole, rtol=0, atol=1e-9)
        assert len(steps) == min(1, len(over))


def test_padded_parts_are_scattered_from_a_padded_whole() -> None:
    """Of 50,400 over 8 x 8 ranks: 64 x 788."""
    mesh = Mesh.parse("a=8 b=8")
    stored = cut_further(Placement.parse("[-]"), (50_400,), mesh.names, mesh)
    assert str(stored) == "[a:padded(6304).b:padded(788)]"
    ((step, reached),) = at_once(path(Placement.parse("[-]+sum(a)+sum(b)"), stored, mesh), mesh)
    assert given_elements(step, 50_400, reached.local_shape((50_400,), mesh)[0], mesh) == 64 * 788
    (step,) = reshard(stored, Placement.parse("[-]"), mesh)
    assert str(step) == "all_gather(a.b, dim 0, padded(6304,788))"
    assert given_elements(step, 788, 50_400, mesh) == 788


@given(cases())
def test_it_never_costs_more_than_gathering_everything(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, source, target = case
    direct = gather_everything(source, target)
    now = source
    for step in direct:
        now = after(now, step)
    assert now == target, "the path to compare with is right"
    assert cost(source, reshard(source, target, mesh), mesh) <= cost(source, direct, mesh) + 1e-12


@given(cases())
def test_without_all_to_all_there_is_still_a_path(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, source, target = case
    few = tuple(name for name in MOVES if name != "all_to_all")
    steps = reshard(source, target, mesh, few)
    now = source
    for step in steps:
        assert step.kind in few
        now = after(now, step)
    assert now == target
    assert cost(source, steps, mesh) >= cost(source, reshard(source, target, mesh), mesh) - 1e-12


@given(cases())
def test_cutting_copies_further_is_free(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, _, target = case
    held = Placement(tuple(dim[:1] for dim in target.dims))
    assume(held != target)
    assert all(step.kind in FREE for step in reshard(held, target, mesh))


@given(cases())
def test_paths_are_the_same_whatever_was_asked_before(case: tuple[Mesh, Placement, Placement]) -> None:
    mesh, source, target = case
    first = reshard(source, target, mesh)
    reshard.cache_clear()
    assert reshard(source, target, mesh) == first


CLASSIC = {
    "the same": ("[a, -]", "[a, -]", ""),
    "copies to shard": ("[-, -]", "[a, -]", "slice(a, dim 0)"),
    "copies to shards of shards": ("[-, -]", "[a.b, c]", "slice(a, dim 0) slice(b, dim 0) slice(c, dim 1)"),
    "shard to copies": ("[-, b]", "[-, -]", "all_gather(b, dim 1)"),
    "shards of one dim to copies": ("[a.b, -]", "[-, -]", "all_gather(a.b, dim 0)"),
    "partial to copies": ("[-, -]+sum(a)", "[-, -]", "all_reduce(a)"),
    "two partials to copies": ("[-, -]+sum(a)+sum(b)", "[-, -]", "all_reduce(a.b)"),
    "a partial maximum": ("[-, -]+max(a)", "[-, -]", "all_reduce(a, max)"),
    "partial to shard": ("[-, -]+sum(a)", "[a, -]", "reduce_scatter(a, dim 0)"),
    "partial to shard, of what is cut": ("[b, -]+sum(a)", "[b.a, -]", "reduce_scatter(a, dim 0)"),
    "shard of one dim to shard of another": ("[a, -]", "[-, a]", "all_to_all(a, dim 0 -> 1)"),
    "copies to partial": ("[-, -]", "[-, -]+sum(a)", "mask(a)"),
    "shard to partial": ("[a, -]", "[-, -]+sum(a)", "pad(a, dim 0)"),
    "contiguous to zigzag": ("[a, -]", "[a:zigzag, -]", "all_gather(a, dim 0) slice(a, dim 0, zigzag)"),
    "sections": ("[-, -]+sum(a)", "[a:sections(8,24), -]", "reduce_scatter(a, dim 0, sections(8,24))"),
    "the hybrid of FSDP": ("[-, -]+sum(a)+sum(b)", "[b, -]", "reduce_scatter(b, dim 0) all_reduce(a)"),
}


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_cases(name: str) -> None:
    source, target, expected = CLASSIC[name]
    steps = reshard(Placement.parse(source), Placement.parse(target), MESH)
    assert " ".join(map(str, steps)) == expected


def test_a_maximum_cannot_be_scattered() -> None:
    steps = reshard(Placement.parse("[-, -]+max(a)"), Placement.parse("[a, -]"), MESH)
    assert [step.kind for step in steps] == ["all_reduce", "slice"]


def test_a_target_that_cannot_gather_is_refused() -> None:
    with pytest.raises(NoReshard, match="no path with slice"):
        reshard(Placement.parse("[a, -]"), Placement.parse("[-, -]"), MESH, ("slice",))


@pytest.mark.parametrize(
    ("placement", "step"),
    [
        ("[a.b, -]", Step("all_gather", ("a",), 0)),
        ("[a, -]", Step("slice", ("a",), 1)),
        ("[-, -]", Step("all_reduce", ("a",))),
        ("[-, -]+max(a)", Step("all_reduce", ("a",))),
        ("[-, -]+max(a)", Step("reduce_scatter", ("a",), 0)),
        ("[-, -]", Step("all_to_all", ("a",), 0, 1)),
        ("[-, -]+sum(a)", Step("mask", ("a",))),
    ],
)
def test_steps_that_do_not_apply_are_refused(placement: str, step: Step) -> None:
    with pytest.raises(NoReshard, match="does not apply"):
        after(Placement.parse(placement), step)


@given(
    st.sampled_from(MOVES),
    st.lists(st.sampled_from(["dp", "tp", "a_1"]), min_size=1, max_size=2, unique=True),
    st.sampled_from([(-1, -1), (0, -1), (2, 1), (1, 0)]),
    layouts(2).map(lambda pair: pair[0]),
    st.sampled_from(["sum", "max"]),
)
def test_steps_read_and_write(
    kind: str, axes: list[str], dims: tuple[int, int], layout: Layout, reduction: str
) -> None:
    step = Step(kind, tuple(axes), *dims, layout, reduction)
    assert Step.parse(str(step)) == step


@pytest.mark.parametrize(
    "text", ["", "gossip(a)", "slice()", "slice(a, dim)", "slice(a, dim 0", "all_to_all(a, dim 0 ->)"]
)
def test_steps_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(NoReshard, match="no such step"):
        Step.parse(text)


def test_traffic_is_that_of_the_best_algorithms() -> None:
    prices = {
        "all_gather": 3.0,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
        "all_reduce": 1.5,
        "slice": 0.0,
        "mask": 0.0,
        "pad": 0.0,
    }
    assert set(prices) == set(MOVES)
    for kind, price in prices.items():
        assert traffic_bytes(Step(kind, ("b",)), 1.0, MESH) == price


def test_an_all_reduce_is_a_reduce_scatter_and_a_gather() -> None:
    for axes in (("a",), ("a", "b"), ("a", "b", "c")):
        size = 1
        for axis in axes:
            size *= MESH.axis(axis).size
        halves = traffic_bytes(Step("reduce_scatter", axes), 1.0, MESH) + traffic_bytes(
            Step("all_gather", axes), 1.0 / size, MESH
        )
        assert traffic_bytes(Step("all_reduce", axes), 1.0, MESH) == pytest.approx(halves)


def test_no_two_placements_of_a_mesh_are_apart() -> None:
    """Exhaustively on two axes: each cuts dim 0, dim 1, is partial, or holds copies."""
    uses = ("copies", "sum", 0, 1)
    found = []
    for a, b in product(uses, uses):
        dims = tuple(tuple(Shard(axis) for axis, use in (("a", a), ("b", b)) if use == dim) for dim in (0, 1))
        found.append(Placement(dims, tuple(Partial(axis) for axis, use in (("a", a), ("b", b)) if use == "sum")))
    for source, target in product(found, found):
        steps = reshard(source, target, MESH)
        assert len(steps) <= 4
        assert Sections not in {type(step.layout) for step in steps}


MORE = {
    "gathers of unlike cuts stay apart": (
        "[a:zigzag.b, -]",
        "[-, -]",
        "all_gather(b, dim 0) all_gather(a, dim 0, zigzag)",
    ),
    "so do those of a zigzag inside": (
        "[a.b:zigzag, -]",
        "[-, -]",
        "all_gather(b, dim 0, zigzag) all_gather(a, dim 0)",
    ),
    "only what is inside is gathered": ("[a.b, -]", "[a, -]", "all_gather(b, dim 0)"),
    "three at once": ("[a.b.c, -]", "[-, -]", "all_gather(a.b.c, dim 0)"),
    "outer and inner change places": ("[a.c, -]", "[c, -]", "all_gather(a.c, dim 0) slice(c, dim 0)"),
    "three sums at once": ("[-, -]+sum(a)+sum(b)+sum(c)", "[-, -]", "all_reduce(a.b.c)"),
    "maxima at once": ("[-, -]+max(a)+max(b)", "[-, -]", "all_reduce(a.b, max)"),
    "a sum that is wanted stays": ("[-, -]+sum(a)+sum(b)", "[-, -]+sum(a)", "all_reduce(b)"),
    "a maximum that is wanted stays": ("[-, -]+max(a)+sum(b)", "[-, -]+max(a)", "all_reduce(b)"),
    "a masked maximum": ("[-, -]", "[-, -]+max(a)", "mask(a, max)"),
    "a shard that becomes a maximum is gathered": ("[a, -]", "[-, -]+max(a)", "all_gather(a, dim 0) mask(a, max)"),
    "copies cut before what is cut moves": ("[a, -]", "[c, a]", "all_to_all(a, dim 0 -> 1) slice(c, dim 0)"),
    "scattered under a zigzag": ("[-, -]+sum(a)", "[a:zigzag, -]", "reduce_scatter(a, dim 0, zigzag)"),
    "exchanged into a zigzag": ("[a, -]", "[-, a:zigzag]", "all_to_all(a, dim 0 -> 1, zigzag)"),
    "exchanged under another": ("[a, b]", "[-, b.a]", "all_to_all(a, dim 0 -> 1)"),
    "scattered in the order of the cuts": (
        "[-, -]+sum(a)+sum(b)",
        "[b.a, -]",
        "reduce_scatter(b, dim 0) reduce_scatter(a, dim 0)",
    ),
}


def test_paths_are_those_that_one_writes_by_hand() -> None:
    for name, (source, target, expected) in (CLASSIC | MORE).items():
        now, end = Placement.parse(source), Placement.parse(target)
        steps = path(now, end, MESH)
        assert " ".join(str(step) for step, _ in steps) == expected, name
        for step, reached in steps:
            now = after(now, step)
            assert now == reached, name
        assert now == end


SCATTERS: list[tuple[str, str, str]] = [
    ("[-, -]+sum(a)+sum(b)", "[b.a, -]", "reduce_scatter(b.a, dim 0)"),
    ("[-, -]+sum(a)+sum(b)", "[a:zigzag.b, -]", "reduce_scatter(a, dim 0, zigzag) reduce_scatter(b, dim 0)"),
    ("[-, -]+sum(a)+sum(b)+sum(c)", "[b.a.c, -]", "reduce_scatter(b.a.c, dim 0)"),
    ("[b, -]+sum(a)", "[b.a, -]", "reduce_scatter(a, dim 0)"),
    ("[-, -]+sum(a)+sum(b)", "[a:padded(8).b:padded(2), -]", "reduce_scatter(a.b, dim 0, padded(8,2))"),
    (
        "[-, -]+sum(a)+sum(b)",
        "[a:padded(9).b:padded(2), -]",
        "reduce_scatter(a, dim 0, padded(9)) reduce_scatter(b, dim 0, padded(2))",
    ),
    ("[a.b, -]", "[-, -]", "all_gather(a.b, dim 0)"),
]


def test_scatters_that_cut_alike_are_one() -> None:
    """Runs of eight are four of two on an axis of four; runs of nine are not whole ones."""
    for source, target, joined in SCATTERS:
        end = Placement.parse(target)
        steps = at_once(path(Placement.parse(source), end, MESH), MESH)
        assert " ".join(str(step) for step, _ in steps) == joined
        assert steps[-1][1] == end


def test_scatters_of_two_dimensions_stay_apart() -> None:
    steps = path(Placement.parse("[-, -]+sum(a)+sum(b)"), Placement.parse("[a, b]"), MESH)
    assert len(steps) == len(at_once(steps, MESH)) == 2


@pytest.mark.parametrize(
    ("step", "before", "reached", "given"),
    [
        (Step("reduce_scatter", ("b",), 0), 100, 25, 100),
        (Step("reduce_scatter", ("b",), 0, layout=Padded((26,))), 101, 26, 104),
        (Step("reduce_scatter", ("a", "b"), 0, layout=Padded((52, 13))), 101, 13, 104),
        (Step("all_gather", ("b",), 0, layout=Padded((26,))), 26, 101, 26),
    ],
    ids=str,
)
def test_a_step_is_given_what_a_rank_holds_or_a_padded_whole(step: Step, before: int, reached: int, given: int) -> None:
    assert given_elements(step, before, reached, MESH) == given
