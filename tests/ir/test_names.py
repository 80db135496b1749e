"""The table of names: what `template` writes, `name_of` calls by the name it was written for."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.analysis.loops import body_loops
from meshwright.ir.errors import (
    BatchIndivisible,
    DegreeImpossible,
    ExpertsIndivisible,
    HeadsIndivisible,
    LayersIndivisible,
    MeshwrightError,
    RanksMismatch,
    SequenceIndivisible,
    WidthIndivisible,
)
from meshwright.ir.frontends.door import capture
from meshwright.ir.frontends.shape import Shape
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.sources.shape_toml import build
from meshwright.ir.names import TABLE, Degrees, check, cuts, even_cuts, name_of, template, uses
from meshwright.ir.program.lower import lower
from meshwright.ir.sharding.adjoint import Split
from tests.llama_block import Sizes, model

FOLD = model()
LOOPS = body_loops(FOLD)["block"]

NAMES: dict[str, tuple[Degrees, dict[str, str]]] = {
    "dp": (Degrees(dp=2), {"dp": "dp"}),
    "tp": (Degrees(tp=2), {"tp": "tp"}),
    "tp with sequence parallelism": (Degrees(tp=2, sequence_parallel=True), {"tp": "tp+sp"}),
    "cp by all-gather": (Degrees(cp=2), {"cp": "cp"}),
    "cp by rings": (Degrees(cp=2, context="ring"), {"cp": "cp (ring)"}),
    "cp by zigzag rings": (Degrees(cp=2, context="ring", zigzag=True), {"cp": "cp (ring)"}),
    "cp by Ulysses": (Degrees(cp=2, context="ulysses"), {"cp": "cp (ulysses)"}),
    "all three": (Degrees(dp=2, cp=2, tp=2), {"dp": "dp", "cp": "cp", "tp": "tp"}),
    "all three at their best": (
        Degrees(dp=2, cp=2, tp=2, sequence_parallel=True, context="ring", zero=3),
        {"dp": "dp", "cp": "cp (ring)", "tp": "tp+sp"},
    ),
    "dense layers under ep": (Degrees(dp=2, ep=2), {"ep": "dp"}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_invert_templates(name: str) -> None:
    degrees, expected = NAMES[name]
    plan, graph = template(FOLD, degrees).plan["block"], FOLD.body["block"].graph
    assert {axis: name_of(plan, graph, LOOPS, axis) for axis in expected} == expected


def test_every_degree_is_inverted() -> None:
    assert {axis for _, expected in NAMES.values() for axis in expected} == {degree.name for degree in TABLE}


def test_an_axis_that_does_nothing_has_no_name() -> None:
    assert name_of(template(FOLD, Degrees(dp=2)).plan["block"], FOLD.body["block"].graph, LOOPS, "tp") == "-"


def test_megatron_is_column_then_row() -> None:
    plan = template(FOLD, Degrees(tp=2)).plan["block"]
    split = {op: plan.strategy(op).of("tp") for op in ("q", "k", "v", "o", "gate", "up", "down", "attn", "norm1")}
    assert {op: choice.factors[0] if isinstance(choice, Split) else "-" for op, choice in split.items()} == {
        **dict.fromkeys(("q", "k", "v", "gate", "up"), "n"),
        **dict.fromkeys(("o", "down"), "k"),
        "attn": "hk",
        "norm1": "-",
    }


def test_sizes_of_one_leave_an_axis_out() -> None:
    assert str(Degrees(dp=2, tp=4).mesh()) == "dp=2 tp=4"
    assert str(Degrees().mesh()) == ""


@pytest.mark.parametrize(
    ("stages", "cuts"), [(1, [(0, 6)]), (2, [(0, 3), (3, 6)]), (4, [(0, 2), (2, 3), (3, 4), (4, 6)])]
)
def test_cuts_are_even(stages: int, cuts: list[tuple[int, int]]) -> None:
    assert list(even_cuts(FOLD, stages)) == cuts


@pytest.mark.parametrize(
    "made",
    [
        lambda: Degrees(context="gossip"),
        lambda: Degrees(zero=4),
        lambda: Degrees(recompute="some"),
        lambda: Degrees(recompute="selective:mlp"),
        lambda: Degrees(recompute="selective:"),
        lambda: template(FOLD, Degrees(pp=5)),
    ],
)
def test_degrees_that_do_not_exist_are_refused(made: object) -> None:
    assert callable(made)
    with pytest.raises(DegreeImpossible):
        made()


@pytest.mark.parametrize(
    ("zero", "sharded"),
    [(0, []), (1, ["optimizer"]), (2, ["grads", "optimizer"]), (3, ["params", "grads", "optimizer"])],
)
def test_zero_shards_one_thing_more_each(zero: int, sharded: list[str]) -> None:
    plan = template(FOLD, Degrees(dp=2, zero=zero)).plan["block"]
    for stored in plan.storage:
        kinds = ("params", "grads", "optimizer")
        assert [kind for kind in kinds if "dp" in getattr(stored, kind).axes] == sharded
    assert bool(plan.storage) == bool(zero)


ARRANGEMENTS: dict[str, tuple[Degrees, str]] = {
    "dense": (Degrees(dp=4, cp=2, tp=2), "dp=4 cp=2 tp=2"),
    "ep from dp": (Degrees(dp=16, ep=4), "dp=4 ep=4"),
    "tp kept inside": (Degrees(dp=4, tp=2, ep=4), "ep=4 tp=2"),
    "ep instead of tp": (Degrees(dp=4, tp=8, ep=8, etp=1), "dp=4 tp_ep=8"),
    "ep beyond tp": (Degrees(dp=16, tp=2, ep=32), "ep=16 tp_ep=2"),
    "ep short of tp": (Degrees(dp=2, tp=8, ep=4, etp=1), "dp=2 tp_dp=2 tp_ep=4"),
    "ep over cp first": (Degrees(dp=8, cp=2, tp=2, ep=4), "dp=4 ep=2 cp_ep=2 tp=2"),
    "etp between": (Degrees(dp=4, tp=4, ep=4, etp=2), "dp=2 ep=2 tp_ep=2 tp=2"),
    "hybrid shards": (Degrees(dp=16, tp=2, shard=8), "dp=2 dp_shard=8 tp=2"),
    "hybrid shards within cp": (Degrees(dp=2, cp=4, shard=2), "dp=2 cp=2 cp_shard=2"),
    "hybrid shards over experts": (Degrees(dp=16, ep=2, shard=8, zero=1), "dp=2 dp_shard=4 ep=2"),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_a_stage_is_arranged_twice(name: str) -> None:
    """Outside and inside the experts the axes multiply to what was asked for, each arrangement with its own."""
    degrees, mesh = ARRANGEMENTS[name]
    assert str(degrees.mesh()) == mesh
    for side, sizes in (
        ("outside", {"dp": degrees.dp, "cp": degrees.cp, "tp": degrees.tp}),
        ("inside", {"ep": degrees.ep, "tp": degrees.expert_tp}),
    ):
        for role, size in sizes.items():
            assert prod(use.size for use in uses(degrees) if getattr(use, side) == role) == size
    shards = prod(use.size for use in uses(degrees) if use.stores and use.outside != "tp")
    assert shards == (degrees.shard or degrees.dp * degrees.cp)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Degrees(ep=2),
        lambda: Degrees(dp=9, tp=2, ep=3, etp=1),
        lambda: Degrees(dp=4, shard=3),
        lambda: Degrees(dp=6, cp=2, shard=3),
        lambda: Degrees(dp=0),
        lambda: Degrees(pp=2, stage_blocks=(4,)),
        lambda: Degrees(split="somehow"),
    ],
)
def test_arrangements_that_do_not_nest_are_refused(made: object) -> None:
    assert callable(made)
    with pytest.raises(DegreeImpossible):
        made()


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(pp=2, vp=2), [(0, 2), (2, 3), (3, 4), (4, 6)]),
        (Degrees(pp=3, split="ends"), [(0, 2), (2, 4), (4, 6)]),
        (Degrees(pp=3, vp=2, split="ends"), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]),
        (Degrees(pp=3, split="spread"), [(0, 2), (2, 3), (3, 6)]),
        (Degrees(pp=2, stage_blocks=(3, 1)), [(0, 4), (4, 6)]),
        (Degrees(pp=2, stage_blocks=(4, 0)), [(0, 5), (5, 6)]),
    ],
)
def test_layers_are_cut_as_asked(degrees: Degrees, expected: list[tuple[int, int]]) -> None:
    """Calls: embedding, four layers, head."""
    assert list(cuts(FOLD, degrees)) == expected


@pytest.mark.parametrize(
    ("degrees", "would_do"),
    [
        (Degrees(pp=3), "split='ends'"),
        (Degrees(pp=3), "one of 1, 2, 4;"),
        (Degrees(pp=4, split="ends"), "one of 1, 2, 4;"),
        (Degrees(pp=2, stage_blocks=(3, 2)), "add up to 4"),
        (Degrees(pp=2, stage_blocks=(5, -1)), "add up to 4"),
        (Degrees(pp=2, stage_blocks=(-1, 5)), "add up to 4"),
        (Degrees(pp=3, stage_blocks=(4, 0, 0)), "give it a layer"),
    ],
)
def test_layers_that_do_not_divide_are_refused_with_what_would_do(degrees: Degrees, would_do: str) -> None:
    with pytest.raises(LayersIndivisible) as refusal:
        template(FOLD, degrees)
    assert would_do in refusal.value.fix


def test_virtual_stages_share_their_groups_ranks() -> None:
    stages = template(FOLD, Degrees(dp=2, pp=2, vp=2, schedule="1f1b", microbatches=2)).stages
    assert [stage.ranks for stage in stages] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    folded = template(FOLD, Degrees(dp=2, pp=2, vp=2, schedule="zbv", microbatches=2)).stages
    assert [stage.ranks for stage in folded] == [(0, 1), (2, 3), (2, 3), (0, 1)]


REFUSED: dict[str, tuple[Degrees, int, int, type[MeshwrightError], str]] = {
    "ranks": (Degrees(dp=3, tp=2), 8, 4, RanksMismatch, "multiply to 6, the cluster has 8 ranks"),
    "ranks that no dp makes": (Degrees(tp=3), 8, 4, RanksMismatch, "tp * cp * pp a divisor of 8"),
    "heads": (Degrees(tp=8), 8, 4, HeadsIndivisible, "one of 1, 2, 4"),
    "heads of ulysses": (Degrees(tp=2, cp=4, context="ulysses"), 8, 4, HeadsIndivisible, "tp * cp = 8"),
    "experts": (Degrees(dp=2, ep=2), 2, 4, ExpertsIndivisible, "no experts"),
    "sequence": (Degrees(cp=16, zigzag=True), 16, 4, SequenceIndivisible, "a sequence of 32"),
    "layers": (Degrees(pp=3), 3, 4, LayersIndivisible, "one of 1, 2, 4"),
    "a micro-batch": (Degrees(dp=8), 8, 8, BatchIndivisible, "one of 1, 2, 4"),
    "the batch": (Degrees(dp=2), 2, 6, BatchIndivisible, "use 4 or 8 sequences"),
    "micro-batches": (Degrees(dp=2), 2, 12, BatchIndivisible, "use 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_with_what_would_do(name: str) -> None:
    degrees, ranks, batch, kind, says = REFUSED[name]
    with pytest.raises(kind) as refusal:
        check(degrees, FOLD, ranks, batch)
    assert says in str(refusal.value)


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(WidthIndivisible, match="30 wide"):
        check(Degrees(tp=4), model(Sizes(ffn=30)), 4, 4)


class Some(nn.Module):
    """Some blocks have one feed-forward network in common, and not in turns: what is before all blocks hands it on."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.table, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        have = (False, True, False, False, False, True, False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), *[shared] * one) for one in have)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        made: Tensor = self.head(x)
        return made


