"""The training script of a plan, as text: the parts that `axes`, `styles`, `storage` found, put into one file that is
read from top to bottom.

Only what a plan needs is written: a script for data parallelism knows nothing of DTensors. Lines are made by small
functions, one per part of the script, and put together in `script`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from meshwright.backends.torch_.emit.axes import Axes
from meshwright.backends.torch_.emit.recompute import recomputed
from meshwright.backends.torch_.emit.storage import Kept, Unit
from meshwright.backends.torch_.emit.styles import LOSS, Style, Styles
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionAxis
from meshwright.ir.fold import FromInput
from meshwright.ir.graph import Op

WIDTH = 120
MEANING = {"data": "every rank trains on its own sequences", "tensor": "ranks share every block"}


@dataclass(frozen=True)
class Parts:
    """Everything that a script says."""

    subject: Subject
    axes: Axes
    styles: Mapping[str, Styles]
    kept: Kept
    model: str
    """The model file, from the folder of the script."""

    @cached_property
    def recomputed(self) -> tuple[Piece, ...]:
        return recomputed(self.subject)

    @property
    def styled(self) -> tuple[tuple[Piece, Mapping[str, Style]], ...]:
        """The pieces that a tensor axis cuts, with their styles; those to be applied first come first."""
        found = [(piece, self.styles[piece.plan.name]) for piece in self.subject.pieces if self.styles]
        return tuple((piece, styles) for piece, of in found for styles in (of.before, of.modules) if styles)

    @property
    def copied(self) -> bool:
        """Whether ranks of a data axis hold copies of all parameters."""
        return self.axes.data is not None and not self.kept.units

    @property
    def sharded_loss(self) -> bool:
        return any(styles.sharded_loss for styles in self.styles.values())

    @property
    def partial_gradients(self) -> bool:
        """Whether parameters are left with gradients that are sums over the tensor axis. `fully_shard` reduces its
        own."""
        norms = any(style.name == "SequenceParallel" for _, styles in self.styled for style in styles.values())
        return norms and not self.kept.units


def script(parts: Parts) -> str:
    """train.py."""
    sections = (
        (*head(parts), "", *constants(parts)),
        load(),
        ("model_file = load(Path(__file__).resolve().parent / MODEL)",),
        build(parts),
        parallelize(parts),
        batches(parts),
        train_step(parts),
        main(parts),
    )
    return "\n\n\n".join("\n".join(lines) for lines in sections) + '\n\n\nif __name__ == "__main__":\n    main()\n'


def head(parts: Parts) -> Iterator[str]:
    subject, calls = parts.subject, parts.subject.calls
    yield f'"""Train {calls.file.name}:{calls.factory} on {subject.mesh.size} ranks.'
    yield ""
    yield "    ./launch.sh --steps 10"
    yield ""
    yield f"Planned as {subject.config}."
    for use, axis in (("data", parts.axes.data), ("tensor", parts.axes.tensor)):
        if axis is not None:
            yield f"Mesh axis {axis} ({subject.mesh.axis(axis).size} ranks): {MEANING[use]}."
    yield '"""'
    yield ""
    yield from imports(parts)


def imports(parts: Parts) -> Iterator[str]:
    yield "import argparse"
    yield "import importlib.util"
    yield "import os"
    yield "import sys"
    yield "from pathlib import Path"
    yield "from types import ModuleType"
    yield ""
    yield "import torch"
    yield "import torch.distributed as dist"
    yield "from torch import Tensor, nn"
    yield "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh"
    if parts.kept.units:
        yield "from torch.distributed.fsdp import fully_shard"
    layouts = " ".join(str(style) for _, styles in parts.styled for style in styles.values())
    named = {name for name in ("Replicate", "Shard") if f"{name}(" in layouts}
    named |= {"DTensor", "Replicate"} if parts.partial_gradients else set()
    named |= {"DTensor"} if parts.sharded_loss else set()
    if named:
        yield f"from torch.distributed.tensor import {', '.join(sorted(named))}"
    used = {style.name for _, styles in parts.styled for style in styles.values()}
    if used:
        names = [
            *sorted(used | {"ParallelStyle"}),
            *(["loss_parallel"] if parts.sharded_loss else []),
            "parallelize_module",
        ]
        yield from wrapped("from torch.distributed.tensor.parallel import (", names, ")")
    if parts.copied:
        yield "from torch.nn.parallel import DistributedDataParallel"
    if parts.recomputed:
        yield "from torch.utils.checkpoint import checkpoint"


def constants(parts: Parts) -> Iterator[str]:
    workload, mesh = parts.subject.workload, parts.subject.mesh
    sizes = ", ".join(f'"{axis.name}": {axis.size}' for axis in mesh.axes)
    yield f'MODEL = "{parts.model}"'
    yield f"MESH = {{{sizes}}}"
    yield f"GLOBAL_BATCH = {workload.global_batch}"
    yield f"SEQ = {workload.seq}"
    yield "SEED = 0"


