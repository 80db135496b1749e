"""Constants as lines of code: run, they are in every bit what torch computes by the operators that were traced."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.folding.captured import Captured, at_batch
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.torch_.constants.code import WIDTH, constant_of
from meshwright.ir.frontends.torch_.operators import translate, writing
from meshwright.ir.frontends.torch_.operators.values import tensor_term
from meshwright.ir.frontends.torch_.sources.dtypes import DTYPES
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.sources.hf_config import load_hf
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.constants import Constant, Held
from tests.ir.frontends.reference import compared, reference
from tests.ir.frontends.run import in_model, lines_run
from tests.ir.frontends.test_constants import CASES, asked
from tests.ir.frontends.tiny import EXAMPLES, SMALL, small

EVERY = [
    *(f"llama.py:{name}" for name in ("tiny",)),
    *(f"small.py:{name}" for name in ("two_lines", "attention", "mixed", "hashed", "language", "tied")),
    "lora_llama.py:tiny",
    "unet.py:tiny",
    "vit.py:tiny",
    "mixture.py:tiny",
    "mlp.py:build",
]
SEED, DRAWN = 18, 3
TINY: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "block_size"), 64),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_local_experts", "num_experts", "n_routed_experts"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
}


@pytest.fixture
def held_to(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every constant of whatever is traced is compared; how many there were, and what differs."""
    found: list[str] = []

    def spied(term: Term, held: Callable[[Term], Held | None]) -> Constant:
        constant = constant_of(term, held)
        found.append(compared(term, held, constant) and f"{constant.text}: {compared(term, held, constant)}")
        return constant

    monkeypatch.setattr(translate, "constant_of", spied)
    return found


def has_all(found: Captured) -> bool:
    """Whether every constant of the fold has its lines, in its type."""
    ops = [op for body in found.fold.bodies for op in body.graph.ops if op.kind == "constant"]
    made = [found.constants[str(op.attr("law"))] for op in ops]
    assert [(one.shape, one.dtype) for one in made] == [(op.attr("shape"), op.attr("dtype")) for op in ops]
    return all(one.lines and not one.problem for one in made)


@pytest.mark.parametrize("name", [*EVERY, *SMALL])
def test_models_of_ours(name: str, held_to: list[str], tmp_path: Path) -> None:
    source = small(name, tmp_path, layers=2, dtype=None) if name in SMALL else load_model(str(EXAMPLES / name))
    assert has_all(capture(source, batch=2, seq=16))
    assert [one for one in held_to if one] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEED])
