"""What plans combine, in words: every combination told from its nearest neighbours that are none. Plans are made by
hand, and say no more than what is looked at."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.ir.analysis.fused import cut_apart
from meshwright.ir.analysis.loops import body_loops
from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import CapabilityUnknown
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, name_of, template
from meshwright.ir.names.words import loops_split
from meshwright.ir.sharding.adjoint import Split, Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Sections, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.target.capabilities import ANY, Capabilities, Line, ScheduleLine, layout_names
from meshwright.ir.target.combined import CAST, COMBINED, compiled_statistics, contexts
from tests.build import Builder
from tests.llama_block import model

FOLD = model()
"""Calls: embedding, four blocks, head."""


def plan(body: str = "block", name: str = "", again: tuple[str, ...] = (), **strategies: str) -> BodyPlan:
    chosen = tuple((op, Strategy.parse(text)) for op, text in strategies.items())
    return BodyPlan(name or body, body, chosen, recompute=again)


def stored(body: str, path: str, params: str, grads: str, optimizer: str, name: str = "") -> BodyPlan:
    return BodyPlan(name or body, body, storage=(Storage(path, *map(Placement.parse, (params, grads, optimizer))),))


def decided(
    *plans: BodyPlan, mesh: str = "dp=2", stages: int = 1, groups: int = 0, fold: Fold = FOLD, **more: Any
) -> Decisions:
    """Stages of about equal numbers of calls, dealt out to groups of ranks in a loop."""
    made, calls = Mesh.parse(mesh), sum(segment.calls for segment in fold.segments)
    bounds = [calls * stage // stages for stage in range(stages + 1)]
    on = [stage % (groups or stages) for stage in range(stages)]
    return Decisions(
        plans,
        tuple(
            StagePlan(
                bounds[at], bounds[at + 1], made, tuple(range(on[at] * made.size, (on[at] + 1) * made.size)),
                tuple(one.name for one in plans),
            )
            for at in range(stages)
        ),
        **more,
    )  # fmt: skip


def one_body(graph: Graph, *, glue: bool = False) -> Fold:
    """A body that runs twice, or once as glue."""
    entry = tuple(FromInput(item.value) for item in graph.inputs)
    again = (FromPrevious(0), *entry[1:])
    return Fold(
        bodies=(Body("one", graph),),
        segments=(Segment(("one",), ("",), entry, (entry,), glue=True),)
        if glue
        else (Segment(("one",), ("l.0", "l.1"), entry, (again,)),),
        inputs=tuple((item, graph.types[item.value]) for item in graph.inputs),
        outputs=(FromPrevious(0),),
    )


def attention(mask: str = "causal") -> Graph:
    g = Builder()
    x = g.input((2, 4, 8, 4), labels=("b", "", "s", ""), requires_grad=True)
    g.output(g.op("attention", x, x, x, mask=mask, width=2, name="attn"))
    return g.graph()


def experts() -> Graph:
    g = Builder()
    rows = g.input((4, 8, 16), requires_grad=True)
    g.output(g.op("grouped_linear", rows, g.param("w", (4, 16, 16)), name="up"))
    return g.graph()


def normed(shape: tuple[int, ...] = (4, 3, 5), *, training: bool = True) -> Graph:
    g = Builder()
    x = g.input(shape, labels=("b", "", ""), requires_grad=True)
    held = (g.param("w", (3,)), g.param("b", (3,)), g.buffer("mean", (3,)), g.buffer("var", (3,)))
    g.output(g.many("batch_norm", x, *held, training=training, name="bn")[0])
    return g.graph()


# Attention -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategies", "found"),
    [
        ({"attn": "cp=sq"}, {"all_gather"}),
        ({"attn": "cp=hk"}, {"ulysses"}),
        ({"attn": "cp=sq+sk"}, {"ring"}),
        ({"attn": "cp_ep=sq"}, {"all_gather"}),
        ({"attn": "tp=hk"}, set[str]()),
        ({"attn": "cp=b"}, set[str]()),
        ({"attn": "cp=-|P"}, set[str]()),
        ({"q": "cp=d1"}, set[str]()),
        ({"attn": "cp=sq cp_ep=hk"}, {"all_gather", "ulysses"}),
    ],
)
def test_how_attention_meets_other_tokens_is_read_off_what_context_axes_split(
    strategies: dict[str, str], found: set[str]
) -> None:
    assert contexts(decided(plan(**strategies)), FOLD) == found


# Shares, storage, copies ---------------------------------------------------------------------------------------------


def shared(**others: str) -> BodyPlan:
    uneven = Strategy((("dp", Split(("d0",), Uneven((3, 1)))),))
    chosen = tuple((op, Strategy.parse(text)) for op, text in others.items())
    return BodyPlan("block", "block", (("norm1", uneven), *chosen))


def test_unequal_shares_stand_beside_tensor_axes_alone() -> None:
    said = COMBINED["beside_shares"]
    assert said(decided(shared()), FOLD) == ""
    assert said(decided(shared(q="tp=n"), mesh="dp=2 tp=2"), FOLD) == ""
    cut = decided(shared(norm2="cp=d1", attn="cp=sq"), mesh="dp=2 cp=2")
    assert said(cut, FOLD) == "unequal shares of a batch beside axis cp as cp"
    idle = decided(shared(), mesh="dp=2 tp=2")
    assert said(idle, FOLD) == "unequal shares of a batch beside axis tp as -"
    assert said(decided(shared(), stages=2), FOLD) == "unequal shares of a batch in a pipeline"
    assert said(decided(plan(norm1="dp=d0"), stages=2), FOLD) == ""


WHOLE, CUT = "[-, -]", "[dp, -]"


@pytest.mark.parametrize(
    ("stages", "groups", "placements", "said"),
    [
        (4, 1, (WHOLE, WHOLE, CUT), "shards of states alone on ranks with 4 stages"),
        (5, 1, (WHOLE, WHOLE, CUT), "shards of states alone on ranks with 5 stages"),
        (6, 1, (CUT, CUT, CUT), ""),
        (3, 1, (WHOLE, WHOLE, CUT), ""),
        (6, 2, (WHOLE, WHOLE, CUT), ""),
        (5, 2, (WHOLE, WHOLE, CUT), ""),
    ],
)
def test_more_than_three_stages_of_a_rank_are_not_gathered_at_once(
    stages: int, groups: int, placements: tuple[str, str, str], said: str
) -> None:
    decisions = decided(stored("block", "q.weight", *placements), stages=stages, groups=groups)
    assert COMBINED["many_gathered_stages"](decisions, FOLD) == said


ZB, PLAIN = Schedule("zb-h1", 2), Schedule("1f1b", 2)
AGAIN = tuple(value for op in FOLD.body["block"].graph.ops for value in op.results)
OWN = Schedule("custom", 1, (("F0.0", "I0.0", "W0.0"), ("F1.0", "I1.0", "W1.0")))
OWN_FULL = Schedule("custom", 1, (("F0.0", "B0.0"), ("F1.0", "B1.0")))


@pytest.mark.parametrize(
    ("schedule", "stages", "grads", "said"),
    [
        (ZB, 2, CUT, "gradients scattered for every micro-batch under schedule zb-h1"),
        (OWN, 2, CUT, "gradients scattered for every micro-batch under schedule custom"),
        (OWN_FULL, 2, CUT, ""),
        (ZB, 1, CUT, ""),
        (PLAIN, 2, CUT, ""),
        (ZB, 2, WHOLE, ""),
    ],
    ids=str,
)
def test_gradients_of_weights_apart_are_not_scattered_each(
    schedule: Schedule, stages: int, grads: str, said: str
) -> None:
    decisions = decided(stored("block", "q.weight", WHOLE, grads, CUT), stages=stages, schedule=schedule)
    assert COMBINED["split_backward_shards"](decisions, FOLD) == said


@pytest.mark.parametrize(
    ("again", "stages", "schedule", "said"),
    [
        (("attn", "norm1"), 2, ZB, "block computed again under schedule zb-h1"),
        (("norm1",), 2, ZB, "block computed again under schedule zb-h1"),
        (("attn",), 2, ZB, ""),
        ((), 2, ZB, ""),
        (("norm1",), 1, ZB, ""),
        (("norm1",), 2, PLAIN, ""),
    ],
    ids=str,
)
def test_halves_of_a_backward_pass_make_attention_alone_again(
    again: tuple[str, ...], stages: int, schedule: Schedule, said: str
) -> None:
    decisions = decided(plan(again=again), stages=stages, schedule=schedule)
    assert COMBINED["again_in_halves"](decisions, FOLD) == said


def test_copies_that_are_cast_are_cut_along_one_axis_of_samples() -> None:
    said, begins = CAST["cast_copies"], "parameters that are cast, and kept whole, beside "
    one = plan(norm1="dp=d0", q="tp=n")
    assert said(decided(one, mesh="dp=2 tp=2"), FOLD) == ""
    two = plan(norm1="dp=d0 dp_shard=d0")
    assert said(decided(two, mesh="dp=2 dp_shard=2"), FOLD) == f"{begins}axes dp and dp_shard"
    assert said(decided(plan(attn="cp=sq"), mesh="cp=2"), FOLD) == f"{begins}axis cp as cp"
    assert said(decided(plan(attn="cp=sq"), stored("head", "head.weight", CUT, CUT, CUT), mesh="cp=2"), FOLD) == ""


def test_parameters_that_are_not_trained_are_cast_only_where_nothing_has_shards() -> None:
    g = Builder()
    x = g.input((2, 8), labels=("b", ""), requires_grad=True)
    y = g.op("linear", x, g.param("frozen", (8, 8), requires_grad=False))
    g.output(g.op("linear", y, g.param("w", (8, 8))))
    fold, said = one_body(g.graph()), CAST["cast_untrained"]
    shards = stored("one", "w", CUT, CUT, CUT)
    both = BodyPlan("one", "one", storage=(*shards.storage, *stored("one", "frozen", CUT, CUT, CUT).storage))
    assert (
        said(decided(shards, fold=fold), fold) == "parameters that are not trained, and cast, beside shards of others"
    )
    assert said(decided(both, fold=fold), fold) == ""
    still = Builder()
    x = still.input((2, 8), labels=("b", ""), requires_grad=True)
    still.op("linear", x, still.param("frozen", (8, 8), requires_grad=False))
    still.output(still.op("linear", x, still.param("w", (8, 8))))
    unread = one_body(still.graph())
    assert said(decided(shards, fold=unread), unread) == "", "no derivative reads it"
    assert said(decided(plan("one"), fold=fold), fold) == ""
    buffers = one_body(normed())
    assert said(decided(stored("one", "w", "[-]", "[-]", "[dp]"), fold=buffers), buffers) == ""


# Norms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "training", "said"),
    [
        ((1, 3, 1), True, "micro-batches of one value for every channel of %bn in one"),
        ((1, 3, 1), False, ""),
        ((2, 3, 1), True, ""),
        ((1, 3, 2), True, ""),
    ],
)
def test_norms_of_one_value_have_no_statistics(shape: tuple[int, int, int], training: bool, said: str) -> None:
    """As torch has it, which does not run them, and whose targets lack them."""
    fold = one_body(normed(shape, training=training))
    decisions = decided(plan("one"), fold=fold)
    assert COMBINED["norms_of_one_value"](decisions, fold) == said
    refused = any("one value for every channel" in one.cause for one in TORCH_GLOO.refusals(decisions, fold))
    assert refused == bool(said)
    with pytest.raises(ValueError, match="more than 1 value per channel") if said else nullcontext():
        torch.nn.functional.batch_norm(torch.ones(shape), torch.zeros(3), torch.ones(3), training=training)


# Styles --------------------------------------------------------------------------------------------------------------


def compiled(fold: Fold, *plans: BodyPlan, mesh: str = "tp=2", **more: Any) -> str:
    return COMBINED["compiled_blocks"](decided(*plans, mesh=mesh, fold=fold, **{"style": "compiled"} | more), fold)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan(again=("norm1",), q="tp=n"), "block computed again beside tensor parallelism"),
        (plan(again=("norm1",), q="tp=n", norm1="tp=d1"), ""),
        (plan(again=("attn", "norm1"), q="tp=n", norm1="tp=d1"), "block computed again beside tensor parallelism"),
        (plan(again=("norm1",), norm1="tp=d0"), ""),
        (plan(q="tp=n"), ""),
    ],
    ids=lambda made: str(made.strategies) if isinstance(made, BodyPlan) else "",
)
def test_what_compiled_blocks_do_not_run_with(made: BodyPlan, said: str) -> None:
    assert compiled(FOLD, made) == (f"compiled blocks beside {said}" if said else "")
    assert compiled(FOLD, made, style="eager") == ""


def test_compiled_blocks_have_no_backward_pass_in_halves() -> None:
    assert compiled(FOLD, plan(), stages=2, schedule=ZB) == "compiled blocks beside schedule zb-h1"
    assert compiled(FOLD, plan(), stages=2, schedule=PLAIN) == ""
    assert compiled(FOLD, plan(), stages=1, schedule=ZB) == ""


@pytest.mark.parametrize(
    ("graph", "made", "said"),
    [
        (normed(), plan("one", bn="tp=n"), "statistics that copies share in one"),
        (normed(), plan("one", bn="tp=s0"), "statistics that copies share in one"),
        (normed(), plan("one", bn="tp=c"), ""),
        (normed(training=False), plan("one", bn="tp=n"), ""),
    ],
)
def test_statistics_of_copies_are_not_exchanged_in_compiled_blocks(graph: Graph, made: BodyPlan, said: str) -> None:
    """Of the model's own code, that is; printed blocks are compiled with them."""
    decisions = decided(made, mesh="tp=2", fold=one_body(graph), style="compiled")
    assert compiled(one_body(graph), made) == ""
    assert compiled_statistics(decisions, one_body(graph)) == (f"compiled blocks beside {said}" if said else "")
    assert compiled_statistics(replace(decisions, style="eager"), one_body(graph)) == ""


