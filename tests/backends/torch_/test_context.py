"""What becomes of modules where an axis cuts sequences: of a block and a head, with attention, tables and moves."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.torch_.emit.context import Context, Inside, Own, context_of
from meshwright.backends.torch_.emit.subject import Piece
from meshwright.ir.adjoint import Strategy
from meshwright.ir.decisions import BodyPlan
from meshwright.ir.errors import EmissionModule
from meshwright.ir.fold import FromInput, Segment
from meshwright.ir.mesh import Mesh
from meshwright.ir.program import Move
from meshwright.ir.reshard import Step
from tests.build import Builder

X = FromInput("x")
Moved = tuple[str, str, str, int, int]
"""A value, why it moves, by which step, along which dimension, and how many elements it has."""
LABELS = SimpleNamespace(value="labels", labels=("b", "s")), SimpleNamespace(value="scale", labels=("b",))


class Block(Builder):
    """Queries, keys and values are what comes in: two samples of 64 tokens, four heads, 8 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.input((2, 4, 64, 8), requires_grad=True)
        self.cuts: dict[str, str] = {}

    def attend(self, factors: str, module: str = "attn", *more: str, **attrs: Any) -> str:
        made = self.op("attention", self.x, self.x, self.x, *more, module=module, **{"mask": "full", **attrs})
        self.cuts[made] = f"cp={factors}"
        return made

    def piece(self, name: str = "block", *, repeated: bool = True) -> Piece:
        paths = ("layers.0", "layers.1") if repeated else ("",)
        segment = Segment((name,), paths, (X,), ((X,),), not repeated)
        strategies = tuple((op, Strategy.parse(one)) for op, one in self.cuts.items())
        return Piece(segment, BodyPlan(name=name, body=name, strategies=strategies), None, self.graph())


def head(*modules: str) -> Piece:
    """Norms one after the other, outside of blocks."""
    body = Block()
    value = body.x
    for module in modules:
        weight = body.param(f"{module}.weight".lstrip("."), (8,))
        value = body.op("rms_norm", value, weight, module=module, eps=1e-6)
    body.output(value)
    return body.piece("head", repeated=False)


def read(
    block: Block,
    moves: Sequence[Moved] = (),
    *,
    last: Piece | None = None,
    of_head: Sequence[Moved] = (),
    mesh: str = "cp=2",
    device: str = "cpu",
    precision: str = "bf16",
    positioned: Sequence[str] = (),
    axis: str = "cp",
) -> Context:
    """What is found where nothing but this moves."""
    pieces = (block.piece(), last or head("norm"))

    def program(several: Sequence[Moved]) -> Any:
        made = [Move(Step(kind, (axis,), dim), value, "moved", why) for value, why, kind, dim, _ in several]
        return SimpleNamespace(
            forward=[one for one in made if one.reason != "gradient"],
            backward=[one for one in made if one.reason == "gradient"],
            elements={value: number for value, *_, number in several},
        )

    subject: Any = SimpleNamespace(
        pieces=pieces,
        bodies={"block": program(moves), "head": program(of_head)},
        mesh=Mesh.parse(mesh),
        device=device,
        workload=SimpleNamespace(precision=precision),
        calls=SimpleNamespace(positioned=frozenset(positioned)),
        decisions=None,
        fold=SimpleNamespace(inputs=tuple((one, None) for one in LABELS)),
    )
    return context_of(subject, "cp")


@pytest.fixture(autouse=True)
def _all_attention_is_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.backends.torch_.emit.context.attention_outside_blocks", lambda *_: "")


def attending(factors: str, *others: tuple[str, str], **attrs: Any) -> Block:
    block = Block()
    block.output(block.attend(factors, **attrs), *(block.attend(one, module) for one, module in others))
    return block


def test_how_attention_meets_tokens_of_other_ranks() -> None:
    for factors, kind in [("sq", "all_gather"), ("hk", "ulysses"), ("sq+sk", "ring")]:
        found = read(attending(factors), last=head("norm", "end"))
        assert found.bodies[0].attention == (("attn", kind),), factors
        assert (found.bodies[0].own, found.bodies[0].unmasked, found.bodies[0].inside) == (
            (Own("", None, leaves=True),),
            (),
            (),
        )
        assert found.bodies[1].own == (Own("norm", None, leaves=True), Own("end", None, leaves=False)), factors
        assert (found.axis, found.ends, found.entries, found.kinds) == ("cp", False, ("labels",), (kind,)), factors
        assert (found.masked, found.narrow, found.biased, found.several, found.kernel) == (False,) * 4 + ("cpu",), (
            factors
        )
    two = read(attending("sq", ("hk", "other"), ("sq", "third")))
    assert two.bodies[0].attention == (("attn", "all_gather"), ("other", "ulysses"), ("third", "all_gather"))
    assert two.kinds == ("all_gather", "ulysses")


