"""What stands in for attention while a module runs: modes that are made with a mesh, and called in its place."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts

MADE = """\
    def __init__(self, ranks: DeviceMesh) -> None:
        super().__init__()
        self.ranks = ranks
"""

CALLED = """
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        attends = func is F.scaled_dot_product_attention
        return (self.attention if attends else func)(*args, **kwargs or {})

"""

OF_MASKED = (
    '''\
class AttentionOfMasked(TorchFunctionMode):
    """While it is entered, attention of this rank's heads is given their part of a mask that is made for all heads."""

'''
    + MADE
    + CALLED
    + '''\
    def attention(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, **options: Any) -> Tensor:
        """All of [batch, heads, tokens, width]."""
        own = attn_mask.chunk(self.ranks.size(), 1)[self.ranks.get_local_rank()]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=own, **options)'''
)

WITHIN = '''\
def attend_with(mode: TorchFunctionMode, module: nn.Module) -> None:
    """Run a module with its attention replaced."""
    run = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    module.forward = forward'''


def within(parts: Parts) -> Iterator[Iterator[str]]:
    """The functions of attention that more than cut sequences need."""
    if parts.masked_heads:
        yield iter(OF_MASKED.split("\n"))
    if parts.masked_heads or parts.context is not None:
        yield iter(WITHIN.split("\n"))