@pytest.mark.parametrize(
    ("made", "more", "said"),
    [
        (plan(again=("attn",)), {}, "blocks computed again"),
        (plan(), {"style": "compiled"}, "compiled blocks"),
        (plan(), {"stages": 2, "schedule": ZB}, "schedule zb-h1"),
        (plan(), {"schedule": ZB}, ""),
        (plan(), {"stages": 2, "schedule": PLAIN}, ""),
    ],
    ids=str,
)
def test_what_activations_do_not_wait_on_the_host_with(made: BodyPlan, more: dict[str, Any], said: str) -> None:
    decisions = decided(made, offload=Offload(activations=True), **more)
    assert COMBINED["waiting_blocks"](decisions, FOLD) == (f"activations on the host beside {said}" if said else "")
    assert COMBINED["waiting_blocks"](decided(made, **more), FOLD) == ""


@pytest.mark.parametrize(
    ("again", "more", "blocks", "said"),
    [
        ((), {}, 0, "block, which is not computed again"),
        (("attn",), {}, 0, "block, which is not computed again"),
        (AGAIN, {}, 0, ""),
        (AGAIN, {}, 2, "the first 2 blocks alone"),
        (AGAIN, {"stages": 2, "schedule": PLAIN}, 0, "a pipeline"),
    ],
    ids=str,
)
def test_where_only_what_blocks_read_that_are_computed_again_waits(
    again: tuple[str, ...], more: dict[str, Any], blocks: int, said: str
) -> None:
    decisions = decided(plan(again=again), offload=Offload(activations=True, blocks=blocks), **more)
    assert COMBINED["waiting_whole"](decisions, FOLD) == (f"activations on the host beside {said}" if said else "")
    assert COMBINED["waiting_whole"](decided(plan(again=again), **more), FOLD) == ""


