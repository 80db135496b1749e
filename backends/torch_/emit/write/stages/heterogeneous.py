"""A pipeline whose stages have different meshes: its runtime, and what else is different where ranks of one stage are
more than those of another.

`torch.distributed.pipelining` sends what a stage makes to one rank of the next one. Here a rank sends, and receives, as
many parts as there are on either side, and goes through the actions of its schedule itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from meshwright.backends.lines import WIDTH, quoted, wrapped
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.read.heterogeneous import Heterogeneous
from meshwright.backends.torch_.emit.read.storage import WHOLE
from meshwright.backends.torch_.emit.write.frame.checkpoints import plain
from meshwright.backends.torch_.emit.write.frame.entry import joining
from meshwright.backends.torch_.emit.write.frame.initial import drawn
from meshwright.backends.torch_.emit.write.frame.model import parallelize
from meshwright.backends.torch_.emit.write.frame.printed import printed_constants
from meshwright.backends.torch_.emit.write.stages.pipeline import (
    blocks_of_stages,
    entries_of_step,
    pipeline_of,
    staged_step,
    stages,
)
from meshwright.backends.torch_.emit.write.stages.schedule import LISTS
from meshwright.backends.torch_.emit.write.steps.batch import batch_of
from meshwright.backends.torch_.emit.write.steps.clipping import norms, scaled
from meshwright.backends.torch_.emit.write.steps.copies import sum_copies, sum_scalars
from meshwright.backends.torch_.emit.write.steps.scaling import SCALED
from meshwright.backends.torch_.emit.write.steps.step import after_backward, summed
from meshwright.ir.graph.invocation import NAMES
from meshwright.ir.quoting import literal
from meshwright.ir.sharding.placement import Placement

MEANING = {"batch": "ranks share the sequences of every micro-batch", "tensor": "ranks share every block"}


def heterogeneous_axes(heterogeneous: Heterogeneous) -> Iterator[str]:
    """What a script says of its mesh axes first."""
    for axis in heterogeneous.axes:
        sizes = " and ".join(str(mesh.axis(axis).size) if axis in mesh.names else "1" for mesh in heterogeneous.meshes)
        yield f"Mesh axis {axis} ({sizes} ranks): {MEANING['batch' if axis == heterogeneous.batch else 'tensor']}."


def heterogeneous_constants(heterogeneous: Heterogeneous) -> Iterator[str]:
    """Those that are about stages."""
    axes = (*heterogeneous.axes, *([WHOLE] if any(kind.kept.whole for kind in heterogeneous.kinds) else []))
    sizes = [
        ", ".join(f'"{axis}": {mesh.axis(axis).size if axis in mesh.names else 1}' for axis in axes)
        for mesh in heterogeneous.meshes
    ]
    ends = [0]
    for mesh in heterogeneous.meshes:
        ends.append(ends[-1] + mesh.size)
    yield from wrapped("MESHES = (", [f"{{{one}}}" for one in sizes], ")  # of every stage", keep=True)
    ranks = [f"range({first}, {last})" for first, last in pairwise(ends)]
    yield from wrapped("RANKS = (", ranks, ")", keep=True)
    yield f"STAGES = {len(heterogeneous.meshes)}"
    yield from blocks_of_stages(heterogeneous.main, heterogeneous.pipeline)
    yield "Box = tuple[range, ...]  # what a rank has of every dimension of a value"
    yield "Cuts = dict[int, tuple[str, ...]]  # the mesh axes that cut its dimensions, major to minor"
    for kind in heterogeneous.kinds:
        yield from printed_constants(kind, kind.printed) if kind.printed is not None else ()
    if heterogeneous.tied:
        held = [f"({stage}, {literal(name)}, {_cuts(lies)})" for stage, name, lies in heterogeneous.tied]
        yield "TIED: tuple[tuple[int, str, Cuts], ...] = (  # one parameter: stages, its names there, and what cuts it"
        yield from (f"    {one}," for one in held)
        yield ")"


def shards(heterogeneous: Heterogeneous) -> Iterator[Iterator[str]]:
    """`shard`, and a function for every kind of stage that is cut."""
    cut: list[tuple[str, str]] = []
    for kind in heterogeneous.kinds:
        first, *lines = parallelize(kind)
        if lines[1:] != ["    return model"]:
            name = f"shard_{kind.kind}"
            cut.append((name, _among(kind.subject.only)))
            yield iter((first.replace("def shard(", f"def {name}("), *lines))
    yield _shard(cut)


def _shard(cut: list[tuple[str, str]]) -> Iterator[str]:
    yield "def shard(model: Stage, mesh: DeviceMesh) -> nn.Module:"
    yield '    """This rank\'s part of a stage, as the mesh of the stage wants it."""'
    for name, among in cut:
        yield f"    if model.index {among}:"
        yield f"        return {name}(model, mesh)"
    yield "    return model"


