"""The trace of a torch model: one training step, as `torch.export` sees it, in our vocabulary.

In: a `TorchSource` (model and hooks) and one batch, both on the meta device. Out: `Traced`. The model is in train mode
and the step includes the loss: what is planned is training. Nothing is executed and no weight exists; full-depth models
are reduced first (`reduce.py`), so a trace holds a handful of blocks.

What is settled here, because only here both the module and the program are at hand: which parameters are tied (one
value, several paths), which require gradients, which buffers the step writes to (an update; the others are constants),
what the inputs and their dimensions are called. Everything else is `translate.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils import _pytree as pytree

from meshwright.ir.errors import (
    DataDependentControlFlow,
    ForwardRaised,
    MeshwrightError,
    NoExampleInputs,
    NoLoss,
)
from meshwright.ir.frontends.folding.handles import Attribute, Handle, Names, Place, Traced
from meshwright.ir.frontends.folding.storage import Cell
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.foreign import HOME, Interrupted, TimeIsUp, contained, described, user_line, whole
from meshwright.ir.frontends.torch_.operators import writing
from meshwright.ir.frontends.torch_.operators.translate import Translator
from meshwright.ir.frontends.torch_.operators.values import tensor_term
from meshwright.ir.frontends.torch_.sources.dtypes import type_of
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.sources.own_loss import own_loss
from meshwright.ir.frontends.torch_.tracing import stack_traces
from meshwright.ir.frontends.torch_.tracing.functions import keeping
from meshwright.ir.frontends.torch_.tracing.mapped import write_out
from meshwright.ir.frontends.torch_.tracing.stand_ins import standing_in, without_values
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.sharding.rewrite import reached

UNCHANGED = Names(path=lambda path: path, room=lambda path: "")
"""The model is traced as it is: paths are true, and no block is repeated."""

TRACE_LIMIT_S = 600.0
"""Tracing takes seconds; a forward pass that has not come back by then is waiting for something."""

_PREFIX = "model"
_OWN = frozenset(vars(nn.Module()))
"""What every module has: its tables of parameters, buffers, modules and hooks."""
NESTED = 3
"""Lists and dictionaries inside of one another, at most, in which tensors are looked for."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a parameter or buffer: every path that its object has in the whole model (tied ones share an
    object)."""

    paths: Mapping[int, tuple[str, ...]]
    attributes: Mapping[int, tuple[Attribute, ...]] = field(default_factory=dict)
    """The same of tensors that modules hold without having registered them."""

    @classmethod
    def of(cls, model: nn.Module) -> Identity:
        paths: dict[int, list[str]] = {}
        for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
            for path, tensor in named:
                paths.setdefault(id(tensor), []).append(path)
        return cls({key: tuple(found) for key, found in paths.items()}, _attributes(model, paths))


def _attributes(model: nn.Module, registered: Mapping[int, Sequence[str]]) -> dict[int, tuple[Attribute, ...]]:
    found: dict[int, list[Attribute]] = {}

    def note(item: Any, place: Attribute, depth: int = 0) -> None:
        if isinstance(item, Tensor):
            if id(item) not in registered:
                found.setdefault(id(item), []).append(place)
        elif isinstance(item, list | tuple | dict) and depth < NESTED:
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for key, part in pairs:
                if isinstance(key, str | int):
                    note(part, replace(place, keys=(*place.keys, key)), depth + 1)

    for path, module in model.named_modules():
        for name, item in vars(module).items():
            if name not in _OWN:
                note(item, Attribute(f"{path}.{name}" if path else name))
    return {key: tuple(places) for key, places in found.items()}


class Step(nn.Module):
    """One training step as a module: the batch in, the loss out."""

    def __init__(self, source: TorchSource) -> None:
        super().__init__()
        self.model = source.module
        self.hooks: Hooks = source.hooks
        self.place = source.place
        self.given = source.given
        self.casts = bool(source.cast)

    def forward(self, batch: Any) -> Tensor:
        positional, keyword = self.given(arguments(self.model, batch, self.place))
        outputs = self.model(*positional, **keyword)
        if self.hooks.loss is not None:
            loss = self.hooks.loss(outputs, batch)
        else:
            _, loss = own_loss(outputs) or ("", outputs)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            shown = f"tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise NoLoss(
                place=self.place,
                cause=f"the {'model' if self.hooks.loss is None else 'loss'} returns a {shown}, not a scalar",
                fix=f"put this beside the factory, and adapt it:\n\n{NoLoss.hook}",
            )
        return loss


def arguments(model: nn.Module, batch: Any, place: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the forward pass from a batch: a dict's entries by parameter name, anything else by position."""
    if not isinstance(batch, dict):
        return (tuple(batch) if isinstance(batch, list | tuple) else (batch,)), {}
    accepted = inspect.signature(model.forward).parameters
    chosen = {name: value for name, value in batch.items() if name in accepted}
    if not chosen:
        raise NoExampleInputs(
            place=place,
            cause=f"the batch has {sorted(batch)}, but forward takes {list(accepted) or 'nothing'}",
            fix="name the entries of example_inputs after the parameters of forward",
        )
    return (), chosen


