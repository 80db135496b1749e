"""Routed experts as three operators with static shapes.

Frameworks write a mixture of experts with shapes that depend on the routing: a loop over the experts that were hit, or
a sort and ragged products. A plan is made without values, so the planner needs the routing as operators whose shapes do
not depend on it:

    dispatch   x[t, d], idx[t, k]        -> rows[e, c, d]    each token's row, copied to its k experts
    (products) rows[e, c, d], w[e, n, d] -> rows[e, c, n]    one matrix per expert; ordinary batched products
    combine    rows[e, c, d], idx, w[t, k] -> y[t, d]        the rows come back, weighted and summed

c is the capacity: rows per expert. Dropless routing has no fixed capacity; what is traced (attribute `dropless`) is its
mean, t * k / e rounded up so that tokens can be cut, and imbalance is a factor that the evaluator applies. Run on real
tensors, the operators have c rows either way and drop what exceeds them, the later token first; dropless ones count in
the finest routing groups (`meshwright.ir.rules.families.moe`), so that tokens may be split anywhere.

Hugging Face models call their experts through a registry; `use_with_transformers` enters ours and returns its name.

A module of such experts has a capacity if it has a `capacity_factor` other than None: of each run of `group_size`
tokens an expert takes ceil(capacity_factor * group_size * choices / experts) rows, the earlier ones, and the others
contribute nothing. Runs have slots of their own (`groups`), so that ranks may take whole runs each.
"""

from __future__ import annotations

import math
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.ir.errors import ForwardRaised
from meshwright.ir.rules.families.moe import dropless_capacity

NAME, LOOPED = "meshwright", "meshwright_looped"
LOOPS = ("eager", None, LOOPED)
"""Implementations that go through experts one by one; modules that no model of transformers holds have none."""


def _slots(idx: Tensor, experts: int, capacity: int, dropless: bool, groups: int) -> Tensor:
    """For each (token, choice), its row among experts * capacity; the row after the last one means dropped."""
    groups = math.gcd(idx.shape[0], capacity) if dropless else max(1, groups)
    room = capacity // groups
    grouped = idx.reshape(groups, -1)
    chosen = grouped[..., None] == torch.arange(experts, device=idx.device)
    arrival = chosen.cumsum(1).gather(2, grouped[..., None])[..., 0] - 1
    first = torch.arange(groups, device=idx.device)[:, None] * room
    rows = torch.where(arrival < room, grouped * capacity + first + arrival, experts * capacity)
    return rows.view_as(idx)


@torch.library.custom_op("meshwright::dispatch", mutates_args=())
def dispatch(x: Tensor, idx: Tensor, experts: int, capacity: int, dropless: bool = False, groups: int = 0) -> Tensor:
    """Copy every token's row to its experts. `groups`: runs of tokens that have slots of their own; 0: as dropless
    routing has them, or one."""
    rows = x.new_zeros(experts * capacity + 1, x.shape[1])
    rows[_slots(idx, experts, capacity, dropless, groups).flatten()] = x.repeat_interleave(idx.shape[1], dim=0)
    return rows[:-1].unflatten(0, (experts, capacity)).clone()


@dispatch.register_fake
def _(x: Tensor, idx: Tensor, experts: int, capacity: int, *_: object, **__: object) -> Tensor:
    return x.new_empty(experts, capacity, x.shape[1])


@torch.library.custom_op("meshwright::combine", mutates_args=())
def combine(
    rows: Tensor,
    idx: Tensor,
    weights: Tensor,
    experts: int,
    capacity: int,
    dropless: bool = False,
    groups: int = 0,
    looped: bool = False,
) -> Tensor:
    """Bring every token's rows back, weighted and summed. `looped`: the module that it stands for goes through its
    experts one by one."""
    padded = torch.cat((rows.flatten(0, 1), rows.new_zeros(1, rows.shape[2])))
    return (padded[_slots(idx, experts, capacity, dropless, groups)] * weights[..., None]).sum(1).to(rows.dtype)


@combine.register_fake
def _(rows: Tensor, idx: Tensor, *_: object, **__: object) -> Tensor:
    return rows.new_empty(idx.shape[0], rows.shape[2])


