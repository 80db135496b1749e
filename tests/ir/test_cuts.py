from dataclasses import replace

import pytest

from meshwright.ir.analysis.cuts import Cut, cuts
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, FromSegment, Segment, unfold
from meshwright.ir.graph.graph import Input, Type
from tests.build import Builder
from tests.models import (
    LABELS,
    TOKENS,
    B,
    H,
    S,
    embed_body,
    glue,
    head_body,
    hidden,
    layer_body,
    llama_fold,
    loss,
    norm,
    stack,
)

X_BYTES = B * S * H * 4


def boundaries(fold: Fold) -> list[Cut]:
    return [cut for cut in cuts(fold) if cut.op is None]


def summary(cut: Cut) -> tuple[int, int, int, int, list[str]]:
    return cut.segment, cut.position, cut.first, cut.count, [value.value for value in cut.live]


# A plain stack.


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 126])
def test_a_stack_is_one_cut_with_a_count(layers: int) -> None:
    assert [summary(cut) for cut in boundaries(llama_fold(layers))] == [
        (0, 0, 0, 1, ["embedding"]),
        (1, 0, 0, layers, ["add_1"]),
    ]


def test_what_crosses_a_layer_boundary() -> None:
    cut = boundaries(llama_fold())[1]
    assert cut.forward_bytes == cut.backward_bytes == X_BYTES
    assert cut.skips == cut.recomputed == cut.shared == ()
    assert cut.inputs == ("labels",)
    assert str(cut) == f"after 1[0] x 5: 1[0].%add_1: f32[{B}, {S}, {H}] grad"


def test_inside_the_head_a_cut_follows_every_operator() -> None:
    inner = [cut for cut in cuts(llama_fold()) if cut.op is not None]
    assert [(cut.segment, cut.op, cut.live[0].value) for cut in inner] == [
        (2, 0, "rms_norm"),
        (2, 1, "linear"),
        (2, 2, "view"),
        (2, 3, "view"),
    ]


def test_a_frozen_part_receives_no_gradient() -> None:
    fold = llama_fold()
    graph = fold.bodies[0].graph
    frozen = replace(graph, params=tuple(replace(param, requires_grad=False) for param in graph.params))
    fold = replace(fold, bodies=(replace(fold.bodies[0], graph=frozen), *fold.bodies[1:]))
    first, second = boundaries(fold)
    assert (first.forward_bytes, first.backward_bytes) == (X_BYTES, 0)
    assert second.backward_bytes == X_BYTES


def test_tied_weights_are_shared_across_every_cut_between() -> None:
    fold = llama_fold()
    fold = replace(fold, bodies=(*fold.bodies[:2], head_body("embed.weight")))
    assert [cut.shared for cut in boundaries(fold)] == [("embed.weight",)] * 2


# A period of two, with a value that only the next repeat reads.


def test_positions_of_a_period_are_told_apart() -> None:
    fold = llama_fold()
    period = Segment(
        ("layer", "other"),
        tuple(f"layers.{index}" for index in range(20)),
        (FromPrevious(0),),
        ((FromPrevious(0),),) * 2,
    )
    fold = replace(
        fold,
        bodies=(*fold.bodies, layer_body("other")),
        segments=(fold.segments[0], period, fold.segments[2]),
    )
    assert [summary(cut)[:4] for cut in boundaries(fold)] == [(0, 0, 0, 1), (1, 0, 0, 10), (1, 1, 0, 10)]


def carrying_body() -> Body:
    """Takes x and the x before it, hands on its result and its x."""
    g = Builder()
    x, before = hidden(g), hidden(g, "before")
    g.output(g.op("add", norm(g, x, "norm"), before), x)
    return Body("carry", g.graph())