def trace(
    source: TorchSource,
    batch: Any,
    *,
    names: Names = UNCHANGED,
    identity: Identity | None = None,
    buffers: Mapping[str, Term] | None = None,
) -> Traced:
    """The training step of the model on this batch as a graph."""
    was_training = source.module.training
    source.module.train()
    try:
        step = Step(source)
        with standing_in(batch) as notes:
            program = _export(step, batch, source.place)
        traced = _translate(program, step, batch, names, identity or Identity.of(source.module), buffers or {})
        _check_trained(traced, step)
        return replace(traced, graph=_as_trained(traced.graph), notes=(*notes, *traced.notes))
    finally:
        source.module.train(was_training)


def alike(found: MeshwrightError | None, refused: MeshwrightError) -> bool:
    """Whether a model, merely run without values (`failure`), is refused for the same reason at the same line as a
    trace was: then no other trace of it will do, and this has cost a fraction of one."""
    return found is not None and (type(found), found.place, found.cause) == (
        type(refused),
        refused.place,
        refused.cause,
    )


def failure(source: TorchSource, batch: Any) -> MeshwrightError | None:
    """The reason why the model, merely run without values, is refused, if it is."""
    step, was_training = Step(source), source.module.training
    source.module.train()
    try:
        with standing_in(batch), without_values(), _user_code(source.place):
            step(batch)
    except MeshwrightError as error:
        return error
    except (Interrupted, TimeIsUp):
        raise
    except BaseException as error:  # noqa: BLE001 - it is whatever the user's code raises
        return _explained(error, source.place)
    finally:
        source.module.train(was_training)
    return None


@contextlib.contextmanager
def _user_code(place: str) -> Iterator[None]:
    """Run or trace the user's code, with its errors as the user's."""
    with contained(place, TRACE_LIMIT_S), warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        yield


