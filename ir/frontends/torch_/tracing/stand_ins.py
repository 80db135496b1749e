"""Replacements for parts of torch while a model is traced.

Parts of torch look at values, or run code that a trace cannot follow, where the shape of the step does not depend on
it:

    TransformerEncoder, TransformerDecoder    compare a mask with the causal one, to pass on a hint; without values the
                                              user's own hint is all there is
    checkpoint, reentrant                     runs its function inside an autograd function, outside differentiation
    checkpoint, either kind                   throws away what its function saves: what to recompute is for a plan to
                                              decide, so the function is traced as if it were called, and a note says so

    Tensor.data                               has no operator, so what it gives is unknown to a trace: `detach` has one,
                                              and shares storage just so

Another prints: an export that fails writes its graph to standard error, a page before our two lines. And transformers
looks at no values where it takes itself to be traced, and so writes masks out that it leaves away in training, where
the attention's own flag decides, which need not agree with them (PaliGemma attends both ways). Here it leaves them
away, too, where it needs no value for that: positions that the batch does not give are those of one sequence.

A model without values is on the meta device, but its code need not be: `torch.arange(n)`, `torch.tensor(values)` and
what comes from numpy are on the CPU. Trained, both are on one device. So they are here: a fake tensor of a meta tensor
is one of the CPU (`one_device`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

T = TypeVar("T")

POSITIONS = "position_ids"
"""What models of transformers call positions that they are given, of one sequence or of several packed ones."""
RECOMPUTE = "checkpoint() in the forward pass is not traced: what to recompute is for the plan to decide"


@contextlib.contextmanager
def standing_in(batch: Any) -> Iterator[list[str]]:
    """Trace on this batch within a context; notes are in the list that it yields."""
    notes: list[str] = []

    def told() -> None:
        notes[:] = [RECOMPUTE]

    def called(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        told()
        return function(*args)

    def unchecked(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        told()
        yield

    with contextlib.ExitStack() as stack:
        for target, stand_in in (
            ("torch.nn.modules.transformer._detect_is_causal_mask", _hinted),
            ("torch.utils.checkpoint.CheckpointFunction.apply", called),
            ("torch.utils.checkpoint._checkpoint_without_reentrant_generator", unchecked),
        ):
            stack.enter_context(mock.patch(target, stand_in))
        stack.enter_context(mock.patch.object(torch.Tensor, "data", property(torch.Tensor.detach, _set_data)))
        stack.enter_context(one_device())
        stack.enter_context(mock.patch("torch.export._trace.print", _nothing, create=True))
        masks = sys.modules.get("transformers.masking_utils")
        for name, answer in (("is_torchdynamo_exporting", False), ("find_packed_sequence_indices", None)):
            if hasattr(masks, name) and not (isinstance(batch, Mapping) and POSITIONS in batch):
                stack.enter_context(mock.patch.object(masks, name, mock.Mock(return_value=answer)))
        yield notes


def _hinted(_mask: Any, is_causal: bool | None = None, _size: int | None = None) -> bool:
    return is_causal is True


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    torch._C.TensorBase.data.__set__(tensor, data)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """A function that prints nothing."""


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Let fake tensors of meta tensors be on the CPU, where code puts tensors that it makes without a device."""
    make = FakeTensor.__new__

    def on_cpu(kind: Any, mode: Any, meta: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        here = torch.device("cpu") if torch.device(device).type == "meta" else device
        return make(kind, mode, meta, here, *args, **kwargs)

    with mock.patch.object(FakeTensor, "__new__", on_cpu):
        yield


@contextlib.contextmanager
def faked() -> Iterator[FakeTensorMode]:
    """Run code on a model and a batch that are on the meta device: on one device, without values."""
    with one_device(), FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        yield mode


@contextlib.contextmanager
def _on_meta() -> Iterator[FakeTensorMode]:
    """Run code on a model and a batch that are on the meta device, and stay there."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        yield mode


def run_faked(run: Callable[[Callable[[], contextlib.AbstractContextManager[FakeTensorMode]]], T]) -> T:
    """Run a function that enters the context it is given: `faked`, or, if that fails, one with all on the meta device,
    as kernels of recurrent networks compare the devices of inputs and weights before these can be made fake."""
    try:
        return run(faked)
    except RuntimeError as failed:
        try:
            return run(_on_meta)
        except RuntimeError:
            raise failed from None


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Run a function without values, as a trace would: code takes itself to be exported."""
    with faked(), as_exported():
        yield


@contextlib.contextmanager
def as_exported() -> Iterator[None]:
    """Let code take itself to be traced by `torch.export`, where it is run on meta tensors: it looks at no values."""
    with mock.patch("torch.compiler._is_compiling_flag", True), mock.patch("torch.compiler._is_exporting_flag", True):
        yield
