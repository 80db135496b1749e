"""What cuts sequences: modules that compute on this rank's tokens, and attention among all of them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.context import SEQUENCE, Body, Context
from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.writing.attention import CALLED, MADE
from meshwright.backends.torch_.emit.writing.lines import indented
from meshwright.backends.torch_.emit.writing.ring import ring
from meshwright.ir.quoting import literal

MODES = {"all_gather": "AttentionToAll", "ulysses": "AttentionOfHeads", "ring": "AttentionInRing"}


def cut_sequences(parts: Parts, context: Context) -> Iterator[str]:
    """What `parallelize` does to modules."""
    over = "mesh" if parts.cut_again is not None else "context"
    yield f'    context = mesh["{context.axis}"]'
    for body in context.bodies:
        lines = list(of_body(context, body, over))
        if body.piece.repeated:
            yield from indented((*parts.loop(body.piece), *(f"    {line}" for line in lines)))
        elif lines:
            yield from parts.only(body.piece, indented(tuple(lines)))


def of_body(context: Context, body: Body, over: str) -> Iterator[str]:
    """What is done to the modules of one body."""
    holder = "block" if body.piece.repeated else "model"
    for own in (*body.own, *(own for one in body.inside for own in one.own)):
        table = f", tables={own.table}" if own.table is not None else ""
        dim = f", dim={own.dim}" if own.dim != SEQUENCE and own.leaves else ""
        plain = "" if own.leaves else ", leaves=False"
        yield f"on_own_tokens({_at(holder, own.path)}, {over}{table}{dim}{plain})"
    for one in body.inside:
        yield f"see_whole({_at(holder, one.path)}, context)"
    for path in body.unmasked:
        yield f"run_within({_at(holder, path)}, Unmasked())"
    for path, kind in body.attention:
        yield f"run_within({_at(holder, path)}, {MODES[kind]}(context))"


def _at(holder: str, path: str) -> str:
    return f"{holder}.get_submodule({literal(path)})" if path else holder


PART = '''\
def part(tensor: Tensor, dim: int, ranks: DeviceMesh) -> Tensor:
    """This rank's positions, of all."""
    return tensor.chunk(ranks.size(), dim)[ranks.get_local_rank()]'''

GATHER = (
    '''\
class AttentionToAll(TorchFunctionMode):
    """While it is entered, this rank's queries attend to the keys and values of all tokens."""

    def __init__(self, context: DeviceMesh) -> None:
        super().__init__()
        self.context = context
        own = SEQ // context.size()
        self.seen = own * (context.get_local_rank() + 1)
        self.mask = causal_lower_right(own, self.seen)
'''
    + CALLED
    + '''\
    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False, **options: Any
    ) -> Tensor:
        """All of [batch, heads, tokens, width]."""
        key, value = self.gathered(key), self.gathered(value)
        if is_causal:
            key, value, options = key[:, :, : self.seen], value[:, :, : self.seen], options | {"attn_mask": self.mask}
        return F.scaled_dot_product_attention(query, key, value, **options)

    def gathered(self, tensor: Tensor) -> Tensor:
        """That of all tokens; each rank is given back the sum of the gradients of its own."""
        whole = DTensor.from_local(tensor, self.context, [Shard(2)]).redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial()])'''
)

ULYSSES = (
    '''\
class AttentionOfHeads(TorchFunctionMode):
    """While it is entered, attention is exchanged: each rank computes it for all tokens and some of the heads."""

'''
    + MADE
    + CALLED
    + '''\
    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """All of [batch, heads, tokens, width]."""