def test_models_of_others(seed: int, held_to: list[str], tmp_path: Path) -> None:
    """Models of transformers that have constants, drawn."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    kinds, done = sorted({*CAUSAL, *MASKED} & set(CONFIG_MAPPING)), list[str]()
    for kind in random.Random(seed).sample(kinds, len(kinds)):
        if len(done) == DRAWN:
            break
        settings = CONFIG_MAPPING[kind]().to_dict()
        told = {key: TINY.get(key, value) if value is not None else None for key, value in settings.items()}
        told = {key: value for key, value in told.items() if key != "layer_types"} | {"model_type": kind}
        (tmp_path / "config.json").write_text(json.dumps(told, default=str))
        try:
            found = capture(load_hf(tmp_path), batch=2, seq=16)
        except MeshwrightError:
            continue
        if found.constants:
            assert has_all(found), kind
            assert [one for one in held_to if one] == [], kind
            done.append(kind)
    assert len(done) == DRAWN, done


# One by one ----------------------------------------------------------------------------------------------------------


def none(_: Term) -> None:
    """Nothing is held by a model."""


def text(term: Term) -> str:
    return constant_of(term, none).text


def traced_term(function: Callable[[], Tensor]) -> Term:
    """What torch does for a function, as a term."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    known: dict[int, tuple[Tensor, Term]] = {}

    def term_of(tensor: Tensor) -> Term:
        return known[id(tensor)][1] if id(tensor) in known else tensor_term(tensor)

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given, named = tree_map_only(Tensor, term_of, (tuple(args), dict(kwargs or {})))
            result = func(*args, **(kwargs or {}))
            target = str(func).removeprefix("aten.")
            for at, one in enumerate(result if isinstance(result, tuple | list) else [result]):
                op = target.partition(".")[0] + (f"[{at}]" if isinstance(result, tuple | list) else "")
                term = Term(op, tuple(one.shape), DTYPES[one.dtype], given, named, target=target)
                known[id(one)] = (one, term)
            return result

    with Noting():
        made = function()
    return known[id(made)][1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operators_without_their_overload(case: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    constant, expected = asked(*case)
    found = lines_run(constant_of(retyped(constant), none), missing)
    assert torch.equal(found.to(expected.dtype), expected)


def retyped(item: Any) -> Any:
    """Terms with the dtypes of their data, which those of points do without."""
    if isinstance(item, list | tuple):
        return type(item)(map(retyped, item))
    if not isinstance(item, Term):
        return item
    dtype = item.dtype if item.data is None else DTYPES[torch.as_tensor(item.data).dtype]
    kwargs = {name: retyped(value) for name, value in item.kwargs.items()}
    data = None if item.data is None else item.data.astype("f8") if item.data.dtype.kind == "f" else item.data
    return Term(item.op, item.shape, dtype, retyped(item.args), kwargs, data)


def missing(held: Held) -> Tensor:
    raise AssertionError(held)


X, N = torch.arange(12.0).reshape(3, 4) / 7, torch.arange(12).reshape(3, 4) - 5
FUNCTIONS: dict[str, Callable[[], Tensor]] = {
    "arange": lambda: torch.arange(2, 9, 3).to(torch.bfloat16),
    "einsum": lambda: torch.einsum("ij,kj->ik", X, X),
    "max": lambda: X.max(1)[0] + X.max(1)[1],
    "polar": lambda: torch.view_as_real(torch.polar(X, X)),
    "division": lambda: torch.div(N, 3, rounding_mode="floor") + torch.div(N, 3, rounding_mode="trunc"),
    "true division": lambda: N / 3 - N // 2 + N % 3,
    "powers": lambda: 10000.0 ** (N / 8) + (-2.0) ** N + X**2 + X**0.5,
    "where": lambda: torch.where(N > 0, X, 0.0) + torch.where(N > 0, 1.0, X),
    "filled": lambda: X.masked_fill(N > 0, float("-inf")),
    "index": lambda: X[torch.tensor([2, 0]), torch.tensor([[1], [0]])],
    "index after a slice": lambda: X[:, torch.tensor([2, 0])],
    "slices": lambda: X[1:, ::2] + X[-2:, 1:3] - X[0, 3],
    "scalars": lambda: (X + True) * 2 - (1 - X) + 0,
    "alpha": lambda: torch.add(X, X, alpha=3) - torch.rsub(X, X, alpha=2),
    "bits": lambda: (~N & 6 | 1 ^ N) - -N,
    "strides": lambda: torch.as_strided(X.t().contiguous(), (2, 3), (1, 2)),
    "patterns": lambda: X.view(torch.int32),
    "sorted": lambda: X.flip(1).sort(1)[0],
    "halves": lambda: torch.cos(X.half() * 3 + X.bfloat16()),
    "sums": lambda: X.sum((0, 1)) + X.mean(1, keepdim=True).sum() + X.amax((0,)).sum(),
    "rolled": lambda: torch.roll(X, (1, 1), (0, 1)),
    "no dimensions": lambda: torch.tensor(3.0).expand(()) + torch.full((), 2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    term = traced_term(FUNCTIONS[name])
    assert compared(term, none, constant_of(term, none)) == ""


def written(kind: str, *rest: Any, dtype: str = "f32", **kwargs: Any) -> Term:
    """An operator that wrote into a table of threes, under the name of its functional twin."""
    base = Term("full", (3, 4), dtype, ((3, 4), 3), {}, target="full.default")
    return Term(kind.partition(".")[0], (3, 4), dtype, (base, *rest), kwargs, target=kind)


def test_what_was_written_in_place() -> None:
    """In the dtype of what it was written into; where there is no twin, into a copy."""
    wide = tensor_term(torch.rand(3, 4, dtype=torch.float64))
    for term, by in (
        (written("add.Tensor", wide), lambda x, v: x.add_(v)),
        (written("eq.Tensor", wide), lambda x, v: x.eq_(v)),
    ):
        expected = by(torch.full((3, 4), 3.0), torch.as_tensor(wide.data))
        assert torch.equal(lines_run(constant_of(term, none), missing), expected)
    diagonal = lines_run(constant_of(written("fill_diagonal.default", 7.0), none), missing)
    assert torch.equal(diagonal, torch.full((3, 4), 3.0).fill_diagonal_(7.0))
    row = tensor_term(torch.arange(4))
    copied = Term("copy", (3, 4), "f32", (None, row), target="copy.default")
    assert torch.equal(lines_run(constant_of(copied, none), missing), torch.arange(4.0).expand(3, 4))
    like = Term("full_like", (2,), "bool", (None, True), target="full_like.default")
    assert text(like) == "mask = torch.full((2,), True, dtype=torch.bool, device=device)"


def test_readable() -> None:
    """Read once, a value stands where it is read; what is added to nothing is left out; lines are no wider than they
    may be."""
    row = Term("arange", (16,), "i64", (16,), {"device": torch.device("meta")}, target="arange.default")
    moved = Term("add", (16,), "i64", (row, 0), target="add.Tensor")
    table = Term("", (8,), "f32")
    outer = Term("outer", (16, 8), "f32", (Term("to", (16,), "f32", (moved,), target="to.dtype"), table))
    twice = Term("cat", (16, 16), "f32", ((outer, outer), -1), target="cat.default")
    cos = Term("cos", (16, 16), "f32", (twice,), target="cos.default")
    held = Held(path="rotary.inv_freq", relative=True, buffer=True)
    found = constant_of(cos, lambda term: held if term is table else None)
    assert found.text == (
        "outer = torch.outer(torch.arange(16, dtype=torch.int64, device=device).to(torch.float32), "
        'block.get_buffer("rotary.inv_freq"))\n'
        "cos = torch.cat([outer, outer], -1).cos()"
    ) or all(len(line) <= WIDTH + 20 for line in found.text.splitlines())
    assert found.held == (held,)


def test_equal_parts_are_one_line() -> None:
    def table() -> Term:
        row = Term("arange", (4,), "i64", (4,), target="arange.default")
        return Term("to", (4,), "f32", (row,), target="to.dtype")

    term = Term("mul", (4,), "f32", (table(), table()), target="mul.Tensor")
    assert text(term) == (
        "arange = torch.arange(4, dtype=torch.int64, device=device).to(torch.float32)\narange_2 = arange * arange"
    )
    other = Term("mul", (4,), "f32", (tensor_term(torch.tensor([1.0, 2.0, 3.0, 0.1])), 1.5), target="mul.Tensor")
    assert text(other).endswith("torch.tensor([1.0, 2.0, 3.0, 0.1], dtype=torch.float32, device=device) * 1.5")


def test_much_data_comes_beside() -> None:
    values = torch.rand(65).bfloat16()
    found = constant_of(tensor_term(values), none)
    assert [one.values.dtype for one in found.data] == [numpy.float32]
    assert torch.equal(lines_run(found, missing), values)


def test_what_is_not_known_is_a_problem() -> None:
    found = constant_of(Term("neg", (4,), "f32", (Term("", (4,), "f32"),), target="neg.default"), none)
    assert found.problem
    assert not found.lines


# What modules hold ---------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, shared: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.full((4,), 2.0)
        self.tables = [torch.full((4,), 3.0)]
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale.cos() + self.tables[0] + self.shared.exp()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.full((4,), 0.5)
        self.kinds = {"long": torch.full((4,), 5.0)}
        self.blocks = nn.ModuleList(Block(self.shared) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x + self.kinds["long"].sin()


def source_of(device: str) -> TorchSource:
    with torch.device(device):
        model = Model()
    hooks = Hooks(
        example_inputs=lambda batch, seq: {"x": torch.empty(batch, 4, device=device)},
        loss=lambda outputs, _: outputs.sum(),
        dims={"x": ("b", "h")},
    )
    return TorchSource(model, hooks, "model.py")


def test_attributes_of_blocks_are_read_in_blocks() -> None:
    """On the meta device nothing is known of them but where they are."""
    found = capture(source_of("meta"), batch=2, seq=4)
    assert found.fold.instances == tuple(f"blocks.{number}" for number in range(5))
    assert has_all(found)
    held = {(one.path, one.relative, one.keys) for made in found.constants.values() for one in made.held}
    assert held == {("scale", True, ()), ("tables", True, (0,)), ("shared", True, ()), ("kinds", False, ("long",))}


def test_attributes_have_the_models_values() -> None:
    source = source_of("cpu")
    assert source.hooks.example_inputs is not None
    traced = trace(source, source.hooks.example_inputs(2, 4))
    values = {law: lines_run(made, in_model(source.module)) for law, made in traced.made.items()}
    kinds = sorted(float(value.flatten()[0]) for value in values.values())
    expected = [torch.tensor(2.0).cos(), torch.tensor(5.0).sin(), torch.tensor(0.5).exp(), torch.tensor(3.0)]
    assert {round(float(one), 5) for one in expected} <= {round(one, 5) for one in kinds}


class Growing(nn.Module):
    """What it adds is made for every sequence of a batch; the shares of sequences in a batch, too, if it says so."""

    def __init__(self, shares: bool) -> None:
        super().__init__()
        self.linear, self.shares = nn.Linear(4, 4), shares

    def forward(self, x: Tensor) -> Tensor:
        rows, seq, _ = x.shape
        steps = torch.ones(rows, seq, 1, device=x.device).cumsum(1) / 7
        if self.shares:
            steps = steps / rows**2
        return self.linear(x) + steps + torch.arange(seq, device=x.device)[:, None]


def growing(shares: bool) -> TorchSource:
    with torch.device("meta"):
        model = Growing(shares)
    hooks = Hooks(
        example_inputs=lambda batch, seq: {"x": torch.empty(batch, seq, 4, device="meta")},
        loss=lambda outputs, _: outputs.sum(),
        dims={"x": ("b", "s", "h")},
    )
    return TorchSource(model, hooks, "model.py")


def test_lines_for_another_batch() -> None:
    """They are those of a capture at it."""
    few, more, six = (capture(growing(False), batch=batch, seq=8) for batch in (2, 4, 6))
    found = at_batch(few, more, 2, 6)
    assert found.keys() == few.constants.keys()
    assert sorted(one.batched for one in found.values()) == [False, True]
    assert sorted(one.text for one in found.values()) == sorted(one.text for one in six.constants.values())
    for constant in found.values():
        assert tuple(lines_run(constant, missing).shape) == constant.shape


def test_what_depends_on_the_batch_otherwise_is_a_problem() -> None:
    few, more = (capture(growing(True), batch=batch, seq=8) for batch in (2, 4))
    assert sorted(bool(one.problem) for one in at_batch(few, more, 2, 6).values()) == [False, True]


def test_what_is_drawn_is_no_constant() -> None:
    assert not writing.is_pure("poisson.default")
    assert not writing.is_pure("rand.default")
    assert writing.is_pure("arange.default")
    assert writing.is_pure("nothing.of.default")


# Any expression ------------------------------------------------------------------------------------------------------

_UNARY = ("neg.default", "abs.default", "cos.default", "sin.default", "exp.default", "floor.default", "tanh.default")
_BINARY = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "pow.Tensor_Tensor", "lt.Tensor")
_SCALAR = ("add.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar", "ge.Scalar", "eq.Scalar", "sub.Tensor")
_WAYS = ("to", "view", "transpose", "expand", "slice", "select", "cat", "where", "cumsum", "clone", "full_like", "copy")


@st.composite
def expressions(draw: st.DrawFn) -> Term:
    """Terms over each other, with the types that torch gives them."""
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.float64])
    grown: list[Term] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from([(4,), (1, 4), (3, 1), (3, 4), ()]))
        size = int(numpy.prod(shape))
        values = draw(st.lists(st.integers(-4, 4), min_size=size, max_size=size))
        grown.append(tensor_term(torch.tensor(values).reshape(shape).to(draw(dtypes))))
    for _ in range(draw(st.integers(1, 10))):
        made = next((one for one in _tried(draw, grown)), None)
        if made is not None:
            grown.append(made)
    return grown[-1]


def _tried(draw: st.DrawFn, grown: list[Term]) -> Iterator[Term]:
    """One more term, if torch computes it."""
    first, second = (draw(st.sampled_from(grown)) for _ in range(2))
    way = draw(st.sampled_from(("unary", "binary", "scalar", *_WAYS)))
    number = draw(st.sampled_from([0, 1, 2, -3, 0.5, 1.0, -1.5, True]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.int64, torch.int32]))
    dim = draw(st.integers(-2, 1))
    calls: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "unary": (draw(st.sampled_from(_UNARY)), (first,), {}),
        "binary": (draw(st.sampled_from(_BINARY)), (first, second), {}),
        "scalar": (draw(st.sampled_from(_SCALAR)), (first, number), {}),
        "to": ("_to_copy.default", (first,), {"dtype": dtype}),
        "view": ("reshape.default", (first, [-1, 1]), {}),
        "transpose": ("transpose.int", (first, 0, dim), {}),
        "expand": ("expand.default", (first, [2, *first.shape]), {}),
        "slice": ("slice.Tensor", (first, dim, draw(st.integers(-3, 2)), draw(st.integers(1, 9)), 2), {}),
        "select": ("select.int", (first, dim, -1), {}),
        "cat": ("cat.default", ([first, second, first], dim), {}),
        "where": ("where.ScalarOther", (first, second, number), {}),
        "cumsum": ("cumsum.default", (first, dim), {}),
        "clone": ("clone.default", (first,), {}),
        "full_like": ("full_like.default", (None, number), {}),
        "copy": ("copy.default", (None, first), {}),
    }
    target, args, kwargs = calls[way]
    op = target.partition(".")[0]
    if args[0] is None:
        yield Term(op, (2, *first.shape), first.dtype, args, kwargs, target=target)
        return
    like = Term(op, (), "f32", args, kwargs, target=target)
    try:
        found = natural(like)
    except (RuntimeError, IndexError, TypeError):
        return
    if found.dtype in DTYPES and found.numel() <= 4096:
        yield Term(op, tuple(found.shape), DTYPES[found.dtype], args, kwargs, target=target)


def natural(term: Term) -> Tensor:
    """What torch makes of terms, in its own dtype."""

    def value(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [value(part) for part in item]
        return reference(item, none) if isinstance(item, Term) else item

    packet, _, overload = term.target.partition(".")
    found = getattr(getattr(torch.ops.aten, packet), overload)(*value(term.args), **term.kwargs)
    assert isinstance(found, Tensor)
    return found


@given(expressions())
def test_any_expression(term: Term) -> None:
    constant = constant_of(term, none)
    assert compared(term, none, constant) == "", constant.text
    names = [name for name, _ in constant.lines]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