def _among(stages: tuple[int, ...]) -> str:
    return f"== {stages[0]}" if len(stages) == 1 else f"in ({', '.join(map(str, stages))})"


def heterogeneous_start(heterogeneous: Heterogeneous) -> Iterator[str]:
    """`start`: groups are made by all ranks together, so that each makes the meshes of all stages."""
    yield from joining(heterogeneous.main, "Join the other ranks; returns the mesh of this rank's stage.")
    yield "    meshes = []"
    yield "    for ranks_of, axes in zip(RANKS, MESHES, strict=True):  # all ranks make the groups of all stages"
    yield "        placed = torch.tensor(ranks_of).reshape(*axes.values())"
    device = device_of(heterogeneous.main.subject)
    yield f'        meshes.append(DeviceMesh("{device}", placed, mesh_dim_names=tuple(axes)))'
    for axes in dict.fromkeys(axes for kind in heterogeneous.kinds for axes in kind.flattened):
        yield f'        meshes[-1][{quoted(axes)}]._flatten("{joined(axes)}")'
    yield "    return next(mesh for mesh in meshes if dist.get_rank() in mesh.mesh)"


def heterogeneous_draw(heterogeneous: Heterogeneous) -> Iterator[str]:
    """`draw`: along an axis that a stage does not have, a rank is alone."""
    return drawn(
        heterogeneous.main, heterogeneous.axes, distributed=any(kind.distributed for kind in heterogeneous.kinds)
    )


def heterogeneous_batches(heterogeneous: Heterogeneous) -> Iterator[str]:
    """The function `batch_of`: all stages must see the same micro-batches, however many ranks share each."""
    away = "" if device_of(heterogeneous.main.subject) == "cpu" else '.to("cuda")'
    if heterogeneous.batch is not None:
        yield "def own_sequences(tensor: Tensor, mesh: DeviceMesh) -> Tensor:"
        yield '    """This rank\'s rows of each micro-batch, one after the other."""'
        yield f'    here, parts = mesh["{heterogeneous.batch}"].get_local_rank(), mesh["{heterogeneous.batch}"].size()'
        yield "    return torch.cat([micro.chunk(parts)[here] for micro in tensor.chunk(MICROBATCHES)])"
        yield ""
        yield ""
    if heterogeneous.batch is not None or away:
        mine = "own_sequences(tensor, mesh)" if heterogeneous.batch is not None else "tensor"
        yield "def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:"
        yield '    """This rank\'s part of a batch; all ranks must cut the same one."""'
        yield f"    return {{name: {mine}{away} for name, tensor in whole.items()}}"
        yield ""
        yield ""
    yield from batch_of(cuts=heterogeneous.batch is not None or bool(away))


def heterogeneous_step(heterogeneous: Heterogeneous) -> Iterator[str]:
    """The function `train_step`."""
    first, late = entries_of_step(heterogeneous.main, heterogeneous.pipeline)
    return staged_step(
        heterogeneous.main, (f"losses = model.run({', '.join((*first, *late))})",), _after(heterogeneous)
    )


def _after(heterogeneous: Heterogeneous) -> Iterator[str]:
    """Lines after the backward pass: those of each kind of stage, and those of all."""
    every = list(summed(heterogeneous.main))
    for kind in heterogeneous.kinds:
        lines = list(after_backward(kind))[: -len(every)]
        if lines:
            yield f"    if model.index {_among(kind.subject.only)}:"
            yield from (f"    {line}" for line in lines)
    yield from every


def heterogeneous_clip(heterogeneous: Heterogeneous) -> Iterator[str]:
    """The function `clip`, which counts once what ranks of a stage share."""
    model = "Pipeline" if heterogeneous.tied else "nn.Module"
    yield f"def clip(model: {model}, most: float, mesh: DeviceMesh) -> None:"
    yield '    """Scale all gradients down together, to a norm of at most so much."""'
    if heterogeneous.tied:
        yield "    stage_of, name, _ = TIED[-1]  # the parameter of two stages counts on the first one"
        yield "    twice = {stage.get_parameter(name) for stage in model.stages if stage.index == stage_of}"
    yield from norms(" and p not in twice" if heterogeneous.tied else "")
    yield "    squares = nn.utils.get_total_norm(norms) ** 2 / mesh.size()  # all ranks of a stage have its norm"
    yield "    dist.all_reduce(squares)"
    yield from scaled("squares.sqrt()")