def test_the_first_blocks_that_wait_are_all_of_one_kind() -> None:
    embed, block, head = FOLD.bodies
    first, layers, last = FOLD.segments
    halves = (
        Segment(("block",), layers.paths[:2], layers.entry, layers.wires),
        Segment(("other",), layers.paths[2:], layers.entry, layers.wires),
    )
    fold = Fold((embed, block, Body("other", block.graph), head), (first, *halves, last), FOLD.inputs, FOLD.outputs, 0)
    decisions = [decided(plan(), fold=fold, offload=Offload(True, bool(blocks), blocks)) for blocks in (0, 1)]
    assert [COMBINED["waiting_blocks"](one, fold) for one in decisions] == [
        "", "activations on the host beside 2 kinds of blocks",
    ]  # fmt: skip


def test_statistics_of_copies_are_not_emitted_beside_different_meshes() -> None:
    fold = one_body(normed())
    made = decided(plan("one", bn="dp=n"), stages=2, fold=fold)
    one, other = made.stages
    unlike = Decisions(made.plans, (one, StagePlan(1, 2, Mesh.parse("tp=2"), other.ranks, other.plans)))
    assert COMBINED["different_meshes"](unlike, fold) == "2 meshes in one pipeline"
    assert COMBINED["beside_different_meshes"](made, fold) == ""
    # On the second mesh the plan's axis is another: it is idle there, which is told first.
    assert COMBINED["beside_different_meshes"](unlike, fold) == "different meshes beside axis tp as -"
    same_axis = Decisions(made.plans, (one, StagePlan(1, 2, Mesh.parse("dp=1"), (2,), other.plans)))
    assert COMBINED["beside_different_meshes"](same_axis, fold) == (
        "different meshes beside statistics that copies share in one"
    )


