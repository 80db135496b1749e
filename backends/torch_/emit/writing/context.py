"""What cuts sequences: modules that compute on this rank's tokens, and attention among all of them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.context import Body, Context
from meshwright.backends.torch_.emit.parts import Parts
from meshwright.backends.torch_.emit.writing.attention import CALLED, MADE
from meshwright.backends.torch_.emit.writing.lines import indented
from meshwright.backends.torch_.emit.writing.ring import ring

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
    for own in body.own:
        table = f", tables={own.table}" if own.table is not None else ""
        plain = "" if own.leaves else ", leaves=False"
        yield f"on_own_tokens({_at(holder, own.path)}, {over}{table}{plain})"
    for path in body.attention:
        yield f"attend_with({MODES[context.kind]}(context), {_at(holder, path)})"


def _at(holder: str, path: str) -> str:
    return f'{holder}.get_submodule("{path}")' if path else holder


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
        query, key, value = (self.exchanged(tensor, cut=1, joined=2) for tensor in (query, key, value))
        return self.exchanged(F.scaled_dot_product_attention(query, key, value, **options), cut=2, joined=1)

    def exchanged(self, tensor: Tensor, *, cut: int, joined: int) -> Tensor:
        """The parts that all ranks cut off for this one, joined."""
        parts = torch.stack(tensor.chunk(self.ranks.size(), cut))
        received = funcol.all_to_all_single_autograd(parts, None, None, self.ranks)
        return torch.cat(received.unbind(), joined)'''
)


def own_tokens(context: Context, again: str | None) -> Iterator[str]:
    """`again`: the tensor axis, where it cuts sequences too; they are DTensors over both axes then."""
    mesh, over = ("mesh", f'mesh["{context.axis}"]') if again is not None else ("context", "context")
    options = "*, tables: int | None = None, leaves: bool = True"
    yield f"def on_own_tokens(module: nn.Module, {mesh}: DeviceMesh, {options}) -> None:"
    yield '    """Have a module compute on this rank\'s tokens. Around it sequences are DTensors, and the model\'s own'
    yield "    code sees all of it. Of `tables` of all positions it is given its part, cut along that dimension."
    yield '    """'
    yield ""
    yield "    def own(value: Any) -> Any:"
    yield "        if isinstance(value, tuple):"
    yield "            return tuple(own(one) for one in value)"
    yield "        if isinstance(value, DTensor):"
    if again is None:
        yield "            return value.to_local()"
    else:
        yield "            local = value.to_local()"
        yield f'            cut_again = DTensor.from_local(local, mesh["{again}"], [Shard(1)])'
        yield "            return cut_again if value.device_mesh.ndim > 1 else local"
    if context.masked and context.kind == "ulysses":
        yield "        if isinstance(value, Tensor) and value.dtype is torch.bool:"
        yield "            return value  # a mask stays whole: some of the heads attend for all tokens"
    yield "        if tables is not None and isinstance(value, Tensor) and value.shape[tables:][:1] == (SEQ,):"
    yield f"            return part(value, tables, {over})"
    yield "        return value"
    yield ""
    yield "    def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:"
    yield "        return own(args), {name: own(value) for name, value in kwargs.items()}"
    yield ""
    yield "    def leave(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:"
    if again is not None:
        yield "        if isinstance(result, DTensor):"
        yield f'            over = mesh["{context.axis}", "{again}"]'
        yield "            return DTensor.from_local(result.to_local(), over, [Shard(1), Shard(1)])"
    yield f"        return DTensor.from_local(result, {over}, [Shard(1)])"
    yield ""
    yield "    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)"
    yield "    if leaves:"
    yield "        module.register_forward_hook(leave)"
    yield from ("", "")
    yield from own_positions()


def own_positions() -> Iterator[str]:
    yield from PART.split("\n")


def attend(context: Context) -> Iterator[str]:
    texts = {"all_gather": GATHER, "ulysses": ULYSSES}
    in_ring = ring(context.kernel, masked=context.masked, narrow=context.narrow)
    text = in_ring if context.kind == "ring" else texts[context.kind]
    yield from text.split("\n")
