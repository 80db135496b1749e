"""What styles say of small bodies that an axis cuts, and which of them no style says; by what `styles` promises in its
first lines.

A body is a few operators in modules, each with the factor that the axis cuts; `x` comes in as it is said, and what the
body makes leaves as it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.emit.styles import Styles, styles_of
from meshwright.backends.torch_.emit.subject import Piece
from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.errors import EmissionModule
from meshwright.ir.fold import FromInput, Segment
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import State
from tests.build import Builder

COPIES, TOKENS, WIDTH = "[-, -, -]", "[-, tp, -]", "[-, -, tp]"
"""How sequences lie that are copies, cut by tokens, or by their width."""
OWN, WHOLE = "Shard(1)", "Replicate()"


class Body(Builder):
    """Operators and what the axis cuts of them."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict[str, str] = {}
        self.states: dict[str, str] = {}

    def cut(self, factor: str, kind: str, *operands: str, **keywords: Any) -> str:
        made = self.op(kind, *operands, **keywords)
        if factor:
            self.cuts[made] = factor
        return made

    def product(self, factor: str, x: str, module: str, inner: int, outer: int, **keywords: Any) -> str:
        shape = (inner, outer) if keywords.get("transposed") else (outer, inner)
        return self.cut(factor, "linear", x, self.param(f"{module}.weight", shape), module=module, **keywords)


def sequences(state: str = COPIES) -> tuple[Body, str]:
    """Two of four tokens, eight wide."""
    body = Body()
    x = body.input((2, 4, 8), requires_grad=True)
    body.states[x] = state
    return body, x


def read(
    body: Body,
    leaves: Mapping[str, str],
    *,
    arguments: Mapping[str, tuple[str | None, ...]] | None = None,
    keywords: Mapping[str, Mapping[str, str]] | None = None,
    maker: str | None = "before",
) -> Styles:
    """The styles of a repeated body whose outputs leave so; in `maker` of the model `x` is made."""
    if body.loss_value is None:
        body.output(*leaves)
    segment = Segment(("block",), ("blocks.0",), (FromInput("x"),), ((FromInput("x"),),))
    plan = BodyPlan(
        name="cut",
        body="block",
        strategies=tuple((name, Strategy.parse(f"tp={factor}")) for name, factor in body.cuts.items()),
        states=tuple((name, State.parse(one)) for name, one in (body.states | dict(leaves)).items()),
    )
    calls = SimpleNamespace(arguments=arguments or {}, keywords=keywords or {})
    subject: Any = SimpleNamespace(mesh=Mesh.parse("tp=2"), calls=calls, maker=lambda piece, value: maker)
    return styles_of(subject, Piece(segment, plan, None, body.graph()), "tp")


def said(found: Styles) -> dict[str, str]:
    return {path: str(style) for path, style in found.modules.items()}


def mlp(x: str, leaves: str) -> tuple[Body, str]:
    """A product whose width is cut, and one that sums over it."""
    body, given = sequences(x)
    hidden = body.cut("d2", "silu", body.product("n", given, "up", 8, 16), module="act")
    return body, body.product("k", hidden, "down", 16, 8)


def test_columns_then_rows() -> None:
    for x, leaves, up, down in [
        (COPIES, COPIES, "", f"output_layouts={WHOLE}"),
        (TOKENS, TOKENS, f"input_layouts={OWN}", f"output_layouts={OWN}, use_local_output=False"),
        (COPIES, TOKENS, "", f"output_layouts={OWN}, use_local_output=False"),
        (TOKENS, COPIES, f"input_layouts={OWN}", f"output_layouts={WHOLE}"),
        (COPIES, WIDTH, "", "output_layouts=Shard(2)"),
    ]:
        body, out = mlp(x, leaves)
        found = read(body, {out: leaves})
        assert said(found) == {"up": f"ColwiseParallel({up})", "down": f"RowwiseParallel({down})"}, x
        assert list(found.modules) == ["up", "down"], x
        assert (found.before, found.sharded_loss, found.own_loss, found.shared) == ({}, False, False, {}), x


