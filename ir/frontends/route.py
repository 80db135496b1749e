"""Watching a forward pass for `meshwright.ir.route`.

The model runs on the meta device under a mode that sees every torch function as the model's author called it. Blocks,
and modules that hold no block, are called as wholes; modules around blocks are seen through, so their own lines are
written down. What is no tensor (sizes, dtypes) stands as it was in this run, for the batch that is watched. What
depends on no parameter and no entry of the batch is computed, too: models ask positions whether they are packed, and
make no mask where they are not.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from meshwright.ir.frontends.dtypes import type_of
from meshwright.ir.frontends.own_loss import own_loss
from meshwright.ir.frontends.stand_ins import run_faked, with_values
from meshwright.ir.quoting import attribute, constant, identifier, keywords, literal
from meshwright.ir.route import CALLED, DEVICE, LOSS, NOTHING, ROWS, Line, Route, settled

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_CREATES = {torch.arange, torch.linspace, torch.ones, torch.zeros, torch.full, torch.tensor}
_ASKS = {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item, Tensor.tolist}
COMPUTED = 1 << 20
"""Elements, at most, of a value that is computed while a model is watched."""
WATCHED = 2
"""Sequences on which a model is watched, and then on twice as many."""
RESERVED = {
    *(*dir(builtins), *keyword.kwlist),
    *("self", "model", "mesh", "torch", "nn", "F", "index", "x"),
    *("Any", "DTensor", "Following", "Shard", "Tensor", "block", "entered"),
    *("target", "losses", "return_outputs"),
}
"""Names that scripts have for something else around these lines."""


class Unwritable(Exception):
    """Something in a forward pass that cannot stand as a line."""


@dataclass(frozen=True, slots=True)
class Routes:
    """A forward pass as it was watched on two sizes of the batch: its lines for any.

    They are those of any batch of several sequences: the numbers in them that grow with it are found by running a
    larger one. A single one may go another way (Hugging Face's positions are not repeated for it); the lines of several
    hold for it, too.
    """

    few: Route
    more: Route

    def of(self, rows: int) -> Route:
        """The route of a batch of so many sequences."""
        if self.few.problem:
            return self.few
        try:
            found = _of_any_batch(self.few, self.more, WATCHED, rows)
        except ValueError:
            return Route(problem="other lines run for another size of the batch")
        return replace(settled(found), targets=self.few.targets)


def routes_of(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    loss: Callable[[Any, Any], Any] | None,
    batch: Mapping[str, Tensor],
    blocks: Sequence[str],
) -> Routes:
    """The lines of a forward pass on inputs like these, and what the loss reads of the batch; without a `loss`, the
    model returns its own."""
    rows = next(tensor.shape[0] for tensor in inputs.values())

    def watched(entered: Callable[[], AbstractContextManager[FakeTensorMode]]) -> tuple[Route, Route]:
        with entered() as mode:
            fake = {name: mode.from_tensor(tensor) for name, tensor in batch.items()}
            few, more = (_of_rows(fake, rows, wanted) for wanted in (WATCHED, 2 * WATCHED))
            names = tuple(inputs)
            return _watch(module, few, names, blocks, loss), _watch(module, more, names, blocks, loss)

    try:
        route, more = run_faked(watched)
    except Unwritable as found:
        return Routes(Route(problem=str(found)), Route())
    return Routes(route, more)


def _of_rows(batch: Mapping[str, Tensor], rows: int, wanted: int) -> dict[str, Tensor]:
    """A batch of `rows` sequences with another number of them."""
    return {
        name: torch.cat([tensor[:1]] * wanted) if tensor.shape[:1] == (rows,) else tensor
        for name, tensor in batch.items()
    }


def _of_any_batch(route: Route, twice: Route, watched: int, rows: int) -> Route:
    """The route of a batch of `watched` rows, given that of twice as many: its lines for any batch, its shapes on
    one of `rows`. Raises `ValueError` if the lines differ in anything else."""
    lines, created = (
        tuple(_any_line(one, other, watched) for one, other in zip(*both, strict=True))
        for both in ((route.lines, twice.lines), (route.created, twice.created))
    )
    shapes = []
    for (name, dtype, shape), (other, _, larger) in zip(route.shapes, twice.shapes, strict=True):
        if name != other or len(shape) != len(larger):
            raise ValueError
        grows = [found != doubled for found, doubled in zip(shape, larger, strict=True)]
        sizes = [size * rows // watched if grown else size for size, grown in zip(shape, grows, strict=True)]
        shapes.append((name, dtype, tuple(sizes)))
    return replace(route, lines=lines, created=created, shapes=tuple(shapes))


def _any_line(line: Line, twice: Line, rows: int) -> Line:
    """A line whose numbers that double with the batch are told from it."""
    one, other = (re.split(r"(\d+)", text.expression) for text in (line, twice))
    if len(one) != len(other):
        raise ValueError
    for index, (found, doubled) in enumerate(zip(one, other, strict=True)):
        if found == doubled:
            continue
        if not (found.isdigit() and doubled.isdigit()) or int(doubled) != 2 * int(found) or int(found) % rows:
            raise ValueError
        one[index] = ROWS % (int(found) // rows)
    return replace(line, expression="".join(one))


class _Noting(dict[str, Tensor]):
    """A batch that notes which of its entries are read."""

    def __init__(self, batch: Mapping[str, Tensor]) -> None:
        super().__init__(batch)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        self.read.append(name)
        return super().__getitem__(name)


def _watch(
    module: nn.Module,
    batch: Mapping[str, Tensor],
    entries: tuple[str, ...],
    blocks: Sequence[str],
    loss: Callable[[Any, Any], Any] | None,
) -> Route:
    """The route of a forward pass on `entries` of a batch."""
    watcher = _Watcher(module, {name: batch[name] for name in entries}, tuple(blocks))
    handles = []
    for path, one in module.named_modules():
        if path and not watcher.seen_through(path):
            handles.append(one.register_forward_pre_hook(watcher.enters(path), with_kwargs=True))
            handles.append(one.register_forward_hook(watcher.leaves(path)))
    try:
        with watcher, with_values(watcher.knows):
            result = module(**watcher.inputs)
    finally:
        for handle in handles:
            handle.remove()
    if loss is None:
        own = own_loss(result)
        if own is None or id(own[1]) not in watcher.names:
            raise Unwritable("the loss that it returns is made inside of a block")
        return replace(watcher.route(watcher.names[id(own[1])]), inside=True)
    asked, read = _Asked(result), _Noting(batch)
    plain = isinstance(result, Tensor) or type(result) in (dict, list, tuple)
    loss(result if plain else asked, read)
    targets = tuple(dict.fromkeys(read.read))
    known = {key: watcher.names[id(one)] for key, one in asked.given.items() if id(one) in watcher.names}
    if isinstance(result, Tensor):
        known = {"": watcher.names[id(result)]} if id(result) in watcher.names else {}
    if len(known) == 1 and len(targets) <= 1:
        ((within, name),) = known.items()
        return replace(watcher.route(name), within=within, targets=targets)
    outputs = {**asked.given} if not plain else result
    return replace(
        watcher.route(watcher.loss_of(outputs, plain, {name: batch[name] for name in targets})),
        inside=True,
        targets=targets,
    )


class _Asked:
    """What a model returns, where that is no tensor; it notes the tensors that it is asked for by name."""

    def __init__(self, result: Any) -> None:
        self._result, self.given = result, dict[str, Tensor]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._result, name)
        if isinstance(found, Tensor):
            self.given[name] = found
        return found

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__(key) if isinstance(key, str) else self._result[key]


@dataclass
class _Watcher(TorchFunctionMode):
    """Writes lines while it is entered."""

    module: nn.Module
    inputs: dict[str, Tensor]
    blocks: tuple[str, ...]
    lines: list[Line] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    kept: list[tuple[str, Tensor]] = field(default_factory=list)
    """All names, and their tensors: identities stay theirs while they live."""
    values: dict[int, Tensor] = field(default_factory=dict)
    """What was computed, by the tensor without data that stands for it."""
    apart: list[Line] = field(default_factory=list)
    """What modules make out of nothing and hand on, as lines."""
    created: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    """What was made out of nothing, wherever, and how."""
    renamed: dict[str, str] = field(default_factory=dict)
    """The entries of the batch that have another name here."""
    depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.held = {id(tensor): ("parameter", path) for path, tensor in self.module.named_parameters()}
        self.held |= {id(tensor): ("buffer", path) for path, tensor in self.module.named_buffers()}
        for name, tensor in self.inputs.items():
            self.enter(name, tensor)

    def loss_of(self, outputs: Any, plain: bool, read: Mapping[str, Tensor]) -> str:
        """Write down what the loss of the model's file is called with, as the last line; returns what that makes."""
        for name, tensor in read.items():
            if id(tensor) not in self.names:
                self.enter(name, tensor)
        if plain:
            given = self.value(outputs)
        else:
            text, reads, holds = self.written((), outputs)
            given = f"SimpleNamespace({text})", reads, holds
        targets = self.value(dict(read))
        made = torch.empty(())
        self.write(f"{LOSS}({given[0]}, {targets[0]})", *_joined((given[1:], targets[1:])), made, "loss", "")
        return self.names[id(made)]

    def seen_through(self, path: str) -> bool:
        """Whether it is around a block."""
        return any(block.startswith(f"{path}.") for block in self.blocks)

    def route(self, result: str) -> Route:
        shapes = []
        for name, tensor in self.kept:
            type_ = type_of(tensor, name)
            shapes.append((name, type_.dtype, type_.shape))
        strided = tuple(name for name, tensor in self.kept if not tensor.is_contiguous())
        return Route(
            lines=tuple(self.lines),
            result=result,
            shapes=tuple(shapes),
            strided=strided,
            renamed=tuple(self.renamed.items()),
            created=tuple(self.apart),
        )

    # names

    def enter(self, entry: str, tensor: Tensor) -> None:
        """Give an entry of the batch a name."""
        name = self.name(tensor, entry)
        if name != entry:
            self.renamed[entry] = name

    def name(self, tensor: Tensor, like: str) -> str:
        """Give a tensor a name."""
        word = identifier(like).strip("_") or "value"
        word = f"value_{word}" if word[0].isdigit() else word
        word = f"{word}_" if word in RESERVED else word
        taken, name, number = {name for name, _ in self.kept}, word, 2
        while name in taken:
            name, number = f"{word}_{number}", number + 1
        self.names[id(tensor)] = name
        self.kept.append((name, tensor))
        return name

    # calls of modules

    def enters(self, path: str) -> Callable[..., None]:
        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self.depth:
                self.arguments = self.written(args, kwargs)
            self.depth += 1

        return before

    def leaves(self, path: str) -> Callable[..., None]:
        def after(_module: nn.Module, _args: Any, result: Any) -> None:
            self.depth -= 1
            if not self.depth:
                text, reads, holds = self.arguments
                self.write(f"{CALLED}.get_submodule({literal(path)})({text})", reads, holds, result, _word(path), path)

        return after

    # torch functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASKS and self.knows(args[0]):
            with unset_fake_temporarily():
                return func(self.values[id(args[0])])
        result = func(*args, **kwargs)
        if func in _CREATES and not any(isinstance(one, Tensor) for one in tree_leaves((args, kwargs))):
            self.created[id(result)] = result, self.called(func, args, kwargs)[0]
        if self.depth or not (_tensors(result) or _in_place(func)):
            return result
        self.compute(func, args, kwargs, result)
        if all(id(one) in self.names for one in _tensors(result)) and not _in_place(func):
            return result  # a view of nothing new: the same object
        expression, reads, holds = self.called(func, args, kwargs)
        self.write(expression, reads, holds, result, func.__name__.strip("_"), "")
        return result

    def knows(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor were computed."""
        return id(tensor) in self.values

    def compute(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Do to values what was done to the tensors without data that stand for them."""
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        known = all(map(self.knows, given)) if given else func in _CREATES
        if not known or not isinstance(result, Tensor) or result.numel() > COMPUTED:
            return

        def value(one: Any) -> Any:
            if isinstance(one, torch.device):
                return torch.device("cpu")
            return self.values[id(one)] if isinstance(one, Tensor) else one

        with unset_fake_temporarily():
            self.values[id(result)] = func(*tree_map(value, args), **tree_map(value, kwargs))

    def called(self, func: Any, args: Any, kwargs: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """A call as its author may have written it."""
        full = resolve_name(func) or ""
        owner, _, word = full.rpartition(".")
        bare = word.strip("_")
        if _in_place(func):
            raise Unwritable(f"it calls {full}, which changes a tensor in place, outside of blocks")
        if owner == "torch.Tensor" and args and isinstance(args[0], Tensor):
            infix = _INFIX.get(bare) or _INFIX.get(bare[1:] if bare.startswith("r") else "")
            if infix and word.startswith("__") and len(args) == 2:
                pair = args if _INFIX.get(bare) else args[::-1]
                (one, *read), (other, *rest) = self.value(pair[0]), self.value(pair[1])
                one = f"({one})" if one.startswith("-") else one
                return f"{one} {infix} {other}", *_joined((read, rest))
            if word in ("__neg__", "__invert__"):
                one, *read = self.value(args[0])
                return f"{'-' if bare == 'neg' else '~'}{one}", *_joined((read,))
            if word == "__getitem__":
                one, *read = self.value(args[0])
                at, *rest = self.index(args[1])
                return f"{one}[{at}]", *_joined((read, rest))
            if word.startswith("__"):
                raise Unwritable(f"it calls {full} outside of blocks")
            one, *read = self.value(args[0])
            text, *rest = self.written(args[1:], kwargs)
            return f"{one}.{word}({text})", *_joined((read, rest))
        shown = {"torch.nn.functional": "F.", "torch": "torch."}.get(owner)
        if shown is None:
            raise Unwritable(f"it calls {full or func} outside of blocks")
        text, reads, holds = self.written(args, kwargs)
        return f"{shown}{word}({text})", reads, holds

    # lines

    def write(
        self, expression: str, reads: tuple[str, ...], holds: tuple[str, ...], result: Any, like: str, module: str
    ) -> None:
        made = [result] if isinstance(result, Tensor) else result
        if not isinstance(made, list | tuple) or not all(one is None or isinstance(one, Tensor) for one in made):
            raise Unwritable(f"{expression} returns more than tensors")
        known = self.names if made is result else ()
        makes = tuple(NOTHING if one is None or id(one) in known else self.name(one, like) for one in made)
        self.lines.append(Line(makes=makes, expression=expression, reads=reads, module=module, holds=holds))
        for name, one in zip(makes, made, strict=True):
            if module and name != NOTHING and id(one) in self.created:
                self.apart.append(Line(makes=(name,), expression=self.created[id(one)][1], reads=()))

    # arguments

    def written(self, args: Any, kwargs: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        parts = [self.value(one) for one in args]
        named = {name: self.value(one) for name, one in kwargs.items()}
        text = ", ".join([part[0] for part in parts] + keywords({name: part[0] for name, part in named.items()}))
        return text, *_joined([part[1:] for part in parts] + [part[1:] for part in named.values()])

    def index(self, given: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        parts = [self.value(one) for one in (given if isinstance(given, tuple) else (given,))]
        return ", ".join(part[0] for part in parts), *_joined([part[1:] for part in parts])

    def own(self, given: Tensor, kind: str, path: str) -> str:
        """What the model holds, as code. A number may be another tensor than the parameter: read in another dtype."""
        if given.ndim or kind == "buffer":
            return f"{CALLED}.get_{kind}({literal(path)})"
        holder, _, name = path.rpartition(".")
        inside = f"{CALLED}.get_submodule({literal(holder)})" if holder else CALLED
        return f"cast(Tensor, {attribute(inside, name)})"

    def value(self, given: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """A value as code, the names that are read, and what of the model is read by itself."""
        if isinstance(given, Tensor):
            if id(given) in self.names:
                return f"%{self.names[id(given)]}", (self.names[id(given)],), ()
            if id(given) in self.held:
                return self.own(given, *self.held[id(given)]), (), (self.held[id(given)][1],)
            raise Unwritable("it reads a tensor that is neither an input nor a parameter nor a buffer")
        if isinstance(given, torch.device):
            return DEVICE, (), ()
        if isinstance(given, slice):
            limits = (given.start, given.stop, given.step)
            if not all(one is None or isinstance(one, int) for one in limits):
                raise Unwritable("it takes a slice whose ends are no numbers")
            start, stop, step = ("" if one is None else constant(one) for one in limits)
            return f"{start}:{stop}{step and f':{step}'}", (), ()
        if isinstance(given, int | float | str | bool | torch.dtype | None):
            return repr(given) if isinstance(given, torch.dtype) else constant(given), (), ()
        if given is Ellipsis:
            return "...", (), ()
        if isinstance(given, list | tuple):
            parts = [self.value(one) for one in given]
            inner = ", ".join(part[0] for part in parts)
            text = f"[{inner}]" if isinstance(given, list) else f"({inner}{',' if len(parts) == 1 else ''})"
            return text, *_joined([part[1:] for part in parts])
        if isinstance(given, dict) and all(isinstance(key, str) for key in given):
            pairs = [(key, self.value(one)) for key, one in given.items()]
            text = ", ".join(f"{literal(key)}: {part[0]}" for key, part in pairs)
            return f"{{{text}}}", *_joined([part[1:] for _, part in pairs])
        raise Unwritable(f"it hands on a {type(given).__name__} outside of blocks")


def _joined(parts: Sequence[Sequence[tuple[str, ...]]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    reads = tuple(dict.fromkeys(name for part in parts for name in part[0]))
    return reads, tuple(dict.fromkeys(path for part in parts for path in part[1]))


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [one for one in result if isinstance(one, Tensor)] if isinstance(result, list | tuple) else []


def _word(path: str) -> str:
    """What a module makes is called like it; like a list that it is of, with its number."""
    *around, last = path.split(".")
    return f"{around[-1] if around else 'value'}_{last}" if last.isdigit() else last


def _in_place(func: Any) -> bool:
    name = str(getattr(func, "__name__", ""))
    plain = name.strip("_")
    dunder = name.startswith("__")
    return (name.endswith("_") and not dunder) or (
        dunder and ((plain[1:] in _INFIX and plain[0] == "i") or plain == "setitem")
    )
