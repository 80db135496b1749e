"""Train llama.py:tiny on 4 ranks.

    ./launch.sh --steps 10

Planned as dp=4.
Mesh axis dp (4 ranks): every rank trains on its own sequences.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

MODEL = "../../../examples/llama.py"
MESH = {"dp": 4}
GLOBAL_BATCH = 8
SEQ = 16
SEED = 0


def load(path: Path) -> ModuleType:
    """The file of the model, as it is."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} is no Python file")
    sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


model_file = load(Path(__file__).resolve().parent / MODEL)


def build() -> nn.Module:
    """The whole model; all ranks draw the same weights."""
    torch.manual_seed(SEED)
    model: nn.Module = model_file.tiny()
    return model


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """This rank's part of the model, in place; names of parameters stay. Returns what to call."""
    return DistributedDataParallel(model, process_group=mesh["dp"].get_group(), broadcast_buffers=False)


def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:
    """This rank's part of a batch; all ranks must cut the same one."""
    here, parts = mesh["dp"].get_local_rank(), mesh["dp"].size()
    return {name: tensor.chunk(parts)[here] for name, tensor in whole.items()}


def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:
    """This rank's part of a step. Your own data goes here."""
    torch.manual_seed(SEED + step)
    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)
    return own_part(whole, mesh)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh
) -> Tensor:
    """One step; returns the loss of the global batch. Gradients stay until the next step."""
    optimizer.zero_grad()
    group = mesh["dp"].get_group()
    targets = (batch["labels"] != -100).sum().float()
    share = targets.clone()
    dist.all_reduce(share, group=group)
    share = targets / share  # of all positions that have a target, those of this rank
    loss: Tensor = model_file.loss(model(tokens=batch["tokens"]), batch) * share
    (loss * group.size()).backward()  # gradients are averaged over the group
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total, group=group)
    return total


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: torch.optim.Optimizer = model_file.optimizer(parameters)
    return optimizer


def start() -> DeviceMesh:
    """Join the other ranks."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != 4:
        raise SystemExit(f"planned for 4 ranks, started on {ranks}: use ./launch.sh")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    mesh = start()
    model = parallelize(build(), mesh)
    optimizer = make_optimizer(model)
    for step in range(steps):
        loss = train_step(model, optimizer, batch_of(step, mesh), mesh)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