def heterogeneous_sections(heterogeneous: Heterogeneous) -> Iterator[Iterator[str]]:
    """The sections of stages, what they exchange, and their runner."""
    yield stages(heterogeneous.main, heterogeneous.pipeline)
    yield _boxes()
    yield _messages()
    yield _way(heterogeneous)
    yield _crossing(heterogeneous)
    yield _runner(heterogeneous)
    added = [kind for kind in heterogeneous.kinds if kind.summed]
    if added:
        yield sum_copies(max(added, key=lambda kind: kind.partial_gradients))
    scalars = [kind for kind in heterogeneous.kinds if kind.sums_scalars]
    if scalars:
        yield sum_scalars(max(scalars, key=lambda kind: kind.axes.tensor is not None))
    if heterogeneous.tied:
        yield _sum_tied()
    yield plain(tied=bool(heterogeneous.tied), cuts=True)


def _sum_tied() -> Iterator[str]:
    yield "def sum_tied(model: Pipeline) -> None:"
    yield '    """Add up the gradients of the parameter that two stages hold, part by part."""'
    yield "    for name, there, here in model.sharing:"
    yield "        parameter = model.stages[0].get_parameter(name)"
    yield "        if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):"
    yield "            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)"
    yield "        grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad"
    yield "        works, other = there.send(grad), here.receive()"
    yield "        wait(works)"
    yield "        grad += other"


def _boxes() -> Iterator[str]:
    yield "def boxes(shape: Sequence[int], stage: int, cut: Cuts) -> dict[int, Box]:"
    yield '    """What every rank of a stage has of a value."""'
    yield "    axes = MESHES[stage]"
    yield "    each = [size // math.prod(axes[axis] for axis in cut.get(dim, ())) for dim, size in enumerate(shape)]"
    yield "    found = {}"
    yield "    for rank, place in zip(RANKS[stage], itertools.product(*map(range, axes.values())), strict=True):"
    yield "        at, part = dict(zip(axes, place, strict=True)), [0] * len(shape)"
    yield "        for dim, over in cut.items():"
    yield "            for axis in over:"
    yield "                part[dim] = part[dim] * axes[axis] + at[axis]"
    yield "        found[rank] = tuple(range(n * size, (n + 1) * size) for n, size in zip(part, each, strict=True))"
    yield "    return found"


def _messages() -> Iterator[str]:
    yield "def messages(held: dict[int, Box], wanted: dict[int, Box]) -> Iterator[tuple[int, int, Box]]:"
    yield '    """Who sends what to whom: every rank gets its part once, of ranks that have the same by turns."""'
    yield "    turns: dict[Box, int] = {}"
    yield "    for receiver, own in wanted.items():"
    yield "        turn = turns[own] = turns.get(own, -1) + 1"
    yield "        for there in dict.fromkeys(held.values()):"
    yield "            copies = [rank for rank, other in held.items() if other == there]"
    yield "            both = zip(own, there, strict=True)"
    yield "            part = tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in both)"
    yield "            if all(part):"
    yield "                yield copies[turn % len(copies)], receiver, part"


def _way(heterogeneous: Heterogeneous) -> Iterator[str]:
    device = "" if device_of(heterogeneous.main.subject) == "cpu" else ', device="cuda"'
    yield "class Way:"
    yield '    """How a value gets from the ranks of one stage to those of another."""'
    yield ""
    yield "    def __init__("
    yield "        self,"
    yield "        dtype: torch.dtype,"
    yield "        held: dict[int, Box],"
    yield "        wanted: dict[int, Box],"
    yield "        group: dist.ProcessGroup | None,"
    yield "    ) -> None:"
    yield "        here, self.dtype, self.group = dist.get_rank(), dtype, group"
    yield "        self.shape = [len(span) for span in wanted.get(here, ())]"
    yield "        passed = list(messages(held, wanted))"
    yield "        self.sends = [(to, within(part, held[here])) for of, to, part in passed if of == here]"
    yield "        self.receives = [(of, within(part, wanted[here])) for of, to, part in passed if to == here]"
    yield ""
    yield "    def send(self, value: Tensor) -> list[dist.Work | None]:"
    yield "        return [dist.isend(value[part].contiguous(), rank, group=self.group) for rank, part in self.sends]"
    yield ""
    yield "    def receive(self) -> Tensor:"
    yield f"        value = torch.empty(self.shape, dtype=self.dtype{device})"
    yield "        for rank, part in self.receives:"
    yield "            arrived = value[part].contiguous()"
    yield "            dist.recv(arrived, rank, group=self.group)"
    yield "            value[part] = arrived"
    yield "        return value"
    yield ""
    yield ""
    yield "def wait(works: list[dist.Work | None]) -> None:"
    yield '    """Until all has arrived, and let go of it."""'
    yield "    while works:"
    yield "        if (work := works.pop()) is not None:"
    yield "            work.wait()"
    yield ""
    yield ""
    yield "def within(part: Box, own: Box) -> tuple[slice, ...]:"
    yield '    """Where a part is in what a rank has."""'
    yield "    both = zip(part, own, strict=True)"
    yield "    return tuple(slice(span.start - all_of.start, span.stop - all_of.start) for span, all_of in both)"