# Names of uses -------------------------------------------------------------------------------------------------------


USES: list[tuple[dict[str, str], str]] = [
    ({}, "-"),
    ({"norm1": "a=d0"}, "dp"),
    ({"norm1": "a=-|P"}, "-"),
    ({"norm1": "a=d1"}, "cp"),
    ({"norm1": "a=d1", "attn": "a=sq+sk"}, "cp (ring)"),
    ({"attn": "a=sq+sk"}, "cp (ring)"),
    ({"norm1": "a=d1", "attn": "a=hk"}, "cp (ulysses)"),
    ({"norm1": "a=d1", "attn": "a=hk", "q": "a=d1"}, "cp (ulysses)"),
    ({"norm1": "a=d1", "attn": "a=hk", "q": "a=n"}, "tp+sp"),
    ({"norm1": "a=d1", "attn": "a=hk", "o": "a=k"}, "tp+sp"),
    ({"attn": "a=hk"}, "tp"),
    ({"norm1": "a=d1", "act": "a=d2"}, "tp+sp"),
    ({"norm1": "a=d0", "act": "a=d2"}, "tp"),
    ({"norm1": "a=d0 b=d1"}, "dp"),
    ({"norm1": "b=d0"}, "-"),
]


def test_the_use_of_an_axis_is_named_by_the_loops_that_it_splits() -> None:
    for strategies, name in USES:
        graph = FOLD.body["block"].graph
        assert name_of(plan(**strategies), graph, body_loops(FOLD)["block"], "a") == name