REFUSED: list[tuple[Block, dict[str, Any], str]] = [
    (attending("sq", ("hk", "attn")), {}, "its module calls attention in another way, too"),
    (attending("sq:zigzag"), {}, "a sequence that is not cut into one run per rank is not emitted yet"),
    (attending("b"), {}, "it is not split by queries or heads over cp"),
    (attending("-"), {}, "it is not split by queries or heads over cp"),
    (attending("sq+sk", dropout=0.1), {}, "torch has no fused kernel for it"),
    (attending("sq+sk"), {"device": "cuda", "precision": "fp32", "mesh": "cp=4"}, "a ring of 16 tokens per rank"),
]


def test_attention_that_no_code_is_written_for_is_refused() -> None:
    for block, given, cause in REFUSED:
        with pytest.raises(EmissionModule, match=cause) as refused:
            read(block, **given)
        assert refused.value.place.startswith("plan block, %attention"), cause


def test_kernels_of_gpus() -> None:
    """By dtype and masks; rows that are counted in 32s are no matter to the others."""
    fp32: dict[str, Any] = {"device": "cuda", "precision": "fp32"}
    assert read(attending("sq+sk"), **fp32).kernel == "efficient"
    assert read(attending("sq", dropout=0.1), mesh="cp=4", **fp32).kernel == "efficient"
    assert read(attending("sq+sk"), device="cuda").kernel == "flash"


def test_masks_that_hide_nothing() -> None:
    found = read(attending("sq", mask="full", mask_shape=(64, 64)))
    assert found.bodies[0].unmasked == ("attn",)
    assert found.unmasked
    for attrs in [{"mask": "full"}, {"mask": "causal"}, {"mask": "causal", "mask_shape": (64, 64)}]:
        assert not read(attending("sq", **attrs)).unmasked, attrs


# Tables -------------------------------------------------------------------------------------------------------------


def with_tables() -> Block:
    """Tables of all positions come in, of 64 tokens; one has samples before."""
    block = attending("sq")
    for name, shape in (("cos", (64, 8)), ("sin", (1, 64, 8)), ("other", (64,))):
        table = block.input(shape, name=name)
        block.output(block.op("silu", table, name=f"of_{name}"))
    return block


def test_tables_that_come_in_whole_are_cut() -> None:
    """Dimensions are counted from the end: tokens are the second one of both tables."""
    moves: list[Moved] = [("cos", "value", "slice", 0, 64), ("sin@moved", "value", "slice", 1, 64)]
    assert read(with_tables(), moves).bodies[0].own == (Own("", -2, leaves=True),)
    scalars: list[Moved] = [("x", "value", "all_reduce", 0, 1), ("x", "gradient", "all_reduce", 0, 1)]
    attention: list[Moved] = [("x", "value", "all_gather", 2, 9), ("dattention", "gradient", "reduce_scatter", 2, 9)]
    others: list[Moved] = [("of_cos", "sync", "all_reduce", 0, 9), ("of_cos", "parameter", "all_gather", 0, 9)]
    assert read(with_tables(), scalars + attention + others).bodies[0].own == (Own("", None, leaves=True),)
    assert read(with_tables(), [("of_cos", "value", "all_gather", 0, 9)], axis="tp").bodies[0].own[0].table is None


def test_what_else_moves_along_sequences_is_refused() -> None:
    both: list[Moved] = [("cos", "value", "slice", 0, 64), ("other", "value", "slice", 0, 64)]
    with pytest.raises(EmissionModule, match="module of the block: tables that come in whole are cut along different"):
        read(with_tables(), both)
    for move in [
        ("cos", "value", "all_gather", 0, 2),
        ("of_cos", "value", "slice", 0, 2),
        ("dcos", "gradient", "slice", 0, 2),
    ]:
        with pytest.raises(EmissionModule, match="axis cp cuts sequences, and this is no table and no operand"):
            read(with_tables(), [move])