def test_a_width_counts_where_it_is_read() -> None:
    """What hands a parameter on and does not read it has no loop of its width."""
    hooks = Hooks(
        example_inputs=lambda batch, seq: {"tokens": torch.zeros(batch, seq, dtype=torch.int64)},
        loss=lambda outputs, batch: F.cross_entropy(outputs.flatten(0, 1), batch["tokens"].flatten()),
    )
    fold = capture(TorchSource(Some(), hooks, "some"), batch=4, seq=8).fold
    assert any(param.value in fold.body["embed"].graph.outputs for param in fold.body["embed"].graph.params)
    check(Degrees(tp=4), fold, 4, 4)


class InWindows(nn.Module):
    """Tokens are mixed four by four."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(10, 6), nn.Linear(4, 4), nn.Linear(6, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        windows = x.unflatten(1, (x.shape[1] // 4, 4))
        return self.out(self.mix(windows.transpose(2, 3)).transpose(2, 3).flatten(1, 2))


def test_a_sequence_in_windows_is_cut_between_them() -> None:
    hooks = Hooks(
        example_inputs=lambda batch, seq: {"tokens": torch.zeros(batch, seq, dtype=torch.int64)},
        loss=lambda outputs, batch: F.cross_entropy(outputs.flatten(0, 1), batch["tokens"].flatten()),
        dims={"tokens": ("b", "s")},
    )
    fold = capture(TorchSource(InWindows(), hooks, "windows"), batch=4, seq=16).fold
    check(Degrees(cp=4), fold, 4, 4)
    ((name, found),) = body_loops(fold).items()
    plan = template(fold, Degrees(cp=4)).plan[name]
    assert {loop.name: loop.size for loop in found.loops if loop.label == "s"} == {"s.0": 4, "s.1": 4}
    assert name_of(plan, fold.body[name].graph, found, "cp") == "cp"
    assert all(plan.strategy(op.name).choices for op in fold.body[name].graph.ops)
    with pytest.raises(SequenceIndivisible) as refused:
        check(Degrees(cp=8), fold, 8, 4)
    assert refused.value.cause == "4 runs of 4 tokens for 8 (cp) = 8"
    assert refused.value.fix == "use a sequence of 32, or degrees whose product divides 4"


def test_good_input_passes() -> None:
    check(Degrees(dp=2, tp=2, pp=2, microbatches=3), FOLD, 8, 12)


def test_pins_leave_the_rest_to_dp() -> None:
    made = Degrees.of(ranks=64, global_batch=96, mbs=2, tp=4, pp=2)
    assert (made.dp, made.microbatches) == (8, 6)
    with pytest.raises(RanksMismatch, match="multiply to 96, the cluster has 128 ranks"):
        Degrees.of(ranks=128, global_batch=96, tp=8, pp=4, dp=3)
    with pytest.raises(BatchIndivisible):
        Degrees.of(ranks=64, global_batch=100, tp=4)


def test_body_plans_are_shared_between_pipelines() -> None:
    """Plans of one body are one object for every pipeline, schedule and number of micro-batches."""
    one = template(FOLD, Degrees(dp=2, tp=2, zero=1))
    other = template(FOLD, Degrees(dp=2, tp=2, zero=1, pp=2, vp=2, schedule="1f1b", microbatches=8))
    assert all(a is b for a, b in zip(one.plans, other.plans, strict=True))


def test_selective_recomputation_by_operators_keeps_every_other_product() -> None:
    """q and v, gate and down, counted in running order; and attention."""
    graph = FOLD.body["block"].graph
    again = template(FOLD, Degrees(recompute="selective_op")).plan["block"].recompute
    kept = {op.name for op in graph.ops if op.name not in again}
    assert kept == {"q", "v", "gate", "down", "attn"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("none", set[str]()),
        ("selective", {"attn"}),
        ("selective:layernorm", {"norm1", "norm2"}),
        ("selective:core_attn+layernorm", {"attn", "norm1", "norm2"}),
        ("selective:moe_act+mla_up_proj", set[str]()),
    ],
)
def test_selective_recomputation_takes_the_parts_it_names(kind: str, values: set[str]) -> None:
    assert set(template(FOLD, Degrees(recompute=kind)).plan["block"].recompute) == values


def test_heads_made_out_of_latents_are_computed_again() -> None:
    """Norms are one operator here, so that the widths of latents are sorts of hidden ones."""
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    shape = Shape(layers=2, hidden=64, ffn_hidden=128, heads=4, vocab=128, **latent)
    fold = capture(build(shape, "test"), batch=2, seq=16).fold
    (block,) = (name for segment in fold.segments if not segment.glue for name in segment.period)
    again = set(template(fold, Degrees(recompute="selective:mla_up_proj")).plan[block].recompute)
    linears = [op for op in fold.body[block].graph.ops if op.kind == "linear"]
    by_path = {op.operands[1].removesuffix(".weight").removeprefix("attention."): op.results[0] for op in linears}
    assert {by_path["q_proj.2"], by_path["kv_up"]} <= again
    assert not {by_path["q_proj.0"], by_path["kv_down"], by_path["o_proj"], "attention"} & again


def test_the_first_layers_of_every_stage_have_a_plan_of_their_own() -> None:
    """Stages of three and one layers, two recomputed in each: kept values show which."""
    degrees = Degrees(pp=2, stage_blocks=(3, 1), recompute="full_layers:2", microbatches=2)
    program = lower(FOLD, template(FOLD, degrees))
    runs = [[(run.programs, run.repeats) for run in stage.runs] for stage in program.stages]
    assert runs == [
        [(("embed",), 1), (("block.first",), 2), (("block",), 1)],
        [(("block.first",), 1), (("head",), 1)],
    ]
    kept = {name: sum(one.nbytes for one in program.body(name).kept) for name in ("block", "block.first")}
    assert kept["block.first"] < kept["block"]


def test_first_layers_of_several_kinds_are_refused() -> None:
    other = replace(FOLD.body["block"], name="other")
    first, layers, last = FOLD.segments
    halves = [replace(layers, paths=layers.paths[:2]), replace(layers, paths=layers.paths[2:], period=("other",))]
    fold = replace(FOLD, bodies=(*FOLD.bodies, other), segments=(first, *halves, last))
    with pytest.raises(DegreeImpossible, match="2 kinds: block, other"):
        template(fold, Degrees(recompute="full_layers:1"))


SEQUENCES = "or degrees whose product divides 16"
WHOLE: tuple[tuple[Degrees, int, int, tuple[str, str, str] | None], ...] = (
    (
        Degrees(tp=8),
        8,
        4,
        ("tp", "4 heads (key-value heads where queries share them) for tp = 8", "use one of 1, 2, 4"),
    ),
    (
        Degrees(tp=2, cp=4, context="ulysses"),
        8,
        4,
        ("tp * cp", "4 heads (key-value heads where queries share them) for tp * cp = 8", "use one of 1, 2, 4"),
    ),
    (Degrees(tp=2, cp=2, context="ulysses"), 4, 4, None),
    (Degrees(tp=4, cp=4), 16, 4, None),
    (Degrees(dp=2, ep=2), 2, 4, ("ep", "ep=2, and the model has no experts", "use ep=1")),
    (
        Degrees(cp=16, zigzag=True),
        16,
        4,
        ("sequence", "16 tokens for 16 (cp) * 2 (2, for zigzag) = 32", f"use a sequence of 32, {SEQUENCES}"),
    ),
    (Degrees(cp=16), 16, 4, None),
    (Degrees(zigzag=True), 1, 4, None),
    (Degrees(cp=2, tp=4, sequence_parallel=True, zigzag=True), 8, 4, None),
    (
        Degrees(cp=8, tp=4, sequence_parallel=True),
        32,
        4,
        (
            "sequence",
            "16 tokens for 8 (cp) * 4 (tp, for sequence parallelism) = 32",
            f"use a sequence of 32, {SEQUENCES}",
        ),
    ),
    (
        Degrees(cp=3),
        3,
        4,
        ("sequence", "16 tokens for 3 (cp) = 3", f"use a sequence of 18, {SEQUENCES}"),
    ),
    (
        Degrees(dp=8),
        8,
        8,
        (
            "batch",
            "4 sequences of one micro-batch for dp * mbs = 8 * 1 = 8",
            "use 8 sequences, or a dp * mbs of one of 1, 2, 4",
        ),
    ),
    (
        Degrees(dp=2),
        2,
        12,
        ("micro-batches", "1 micro-batches of 4 sequences are not 12", "use 3"),
    ),
    (
        Degrees(pp=2, split="spread", stage_blocks=(1, 3), offload="activations:4"),
        2,
        4,
        (
            "offload",
            "activations of 4 blocks, and no stage has more than 3",
            "use activations:3 at most, or activations for all",
        ),
    ),
    (Degrees(pp=2, stage_blocks=(1, 3), offload="activations:3"), 2, 4, None),
)


def test_what_a_model_cannot_have_is_refused_in_full() -> None:
    """Of four layers with four heads of keys, sixteen tokens, and four samples at a time."""
    for degrees, ranks, batch, said in WHOLE:
        if said is None:
            check(degrees, FOLD, ranks, batch)
            continue
        with pytest.raises(MeshwrightError) as refused:
            check(degrees, FOLD, ranks, batch)
        assert (refused.value.place, refused.value.cause, refused.value.fix) == said


NESTED = "runs of 2 and of 3 ranks do not nest (tp=2 cp=1 dp=6 outside the experts, etp=1 ep=3 inside, storage over {})"
IMPOSSIBLE: tuple[tuple[dict[str, object], tuple[str, str, str]], ...] = (
    ({"dp": 0}, ("dp", "dp=0", "use at least 1")),
    ({"context": "star"}, ("context", "context='star'", "use one of all_gather, ring, ulysses")),
    ({"split": "odd"}, ("split", "split='odd'", "use one of even, ends, spread")),
    ({"zero": 4}, ("zero", "ZeRO-4", "use 0, 1, 2 or 3")),
    (
        {"pp": 2, "vp": 2, "stage_blocks": (1, 2)},
        ("stage_blocks", "2 numbers of layers for pp * vp = 4 stages", "give 4"),
    ),
    (
        {"dp": 2, "tp": 3, "ep": 4, "etp": 3},
        (
            "ep",
            "ep * etp = 4 * 3 does not divide dp * cp * tp = 6",
            "use an ep * etp that divides 6, the ranks of one pipeline stage",
        ),
    ),
    (
        {"dp": 2, "cp": 3, "shard": 4},
        ("shard", "storage over 4 of dp * cp = 6 copies", "use a divisor of 6"),
    ),
    (
        {"dp": 6, "tp": 2, "ep": 3, "etp": 1},
        ("ep", NESTED.format("all"), "use degrees that divide one another, powers of two for instance"),
    ),
    (
        {"dp": 6, "tp": 2, "ep": 3, "etp": 1, "shard": 6},
        ("ep", NESTED.format("6"), "use degrees that divide one another, powers of two for instance"),
    ),
)


def test_degrees_that_cannot_be_are_refused_in_full() -> None:
    for words, said in IMPOSSIBLE:
        with pytest.raises(DegreeImpossible) as refused:
            Degrees(**words)  # type: ignore[arg-type]
        assert (refused.value.place, refused.value.cause, refused.value.fix) == said
    numbers = {"full_layers:12": 12, "full_layers:1": 1, "full": 0}
    assert {kind: Degrees(recompute=kind).first_layers for kind in numbers} == numbers
    for kind in ("full_layers:", "full_layers:x", "selective:", "selective:core_attn+x", "full:core_attn"):
        with pytest.raises(DegreeImpossible) as refused:
            Degrees(recompute=kind)
        assert (refused.value.place, refused.value.cause) == ("recompute", f"recompute={kind!r}")
        assert refused.value.fix.startswith("use one of none, full, ")
        assert ", full_layers:N, or selective: and some of core_attn+" in refused.value.fix
