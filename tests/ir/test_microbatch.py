import pytest

from meshwright.ir.analysis.microbatch import Blocker, microbatch
from meshwright.ir.graph.graph import Graph
from tests.build import Builder
from tests.models import B, F, H, S, llama

N = 4


def reasons(graph: Graph) -> list[tuple[str, str]]:
    return [(blocker.kind, blocker.reason) for blocker in microbatch(graph).blockers]


def samples(g: Builder, name: str = "x") -> str:
    return g.input((N, H), name=name, labels=("b", ""), requires_grad=True)


def ends_in_mean(g: Builder, value: str) -> Graph:
    g.loss(g.op("mean", value))
    return g.graph()


def test_a_decoder_with_mean_cross_entropy_is_legal() -> None:
    assert microbatch(llama()).legal


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_that_add_up_are_legal(reduction: str) -> None:
    g = Builder()
    g.loss(g.op("mse_loss", samples(g), samples(g, "y"), reduction=reduction))
    assert microbatch(g.graph()).legal


def test_a_weighted_sum_of_averages_is_legal() -> None:
    g = Builder()
    x = samples(g)
    decay = g.op("sum", g.op("mul", w := g.param("w", (H,)), w))
    total = g.op("add", g.op("mean", x), g.op("mul", g.op("mean", g.op("relu", x)), scalar=0.1))
    g.loss(g.op("add", g.op("add", total, decay), scalar=1.0))
    assert microbatch(g.graph()).legal


def test_a_total_divided_by_the_count_of_valid_tokens_is_legal() -> None:
    g = Builder()
    x = samples(g)
    mask = g.input((N, H), name="mask", labels=("b", ""), dtype="bool")
    count = g.op("clamp", g.op("sum", g.op("cast", mask, dtype="f32")), min=1)
    g.loss(g.op("div", g.op("sum", g.op("mul", x, g.op("cast", mask, dtype="f32"))), count))
    assert reasons(g.graph()) == []


def test_batch_norm_in_training_blocks() -> None:
    g = Builder()
    x = g.input((N, 3, 8, 8), labels=("b", "", "", ""))
    w, b = g.param("bn.weight", (3,)), g.param("bn.bias", (3,))
    mean, var = g.buffer("bn.mean", (3,)), g.buffer("bn.var", (3,))
    y, new_mean, new_var = g.many("batch_norm", x, w, b, mean, var, training=True, module="bn", source="unet.py:7")
    g.update("bn.mean", new_mean, "mean")
    g.update("bn.var", new_var, "mean")
    g.loss(g.op("mean", y))
    found = microbatch(g.graph())
    assert not found.legal
    assert found.blockers == (
        Blocker("batch_norm", "batch_norm", "bn", "unet.py:7", "normalises by statistics of the whole batch"),
    )
    assert str(found.blockers[0]) == (
        "%batch_norm = batch_norm @bn <unet.py:7>: it normalises by statistics of the whole batch"
    )


def test_every_batch_norm_is_named() -> None:
    g = Builder()
    x = g.input((N, 3, 8, 8), labels=("b", "", "", ""))
    for index in range(2):
        names = [f"bn{index}.{name}" for name in ("weight", "bias", "mean", "var")]
        operands = [g.param(name, (3,)) for name in names[:2]] + [g.buffer(name, (3,)) for name in names[2:]]
        x, mean, _ = g.many("batch_norm", x, *operands, training=True, module=f"bn{index}")
        g.update(names[2], mean, "mean")
    assert [blocker.module for blocker in microbatch(ends_in_mean(g, x)).blockers] == ["bn0", "bn1"]


def test_group_norm_does_not_block() -> None:
    g = Builder()
    x = g.input((N, 4, 8, 8), labels=("b", "", "", ""))
    assert microbatch(ends_in_mean(g, g.op("group_norm", x, g.param("w", (4,)), g.param("b", (4,)), groups=2))).legal


def test_samples_compared_with_each_other_block() -> None:
    g = Builder()
    text, image = samples(g, "text"), samples(g, "image")
    scores = g.op("linear", text, image)
    labels = g.input((N,), name="labels", dtype="i64")
    g.loss(g.op("cross_entropy", scores, labels))
    assert reasons(g.graph())[0] == ("linear", "compares samples of the batch with each other")


def routed(capacity: int, **attrs: int | bool) -> Graph:
    g = Builder()
    x = g.input((B, S, H), labels=("b", "s", ""), requires_grad=True)
    idx = g.input((B * S, 2), name="idx", labels=(), dtype="i64")
    weights = g.input((B * S, 2), name="weights")
    rows = g.op("dispatch", g.op("view", x, shape=(B * S, H)), idx, num_experts=4, capacity=capacity, **attrs)
    up = g.op("grouped_linear", rows, g.param("up", (4, F, H)))
    down = g.op("grouped_linear", up, g.param("down", (4, H, F)))
    return ends_in_mean(g, g.op("combine", down, idx, weights, num_experts=4, capacity=capacity, **attrs))


def test_capacity_over_the_batch_blocks() -> None:
    assert reasons(routed(8)) == [
        ("dispatch", "routes to experts with a capacity that is counted over the whole batch")
    ]


