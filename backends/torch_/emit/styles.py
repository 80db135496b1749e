"""What `parallelize_module` is told about one body, for the axis that cuts modules.

Activations whose sequence is cut stay DTensors: the model's own code may ask for their shape, and sees the whole one.
All others are plain tensors between modules, each rank's shard, so that code that knows nothing of DTensors can compute
with them. Inside of a module that holds weights they are DTensors, and where a value enters or leaves it a change of
placement can be said:

    a product whose output width is cut           ColwiseParallel
    a product that sums over what is cut          RowwiseParallel, output_layouts: what its readers want
    a whole head on its own tokens                the same; the loss is taken of these, as plain tensors
    a table whose rows are cut                    RowwiseParallel, in SumFirst if the module goes on with the rows
    a norm, or another whole module, on own tokens   SequenceParallel; of own heads too
    a whole table on its own tokens               the same, after PrepareModuleInput has cut the tokens
    a whole module whose result is cut            PrepareModuleOutput
    a value that several such modules want        PrepareModuleInput on the module around them all: it is brought there
    in another placement than it lies in          once, and its gradients are added before they are reduced

So states are followed from operator to operator (`_Reader`); what changes at any other place is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.backends.torch_.emit.channels import CHANNEL, cut_of, has_channels
from meshwright.backends.torch_.emit.channels import NAME as OWN_CHANNELS
from meshwright.backends.torch_.emit.cut_experts import CutExperts, cut_experts_of
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionModule
from meshwright.ir.graph import Op
from meshwright.ir.placement import State
from meshwright.ir.quoting import literal
from meshwright.ir.rewrite import facts_of

COPIES, SUM = "R", "P"
"""How a value lies along the axis: copies, a sum, or the number of the dimension that is cut."""
WHOLE = (COPIES, False)
SEQUENCE = "1"
"""The dimension of tokens in a sequence."""
LOSS = "cross_entropy"
HOW = "pin the module, as in --fix '*.q_proj:sharding=column'"

OWN_TOKENS = (
    "input_layouts=Shard(1)",
    "desired_input_layouts=Shard(1)",
    "use_local_input=True",
    "output_layouts=Shard(1)",
    "desired_output_layouts=Shard(1)",
    "use_local_output=False",
)
"""How a module is given its tokens, of DTensors, and makes them such again."""

At = tuple[str, bool]
"""How a value lies along the axis, and whether its gradient is a sum."""


@dataclass(frozen=True, slots=True)
class Style:
    """A class of torch.distributed.tensor.parallel and what it is called with."""

    name: str
    options: tuple[str, ...] = ()
    transposed: bool = False
    """Whether it is for a product whose weight is stored as [in, out], which torch has no style for."""
    goes_on: bool = False
    """Whether its module does more with a product that is a sum over ranks: torch would reduce that to copies."""

    @property
    def added(self) -> tuple[str, ...]:
        """The classes around it that torch lacks, outermost first."""
        return (*(["SumFirst"] * self.goes_on), *(["Transposed"] * self.transposed))

    def __str__(self) -> str:
        names = (*self.added, self.name)
        return f"{'('.join(names)}({', '.join(self.options)}{')' * len(names)}"


@dataclass(frozen=True, slots=True)
class Styles:
    """Styles by the path of the module, relative to the instance of the body."""

    modules: Mapping[str, Style]
    before: Mapping[str, Style]
    """Styles that modules are given before those of `modules`."""
    sharded_loss: bool
    """Whether the loss reads scores whose vocabulary is cut."""
    own_loss: bool
    """Whether the loss is taken of each rank's tokens: of a vocabulary that cannot be cut, for instance."""
    shared: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Products of which a part is whole on every rank, since all heads read it: which, and the sizes of all parts."""


def styles_of(subject: Subject, piece: Piece, axis: str) -> Styles:
    """The styles of a body."""
    return _Reader(subject, piece, axis).styles()


def layout(at: str) -> str:
    """A placement as the script writes it."""
    return "Replicate()" if at == COPIES else f"Shard({at})"


@dataclass
class _Reader:
    """Reads the styles off the states of one body."""

    subject: Subject
    piece: Piece
    axis: str
    found: dict[str, Style] = field(default_factory=dict)
    entering: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For modules with weights: how their input lies outside and inside."""
    before: dict[str, Style] = field(default_factory=dict)
    shared: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    sharded_loss: bool = False
    own_loss: bool = False

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.piece.graph.ops

    @cached_property
    def weights(self) -> set[str]:
        """Parameters, and what is made of nothing else (1 + weight)."""
        found = {param.value for param in self.piece.graph.params if not param.buffer}
        for op in self.ops:
            if op.operands and found.issuperset(op.operands):
                found.update(op.results)
        return found

    @cached_property
    def experts(self) -> CutExperts:
        """Modules whose insides are theirs: tokens enter, and leave, as copies."""
        return cut_experts_of(self.subject, self.piece, self.axis)

    @cached_property
    def leaves(self) -> dict[str, Op]:
        """The operators that read weights, by module."""
        found: dict[str, Op] = {}
        for op in self.ops:
            if self.experts.holds(op.module):
                continue
            if self.weights.intersection(op.operands) and not self.weights.issuperset(op.operands):
                if op.module in found:
                    raise self.refuse(op, "its module reads weights in two operators")
                found[op.module] = op
        return found

    def styles(self) -> Styles:
        for op in self.leaves.values():
            self.of_leaf(op)
        for value in self.values():
            self.check_value(value)
        for path in self.experts.around:
            self.found[path] = Style("PrepareModuleInputOutput", OWN_TOKENS)
        options = {path: self.with_input(path, style) for path, style in self.found.items()}
        modules = dict(sorted(options.items(), key=self.order))
        return Styles(modules, self.before, self.sharded_loss, self.own_loss, self.shared)

    def order(self, pair: tuple[str, Style]) -> int:
        """In the order in which modules run."""
        under = [n for n, op in enumerate(self.ops) if op.module == pair[0] or op.module.startswith(f"{pair[0]}.")]
        return min(under)

    # states

    def at(self, state: State, *, differentiable: bool) -> At:
        cut = state.value.on(self.axis)
        lies = COPIES if cut is None else str(cut) if isinstance(cut, int) else SUM
        return lies, differentiable and self.axis in state.grad_partial

    def wanted(self, op: Op, slot: int) -> At:
        value = op.operands[slot]
        applied = facts_of(self.piece.graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh)
        return self.settled(value, applied.operands[slot])

    def settled(self, value: str, state: State) -> At:
        return self.at(state, differentiable=value in self.piece.graph.differentiable)

    def made(self, value: str) -> At:
        """How a value lies where it is made; what comes in lies as the plan says."""
        op = self.maker.get(value)
        if op is None:
            return self.hub(value) or (COPIES, False)
        applied = facts_of(self.piece.graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh)
        return self.settled(value, applied.results[op.results.index(value)])

    def hub(self, value: str) -> At | None:
        state = dict(self.piece.plan.states).get(value)
        return None if state is None else self.settled(value, state)

    @cached_property
    def maker(self) -> dict[str, Op]:
        return {value: op for op in self.ops for value in op.results}

    def readers(self, value: str) -> list[tuple[Op, int]]:
        graph = self.piece.graph
        return [(graph.ops[index], slot) for index, slot in graph.readers.get(value, ())]

    def values(self) -> Iterator[str]:
        graph = self.piece.graph
        yield from (item.value for item in graph.inputs)
        yield from (value for op in self.ops for value in op.results)

    def leaves_as(self, value: str) -> At:
        """How a value leaves its module: the sum of a product is reduced there."""
        home, hub = self.made(value), self.hub(value)
        if home[0] == SEQUENCE and hub == (COPIES, True):
            return home  # the module around its readers gathers it, once too
        if hub is not None and hub != home:
            return hub
        if home[0] != SUM:
            return WHOLE if self.gathers(value, home) else home
        wanted = {self.wanted(op, slot)[0] for op, slot in self.readers(value)}
        if len(wanted) != 1:
            raise self.refuse(self.maker[value], f"its readers want its sum in {len(wanted)} ways")
        return next(iter(wanted)), False

    def gathers(self, value: str, home: At) -> bool:
        """Whether channels are cut in the module that makes them alone: all that read them want all of them."""
        maker, readers = self.maker.get(value), self.readers(value)
        if home[0] != CHANNEL or maker is None or {self.wanted(op, slot) for op, slot in readers} != {WHOLE}:
            return False
        return has_channels(maker) or (self.cuts_channels and self.returned(maker.module) == {value})

    @cached_property
    def cuts_channels(self) -> bool:
        return any(has_channels(op) and self.made(op.results[0])[0] == CHANNEL for op in self.ops)

    def returned(self, module: str) -> set[str]:
        """What of the values that a module makes is read outside of it."""
        made = {value for op in self.ops if _inside(op.module, module) for value in op.results}
        return {value for value in made if any(not _inside(op.module, module) for op, _ in self.readers(value))}

    # modules with weights

    def of_channels(self, op: Op) -> None:
        """A module whose channels the axis cuts, or none."""
        applied = facts_of(self.piece.graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh)
        if not any(state.value.on(self.axis) is not None for state in (*applied.operands, *applied.results)):
            return
        cut = cut_of(op, self.piece.plan.strategy(op.name).of(self.axis))
        if cut is None:
            raise self.refuse(op, f"{self.axis} cuts it otherwise than by channels, or some of several groups")
        prefix, held = f"{op.module}.", {param.value: param.paths for param in self.piece.graph.params}
        dims: dict[str, int] = {}
        for slot, value in enumerate(op.operands[1:], 1):
            at = self.wanted(op, slot)[0]
            names = [path.removeprefix(prefix) for path in held.get(value, ()) if path.startswith(prefix)]
            if not names:
                raise self.refuse(op, f"%{value} is no parameter of its module")
            if at not in (COPIES, SUM):
                dims[names[0]] = int(at)
        out = self.leaves_as(op.results[0])[0]
        leaving = (f"output_layouts={layout(out)}",) if out != cut.makes else ()
        if out == CHANNEL != cut.makes and len(op.operands) > len(("input", "weight")):
            raise self.refuse(op, "its sum is cut by channels, and its bias is not")
        self.found[op.module] = Style(OWN_CHANNELS, (*cut.options(dims), *leaving))
        self.entering[op.module] = (cut.takes, cut.takes)

    def of_leaf(self, op: Op) -> None:
        main = self.wanted(op, 1)[0] if has_channels(op) and len(op.operands) > 1 else COPIES
        if op.kind == "batch_norm" or main != COPIES:
            self.of_channels(op)
            return
        weights = [slot for slot, value in enumerate(op.operands) if value in self.weights]
        inputs = [slot for slot, value in enumerate(op.operands) if value not in self.weights]
        if len(inputs) != 1 or len(op.results) != 1:
            raise self.refuse(op, "it has more than one input or result")
        main = self.wanted(op, weights[0])[0]
        want, home = self.wanted(op, inputs[0]), self.made(op.results[0])
        out = self.leaves_as(op.results[0])
        if main == COPIES and want == home == out == (COPIES, False):
            return
        if main == COPIES and want == home == (COPIES, False) and out[0] == SEQUENCE:
            given = ("output_layouts=Replicate()", "desired_output_layouts=Shard(1)", "use_local_output=False")
            self.found[op.module] = Style("PrepareModuleOutput", given)
            return
        if main == COPIES and want[0] == COPIES and home == out == (COPIES, True):
            self.found[op.module] = Style("Copied")
            return
        rank = len(self.piece.graph.types[op.results[0]].shape)
        turned = self.transposed(op, [op.operands[slot] for slot in weights])
        if op.kind in ("linear", "embedding") and home[0] == SUM and out[0] != SUM:
            goes_on = out[0] == SEQUENCE and any(one.module == op.module for one, _ in self.readers(op.results[0]))
            self.found[op.module] = Style("RowwiseParallel", self.leaving(op, out[0]), turned, goes_on)
            inside = COPIES if op.kind == "embedding" else str(rank - 1)
        elif op.kind in ("linear", "embedding") and home[0] == str(rank - 1) and main != COPIES:
            self.found[op.module] = Style("ColwiseParallel", () if out == home else self.leaving(op, out[0]), turned)
            inside = COPIES
        elif op.kind == "embedding" and main == COPIES and want[0] == home[0] == out[0] == SEQUENCE:
            cut = ("input_layouts=(Replicate(),)", "desired_input_layouts=(Shard(1),)")
            self.before[op.module] = Style("PrepareModuleInput", cut)
            self.found[op.module] = Style("SequenceParallel")
            inside = SEQUENCE
        elif main == COPIES and want[0] == home[0] == out[0] not in (COPIES, SUM) and self.on_own(op.module, want[0]):
            inside = want[0]
            tokens = inside == SEQUENCE and rank == len(("batch", "sequence", "width"))
            options = () if tokens else (f"sequence_dim={inside}", "use_local_output=True")
            self.found[op.module] = Style("SequenceParallel", options)
        else:
            raise self.refuse(
                op, f"its input is {want[0]}, its weight {main} and its result {home[0]} over {self.axis}"
            )
        if want[0] != inside:
            raise self.refuse(op, f"{self.found[op.module].name} wants its input as {inside}, the plan as {want[0]}")
        self.entering[op.module] = (inside, inside)

    def leaving(self, op: Op, at: str) -> tuple[str, ...]:
        """How a style says where its result goes: tokens stay DTensors, but beside experts that run on own tokens."""
        stays = at == SEQUENCE and not self.experts.shares(op.module)
        return (f"output_layouts={layout(at)}", *(["use_local_output=False"] if stays else []))

    def transposed(self, op: Op, weights: list[str]) -> bool:
        """Whether a product's weight is stored as [in, out]."""
        turned = bool(op.attr("transposed", False))
        names = {param.path for param in self.piece.graph.params if param.value in weights}
        if turned and names - {f"{op.module}.weight", f"{op.module}.bias"}:
            raise self.refuse(op, f"its weight is stored as [in, out], and named {' and '.join(sorted(names))}")
        return turned

    def on_own(self, module: str, dim: str) -> bool:
        """Whether all that a module makes of values is cut along a dimension: tokens, or heads."""
        made = [value for op in self.ops if op.module == module for value in op.results if value not in self.weights]
        return all(self.made(value)[0] == dim for value in made)

    def with_input(self, path: str, style: Style) -> Style:
        """A style that says how the module's input comes, where that is not how it is wanted."""
        outside, inside = self.entering.get(path, ("", ""))
        if outside != inside or (style.name == "RowwiseParallel" and inside == COPIES):
            return replace(style, options=(f"input_layouts={layout(outside)}", *style.options))
        return style

    # values between modules

    def check_value(self, value: str) -> None:
        """Find where a value changes its placement; it must be where a style says so."""
        graph = self.piece.graph
        maker = self.maker.get(value)
        if maker is not None and self.experts.holds(maker.module) and not self.leaves_experts(value):
            return
        lies = self.leaves_as(value)
        if maker is not None and maker.kind == LOSS and self.scores_tokens(maker):
            self.of_own_tokens(maker)
        elif maker is not None and not self.says(maker, value, lies):
            raise self.refuse(maker, "its result changes its placement outside of a module with weights")
        if not graph.types[value].floating:
            return  # every rank is given whole sequences of tokens and labels
        other = [(op, slot) for op, slot in self.readers(value) if self.wanted(op, slot) != lies]
        wanted = {self.wanted(op, slot) for op, slot in other}
        for op, _ in other:
            if op.kind == LOSS and lies[0] == str(len(graph.types[value].shape) - 1):
                self.loss_of(op)
        changed = [(op, slot) for op, slot in other if op.kind != LOSS]
        if self.reads_shards(value, lies):
            self.loss_of(next(op for op, _ in self.readers(value) if op.kind == LOSS))
        if changed and maker is not None and self.is_part(maker) and wanted == {(COPIES, True)}:
            sizes = tuple(graph.types[part].shape[-1] for part in maker.results)
            self.shared[self.maker[maker.operands[0]].module] = maker.results.index(value), sizes
        elif changed and not self.brings(value, changed, lies):
            self.prepare(value, lies, wanted, [op for op, _ in changed])

    def says(self, maker: Op, value: str, lies: At) -> bool:
        """Whether a value leaves its module as a style says: a module with weights, or one whose channels end there."""
        home = self.made(value)
        if lies != home and self.gathers(value, home):
            whole = ("output_layouts=Shard(1)", "desired_output_layouts=Replicate()")
            self.found.setdefault(maker.module, Style("PrepareModuleOutput", whole))
        return lies == home or maker.module in self.found

    def brings(self, value: str, changed: list[tuple[Op, int]], lies: At) -> bool:
        """Whether one module alone wants a value otherwise: its channels of it, or, of what is cut by channels, all."""
        (op, slot), *others = changed
        style, wanted = self.found.get(op.module), self.wanted(op, slot)
        if others or slot or lies[1]:
            return False
        if style is not None and style.name == OWN_CHANNELS and (lies[0], wanted[0]) == (COPIES, CHANNEL):
            self.entering[op.module] = (COPIES, CHANNEL)
            return True
        if (
            style is None
            and self.leaves.get(op.module) is op
            and has_channels(op)
            and (lies[0], wanted) == (CHANNEL, WHOLE)
        ):
            prepared = self.prepared(op, value, op.module, lies[0])
            self.found[op.module] = replace(prepared, options=(*prepared.options, "use_local_output=True"))
            return True
        return False

    def is_part(self, op: Op) -> bool:
        """Whether an operator cuts a product apart that a module hands on, along its width."""
        made, shape = self.maker.get(op.operands[0]), self.piece.graph.types[op.operands[0]].shape
        alone = len(self.readers(op.operands[0])) == 1 and made is not None and made in self.leaves.values()
        return op.kind == "split" and op.attr("dim") == len(shape) - 1 and alone

    def leaves_experts(self, value: str) -> bool:
        """Whether what such a module makes is read outside of it."""
        readers = self.readers(value)
        return not readers or any(not self.experts.holds(op.module) for op, _ in readers)

    def reads_shards(self, value: str, lies: At) -> bool:
        """Whether the loss reads scores whose vocabulary is cut."""
        last = str(len(self.piece.graph.types[value].shape) - 1)
        return lies[0] == last and any(op.kind == LOSS and slot == 0 for op, slot in self.readers(value))

    def loss_of(self, op: Op) -> None:
        """Scores stay DTensors up to a loss that reads their shards."""
        head = self.head_of(op)
        style = self.found.get(head)
        if style is None or style.name not in ("ColwiseParallel", OWN_CHANNELS):
            raise self.refuse(op, "it reads sharded scores that no cut head makes")
        if not self.sharded_loss:
            goes = ("output_layouts=Shard(-1)",) if style.name == "ColwiseParallel" else ()
            options = (*style.options, *goes, "use_local_output=False")
            self.found[head] = replace(style, options=options)
        self.sharded_loss = True

    def scores_tokens(self, op: Op) -> bool:
        """Whether a loss reads scores whose tokens are cut."""
        rank = len(self.piece.graph.types[op.operands[0]].shape)
        return rank > len(("sequence", "scores")) and self.wanted(op, 0)[0] == SEQUENCE

    def of_own_tokens(self, op: Op) -> None:
        """The head makes plain scores of its own tokens for the loss."""
        head = self.head_of(op)
        style = self.found.get(head)
        if style is None or style.name != "SequenceParallel":
            raise self.refuse(op, "it reads scores of a rank's own tokens that no head makes of these")
        self.found[head] = replace(style, options=("use_local_output=True",))
        self.own_loss = True

    def head_of(self, op: Op) -> str:
        """The module that makes the scores that a loss reads."""
        made = self.maker[op.operands[0]]
        while made.kind in ("cast", "permute") and made.operands[0] in self.maker:
            made = self.maker[made.operands[0]]
        return made.module

    def prepare(self, value: str, lies: At, wanted: set[At], readers: list[Op]) -> None:
        """A value that modules want as copies whose gradients add up: the innermost module around them brings it
        there."""
        place = readers[0]
        gradients = value in self.piece.graph.differentiable
        if wanted != {(COPIES, gradients)} or lies[1] or lies[0] == SUM:
            raise self.refuse(place, f"%{value} lies as {lies[0]} and is wanted otherwise than as copies")
        around = _common([op.module for op in readers])
        strangers = [op for op, _ in self.readers(value) if _inside(op.module, around) and op not in readers]
        unstyled = [op for op in readers if op.module not in self.found]
        if strangers or unstyled:
            raise self.refuse((strangers or unstyled)[0], f"it reads %{value}, which changes its placement there")
        if len(readers) == 1:
            self.entering[around] = (lies[0], COPIES)
            return
        self.found[around] = self.prepared(place, value, around, lies[0])

    def prepared(self, place: Op, value: str, around: str, outside: str) -> Style:
        """The style of a module that brings one of its arguments to copies."""
        maker, calls = self.maker.get(value), self.subject.calls
        arguments = calls.arguments.get(self.piece.path(around), ())
        keywords = calls.keywords.get(self.piece.path(around), {})
        made_by = self.piece.path(maker.module) if maker is not None else self.subject.maker(self.piece, value)
        named = [name for name, made in keywords.items() if made == made_by]
        if not around or made_by is None or arguments.count(made_by) + len(named) != 1:
            raise self.refuse(place, f"%{value} is no argument of module {around or 'of the block'!r}")
        if named:
            return Style(
                "PrepareModuleInput",
                (
                    f"input_kwarg_layouts={{{literal(named[0])}: {layout(outside)}}}",
                    f"desired_input_kwarg_layouts={{{literal(named[0])}: Replicate()}}",
                ),
            )
        given = [layout(outside) if made == made_by else "None" for made in arguments]
        inside = ["Replicate()" if made == made_by else "None" for made in arguments]
        return Style(
            "PrepareModuleInput",
            (f"input_layouts={_tuple(given)}", f"desired_input_layouts={_tuple(inside)}"),
        )

    def refuse(self, op: Op, cause: str) -> EmissionModule:
        path = self.piece.path(op.module)
        return EmissionModule(
            place=f"plan {self.piece.plan.name}, %{op.name} ({op.kind}) of {path or 'the model'}",
            cause=f"no style says this: {cause}",
            ways=("--fix tp=1",),
            fix=HOW,
        )


def _common(paths: list[str]) -> str:
    """The innermost module around all of them, or the one that they all are."""
    parts = [path.split(".") for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _inside(path: str, around: str) -> bool:
    return not around or path == around or path.startswith(f"{around}.")


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