def test_columns_may_be_gathered_where_they_are_made() -> None:
    body, x = sequences()
    assert said(read(body, {body.product("n", x, "up", 8, 16): COPIES})) == {
        "up": f"ColwiseParallel(output_layouts={WHOLE})"
    }


def test_weights_that_are_stored_the_other_way_around() -> None:
    """torch has no style for these; under other names than its own they are refused."""
    body, x = sequences()
    hidden = body.product("n", x, "up", 8, 16, transposed=True)
    out = body.product("k", hidden, "down", 16, 8, transposed=True)
    assert said(read(body, {out: COPIES})) == {
        "up": "Transposed(ColwiseParallel())",
        "down": f"Transposed(RowwiseParallel(output_layouts={WHOLE}))",
    }
    other, x = sequences()
    made = other.cut("n", "linear", x, other.param("up.kernel", (8, 16)), module="up", transposed=True)
    with pytest.raises(EmissionModule, match=r"stored as \[in, out\], and named up.kernel"):
        read(other, {made: WIDTH})


def gated(state: str = TOKENS) -> tuple[Body, str]:
    """Two products of one value, in a module of their own."""
    body, x = sequences(state)
    gate = body.product("n", x, "mlp.gate", 8, 16)
    up = body.product("n", x, "mlp.up", 8, 16)
    product = body.cut("d2", "mul", gate, up, module="mlp")
    return body, body.product("k", product, "mlp.down", 16, 8)


ARGUMENTS: dict[str, tuple[tuple[str | None, ...], dict[str, str], str]] = {
    "the only one": (("before",), {}, f"input_layouts=({OWN},), desired_input_layouts=({WHOLE},)"),
    "one of three": (
        ("other", "before", None),
        {"mask": "masks"},
        f"input_layouts=(None, {OWN}, None), desired_input_layouts=(None, {WHOLE}, None)",
    ),
    "by name": (
        ("other",),
        {"hidden": "before", "mask": "masks"},
        f'input_kwarg_layouts={{"hidden": {OWN}}}, desired_input_kwarg_layouts={{"hidden": {WHOLE}}}',
    ),
}


def test_what_several_modules_want_is_brought_to_the_one_around_them() -> None:
    for what, (positional, named, options) in ARGUMENTS.items():
        body, out = gated()
        found = read(body, {out: TOKENS}, arguments={"blocks.0.mlp": positional}, keywords={"blocks.0.mlp": named})
        assert said(found) == {
            "mlp": f"PrepareModuleInput({options})",
            "mlp.gate": "ColwiseParallel()",
            "mlp.up": "ColwiseParallel()",
            "mlp.down": f"RowwiseParallel(output_layouts={OWN}, use_local_output=False)",
        }, what
        assert list(found.modules)[2:] == ["mlp.up", "mlp.down"], what


def test_what_is_not_one_argument_is_not_brought() -> None:
    for positional, named, maker in [
        ((), {}, "before"),
        (("before", "before"), {}, "before"),
        (("before",), {"hidden": "before"}, "before"),
        ((None,), {}, None),
    ]:
        body, out = gated()
        given = {"arguments": {"blocks.0.mlp": positional}, "keywords": {"blocks.0.mlp": named}}
        with pytest.raises(EmissionModule, match="%x is no argument of module 'mlp'"):
            read(body, {out: TOKENS}, maker=maker, **given)


def test_copies_are_wanted_by_several_as_they_are() -> None:
    """Their gradients are sums then, which are added up in the products."""
    body, out = gated(COPIES)
    assert said(read(body, {out: COPIES}, arguments={"blocks.0.mlp": ("before",)})) == {
        "mlp": f"PrepareModuleInput(input_layouts=({WHOLE},), desired_input_layouts=({WHOLE},))",
        "mlp.gate": "ColwiseParallel()",
        "mlp.up": "ColwiseParallel()",
        "mlp.down": f"RowwiseParallel(output_layouts={WHOLE})",
    }