def test_loops_are_counted_most_first_then_by_name() -> None:
    made = plan(norm1="a=d1", norm2="a=d1", act="a=d2", q="a=d0", attn="b=b")
    found = loops_split(made, body_loops(FOLD)["block"], "a")
    assert list(found.items()) == [("s", 2), ("b", 1), ("ffn", 1)]


# Products that are cut apart -----------------------------------------------------------------------------------------

HALVES, THIRDS = Sections((8, 8)), Sections((4, 8, 4))


def fused(kind: str = "linear", *, sizes: tuple[int, ...] = (8, 8), reader: str = "split", own: bool = False) -> Graph:
    g = Builder()
    module = "up" if own else ""
    if kind == "linear":
        made = g.op("linear", g.input((2, 16), labels=("b", "")), g.param("w", (16, 16)), name="up", module="up")
    else:
        made = g.op("grouped_linear", g.input((4, 2, 16)), g.param("w", (4, 16, 16)), name="up", module="up")
    if reader == "split":
        g.output(*g.many("split", made, dim=-1, sizes=sizes, module=module))
    elif reader == "both":
        g.output(*g.many("split", made, dim=-1, sizes=sizes, module=module), g.op("relu", made))
    elif reader == "out":
        g.output(made, *g.many("split", made, dim=-1, sizes=sizes, module=module))
    return g.graph()


