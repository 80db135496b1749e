"""Train llama.py:tiny on 4 ranks.

    ./launch.sh --steps 10

Planned as tp=2 dp=2 zero=3 sequence_parallel=True.
Mesh axis dp (2 ranks): every rank trains on its own sequences.
Mesh axis tp (2 ranks): ranks share every block.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

MODEL = "../../../examples/llama.py"
MESH = {"dp": 2, "tp": 2}
GLOBAL_BATCH = 8
SEQ = 16
SEED = 0
STEP_FLOPS = 1.321e08  # of the model, nothing computed again
CUT = {  # parameters by name: the dimensions, by axis, of which each rank has its part
    r"embedding\.weight": {"tp": 0},
    r"blocks\.\d+\.attention\.q_proj\.weight": {"tp": 0},
    r"blocks\.\d+\.attention\.k_proj\.weight": {"tp": 0},
    r"blocks\.\d+\.attention\.v_proj\.weight": {"tp": 0},
    r"blocks\.\d+\.attention\.o_proj\.weight": {"tp": 1},
    r"blocks\.\d+\.feed_forward\.gate_proj\.weight": {"tp": 0},
    r"blocks\.\d+\.feed_forward\.up_proj\.weight": {"tp": 0},
    r"blocks\.\d+\.feed_forward\.down_proj\.weight": {"tp": 1},
    r"head\.weight": {"tp": 0},
}
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


class Moved(torch.autograd.Function):
    """A value as it is brought elsewhere, and its gradient as it is brought back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad.contiguous()), None, None