def _crossing(heterogeneous: Heterogeneous) -> Iterator[str]:
    yield "class Value(NamedTuple):"
    yield '    """What goes from a stage to the next, and the mesh axes that cut its dimensions on either side."""'
    yield ""
    yield "    shape: tuple[int, ...]"
    yield "    dtype: torch.dtype"
    yield "    leaves: Cuts"
    yield "    enters: Cuts"
    yield "    grad: bool  # whether a gradient comes back"
    yield ""
    yield ""
    rows: list[str] = []
    for one, other in pairwise(heterogeneous.pipeline.stages):
        values = []
        for left, entered in zip(one.leaves, other.enters, strict=True):
            shape = f"({', '.join(map(str, left.type.shape))}{',' * (len(left.type.shape) == 1)})"
            cuts = f"{_cuts(left.placement)}, {_cuts(entered.placement)}"
            values.append(f"Value({shape}, torch.{NAMES[left.type.dtype]}, {cuts}, {left.differentiable}),")
        rows += ["(", *(f"    {value}" for value in values), "),"] if len(values) > 1 else [f"({values[0]}),"]
    line = f"CROSSING = ({rows[0]})"
    if len(rows) == 1 and len(line) <= WIDTH:
        yield line
        return
    yield "CROSSING = ("
    yield from (f"    {row}" for row in rows)
    yield ")"


def _cuts(lies: Placement) -> str:
    """The axes that cut the dimensions of a value, as a table."""
    cut = {dim: tuple(shard.axis for shard in shards) for dim, shards in enumerate(lies.dims) if shards}
    return f"{{{', '.join(f'{dim}: ({quoted(axes)}{chr(44) * (len(axes) == 1)})' for dim, axes in cut.items())}}}"


