"""Train llama.py:tiny on 4 ranks.

    ./launch.sh --steps 10

Planned as tp=4 sequence_parallel=True.
Mesh axis tp (4 ranks): ranks share every block.
"""

import argparse
import os
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
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
STEP_FLOPS = 1.321e08  # of the model, nothing computed again
CLIP = 0.0  # the largest norm of all gradients together; 0: whatever it is
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # states by names of parameters


def load(path: Path) -> ModuleType:
    """The file of the model, as it is."""
    sys.path.append(str(path.parent))
    module = sys.modules[path.stem] = ModuleType(path.stem)
    module.__file__ = str(path)
    SourceFileLoader(path.stem, str(path)).exec_module(module)
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


def clip(model: nn.Module, most: float) -> None:
    """Scale all gradients down together, to a norm of at most so much."""
    alike: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.grad is not None:
            over = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
            alike.setdefault(over, []).append(parameter)
    norms = []
    for parameters in alike.values():
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = nn.utils.get_total_norm(norms)
    for parameters in alike.values():
        nn.utils.clip_grads_with_norm_(parameters, most, total)


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
    if CLIP:
        clip(model, CLIP)
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


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A checkpoint that this model can be resumed from on any number of ranks, however it is cut there."""
    weights, states = get_state_dict(model, optimizer, options=FLAT)
    dcp.save({"model": weights, "optimizer": states, "step": step}, checkpoint_id=folder)


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take up a checkpoint; returns the step to go on with."""
    weights, states = get_state_dict(model, optimizer, options=FLAT)
    saved: dict[str, Any] = {"model": weights, "optimizer": states, "step": 0}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states, options=FLAT)
    return int(saved["step"])


def speed(seconds: float) -> str:
    """How fast a step was: tokens, and floating-point work of the model on every rank."""
    done = STEP_FLOPS / dist.get_world_size() / seconds
    tokens = f"tokens_per_s {GLOBAL_BATCH * SEQ / seconds:.1f} flops_per_s {done:.4g}"
    return f"step_time_s {seconds:.4f} {tokens}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save", type=Path, help="a folder for a checkpoint of the last step")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from, of any plan")
    args = parser.parse_args()
    mesh = start()
    model = parallelize(build(), mesh)
    optimizer = make_optimizer(model)
    first = resume(args.resume, model, optimizer) if args.resume else 0
    for step in range(first, first + args.steps):
        begin = time.perf_counter()
        loss = train_step(model, optimizer, batch_of(step, mesh), mesh)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} {speed(time.perf_counter() - begin)}", flush=True)
    if args.save:
        save(args.save, model, optimizer, first + args.steps)
    dist.destroy_process_group()
    time.sleep(0.2)  # threads of gloo let go of tensors, which Python must still allow


if __name__ == "__main__":
    main()
