"""The stages of a pipeline, the schedule that runs them, and a step of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.backends.lines import fitted, quoted, wrapped
from meshwright.backends.torch_.emit.printed.language.dialect import TERMS
from meshwright.backends.torch_.emit.printed.stages import SHARE
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.pipeline import FOLLOWING, HANDED, Crossing, Pipeline, StageCode
from meshwright.backends.torch_.emit.read.storage import weights_apart
from meshwright.backends.torch_.emit.write.frame.checkpoints import plain
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.stages.schedule import by_lists, class_of, made_of
from meshwright.backends.torch_.emit.write.steps.scaling import SCALED
from meshwright.backends.torch_.emit.write.steps.step import after_backward, entry, stepped
from meshwright.backends.torch_.emit.write.steps.weighing import (
    counted,
    target_of,
    terms,
    weight_of,
)
from meshwright.backends.turns import counted as in_a_row
from meshwright.ir.analysis.weights import COUNT, MEAN, SUM
from meshwright.ir.graph.invocation import NAMES
from meshwright.ir.quoting import around, assigned, keywords, literal

TOGETHER = {
    COUNT: "the mean over all positions that have a target",
    MEAN.kind: "the mean over all samples",
    SUM.kind: "the sum over all samples",
}
"""What the losses of micro-batches are parts of."""


def stage_constants(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    held = ", ".join(f"({', '.join(map(str, one))}{',' * (len(one) == 1)})" for one in pipeline.held)
    yield f"STAGES = {len(pipeline.stages)}"
    yield f"STAGES_OF = ({held})  # which stages every rank along pp has"
    if pipeline.tied:
        held = ", ".join(f"({stage}, {literal(name)})" for stage, name in pipeline.tied)
        yield f"TIED = ({held})  # stages and names of one parameter"
    yield from blocks_of_stages(parts, pipeline)


def blocks_of_stages(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    """Constants that say which blocks of every stack a stage has."""
    for stack in parts.subject.stacks:
        every = stack.instances
        held = [
            in_a_row(tuple(every.number(path) for path in every.paths if path in stage.blocks))
            for stage in pipeline.stages
        ]
        yield from wrapped(f"{stack.constant} = (", held, ")", keep=True)


def stage_sections(parts: Parts, pipeline: Pipeline) -> Iterator[Iterator[str]]:
    """The sections of stages and their runner."""
    if any(FOLLOWING in line for stage in pipeline.stages for line in stage.lines):
        yield following()
    if any(f"{HANDED}(" in line for stage in pipeline.stages for line in stage.lines):
        yield handed()
    yield stages(parts, pipeline)
    yield crossing(parts, pipeline)
    if class_of(parts) is None:
        yield by_lists()
    yield runner(parts, pipeline)
    if pipeline.tied:
        yield sum_tied()
    yield plain(tied=bool(pipeline.tied))


def following() -> Iterator[str]:
    yield f"class {FOLLOWING}(torch.autograd.Function):"
    yield '    """Hands on a value as if it were made of another one: torch looks for weights behind what enters."""'
    yield ""
    yield "    @staticmethod"
    yield "    def forward(ctx: Any, value: Tensor, entered: Tensor) -> Tensor:"
    yield "        return value.clone()  # no view: torch detaches what leaves in place"
    yield ""
    yield "    @staticmethod"
    yield "    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:"
    yield "        return grad, None"


def handed() -> Iterator[str]:
    yield "class Handed(torch.autograd.Function):"
    yield '    """A value in one piece, and its gradient."""'
    yield ""
    yield "    @staticmethod"
    yield "    def forward(ctx: Any, value: Tensor) -> Tensor:"
    yield "        return value.contiguous().detach()  # no view: torch detaches what leaves in place"
    yield ""
    yield "    @staticmethod"
    yield "    def backward(ctx: Any, grad: Tensor) -> Tensor:"
    yield "        return grad.contiguous()"
    yield ""
    yield ""
    yield f"def {HANDED}(value: Tensor) -> Tensor:"
    yield '    """A value that goes from stage to stage, as it can be sent there and back."""'
    yield "    return cast(Tensor, Handed.apply(value))"


def staged() -> Iterator[str]:
    """The function `parallelize`, where `shard` does that to a stage."""
    yield "def parallelize(model: nn.Module, mesh: DeviceMesh) -> Pipeline:"
    yield '    """This rank\'s part of the model."""'
    yield "    return Pipeline(model, mesh, shard)"


