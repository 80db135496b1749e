"""Parameters that several units of `fully_shard` hold: each has shards of its own, which are kept equal."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.parts import Parts


def parted(parts: Parts) -> Iterator[str]:
    """What `parallelize` does first, where `parallelize_module` does not."""
    if parts.axes.tensor is None:
        for other, first in parts.untied:
            module, _, last = other.rpartition(".")
            value = f'model.get_parameter("{first}").detach().clone()'
            yield f'    model.get_submodule("{module}").{last} = nn.Parameter({value})  # see TIED'


def constant(parts: Parts) -> Iterator[str]:
    names = ", ".join(f'"{other}": "{first}"' for other, first in parts.untied)
    yield f"TIED = {{{names}}}  # one parameter each, sharded where each module needs it: the second name's is stepped"


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
