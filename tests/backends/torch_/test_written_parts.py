"""Parts of scripts and of what decides them, each of its own: fused weights, statistics of copies, the map of ranks,
shares of a batch, and the targets of a loss."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.backends.subject import Piece
from meshwright.backends.torch_.emit.read.copies import Copies
from meshwright.backends.torch_.emit.read.pipeline import Crossing
from meshwright.backends.torch_.emit.read.sections import by_name, named, pattern
from meshwright.backends.torch_.emit.read.statistics import moments_in, shared_statistics
from meshwright.backends.torch_.emit.write.frame.initial import draw
from meshwright.backends.torch_.emit.write.launch import launch_script, rank_map
from meshwright.backends.torch_.emit.write.stages.pipeline import _example
from meshwright.backends.torch_.emit.write.steps.batch import shares
from meshwright.backends.torch_.emit.write.steps.weighing import counted
from meshwright.ir.analysis.weights import Step, Weight
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import EmissionModule
from meshwright.ir.graph.fold import FromInput, Segment, Source
from meshwright.ir.graph.graph import Type
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from tests.build import Builder

X = FromInput("x")


def piece(
    body: Builder,
    strategies: dict[str, str] | None = None,
    *,
    paths: tuple[str, ...] = ("blocks.0",),
    entry: tuple[Source, ...] = (X,),
    glue: bool = False,
) -> Piece:
    """Instances of a body whose operators, by name, have these strategies."""
    chosen = tuple((name, Strategy.parse(one)) for name, one in (strategies or {}).items())
    segment = Segment(("block",), paths, entry, (entry,), glue)
    return Piece(segment, BodyPlan(name="cut", body="block", strategies=chosen), None, body.graph())


def subject(*pieces: Piece, mesh: str = "tp=2", **more: Any) -> Any:
    return SimpleNamespace(mesh=Mesh.parse(mesh), pieces=pieces, **more)


# Fused weights ------------------------------------------------------------------------------------------------------


def fused(*, split: bool = True, where: str = "attn") -> Builder:
    """Queries, keys and values in one product, 8, 4 and 4 wide; another product beside it, which is whole."""
    body = Builder()
    x = body.input((2, 4, 8), requires_grad=True)
    weight, bias = body.param("attn.qkv.weight", (16, 8)), body.param("attn.qkv.bias", (16,))
    made = body.op("linear", x, weight, bias, module="attn.qkv")
    other = body.op("linear", x, body.param("other.weight", (8, 8)), module="other")
    parts = body.many("split", made, sizes=(8, 4, 4), dim=2, module=where) if split else (body.op("silu", made),)
    body.output(*parts, other)
    return body


def test_names_of_parameters_in_all_instances() -> None:
    """Points are no letters of any kind, and numbers stand where blocks are counted."""
    blocks = piece(fused(), paths=("model.layers.0.inner", "model.layers.1.inner"))
    outside = piece(fused(), paths=("",), glue=True)
    of_blocks = r"model\\.layers\\.\\d+\\.inner\\.attn\\.qkv\\.weight".replace("\\\\", "\\")
    assert pattern(blocks, "attn.qkv.weight") == of_blocks
    assert pattern(outside, "attn.qkv.weight") == of_blocks.removeprefix(r"model\.layers\.\d+\.inner" + "\\.")
    held = {"attn.qkv.weight": (0, (8, 8), "tp")}
    assert named([blocks, outside], [(blocks, held)]) == {of_blocks: (0, (8, 8), "tp")}


def test_what_is_said_of_some_blocks_of_a_list_is_said_of_no_others() -> None:
    """Of blocks of several bodies that call their parameters alike: by their numbers, where these differ."""
    one, other = (piece(fused(), paths=tuple(f"all.{n}" for n in numbers)) for numbers in ((0, 2), (1, 10)))
    outside = piece(fused(), paths=("",), glue=True)

    def said(*of: int | None) -> dict[str, int]:
        names = ("w", "w", "all.3.w")
        return by_name(list(zip((one, other, outside), names, of, strict=True)))

    assert said(0, 0, 0) == {r"all\.\d+\.w": 0, r"all\.3\.w": 0}
    assert said(0, 1, None) == {r"all\.(?:0|2)\.w": 0, r"all\.(?:1|10)\.w": 1}
    assert said(None, 1, None) == {r"all\.(?:1|10)\.w": 1}
    assert said(0, 0, 1) == {r"all\.(?:0|2)\.w": 0, r"all\.(?:1|10)\.w": 0, r"all\.3\.w": 1}


# Statistics of copies -----------------------------------------------------------------------------------------------


def normed(*modules: str, training: bool = True) -> Builder:
    """Batch norms one after the other, between things that are none."""
    body = Builder()
    x = body.op("relu", body.input((4, 4, 8, 8), requires_grad=True), module="before")
    for module in modules:
        held = [
            body.param(f"{module}.{name}", (4,))
            for name in ("weight", "bias")
            if f"p.{module}.{name}" not in body.types
        ]
        held = held or [f"p.{module}.weight", f"p.{module}.bias"]
        held += (
            [f"p.{module}.{name}" for name in ("mean", "var")]
            if f"p.{module}.mean" in body.types
            else [body.buffer(f"{module}.{name}", (4,)) for name in ("mean", "var")]
        )
        x, *_ = body.many("batch_norm", x, *held, module=module, training=training)
    body.output(x)
    return body


def statistics(body: Builder, batch: tuple[str, ...], mesh: str = "dp=2 tp=2", **strategies: str) -> Any:
    own, other = piece(body, strategies), piece(normed(), {})
    found = shared_statistics(subject(other, own, mesh=mesh), batch)
    return tuple(modules for one, modules in found if one is own)


def test_norms_whose_batch_is_cut_share_statistics() -> None:
    """By all axes that cut the batch; channels may be cut besides. Each module is named once."""
    assert statistics(normed("a"), ("dp",), batch_norm="dp=n") == (("a",),)
    assert statistics(normed("a"), ("dp",), batch_norm="dp=n tp=c") == (("a",),)
    assert statistics(normed("a"), (), batch_norm="tp=c") == ()
    assert statistics(normed("a"), ()) == ()
    assert statistics(normed("a"), ("dp", "tp"), batch_norm="dp=n tp=n") == (("a",),)
    twice = {"batch_norm": "dp=n", "batch_norm_3": "dp=n", "batch_norm_6": "dp=n"}
    assert statistics(normed("b", "a", "b"), ("dp",), **twice) == (("b", "a"),)


def test_norms_that_do_not_train_share_nothing() -> None:
    assert statistics(normed("a", training=False), ("dp",), batch_norm="dp=n") == ()
    assert statistics(normed("a", training=False), ("dp",)) == ()
    assert moments_in(normed("a", training=False).graph()) == set()
    assert moments_in(normed("a").graph()) == {"batch_norm.batch_moments0"}


def test_norms_that_are_cut_otherwise_are_refused() -> None:
    """Not cut where the batch is, cut where it is not, by one of two axes, and in another order."""
    for batch, strategies in [
        (("dp",), {}),
        (("dp",), {"batch_norm": "tp=c"}),
        ((), {"batch_norm": "dp=n"}),
        (("dp", "tp"), {"batch_norm": "dp=n"}),
        (("tp", "dp"), {"batch_norm": "dp=n tp=n"}),
    ]:
        with pytest.raises(EmissionModule, match="batch norms that are cut otherwise than by the batch"):
            statistics(normed("a"), batch, **strategies)


# Ranks --------------------------------------------------------------------------------------------------------------


def test_ranks_are_numbered_over_groups_and_placed_on_the_meshes_of_their_stages() -> None:
    """Two groups of unlike meshes, the first with two stages; ranks of the cluster in an order of their own."""
    stages = (
        SimpleNamespace(ranks=(5, 3), mesh=Mesh.parse("dp=2")),
        SimpleNamespace(ranks=(0, 1, 2, 4), mesh=Mesh.parse("dp=2 tp=2")),
        SimpleNamespace(ranks=(5, 3), mesh=Mesh.parse("dp=2")),
    )
    plan: Any = SimpleNamespace(ranks=6, decisions=SimpleNamespace(stages=stages, groups=((5, 3), (0, 1, 2, 4))))
    told = [
        (0, 5, [0, 2], {"dp": 0}),
        (1, 3, [0, 2], {"dp": 1}),
        (2, 0, [1], {"dp": 0, "tp": 0}),
        (3, 1, [1], {"dp": 0, "tp": 1}),
        (4, 2, [1], {"dp": 1, "tp": 0}),
        (5, 4, [1], {"dp": 1, "tp": 1}),
    ]
    assert [tuple(row.values()) for row in json.loads(rank_map(plan))] == told
    assert rank_map(plan).count("\n") == len(told) + 2
    assert '--nproc-per-node 6 train.py "$@"\n' in launch_script(plan)


# Batches ------------------------------------------------------------------------------------------------------------


def test_shares_of_neighbours_stand_together() -> None:
    """Terms of 80 letters stand on one line, more of them on one each."""

    def said(*sizes: int) -> list[str]:
        parts: Any = SimpleNamespace(shares=sizes, axes=SimpleNamespace(data="dp"))
        return list(shares(parts))

    assert said(3, 3, 1, 2, 2, 2) == ["SHARES = (3,) * 2 + (1,) + (2,) * 3  # of a batch, on the ranks of dp"]
    exact = (1, 2) * 4 + (1, 10000000, 3)
    assert len(" + ".join(f"({one},)" for one in exact)) == 81
    best = (1, 2) * 4 + (1, 1000000, 3)
    assert len(" + ".join(f"({one},)" for one in best)) == 80
    assert len(said(*best)) == 1
    assert said(*exact) == [
        "SHARES = (",
        "    (1,)",
        *["    + (2,)", "    + (1,)"] * 4,
        "    + (10000000,)",
        "    + (3,)",
        ")  # of a batch, on the ranks of dp",
    ]


def test_what_counts_is_written_as_it_is_counted() -> None:
    """An entry of the batch, taken as the loss takes it."""
    ne = Step("ne", (("scalar", -100),))
    shifted = (
        Step("pad", (("pad", (0, 1)), ("value", -100.0))),
        Step("slice", (("dim", 1), ("start", 1), ("end", 17), ("step", 1))),
    )
    for steps, text in {
        (): "y.sum()",
        (ne,): "(y != -100).sum()",
        (Step("not", ()),): "(~y).sum()",
        (*shifted, ne): "(F.pad(y, (0, 1), value=-100.0)[:, 1:17] != -100).sum()",
        (Step("slice", (("dim", 0), ("start", 0), ("end", 6), ("step", 2))),): "y[:6:2].sum()",
    }.items():
        assert counted(Weight("count", "y", steps), "y") == text


# Weights, and the optimizer -----------------------------------------------------------------------------------------


def drawing(
    *,
    over: tuple[str, ...] = (),
    copies: tuple[str, ...] = (),
    tensor: str | None = None,
    draws: bool = False,
    apart: tuple[str, ...] = (),
    inside: tuple[tuple[str, ...], ...] = (),
    reorders: bool = False,
) -> list[str]:
    """`draw` of units that are sharded over some axes of copies, or of none."""
    parts: Any = SimpleNamespace(
        axes=SimpleNamespace(tensor=tensor, copies=copies, copied="_".join(copies) or None),
        kept=SimpleNamespace(units=over, over=over),
        subject=SimpleNamespace(decisions=SimpleNamespace(target="torch-gloo"), calls=SimpleNamespace(draws=draws)),
        copies=Copies({("block", "weight"): apart} if apart else {}),
        inside=inside,
        reorders=reorders,
        distributed=bool(over) or tensor is not None,
    )
    return [line.strip() for line in draw(parts)]


def test_weights_of_copies_are_those_of_one_rank() -> None:
    """Along every axis that a parameter is not cut over. Shards over all copies have one axis, made of theirs."""
    for given, axes in [
        ({"over": ("dp",), "copies": ("dp",)}, '("dp",)'),
        ({"over": ("dp", "cp"), "copies": ("dp", "cp")}, '("dp_cp",)'),
        ({"over": ("shard",), "copies": ("dp", "shard")}, '("dp", "shard")'),
        ({"over": ("dp",), "copies": ("dp",), "tensor": "tp"}, '("dp", "tp")'),
        ({"copies": ("dp", "cp"), "tensor": "tp"}, '("dp_cp", "tp")'),
        ({"tensor": "tp"}, '("tp",)'),
    ]:
        lines = drawing(**given)
        assert [line for line in lines if line.startswith("for axis")] == [f"for axis in {axes}:"], given
        assert lines[-2:] == [
            "if axis not in over:",
            "dist.broadcast(own, group=mesh[axis].get_group(), group_src=0)",
        ], given
    whole = drawing(copies=("dp", "cp"))
    assert whole[-1] == 'dist.broadcast(tensor, group=mesh["dp_cp"].get_group(), group_src=0)'
    assert "over = set()" not in whole
    assert "dist.broadcast" not in "".join(drawing())


def test_parameters_that_an_axis_cuts_are_copies_along_each_of_the_others() -> None:
    """Axes that are made one are all of these."""
    lines = drawing(over=("dp", "cp", "ep"), copies=("dp", "cp", "ep"), apart=("ep",), inside=(("dp", "cp"),))
    made = '{"dp_cp_ep": ("dp", "cp", "ep"), "dp_cp": ("dp", "cp")}'
    assert f"over |= {{one for axis in over for one in {made}.get(axis, ())}}" in lines
    assert 'for axis in ("dp", "cp", "ep"):' in lines
    assert 'for axis in ("ep", "tp"):' in drawing(over=("ep",), copies=("ep",), tensor="tp", apart=("ep",))


def test_modules_or_the_models_file_draw_weights() -> None:
    own = drawing(over=("dp",), copies=("dp",), draws=True, reorders=True)
    assert "model_file.draw_weights(module)" in own
    assert "tensor.copy_(reordered(name, tensor))" in own
    assert "reset_parameters" not in "".join(own)
    usual = drawing(over=("dp",), copies=("dp",))
    assert ("module.reset_parameters()" in usual, "reordered" in "".join(usual)) == (True, False)


@pytest.mark.parametrize("shape", [(), (4,), (4, 2)])
def test_what_a_stage_is_told_to_expect_has_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    crossing = Crossing("scale", Type(shape, "f32"), Placement.replicated(len(shape)), differentiable=True)
    stage: Any = SimpleNamespace(mesh=Mesh(()))
    expected = eval(_example(crossing, stage), {"torch": torch})  # noqa: S307 - it is what scripts hold
    assert expected.shape == shape
    assert expected.requires_grad