def stages(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    """The class `Stage`, and a class for every forward pass that differs."""
    yield "class Stage(nn.Module):"
    yield '    """Modules of the model, under the names that they have there."""'
    yield ""
    yield "    def __init__(self, model: nn.Module, index: int, mesh: DeviceMesh, paths: list[str]) -> None:"
    yield "        super().__init__()"
    yield "        self.index, self.mesh = index, mesh"
    yield "        for path in paths:"
    yield '            *around, name = path.split(".")'
    yield "            holder: nn.Module = self"
    yield "            for part in around:"
    yield "                if part not in dict(holder.named_children()):"
    yield "                    holder.add_module(part, nn.Module())"
    yield "                holder = holder.get_submodule(part)"
    if any(stage.holds for stage in pipeline.stages):
        yield '            own = getattr(model.get_submodule(".".join(around)), name)'
        yield "            if isinstance(own, nn.Module):"
        yield "                holder.add_module(name, own)"
        yield "            elif isinstance(own, nn.Parameter):"
        yield "                holder.register_parameter(name, own)"
        yield "            else:"
        yield "                holder.register_buffer(name, own, persistent=path in model.state_dict())"
    else:
        yield "            holder.add_module(name, model.get_submodule(path))"
    for name, members in classes(pipeline):
        yield ""
        yield ""
        yield f"class {name}(Stage):"
        first = members[0]
        for line in first.lines:
            yield from fitted(f"    {line}")
    yield ""
    yield ""
    yield "def stage_of(model: nn.Module, index: int, mesh: DeviceMesh) -> Stage:"
    yield '    """One stage of the model."""'
    paths = []
    for stack in parts.subject.stacks:
        path = around(stack.instances.before, "number", stack.instances.after)
        paths.append(f"*({path} for number in {stack.constant}[index])")
    yield from wrapped("    paths = [", paths, "]", keep=True)
    for name, members in classes(pipeline):
        beside, ahead, own = members[0].beside, members[0].ahead, members[0].holds
        held = ", ".join(one for one in (quoted(beside[:ahead]), "*paths", quoted((*beside[ahead:], *own))) if one)
        made = f"{name}(model, index, mesh, {f'[{held}]' if beside or own else 'paths'})"
        if members[-1] is pipeline.stages[-1]:
            yield from fitted(f"    return {made}")
        else:
            condition = (
                f"index == {members[0].index}"
                if len(members) == 1
                else f"index in ({', '.join(str(one.index) for one in members)})"
            )
            yield f"    if {condition}:"
            yield from fitted(f"        return {made}")


def classes(pipeline: Pipeline) -> list[tuple[str, list[StageCode]]]:
    """Stages by their forward pass, with the name of their class; the last stage's class is the last one."""
    found: dict[tuple[object, ...], list[StageCode]] = {}
    for stage in pipeline.stages:
        found.setdefault((stage.lines, stage.beside, stage.holds), []).append(stage)
    kinds = list(found.values())
    usual = ["FirstStage", "LastStage"] if len(kinds) == 2 else ["FirstStage", "MiddleStage", "LastStage"]
    names = usual if len(kinds) == len(usual) else [f"Stage{members[0].index}" for members in kinds]
    return list(zip(names, kinds, strict=True))


def runner(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    """The class `Pipeline`: the stages of a rank, and their schedule."""
    device = '"cpu"' if device_of(parts.subject) == "cpu" else '"cuda", torch.cuda.current_device()'
    if parts.hidden:
        yield "class Alone(nn.Module):"
        yield '    """A sharded stage that gathers and scatters for every micro-batch; torch would defer it."""'
        yield ""
        yield "    def __init__(self, stage: nn.Module) -> None:"
        yield "        super().__init__()"
        yield "        self.stage = stage"
        yield ""
        given = "*args, **kwargs" if pipeline.late else "*args"
        yield f"    def forward(self, {given.replace('args', 'args: Tensor')}) -> Any:"
        yield f"        return self.stage({given})"
        yield ""
        yield ""
    yield from pipeline_of("The stages of this rank, and the schedule that sends micro-batches through them.")
    yield '        group = mesh["pp"].get_group()'
    yield '        indices = STAGES_OF[mesh["pp"].get_local_rank()]'
    yield "        self.stages = nn.ModuleList(shard(stage_of(model, index, mesh), mesh) for index in indices)"
    if pipeline.twice and parts.axes.tensor is not None and not parts.held_twice:
        yield "        held = dict(zip(indices, self.stages, strict=True))"
        for (one, first), *others in pipeline.twice:
            yield f"        if {one} in held:  # one parameter again"
            for other, name in others:
                module, _, last = name.rpartition(".")
                again = f"held[{other}].get_submodule({literal(module)})"
                yield f"            {assigned(again, last, f'held[{one}].get_parameter({literal(first)})')}"
    yield "        self.last = STAGES - 1 in indices"
    yield f"        device = torch.device({device})"
    yield "        running = ["
    stage = "Alone(stage)" if parts.hidden else "stage"
    yield f"            PipelineStage({stage}, index, STAGES, device, *crossing(index), group=group)"
    yield "            for stage, index in zip(self.stages, indices, strict=True)"
    yield "        ]"
    at_once = [one.index for one in pipeline.stages[1:] if not any(value.differentiable for value in one.enters)]
    if at_once and weights_apart(parts.subject):
        yield "        for one in running:"
        yield f"            if one.stage_index in {at_once}:  # no gradient leaves it: torch would forget its weights'"
        yield "                one.dw_builder = lambda: lambda: None"
    if pipeline.tied and len(pipeline.held) == 2:
        yield "        self.sharing = group"
    elif pipeline.tied:
        groups = ", ".join(str(_group(pipeline, stage)) for stage, _ in pipeline.tied)
        yield f"        sharing = mesh.mesh[[{groups}]].reshape(2, -1).T.tolist()  # ranks that stand alike"
        yield "        self.sharing, _ = dist.new_subgroups_by_enumeration(sharing)"
    yield f"        self.schedule = {made_of(parts)}"
    yield ""
    yield "    def loss(self, outputs: Tensor, _: Tensor) -> Tensor:"
    yield '        """What the last stage returns."""'
    if parts.precision.scaled:
        yield f"        outputs.{SCALED}"
    yield "        return outputs"


def averages(parts: Parts) -> bool:
    """Whether gradients are averaged over copies."""
    return bool(parts.kept.units) and parts.axes.copied is not None and not parts.added


def shares_of_micro(parts: Parts) -> Iterator[str]:
    """The function `share`: the weight of every micro-batch in the loss of all ranks, for a last stage that is
    printed."""
    how = weight_of(parts.subject)
    if how.kind == COUNT:
        of = f"batch[{literal(how.entry)}].chunk(MICROBATCHES)"
        yield f"    counts = [{counted(how, 'labels')} for labels in {of}]"
        yield "    targets = torch.stack(counts).float()"
        if parts.axes.data is not None:
            yield "    if model.last:"
            yield f'        dist.all_reduce(targets, group=mesh["{parts.axes.data}"].get_group())'
        share = "targets / targets.sum()"
    else:
        share = f"torch.full((MICROBATCHES,), {'1 / MICROBATCHES' if how == MEAN else '1.0'})"
    yield f"    share = {share}{f' * {parts.copies_said}' if averages(parts) else ''}"
    yield from terms(parts, own="model.last")


def _group(pipeline: Pipeline, stage: int) -> int:
    return next(number for number, held in enumerate(pipeline.held) if stage in held)


def pipeline_of(what: str) -> Iterator[str]:
    """The first lines of `Pipeline`."""
    yield "class Pipeline(nn.Module):"
    yield f'    """{what}"""'
    yield ""
    line = "    def __init__(self, model: nn.Module, mesh: DeviceMesh, shard: Callable[[Stage, DeviceMesh], nn.Module])"
    yield f"{line} -> None:"
    yield "        super().__init__()"


def sum_tied() -> Iterator[str]:
    yield "def sum_tied(model: Pipeline) -> None:"
    yield '    """Add up the gradients of the parameter that two stages hold."""'
    yield "    for stage in model.stages:"
    yield "        for index, name in TIED:"
    yield "            parameter = stage.get_parameter(name) if stage.index == index else None"
    yield "            if parameter is None or parameter.grad is None:"
    yield "                continue"
    yield "            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):"
    yield "                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)"
    yield "            grad = parameter.grad"
    yield "            dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=model.sharing)"


def crossing(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    """The function `crossing`: the shapes that PipelineStage is told about."""
    yield "def crossing(index: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:"
    yield '    """What enters and what leaves a stage with a micro-batch, as tensors without data."""'
    yield '    ends = (torch.empty(0, device="meta"),)  # tokens and scores are not sent'
    sent = [tuple(_example(one, stage) for one in stage.leaves) for stage in pipeline.stages[:-1]]
    if len(set(sent)) == 1:
        yield from _tuple("    between = (", sent[0], ")")
        yield "    return ends if index == 0 else between, ends if index == STAGES - 1 else between"
        return
    yield "    between = ["
    for examples in sent:
        yield from _tuple("        (", examples, "),")
    yield "    ]"
    yield "    return between[index - 1] if index else ends, ends if index == STAGES - 1 else between[index]"


def _tuple(opening: str, examples: Sequence[str], closing: str) -> Iterator[str]:
    """A tuple on one line, if it has one entry."""
    if len(examples) == 1:
        yield f"{opening}{examples[0]},{closing}"
        return
    indent = " " * (len(opening) - len(opening.lstrip()))
    yield opening
    yield from (f"{indent}    {example}," for example in examples)
    yield f"{indent}{closing}"


def _example(one: Crossing, stage: StageCode) -> str:
    shape = ", ".join(map(str, one.placement.local_shape(one.type.shape, stage.mesh))) or "()"
    grad = ", requires_grad=True" if one.differentiable else ""
    return f'torch.empty({shape}, dtype=torch.{NAMES[one.type.dtype]}, device="meta"{grad})'


def pipeline_step(parts: Parts, pipeline: Pipeline) -> Iterator[str]:
    """The function `train_step` for stages that torch's schedules run."""
    first, late = entries_of_step(parts, pipeline)
    options = [f"target=batch[{literal(target_of(parts))}]", "losses=losses", "return_outputs=False"]
    run = ("losses: list[Tensor] = []", f"model.schedule.step({', '.join((*first, *options, *late))})")
    yield from staged_step(parts, run, after_backward(parts))


def entries_of_step(parts: Parts, pipeline: Pipeline) -> tuple[list[str], list[str]]:
    """Arguments that a step gives to stages from a batch: those of the first one, and keyword arguments of all."""
    assert parts.printed is not None
    late, held = pipeline.late, {name: one for one, name in parts.printed.entry_names.items()}
    given = [entry(parts, "batch", held[name]) for name in pipeline.stages[0].given if name not in late]
    named = keywords({name: entry(parts, "batch", held[name]) for name in late if name not in (SHARE, TERMS)})
    return given, [*named, *(f"{name}={name}" for name in (SHARE, TERMS) if name in late)]


def staged_step(parts: Parts, run: Sequence[str], after: Iterable[str]) -> Iterator[str]:
    """The function `train_step` for stages, where `run` sends micro-batches through; `after` are the lines after the
    backward pass."""
    yield "def train_step("
    yield "    model: Pipeline, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh"
    yield ") -> Tensor | None:"
    yield '    """One step; returns the loss of the global batch where the last stage is. Gradients stay for a look."""'
    yield "    optimizer.zero_grad()"
    yield from shares_of_micro(parts)
    *first, step = run
    yield from (f"    {line}" for line in first)
    yield from fitted(f"    {step}")
    yield from after
    yield from stepped(parts)
    yield "    if not model.last:"
    yield "        return None"
    whole = f" / {parts.copies_said}" if averages(parts) else ""
    yield f"    return torch.stack(losses).detach().sum(){whole}"
