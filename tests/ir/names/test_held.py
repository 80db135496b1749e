"""Names read back from plans: of every name exactly those values hold that its plan was made with, or that mean the
same there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.held import HELD, UNUSED, Subject, has_use, holds, uses
from meshwright.ir.names.pinned import Allowed, Pinned
from meshwright.ir.sharding.mesh import Mesh
from tests.build import Builder
from tests.llama_block import model

FOLD = model()
"""Four samples, four layers."""

ASKED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "etp", "vp", "microbatches", "mbs"), (1, 2, 4)),
    "shard": (0, 1, 2, 4),
    "zero": (0, 1, 2, 3),
    "recompute": (
        "none", "full", "selective", "selective:core_attn+layernorm", "selective:layernorm", "selective:moe_act",
        "selective_op", "full_layers:1", "full_layers:2", "full_layers:4", "full_layers:5",
    ),
    "schedule": ("1f1b", "gpipe", "zbv"),
    "context": ("all_gather", "ring", "ulysses"),
    "split": ("even", "ends", "spread"),
    "stage_blocks": ("4", "2+2", "3+1", "1+1+1+1"),
    "offload": ("none", "optimizer", "activations", "activations:1"),
    **dict.fromkeys(("sp", "zigzag", "regather"), (True, False)),
}  # fmt: skip

ALONE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "etp", "vp", "microbatches"), (1,)),
    "mbs": (4,),
    "shard": (0, 1),
    "zero": (0,),
    "recompute": ("none",),
    "schedule": ("1f1b",),
    "context": ("all_gather",),
    "split": ("even", "ends", "spread"),
    "stage_blocks": ("4",),
    "offload": ("none",),
    "sp": (False,),
    "zigzag": (False,),
    "regather": (True,),
}
"""What a plan on one rank has."""

TWO: dict[str, tuple[Any, ...]] = {"mbs": (2, 4)}
"""A micro-batch on two ranks may have been cut for two copies, or for one."""

PLANS: list[tuple[Degrees, dict[str, tuple[Any, ...]], str]] = [
    (Degrees(), {}, ""),
    (Degrees(dp=2), {"dp": (2,)} | TWO, "zero"),
    (Degrees(dp=2, zero=1), {"dp": (2,), "zero": (1,), "shard": (0, 2)} | TWO, "zero shard"),
    (Degrees(dp=2, zero=2), {"dp": (2,), "zero": (2,), "shard": (0, 2)} | TWO, "zero shard"),
    (
        Degrees(dp=4, shard=2, zero=3),
        {"dp": (4,), "zero": (3,), "shard": (2,), "mbs": (1, 2, 4)},
        "zero shard regather",
    ),
    (
        Degrees(dp=2, zero=3, regather=False),
        {"dp": (2,), "zero": (3,), "shard": (0, 2), "regather": (False,)} | TWO,
        "zero shard regather",
    ),
    (Degrees(tp=2), {"tp": (2,)} | TWO, ""),
    (Degrees(tp=2, sequence_parallel=True), {"tp": (2,), "sp": (True,)} | TWO, ""),
    (Degrees(dp=2, tp=2), {"dp": (2,), "tp": (2,), "mbs": (1, 2, 4)}, "zero"),
    (Degrees(cp=2), {"cp": (2,)} | TWO, "zero context"),
    (
        Degrees(cp=2, context="ring", zigzag=True),
        {"cp": (2,), "context": ("ring",), "zigzag": (True,)} | TWO,
        "zero context",
    ),
    (Degrees(cp=2, context="ulysses"), {"cp": (2,), "context": ("ulysses",)} | TWO, "zero context"),
    (
        Degrees(pp=2, microbatches=2),
        {"pp": (2,), "microbatches": (2,), "schedule": ("gpipe",), "stage_blocks": ("2+2",)},
        "schedule split stage_blocks",
    ),
    (
        Degrees(pp=2, stage_blocks=(3, 1), schedule="1f1b"),
        {"pp": (2,), "split": (), "stage_blocks": ("3+1",)},
        "schedule split stage_blocks",
    ),
    (
        Degrees(pp=2, vp=2, microbatches=2, schedule="zbv"),
        {
            "pp": (2,),
            "vp": (2,),
            "microbatches": (2,),
            "schedule": ("zbv",),
            "split": ("even", "spread"),
            "stage_blocks": ("1+1+1+1",),
        },
        "schedule split stage_blocks",
    ),
    (Degrees(recompute="full"), {"recompute": ("full", "full_layers:4")}, ""),
    (Degrees(recompute="selective"), {"recompute": ("selective",)}, ""),
    (Degrees(recompute="selective:core_attn+layernorm"), {"recompute": ("selective:core_attn+layernorm",)}, ""),
    (Degrees(recompute="selective:layernorm"), {"recompute": ("selective:layernorm",)}, ""),
    (Degrees(recompute="selective_op"), {"recompute": ("selective_op",)}, ""),
    (Degrees(recompute="full_layers:1"), {"recompute": ("full_layers:1",)}, ""),
    (Degrees(recompute="full_layers:2"), {"recompute": ("full_layers:2",)}, ""),
    (
        Degrees(pp=2, recompute="full_layers:2", schedule="1f1b"),
        {"pp": (2,), "stage_blocks": ("2+2",), "recompute": ("full", "full_layers:2", "full_layers:4")[1:2]},
        "schedule split stage_blocks",
    ),
    (Degrees(offload="activations:1"), {"offload": ("activations:1",)}, ""),
    (Degrees(offload="optimizer"), {"offload": ("optimizer",)}, ""),
]


def found(decisions: Decisions, fold: Fold = FOLD) -> dict[str, tuple[Any, ...]]:
    subject = Subject(decisions, fold)
    return {name: tuple(value for value in values if holds(subject, name, value)) for name, values in ASKED.items()}


def test_every_name_is_asked() -> None:
    assert set(ASKED) == set(ALONE) == set(HELD)


def test_a_plan_has_the_values_that_it_was_made_with() -> None:
    for degrees, own, used in PLANS:
        decisions = template(FOLD, degrees)
        assert found(decisions) == ALONE | own, degrees
        subject = Subject(decisions, FOLD)
        assert {name for name in UNUSED if has_use(subject, name)} == set(used.split())
        assert {name for name in UNUSED if any(uses(subject, name, value) for value in ASKED[name])} == {
            name for name in used.split() if (ALONE | own)[name]
        }


def mixture() -> Fold:
    """Two layers of four experts, sixteen samples."""
    g = Builder()
    x = g.input((16, 16), labels=("b", ""), requires_grad=True)
    idx, by = (
        g.input((16, 2), name="idx", labels=("b", ""), dtype="i64"),
        g.input((16, 2), name="by", labels=("b", "")),
    )
    rows = g.op("dispatch", g.op("relu", x), idx, num_experts=4, capacity=8, dropless=True)
    up = g.op("grouped_linear", rows, g.param("up", (4, 32, 16)))
    down = g.op("grouped_linear", up, g.param("down", (4, 16, 32)))
    g.output(g.op("combine", down, idx, by, num_experts=4, capacity=8, dropless=True))
    graph = g.graph()
    entry = tuple(FromInput(item.value) for item in graph.inputs)
    return Fold(
        (Body("layer", graph),),
        (Segment(("layer",), ("l.0", "l.1"), entry, ((FromPrevious(0), *entry[1:]),)),),
        tuple((item, graph.types[item.value]) for item in graph.inputs),
        (FromPrevious(0),),
    )


@pytest.mark.parametrize(
    ("degrees", "sizes"),
    [
        (Degrees(dp=2), {"dp": 2, "ep": 1, "etp": 1, "tp": 1}),
        (Degrees(dp=2, ep=2), {"dp": 2, "ep": 2, "etp": 1, "tp": 1}),
        (Degrees(dp=4, ep=2), {"dp": 4, "ep": 2, "etp": 1, "tp": 1}),
        (Degrees(dp=2, tp=2, ep=2), {"dp": 2, "ep": 2, "etp": 2, "tp": 1}),
        (Degrees(tp=2), {"dp": 1, "ep": 1, "etp": 2, "tp": 1}),
    ],
    ids=str,
)
def test_experts_are_shared_by_axes_of_their_own(degrees: Degrees, sizes: dict[str, int]) -> None:
    """Nothing but experts has weights here, so that tensor parallelism has nothing to cut outside of them."""
    fold = mixture()
    subject = Subject(template(fold, degrees), fold)
    assert {name: [value for value in (1, 2, 4) if holds(subject, name, value)] for name in sizes} == {
        name: [size] for name, size in sizes.items()
    }


def test_what_is_asked_of_operators_is_not_held_against_a_word_for_all() -> None:
    """All norms, and attention because it is asked for: that is still the norms alone, and not without the pin."""
    decisions = template(FOLD, Degrees(recompute="selective:core_attn+layernorm"))
    on, free = Allowed(recompute=frozenset({"on"})), Allowed()
    norms = "selective:layernorm"
    assert holds(Subject(decisions, FOLD, Pinned({"block": {"attn": on}})), "recompute", norms)
    assert not holds(Subject(decisions, FOLD, Pinned({"block": {"attn": free}})), "recompute", norms)
    assert not holds(Subject(decisions, FOLD, Pinned({"head": {"attn": on}})), "recompute", norms)


def values_of(decisions: Decisions, name: str, *values: Any) -> tuple[Any, ...]:
    """Those of these values that a plan has."""
    subject = Subject(decisions, FOLD)
    return tuple(value for value in values if holds(subject, name, value))


def test_what_bodies_do_unlike_one_another_is_of_all_together() -> None:
    """ZeRO is as far as it goes in any body, over as many ranks as in any; parameters are gathered again where all
    are; an axis is for what it does in any of them."""
    plain, sharded = template(FOLD, Degrees(dp=4)), template(FOLD, Degrees(dp=4, shard=2, zero=3))
    embed, block, head = sharded.plans
    for stored in (embed, block, head):
        plans = tuple(one if one is stored else replace(one, storage=()) for one in sharded.plans)
        mixed = replace(sharded, plans=plans)
        assert values_of(mixed, "zero", 0, 1, 2, 3) == (3,)
        assert values_of(mixed, "shard", 0, 1, 2, 4) == (2,)
    assert values_of(
        replace(sharded, plans=(embed, replace(block, regather=False), head)), "regather", True, False
    ) == (False,)
    less = template(FOLD, Degrees(dp=4, zero=2))
    kept = tuple(replace(one, regather=False) for one in less.plans)
    assert values_of(replace(less, plans=kept), "regather", True, False) == ()
    assert values_of(plain, "shard", 0, 1, 2, 4) == (0, 1)
    both = template(FOLD, Degrees(tp=2))
    for body, degree in (("block", 2), ("nothing", 1)):
        plans = tuple(one if one.body == body else replace(one, strategies=()) for one in both.plans)
        assert values_of(replace(both, plans=plans), "tp", 1, 2) == (degree,)


def test_stages_of_different_meshes_have_no_one_degree() -> None:
    """Two copies on the first stage and four on the last are neither; a micro-batch of four samples may still have
    been cut for two, which divide both."""
    made = template(FOLD, Degrees(dp=2, pp=2, microbatches=2))
    first, last = made.stages
    unlike = replace(made, stages=(first, replace(last, mesh=Mesh.parse("dp=4"), ranks=(2, 3, 4, 5))))
    assert values_of(unlike, "dp", 1, 2, 4) == ()
    assert values_of(unlike, "tp", 1, 2) == (1,)
    assert values_of(unlike, "mbs", 1, 2, 3, 4, 8) == (2, 4)
    assert values_of(unlike, "pp", 1, 2) == (2,)
    assert values_of(unlike, "vp", 1, 2) == (1,)
    subject = Subject(unlike, FOLD)
    assert (subject.counts, subject.sizes("dp"), subject.sizes("tp"), subject.sizes()) == ((2, 2), {2, 4}, {1}, {1})