@pytest.mark.parametrize(
    ("graph", "layout", "apart"),
    [
        (fused(), HALVES, True),
        (fused(), CONTIGUOUS, False),
        (fused(), THIRDS, False),
        (fused(), Sections((4, 12)), False),
        (fused(own=True), HALVES, False),
        (fused(reader="both"), HALVES, False),
        (fused(reader="out"), HALVES, False),
        (fused(reader="none"), HALVES, True),
        (fused(sizes=(4, 8, 4)), THIRDS, True),
        (fused("grouped"), HALVES, True),
        (fused("grouped", own=True), HALVES, True),
        (fused("grouped", sizes=(4, 12)), Sections((4, 12)), False),
        (fused("grouped"), Sections((4, 4, 8)), False),
    ],
)
def test_products_are_cut_apart_where_all_that_reads_them_cuts_alike_elsewhere(
    graph: Graph, layout: Layout, apart: bool
) -> None:
    assert cut_apart(graph, graph.ops[0], layout) is apart
    assert not any(cut_apart(graph, op, layout) for op in graph.ops[1:])


# Capabilities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "more", "names"),
    [
        (Uneven((1, 3)), {"over": ("b", "s")}, ("shares",)),
        (Uneven((1, 3)), {"over": ("s", "b")}, ("uneven",)),
        (Uneven((1, 3)), {"over": ("b", "s"), "weight": True}, ("shares",)),
        (Sections((2, 2)), {"apart": True}, ("sections",)),
        (Sections((2, 2)), {"weight": True}, ("joined",)),
        (Nested(2, ZIGZAG), {"weight": True}, ("joined", "zigzag")),
        (Nested(2), {"apart": True}, ("nested", "contiguous")),
        (CONTIGUOUS, {"weight": True, "apart": True}, ("contiguous",)),
    ],
    ids=str,
)
def test_layouts_go_by_what_they_cut(layout: Layout, more: dict[str, Any], names: tuple[str, ...]) -> None:
    assert layout_names(layout, **more) == names


def test_a_step_is_executed_as_its_line_says() -> None:
    few = replace(ANY, moves=(Line("slice", "x"), Line("reduce_scatter", "x", "all_reduce")))
    assert [few.executed(move) for move in ("slice", "reduce_scatter", "mask")] == ["slice", "all_reduce", "mask"]
    with pytest.raises(CapabilityUnknown, match="it executes 'gossip'"):
        replace(ANY, moves=(Line("slice", "x", "gossip"),))


@pytest.mark.parametrize(
    ("keeps", "zero", "microbatches", "otherwise"),
    [
        (False, 1, 1, True),
        (False, 2, 1, True),
        (False, 0, 1, False),
        (False, 3, 1, False),
        (False, 1, 2, False),
        (True, 1, 1, False),
    ],
)
def test_who_cannot_keep_parameters_whole_shards_them_for_one_micro_batch(
    keeps: bool, zero: int, microbatches: int, otherwise: bool
) -> None:
    found = replace(ANY, keeps_whole=keeps).ran(zero, microbatches)
    assert found == ({"zero": 3, "regather": False} if otherwise else {})


