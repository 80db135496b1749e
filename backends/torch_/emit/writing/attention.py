"""What stands in for torch's functions while a module runs: modes, most of which are made with a mesh and called in the
place of attention."""

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
def run_within(module: nn.Module, mode: TorchFunctionMode) -> None:
    """Have a module run with functions of torch replaced."""
    run = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    module.forward = forward'''


def within(parts: Parts) -> Iterator[Iterator[str]]:
    """What more than cut sequences need of it."""
    if parts.masked_heads:
        yield iter(OF_MASKED.split("\n"))
    attended = any(again.attention for again in parts.recomputed)
    if parts.masked_heads or parts.statistics or attended or parts.context is not None:
        yield iter(WITHIN.split("\n"))
