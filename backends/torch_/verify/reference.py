"""The reference of emitted scripts: the user's model on one device, in the precision of the plan.

fp32              the model as it is
recipe bf16       its parameters in bf16, its optimizer's states too
recipes fsdp*     parameters in fp32, of which every forward pass reads copies in bf16: gradients come back in bf16
                  and are added up in fp32

Of fp32 there is one more: in fp64, as `precise` has it, from the same weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.func import functional_call

from meshwright.backends.results import EXACT, IN_FP64
from meshwright.backends.torch_.verify.apart import Apart
from meshwright.backends.torch_.verify.run.loading import load
from meshwright.backends.torch_.verify.run.precise import precise, widened
from meshwright.backends.torch_.verify.run.state import buffers_of
from meshwright.backends.torch_.verify.run.still import Still
from meshwright.ir.errors import NoLoss
from meshwright.ir.frontends.torch_.sources.own_loss import own_loss
from meshwright.ir.graph.calls import Calls
from meshwright.ir.target.workload import Workload

SEED = 0
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
IN_BF16 = 2**-5
"""What tensors may differ by where they were computed in bf16: eight times the distance of neighbouring numbers.
Products in bf16 round what they yield, and what is added up in another order, or over another part of the batch, rounds
otherwise."""

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that are compared as those in bf16 are."""

ROUNDINGS = 2.0
"""How many times as far from the gradients in fp32 as those of one device in low precision are gradients that are still
taken for these, rounded otherwise. What is missing changes one by its own size; a small T5 in
bf16 is off by 0.07 of that (torch 2.13.0, November 2026)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The results of a step: the loss, gradients, and the parameters and buffers after it."""

    loss: Tensor
    grads: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    """Those that steps have changed."""
    constants: Mapping[str, Tensor]
    """The other ones."""


class Reference:
    """The user's model on one device."""

    def __init__(
        self, folder: Path, calls: Calls, workload: Workload, apart: Apart | None = None, *, in_fp64: bool = False
    ) -> None:
        self.calls, self.workload, self.apart, self.in_fp64 = calls, workload, apart, in_fp64
        recipe = workload.recipe or workload.stack.recipe
        low = workload.precision in LOW
        self.low, self.cast = low, low and recipe != "bf16"
        full = IN_FP64 if in_fp64 else EXACT
        self.tolerance = IN_BF16 if low else full
        """Of losses and gradients."""
        self.after = IN_BF16 if low and not self.cast else full
        """Of parameters after a step with the same gradients."""
        self.file: Any = load(str(folder / calls.file))
        torch.manual_seed(SEED)
        model: nn.Module = getattr(self.file, calls.factory)()
        self.model = model.double() if in_fp64 else model.float() if self.cast else model
        for parameter in self.model.parameters() if low and not self.cast else ():
            parameter.data = parameter.data.to(LOW[workload.precision])
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        make = self.file.optimizer if calls.has_optimizer else lambda given: torch.optim.AdamW(given, lr=3e-4)
        with self._numbers():
            self.optimizer = make(trained)
        self.before, self.made = self._held(), buffers_of(self.model)

    def _numbers(self) -> AbstractContextManager[None]:
        """The dtypes in which the model and its optimizer compute."""
        return precise() if self.in_fp64 else nullcontext()

    def step(self, step: int, grads: Mapping[str, Tensor]) -> Stepped:
        """A step in which the optimizer is given `grads`."""
        self.before = self._held()
        self.optimizer.zero_grad()
        loss = self._pass(step)
        named = dict(self.model.named_parameters(remove_duplicate=False))
        made = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        for name, grad in grads.items():
            if name in made and grad.shape == made[name].shape:
                named[name].grad = grad
        with self._numbers():
            self.optimizer.step()
        buffers = buffers_of(self.model)
        constant = {name for name, one in buffers.items() if one.equal(self.made[name])}
        return Stepped(
            loss=loss,
            grads=made,
            parameters={name: p.detach().clone() for name, p in named.items()},
            buffers={name: one for name, one in buffers.items() if name not in constant},
            constants={name: one for name, one in buffers.items() if name in constant},
        )

    def rounded(self, step: int, found: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of a step that was `made` in low precision, where they are about as near to those in fp32 as the
        reference's own: rounding yields either."""
        own, cast, random = self.model, self.cast, torch.get_rng_state()
        try:
            self.model, self.cast = deepcopy(own).float(), False
            self._hold(self.before)
            self.model.zero_grad()
            self._pass(step)
            full = {n: p.grad for n, p in self.model.named_parameters(remove_duplicate=False) if p.grad is not None}
        finally:
            self.model, self.cast = own, cast
            torch.set_rng_state(random)
        both = [name for name, one in full.items() if name in found and found[name].shape == one.shape]
        far = {name: [(one[name] - full[name]).norm() for one in (found, made)] for name in both}
        return {name: found[name] for name, (of_run, of_one) in far.items() if of_run <= ROUNDINGS * of_one}

    def _pass(self, step: int) -> Tensor:
        """Run forward and backward."""
        torch.manual_seed(SEED + step)
        batch = self.file.example_inputs(self.workload.global_batch, self.workload.seq)
        batch = widened(batch) if self.in_fp64 else batch
        loss = torch.zeros(())
        with self._numbers(), Still():
            for weight, part in self.apart.parts(batch) if self.apart is not None else [(1.0, batch)]:
                one = self.loss(part) * weight
                one.backward()
                loss = loss + one.detach()
        return loss

    def _held(self) -> list[Tensor]:
        """All values that the model holds."""
        return [one.detach().clone() for one in (*self.model.parameters(), *self.model.buffers())]

    @torch.no_grad()
    def _hold(self, held: list[Tensor]) -> None:
        """Put values into the model."""
        for one, value in zip((*self.model.parameters(), *self.model.buffers()), held, strict=True):
            one.copy_(value)

    def save(self, folder: Path) -> None:
        """A checkpoint before the first step, as emitted scripts take it up."""
        weights, states = get_state_dict(self.model, self.optimizer, options=FLAT)
        for name, state in states.items():  # they were made by a step
            states[name] = torch.zeros_like(state) if name.startswith("state.") and isinstance(state, Tensor) else state
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is alone
            dcp.save({"model": weights, "optimizer": states, "step": 0}, checkpoint_id=folder)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch: by the file's hook, or as the model returns it."""
        outputs = self.outputs({name: batch[name] for name in self.calls.entries})
        if self.calls.own_loss is None:
            found: Tensor = self.file.loss(outputs, batch)
            return found
        own = own_loss(outputs)
        if own is None or own[0] != self.calls.own_loss:
            raise NoLoss(
                place=self.calls.file.name,
                cause=f"the model returned its loss as outputs{self.calls.own_loss}, and now it does not",
                fix="return it in every call, or put loss(outputs, batch) beside the factory",
            )
        return own[1]

    def outputs(self, inputs: dict[str, Tensor]) -> Any:
        """The model's outputs."""
        if (self.low and next(self.model.parameters()).dtype is not torch.float32) or self.cast:
            low = LOW[self.workload.precision]
            inputs = {name: one.to(low) if one.dtype is torch.float32 else one for name, one in inputs.items()}
        if not self.cast:
            return self.model(**inputs)
        cast = {name: p.to(LOW[self.workload.precision]) for name, p in self.model.named_parameters()}
        return functional_call(self.model, cast, kwargs=inputs)