def moved(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """What `there` makes of a value; `back` makes of its gradient that of the value."""
    return cast(Tensor, Moved.apply(x, there, back))


def as_it_is(x: Tensor) -> Tensor:
    """The value itself, as another tensor: what a function of autograd returns is none of its inputs."""
    return x.view_as(x)


def order_of(extent: int, parts: int, sections: Sequence[int], zigzag: bool) -> list[Tensor]:
    """The indices that each rank has of a dimension. Each of its `sections` is cut; `zigzag` gives a rank the n-th run
    from the front and the n-th from the back."""
    runs = torch.arange(extent).split(list(sections) or [extent])
    if not zigzag:
        return [torch.cat([run.chunk(parts)[n] for run in runs]) for n in range(parts)]
    halves = [run.chunk(2 * parts) for run in runs]
    return [torch.cat([half for run in halves for half in (run[n], run[-1 - n])]) for n in range(parts)]


def waited(x: Tensor) -> Tensor:
    """What a collective makes, once it is there. Code that is compiled waits by itself; to wait again would part the
    collective from the product that it can be joined with."""
    return cast(Tensor, x.wait()) if isinstance(x, funcol.AsyncCollectiveTensor) else x


def all_gather(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole, of the parts that ranks have."""
    whole = waited(funcol.all_gather_tensor(x.contiguous(), dim, ranks.get_group()))
    return in_order(whole, ranks, dim, sections, zigzag) if sections or zigzag else whole


def all_reduce(x: Tensor, ranks: DeviceMesh, by: str = "sum") -> Tensor:
    """The sum over ranks, or the maximum."""
    return waited(funcol.all_reduce(x.contiguous(), by, ranks.get_group()))


def reduce_scatter(
    x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Tensor:
    """This rank's part of the sum over ranks."""
    if sections or zigzag:
        x = x.index_select(dim, torch.cat(order_of(x.shape[dim], ranks.size(), sections, zigzag)).to(x.device))
    return waited(funcol.reduce_scatter_tensor(x.contiguous(), "sum", dim, ranks.get_group()))


def in_order(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole of a dimension in which the parts of ranks, cut in sections or zigzag, stand one after another."""
    order = torch.cat(order_of(x.shape[dim], ranks.size(), sections, zigzag))
    return x.index_select(dim, order.argsort().to(x.device))


def reduce_from(x: Tensor, ranks: DeviceMesh) -> Tensor:
    """The sum of what ranks have."""
    return moved(x, lambda part: all_reduce(part, ranks), as_it_is)


def gather_from(x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False) -> Tensor:
    """The whole, for operators of which each rank has a part; gradients are added up, and each rank gets its part."""
    return moved(
        x,
        lambda part: all_gather(part, ranks, dim, sections, zigzag),
        lambda grad: reduce_scatter(grad, ranks, dim, sections, zigzag),
    )


def reduce_scatter_to(
    x: Tensor, ranks: DeviceMesh, dim: int, sections: Sequence[int] = (), zigzag: bool = False
) -> Tensor:
    """This rank's part of the sum of what ranks have; the parts of the gradient are put together."""
    return moved(
        x,
        lambda whole: reduce_scatter(whole, ranks, dim, sections, zigzag),
        lambda grad: all_gather(grad, ranks, dim, sections, zigzag),
    )


def local(weight: Any) -> Tensor:
    """This rank's part of a parameter."""
    return cast(Tensor, weight.to_local())


def local_of_sum(weight: Any) -> Tensor:
    """This rank's part of a parameter whose gradient is the sum of those that ranks have."""
    parts = [Partial() if isinstance(one, Replicate) else one for one in weight.placements]
    return cast(Tensor, weight.to_local(grad_placements=parts))


def own_rows(index: Tensor, ranks: DeviceMesh, rows: int) -> tuple[Tensor, Tensor]:
    """Global indices as those of this rank's rows, and which of them it has; the others are 0."""
    row = index - ranks.get_local_rank() * rows
    found = (row >= 0) & (row < rows)
    return row.where(found, 0), found


def embedding_part(weight: Tensor, index: Tensor, ranks: DeviceMesh, padding: int | None = None) -> Tensor:
    """Rows of a table of which each rank has a part; zeros for what others have."""
    row, found = own_rows(index, ranks, len(weight))
    if padding is not None:
        own = padding - ranks.get_local_rank() * len(weight)
        padding = own if 0 <= own < len(weight) else None
    rows = F.embedding(row, weight) if padding is None else F.embedding(row.where(found, padding), weight, padding)
    return rows.masked_fill(~found[..., None], 0)


def gather_part(x: Tensor, dim: int, index: Tensor, ranks: DeviceMesh) -> Tensor:
    """Elements along a dimension of which each rank has a part; zeros for what others have."""
    row, found = own_rows(index, ranks, x.shape[dim])
    return torch.gather(x, dim, row) * found


def distribute(model: nn.Module, mesh: DeviceMesh, cut: dict[str, dict[str, int]], *always: str) -> None:
    """Make DTensors of the parameters that are cut, along the axes that `cut` says by name, and of all along those that
    are given `always`: each rank has its part, or all. Names stay."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        dims = next((dims for pattern, dims in cut.items() if re.fullmatch(pattern, name)), {})
        axes = tuple(axis for axis in mesh.mesh_dim_names or () if axis in dims or axis in always)
        if not axes:
            continue
        if parameter not in made:
            lies = [Shard(dims[axis]) if axis in dims else Replicate() for axis in axes]
            part = distribute_tensor(parameter.detach(), mesh[axes], lies, src_data_rank=None)
            made[parameter] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        path, _, last = name.rpartition(".")
        model.get_submodule(path).register_parameter(last, made[parameter])


def make_cos() -> Tensor:
    arange = 500000.0 ** ((-torch.arange(0, 8, 2, dtype=torch.int64, device="cpu").to(torch.float32)) / 8)
    outer = torch.outer(torch.arange(16, dtype=torch.int64, device="cpu").to(torch.float32), arange)
    return torch.cat([outer, outer], -1).cos()


def make_sin() -> Tensor:
    arange = 500000.0 ** ((-torch.arange(0, 8, 2, dtype=torch.int64, device="cpu").to(torch.float32)) / 8)
    outer = torch.outer(torch.arange(16, dtype=torch.int64, device="cpu").to(torch.float32), arange)
    return torch.cat([outer, outer], -1).sin()


def embed_forward(self: Any, tokens: Tensor, *, tp: DeviceMesh) -> tuple[Tensor, Tensor, Tensor]:
    """embed on this rank's shards."""
    cos = make_cos()
    sin = make_sin()
    # added up and cut over tp
    x = reduce_scatter_to(self.embedding(tokens), tp, 1)
    return cos, sin, x


def embed_forward_embedding(self: Any, in0: Tensor, *, tp: DeviceMesh) -> Tensor:
    """embed, module embedding, on this rank's shards."""
    return embedding_part(local(self.weight), in0, tp)


def block_forward(self: Any, x: Tensor, cos: Tensor, sin: Tensor, *, tp: DeviceMesh) -> Tensor:
    """Block on this rank's shards."""
    attention_norm = F.rms_norm(x, (64,), local_of_sum(self.attention_norm.weight), eps=1e-05)
    # parts are put together over tp
    attention_norm = gather_from(attention_norm, tp, 1)
    view = F.linear(attention_norm, local(self.attention.q_proj.weight)).reshape(-1, 16, 4, 8)
    q = view.permute(0, 2, 1, 3)
    view = F.linear(attention_norm, local(self.attention.k_proj.weight)).reshape(-1, 16, 2, 8)
    k = view.permute(0, 2, 1, 3)
    view = F.linear(attention_norm, local(self.attention.v_proj.weight)).reshape(-1, 16, 2, 8)
    split, split_2 = q.split([4, 4], 3)
    split_3, split_4 = k.split([4, 4], 3)
    add = (q * cos) + (torch.cat([torch.neg(split_2), split], 3) * sin)
    add_2 = (k * cos) + (torch.cat([torch.neg(split_4), split_3], 3) * sin)
    v = view.permute(0, 2, 1, 3)
    y = F.scaled_dot_product_attention(add, add_2, v, is_causal=True, scale=0.35355339059327373, enable_gqa=True)
    weight = local(self.attention.o_proj.weight)
    # added up and cut over tp
    o_proj = reduce_scatter_to(F.linear(y.permute(0, 2, 1, 3).reshape(-1, 16, 32), weight), tp, 1)
    x = x + o_proj
    feed_forward_norm = F.rms_norm(x, (64,), local_of_sum(self.feed_forward_norm.weight), eps=1e-05)
    # parts are put together over tp
    feed_forward_norm = gather_from(feed_forward_norm, tp, 1)
    up_proj = F.linear(feed_forward_norm, local(self.feed_forward.up_proj.weight))
    mul = F.silu(F.linear(feed_forward_norm, local(self.feed_forward.gate_proj.weight))) * up_proj
    # added up and cut over tp
    down_proj = reduce_scatter_to(F.linear(mul, local(self.feed_forward.down_proj.weight)), tp, 1)
    return x + down_proj


def head_forward(self: Any, x: Tensor, labels: Tensor, *, dp: DeviceMesh, tp: DeviceMesh) -> Tensor:
    """head on this rank's shards."""
    # parts are put together over tp
    norm = gather_from(self.norm(x), tp, 1)
    head = self.head(norm)
    # added up over tp
    amax = all_reduce(head.detach().amax(2, keepdim=True), tp, "max")
    sub = head - amax
    # added up over tp
    sum_2 = reduce_from(torch.exp(sub).sum(2), tp)
    gather = gather_part(sub, 2, labels.masked_fill(labels == -100, 0).reshape(-1, 16, 1), tp)
    # added up over tp
    gather = reduce_from(gather, tp)
    cast_2 = (labels != -100).to(torch.float32)
    # added up over dp
    sum_3 = all_reduce(cast_2.sum(), dp)
    # added up over dp
    return reduce_from(((torch.log(sum_2) - gather.reshape(-1, 16)) * (cast_2 / sum_3)).sum(), dp)


def head_forward_norm(self: Any, in0: Tensor) -> Tensor:
    """head, module norm, on this rank's shards."""
    return F.rms_norm(in0, (64,), local_of_sum(self.weight), eps=1e-05)


def head_forward_head(self: Any, rms_norm: Tensor) -> Tensor:
    """head, module head, on this rank's shards."""
    return F.linear(rms_norm, local(self.weight))


def model_forward(self: Any, tokens: Tensor, labels: Tensor, *, dp: DeviceMesh, tp: DeviceMesh) -> Tensor:
    """The loss of a batch, of which each rank has its part."""
    cos, sin, x = embed_forward(self, tokens, tp=tp)
    for index in range(4):
        block = self.get_submodule(f"blocks.{index}")
        x = block(x, cos, sin)
    return head_forward(self, x, labels, dp=dp, tp=tp)


def run_again(module: nn.Module) -> None:
    """Have a module keep what it is given only: it runs again in the backward pass."""
    run = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    module.forward = forward


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """This rank's part of the model, in place; names of parameters stay. Returns what to call."""
    distribute(model, mesh, CUT, "tp")
    dp = mesh["dp"]
    tp = mesh["tp"]
    module = model.get_submodule("embedding")
    module.forward = partial(embed_forward_embedding, module, tp=tp)
    for index in range(4):
        block = model.get_submodule(f"blocks.{index}")
        block.forward = partial(block_forward, block, tp=tp)
    module = model.get_submodule("norm")
    module.forward = partial(head_forward_norm, module)
    module = model.get_submodule("head")
    module.forward = partial(head_forward_head, module)
    model.forward = partial(model_forward, model, dp=dp, tp=tp)
    for index in range(4):
        block = model.get_submodule(f"blocks.{index}")
        run_again(block)
    shards = mesh["dp"]
    fully_shard(model.get_submodule("embedding"), mesh=shards, reshard_after_forward=False)
    for index in range(4):
        block = model.get_submodule(f"blocks.{index}")
        fully_shard(block, mesh=shards, reshard_after_forward=True)
    fully_shard([model.get_submodule("norm"), model.get_submodule("head")], mesh=shards, reshard_after_forward=True)
    fully_shard(model, mesh=shards, reshard_after_forward=False)
    return model


def own_part(whole: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:
    """This rank's part of a batch; all ranks must cut the same one."""
    here, parts = mesh["dp"].get_local_rank(), mesh["dp"].size()
    return {name: tensor.chunk(parts)[here].clone() for name, tensor in whole.items()}


def batch_of(step: int, mesh: DeviceMesh) -> dict[str, Tensor]:
    """This rank's part of a step. Your own data goes here."""
    torch.manual_seed(SEED + step)
    whole: dict[str, Tensor] = model_file.example_inputs(GLOBAL_BATCH, SEQ)
    return own_part(whole, mesh)


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
    loss: Tensor = model(batch["tokens"], batch["labels"])
    (loss * mesh["dp"].size()).backward()  # gradients are averaged over the group
    if CLIP:
        clip(model, CLIP)
    optimizer.step()
    return loss.detach()


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