@pytest.mark.parametrize("graph", [routed(8, dropless=True), routed(B * S), routed(8, groups=B)])
def test_routing_that_no_other_sample_changes_is_legal(graph: Graph) -> None:
    assert reasons(graph) == []


def routed_in_place(capacity: int, groups: tuple[int, int]) -> Graph:
    """The same without flattening the tokens."""
    g = Builder()
    x = g.input((B, S, H), labels=("b", "s", ""), requires_grad=True)
    idx = g.input((B, S, 2), name="idx", labels=("b", "s", ""), dtype="i64")
    weights = g.input((B, S, 2), name="weights", labels=("b", "s", ""))
    rows = g.op("dispatch", x, idx, num_experts=4, capacity=capacity, groups=groups)
    down = g.op("grouped_linear", rows, g.param("w", (4, H, H)))
    return ends_in_mean(g, g.op("combine", down, idx, weights, num_experts=4, capacity=capacity, groups=groups))


def test_groups_of_samples_make_routing_legal() -> None:
    assert reasons(routed_in_place(8, (B, 1))) == []
    assert [kind for kind, _ in reasons(routed_in_place(8, (1, 2)))] == ["dispatch"]


def test_a_load_balancing_loss_over_the_batch_blocks() -> None:
    """The product of two averages is not the average of products."""
    g = Builder()
    x = samples(g)
    share, chance = g.op("mean", x, dim=0), g.op("mean", g.op("softmax", x, dim=-1), dim=0)
    g.loss(g.op("sum", g.op("mul", share, chance)))
    assert reasons(g.graph()) == [("mul", "is not linear in a sum over the batch")]


@pytest.mark.parametrize(
    ("kind", "attrs", "reason"),
    [
        ("amax", {"dim": 0}, "takes a maximum over the batch"),
        ("softmax", {"dim": 0}, "needs the whole batch in one place"),
        ("slice", {"dim": 0, "start": 0, "end": 2}, "needs the whole batch in one place"),
        ("cumsum", {"dim": 0}, "needs the whole batch in one place"),
        ("split", {"dim": 0, "sizes": (2, 2)}, "joins or cuts runs of the batch"),
    ],
)
def test_operators_that_need_the_batch_block(kind: str, attrs: dict[str, int], reason: str) -> None:
    g = Builder()
    assert reasons(ends_in_mean(g, g.op(kind, samples(g), **attrs))) == [(kind, reason)]


def test_positions_picked_from_the_batch_block() -> None:
    g = Builder()
    chosen = g.op("index_select", samples(g), g.input((2,), name="rows", dtype="i64"), dim=0)
    assert reasons(ends_in_mean(g, chosen)) == [("index_select", "picks from the whole batch by position")]


def test_a_mean_shown_to_samples_blocks() -> None:
    g = Builder()
    x = samples(g)
    y = g.op("sub", x, g.op("mean", x, dim=0, keepdim=True))
    assert reasons(ends_in_mean(g, y)) == [("sub", "shows a sum over the batch to single samples again")]


def test_what_is_added_to_a_total_once_blocks() -> None:
    g = Builder()
    g.loss(g.op("add", g.op("sum", samples(g)), g.op("sum", g.param("w", (H,)))))
    assert reasons(g.graph()) == [("add", "adds to a sum over the batch what micro-batches would weigh differently")]


def test_a_function_of_the_loss_blocks() -> None:
    g = Builder()
    g.loss(g.op("sqrt", g.op("mean", samples(g))))
    assert reasons(g.graph()) == [("sqrt", "is not linear in a sum over the batch")]


def test_opaque_operators_block() -> None:
    g = Builder()
    y = g.op("opaque", samples(g), target="lib::f", types=(f"f32[{N}, {H}]",))
    assert reasons(ends_in_mean(g, y)) == [("opaque", "needs the whole batch in one place")]


def test_what_the_loss_does_not_see_does_not_block() -> None:
    g = Builder()
    x = samples(g)
    g.output(g.op("amax", x, dim=0))
    assert microbatch(ends_in_mean(g, x)).legal


def test_buffers_that_remember_the_batch_block() -> None:
    g = Builder()
    x = samples(g)
    g.buffer("seen", (H,))
    g.update("seen", g.op("mean", x, dim=0, no_grad=True))
    assert reasons(ends_in_mean(g, x)) == [("mean", "gives buffer 'seen' a value that depends on the whole batch")]


def test_without_a_batch_nothing_can_be_cut() -> None:
    g = Builder()
    found = microbatch(ends_in_mean(g, g.input((N, H))))
    assert not found.legal
    assert "no dimension labelled 'b'" in str(found.blockers[0])


# Totals, averages and counts ------------------------------------------------------------------------------------------

ADDS = "adds to a sum over the batch what micro-batches would weigh differently"
BENT = "is not linear in a sum over the batch"


