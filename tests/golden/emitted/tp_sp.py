"""Train llama.py:tiny on 4 ranks.

    ./launch.sh --steps 10

Planned as tp=4 sequence_parallel=True.
Mesh axis tp (4 ranks): ranks share every block.
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
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

MODEL = "../../../examples/llama.py"
MESH = {"tp": 4}
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
    of_embed: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(model, mesh["tp"], of_embed)
    of_block: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention.q_proj": ColwiseParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None),
            desired_input_layouts=(Replicate(), None, None),
        ),
        "attention.k_proj": ColwiseParallel(),
        "attention.v_proj": ColwiseParallel(),
        "attention.o_proj": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward.gate_proj": ColwiseParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.up_proj": ColwiseParallel(),
        "feed_forward.down_proj": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    for index in range(4):
        block = model.get_submodule(f"blocks.{index}")
        parallelize_module(block, mesh["tp"], of_block)
    of_head: dict[str, ParallelStyle] = {
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh["tp"], of_head)
    return model


def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:
    """This rank's part of a step. Your own data goes here."""
    torch.manual_seed(SEED + step)
    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)
    return whole


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], mesh: DeviceMesh
) -> Tensor:
    """One step; returns the loss of the global batch. Gradients stay until the next step."""
    optimizer.zero_grad()
    with loss_parallel():
        loss: Tensor = model_file.loss(model(tokens=batch["tokens"]), batch)
        loss.backward()
    for parameter in model.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor) and any(placement.is_partial() for placement in grad.placements):
            parameter.grad = grad.redistribute(placements=[Replicate()])
    optimizer.step()
    total = loss.detach()
    if isinstance(total, DTensor):
        total = total.to_local()  # all ranks of the tensor axis hold the whole sum
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