def _export(step: Step, batch: Any, place: str) -> Any:
    try:
        with (
            _user_code(place),
            stack_traces.short(),
            keeping(),
            _use_lazy_graph_module(True),
        ):  # code of graphs is not run
            program = torch.export.export(step, (batch,), strict=False)
            write_out(program.graph_module)
            return program
    except (MeshwrightError, Interrupted, TimeIsUp):
        raise
    except BaseException as error:  # noqa: BLE001 - it is whatever the user's code raises
        raise _explained(error, place) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging a page before it raises: our error says the same in two lines."""
    names = ("torch._subclasses.fake_tensor", "torch.export", "torch.fx", "torch.fx.experimental.symbolic_shapes")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _explained(error: BaseException, place: str) -> MeshwrightError:
    """A failed trace as an error of ours, with the user's line."""
    where, text = user_line(error, place), whole(error)
    data_dependent = (
        "GuardOnDataDependent",
        "DataDependentOutput",
        "DynamicOutputShape",
        "Tensor.item()",
        "aten::nonzero",
        "_local_scalar_dense",
        "boolean value of Tensor",
        "Cannot copy out of meta",
    )
    if any(mark in text for mark in data_dependent):
        return DataDependentControlFlow(
            place=where,
            cause="the code needs the value of a tensor, and plans are made without values",
            fix="compute with tensors (torch.where, masks, static capacities) instead of if, .item() or nonzero",
        )
    return ForwardRaised(
        place=where,
        cause=f"the forward pass or the loss raised {described(error)}",
        fix="correct this line; the step is traced on the meta device, with the batch of example_inputs",
    )


def _translate(
    program: Any, step: Step, batch: Any, names: Names, identity: Identity, known: Mapping[str, Term]
) -> Traced:
    strip = Names(lambda path: names.path(_stripped(path)), names.room)
    translator = Translator(strip, identity.attributes)
    translator.place = Place(source=_defined_at(step.hooks.loss))
    translator.hugging_face = hasattr(getattr(step.model, "config", None), "_attn_implementation")
    graph: fx.Graph = program.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written = _written(program.graph_module)
    leaves = iter(named_leaves(batch, step.model))
    cells: list[Any] = []
    buffers: dict[str, Cell[Handle]] = {}
    tied: dict[int, Cell[Handle]] = {}
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        kind, path = spec.kind.name, str(spec.target or "")
        if kind == "USER_INPUT":
            cells.append(_input(translator, node, next(leaves), step.hooks.dims))
            continue
        if kind not in ("PARAMETER", "BUFFER"):
            cells.append(Cell(translator.tensor(program.constants[path])))
            continue
        tensor = step.get_parameter(path) if kind == "PARAMETER" else step.get_buffer(path)
        cell = tied.get(id(tensor))
        if cell is None:
            paths = identity.paths.get(id(tensor), (strip.path(path),))
            cell = tied[id(tensor)] = Cell(_state(translator, tensor, paths, kind == "BUFFER", node in written, known))
            if kind == "PARAMETER":
                translator.parameters.add(cell)
            elif node in written:
                buffers[paths[0]] = cell
        cells.append(cell)
    results = translator.run(graph, cells, program.graph_module)
    loss = results[0].read()
    updates = [
        (path, cell.read(), "mean" if _from_data(translator, cell.read()) else "same")
        for path, cell in buffers.items()
        if cell.version
    ]
    traced = translator.finish((loss,), updates, loss=True)
    return replace(traced, graph=_cast_where_read(traced.graph)) if step.casts else traced


def _cast_where_read(graph: Graph) -> Graph:
    """The graph with casts of inputs where these are read first: who has the batch need not be sent them."""
    given = {item.value for item in graph.inputs}
    early = {op.name: op for op in graph.ops if op.kind == "cast" and given.issuperset(op.operands)}
    if not early:
        return graph
    ops: list[Op] = []
    for op in graph.ops:
        if op.name in early:
            continue
        for value in op.operands:
            cast = early.pop(value, None)
            if cast is not None:
                ops.append(replace(cast, module=cast.module or op.module))
        ops.append(op)
    return replace(graph, ops=(*early.values(), *ops))


def _defined_at(loss: Any) -> str:
    """The line where the loss begins: torch's traces keep the lines of forward methods only."""
    code = getattr(loss, "__code__", None)
    if code is None or Path(code.co_filename).is_relative_to(HOME):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _stripped(path: str) -> str:
    return "" if path == _PREFIX else path.removeprefix(f"{_PREFIX}.")


