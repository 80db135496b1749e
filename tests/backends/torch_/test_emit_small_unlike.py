"""Small plans whose stages have unlike meshes: what is said of kinds of stages, and what their scripts say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.emit.read.heterogeneous import Heterogeneous, joined_kinds, kinds_of, merged
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.errors import EmissionSchedule
from meshwright.ir.names import Degrees
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.backends.torch_.small import fold_of, parts_of, planned
from tests.backends.torch_.test_emit_small import lines_of, of_tied, unlike


def in_kinds(
    *degrees: Degrees, blocks: tuple[int, ...] = (), schedule: str = "1f1b", one_table: bool = False
) -> Subject:
    """A plan with a stage for each of these, of one block each."""
    fold = fold_of(layers=len(degrees))
    fold = of_tied(fold) if one_table else fold
    blocks = blocks or (1,) * len(degrees)
    decisions = over_parts(fold, neighbours(*degrees), blocks, Schedule(schedule, 2), "torch-gloo")
    return planned(fold, decisions)


ALONE, COPIES, CUT = Degrees(), Degrees(dp=2), Degrees(tp=2)


def test_stages_of_a_mesh_are_one_kind_and_the_last_stage_is_of_the_last() -> None:
    for degrees, only in [
        ((ALONE, CUT), [(0,), (1,)]),
        ((CUT, ALONE), [(0,), (1,)]),
        ((COPIES, CUT, COPIES), [(1,), (0, 2)]),
        ((CUT, COPIES, CUT, ALONE), [(1,), (0, 2), (3,)]),
        ((CUT, CUT), [()]),
    ]:
        plan = in_kinds(*degrees)
        kinds = kinds_of(plan)
        assert sorted(kind.only for kind in kinds[:-1]) == sorted(only[:-1]), (degrees, only)
        assert kinds[-1].only == only[-1], (degrees, only)
        for kind in kinds:
            assert kind.mesh == plan.decisions.stages[kind.only[0] if kind.only else 0].mesh, (degrees, only)
            bodies = {piece.plan.body for piece in kind.pieces}
            assert ("embed" in bodies) == (not kind.only or 0 in kind.only), (degrees, only)
            assert ("head" in bodies) == (kind is kinds[-1]), (degrees, only)


def joined(plan: Subject) -> Heterogeneous:
    return joined_kinds([parts_of(kind) for kind in kinds_of(plan)])


def test_what_is_said_of_kinds_together() -> None:
    found = joined(in_kinds(Degrees(dp=2, zero=3), ALONE, CUT))
    assert [axes.copies for axes in found.main.by_stage] == [("dp",), (), ()]
    assert [axes.tensor for axes in found.main.by_stage] == [None, None, "tp"]
    assert (found.axes, found.batch, found.tied) == (("dp", "tp"), "dp", ())
    assert [mesh.size for mesh in found.meshes] == [2, 1, 2]
    assert found.main.in_units == {0}
    assert found.pipeline.held == ((0,), (1,), (2,))
    assert joined(in_kinds(ALONE, CUT)).batch is None


def test_axes_of_meshes_in_an_order_that_all_have() -> None:
    meshes = [Mesh.parse(text) for text in ("dp=2", "tp=4", "dp=2 tp=2")]
    assert merged(meshes) == ("dp", "tp")
    assert merged([Mesh.parse("b=2"), Mesh.parse("a=2 b=2")]) == ("a", "b")
    assert merged([Mesh(())]) == ()


UNLIKE_REFUSED: dict[str, tuple[Callable[[], Subject], str]] = {
    "cut sequences": (lambda: in_kinds(ALONE, Degrees(cp=2)), "sequences that an axis cuts"),
    "copies of shards": (
        lambda: in_kinds(Degrees(dp=4, shard=2, zero=3), COPIES),
        "several axes that cut the batch",
    ),
    "gradients of weights apart": (
        lambda: in_kinds(ALONE, CUT, schedule="zb-h1"),
        "schedule zb-h1, which computes gradients of weights apart",
    ),
}


def test_what_is_not_written_beside_different_meshes() -> None:
    for what, (made, says) in UNLIKE_REFUSED.items():
        with pytest.raises(EmissionSchedule) as refused:
            joined(made())
        assert refused.value.cause == f"this is not emitted yet beside them: {says}", what
        assert (refused.value.place, refused.value.fix) == (
            "stages of different meshes",
            "plan with --fix pp=1, or with degrees (--fix tp=, dp=), which all stages have",
        ), what


UNLIKE_MEANT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "1 + 2, tp": (
        (
            "Mesh axis tp (1 and 2 ranks): ranks share every block.",
            'MESHES = ({"tp": 1}, {"tp": 2})  # of every stage',
            "RANKS = (range(0, 1), range(1, 3))\nSTAGES = 2\nBLOCKS = (range(1), range(1, 2))\n",
            "if model.index == 0:\nreturn shard_alone(model, mesh)\n",
            "if model.index == 1:\nreturn shard_tp2(model, mesh)\n",
            "Value((4, 16, 32), torch.float32, {}, {}, True),",
            'losses = model.run(batch["tokens"], labels=batch["labels"], share=share)',
            "if ranks != 3:",
            "return whole\n",
        ),
        (
            "own_sequences",
            "own_part",
            "_flatten",
            "sum_copies",
            "TIED",
            "set_requires_gradient_sync",
        ),
    ),
    "2 + 1, tp+sp": (
        (
            "RANKS = (range(0, 2), range(2, 3))",
            'Value((4, 16, 32), torch.float32, {1: ("tp",)}, {}, True),',
            "if model.index == 0:\nreturn shard_tp2(model, mesh)",
            "nn.ModuleList([shard(stage_of(model, self.index, mesh), mesh)])",
            "if model.index == 0:\nfor parameter in model.parameters():",
        ),
        ("own_sequences", "sum_copies"),
    ),
    "zero 1 and copies, in bf16": (
        (
            "Mesh axis dp (2 and 1 ranks): ranks share the sequences of every micro-batch.",
            'MESHES = ({"dp": 2, "whole": 1}, {"dp": 1, "whole": 1})',
            'Value((4, 16, 32), torch.bfloat16, {0: ("dp",)}, {}, True),',
            "return {name: own_sequences(tensor, mesh) for name, tensor in whole.items()}",
            "return own_part(whole, mesh)",
            "if self.index in (0, 1) and isinstance(stage, FSDPModule):",
        ),
        ("sum_copies", 'to("cuda")'),
    ),
    "zero 3 and tp": (
        (
            "Mesh axis tp (1 and 2 ranks): ranks share every block.",
            'MESHES = ({"dp": 2, "tp": 1}, {"dp": 1, "tp": 2})',
            "if model.index == 0:\nreturn shard_dp2(model, mesh)\nif model.index == 1:\nreturn shard_tp2(model, mesh)",
        ),
        ("set_requires_gradient_sync", "sum_copies", "_flatten"),
    ),
    "copies and tp": (
        ("if model.index == 0:\nsum_copies(model, mesh)\nif CLIP:", "if model.index == 1:\nreturn shard_tp2"),
        ("fully_shard",),
    ),
}


def test_what_unlike_stages_mean_is_what_their_script_says() -> None:
    for kind, (present, absent) in UNLIKE_MEANT.items():
        text = lines_of(unlike(kind))
        assert [one for one in present if one not in text] == [], kind
        assert [one for one in absent if one in text] == [], kind


def test_kinds_of_several_stages_are_named_together() -> None:
    """Copies on the first and the last of three, and what they share is said once."""
    text = lines_of(in_kinds(COPIES, CUT, COPIES))
    assert "if model.index in (0, 2):\nsum_copies(model, mesh)\n" in text
    assert 'MESHES = ({"tp": 1, "dp": 2}, {"tp": 2, "dp": 1}, {"tp": 1, "dp": 2})  # of every stage' in text
    assert "RANKS = (range(0, 2), range(2, 4), range(4, 6))\nSTAGES = 3\n" in text
    value = "Value((4, 16, 32), torch.float32"
    assert f'({value}, {{0: ("dp",)}}, {{}}, True),),\n({value}, {{}}, {{0: ("dp",)}}, True),),\n)' in text
    assert text.count("def sum_copies(") == 1
    both = lines_of(in_kinds(Degrees(dp=2, zero=1), Degrees(tp=2), Degrees(dp=2, zero=1)))
    assert "if self.index in (0, 2) and isinstance(stage, FSDPModule):" in both
    alone = lines_of(in_kinds(ALONE, Degrees(dp=2, zero=1)))
    assert "if self.index == 1 and isinstance(stage, FSDPModule):" in alone


def test_a_parameter_of_two_unlike_stages() -> None:
    """How it lies on each of them; the last of both is the one that does not count in norms."""
    found = joined(in_kinds(ALONE, CUT, one_table=True))
    assert [(stage, name, str(lies)) for stage, name, lies in found.tied] == [
        (0, "embed.weight", "[-, -]"),
        (1, "head.weight", "[tp, -]"),
    ]
    text = lines_of(in_kinds(ALONE, CUT, one_table=True))
    held = '(0, "embed.weight", {}),\n(1, "head.weight", {0: ("tp",)}),\n)\n'
    assert f"Cuts], ...] = (  # one parameter: stages, its names there, and what cuts it\n{held}" in text
    assert "sum_tied(model)\nif CLIP:" in text
    assert "self.sharing = list(self.tied(groups[0]))" in text
    assert "norms" in text
    assert "p not in twice" in text
    assert "twice" not in lines_of(in_kinds(ALONE, CUT))
    between = joined(in_kinds(ALONE, CUT, ALONE, one_table=True))
    assert [stage for stage, *_ in between.tied] == [0, 2]
