"""Parameters that several units of `fully_shard` hold: each has shards of its own, which are kept equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.backends.lines import call
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.quoting import literal


def parted(parts: Parts) -> Iterator[str]:
    """The first lines of `parallelize`, which part tied parameters."""
    for name, _ in parts.unread:
        yield f"    {_holder(name)}.register_parameter({_last(name)}, None)  # no unit's"
    if parts.untied:
        yield "    for name, stepped in TIED.items():"
        yield '        holder, _, last = name.rpartition(".")'
        yield "        own = nn.Parameter(model.get_parameter(stepped).detach().clone())"
        yield "        model.get_submodule(holder).register_parameter(last, own)"
    for (stage, _), *others in parts.held_twice:
        here = not parts.by_stage or stage in parts.subject.only
        for name in [name for index, name in others if index == stage and here]:
            yield f"    if model.index == {stage}:  # each module's unit has its own"
            yield f"        own = nn.Parameter(model.get_parameter({literal(name)}).detach().clone())"
            yield f"        {_holder(name)}.register_parameter({_last(name)}, own)"
    for stage, module in shared_modules(parts.held_twice):
        yield f"    if model.index == {stage}:  # another stage of its rank has this module, and a unit for it"
        own = f"copy.deepcopy(model.get_submodule({literal(module)}))"
        yield from call(8, "model.set_submodule", [literal(module), own])


def shared_modules(twice: Iterable[Sequence[tuple[int, str]]]) -> list[tuple[int, str]]:
    """Modules that several stages of a rank have, with each of these stages but the last."""
    found = [[(stage, name.rpartition(".")[0]) for stage, name in names] for names in twice]
    again = [one for names in found for at, one in enumerate(names) if one[1] in [m for _, m in names[at + 1 :]]]
    return list(dict.fromkeys(again))


def named_again(parts: Parts) -> Iterator[str]:
    """The last lines of `parallelize`, for names that it took away."""
    for name, first in parts.unread:
        yield from call(4, "name_again", [_holder(name), _last(name), _holder(first), _last(first)])


def name_again() -> Iterator[str]:
    """The function `name_again`: a unit gathers its parameters under the names of its own modules alone, and code of
    another module may read any name."""
    yield "def name_again(module: nn.Module, name: str, other: nn.Module, last: str) -> None:"
    yield '    """A module holds what another one does; who reads it gets it as it is there, gathered or not."""'
    yield "    module.register_parameter(name, other.get_parameter(last))"
    yield "    reads = {name: property(lambda _: other._parameters[last])}"
    yield "    module.__class__ = type(type(module).__name__, (type(module),), reads)"


def _holder(name: str) -> str:
    return f"model.get_submodule({literal(name.rpartition('.')[0])})"


def _last(name: str) -> str:
    return literal(name.rpartition(".")[-1])


def constant(parts: Parts) -> Iterator[str]:
    if parts.untied:
        yield "TIED = {  # one parameter each, sharded where each module needs it: the second name's is stepped"
        yield from (f"    {literal(other)}: {literal(first)}," for other, first in parts.untied)
        yield "}"
    if parts.held_twice:
        yield "TWICE = (  # one parameter each, by stages of a rank that have units for it: the first one is stepped"
        yield from (f"    {names}," for names in map(named, parts.held_twice))
        yield ")"


def named(holders: Sequence[tuple[int, str]]) -> str:
    """Stages and names, as the script writes them."""
    each = [f"({stage}, {literal(name)})" for stage, name in holders]
    return f"({', '.join(each)})"


def joining(parts: Parts) -> list[Iterator[str]]:
    """The functions around the optimizer's step."""
    if parts.untied:
        return [of_names(), join_tied("nn.Module"), copy_tied("nn.Module")]
    return [of_stages(), join_tied("Pipeline"), copy_tied("Pipeline")] if parts.held_twice else []


def of_names() -> Iterator[str]:
    yield "def tied(model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:"
    yield '    """Tied parameters, each with the one which is stepped."""'
    yield "    for name, stepped in TIED.items():"
    yield "        yield model.get_parameter(name), model.get_parameter(stepped)"


def of_stages() -> Iterator[str]:
    yield "def tied(model: Pipeline) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:"
    yield '    """What several stages of this rank hold of a parameter, each with the one which is stepped."""'
    yield "    held: dict[Any, nn.Module] = {stage.index: stage for stage in model.stages}"
    yield "    for (first, stepped), *others in TWICE:"
    yield "        for index, name in others:"
    yield "            if index in held:"
    yield "                yield held[index].get_parameter(name), held[first].get_parameter(stepped)"


def join_tied(holder: str) -> Iterator[str]:
    yield f"def join_tied(model: {holder}) -> None:"
    yield '    """Add gradients of tied parameters to that of the one which is stepped."""'
    yield "    for own, stepped in tied(model):"
    yield "        if own.grad is not None and stepped.grad is not None:"
    yield "            stepped.grad += own.grad"
    yield "        own.grad = None"


def copy_tied(holder: str) -> Iterator[str]:
    yield f"def copy_tied(model: {holder}) -> None:"
    yield '    """Bring what was stepped to all that are tied to it."""'
    yield "    with torch.no_grad():"
    yield "        for own, stepped in tied(model):"
    yield "            own.copy_(stepped)"