def _input(translator: Translator, node: fx.Node, leaf: tuple[str, Any], dims: Mapping[str, tuple[str, ...]]) -> Any:
    name, value = leaf
    if not isinstance(value, Tensor):
        return Cell(value)
    return Cell(translator.add_input(name, type_of(node.meta["val"], name), tuple(dims.get(name, ()))))


def _state(
    translator: Translator,
    tensor: Tensor,
    paths: tuple[str, ...],
    buffer: bool,
    written: bool,
    known: Mapping[str, Term],
) -> Handle:
    """A parameter, a buffer that the step writes, or a constant."""
    if buffer and not written:
        return translator.add_constant(known.get(paths[0]) or tensor_term(tensor), buffer=paths[0])
    type_ = type_of(tensor, paths[0])
    return translator.add_param(paths, type_, requires_grad=tensor.requires_grad and not buffer, buffer=buffer)


def named_leaves(batch: Any, model: nn.Module) -> list[tuple[str, Any]]:
    """The leaves of a batch with their names: dict keys, or the parameters of forward that positions stand for."""
    accepted = list(inspect.signature(model.forward).parameters)
    named = []
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        parts = [str(getattr(entry, "key", getattr(entry, "idx", entry))) for entry in path] or ["0"]
        if not isinstance(batch, dict) and parts[0].isdigit() and int(parts[0]) < len(accepted):
            parts[0] = accepted[int(parts[0])]
        named.append((".".join(parts), leaf))
    return named


def _written(module: fx.GraphModule) -> set[fx.Node]:
    """Placeholders whose storage the program writes to, in regions as well."""
    owner: dict[fx.Node, fx.Node] = {}
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        target = str(node.target).removeprefix("aten.")
        if node.op == "placeholder":
            owner[node] = node
        if node.op != "call_function" or not node.args:
            continue
        first = node.args[0]
        if not isinstance(node.target, torch._ops.OpOverload):
            pass
        elif isinstance(first, fx.Node) and first in owner:
            if writing.writes(target) or (writing.shares(node.target) and not writing.copied(node)):
                owner[node] = owner[first]
            if writing.writes(target):
                found.add(owner[first])
        found.update(owner[node.args[i]] for i in writing.updates(target) if node.args[i] in owner)
        if target in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            found.update(_written_inside(module, node, owner))
    return found


def _written_inside(module: fx.GraphModule, node: fx.Node, owner: Mapping[fx.Node, fx.Node]) -> set[fx.Node]:
    position = next(i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr")
    body = getattr(module, str(node.args[position].target))
    inner = [n for n in body.graph.nodes if n.op == "placeholder"]
    passed: Sequence[Any] = node.args[position + 1 :]
    inside = _written(body)
    return {owner[a] for a, n in zip(passed, inner, strict=True) if n in inside and a in owner}


def _check_trained(traced: Traced, step: Step) -> None:
    """Refuse a loss that no parameter reaches: it is the user's to mend, before anything is made of it."""
    graph = traced.graph
    if any(param.requires_grad for param in graph.params) and graph.loss not in graph.differentiable:
        raise NoLoss(
            place=_defined_at(step.hooks.loss) or step.place,
            cause="no gradient flows from the loss to any parameter",
            fix="compute it from what forward returns, outside torch.no_grad() and without .detach()",
        )


def _as_trained(graph: Graph) -> Graph:
    """The graph with parameters that no gradient of the loss reaches marked as not trained: torch makes them no
    gradient, so that no optimizer steps them."""
    trained = reached(graph)
    params = tuple(
        replace(param, requires_grad=param.requires_grad and param.value in trained) for param in graph.params
    )
    return replace(graph, params=params)


def _from_data(translator: Translator, handle: Handle) -> bool:
    """Whether a value depends on the batch."""
    pending, seen = [translator.value(handle)], set()
    inputs = {item.value for item in translator.inputs}
    while pending:
        value = pending.pop()
        if value in inputs:
            return True
        if value not in seen and value in translator.producer:
            seen.add(value)
            pending += translator.producer[value].operands
    return False