def told(target: Capabilities, decisions: Decisions) -> list[tuple[str, str, str]]:
    """Every refusal: where, of what, and what to do."""
    begins = "target any cannot express "
    return [(one.place, one.cause.removeprefix(begins), one.fix) for one in target.refusals(decisions, FOLD)]


EVERYWHERE = template(FOLD, Degrees(dp=2))
ONE_LINE = (Line("all_gather", "x"),)


def test_refusals_say_where_what_and_what_to_do() -> None:
    gated, ring = plan(gate="tp=n:zigzag"), plan(norm1="cp=d1", attn="cp=sq+sk")
    shards = stored("block", "q.weight", WHOLE, CUT, CUT)
    all_made = tuple(value for op in FOLD.body["block"].graph.ops for value in op.results)
    cases: list[tuple[dict[str, Any], Decisions, list[tuple[str, str, str]]]] = [
        ({"layouts": ()}, decided(gated, mesh="tp=2"), [("block, %gate", "layout zigzag", "leave it out")]),
        (
            {"layouts": ANY.layouts[:1]},
            decided(gated, mesh="tp=2"),
            [("block, %gate", "layout zigzag", "use contiguous")],
        ),
        ({"attention": ()}, decided(ring, mesh="cp=2"), [("block, axis cp", "ring attention", "leave it out")]),
        ({"attention": ONE_LINE}, decided(ring, mesh="cp=2"), [("block, axis cp", "ring attention", "use all_gather")]),
        ({"attention": ONE_LINE}, decided(plan(norm1="cp=d1", attn="cp=sq"), mesh="cp=2"), []),
        (
            {"storage": ANY.storage[:1]},
            decided(shards),
            [("block, q.weight", f"{kind} as [dp, -]", "store them as [-, -]") for kind in ("grads", "optimizer")],
        ),
        ({"recompute": ()}, decided(plan()), [("block", "recompute none", "leave it out")]),
        ({"recompute": ANY.recompute[:1]}, decided(plan(again=("q",))), [("block", "recompute selective", "use none")]),
        ({"recompute": ANY.recompute[:1]}, decided(plan(again=all_made)), [("block", "recompute full", "use none")]),
        (
            {"recompute": ANY.recompute[:1]},
            decided(plan(again=all_made[1:])),
            [("block", "recompute selective", "use none")],
        ),
        ({"schedules": ()}, decided(plan(), stages=2, schedule=PLAIN), [("schedule", "1f1b", "leave it out")]),
        ({"schedules": ()}, decided(plan(), schedule=PLAIN), []),
        (
            {"schedules": (ScheduleLine("1f1b", "x", 2, True),)},
            decided(plan(), stages=2, schedule=Schedule("1f1b", 3)),
            [
                ("schedule", "3 micro-batches", "use at least 4"),
                ("schedule", "3 micro-batches", "use a multiple of 2"),
            ],
        ),
        (
            {"schedules": (ScheduleLine("1f1b", "x", 2, True),)},
            decided(plan(), stages=2, schedule=Schedule("1f1b", 4)),
            [],
        ),
        (
            {"offload": ANY.offload[:1]},
            decided(plan(), offload=Offload(True, True)),
            [("offload", "activations on the host", "keep them on the device")],
        ),
        (
            {"combined": ()},
            decided(plan(again=("norm1",), q="tp=n"), mesh="tp=2", style="compiled"),
            [
                (
                    "the plan",
                    "compiled blocks beside block computed again beside tensor parallelism",
                    "pin one of them otherwise with --fix",
                )
            ],
        ),
    ]
    for changed, decisions, expected in cases:
        assert told(replace(ANY, **changed), decisions) == expected, changed
        assert told(ANY, decisions) == []