def load() -> Iterator[str]:
    yield "def load(path: Path) -> ModuleType:"
    yield '    """The file of the model, as it is."""'
    yield "    spec = importlib.util.spec_from_file_location(path.stem, path)"
    yield "    if spec is None or spec.loader is None:"
    yield '        raise FileNotFoundError(f"{path} is no Python file")'
    yield "    sys.path.append(str(path.parent))"
    yield "    module = importlib.util.module_from_spec(spec)"
    yield "    sys.modules[path.stem] = module"
    yield "    spec.loader.exec_module(module)"
    yield "    return module"


def build(parts: Parts) -> Iterator[str]:
    yield "def build() -> nn.Module:"
    yield '    """The whole model; all ranks draw the same weights."""'
    yield "    torch.manual_seed(SEED)"
    yield f"    model: nn.Module = model_file.{parts.subject.calls.factory}()"
    yield "    return model" if parts.subject.device == "cpu" else '    return model.to("cuda")'


def parallelize(parts: Parts) -> Iterator[str]:
    yield "def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:"
    yield '    """This rank\'s part of the model, in place; names of parameters stay. Returns what to call."""'
    for piece, styles in parts.styled:
        yield from styled(parts, piece, styles)
    for piece in parts.recomputed:
        yield "    # Blocks keep their input only, and run again in the backward pass."
        yield from indented(piece.instances().loop())
        yield "        run = block.forward"
        yield "        block.forward = lambda *args, run=run: checkpoint(run, *args, use_reentrant=False)"
    if parts.kept.units:
        yield from sharded(parts)
    if parts.copied:
        yield f'    return DistributedDataParallel(model, process_group=mesh["{parts.axes.data}"].get_group())'
    else:
        yield "    return model"


def styled(parts: Parts, piece: Piece, styles: Mapping[str, Style]) -> Iterator[str]:
    """`parallelize_module` for one body."""
    before = styles is parts.styles[piece.plan.name].before
    name = "of_block" if piece.repeated else f"of_{piece.plan.body}"
    name, target = f"before_{name}" if before else name, "block" if piece.repeated else "model"
    yield f"    {name}: dict[str, ParallelStyle] = {{"
    for path, style in styles.items():
        yield from styled_line(path, style)
    yield "    }"
    if piece.repeated:
        yield from indented(piece.instances().loop())
    deep = "        " if piece.repeated else "    "
    yield f'{deep}parallelize_module({target}, mesh["{parts.axes.tensor}"], {name})'


def styled_line(path: str, style: Style) -> Iterator[str]:
    line = f'        "{path}": {style},'
    if len(line) <= WIDTH:
        yield line
        return
    yield f'        "{path}": {style.name}('
    for option in style.options:
        yield f"            {option},"
    yield "        ),"


def sharded(parts: Parts) -> Iterator[str]:
    axis = parts.axes.data
    yield f'    shards = mesh["{axis}"]'
    root: list[Unit] = []
    for unit in parts.kept.units:
        resharded = f"mesh=shards, reshard_after_forward={unit.reshard}"
        if unit.piece.repeated:
            yield from indented(unit.piece.instances().loop())
            yield f"        fully_shard(block, {resharded})"
            continue
        owners = [path for path in unit.piece.owners() if path]
        root += [unit] * (len(owners) < len(unit.piece.owners()))
        modules = [f'model.get_submodule("{path}")' for path in owners]
        if len(modules) == 1:
            yield f"    fully_shard({modules[0]}, {resharded})"
        elif modules:
            yield f"    fully_shard([{', '.join(modules)}], {resharded})"
    kept = root[0].reshard if root else False
    yield f"    fully_shard(model, mesh=shards, reshard_after_forward={kept})"


def batches(parts: Parts) -> Iterator[str]:
    data = parts.axes.data
    yield "def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:"
    yield '    """This rank\'s sequences of a step. Your own data goes here; all ranks must cut the same batch."""'
    yield "    torch.manual_seed(SEED + step)"
    yield "    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)"
    if data is not None:
        yield f'    here, parts = mesh["{data}"].get_local_rank(), mesh["{data}"].size()'
        mine = "tensor.chunk(parts)[here]"
    else:
        mine = "tensor"
    mine += "" if parts.subject.device == "cpu" else '.to("cuda")'
    yield "    return whole" if mine == "tensor" else f"    return {{name: {mine} for name, tensor in whole.items()}}"


