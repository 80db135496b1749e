"""What is emitted of a plan: its pieces and their names, and what runs again; of a small Llama that is written by
hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.subject import Instances, Subject, told_apart
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.read.allowed import check_software, device_of
from meshwright.backends.torch_.emit.read.recompute import recomputed
from meshwright.backends.torch_.emit.read.storage import Kept
from meshwright.backends.torch_.emit.write.initial import MOST_WHOLE_BYTES, built_whole, drawn_in_parts, whole_bytes
from meshwright.backends.torch_.verify.groups import groups_of
from meshwright.ir.errors import EmissionModel, EmissionRecompute, EmissionSchedule, EmissionSoftware
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import STACKS
from tests.backends.torch_.small import FP32, MIXED, parts_of, planned, subject

# What a plan was made with ------------------------------------------------------------------------------------------

HAS: dict[str, bool] = {
    "--fix tp=4": True,
    "--fix tp=2": False,
    "--fix dp=2,tp=4": True,
    "--fix dp=2,tp=2": False,
    "--fix cp=1": False,
    "--fix ep=1": True,
    "--fix ep=2": False,
    "--fix zero=3": False,
    "--fix offload=none": True,
    "--fix later=1": False,
    "--forbid shard": True,
    "--forbid zigzag": False,
    "--target torch-gloo": True,
    "--target torch-cuda": False,
    "--style eager": True,
    "--style compiled": False,
    "--recipe fp32": True,
    "--recipe bf16": False,
    "--optimizer adamw": True,
    "--optimizer sgd": False,
    "--budget 3": False,
}


def test_a_way_out_that_the_plan_has_already() -> None:
    """Degrees that are not said are as they are if nothing is; what comes behind a semicolon are no degrees."""
    for way, expected in HAS.items():
        plan = replace(subject(dp=2), config="dp=2,tp=4,cp=2,zigzag;later=1")
        assert plan.has(way) == expected, way


def test_a_recipe_that_is_not_said_is_that_of_the_software() -> None:
    plan = replace(
        subject(dp=2), workload=replace(FP32, recipe="", stack=replace(FP32.stack, name="own", recipe="bf16"))
    )
    assert [plan.has(way) for way in ("--recipe bf16", "--recipe fp32", "--stack own")] == [True, False, True]


# Blocks by their names ----------------------------------------------------------------------------------------------

COUNTED: dict[tuple[str, ...], tuple[str, tuple[int, ...], str]] = {
    ("layers.0", "layers.1"): ("layers.", (0, 1), ""),
    ("a.0.b.3.c", "a.0.b.4.c"): ("a.0.b.", (3, 4), ".c"),
    ("a.0.b.3", "a.1.b.3"): ("a.", (0, 1), ".b.3"),
    ("a.0.b.3",): ("a.0.b.", (3,), ""),
    ("a.7.b",): ("a.", (7,), ".b"),
    ("a.2", "a.10"): ("a.", (2, 10), ""),
}


def test_paths_count() -> None:
    for paths, expected in COUNTED.items():
        assert Instances.of(paths) == Instances(*expected), paths


def test_paths_that_do_not_count_are_refused() -> None:
    """Nor do numbers as Python does not write them."""
    for paths in [
        ("a.1", "a.0"),
        ("a.1", "a.1"),
        ("a.x",),
        ("a.0", "b.1"),
        ("a.007",),
        ("a.\u0663",),
        ("a.0.b", "a.1.c"),
    ]:
        with pytest.raises(EmissionSchedule, match=f"blocks {paths[0]} to {paths[-1]}: their names do not count"):
            Instances.of(paths)


def test_loops_over_blocks() -> None:
    own = Instances("a.", (0, 1, 2, 3), ".b")
    lines = ("for index in range(4):", '    block = model.get_submodule(f"a.{index}.b")')
    assert own.loop() == lines
    assert own.part(1, 3).loop("one") == ("for index in range(1, 3):", '    one = model.get_submodule(f"a.{index}.b")')
    assert own.part(2, None).numbers == (2, 3)
    assert own.loop(of="BLOCKS")[0] == "for index in BLOCKS:"
    assert [own.number(path) for path in ("a.2.b", "a.x.b", "a.2.c", "c.2.b")] == [2, -1, -1, -1]


def test_pieces_and_the_modules_that_hold_their_parameters() -> None:
    plan = subject(dp=2)
    _, block, head = plan.pieces
    assert [(one.first, one.repeated, one.ahead) for one in plan.pieces] == [
        ("", False, None),
        ("layers.0", True, None),
        ("", False, None),
    ]
    assert block.owners()[:3] == ("norm1", "attn.q", "attn.k")
    assert [one for held in block.held.values() for one in held if block.owner(one) not in block.held] == []
    assert sum(map(len, block.held.values())) == len(block.graph.params)
    assert (block.path("attn.q"), block.path(""), head.path("norm"), head.path("")) == (
        "layers.0.attn.q",
        "layers.0",
        "norm",
        "",
    )
    assert (plan.ranks, device_of(plan), plan.compiled) == (2, "cpu", False)


def test_a_step_does_twice_the_work_for_gradients() -> None:
    """Of products 2 operations for an element of the weights and a token: 9216 in a block, 2048 in the head; of
    attention, 2 * 2 * 8 heads * 16 * 16 * 4 for a sequence. Of the first block nothing needs less: what enters comes
    from a table."""
    plan = subject(dp=2, microbatches=2)
    products = 2 * (2 * 9216 + 2048) * 8 * 16
    scores = 2 * 2 * 2 * 8 * 16 * 16 * 4 * 8
    assert products * 3 < plan.step_flops <= (products + scores) * 3


def two_ways(**changed: Any) -> Subject:
    """Stages that run a block otherwise."""
    plan = subject(pp=2, microbatches=2, schedule="gpipe")
    decisions = plan.decisions
    other = replace(decisions.plan["block"], name="other", **changed)
    last = replace(
        decisions.stages[1],
        plans=tuple("other" if name == "block" else name for name in decisions.stages[1].plans),
    )
    return planned(
        plan.fold,
        replace(decisions, plans=(*decisions.plans, other), stages=(decisions.stages[0], last)),
    )


def test_stages_that_run_a_body_in_two_ways_are_refused() -> None:
    """Also if they differ in what is computed again only."""
    with pytest.raises(EmissionSchedule, match="plans block, other: stages that run a body in different ways"):
        str(two_ways(recompute=("act",)).pieces)
    with pytest.raises(EmissionSchedule, match="stages that run a body in different ways"):
        str(two_ways(regather=False).pieces)


def test_software_that_no_code_is_written_for() -> None:
    for changed, target, style, place, fix in [
        (
            {"stack": STACKS["torch-async-tp"]},
            "torch-gloo",
            "eager",
            "stack torch-async-tp",
            "plan with --target torch-cuda, or with --stack torch-compile",
        ),
        ({"stack": STACKS["deepspeed"]}, "torch-cuda", "eager", "stack deepspeed", "plan with --stack torch"),
        ({}, "torch-gloo", "odd", "style odd", "plan with --style eager, or with --style compiled"),
        ({"optimizer": "sgd"}, "torch-cuda", "eager", "optimizer sgd", "plan with --optimizer adamw"),
    ]:
        with pytest.raises(EmissionSoftware) as refused:
            check_software(replace(FP32, **changed), target, style)
        assert (refused.value.place, refused.value.fix) == (place, fix), changed
        check_software(FP32, target, "compiled")
        check_software(replace(FP32, stack=STACKS["torch-async-tp"]), "torch-cuda", "eager")


# What runs again ----------------------------------------------------------------------------------------------------

PRODUCTS = ("q", "k", "v", "o", "gate", "up", "down")
MLP = ("gate", "act", "up", "prod", "down")


def names(plan: Subject, body: str) -> dict[str, str]:
    """What operators make, by the module or the stem of their names."""
    ops = plan.fold.body[body].graph.ops
    return {op.name if op.kind != "linear" else op.module.rpartition(".")[2]: op.name for op in ops}


def again(body: str, *chosen: str, but: Sequence[str] = (), **degrees: Any) -> Subject:
    """The plan, with these values of a body computed again, or all but some."""
    plan = subject(**(degrees or {"dp": 2}))
    known = names(plan, body)
    values = tuple(known[one] for one in chosen or [one for one in known if one not in but])
    plans = tuple(replace(one, recompute=values) if one.body == body else one for one in plan.decisions.plans)
    return planned(plan.fold, replace(plan.decisions, plans=plans))


def test_nothing_runs_again_if_nothing_is_said() -> None:
    assert recomputed(subject(dp=2)) == ()


AGAIN: dict[str, tuple[Subject, tuple[str, ...], tuple[str, ...]]] = {
    "blocks": (again("block"), ("",), ()),
    "a module": (again("block", *MLP), ("mlp",), ()),
    "modules in it": (again("block", "gate", "up"), ("mlp.gate", "mlp.up"), ()),
    "attention": (again("block", "attn"), (), ("attn",)),
    "a module and attention": (again("block", *MLP, "attn"), ("mlp",), ("attn",)),
    "a module that holds attention": (
        again(
            "block",
            "q",
            "k",
            "v",
            "o",
            *(f"{n}_{to}" for n in "qkv" for to in ("heads", "t")),
            "attn",
            "attn_t",
            "attn_flat",
        ),
        ("attn",),
        (),
    ),
}


def test_modules_that_run_again() -> None:
    for what, (plan, paths, attention) in AGAIN.items():
        (found,) = recomputed(plan)
        assert (found.paths, found.attention, found.kept, found.changes) == (paths, attention, None, False), what
        assert (found.start, found.stop, found.which) == (0, None, ""), what
        assert found.piece.plan.body == "block", what


def test_products_that_are_kept_are_counted() -> None:
    """In the order in which they run: queries, keys, values, then o, gate, up and down."""
    for kept, numbers in [(("q", "attn"), (0,)), (("v", "up", "attn"), (2, 5)), (("q", "k", "attn"), (0, 1))]:
        (found,) = recomputed(again("block", but=kept))
        assert (found.paths, found.attention, found.kept) == (("",), (), numbers), (kept, numbers)


def test_first_blocks_run_again_by_themselves() -> None:
    (found,) = recomputed(subject(dp=2, recompute="full_layers:1"))
    assert (found.paths, found.start, found.stop, found.which) == (("",), 0, 1, "[:1]")


REFUSED: dict[str, tuple[Subject, str]] = {
    "a part of a module": (
        again("block", "gate", "act"),
        r"computing a part of a module again \(1 of 2 values are made in modules that do more\)",
    ),
    "what is no product": (
        again("block", but=("q", "act")),
        r"computing a part of a module again \(\d+ of 20 values are made in modules that do more\)",
    ),
    "outside of blocks": (again("head", "cross_entropy"), "computing again what stands outside of blocks"),
    "a ring and a module": (
        again("block", "attn", "q", cp=2, context="ring"),
        "computing again with or without %attn, which is a ring,",
    ),
}


def test_what_cannot_run_again_by_itself_is_refused() -> None:
    for what, (plan, says) in REFUSED.items():
        with pytest.raises(EmissionRecompute, match=f"{says} is not emitted yet") as refused:
            recomputed(plan)
        way = "plan with --fix recompute=none, or pin whole blocks or modules, as in --fix 'layers.*:recompute=on'"
        assert refused.value.fix == way, what


def test_a_ring_runs_again_with_its_module() -> None:
    (found,) = recomputed(again("block", cp=2, context="ring"))
    assert found.paths == ("",)
    (beside,) = recomputed(again("block", *MLP, cp=2, context="ring"))
    assert beside.paths == ("mlp",)


# Where weights come from --------------------------------------------------------------------------------------------


def test_all_parameters_of_a_model_in_bytes() -> None:
    """Table and head, two blocks and a norm in fp32; blocks count as often as there are some."""
    elements = 2 * 64 * 32 + 2 * 9280 + 32
    assert whole_bytes(subject(dp=2)) == 4 * elements
    assert whole_bytes(subject(dp=2, layers=4)) == 4 * (elements + 2 * 9280)
    assert whole_bytes(subject(replace(MIXED, recipe="bf16"), dp=2)) == 2 * elements
    assert MOST_WHOLE_BYTES == 4 * 1024**3


UNDRAWN = "module norm has no reset_parameters(), and the model's file no draw_weights(module), to draw what it holds"


def test_ranks_draw_their_part_of_what_is_big_or_if_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for init in ["", "meta", "whole"]:
        for big in [False, True]:
            plan = replace(subject(dp=2, zero=3), init=init)
            most = whole_bytes(plan) - big
            monkeypatch.setattr("meshwright.backends.torch_.emit.write.initial.MOST_WHOLE_BYTES", most)
            parts = parts_of(plan)
            drawn = parts.drawn_in_parts
            assert drawn == (init == "meta" or (big and not init)), (init, big)
            expected = "" if drawn or init == "whole" or not big else "every rank builds all 0 GiB of the model"
            assert built_whole(plan, parts=drawn) == expected, (init, big)
            undrawn = replace(plan, calls=replace(plan.calls, undrawn=("norm",)))
            why = UNDRAWN
            if init == "meta":
                with pytest.raises(EmissionModel) as refused:
                    drawn_in_parts(undrawn, parts.kept, parts.axes, None)
                assert (refused.value.place, refused.value.cause) == ("--init meta", why), (init, big)
            else:
                assert not drawn_in_parts(undrawn, parts.kept, parts.axes, None), (init, big)
                told = "" if init or not big else f"every rank builds all 0 GiB of the model: {why}"
                assert built_whole(undrawn, parts=False) == told, (init, big)


def test_copies_of_all_are_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for degrees, drawn in [
        ({"dp": 2}, False),
        ({"dp": 2, "zero": 3}, True),
        ({"tp": 2}, True),
        ({"pp": 2, "microbatches": 2, "schedule": "gpipe"}, True),
    ]:
        monkeypatch.setattr("meshwright.backends.torch_.emit.write.initial.MOST_WHOLE_BYTES", 0)
        parts = parts_of(subject(**degrees))
        assert parts.drawn_in_parts == drawn, (degrees, drawn)
        assert not drawn_in_parts(parts.subject, Kept(()), replace(parts.axes, tensor=None), None), (
            degrees,
            drawn,
        )


def test_a_root_that_holds_parameters_itself_is_a_unit_of_its_own_kind(tmp_path: Path) -> None:
    """The norm's weight is the model's own: what is outside of blocks is gathered again with it."""
    plan = subject(dp=2, zero=3)
    line = "    fully_shard(model, mesh=shards, reshard_after_forward={})\n"
    assert line.format(False) in dict(emit(plan, tmp_path).texts)["train.py"]
    head = plan.fold.body["head"].graph
    params = tuple(replace(one, paths=("scale",)) if one.path == "norm.weight" else one for one in head.params)
    ops = tuple(replace(op, module="" if op.module == "norm" else op.module) for op in head.ops)
    changed = replace(head, params=params, ops=ops)
    bodies = tuple(replace(one, graph=changed) if one.name == "head" else one for one in plan.fold.bodies)
    plans = tuple(
        replace(
            one,
            storage=tuple(replace(s, path="scale" if s.path == "norm.weight" else s.path) for s in one.storage),
        )
        for one in plan.decisions.plans
    )
    own = planned(replace(plan.fold, bodies=bodies), replace(plan.decisions, plans=plans))
    assert line.format(True) in dict(emit(own, tmp_path).texts)["train.py"]
    assert Mesh.parse("dp=2").size == len(groups_of(own.program, own.fold)[0].ranks)


def test_a_number_that_tells_two_names_apart_makes_no_third() -> None:
    names = ["LAYER", "LAYER_2", "LAYER", "LAYER_3", "HEAD"]
    assert told_apart(names) == ("LAYER_0", "LAYER_2", "LAYER_4", "LAYER_3", "HEAD")