def test_a_reader_that_is_no_module_with_a_style_is_named() -> None:
    """It reads the same value as copies, outside of modules with weights."""
    body, x = sequences(TOKENS)
    up = body.product("n", x, "mlp.up", 8, 8)
    made = body.cut("d2", "add", up, body.cut("d2", "silu", x, module="mlp.act"), module="mlp")
    with pytest.raises(EmissionModule, match="wanted otherwise than as copies"):
        read(body, {made: WIDTH})


def test_a_module_that_reads_own_tokens_beside_those_that_want_all_is_named() -> None:
    body, out = gated()
    own = body.cut("d1", "silu", "x", module="mlp.act")
    with pytest.raises(EmissionModule, match="it reads %x, which changes its placement there") as refused:
        read(body, {out: TOKENS, own: TOKENS}, arguments={"blocks.0.mlp": ("before",)})
    assert "blocks.0.mlp.act" in str(refused.value)


# Whole modules on a part of the tokens, or of the heads ------------------------------------------------------------


def test_a_norm_of_own_tokens() -> None:
    body, x = sequences(TOKENS)
    out = body.cut("d1", "rms_norm", x, body.param("norm.weight", (8,)), module="norm", eps=1e-6)
    assert said(read(body, {out: TOKENS})) == {"norm": "SequenceParallel()"}


def test_a_norm_of_own_heads_says_which_dimension_they_are() -> None:
    """Four dimensions: heads are the third one; tokens of such, the second, are no sequences either."""
    for factor, state, dim in (("d2", "[-, -, tp, -]", 2), ("d1", "[-, tp, -, -]", 1)):
        body = Body()
        x = body.input((2, 4, 4, 8), requires_grad=True)
        body.states[x] = state
        out = body.cut(factor, "rms_norm", x, body.param("norm.weight", (8,)), module="norm", eps=1e-6)
        assert said(read(body, {out: state})) == {
            "norm": f"SequenceParallel(sequence_dim={dim}, use_local_output=True)"
        }


def test_a_norm_that_makes_more_than_its_own_part_is_refused() -> None:
    """What else its module makes is not cut by tokens."""
    body, x = sequences(TOKENS)
    normed = body.cut("d1", "rms_norm", x, body.param("norm.weight", (8,)), module="norm", eps=1e-6)
    out = body.op("silu", normed, module="norm")
    with pytest.raises(EmissionModule, match=r"its input is 1, its weight R and its result 1 over tp") as refused:
        read(body, {out: COPIES})
    assert "plan cut, %rms_norm (rms_norm) of blocks.0.norm" in str(refused.value)
    assert refused.value.fix == "plan with --fix tp=1, or pin the module, as in --fix '*.q_proj:sharding=column'"


def test_a_whole_module_whose_result_is_cut() -> None:
    body, x = sequences()
    out = body.product("", x, "proj", 8, 8)
    assert said(read(body, {out: TOKENS})) == {
        "proj": f"PrepareModuleOutput(output_layouts={WHOLE}, desired_output_layouts={OWN}, use_local_output=False)"
    }


def test_a_whole_module_of_whole_values_has_no_style() -> None:
    body, x = sequences()
    assert read(body, {body.product("", x, "proj", 8, 8): COPIES}).modules == {}


# Tables -------------------------------------------------------------------------------------------------------------


def looked_up(factor: str) -> tuple[Body, str]:
    body = Body()
    ids = body.input((2, 4), name="ids", dtype="i64")
    body.states[ids] = "[-, -]"
    return body, body.cut(factor, "embedding", body.param("table.weight", (8, 8)), ids, module="table")


