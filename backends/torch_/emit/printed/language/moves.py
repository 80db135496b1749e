"""The functions that printed code calls and torch lacks: moves of values between ranks, and operators that depend on
which part a rank has. A script has those that it uses, and what these use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from meshwright.backends.torch_.emit.printed.language.ring import EVERY_RING
from meshwright.backends.torch_.emit.printed.language.rows import ROWS

MOVES = '''\
class Moved(torch.autograd.Function):
    """A value as it is brought elsewhere, and its gradient as it is brought back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad.contiguous()), None, None


def moved(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """What `there` makes of a value; `back` makes of its gradient that of the value."""
    return cast(Tensor, Moved.apply(x, there, back))


Move = Callable[[Tensor], Tensor]


class Several(torch.autograd.Function):
    """A value brought to several places at once: alike ways are gone once, there and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: Sequence[tuple[int, Move, int, Move]]) -> tuple[Tensor, ...]:
        ctx.ways = ways
        moves = {number: there for number, there, _, _ in ways}
        made = {number: there(x) for number, there in moves.items()}
        return tuple(made[number].view_as(made[number]) for number, _, _, _ in ways)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sums: dict[int, Tensor] = {}
        for (_, _, number, _), grad in zip(ctx.ways, grads, strict=True):
            sums[number] = sums[number] + grad if number in sums else grad
        backs = {number: back for _, _, number, back in ctx.ways}
        return functools.reduce(torch.add, [backs[n](grad.contiguous()) for n, grad in sums.items()]), None


def several(x: Tensor, *ways: tuple[int, Move, int, Move]) -> tuple[Tensor, ...]:
    """A value for several readers; of each, the number of a move and the move, there and back."""
    return cast("tuple[Tensor, ...]", Several.apply(x, ways))


def as_it_is(x: Tensor) -> Tensor:
    """The value itself, as another tensor: what a function of autograd returns is none of its inputs."""
    return x.view_as(x)


def in_parts(x: Tensor, ranks: DeviceMesh) -> Tensor:
    """The value itself; of its gradient, which all ranks compute whole, each gives an equal part."""
    return moved(x, as_it_is, lambda grad: grad / ranks.size())


def order_of(extent: int, parts: int, sections: Sequence[int], zigzag: bool) -> list[Tensor]:
    """The indices that each rank has of a dimension. Each of its `sections` is cut; `zigzag` gives a rank the n-th run
    from the front and the n-th from the back."""
    runs = torch.arange(extent).split(list(sections) or [extent])
    if not zigzag:
        return [torch.cat([run.chunk(parts)[n] for run in runs]) for n in range(parts)]
    halves = [run.chunk(2 * parts) for run in runs]
    return [torch.cat([half for run in halves for half in (run[n], run[-1 - n])]) for n in range(parts)]


def cut(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """This rank's part of what all have."""
    here, parts = ranks.get_local_rank(), ranks.size()
    if not sections and not zigzag:
        return x.chunk(parts, dim)[here].clone(memory_format=torch.contiguous_format)
    own = order_of(x.shape[dim], parts, sections, zigzag)[here]
    return x.index_select(dim, own.to(x.device))


def waited(x: Tensor) -> Tensor:
    """What a collective makes, once it is there. Code that is compiled waits by itself; to wait again would part the
    collective from the product that it can be joined with."""
    return cast(Tensor, x.wait()) if isinstance(x, funcol.AsyncCollectiveTensor) else x


def all_gather(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole, of the parts that ranks have."""
    whole = waited(funcol.all_gather_tensor(x.contiguous(), dim, ranks.get_group()))
    return in_order(whole, ranks, dim, sections, zigzag) if sections or zigzag else whole


def all_reduce(x: Tensor, ranks: DeviceMesh, by: str = "sum") -> Tensor:
    """The sum over ranks, or the maximum."""
    return waited(funcol.all_reduce(x.contiguous(), by, ranks.get_group()))


def reduce_scatter(
    x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Tensor:
    """This rank's part of the sum over ranks."""
    if sections or zigzag:
        x = x.index_select(dim, torch.cat(order_of(x.shape[dim], ranks.size(), sections, zigzag)).to(x.device))
    return waited(funcol.reduce_scatter_tensor(x.contiguous(), "sum", dim, ranks.get_group()))


def all_to_all(
    x: Tensor, ranks: DeviceMesh, joined: int, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Tensor:
    """Parts along `joined` are put together, and the whole is cut along `dim`."""
    if sections or zigzag:
        x = x.index_select(dim, torch.cat(order_of(x.shape[dim], ranks.size(), sections, zigzag)).to(x.device))
    sent = torch.stack(x.chunk(ranks.size(), dim))
    received = waited(funcol.all_to_all_single(sent, None, None, ranks.get_group()))
    return torch.cat(received.unbind(), joined)


def in_order(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole of a dimension in which the parts of ranks, cut in sections or zigzag, stand one after another."""
    order = torch.cat(order_of(x.shape[dim], ranks.size(), sections, zigzag))
    return x.index_select(dim, order.argsort().to(x.device))


def on_first(x: Tensor, ranks: DeviceMesh) -> Tensor:
    """The value on the first rank, zeros on the others: so that the sum is the value."""
    return x.view_as(x) if ranks.get_local_rank() == 0 else torch.zeros_like(x)


def among_zeros(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """This rank's part where it stands in the whole, and zeros: so that the sum is the whole."""
    shape = list(x.shape)
    shape[dim] *= ranks.size()
    own = order_of(shape[dim], ranks.size(), sections, zigzag)[ranks.get_local_rank()]
    return x.new_zeros(shape).index_copy(dim, own.to(x.device), x)


def copy_to(x: Tensor, ranks: DeviceMesh) -> Tensor:
    """A value for operators of which each rank has a part; the gradients that ranks have are added up."""
    return moved(x, as_it_is, lambda grad: all_reduce(grad, ranks))


def reduce_from(x: Tensor, ranks: DeviceMesh) -> Tensor:
    """The sum of what ranks have."""
    return moved(x, lambda part: all_reduce(part, ranks), as_it_is)


def gather_from(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole, for operators of which each rank has a part; gradients are added up, and each rank gets its part."""
    return moved(
        x,
        lambda part: all_gather(part, ranks, dim, sections, zigzag),
        lambda grad: reduce_scatter(grad, ranks, dim, sections, zigzag),
    )


def gather_copies(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole, for operators that all ranks run alike; of the gradient each rank takes its part."""
    return moved(
        x,
        lambda part: all_gather(part, ranks, dim, sections, zigzag),
        lambda grad: cut(grad, ranks, dim, sections, zigzag),
    )


def scatter_to(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """This rank's part; the parts of the gradient are put together."""
    return moved(
        x,
        lambda whole: cut(whole, ranks, dim, sections, zigzag),
        lambda grad: all_gather(grad, ranks, dim, sections, zigzag),
    )


def reduce_scatter_to(
    x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Tensor:
    """This rank's part of the sum of what ranks have; the parts of the gradient are put together."""
    return moved(
        x,
        lambda whole: reduce_scatter(whole, ranks, dim, sections, zigzag),
        lambda grad: all_gather(grad, ranks, dim, sections, zigzag),
    )


def exchange(x: Tensor, ranks: DeviceMesh, joined: int, dim: int) -> Tensor:
    """What is cut along `joined`, cut along `dim` instead; the gradient goes the other way."""
    return moved(
        x,
        lambda part: all_to_all(part, ranks, joined, dim),
        lambda grad: all_to_all(grad, ranks, dim, joined),
    )


def local(weight: Any) -> Tensor:
    """This rank's part of a parameter."""
    return cast(Tensor, weight.to_local())


def local_of_sum(weight: Any) -> Tensor:
    """This rank's part of a parameter whose gradient is the sum of those that ranks have."""
    parts = [Partial() if isinstance(one, Replicate) else one for one in weight.placements]
    return cast(Tensor, weight.to_local(grad_placements=parts))


def own_rows(index: Tensor, ranks: DeviceMesh, rows: int) -> tuple[Tensor, Tensor]:
    """Global indices as those of this rank's rows, and which of them it has; the others are 0."""
    row = index - ranks.get_local_rank() * rows
    found = (row >= 0) & (row < rows)
    return row.where(found, 0), found


def embedding_part(weight: Tensor, index: Tensor, ranks: DeviceMesh, padding: int | None = None) -> Tensor:
    """Rows of a table of which each rank has a part; zeros for what others have."""
    row, found = own_rows(index, ranks, len(weight))
    if padding is not None:
        own = padding - ranks.get_local_rank() * len(weight)
        padding = own if 0 <= own < len(weight) else None
    rows = F.embedding(row, weight) if padding is None else F.embedding(row.where(found, padding), weight, padding)
    return rows.masked_fill(~found[..., None], 0)


def gather_part(x: Tensor, dim: int, index: Tensor, ranks: DeviceMesh) -> Tensor:
    """Elements along a dimension of which each rank has a part; zeros for what others have."""
    row, found = own_rows(index, ranks, x.shape[dim])
    return torch.gather(x, dim, row) * found


def select_part(x: Tensor, dim: int, index: Tensor, ranks: DeviceMesh) -> Tensor:
    """Slices along a dimension of which each rank has a part, counted from the end where negative; zeros for others."""
    row, found = own_rows(index % (x.shape[dim] * ranks.size()), ranks, x.shape[dim])
    shape = [1] * x.ndim
    shape[dim] = -1
    return x.index_select(dim, row) * found.view(shape)


def scatter_part(x: Tensor, dim: int, index: Tensor, source: Tensor | float, ranks: DeviceMesh, add: bool) -> Tensor:
    """Writes along a dimension of which each rank has a part; those of others go nowhere."""
    row, found = own_rows(index, ranks, x.shape[dim])
    grown = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    row = row.where(found, x.shape[dim])
    if add:
        assert isinstance(source, Tensor)
        grown = grown.scatter_add(dim, row, source)
    else:
        grown = grown.scatter(dim, row, source)  # type: ignore[call-overload]
    return grown.narrow(dim, 0, x.shape[dim])


def nll_part(scores: Tensor, labels: Tensor, ranks: DeviceMesh, ignored: int) -> Tensor:
    """The negative log-likelihood of each label, where ranks have parts of the classes; zeros for what others have."""
    row, found = own_rows(labels.masked_fill(labels == ignored, 0), ranks, scores.shape[-1])
    return -scores.gather(-1, row[..., None])[..., 0] * (found & (labels != ignored))


def seen(mask: str, width: int, queries: Tensor, keys: Tensor, shift: int) -> Tensor:
    """Which keys each query sees, both given by position; `shift` lines the last query up with the last key."""
    at, key = (queries + shift)[:, None], keys[None, :]
    if mask == "causal":
        return key <= at
    if mask == "window":
        return (key <= at) & (key > at - width)
    if mask == "band":
        return (key < at + width) & (key > at - width)
    return (key <= at) & (key >= at // width * width)


def of_visits(mask: str, width: int, query: Tensor, ranks: DeviceMesh) -> list[Tensor]:
    """Which keys this rank's queries see, of every rank's keys in the order in which they come by in a ring."""
    here, size, many = ranks.get_local_rank(), ranks.size(), query.shape[2]
    runs = torch.arange(size * many, device=query.device).chunk(size)
    return [seen(mask, width, runs[here], runs[(here - hop) % size], 0) for hop in range(size)]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: str,
    *,
    width: int = 0,
    queries: Tensor | None = None,
    shift: int = 0,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of queries at certain positions to all keys."""
    at = torch.arange(query.shape[2], device=query.device) if queries is None else queries
    shown = seen(mask, width, at, torch.arange(key.shape[2], device=query.device), shift)
    if bias is not None:
        hidden = torch.zeros(shown.shape, dtype=query.dtype, device=query.device).masked_fill(~shown, float("-inf"))
        shown = bias + hidden
    many = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, shown, dropout, scale=scale, enable_gqa=many)


def attend_in_runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ranks: DeviceMesh,
    *,
    zigzag: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Causal attention of this rank's queries, which are runs of all, to all keys: each run to those until its end."""
    parts, here, many = ranks.size(), ranks.get_local_rank(), query.shape[1] != key.shape[1]
    ends = [here + 1, 2 * parts - here] if zigzag else [here + 1]
    found = []
    for run, end in zip(query.chunk(len(ends), 2), ends, strict=True):
        until = end * run.shape[2]
        mask = causal_lower_right(run.shape[2], until)
        given = run, key[:, :, :until], value[:, :, :until], mask, dropout
        found.append(F.scaled_dot_product_attention(*given, scale=scale, enable_gqa=many))
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def drawn_apart(draw: Callable[[], Tensor], *axes: DeviceMesh) -> Tensor:
    """A value with drawn numbers, of which the ranks along some axes have parts: each draws numbers of its own."""
    common, place = (torch.initial_seed() * 6364136223846793005 + 1442695040888963407) % 2**62, 0  # Knuth's MMIX
    for ranks in axes:
        place = place * ranks.size() + ranks.get_local_rank()
    torch.manual_seed(common + 1 + place)
    drawn = draw()
    torch.manual_seed(common)  # all go on alike
    return drawn


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Samples normalized by channel, and the statistics that follow."""
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps), mean, var


class Moments(torch.autograd.Function):
    """The means of values and of their squares, by channel. Of all that is made on the way nothing is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.share = share
        wide = x if x.dtype == torch.float64 else x.float()
        var, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
        mean, var = mean.double(), var.double()  # of squares little may be left
        return torch.stack((mean, var + mean.square())) * share

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        each = grads[0] * (ctx.share * x.shape[1] / x.numel())
        by_one, by_x = each.to(torch.promote_types(x.dtype, torch.float32)).unflatten(1, (-1, *[1] * (x.ndim - 2)))
        return (2 * by_x * x + by_one).to(x.dtype), None


def batch_moments(x: Tensor, share: float) -> Tensor:
    """The share of these samples in the means of all values and of their squares, by channel."""
    return cast(Tensor, Moments.apply(x, share))


class Normalized(torch.autograd.Function):
    """Samples normalized by given moments, in one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, moments: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, moments, weight)
        ctx.eps, kind = eps, torch.promote_types(x.dtype, torch.float32)
        mean, var = moments[0], moments[1] - moments[0].square()
        return F.batch_norm(x, mean.to(kind), var.to(kind), weight.to(kind), bias.to(kind), eps=eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, moments, weight = ctx.saved_tensors
        mean, var = moments[0], moments[1] - moments[0].square()
        kind = torch.promote_types(x.dtype, torch.float32)
        given = weight.to(kind), mean.to(kind), var.to(kind), None, None, False, ctx.eps, (True, True, True)
        of_x, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(grads[0], x, *given)
        spread = (var + ctx.eps).rsqrt()
        by_var = -0.5 * weight * of_weight * spread.square()
        by_mean = -weight * of_bias * spread - 2 * mean * by_var
        return of_x, torch.stack((by_mean, by_var)), of_weight.to(weight.dtype), of_bias.to(weight.dtype), None


def batch_normalize(x: Tensor, moments: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Samples as so many spreads from the mean, by channel, scaled and shifted."""
    return cast(Tensor, Normalized.apply(x, moments, weight, bias, eps))


FLOAT8 = convert_to_float8_training(nn.Linear(16, 16, bias=False, device="meta"))


def linear_in_float8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product in float8, as torchao multiplies in modules: one scale for what a rank has of an operand."""
    product = cast(Tensor, functional_call(FLOAT8, {"weight": weight}, (x,)))
    return product if bias is None else product + bias.to(product.dtype)


'''
TEXT = MOVES + ROWS


@lru_cache(maxsize=16)
def _parts(whole: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Every function and class of a text, by name, with the names that it uses."""
    found, lines = {}, whole.splitlines()
    for node in ast.parse(whole).body:
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        used = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = text, used
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = text, used - {node.targets[0].id}
    return found


NAMES = frozenset(name for text in (TEXT, *EVERY_RING) for name in _parts(text))
"""The names of these functions: code around them calls nothing else so."""


def used_by(names: Iterable[str], ring: str) -> Iterator[str]:
    """The functions with these names, and all that they use, in the order of the text; `ring` is the text of those for
    ring attention."""
    parts, wanted, left = _parts(TEXT) | _parts(ring), set[str](), list(names)
    while left:
        name = left.pop()
        if name in parts and name not in wanted:
            wanted.add(name)
            left += parts[name][1]
    yield from (text for name, (text, _) in parts.items() if name in wanted)