def train_step(parts: Parts) -> Iterator[str]:
    called = ", ".join(f'{name}=batch["{name}"]' for name in parts.subject.calls.entries)
    yield "def train_step("
    yield "    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh"
    yield ") -> Tensor:"
    yield '    """One step; returns the loss of the global batch. Gradients stay until the next step."""'
    yield "    optimizer.zero_grad()"
    yield from weight(parts)
    deep = "        " if parts.sharded_loss else "    "
    if parts.sharded_loss:
        yield "    with loss_parallel():"
    if parts.axes.data is None:
        yield f"{deep}loss: Tensor = model_file.loss(model({called}), batch)"
        yield f"{deep}loss.backward()"
    else:
        yield f"{deep}loss: Tensor = model_file.loss(model({called}), batch) * share"
        yield f"{deep}(loss * group.size()).backward()  # gradients are averaged over the group"
    if parts.partial_gradients:
        yield "    for parameter in model.parameters():"
        yield "        grad = parameter.grad"
        yield "        if isinstance(grad, DTensor) and any(placement.is_partial() for placement in grad.placements):"
        yield "            parameter.grad = grad.redistribute(placements=[Replicate()])"
    yield "    optimizer.step()"
    yield "    total = loss.detach()"
    if parts.sharded_loss:
        yield "    if isinstance(total, DTensor):"
        yield "        total = total.to_local()  # all ranks of the tensor axis hold the whole sum"
    if parts.axes.data is not None:
        yield "    dist.all_reduce(total, group=group)"
    yield "    return total"


def weight(parts: Parts) -> Iterator[str]:
    """The share of this rank in the mean over all positions that have a target."""
    if parts.axes.data is None:
        return
    labels, ignored = targets_of(parts.subject)
    yield f'    group = mesh["{parts.axes.data}"].get_group()'
    yield f'    targets = (batch["{labels}"] != {ignored}).sum().float()'
    yield "    share = targets.clone()"
    yield "    dist.all_reduce(share, group=group)"
    yield "    share = targets / share  # of all positions that have a target, those of this rank"


def targets_of(subject: Subject) -> tuple[str, int]:
    """The entry of the batch that holds the targets, and the value that says that there is none."""
    for piece in subject.pieces:
        for op in piece.graph.ops:
            if op.kind == LOSS and op.attr("reduction") == "mean":
                return _entry(piece, op), op.integer("ignore_index")
    raise _unweighed("the loss is no mean cross entropy")


def _entry(piece: Piece, op: Op) -> str:
    values = [item.value for item in piece.graph.inputs]
    if op.operands[1] in values:
        source = piece.segment.entry[values.index(op.operands[1])]
        if isinstance(source, FromInput):
            return source.name
    raise _unweighed("its targets are no entry of the batch")


def _unweighed(cause: str) -> EmissionAxis:
    return EmissionAxis(
        place="the loss",
        cause=f"what part each rank has in it cannot be told: {cause}",
        fix="use F.cross_entropy on an entry of the batch, or plan with --fix dp=1",
    )


def main(parts: Parts) -> Iterator[str]:
    device = parts.subject.device
    backend = "gloo" if device == "cpu" else "nccl"
    names, sizes = "tuple(MESH)", "tuple(MESH.values())"
    yield "def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:"
    yield "    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]"
    if parts.subject.calls.has_optimizer:
        yield "    optimizer: torch.optim.Optimizer = model_file.optimizer(parameters)"
        yield "    return optimizer"
    else:
        yield "    return torch.optim.AdamW(parameters, lr=3e-4)"
    yield ""
    yield ""
    yield "def start() -> DeviceMesh:"
    yield '    """Join the other ranks."""'
    yield '    ranks = int(os.environ.get("WORLD_SIZE", "1"))'
    planned = parts.subject.mesh.size
    yield f"    if ranks != {planned}:"
    yield f'        raise SystemExit(f"planned for {planned} ranks, started on {{ranks}}: use ./launch.sh")'
    if device == "cuda":
        yield '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    yield f'    dist.init_process_group("{backend}")'
    yield f'    return init_device_mesh("{device}", {sizes}, mesh_dim_names={names})'
    yield ""
    yield ""
    yield "def main() -> None:"
    yield "    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)"
    yield '    parser.add_argument("--steps", type=int, default=10)'
    yield "    steps = parser.parse_args().steps"
    yield "    mesh = start()"
    yield "    model = parallelize(build(), mesh)"
    yield "    optimizer = make_optimizer(model)"
    yield "    for step in range(steps):"
    yield "        loss = train_step(model, optimizer, batch_of(step, mesh), mesh)"
    yield "        if dist.get_rank() == 0:"
    yield '            print(f"step {step} loss {loss.item():.6f}", flush=True)'
    yield "    dist.destroy_process_group()"


def indented(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        yield f"    {line}"


def wrapped(before: str, items: list[str], after: str) -> Iterator[str]:
    """A list on one line if it fits, without brackets; else one entry a line."""
    line = f"{before[:-1]}{', '.join(items)}"
    if len(line) <= WIDTH:
        yield line
        return
    yield before
    for item in items:
        yield f"    {item},"
    yield after
