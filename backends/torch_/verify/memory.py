"""The fullest instant of a step, in bytes of tensors: every storage that torch hands out is known from the operator
that made it until it is gone. What lies outside of torch's own operators (buffers inside of kernels and of gloo, the
process itself) is not counted, nor is what the checks make.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.nn.attention import bias
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.backends.torch_.verify.watching import Watching

GLOO_S = 1e-4
"""How long an instant is that is fuller than all before: threads of gloo hold what has travelled for a moment after it
was waited for, and need Python to let go of it: 3 of 20 runs of one plan measured 4 % more without, none of 40 with it
(torch 2.13.0, 2 busy cores, November 2026)."""


class Peak(Watching):
    """Watches storages while it is entered; it may be entered again and again. `most` is the largest sum so far. What
    compiled code allocates it does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, ref[UntypedStorage]] = {}
        self.most = 0

    def after(self, schema: Any, made: Any) -> None:
        aliases = [one.alias_info for one in schema.returns]
        if aliases and all(one is not None and not one.is_write for one in aliases):
            return  # a view: nothing is new, nor of another size
        if not any(aliases):
            for tensor in _plain(made):
                self.add(tensor)
        if self.now() > self.most:
            time.sleep(GLOO_S)
            self.most = max(self.most, self.now())

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.live:
            self.live[key] = ref(storage, lambda _: self.live.pop(key, None))

    def leave_out(self, away: Any) -> None:
        """Do not count tensors from when objects of this class are made that have them in the host's memory, which is
        the same one on CPUs."""
        make = away.__init__

        @wraps(make)
        def made(self_: Any, *args: Any) -> None:
            make(self_, *args)
            tensor = self_.tensor
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            self.live.pop(own.untyped_storage()._cdata, None)

        away.__init__ = made

    def now(self) -> int:
        """Bytes of all that is there; a storage may have been resized."""
        return sum(storage.nbytes() for one in list(self.live.values()) if (storage := one()) is not None)

    def begin(self, given: Iterable[Tensor]) -> None:
        """Forget what was the most so far. What is `given` to a step was made unwatched."""
        for tensor in given:
            self.add(tensor)
        self.most = self.now()


def make_masks_unwatched() -> None:
    """Let causal masks be made while a mode is on: they are tensors of a class of their own that hold nothing, and
    torch cannot make one of a tensor that a mode has seen."""
    make = bias.causal_lower_right

    @wraps(make)
    def unwatched(*sizes: int) -> Tensor:
        with _disable_current_modes():
            return make(*sizes)

    bias.causal_lower_right = unwatched


def _plain(made: Any) -> Iterator[Tensor]:
    """The tensors in what an operator returned, those that only stand for others left out."""
    if isinstance(made, Tensor):
        if type(made) in (Tensor, torch.nn.Parameter) and made.layout is torch.strided and made.device.type != "meta":
            yield made
    elif isinstance(made, list | tuple):
        for one in made:
            yield from _plain(one)