def test_tables_are_those_of_the_modules_that_read_them() -> None:
    """Outside of blocks, each by itself."""
    body = Block()
    table = body.input((64, 8), name="table")
    value = body.op("rms_norm", body.x, body.param("norm.weight", (8,)), module="norm", eps=1e-6)
    value = body.op("add", value, table, module="norm.inner")
    value = body.op("rms_norm", value, body.param("end.weight", (8,)), module="end", eps=1e-6)
    body.output(value)
    last = body.piece("head", repeated=False)
    found = read(attending("sq"), last=last, of_head=[("table", "value", "slice", 0, 64)])
    assert found.bodies[1].own == (Own("norm", -2, leaves=True), Own("end", None, leaves=False))
    with pytest.raises(EmissionModule, match="a parameter that the model holds itself is not emitted with a cut"):
        read(attending("sq"), last=head(""))


def with_buckets(*, held: str = "attn.table", factor: str = "d0") -> Block:
    """Attention in a module that looks up a number for each position, and has a product behind it."""
    block = Block()
    positions = block.op("arange", end=64, module="attn")
    rows = block.op("embedding", block.param(f"{held}.weight", (64, 4)), positions, module=held)
    made = block.attend("sq")
    out = block.op("linear", made, block.param("attn.out.weight", (8, 8)), module="attn.out")
    block.cuts |= {rows: f"cp={factor}", out: "cp=d2"}
    block.output(rows, block.op("rms_norm", out, block.param("norm.weight", (8,)), module="norm", eps=1e-6))
    return block


POSITIONS: Moved = ("arange", "value", "slice", 0, 64)


def test_modules_that_make_tables_themselves() -> None:
    """What is in them computes on rows of the table, before attention, and on tokens behind it; nothing else does."""
    found = read(with_buckets(), [POSITIONS])
    rows, out = Own("attn.table", -1, leaves=True, dim=0), Own("attn.out", None, leaves=False, dim=2)
    assert found.bodies[0].inside == (Inside("attn", (rows, out)),)
    assert found.bodies[0].own == (Own("", None, leaves=True),)
    assert (found.inside, found.several) == (True, True)
    with pytest.raises(EmissionModule, match="this is no table and no operand of attention"):
        read(with_buckets(), [("arange", "value", "all_gather", 0, 64)])
    told = read(with_buckets(), [POSITIONS], positioned=["layers.0"])
    assert (told.bodies[0].inside, told.bodies[0].own) == ((), (Own("", -1, leaves=True),))
    with pytest.raises(EmissionModule, match="its module holds parameters itself, and makes tables of positions"):
        read(with_buckets(held="attn"), [POSITIONS])
    with pytest.raises(EmissionModule, match="its result is not cut over cp"):
        read(with_buckets(factor="-"), [POSITIONS])


def test_a_bias_of_positions_is_trained() -> None:
    """And masks of a model's own are cut as tables are, along their rows."""
    block = Block()
    block.output(block.attend("hk", "attn", block.param("bias", (1, 4, 64, 64))))
    assert read(block).biased
    assert not read(attending("hk")).biased
    window = read(attending("sq", mask="window", width=8), device="cuda")
    assert (window.masked, window.kernel, window.bodies[0].own[0].table) == (True, "efficient", -2)


def test_values_that_are_narrower_than_keys() -> None:
    for width, narrow in ((4, True), (8, False), (12, False)):
        block = Block()
        values = block.input((2, 4, 64, width), name="v", requires_grad=True)
        made = block.op("attention", block.x, block.x, values, module="attn", mask="full")
        block.output(made)
        for factors in ("sq", "sq+sk"):
            block.cuts[made] = f"cp={factors}"
            if (factors, width) == ("sq+sk", 12):
                with pytest.raises(EmissionModule, match="torch has no fused kernel for it"):
                    read(block)
            else:
                assert read(block).narrow == narrow, (width, factors)


def test_a_block_of_no_operators_has_no_modules_of_its_own() -> None:
    empty = Block()
    empty.output(empty.x)
    assert [(one.own, one.attention) for one in read(empty).bodies] == [
        ((), ()),
        ((Own("norm", None, leaves=False),), ()),
    ]


def test_a_loss_of_what_a_block_makes_is_refused() -> None:
    with pytest.raises(EmissionModule, match="the loss is taken of a block's result, which is a DTensor"):
        read(attending("sq"), last=attending("sq").piece())