def test_values_of_the_block_before_have_an_age() -> None:
    fold = Fold(
        (embed_body(), carrying_body(), head_body()),
        (
            glue("embed", FromInput("tokens")),
            stack(
                "carry",
                "layers",
                9,
                FromPrevious(0),
                FromPrevious(1),
                entry=(FromSegment(0, 0, 0), FromSegment(0, 0, 0)),
            ),
            glue("head", FromPrevious(0), FromInput("labels")),
        ),
        (TOKENS, LABELS),
        (FromPrevious(0),),
        loss=0,
    )
    found = [(cut.segment, cut.first, cut.count, [(v.segment, v.age) for v in cut.live]) for cut in boundaries(fold)]
    assert found == [
        (0, 0, 1, [(0, 0)]),
        (1, 0, 1, [(0, None), (1, 0)]),
        (1, 1, 7, [(1, 1), (1, 0)]),
        (1, 8, 1, [(1, 0)]),
    ]


# Encoder and decoder.


def test_the_encoder_is_relayed_through_the_decoder() -> None:
    memory = FromSegment(1, 0, 0)
    fold = Fold(
        (embed_body(), layer_body("encoder"), embed_body("embed2"), layer_body("decoder", memory=True), head_body()),
        (
            glue("embed", FromInput("tokens")),
            stack("encoder", "encoder", 3, FromPrevious(0)),
            glue("embed2", FromInput("tokens")),
            stack("decoder", "decoder", 6, FromPrevious(0), memory),
            glue("head", FromPrevious(0), FromInput("labels")),
        ),
        (TOKENS, LABELS),
        (FromPrevious(0),),
        loss=0,
    )
    found = boundaries(fold)
    assert [(cut.segment, cut.first, cut.count, len(cut.live), len(cut.skips)) for cut in found] == [
        (0, 0, 1, 1, 0),
        (1, 0, 3, 1, 0),
        (2, 0, 1, 2, 1),
        (3, 0, 5, 2, 1),
        (3, 5, 1, 1, 0),
    ]
    crossing = found[3].skips[0]
    assert (crossing.segment, crossing.position, crossing.gradient, crossing.age) == (1, 0, True, None)


# Tables.


def tables_body() -> Body:
    """Positions to a rotary table, from integers; beside it a table that would cost a product to compute again."""
    g = Builder()
    position = g.input((S,), name="position", labels=("s",), dtype="i64")
    frequency = g.buffer("frequency", (1, H))
    column = g.op("view", g.op("cast", position, dtype="f32"), shape=(S, 1))
    angle = g.op("mul", column, frequency)
    dear = g.op("matmul", angle, g.buffer("square", (H, H)))
    for _ in range(30):
        dear = g.op("matmul", dear, g.buffer("square", (H, H)))
    g.output(g.op("cos", angle), dear)
    return Body("tables", g.graph())


def rotated_body() -> Body:
    g = Builder()
    x = hidden(g)
    table, dear = (g.input((S, H), name=name) for name in ("table", "dear"))
    g.output(g.op("add", g.op("mul", norm(g, x, "norm"), table), dear))
    return Body("rotated", g.graph())


def test_cheap_tables_are_recomputed_and_dear_ones_sent() -> None:
    fold = Fold(
        (tables_body(), embed_body(), rotated_body(), head_body()),
        (
            glue("tables", FromInput("position")),
            glue("embed", FromInput("tokens")),
            stack("rotated", "layers", 4, FromPrevious(0), FromSegment(0, 0, 0), FromSegment(0, 0, 1)),
            glue("head", FromPrevious(0), FromInput("labels")),
        ),
        (TOKENS, LABELS, (Input("position", ("s",)), Type((S,), "i64"))),
        (FromPrevious(0),),
        loss=0,
    )
    cut = boundaries(fold)[2]
    assert (cut.segment, cut.first, cut.count) == (2, 0, 3)
    assert [value.value for value in cut.recomputed] == ["cos"]
    assert [(value.value, value.gradient) for value in cut.live] == [("matmul_30", False), ("add", True)]
    assert [value.value for value in cut.skips] == ["matmul_30"]
    assert cut.inputs == ("labels", "position")


# Skips.


