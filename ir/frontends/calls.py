"""Watching a model's forward pass on the meta device, for `meshwright.ir.calls`: which module made which argument of
which other one. A tensor belongs to the innermost module that returned it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from meshwright.ir.calls import Calls
from meshwright.ir.constants import Constant
from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.contract import Source, example_batch
from meshwright.ir.frontends.foreign import guarded
from meshwright.ir.frontends.model_file import model_file
from meshwright.ir.frontends.own_loss import own_loss
from meshwright.ir.frontends.route import Routes, routes_of
from meshwright.ir.frontends.stand_ins import run_faked

TIME_LIMIT_S = 60.0


@dataclass(slots=True)
class Watched:
    """A model's forward pass, watched once for plans of any batch; its route when a plan has stages, which need it."""

    source: Source
    blocks: tuple[str, ...]
    """The paths of what its stacks repeat."""
    example: dict[str, Tensor]
    calls: Calls
    routes: Routes | None = None

    @staticmethod
    def of(source: Source, reference: str, *, batch: int, seq: int, blocks: Sequence[str] = ()) -> Watched:
        """Watch the model of a reference. Raises `EmissionModel` for one that emitted code cannot call."""
        made = model_file(source, reference)
        file = source.place
        example = example_batch(source, batch, seq)
        if not isinstance(example, dict):
            raise EmissionModel(
                place=f"{file}, example_inputs", cause="the batch is no dict", fix="return a dict of named tensors"
            )
        accepted = inspect.signature(source.module.forward).parameters
        entries = tuple(name for name in accepted if name in example)
        with guarded(file, TIME_LIMIT_S):
            found = _watched(source.module, source.given({name: example[name] for name in entries}), seq)
        own = own_loss(found[3]) if source.hooks.loss is None else None
        if source.hooks.loss is None and own is None:
            raise EmissionModel(
                place=file,
                cause="there is no loss(outputs, batch), and the model returns none",
                fix="define it beside the factory",
            )
        draws = made.draws or source.hooks.draw_weights is not None
        calls = Calls(
            file=made.file,
            factory=made.factory,
            beside=made.beside,
            entries=entries,
            arguments=found[0],
            keywords=found[1],
            positioned=found[2],
            own_loss=own[0] if own is not None else None,
            has_optimizer=source.hooks.optimizer is not None,
            buffers=tuple(sorted(source.module.state_dict().keys() & dict(source.module.named_buffers()).keys())),
            again=dict(_again(source.module)),
            draws=draws,
            untrained=frozenset(_untrained(source.module)),
            undrawn=() if draws else tuple(_undrawn(source.module)),
        )
        return Watched(source, tuple(blocks), example, calls)

    def staged(self, batch: int) -> Calls:
        """The calls, and the route of a batch of so many sequences."""
        if self.routes is None:
            loss = self.source.hooks.loss
            inputs = {name: self.example[name] for name in self.calls.entries}
            with guarded(self.source.place, TIME_LIMIT_S):
                whole = {**self.example, **self.source.given(inputs)}
                self.routes = routes_of(self.source.module, inputs, loss, whole, self.blocks)
        return replace(self.calls, route=self.routes.of(batch))


def calls_of(
    source: Source,
    reference: str,
    *,
    batch: int,
    seq: int,
    blocks: Sequence[str] = (),
    constants: Mapping[str, Constant] | None = None,
) -> Calls:
    """How the model of a reference is called on a batch. `blocks` are the paths of what its stacks repeat, `constants`
    those of its capture."""
    calls = Watched.of(source, reference, batch=batch, seq=seq, blocks=blocks).staged(batch)
    return replace(calls, constants=constants or {})


def _again(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The further paths of modules, each with the first one."""
    first: dict[nn.Module, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if first.setdefault(module, path) != path:
            yield path, first[module]


def _untrained(model: nn.Module) -> Iterator[str]:
    named = model.named_parameters(remove_duplicate=False)
    return (path for path, parameter in named if not parameter.requires_grad)


def _undrawn(model: nn.Module) -> Iterator[str]:
    """The paths of modules that cannot draw what they hold."""
    for path, module in model.named_modules():
        held = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if held and not callable(getattr(module, "reset_parameters", None)):
            yield path


Arguments = dict[str, tuple[str | None, ...]]
Keywords = dict[str, dict[str, str | None]]


class _Making(TorchFunctionMode):
    """Notes the modules that run, from the outermost to the innermost, where tensors of `seq` positions are made out of
    nothing."""

    def __init__(self, seq: int) -> None:
        super().__init__()
        self.seq, self.running, self.found = seq, list[str](), set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in CREATION and self.seq in result.shape:
            self.found.update(self.running)
        return result


CREATION = (torch.arange, torch.linspace, torch.ones, torch.zeros, torch.full, torch.tensor)


def _tables(values: Any, seq: int) -> int:
    """How many tensors there are whose last dimension but one is the sequence."""
    if isinstance(values, Tensor):
        return int(values.ndim > 1 and values.shape[-2] == seq)
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, tuple | list) else ()
    return sum(_tables(part, seq) for part in parts)


Seen = tuple[Arguments, Keywords, frozenset[str], Any]


def _watched(model: nn.Module, inputs: dict[str, Tensor], seq: int) -> Seen:
    """The arguments of every module, by path; the first call counts. The modules that are given positions, and what the
    model returned."""
    return run_faked(lambda entered: _seen(model, inputs, seq, entered))


def _seen(
    model: nn.Module, inputs: dict[str, Tensor], seq: int, entered: Callable[[], AbstractContextManager[FakeTensorMode]]
) -> Seen:
    making, given = _Making(seq), set[str]()
    made: dict[int, tuple[str, Tensor]] = {}
    found: Arguments = {}
    named: Keywords = {}
    paths = {module: path for path, module in model.named_modules()}

    def maker(value: Any) -> str | None:
        return made[id(value)][0] if id(value) in made else None

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        making.running.append(paths[module])
        if _tables((args, kwargs), seq) > 1:
            given.add(paths[module])
        found.setdefault(paths[module], tuple(map(maker, args)))
        named.setdefault(paths[module], {name: maker(value) for name, value in kwargs.items()})

    def after(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        making.running.pop()
        if isinstance(result, Tensor):
            made.setdefault(id(result), (paths[module], result))

    handles = [hook for module in paths for hook in (
        module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after))]  # fmt: skip
    try:
        with entered() as mode, making:  # models ask it no values, unlike meta
            outputs = model(**{name: mode.from_tensor(tensor) for name, tensor in inputs.items()})
    finally:
        for handle in handles:
            handle.remove()
    return found, named, frozenset(given - making.found), outputs