def test_tables() -> None:
    for factor, leaves, style in [
        ("v", COPIES, f"RowwiseParallel(input_layouts={WHOLE}, output_layouts={WHOLE})"),
        ("v", TOKENS, f"RowwiseParallel(input_layouts={WHOLE}, output_layouts={OWN}, use_local_output=False)"),
        ("d", WIDTH, "ColwiseParallel()"),
        ("d", COPIES, f"ColwiseParallel(output_layouts={WHOLE})"),
        ("d1", TOKENS, "SequenceParallel()"),
    ]:
        body, out = looked_up(factor)
        found = read(body, {out: leaves})
        assert said(found) == {"table": style}, factor
        cut = f"PrepareModuleInput(input_layouts=({WHOLE},), desired_input_layouts=({OWN},))"
        assert {path: str(one) for path, one in found.before.items()} == ({"table": cut} if factor == "d1" else {}), (
            factor
        )


def test_a_table_whose_module_goes_on_with_its_rows() -> None:
    body, rows = looked_up("v")
    body.states[rows] = TOKENS
    out = body.cut("d1", "silu", rows, module="table")
    assert said(read(body, {out: TOKENS})) == {
        "table": f"SumFirst(RowwiseParallel(input_layouts={WHOLE}, output_layouts={OWN}, use_local_output=False))"
    }


# Losses -------------------------------------------------------------------------------------------------------------


def scored(x: str, head: str, loss: str, *, cast: bool = False, module: str = "") -> Body:
    """A head and the loss of its scores."""
    body, given = sequences(x)
    labels = body.input((2, 4), name="labels", dtype="i64")
    body.states[labels] = "[-, -]"
    scores = body.product(head, given, "head", 8, 8)
    if cast:
        scores = body.cut({"n": "d2"}.get(head, head), "cast", scores, dtype="f64")
    attrs = {"reduction": "mean", "ignore_index": -100}
    body.loss(body.cut(loss, "cross_entropy", scores, labels, module=module, **attrs))
    return body


def test_a_loss_of_scores_whose_vocabulary_is_cut() -> None:
    for cast in [False, True]:
        for x, options in [(COPIES, ""), (TOKENS, f"input_layouts={OWN}, ")]:
            body = scored(x, "n", "v", cast=cast)
            found = read(body, {str(body.loss_value): "[]"})
            assert said(found) == {
                "head": f"ColwiseParallel({options}output_layouts=Shard(-1), use_local_output=False)"
            }, cast
            assert (found.sharded_loss, found.own_loss) == (True, False), cast


def test_a_loss_of_own_tokens() -> None:
    body = scored(TOKENS, "d1", "d1")
    found = read(body, {str(body.loss_value): "[]"})
    assert said(found) == {"head": "SequenceParallel(use_local_output=True)"}
    assert (found.sharded_loss, found.own_loss) == (False, True)


def test_scores_without_sequences_are_cut_by_their_vocabulary() -> None:
    """Which is their second dimension."""
    body = Body()
    x, labels = body.input((4, 8), requires_grad=True), body.input((4,), name="labels", dtype="i64")
    body.states |= {x: "[-, -]", labels: "[-]"}
    scores = body.product("n", x, "head", 8, 8)
    body.loss(body.cut("v", "cross_entropy", scores, labels, reduction="mean", ignore_index=-100))
    found = read(body, {str(body.loss_value): "[]"})
    assert said(found) == {"head": "ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)"}
    assert (found.sharded_loss, found.own_loss) == (True, False)


def test_scores_are_whole_where_the_loss_is() -> None:
    body = scored(COPIES, "", "")
    found = read(body, {str(body.loss_value): "[]"})
    assert (found.modules, found.sharded_loss, found.own_loss) == ({}, False, False)


# Parts that all heads read ------------------------------------------------------------------------------------------


def split(parts: int = 3) -> Body:
    """A whole product that is cut into parts, of which heads read the last one."""
    body, x = sequences()
    made = body.product("", x, "qkv", 8, 4 * parts)
    found = body.many("split", made, sizes=(4,) * parts, dim=2)
    body.product("n", found[-1], "heads", 4, 8)
    return body


def test_a_part_that_all_heads_read_is_shared() -> None:
    """Which one, and how wide all are."""
    body = split()
    found = read(body, {"linear_1": WIDTH})
    assert found.shared == {"qkv": (2, (4, 4, 4))}


