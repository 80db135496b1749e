"""Forward passes as lines: what stands in a model's own code stands there, with the names of what it makes.

Torch tells of `x + 1` as `x.add(1)`; of what it writes in Python, as `2 - x` and `x // 2`, it tells the operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.route import Routes, routes_of
from meshwright.ir.route import Line, Route

Body = Callable[["Net", Tensor], Any]


FOREIGN = torch.zeros(4, device="meta")


class Pair(nn.Module):
    """Hands on what it is given, and nothing, and positions that it makes."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        return x * 2, None, torch.arange(3, device=x.device)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))


class Net(nn.Module):
    """A table, two blocks, and what a body does around them with x [batch, 3, 4]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.model = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.pair, self.inner = Pair(), Inner()
        self.scale, self.factor = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(()))
        self.register_buffer("table", torch.ones(()))
        self.table: Tensor

    def forward(self, tokens: Tensor) -> Any:
        return self.body(self, tokens)


def summed(outputs: Any, _: Any) -> Any:
    return outputs.sum()


def watched(body: Body, loss: Callable[[Any, Any], Any] = summed) -> Routes:
    """A batch of three sequences of three tokens."""
    with torch.device("meta"):
        net = Net(body)
        tokens = torch.zeros(3, 3, dtype=torch.long)
        batch = {"tokens": tokens, "targets": tokens.clone(), "weight": torch.ones(5), "unread": torch.ones(3)}
    return routes_of(net, {"tokens": tokens}, loss, batch, ("blocks.0", "blocks.1"))


def route(body: Body, loss: Callable[[Any, Any], Any] = summed, rows: int = 5) -> Route:
    return watched(body, loss).of(rows)


M = "{modules}"
X = f'model_ = {M}.get_submodule("model")(%tokens)'


def lines(body: Body) -> list[str]:
    found = route(body)
    assert found.problem == ""
    return list(map(str, found.lines))


def test_a_forward_pass_in_lines() -> None:
    def body(n: Net, tokens: Tensor) -> Tensor:
        x = n.model(tokens)
        for block in n.blocks:
            x = block(x) * n.scale
        return x

    first = Line(
        makes=("blocks_0",), expression=f'{M}.get_submodule("blocks.0")(%model_)', reads=("model_",), module="blocks.0"
    )
    scaled = Line(
        makes=("mul",), expression=f'%blocks_0.mul({M}.get_parameter("scale"))', reads=("blocks_0",), holds=("scale",)
    )
    found = route(body)
    assert found.lines[1:3] == (first, scaled)
    assert list(map(str, found.lines)) == [
        X,
        f'blocks_0 = {M}.get_submodule("blocks.0")(%model_)',
        f'mul = %blocks_0.mul({M}.get_parameter("scale"))',
        f'blocks_1 = {M}.get_submodule("blocks.1")(%mul)',
        f'mul_2 = %blocks_1.mul({M}.get_parameter("scale"))',
    ]
    assert (found.result, found.within, found.strided, found.created, found.targets) == ("mul_2", "", (), (), ())
    shape = ("f32", (5, 3, 4))
    wide = [(name, *shape) for name in ("model_", "blocks_0", "mul", "blocks_1", "mul_2")]
    assert found.shapes == (("tokens", "i64", (5, 3)), *wide)


EXPRESSIONS: Mapping[str, tuple[Callable[[Net, Tensor], Any], str]] = {
    "x + 1": (lambda n, x: x + 1, "add = %model_.add(1)"),
    "1 + x": (lambda n, x: 1 + x, "add = %model_.add(1)"),
    "x - x": (lambda n, x: x - x, "sub = %model_.sub(%model_)"),
    "2 - x": (lambda n, x: 2 - x, "rsub = 2 - %model_"),
    "-2 - x": (lambda n, x: -2 - x, "rsub = (-2) - %model_"),
    "x * -2": (lambda n, x: x * -2, "mul = %model_.mul(-2)"),
    "x / 2.5": (lambda n, x: x / 2.5, "div = %model_.div(2.5)"),
    "2 / x": (lambda n, x: 2 / x, "rdiv = 2 / %model_"),
    "x // 2": (lambda n, x: x // 2, "floordiv = %model_ // 2"),
    "x % 2": (lambda n, x: x % 2, "remainder = %model_.remainder(2)"),
    "x ** 2": (lambda n, x: x**2, "pow_ = %model_ ** 2"),
    "2 ** x": (lambda n, x: 2**x, "rpow = 2 ** %model_"),
    "x @ w": (lambda n, x: x @ n.scale, f'matmul = %model_.matmul({M}.get_parameter("scale"))'),
    "x > 0": (lambda n, x: x > 0, "gt = %model_.gt(0)"),
    "x >= 0": (lambda n, x: x >= 0, "ge = %model_.ge(0)"),
    "x < 0": (lambda n, x: x < 0, "lt = %model_.lt(0)"),
    "x <= 0": (lambda n, x: x <= 0, "le = %model_.le(0)"),
    "x == 0": (lambda n, x: x == 0, "eq = %model_ == 0"),
    "x != 0": (lambda n, x: x != 0, "ne = %model_.ne(0)"),
    "-x": (lambda n, x: -x, "neg = %model_.neg()"),
    "a number of the model": (lambda n, x: x * n.factor, f"mul = %model_.mul(cast(Tensor, {M}.factor))"),
    "a number of a module": (
        lambda n, x: x * n.inner.factor,
        f'mul = %model_.mul(cast(Tensor, {M}.get_submodule("inner").factor))',
    ),
    "a buffer": (lambda n, x: x * n.table, f'mul = %model_.mul({M}.get_buffer("table"))'),
    "x[0]": (lambda n, x: x[0], "getitem = %model_[0]"),
    "x[:, 1:]": (lambda n, x: x[:, 1:], "getitem = %model_[:, 1:]"),
    "x[..., None]": (lambda n, x: x[..., None], "getitem = %model_[..., None]"),
    "x[:, ::2]": (lambda n, x: x[:, ::2], "getitem = %model_[:, ::2]"),
    "x[:, 0:2:1]": (lambda n, x: x[:, 0:2:1], "getitem = %model_[:, 0:2:1]"),
    "x[:, [0, 2]]": (lambda n, x: x[:, [0, 2]], "getitem = %model_[:, [0, 2]]"),
    "flatten": (lambda n, x: x.flatten(1), "flatten = %model_.flatten(1)"),
    "to": (lambda n, x: x.to(torch.float64), "to = %model_.to(torch.float64)"),
    "sum": (lambda n, x: x.sum(dim=(1,), keepdim=True), "sum_ = %model_.sum(dim=(1,), keepdim=True)"),
    "relu": (lambda n, x: F.relu(x), "relu = F.relu(%model_, inplace=False)"),
    "cat": (lambda n, x: torch.cat([x, x], dim=-1), "cat = torch.cat([%model_, %model_], dim=-1)"),
    "cat of a tuple": (lambda n, x: torch.cat((x,)), "cat = torch.cat((%model_,))"),
    "ones": (lambda n, x: torch.ones(3, device=x.device), "ones = torch.ones(3, device={device})"),
    "as many rows": (lambda n, x: x.reshape(x.shape[0], 12), "reshape = %model_.reshape({rows*1}, 12)"),
    "more rows": (lambda n, x: x.reshape(6 * len(x), 2), "reshape = %model_.reshape({rows*6}, 2)"),
    "a number like that of rows": (lambda n, x: x.reshape(-1, 2), "reshape = %model_.reshape(-1, 2)"),
    "two results": (lambda n, x: x.split(2, -1)[1], "split, split_2 = %model_.split(2, dim=-1)"),
}


def test_an_expression_stands_as_it_was_written() -> None:
    for name, (body, wanted) in EXPRESSIONS.items():

        def around(n: Net, tokens: Tensor, body: Any = body) -> Any:
            return body(n, n.model(tokens))

        assert lines(around) == [X, wanted], name


def test_masks() -> None:
    def body(n: Net, tokens: Tensor) -> Tensor:
        seen, first = tokens > 1, tokens < 5
        return (~seen & first | seen ^ first).float()

    assert lines(body) == [
        "gt = %tokens.gt(1)",
        "lt = %tokens.lt(5)",
        "invert = ~%gt",
        "and_ = %invert & %lt",
        "xor = %gt ^ %lt",
        "or_ = %and_ | %xor",
        "float_ = %or_.float()",
    ]


def test_a_module_of_several_results() -> None:
    """One that is nothing has no name. What a module makes out of nothing is told apart, as it can be made without it;
    its arguments are written whatever they are."""

    def body(n: Net, tokens: Tensor) -> Tensor:
        x = n.model(tokens)
        more, _, places = n.pair(x, [x, None], {"of": tokens}, name="a", pair=(x, 1.5), kind=torch.bfloat16)
        return more + places[:, None]

    found = route(body)
    given = '%model_, [%model_, None], {"of": %tokens}, name="a", pair=(%model_, 1.5), kind=torch.bfloat16'
    assert list(map(str, found.lines)) == [
        X,
        f'pair, _, pair_2 = {M}.get_submodule("pair")({given})',
        "getitem = %pair_2[:, None]",
        "add = %pair.add(%getitem)",
    ]
    assert found.lines[1].reads == ("model_", "tokens")
    assert found.created == (Line(makes=("pair_2",), expression="torch.arange(3, device={device})", reads=()),)


def test_what_lies_otherwise_is_told() -> None:
    found = route(lambda n, tokens: n.model(tokens).transpose(0, 1) * 1)
    assert found.strided == ("transpose", "mul")
    assert found.shapes[2:] == (("transpose", "f32", (3, 5, 4)), ("mul", "f32", (3, 5, 4)))


def test_values_that_hang_on_nothing_are_computed() -> None:
    """So a model may ask for them: 0 + 1 + 2 is 3; `double` is what is left of a choice."""

    def body(n: Net, tokens: Tensor) -> Tensor:
        x = n.model(tokens)
        places = torch.arange(3, device=x.device)
        if (places + torch.ones(3, device=x.device)).sum() == 6 and int(places.max()) == 2:
            x = x.double()
        return x

    assert lines(body)[0] == X
    assert lines(body)[-1] == "double = %model_.double()"


def test_a_tensor_that_is_known_has_no_second_line() -> None:
    assert lines(lambda n, tokens: n.model(tokens).contiguous() + 1) == [X, "add = %model_.add(1)"]


PROBLEMS: Mapping[str, tuple[Callable[[Net, Tensor], Any], str]] = {
    "in place": (
        lambda n, x: x.add_(1),
        "it calls torch.Tensor.add_, which changes a tensor in place, outside of blocks",
    ),
    "a part": (
        lambda n, x: (x.__setitem__(0, 1.0), x)[1],
        "it calls torch.Tensor.__setitem__, which changes a tensor in place, outside of blocks",
    ),
    "an operator in place": (
        lambda n, x: operator.ipow(x, 2),
        "it calls torch.Tensor.__ipow__, which changes a tensor in place, outside of blocks",
    ),
    "elsewhere": (
        lambda n, x: torch.linalg.vector_norm(x, dim=-1),
        "it calls torch.linalg.vector_norm outside of blocks",
    ),
    "a tensor of nobody's": (
        lambda n, x: x + FOREIGN,
        "it reads a tensor that is neither an input nor a parameter nor a buffer",
    ),
    "an object": (
        lambda n, x: n.pair(x, SimpleNamespace())[0],
        "it hands on a SimpleNamespace outside of blocks",
    ),
    "keys that are no words": (lambda n, x: n.pair(x, {1: x})[0], "it hands on a dict outside of blocks"),
    "other lines": (lambda n, x: x if len(x) > 2 else x * 2, "other lines run for another size of the batch"),
    "another function": (
        lambda n, x: x.relu() if len(x) > 2 else x.tanh(),
        "other lines run for another size of the batch",
    ),
    "one more than rows": (lambda n, x: x * (len(x) + 1), "other lines run for another size of the batch"),
    "half of the rows": (lambda n, x: x * (len(x) // 2), "other lines run for another size of the batch"),
    "squares of rows": (lambda n, x: x * len(x) ** 2, "other lines run for another size of the batch"),
}


def test_what_cannot_stand_as_a_line() -> None:
    for name, (body, wanted) in PROBLEMS.items():

        def around(n: Net, tokens: Tensor, body: Any = body) -> Any:
            return body(n, n.model(tokens))

        assert route(around) == Route(problem=wanted), name


def test_what_the_loss_reads() -> None:
    """Of the batch; and of an output that is no tensor, by attribute or by name, the one that it reads. Entries that
    are not as long as the batch are handed on whole."""

    def loss(outputs: Any, batch: Any) -> Tensor:
        assert batch["weight"].shape == (5,)
        return F.cross_entropy(outputs.logits.flatten(0, 1), batch["targets"].flatten() * batch["targets"].flatten())

    class Named(dict[str, Any]):
        __getattr__ = dict.__getitem__

    def body(n: Net, tokens: Tensor) -> Any:
        x = n.model(tokens)
        return Named(logits=x * 2, hidden=x, count=3)

    found = route(body, loss)
    assert (found.result, found.inside, found.targets) == ("loss", True, ("weight", "targets"))
    said = 'loss = {loss}(SimpleNamespace(logits=%mul), {"weight": %weight, "targets": %targets})'
    assert str(found.lines[-1]) == said
    one = route(body, lambda outputs, batch: outputs.logits.sum() * batch["targets"].sum())
    assert (one.result, one.within, one.inside, one.targets) == ("mul", "logits", False, ("targets",))
    by_key = route(lambda n, tokens: SimpleNamespace(a=n.model(tokens)), lambda outputs, _: outputs["a"].sum())
    assert (by_key.result, by_key.within, by_key.targets) == ("model_", "a", ())
    by_number = route(lambda n, tokens: (n.model(tokens),), lambda outputs, _: outputs[0].sum())
    assert str(by_number.lines[-1]) == "loss = {loss}((%model_,), {})"
    both = route(body, lambda outputs, _: (outputs.logits + outputs.hidden).sum())
    assert str(both.lines[-1]) == "loss = {loss}(SimpleNamespace(logits=%mul, hidden=%model_), {})"
    assert route(body, lambda outputs, _: outputs.logits.sum() * outputs.count).within == "logits"


def test_a_loss_that_the_model_returns() -> None:
    """By itself, in a dict, in a tuple; and entries of the batch whose names lines have for something else."""

    def body(n: Net, tokens: Tensor) -> Tensor:
        return n.model(tokens).square().mean()

    for form in (lambda one: one, lambda one: {"loss": one, "count": 3}, lambda one: (one[None], one)):
        found = route(lambda n, tokens, form=form: form(body(n, tokens)), None)
        assert (found.result, found.inside, found.targets, found.problem) == ("mean", True, (), "")
    assert (
        route(lambda n, tokens: n.model(tokens), None).problem == "the loss that it returns is made inside of a block"
    )