def narrowing(name: str, width: int, factor: int) -> Body:
    g = Builder()
    x = g.input((B, width), labels=("b", ""), requires_grad=True)
    g.output(g.op("relu", g.op("linear", x, g.param(f"{name}.weight", (width // factor, width)))))
    return Body(name, g.graph())


def widening(name: str, width: int) -> Body:
    g = Builder()
    x = g.input((B, width), labels=("b", ""), requires_grad=True)
    skip = g.input((B, 2 * width), name="skip", labels=("b", ""), requires_grad=True)
    y = g.op("linear", x, g.param(f"{name}.weight", (2 * width, width)))
    g.output(g.op("add", y, skip))
    return Body(name, g.graph())


def test_skips_cross_several_cuts() -> None:
    """As in a U-Net: down by 32, 16, 8, up again, each way up reading what its counterpart left."""
    g = Builder()
    x = g.input((B, 32), labels=("b", ""), requires_grad=True)
    g.loss(g.op("mean", x))
    fold = Fold(
        (
            narrowing("stem", 32, 1),
            narrowing("down1", 32, 2),
            narrowing("down2", 16, 2),
            widening("up2", 8),
            widening("up1", 16),
            Body("loss", g.graph()),
        ),
        (
            glue("stem", FromInput("image")),
            glue("down1", FromPrevious(0)),
            glue("down2", FromPrevious(0)),
            glue("up2", FromPrevious(0), FromSegment(1, 0, 0)),
            glue("up1", FromPrevious(0), FromSegment(0, 0, 0)),
            glue("loss", FromPrevious(0)),
        ),
        ((Input("image", ("b", "")), Type((B, 32), "f32")),),
        (FromPrevious(0),),
        loss=0,
    )
    found = boundaries(fold)
    assert [[(v.segment, v.type.shape[1]) for v in cut.live] for cut in found] == [
        [(0, 32)],
        [(0, 32), (1, 16)],
        [(0, 32), (1, 16), (2, 8)],
        [(0, 32), (3, 16)],
        [(4, 32)],
    ]
    assert [[v.segment for v in cut.skips] for cut in found] == [[], [0], [0, 1], [0], []]
    assert not any(cut.segment == 3 and cut.op is not None for cut in cuts(fold)), "three values are alive there"
    assert any(cut.segment == 3 and cut.op is not None for cut in cuts(fold, few=3))


# Laws.


@pytest.mark.parametrize("layers", [1, 3, 4, 9])
def test_counts_add_up(layers: int) -> None:
    fold = llama_fold(layers)
    assert sum(cut.count for cut in boundaries(fold)) == sum(segment.calls for segment in fold.segments) - 1


def test_a_loss_of_a_head_that_is_all_there_is() -> None:
    g = Builder()
    x = hidden(g)
    labels = g.input((B, S), name="labels", labels=("b", "s"), dtype="i64")
    g.output(loss(g, x, labels))
    fold = Fold(
        (Body("head", g.graph()),),
        (glue("head", FromInput("x"), FromInput("labels")),),
        ((Input("x", requires_grad=True), Type((B, S, H), "f32")), LABELS),
        (FromPrevious(0),),
        loss=0,
    )
    assert boundaries(fold) == []


@pytest.mark.parametrize("layers", [1, 2])
def test_what_is_alive_is_what_a_look_at_all_values_finds(layers: int) -> None:
    """Computed up to the operator and read after it; of a fold so short that `cuts` reads it off as it is."""
    fold = llama_fold(layers)
    graph, start, looked = unfold(fold), 0, 0
    born = {value: at for at, op in enumerate(graph.ops) for value in op.results}
    read = {value: places[-1][0] for value, places in graph.readers.items() if places}
    listed = {(cut.segment, cut.position, cut.first, cut.op): cut for cut in cuts(fold)}
    for call in fold.calls():
        stop = start + len(call.body.graph.ops)
        for at in range(start, stop):
            inside = None if at == stop - 1 else at - start
            cut = listed.get((call.segment, call.position, 0, inside))
            if cut is not None and cut.count == 1:
                alive = [graph.types[value] for value in born if born[value] <= at < read.get(value, -1)]
                assert sorted(map(str, alive)) == sorted(str(one.type) for one in (*cut.live, *cut.recomputed))
                looked += 1
        start = stop
    assert looked >= 5