def arithmetic(g: Builder) -> dict[str, str]:
    """A total, an average, a count, and a number of parameters."""
    x = samples(g)
    mask = g.op("cast", g.input((N, H), name="mask", labels=("b", ""), dtype="bool"), dtype="f32")
    total, weight = g.op("sum", x), g.op("sum", g.param("w", (H,)))
    return {"total": total, "average": g.op("mean", x), "count": g.op("sum", mask), "fixed": weight}


SUMS: list[tuple[str, str, dict[str, float | str], str | None]] = [
    ("add", "total total", {}, None),
    ("add", "average average", {}, None),
    ("sub", "average fixed", {}, None),
    ("add", "fixed average", {}, None),
    ("add", "total average", {}, ADDS),
    ("add", "total fixed", {}, ADDS),
    ("add", "total count", {}, ADDS),
    ("add", "average", {"scalar": 1.0}, None),
    ("sub", "average", {"scalar": 1.0}, None),
    ("add", "total", {"scalar": 1.0}, BENT),
    ("add", "count", {"scalar": 1.0}, BENT),
    ("mul", "average", {"scalar": 2.0}, None),
    ("mul", "total fixed", {}, None),
    ("mul", "total total", {}, BENT),
    ("mul", "total average", {}, BENT),
    ("div", "total count", {}, None),
    ("div", "count count", {}, None),
    ("div", "average count", {}, BENT),
    ("div", "count total", {}, BENT),
    ("div", "total total", {}, BENT),
    ("div", "fixed count", {}, BENT),
    ("div", "total fixed", {}, None),
    ("mul", "total count", {}, BENT),
    ("clamp", "count", {"min": 1.0}, None),
    ("clamp", "total", {"min": 1.0}, BENT),
    ("cast", "count", {"dtype": "f64"}, None),
    ("sqrt", "count", {}, BENT),
    ("relu", "fixed", {}, None),
]


def test_what_may_be_done_with_sums_over_the_batch() -> None:
    for kind, operands, attrs, reason in SUMS:
        g = Builder()
        known = arithmetic(g)
        g.output(g.op(kind, *(known[name] for name in operands.split()), **attrs))
        assert reasons(g.graph()) == ([] if reason is None else [(kind, reason)])


def test_an_average_by_count_is_one() -> None:
    """So a number may be added to it, as to any average, and not to the total that it was made of."""
    g = Builder()
    known = arithmetic(g)
    share = g.op("div", known["total"], known["count"])
    g.output(g.op("add", g.op("add", share, known["average"]), scalar=1.0))
    assert reasons(g.graph()) == []


@pytest.mark.parametrize(("reduction", "average"), [("mean", True), ("sum", False)])
def test_losses_average_unless_they_say_otherwise(reduction: str, average: bool) -> None:
    g = Builder()
    labels = g.input((N,), name="labels", labels=("b",), dtype="i64")
    loss = g.op("cross_entropy", samples(g), labels, reduction=reduction)
    g.output(g.op("add", loss, scalar=1.0))
    assert reasons(g.graph()) == ([] if average else [("add", BENT)])


def test_what_follows_a_blocker_is_not_held_against_it() -> None:
    """One reason for each operator that blocks by itself, in running order."""
    g = Builder()
    x = samples(g)
    top = g.op("amax", x, dim=0)
    g.output(g.op("exp", g.op("sub", x, top)), g.op("sqrt", g.op("sum", x)))
    assert reasons(g.graph()) == [("amax", "takes a maximum over the batch"), ("sqrt", BENT)]


def test_of_one_sample_nothing_is_summed() -> None:
    g = Builder()
    x = g.input((1, S, H), labels=("b", "s", ""), requires_grad=True)
    found = microbatch(ends_in_mean(g, x))
    assert not found.legal
    assert found.blockers == (
        Blocker("inputs", "graph", "", "", "has no dimension labelled 'b' of more than one sample"),
    )
    assert microbatch(g.graph(), "s").legal


@pytest.mark.parametrize(
    ("module", "source", "text"),
    [
        ("", "", "%y = amax: it breaks"),
        ("m", "", "%y = amax @m: it breaks"),
        ("", "f.py:3", "%y = amax <f.py:3>: it breaks"),
        ("m", "f.py:3", "%y = amax @m <f.py:3>: it breaks"),
    ],
)
def test_blockers_say_where_they_stand(module: str, source: str, text: str) -> None:
    assert str(Blocker("y", "amax", module, source, "breaks")) == text


@pytest.mark.parametrize(
    ("capacity", "attrs", "legal"),
    [
        (B * S, {}, True),
        (B * S - 1, {}, False),
        (8, {"groups": B}, True),
        (8, {"groups": 1}, False),
        (2 * B, {"groups": 2 * B}, True),
    ],
)
def test_slots_are_counted_for_samples_each_or_hold_all(capacity: int, attrs: dict[str, int], legal: bool) -> None:
    assert microbatch(routed(capacity, **attrs)).legal is legal


def test_a_buffer_that_remembers_parameters_does_not_block() -> None:
    g = Builder()
    x = samples(g)
    g.buffer("seen", (H,))
    g.update("seen", g.op("relu", g.param("w", (H,)), no_grad=True))
    assert reasons(ends_in_mean(g, x)) == []
