"""Replacements of torch's functions while a module runs."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.parts import Parts

WITHIN = '''\
def run_within(module: nn.Module, mode: TorchFunctionMode) -> None:
    """Have a module run with functions of torch replaced."""
    run = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    module.forward = forward'''


def within(parts: Parts) -> Iterator[Iterator[str]]:
    """The replacements that recomputed attention and shared statistics need."""
    if parts.statistics or any(again.attention for again in parts.recomputed):
        yield iter(WITHIN.split("\n"))
