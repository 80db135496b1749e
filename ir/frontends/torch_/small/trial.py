"""Trials of a model on the meta device: built from settings, with one step of it watched.

    Recipe, settings  ->  Run: parameters, buffers, lists of modules, and every operator with the shapes that it made

Neither weights nor activations exist, so a trial of a few blocks takes 20 to 100 ms whatever its numbers are. What the
settings mean is read off by comparing runs (`shrink`).

A model that makes tensors off the default device runs as a trace would run it instead (`exact`): that takes twice as
long, and other kernels may run, so runs of both kinds are not compared.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.ir.frontends.small.runs import (
    BATCH,
    CONVOLUTION,
    ELEMENTWISE,
    LOOK_UP,
    Kinds,
    Run,
    Settings,
    Step,
    tried,
)
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource, example_batch
from meshwright.ir.frontends.torch_.tracing.export import Step as TrainingStep
from meshwright.ir.frontends.torch_.tracing.recorder import Recorder
from meshwright.ir.frontends.torch_.tracing.stand_ins import as_exported, without_values
from meshwright.ir.frontends.torch_.tracing.unsaid import states

MANY = 32
"""Rows by which an entry that is drawn can be told from one that is always the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is built of settings, on the device that torch has as its default; the whole one; what it is trained
    on, and where errors say that it stands; whether trials run as traces do; and what batches are made of settings, if
    any are. Its methods are the functions of this module (`meshwright.ir.frontends.small.runs.Recipe`)."""

    settings: Settings
    build: Callable[[Settings], nn.Module]
    whole: nn.Module
    hooks: Hooks
    place: str
    exact: bool = False
    inputs: Callable[[Settings], Callable[[int, int], Any]] | None = None

    def source(self, model: nn.Module, settings: Settings) -> TorchSource:
        """A model of settings, with what it is trained on."""
        made = self.inputs(settings) if self.inputs is not None else self.hooks.example_inputs
        return TorchSource(model, replace(self.hooks, example_inputs=made), self.place)

    def skeleton(self, model: nn.Module) -> Run:
        return skeleton(model)

    def built(self, settings: Settings) -> nn.Module | None:
        return built(self, settings)

    def run(self, model: nn.Module, settings: Settings, seq: int) -> tuple[Run | None, int]:
        return run(model, self, settings, seq)

    def computed(self, settings: Settings, seq: int) -> float | None:
        return computed(self, settings, seq)

    def exactly(self) -> Recipe | None:
        return None if self.exact else replace(self, exact=True)


def skeleton(model: nn.Module) -> Run:
    """The tensors that a model holds, before it runs."""
    return Run(
        parameters={path: tuple(one.shape) for path, one in model.named_parameters(remove_duplicate=False)},
        buffers={path: tuple(one.shape) for path, one in model.named_buffers(remove_duplicate=False)},
        kinds=_kinds(model),
    )


def _kinds(model: nn.Module) -> Kinds:
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for path, modules in model.named_modules():
        if isinstance(modules, nn.ModuleList | nn.Sequential):
            found[path] = Counter(map(_kind, modules.children()))
    return found


def _kind(module: nn.Module) -> tuple[str, ...]:
    paths = (path.split(".") for path, _ in module.named_parameters())
    held = (".".join("*" if part.isdigit() else part for part in path) for path in paths)
    return (type(module).__name__, *dict.fromkeys(held))


def built(recipe: Recipe, settings: Settings) -> nn.Module | None:
    """The model of settings on the meta device, if they are possible."""
    with tried(recipe.place), torch.device("meta"), Recorder():
        return recipe.build(settings)
    return None


def run(model: nn.Module, recipe: Recipe, settings: Settings, seq: int) -> tuple[Run | None, int]:
    """The tensors and operators of a model, if it runs; with the number of operators that ran, if only until one
    failed."""
    log = _Log(model)
    with tried(recipe.place):
        _watch(log, recipe.source(model, settings), recipe, seq)
        return replace(skeleton(model), steps=tuple(log.steps), read_by=log.read_by), len(log.steps)
    return None, len(log.steps)


def computed(recipe: Recipe, settings: Settings, seq: int) -> float | None:
    """The loss of the model of settings, on values that are drawn, if there is one."""
    if recipe.hooks.example_inputs is None:
        return None
    with tried(recipe.place), torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(0)
        model = recipe.build(settings).float().train()
        for one in model.parameters():
            one.uniform_(-0.1, 0.1) if one.dim() > 1 else one.uniform_(0.5, 1.5)
        source = recipe.source(model, settings)
        make: Any = source.hooks.example_inputs
        made = make(BATCH, seq)
        for batch in (pytree.tree_map(_drawn, made, make(MANY, seq)), made):
            with tried(recipe.place):
                return float(TrainingStep(source)(batch))
    return None


# Watching ------------------------------------------------------------------------------------------------------------


def _watch(log: _Log, source: TorchSource, recipe: Recipe, seq: int) -> None:
    batch = example_batch(source, BATCH, seq)
    log.words = {id(one): one for one in pytree.tree_leaves(batch)}
    source.module.train()
    before = states()
    with without_values() if recipe.exact else _on_meta(), log:
        TrainingStep(source)(batch)
    if states() != before:
        log.steps.append(Step(name="draws outside of torch", shapes=(), chances=()))


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    with as_exported(), torch.device("meta"), torch.no_grad():
        yield


class _Log(TorchDispatchMode):
    """Every operator that runs, in order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.paths = {id(one): path for path, one in model.named_parameters()}
        self.words: dict[int, Any] = {}  # which keeps them: another object may get an old one's id
        self.steps: list[Step] = []
        self.read_by: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = _made(func, args, kwargs or {})
        name = func.name()
        if name.startswith("prim::"):
            return made
        for one in pytree.tree_leaves((args, kwargs)):
            if id(one) in self.paths:
                self.read_by.setdefault(self.paths[id(one)], _reading(func, name))
        given = (*args, *(kwargs or {}).values())
        read = args[:1] if _rows(name, args) is not None else given  # what a table says is no entry, whatever asked it
        if any(id(one) in self.words for one in pytree.tree_leaves(read)):
            self.words |= {id(one): one for one in pytree.tree_leaves(made) if _is_whole(one)}
        self.steps.append(
            Step(
                name=name,
                shapes=tuple(tuple(one.shape) for one in pytree.tree_leaves(made) if isinstance(one, Tensor)),
                chances=tuple(float(one) for one in given if isinstance(one, float))
                if torch.Tag.nondeterministic_seeded in func.tags
                else None,
                rows=_rows(name, args),
                words="loss" in name or any(id(one) in self.words for one in pytree.tree_leaves(args[1:])),
                chosen=(args[1], args[0].shape[args[2] if len(args) > 2 else -1]) if name == "aten::topk" else None,
            )
        )
        return made


