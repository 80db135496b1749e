"""The start of a script: the model's file, the optimizer, the ranks, and the loop of steps."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.lines import quoted
from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.batch import draws_along

GLOO_ENDS_S = 0.2
"""How long a process of gloo waits before it ends: threads of gloo outlive `destroy_process_group`, and need Python to
let go of the tensors that they sent last. Where it is ending by then, they abort the process (pytorch/pytorch#190489):
in 8 of 40 runs of a script of torch alone, and in none of 22 that waited (torch 2.13.0, 2 busy cores, November 2026).
"""


def load() -> Iterator[str]:
    yield "def load(path: Path) -> ModuleType:"
    yield '    """The file of the model, as it is."""'
    yield "    sys.path.append(str(path.parent))"
    yield "    module = sys.modules[path.stem] = ModuleType(path.stem)"
    yield "    module.__file__ = str(path)"
    yield "    SourceFileLoader(path.stem, str(path)).exec_module(module)"
    yield "    return module"


def make_optimizer(parts: Parts) -> Iterator[str]:
    holder = "Pipeline" if parts.held_twice else "nn.Module"
    own = parts.subject.calls.has_optimizer
    usual = "model_file.optimizer" if own else "partial(torch.optim.AdamW, lr=3e-4, fused=True)"
    given = f", make: Callable[..., Any] = {usual}" if parts.offloaded else ""
    yield f"def make_optimizer(model: {holder}{given}) -> {parts.optimizer}:"
    if parts.held_twice:
        yield "    others = {own for own, _ in tied(model)}"
        yield "    parameters = [one for one in model.parameters() if one.requires_grad and one not in others]"
    elif parts.untied:
        yield "    named = model.named_parameters()"
        yield "    parameters = [one for name, one in named if one.requires_grad and name not in TIED]"
    else:
        yield "    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]"
    stepped = "parameters"
    if parts.some_train_nothing:
        yield "    # torch takes no empty list: some ranks train nothing"
        stepped = '[{"params": parameters}]'
    if parts.offloaded:
        yield "    return OnHost(model, parameters, make)"
    elif own:
        yield f"    optimizer: torch.optim.Optimizer = model_file.optimizer({stepped})"
        yield "    return optimizer"
    else:
        yield f"    return torch.optim.AdamW({stepped}, lr=3e-4)"


def start(parts: Parts) -> Iterator[str]:
    device = device_of(parts.subject)
    yield from joining(parts, "Join the other ranks.")
    made = f'init_device_mesh("{device}", tuple(MESH.values()), mesh_dim_names=tuple(MESH))'
    if parts.flattened:
        yield f"    mesh = {made}"
        yield from (f'    mesh[{quoted(axes)}]._flatten("{joined(axes)}")' for axes in parts.flattened)
        yield "    return mesh"
    else:
        yield f"    return {made}"


def joining(parts: Parts, says: str) -> Iterator[str]:
    """The first lines of `start`."""
    device, planned = device_of(parts.subject), parts.subject.ranks
    yield "def start() -> DeviceMesh:"
    yield f'    """{says}"""'
    yield '    ranks = int(os.environ.get("WORLD_SIZE", "1"))'
    yield f"    if ranks != {planned}:"
    yield f'        raise SystemExit(f"planned for {planned} ranks, started on {{ranks}}: use ./launch.sh")'
    if device == "cuda":
        yield '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    yield "    if not dist.is_initialized():"
    yield f'        dist.init_process_group("{"gloo" if device == "cpu" else "nccl"}")'


def main(parts: Parts) -> Iterator[str]:
    yield "def main() -> None:"
    yield "    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)"
    yield '    parser.add_argument("--steps", type=int, default=10)'
    yield '    parser.add_argument("--save", type=Path, help="a folder for a checkpoint of the last step")'
    yield '    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from, of any plan")'
    yield "    args = parser.parse_args()"
    yield "    mesh = start()"
    yield "    model = parallelize(build(), mesh)"
    if parts.drawn_in_parts:
        yield "    draw(model, mesh)"
    yield "    optimizer = make_optimizer(model)"
    yield "    first = resume(args.resume, model, optimizer) if args.resume else 0"
    yield "    for step in range(first, first + args.steps):"
    yield "        begin = time.perf_counter()"
    if draws_along(parts):
        yield "        batch = batch_of(step, mesh)"
        yield "        seed(step, mesh)"
        yield "        loss = train_step(model, optimizer, batch, mesh)"
    else:
        yield "        loss = train_step(model, optimizer, batch_of(step, mesh), mesh)"
    there = "dist.get_rank() == 0" if parts.pipeline is None else printing(parts)
    yield f"        if {there}:"
    yield '            print(f"step {step} loss {loss.item():.6f} {speed(time.perf_counter() - begin)}", flush=True)'
    yield "    if args.save:"
    yield "        save(args.save, model, optimizer, first + args.steps)"
    yield "    dist.destroy_process_group()"
    if device_of(parts.subject) == "cpu":
        yield f"    time.sleep({GLOO_ENDS_S})  # threads of gloo let go of tensors, which Python must still allow"


def printing(parts: Parts) -> str:
    """The condition that this rank knows the loss and prints it: the first one of the last stage."""
    last = parts.subject.decisions.stages[-1].ranks
    before = sum(len(ranks) for ranks in parts.subject.decisions.groups[: parts.subject.decisions.groups.index(last)])
    return f"loss is not None and dist.get_rank() == {before}"
