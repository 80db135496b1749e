"""A forward pass watched without values, for `ir.graph.calls`: the modules that it calls, and its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.folding.stacks import Stack
from meshwright.ir.frontends.foreign import guarded
from meshwright.ir.frontends.torch_.sources.factory import TorchSource, example_batch
from meshwright.ir.frontends.torch_.sources.model_file import model_file
from meshwright.ir.frontends.torch_.sources.own_loss import own_loss
from meshwright.ir.frontends.torch_.tracing.reduce import reduced
from meshwright.ir.frontends.torch_.tracing.stand_ins import run_faked
from meshwright.ir.frontends.torch_.tracing.unsaid import Writes, watched
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.constants import Constant

TIME_LIMIT_S = 60.0


def calls_of(
    source: TorchSource,
    reference: str,
    *,
    batch: int,
    seq: int,
    constants: Mapping[str, Constant] | None = None,
    stacks: Sequence[Stack] = (),
) -> Calls:
    """The calls of a reference's model on a batch; `constants` and `stacks` are those of its capture, which has shown
    that shortened stacks stand for all. Raises `EmissionModel` for a model that emitted code cannot call."""
    made = model_file(source, reference)
    file = source.place
    example = example_batch(source, batch, seq)
    if not isinstance(example, dict):
        raise EmissionModel(
            place=f"{file}, example_inputs", cause="the batch is no dict", fix="return a dict of named tensors"
        )
    accepted = inspect.signature(source.module.forward).parameters
    entries = tuple(name for name in accepted if name in example)
    with guarded(file, TIME_LIMIT_S), watched() as unsaid:
        called, outputs, written = _watched(
            source, source.given({name: example[name] for name in entries}), example, stacks
        )
    if apart := [path for path, alike in written.items() if not alike]:
        raise EmissionModel(
            place=file,
            cause=f"the forward pass writes into its parameter {apart[0]} what its batch may say: copies come apart",
            fix="do it in a hook of the optimizer's step, or with a buffer",
        )
    own = own_loss(outputs) if source.hooks.loss is None else None
    if source.hooks.loss is None and own is None:
        raise EmissionModel(
            place=file,
            cause="there is no loss(outputs, batch), and the model returns none",
            fix="define it beside the factory",
        )
    draws = made.draws or source.hooks.draw_weights is not None
    return Calls(
        file=made.file,
        factory=made.factory,
        beside=made.beside,
        entries=entries,
        called=called,
        own_loss=own[0] if own is not None else None,
        has_optimizer=source.hooks.optimizer is not None,
        buffers=tuple(sorted(source.module.state_dict().keys() & dict(source.module.named_buffers()).keys())),
        again=dict(_again(source.module)),
        draws=draws,
        untrained=frozenset(_untrained(source.module)),
        undrawn=() if draws else tuple(_undrawn(source.module)),
        unsaid=(*unsaid, *(f"the forward pass writes into its parameter {path}" for path in written)),
        written=tuple(written),
        constants=constants or {},
    )


def _again(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Additional paths of modules, each with the first one."""
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


def _watched(
    source: TorchSource, inputs: dict[str, Tensor], batch: dict[str, Any], stacks: Sequence[Stack]
) -> tuple[frozenset[str], Any, Mapping[str, bool]]:
    """The paths of the modules that a model calls, its outputs, and the parameters that it writes into (`Writes`); its
    loss is computed too."""
    was_training = source.module.training
    source.module.train()
    try:
        called, outputs, written = run_faked(lambda entered: _seen(source, inputs, batch, entered, stacks))
        everywhere = {other: alike for path, alike in written.items() for other in _alike(path, stacks)}
        return frozenset(other for path in called for other in _alike(path, stacks)), outputs, everywhere
    finally:
        source.module.train(was_training)


def _alike(path: str, stacks: Sequence[Stack]) -> Iterator[str]:
    """A path, and the paths in its place in blocks like its own."""
    stack = next((one for one in stacks if one.shortened and one.holds(path)), None)
    if stack is None:
        yield path
        return
    block, dot, inside = path.removeprefix(stack.prefix).partition(".")
    kind = stack.classes[stack.position(block)]
    yield from (f"{stack.block(at)}{dot}{inside}" for at, one in enumerate(stack.classes) if one == kind)


def _seen(
    source: TorchSource,
    inputs: dict[str, Tensor],
    batch: dict[str, Any],
    entered: Callable[[], AbstractContextManager[FakeTensorMode]],
    stacks: Sequence[Stack],
) -> tuple[frozenset[str], Any, Mapping[str, bool]]:
    found, model, writes = set[str](), source.module, Writes(source.module)
    handles = [
        module.register_forward_pre_hook(lambda *_, path=path: found.add(path))
        for path, module in model.named_modules()
    ]
    try:
        with reduced(model, stacks), entered() as mode, writes:  # models ask it no values, unlike meta
            outputs = model(**{name: mode.from_tensor(tensor) for name, tensor in inputs.items()})
            if source.hooks.loss is not None:
                source.hooks.loss(outputs, tree_map_only(Tensor, mode.from_tensor, batch))
    finally:
        for handle in handles:
            handle.remove()
    return frozenset(found), outputs, writes.found