Meta = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""The shape, strides and dtype of a tensor without values."""
KNOWN: dict[Any, Meta | tuple[Meta, ...]] = {}
"""What operators make, by what they are given: much of that is the same in all trials, and torch finds it in Python."""


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an operator."""
    try:
        key = (func, _given(args), _given(tuple(kwargs.items()))) if _makes_anew(func) else None
        known = KNOWN.get(key)
    except TypeError:  # given what has no hash, or has values
        return func(*args, **kwargs)
    if known is not None:
        return _empty(known) if isinstance(known[0], torch.Size) else tuple(map(_empty, known))
    made = func(*args, **kwargs)
    if key is not None:
        made_of = made if isinstance(made, tuple) else (made,)
        if made_of and all(map(_is_meta, made_of)):
            KNOWN[key] = tuple(map(_given, made_of)) if isinstance(made, tuple) else _given(made)
    return made


@cache
def _makes_anew(func: Any) -> bool:
    """Whether an operator writes nothing, and returns no part of what it is given."""
    return not func._schema.is_mutable and all(one.alias_info is None for one in func._schema.returns)


def _given(one: Any) -> Any:
    """An argument of an operator, as recorded."""
    if isinstance(one, list | tuple):
        return tuple(map(_given, one))
    if not isinstance(one, Tensor):
        return type(one), one
    if not _is_meta(one):
        raise TypeError
    return one.shape, one.stride(), one.dtype


def _is_meta(one: Any) -> bool:
    return type(one) in (Tensor, nn.Parameter) and one.is_meta and one.layout is torch.strided


def _empty(known: Any) -> Tensor:
    shape, strides, dtype = known
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _is_whole(item: Any) -> bool:
    """Whether it may say where something is: what is true or not of an entry, or counts that, does not."""
    return isinstance(item, Tensor) and not (item.is_floating_point() or item.is_complex() or item.dtype is torch.bool)


def _reading(func: Any, name: str) -> str:
    """How an operator reads a parameter."""
    if torch.Tag.pointwise in func.tags:
        return ELEMENTWISE
    return LOOK_UP if name in LOOK_UPS else CONVOLUTION if "convolution" in name else name


LOOK_UPS = ("aten::embedding", "aten::index.Tensor")


def _rows(name: str, args: Sequence[Any]) -> int | None:
    if name in LOOK_UPS:
        return int(args[0].shape[0])
    if name in ("aten::gather", "aten::index_select"):
        return int(args[0].shape[args[1]])
    if name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward"):
        return int(args[0].shape[1 if args[0].dim() > 1 else 0])
    return None


def _drawn(entry: Any, of_many: Any) -> Any:
    """An entry of a batch; of indices that are all alike in a large one too, some that are not, which may be too large
    (classes)."""
    if not isinstance(entry, Tensor) or entry.is_floating_point() or entry.dtype is torch.bool:
        return entry
    return torch.randint_like(entry, 8) if of_many.unique().numel() == 1 else entry