def _remember_dispatch(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, idx, *ctx.sizes = inputs
    ctx.save_for_backward(idx)


def _dispatch_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (idx,) = ctx.saved_tensors
    return combine(grad, idx, torch.ones_like(idx, dtype=grad.dtype), *ctx.sizes), None, None, None, None, None


def _remember_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, experts, capacity, dropless, groups, _ = inputs
    ctx.sizes = (experts, capacity, dropless, groups)
    ctx.save_for_backward(*tensors)


def _combine_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, idx, weights = ctx.saved_tensors
    (experts, capacity, dropless, groups), width = ctx.sizes, rows.shape[2]
    slots = _slots(idx, experts, capacity, dropless, groups)
    back = rows.new_zeros(experts * capacity + 1, width)
    back[slots.flatten()] = (grad[:, None] * weights[..., None]).flatten(0, 1).to(rows.dtype)
    padded = torch.cat((rows.flatten(0, 1), rows.new_zeros(1, width)))
    by_weight = (padded[slots] * grad[:, None]).sum(-1).to(weights.dtype)
    return back[:-1].view_as(rows), None, by_weight, None, None, None, None, None


dispatch.register_autograd(_dispatch_backward, setup_context=_remember_dispatch)
combine.register_autograd(_combine_backward, setup_context=_remember_combine)


READ = ("gate_up_proj", "up_proj", "down_proj", "gate_up_proj_bias", "up_proj_bias", "down_proj_bias", "act_fn")
"""What modules of experts hold that is read here; and where they say so, a norm of what they made."""


def check_read(self: Any) -> None:
    """Refuse parameters that would be left out."""
    read = (*READ, *(("post_expert_norm",) if getattr(self, "has_post_expert_norm", False) else ()))
    held = (name for name, _ in self.named_parameters()) if isinstance(self, nn.Module) else ()
    unread = [name for name in held if name.partition(".")[0] not in read]
    if unread:
        raise ForwardRaised(
            place=f"{type(self).__name__}.{unread[0]}",
            cause="experts of transformers hold no such parameter, and it would be left away",
            fix="give a file with a factory whose experts are written without `use_experts_implementation`",
        )


def routed_experts(self: Any, hidden: Tensor, idx: Tensor, weights: Tensor, *, looped: bool = False) -> Tensor:
    """The forward pass of a Hugging Face experts module (`use_experts_implementation`) over our operators."""

    def product(rows: Tensor, weight: nn.Parameter, bias: nn.Parameter | None) -> Tensor:
        result = torch.bmm(rows, weight if self.is_transposed else weight.transpose(1, 2))
        return result if bias is None else result + bias[:, None]

    check_read(self)
    tokens, topk, experts = hidden.shape[0], idx.shape[1], self.num_experts
    factor = getattr(self, "capacity_factor", None)
    if factor is None:
        capacity, groups = dropless_capacity(tokens, topk, experts), 0
    else:
        groups = tokens // self.group_size
        capacity = groups * math.ceil(factor * self.group_size * topk / experts)
    dropless = factor is None
    rows = dispatch(hidden, idx, experts, capacity, dropless=dropless, groups=groups)
    biases = (getattr(self, f"{name}_proj_bias", None) for name in ("gate_up" if self.has_gate else "up", "down"))
    up_bias, down_bias = biases if self.has_bias else (None, None)
    if self.has_gate:
        rows = self._apply_gate(product(rows, self.gate_up_proj, up_bias))
    else:
        rows = self.act_fn(product(rows, self.up_proj, up_bias))
    rows = product(rows, self.down_proj, down_bias)
    if getattr(self, "has_post_expert_norm", False):
        rows = self.post_expert_norm(rows)
    return combine(rows, idx, weights, experts, capacity, dropless=dropless, groups=groups, looped=looped)


def limit(model: nn.Module) -> None:
    """Have modules of experts run as `routed_experts` that have a capacity (`capacity_factor`, `group_size`), whose own
    code drops tokens before it calls what they are made of."""
    for module in model.modules():
        if getattr(module, "capacity_factor", None) is not None and hasattr(module, "_apply_gate"):
            looped = getattr(module.config, "_experts_implementation", None) == LOOPED
            module.forward = MethodType(partial(routed_experts, looped=looped), module)


def use_with_transformers(implementation: str | None = "grouped_mm") -> str:
    """Enter `routed_experts` into Hugging Face's registry; the name to set as `_experts_implementation`, instead of the
    one that the model runs with."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, routed_experts)
    ALL_EXPERTS_FUNCTIONS.register(LOOPED, partial(routed_experts, looped=True))
    return LOOPED if implementation in LOOPS else NAME
