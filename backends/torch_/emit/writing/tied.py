"""Parameters that several units of `fully_shard` hold: each has shards of its own, which are kept equal."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts


def parted(parts: Parts) -> Iterator[str]:
    """What `parallelize` does first."""
    for name, _ in parts.unread:
        yield f'    {_holder(name)}.register_parameter("{_last(name)}", None)  # no unit\'s'
    if parts.untied:
        yield "    for name, stepped in TIED.items():"
        yield '        holder, _, last = name.rpartition(".")'
        yield "        own = nn.Parameter(model.get_parameter(stepped).detach().clone())"
        yield "        model.get_submodule(holder).register_parameter(last, own)"


def named_again(parts: Parts) -> Iterator[str]:
    """What `parallelize` does last with names that it took away."""
    for name, first in parts.unread:
        yield f'    {_holder(name)}.register_parameter("{_last(name)}", model.get_parameter("{first}"))'


def _holder(name: str) -> str:
    return f'model.get_submodule("{name.rpartition(".")[0]}")'


def _last(name: str) -> str:
    return name.rpartition(".")[-1]


def constant(parts: Parts) -> Iterator[str]:
    yield "TIED = {  # one parameter each, sharded where each module needs it: the second name's is stepped"
    yield from (f'    "{other}": "{first}",' for other, first in parts.untied)
    yield "}"


def join_tied() -> Iterator[str]:
    yield "def join_tied(model: nn.Module) -> None:"
    yield '    """Add gradients of tied parameters to that of the one which is stepped."""'
    yield "    for name, stepped in TIED.items():"
    yield "        own, kept = model.get_parameter(name), model.get_parameter(stepped)"
    yield "        if own.grad is not None and kept.grad is not None:"
    yield "            kept.grad += own.grad"
    yield "        own.grad = None"


def copy_tied() -> Iterator[str]:
    yield "def copy_tied(model: nn.Module) -> None:"
    yield '    """Bring what was stepped to all that are tied to it."""'
    yield "    with torch.no_grad():"
    yield "        for name, stepped in TIED.items():"
    yield "            model.get_parameter(name).copy_(model.get_parameter(stepped))"