BIAS        query, key, value = (self.exchanged(tensor, cut=1, joined=2) for tensor in (query, key, value))
        return self.exchanged(F.scaled_dot_product_attention(query, key, value, **options), cut=2, joined=1)

    def exchanged(self, tensor: Tensor, *, cut: int, joined: int) -> Tensor:
        """The parts that all ranks cut off for this one, joined."""
        parts = torch.stack(tensor.chunk(self.ranks.size(), cut))
        received = funcol.all_to_all_single_autograd(parts, None, None, self.ranks)
        return torch.cat(received.unbind(), joined)'''
)


BIAS = """\
        mask = options.get("attn_mask")
        if mask is not None and mask.shape[1] == query.shape[1]:  # a bias of each head
            options["attn_mask"] = self.exchanged(mask, cut=1, joined=2)
"""

UNMASKED = '''\
class Unmasked(TorchFunctionMode):
    """While it is entered, attention is given no mask: one of this rank's tokens alone, which hides nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            given.pop("attn_mask", None)
        return func(*args, **given)'''

WHOLE = '''\
class AsWhole(Tensor):
    """Stands for a sequence in code that asks for its length alone, and hands it on."""

    own: Tensor


class WholeSequences(TorchFunctionMode):
    """While it is entered, what is made of sequences are DTensors, and a module's own code sees all of it: of tables
    that it makes of all positions this rank takes its rows."""

    def __init__(self, context: DeviceMesh) -> None:
        super().__init__()
        self.context = context

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            given = {name: self.own(value) for name, value in given.items()}
            return self.whole(func(*(self.own(value) for value in args), **given))
        if any(isinstance(value, DTensor) and value.device_mesh == self.context for value in args):
            args = tuple(self.rows(value) for value in args)
        return func(*args, **given)

    def own(self, value: Any) -> Any:
        """This rank's part."""
        if isinstance(value, tuple):
            return tuple(self.own(one) for one in value)
        here = isinstance(value, DTensor) and value.device_mesh == self.context
        return value.to_local() if here else value

    def whole(self, value: Any) -> Any:
        """All of what this rank has rows of."""
        return DTensor.from_local(value, self.context, [Shard(value.ndim - 2)])

    def given(self, value: Any) -> Any:
        """What stands for an argument: a sequence, or rows for each head."""
        if not isinstance(value, Tensor) or value.ndim not in (3, 4):
            return value
        if value.ndim == 4:
            return self.whole(value)
        shape = (value.shape[0], SEQ, value.shape[2])
        sequence = torch.empty(shape, dtype=value.dtype, device="meta").as_subclass(AsWhole)
        sequence.own = value
        return sequence

    def rows(self, value: Any) -> Any:
        """This rank's rows of a table."""
        table = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape[-2:-1] == (SEQ,)
        return self.whole(part(value, -2, self.context)) if table else value'''

INSIDE = '''\
def see_whole(module: nn.Module, context: DeviceMesh) -> None:
    """Have a module's own code see whole sequences. It is given, and returns, this rank's part."""
    run, mode = module.forward, WholeSequences(context)

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = {name: mode.given(value) for name, value in kwargs.items()}
        with mode:
            result = run(*(mode.given(value) for value in args), **given)
        return mode.own(result)

    module.forward = forward'''


def own_tokens(context: Context, again: str | None) -> Iterator[str]:
    """`again`: the tensor axis, where it cuts sequences too; they are DTensors over both axes then."""
    mesh, over = ("mesh", f'mesh["{context.axis}"]') if again is not None else ("context", "context")
    dim = ", dim: int = 1" if context.inside else ""
    options = f"*, tables: int | None = None{dim}, leaves: bool = True"
    arguments = f"module: nn.Module, {mesh}: DeviceMesh, {options}"
    if dim:
        yield from ("def on_own_tokens(", f"    {arguments}", ") -> None:")
    else:
        yield f"def on_own_tokens({arguments}) -> None:"
    yield '    """Have a module compute on this rank\'s tokens. Around it sequences are DTensors, and the model\'s own'
    yield "    code sees all of it. Of `tables` of all positions it is given its part, cut along that dimension."
    yield '    """'
    yield ""
    yield "    def own(value: Any) -> Any:"
    yield "        if isinstance(value, tuple):"
    yield "            return tuple(own(one) for one in value)"
    if context.inside:
        yield "        if isinstance(value, AsWhole):"
        yield "            return value.own"
    yield "        if isinstance(value, DTensor):"
    if again is None:
        yield "            return value.to_local()"
    else:
        yield "            local = value.to_local()"
        yield f'            cut_again = DTensor.from_local(local, mesh["{again}"], [Shard(1)])'
        yield "            return cut_again if value.device_mesh.ndim > 1 else local"
    if context.masked and "ulysses" in context.kinds:
        yield "        if isinstance(value, Tensor) and value.dtype is torch.bool:"
        yield "            return value  # a mask stays whole: some of the heads attend for all tokens"
    yield "        if tables is not None and isinstance(value, Tensor) and value.shape[tables:][:1] == (SEQ,):"
    yield f"            return part(value, tables, {over})"
    yield "        return value"
    yield ""
    yield "    def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:"
    yield "        return own(args), {name: own(value) for name, value in kwargs.items()}"
    yield ""
    if context.several:
        yield "    def leave(module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:"
        yield "        if isinstance(result, tuple):  # sequences, and what else it hands on"
        yield "            return tuple(leave(module, args, one) for one in result)"
        yield "        if not isinstance(result, Tensor) or result.ndim > 3:"
        yield "            return result"
    else:
        yield "    def leave(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:"
    if again is not None:
        yield "        if isinstance(result, DTensor):"
        yield f'            over = mesh["{context.axis}", "{again}"]'
        yield "            return DTensor.from_local(result.to_local(), over, [Shard(1), Shard(1)])"
    yield f"        return DTensor.from_local(result, {over}, [Shard({'dim' if dim else 1})])"
    yield ""
    yield "    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)"
    yield "    if leaves:"
    yield "        module.register_forward_hook(leave)"
    yield from ("", "")
    yield from own_positions()


def own_positions() -> Iterator[str]:
    yield from PART.split("\n")


def attend(context: Context) -> Iterator[Iterator[str]]:
    """What attention is replaced by, and what is replaced around it."""
    in_ring = ring(context.kernel, masked=context.masked, narrow=context.narrow)
    texts = {"all_gather": GATHER, "ulysses": ULYSSES.replace("BIAS", BIAS if context.biased else ""), "ring": in_ring}
    found = [texts[kind] for kind in context.kinds]
    found += [UNMASKED] * context.unmasked + [WHOLE, INSIDE] * context.inside
    yield from (iter(text.split("\n")) for text in found)
