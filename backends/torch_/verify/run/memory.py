"""The fullest instant of a step, in bytes of tensors: every storage that torch hands out is known from the operator
that made it until it is gone. What lies outside of torch's own operators (buffers inside of kernels and of gloo, the
process itself) is not counted, nor is what the checks make, nor what torch makes only because it is watched: its
derivatives write into zeros that they have just made, and put the same into a copy of them where a mode is on
(`areAnyTensorSubclassLike`, FunctionsManual.cpp).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache, wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.nn.attention import bias
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.backends.torch_.verify.run.watching import Watching

GLOO_S = (1e-4, 1e-3, 4e-3)
"""How long an instant is looked at that is fuller than all before, if anything was sent before it: threads of gloo hold
what has travelled for a moment after it was waited for, and need Python to let go of it: 3 of 20 runs of one plan
measured 4 % more without, none of 40 with the first one alone (torch 2.13.0, 2 busy cores, November 2026). The longer
ones are for machines whose cores other work takes, where a run of the tests was still too full; how long is enough
there was not measured."""

ZEROS = frozenset(("aten::new_zeros", "aten::zeros", "aten::zeros_like"))
PUT = frozenset(
    f"aten::{name}" for name in ("scatter", "scatter_add", "index_add", "index_put", "put", "masked_scatter")
)
"""What derivatives make zeros with, and what they put into them: of `gather`, `max`, `topk`, `sort`, `index_select`,
`take`, `masked_select`, and indexing (torch 2.13.0, November 2026: profiled beside a mode)."""

VIEW, MADE, WRITTEN, OTHER = "view", "made", "written", "other"
"""What an operator does to storages: see `_effect`."""


class Peak(Watching):
    """A watch over storages while it is entered, which it may be many times. `most` is the largest sum so far.
    Allocations of compiled code are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, ref[UntypedStorage]] = {}
        self.sizes: dict[int, int] = {}
        """Of each, when it was last seen."""
        self.gone: list[int] = []
        """Of those that went since the last sum: other threads let go of storages, too."""
        self.sum = self.most = 0
        self.travelled = False
        """Whether anything was sent since it was last waited for threads of gloo."""
        self.zeros = 0
        """The storage of zeros that a derivative made, while it has run nothing else."""

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        """What is put into fresh zeros lies in their storage, as it would without a watch."""
        if self.zeros and func._schema.name in PUT and args[0].untyped_storage()._cdata == self.zeros:
            self._went(self.zeros)

    def after(self, func: Any, made: Any) -> None:
        effect = _effect(func)
        self.travelled = self.travelled or func.namespace != "aten"
        fresh = func._schema.name in ZEROS and _in_backward_pass()
        self.zeros = made.untyped_storage()._cdata if fresh else 0
        if effect == VIEW:
            return
        if effect == OTHER:
            self.now()
        else:
            for tensor in _plain(made):
                self.add(tensor, known=effect == WRITTEN)
        while self.gone:
            self.sum -= self.gone.pop()
        if self.sum > self.most and self.now() > self.most:
            for seconds in GLOO_S if self.travelled else ():
                time.sleep(seconds)
                if self.now() <= self.most:
                    break
            self.travelled = False
            self.most = max(self.most, self.now())

    def add(self, tensor: Tensor, *, known: bool = False) -> None:
        """Count a storage, or only its growth where it is `known`."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live:
            if known:
                return
            self.live[key] = ref(storage, lambda _: self._went(key))
        self.sum += size - self.sizes.get(key, 0)
        self.sizes[key] = size

    def _went(self, key: int) -> None:
        self.live.pop(key, None)
        self.gone.append(self.sizes.pop(key, 0))

    def leave_out(self, away: Any) -> None:
        """Stop counting tensors from when objects of this class are made that have them in the host's memory, which is
        the same one on CPUs."""
        make = away.__init__

        @wraps(make)
        def made(self_: Any, *args: Any) -> None:
            make(self_, *args)
            tensor = self_.tensor
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            self._went(own.untyped_storage()._cdata)

        away.__init__ = made

    def now(self) -> int:
        """Bytes of all storages that exist; a storage may have been resized."""
        there = ((key, storage) for key, one in list(self.live.items()) if (storage := one()) is not None)
        self.sizes = {key: storage.nbytes() for key, storage in there}
        self.gone.clear()
        self.sum = sum(self.sizes.values())
        return self.sum

    def begin(self, given: Iterable[Tensor]) -> None:
        """Reset the maximum. What is `given` to a step was made unwatched."""
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


def _in_backward_pass() -> bool:
    """Whether torch runs derivatives."""
    return bool(torch._C._current_graph_task_id() != -1)


@cache
def _effect(func: OpOverload) -> str:
    """The effect of an operator on storages: `VIEW` none, `MADE` new storages for its results, `WRITTEN` writes into
    its results, whose storage may be larger than before; or anything else."""
    aliases = [one.alias_info for one in func._schema.returns]
    if not aliases or func.namespace != "aten":
        return MADE if aliases and not any(aliases) else OTHER
    if all(one is not None and not one.is_write for one in aliases):
        return VIEW
    return MADE if not any(aliases) else WRITTEN if all(aliases) else OTHER


def _plain(made: Any) -> Iterator[Tensor]:
    """The tensors in an operator's result, without those that only stand for others."""
    if isinstance(made, Tensor):
        if type(made) in (Tensor, torch.nn.Parameter) and made.layout is torch.strided and made.device.type != "meta":
            yield made
    elif isinstance(made, list | tuple):
        for one in made:
            yield from _plain(one)