def _runner(heterogeneous: Heterogeneous) -> Iterator[str]:
    late = bool(heterogeneous.pipeline.late)
    yield "class Kept(NamedTuple):"
    yield '    """What a forward pass leaves for the backward pass of its micro-batch."""'
    yield ""
    yield "    given: list[Tensor]"
    yield "    results: list[Tensor]"
    yield "    works: list[dist.Work | None]"
    yield ""
    yield ""
    yield from pipeline_of("The stage of this rank, and what sends micro-batches through it.")
    yield "        self.index = next(stage for stage, ranks in enumerate(RANKS) if dist.get_rank() in ranks)"
    yield "        self.stages = nn.ModuleList([shard(stage_of(model, self.index, mesh), mesh)])"
    yield "        self.last = self.index == STAGES - 1"
    yield f'        lists = Path(__file__).with_name("{LISTS}").read_text().splitlines()'
    yield '        self.schedule = lists[self.index].split(",")'
    yield "        groups = dist.new_group(), dist.new_group()  # values and gradients overtake each other"
    yield "        self.before = self.ways(self.index - 1, *groups)"
    yield "        self.after = self.ways(self.index, *groups)"
    if heterogeneous.tied:
        yield "        self.sharing = list(self.tied(groups[0]))"
    yield ""
    yield "    def ways("
    yield "        self, stage: int, forth: dist.ProcessGroup | None, back: dist.ProcessGroup | None"
    yield "    ) -> list[tuple[Way, Way | None]]:"
    yield '        """Of what goes from a stage to the next: its way there, and its gradient\'s back."""'
    yield "        found: list[tuple[Way, Way | None]] = []"
    yield "        for value in CROSSING[stage] if 0 <= stage < STAGES - 1 else ():"
    yield "            here = boxes(value.shape, stage, value.leaves)"
    yield "            there = boxes(value.shape, stage + 1, value.enters)"
    yield "            returns = Way(value.dtype, there, here, back) if value.grad else None"
    yield "            found.append((Way(value.dtype, here, there, forth), returns))"
    yield "        return found"
    yield ""
    if heterogeneous.tied:
        yield "    def tied(self, group: dist.ProcessGroup | None) -> Iterator[tuple[str, Way, Way]]:"
        yield '        """A parameter that another stage holds, too: what goes there of its gradient, what comes."""'
        yield "        for (stage, name, cut), (other, _, cut_there) in itertools.permutations(TIED):"
        yield "            if stage == self.index:"
        yield "                one = self.stages[0].get_parameter(name)"
        yield "                own, there = boxes(one.shape, stage, cut), boxes(one.shape, other, cut_there)"
        yield "                yield name, Way(one.dtype, own, there, group), Way(one.dtype, there, own, group)"
        yield ""
    arguments = ["self", "*entries: Tensor", *["**late: Tensor"] * late]
    yield f"    def run({', '.join(arguments)}) -> list[Tensor]:"
    yield '        """All micro-batches, in the order of the schedule; returns their losses, of the last stage."""'
    yield "        inputs = list(zip(*(one.chunk(MICROBATCHES) for one in entries), strict=True))"
    if late:
        yield "        named = {name: one.chunk(MICROBATCHES) for name, one in late.items()}  # all stages have it"
    yield "        kept: dict[int, Kept] = {}"
    yield "        sent: list[dist.Work | None] = []"
    yield "        losses: list[Tensor] = []"
    yield "        for action in self.schedule:"
    yield "            number = int(action[1:])"
    yield '            if action[0] == "F":'
    given = ["inputs[number]", *["**beside"] * late]
    if late:
        yield "                beside = {name: one[number] for name, one in named.items()}"
    yield f"                kept[number] = self.forth({', '.join(given)})"
    yield "                losses += [loss.detach() for loss in kept[number].results if self.last]"
    yield "            else:"
    summing = [index for kind in heterogeneous.kinds if kind.kept.level == 1 for index in kind.subject.only]
    if summing:
        yield "                stage = self.stages[0]"
        yield f"                if self.index {_among(tuple(sorted(summing)))} and isinstance(stage, FSDPModule):"
        yield "                    done = action == self.schedule[-1]"
        yield "                    stage.set_requires_gradient_sync(done)"
        yield "                    stage.set_reshard_after_backward(done)"
    yield "                wait(sent)"
    yield "                sent = self.back(kept.pop(number))"
    yield "        wait(sent)"
    yield "        return losses"
    yield ""
    arguments = ["entries: tuple[Tensor, ...]", "/", *["**late: Tensor"] * late]
    yield f"    def forth(self, {', '.join(arguments)}) -> Kept:"
    yield '        """The forward pass of a micro-batch."""'
    yield "        given = [way.receive().requires_grad_(back is not None) for way, back in self.before]"
    yield f"        made = self.stages[0](*(given or entries){', **late' * late})"
    yield "        results = [made] if isinstance(made, Tensor) else list(made)"
    yield "        leaving = zip(self.after, results, strict=not self.last)"
    yield "        return Kept(given, results, [work for (way, _), one in leaving for work in way.send(one.detach())])"
    yield ""
    yield "    def back(self, kept: Kept) -> list[dist.Work | None]:"
    yield '        """Its backward pass; what was sent arrived before, since others went on with it."""'
    yield "        leaving = zip(self.after, kept.results, strict=not self.last)"
    yield "        ends = [(one, back.receive()) for (_, back), one in leaving if back]"
    yield "        ends = [(kept.results[0], None)] if self.last else ends"
    if heterogeneous.main.precision.scaled:
        yield "        if self.last:"
        yield f"            kept.results[0].{SCALED}"
    yield "        wait(kept.works)"
    yield "        torch.autograd.backward([one for one, _ in ends], [grad for _, grad in ends])"
    yield "        entered = zip(self.before, kept.given, strict=True)"
    yield "        return [work for (_, back), one in entered if back for work in back.send(one.grad)]"


def heterogeneous_orders(heterogeneous: Heterogeneous) -> str:
    """The text of schedule.csv: the actions of every stage in order, F (forward) or B (backward) and micro-batch."""
    lists = [[one for one in actions if one.kind in "FB"] for _, actions in heterogeneous.main.subject.program.actions]
    return "".join(f"{','.join(f'{one.kind}{one.microbatch}' for one in actions)}\n" for actions in lists)