def test_a_product_of_a_parameter_with_what_is_given_for_a_weight_is_refused() -> None:
    """What the axis cuts is no weight of the module."""
    body = Body()
    given = body.input((16, 8), requires_grad=True)
    body.states[given] = "[tp, -]"
    out = body.cut("n", "linear", body.param("odd.weight", (2, 4, 8)), given, module="odd")
    with pytest.raises(EmissionModule, match="its input is 0, its weight R and its result 2 over tp"):
        read(body, {out: WIDTH})


# Channels -----------------------------------------------------------------------------------------------------------

IMAGES, CHANNELS = "[-, -, -, -]", "[-, tp, -, -]"


def images(state: str) -> tuple[Body, str]:
    """Two of four channels, eight by eight."""
    body = Body()
    x = body.input((2, 4, 8, 8), requires_grad=True)
    body.states[x] = state
    return body, x


def convolved(body: Body, factor: str, x: str, module: str = "conv", groups: int = 1) -> str:
    weight, bias = body.param(f"{module}.weight", (4, 4 // groups, 3, 3)), body.param(f"{module}.bias", (4,))
    more = {"groups": groups} if groups > 1 else {}
    return body.cut(factor, "conv2d", x, weight, bias, module=module, padding=1, **more)


def test_channels_of_convolutions() -> None:
    """Output channels cut weights and biases along their first dimension, input channels weights along the second."""
    both, second = 'dims={"weight": 0, "bias": 0}', 'dims={"weight": 1}'
    for factor, x, leaves, options in [
        ("co", IMAGES, CHANNELS, f"{both}, takes={WHOLE}, makes={OWN}"),
        ("co", IMAGES, IMAGES, f"{both}, takes={WHOLE}, makes={OWN}, output_layouts={WHOLE}"),
        ("ci", CHANNELS, IMAGES, f"{second}, takes={OWN}, makes=Partial(), output_layouts={WHOLE}"),
        (
            "ci",
            IMAGES,
            IMAGES,
            f"input_layouts={WHOLE}, {second}, takes={OWN}, makes=Partial(), output_layouts={WHOLE}",
        ),
    ]:
        body, given = images(x)
        found = read(body, {convolved(body, factor, given): leaves})
        assert said(found) == {"conv": f"OwnChannels({options})"}, (factor, x, leaves)


def test_groups_of_channels() -> None:
    body, x = images(CHANNELS)
    options = f'dims={{"weight": 0, "bias": 0}}, takes={OWN}, makes={OWN}, groups=True'
    assert said(read(body, {convolved(body, "g", x, groups=4): CHANNELS})) == {"conv": f"OwnChannels({options})"}


def test_a_whole_module_that_reads_channels_is_given_all() -> None:
    """It has no style of its own: what is cut is gathered where it is called, and it runs on plain tensors."""
    body, x = images(CHANNELS)
    made = body.cut("d1", "relu", x, module="act")
    body.states[made] = CHANNELS
    out = convolved(body, "", made)
    found = read(body, {out: IMAGES}, arguments={"blocks.0.conv": ("blocks.0.act",)})
    assert said(found) == {
        "conv": f"PrepareModuleInput(input_layouts=({OWN},), desired_input_layouts=({WHOLE},), use_local_output=True)"
    }


def test_a_norm_whose_batch_the_tensor_axis_cuts_is_refused() -> None:
    body, x = images("[tp, -, -, -]")
    held = [body.param(f"norm.{name}", (4,)) for name in ("weight", "bias")]
    held += [body.buffer(f"norm.{name}", (4,)) for name in ("mean", "var")]
    out = body.cut("n", "batch_norm", x, *held, module="norm")
    with pytest.raises(EmissionModule, match="tp cuts it otherwise than by channels, or some of several groups"):
        read(body, {out: "[tp, -, -, -]"})


def test_a_norm_of_own_channels() -> None:
    """Its buffers are cut, too."""
    body, x = images(CHANNELS)
    held = [body.param(f"norm.{name}", (4,)) for name in ("weight", "bias")]
    held += [body.buffer(f"norm.{name}", (4,)) for name in ("mean", "var")]
    out = body.cut("c", "batch_norm", x, *held, module="norm")
    dims = 'dims={"weight": 0, "bias": 0, "mean": 0, "var": 0}'
    assert said(read(body, {out: CHANNELS})) == {"norm": f"OwnChannels({dims}, takes={OWN}, makes={OWN})"}


def test_channels_that_all_readers_want_whole_are_gathered_where_they_are_made() -> None:
    """By the convolution itself, or by a module after it that works on them; by no module that makes two such."""
    made = f'OwnChannels(dims={{"weight": 0, "bias": 0}}, takes={WHOLE}, makes={OWN}'
    body, x = images(IMAGES)
    out = body.op("relu", convolved(body, "co", x), module="act")
    assert said(read(body, {out: IMAGES})) == {"conv": f"{made}, output_layouts={WHOLE})"}

    body, x = images(IMAGES)
    part = body.cut("d1", "relu", convolved(body, "co", x), module="act.inner")
    out = body.op("silu", body.cut("d1", "silu", part, module="act"), module="after")
    assert said(read(body, {out: IMAGES})) == {
        "conv": f"{made})",
        "act": f"PrepareModuleOutput(output_layouts={OWN}, desired_output_layouts={WHOLE})",
    }

    body, x = images(IMAGES)
    y = convolved(body, "co", x)
    both = [body.cut("d1", kind, y, module="act") for kind in ("relu", "silu")]
    outs = [body.op("relu", one, module="after") for one in both]
    with pytest.raises(EmissionModule, match="%relu lies as 1 and is wanted otherwise than as copies"):
        read(body, dict.fromkeys(outs, IMAGES))


def test_tokens_are_not_gathered_as_channels_are() -> None:
    """Both are dimension 1, and no module with channels is here."""
    body, x = sequences(TOKENS)
    out = body.op("silu", body.cut("d1", "relu", x, module="act"), module="after")
    with pytest.raises(EmissionModule, match="%relu lies as 1 and is wanted otherwise than as copies"):
        read(body, {out: COPIES})


def test_a_sum_that_is_cut_by_channels_takes_no_whole_bias() -> None:
    """Each rank would add all of it to its own channels."""
    for bias in (True, False):
        body, x = images(CHANNELS)
        held = [body.param("conv.weight", (4, 4, 3, 3)), *([body.param("conv.bias", (4,))] if bias else [])]
        out = body.cut("ci", "conv2d", x, *held, module="conv", padding=1)
        if bias:
            with pytest.raises(EmissionModule, match="its sum is cut by channels, and its bias is not"):
                read(body, {out: CHANNELS})
        else:
            options = f'dims={{"weight": 1}}, takes={OWN}, makes=Partial(), output_layouts={OWN}'
            assert said(read(body, {out: CHANNELS})) == {"conv": f"OwnChannels({options})"}


def test_groups_of_which_channels_are_cut_are_refused() -> None:
    """Of two groups of two: their channels, and not they themselves."""
    body, x = images(IMAGES)
    out = convolved(body, "g", x, groups=2)
    assert "groups=True" in said(read(body, {out: CHANNELS}))["conv"]
    weight = body.param("other.weight", (4, 2, 3, 3))
    again = body.cut("co", "conv2d", x, weight, module="other", padding=1, groups=2)
    with pytest.raises(EmissionModule, match="tp cuts it otherwise than by channels, or some of several groups"):
        read(body, {out: CHANNELS, again: CHANNELS})


def test_whole_modules_with_channels_have_no_style() -> None:
    body, x = images(IMAGES)
    held = [body.param(f"norm.{name}", (4,)) for name in ("weight", "bias")]
    held += [body.buffer(f"norm.{name}", (4,)) for name in ("mean", "var")]
    out = body.op("batch_norm", convolved(body, "", x), *held, module="norm")
    assert read(body, {out: IMAGES}).modules == {}


def test_what_a_module_with_channels_reads_must_be_its_own() -> None:
    body, x = images(IMAGES)
    weight = body.param("elsewhere.weight", (4, 4, 3, 3))
    out = body.cut("co", "conv2d", x, weight, module="conv", padding=1)
    with pytest.raises(EmissionModule, match=r"%p\.elsewhere\.weight is no parameter of its module"):
        read(body, {out: CHANNELS})


# Copies whose gradients are sums ------------------------------------------------------------------------------------


def test_a_whole_module_before_cut_ones_copies_what_it_holds() -> None:
    """Its gradients are sums over ranks, as those of what it makes are."""
    body, x = sequences()
    made = body.product("-|P", x, "proj", 8, 8)
    found = read(body, {body.product("n", made, "up", 8, 16): WIDTH})
    assert said(found) == {"proj": "Copied()", "up": "ColwiseParallel()"}


def test_tokens_are_gathered_once_by_the_module_around_their_readers() -> None:
    """The plan brings them to copies where they are made; gradients are added up there, too."""
    body, x = sequences(TOKENS)
    normed = body.cut("d1", "rms_norm", x, body.param("norm.weight", (8,)), module="norm", eps=1e-6)
    body.states[normed] = "[-, -, -]|sum(tp)"
    gate, up = (body.product("n", normed, f"mlp.{name}", 8, 16) for name in ("gate", "up"))
    out = body.product("k", body.cut("d2", "mul", gate, up, module="mlp"), "mlp.down", 16, 8)
    found = read(body, {out: TOKENS}, arguments={"blocks.0.mlp": ("blocks.0.norm",)})
    assert said(found) == {
        "norm": "SequenceParallel()",
        "mlp": f"PrepareModuleInput(input_layouts=({OWN},), desired_input_layouts=({WHOLE},))",
        "mlp.gate": "ColwiseParallel()",
        "mlp.up": "ColwiseParallel()",
        "mlp.down": f"RowwiseParallel(output_layouts={OWN}, use_local_output=False)",
    }


def test_a_sum_is_reduced_to_what_all_its_readers_want() -> None:
    """No state is said of it: copies for one, tokens for another; within the block, a norm of them."""
    for wants, factor, style in [
        (COPIES, "", f"output_layouts={WHOLE}"),
        (TOKENS, "d1", f"output_layouts={OWN}, use_local_output=False"),
    ]:
        body, x = sequences(WIDTH)
        total = body.product("k", x, "down", 8, 8)
        first = body.cut(factor, "silu", total, module="a")
        second = body.cut(factor, "relu", total, module="b")
        found = read(body, {first: wants, second: wants})
        assert said(found) == {"down": f"RowwiseParallel({style})"}, wants


def test_rows_of_a_table_that_its_module_does_not_go_on_with_are_summed_by_torch() -> None:
    """Another module does, and so does a module that reads them as copies."""
    for module, factor, state, options in [
        ("act", "d1", TOKENS, f"output_layouts={OWN}, use_local_output=False"),
        ("table", "", COPIES, f"output_layouts={WHOLE}"),
    ]:
        body, rows = looked_up("v")
        body.states[rows] = state
        out = body.cut(factor, "silu", rows, module=module)
        expected = {"table": f"RowwiseParallel(input_layouts={WHOLE}, {options})"}
        assert said(read(body, {out: state})) == expected, module


def test_what_is_made_of_weights_alone_is_a_weight() -> None:
    """As 1 + weight is, that Gemma's norms scale with: the module reads it in one operator, on its own tokens."""
    body, x = sequences(TOKENS)
    scale = body.op("add", body.param("norm.weight", (8,)), scalar=1.0, module="norm")
    out = body.cut("d1", "rms_norm", x, scale, module="norm", eps=1e-6)
    assert said(read(body, {out: TOKENS})) == {"norm": "SequenceParallel()"}


def test_a_part_is_shared_only_if_a_product_is_cut_apart_along_its_width() -> None:
    """Not along its tokens, not if it is read whole besides, and not of what no module with weights makes."""
    for along, besides in ((1, False), (2, True)):
        body, x = sequences()
        made = body.product("", x, "qkv", 8, 8)
        parts = body.many("split", made, sizes=(2, 2) if along == 1 else (4, 4), dim=along)
        width = 8 if along == 1 else 4
        outs = {body.product("n", parts[-1], "heads", width, 8): WIDTH}
        if besides:
            outs[body.op("silu", made, module="act")] = COPIES
        assert read(body, outs).shared == {}, (along, besides)
    body, x = sequences()
    parts = body.many("split", x, sizes=(4, 4), dim=2)
    assert read(body, {body.product("n", parts[0], "heads", 4, 8): WIDTH}).shared == {}


# What no style says -------------------------------------------------------------------------------------------------


def weights_twice() -> tuple[Body, dict[str, str]]:
    body, x = sequences()
    hidden = body.product("n", x, "mlp", 8, 16)
    return body, {body.cut("k", "linear", hidden, body.param("mlp.other", (8, 16)), module="mlp"): COPIES}


def two_inputs() -> tuple[Body, dict[str, str]]:
    body, x = sequences()
    weight = body.param("scale.weight", (2, 4, 8))
    out = body.cut("d2", "where", body.op("gt", x, scalar=0.0), x, weight, module="scale")
    return body, {out: WIDTH}


def sum_in_two_ways() -> tuple[Body, dict[str, str]]:
    """The sum of a product, wanted whole here and by tokens there."""
    body, x = sequences(WIDTH)
    total = body.product("k", x, "down", 8, 8)
    return body, {body.op("silu", total, name="a"): COPIES, body.cut("d1", "silu", total, name="b"): TOKENS}


def cut_outside() -> tuple[Body, dict[str, str]]:
    """A value that changes in no module with weights."""
    body, x = sequences(TOKENS)
    return body, {body.cut("d1", "silu", x, module="act"): COPIES}


def loss_of_no_head() -> tuple[Body, dict[str, str]]:
    body = Body()
    x = body.input((2, 4, 8), requires_grad=True)
    labels = body.input((2, 4), name="labels", dtype="i64")
    body.states |= {x: WIDTH, labels: "[-, -]"}
    scores = body.cut("d2", "silu", x, module="act")
    body.loss(body.cut("v", "cross_entropy", scores, labels, reduction="mean", ignore_index=-100))
    return body, {str(body.loss_value): "[]"}


def own_loss_of_no_head() -> tuple[Body, dict[str, str]]:
    body = Body()
    x = body.input((2, 4, 8), requires_grad=True)
    labels = body.input((2, 4), name="labels", dtype="i64")
    body.states |= {x: TOKENS, labels: "[-, -]"}
    scores = body.cut("d1", "silu", x, module="act")
    body.loss(body.cut("d1", "cross_entropy", scores, labels, reduction="mean", ignore_index=-100))
    return body, {str(body.loss_value): "[]"}


REFUSED: dict[str, tuple[Callable[[], tuple[Body, dict[str, str]]], str]] = {
    "weights in two operators": (weights_twice, "its module reads weights in two operators"),
    "two inputs": (two_inputs, "it has more than one input or result"),
    "a sum in two ways": (sum_in_two_ways, "its readers want its sum in 2 ways"),
    "a change between modules": (cut_outside, "its result changes its placement outside of a module with weights"),
    "a loss of shards that no head makes": (loss_of_no_head, "it reads sharded scores that no cut head makes"),
    "a loss of own tokens": (own_loss_of_no_head, "it reads scores of a rank's own tokens that no head makes of these"),
}


def test_what_no_style_says_is_refused() -> None:
    for made, says in REFUSED.values():
        body, leaves = made()
        with pytest.raises(EmissionModule, match=says):
            read(body, leaves)
