"""Counting the collectives that a step executes: kind, group and bytes of every one, as torch dispatches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload

from meshwright.backends.torch_.verify.run.watching import Watching

Collective = tuple[str, tuple[int, ...], int]
"""Kind, ranks of the group in ascending order, bytes that each rank gives. Of a message (send, recv): who sends it, who
receives it, and its bytes."""

KINDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "c10d::allreduce_": ("all_reduce", 0),
        "c10d::allreduce_coalesced_": ("all_reduce", 0),
        "c10d::_allgather_base_": ("all_gather", 1),
        "c10d::allgather_": ("all_gather", 1),
        "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
        "c10d::reduce_scatter_": ("reduce_scatter", 1),
        "c10d::alltoall_base_": ("all_to_all", 1),
        "c10d::alltoall_": ("all_to_all", 1),
        "c10d::broadcast_": ("broadcast", 0),
        "_c10d_functional::all_reduce": ("all_reduce", 0),
        "_c10d_functional::all_reduce_": ("all_reduce", 0),
        "_c10d_functional::all_gather_into_tensor": ("all_gather", 0),
        "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
        "_c10d_functional::all_to_all_single": ("all_to_all", 0),
        "_c10d_functional::broadcast": ("broadcast", 0),
    }
)
"""What operators of torch.distributed are called here, and which argument a rank gives."""
MESSAGES = {"send": "send", "recv_": "recv"}
SILENT = ("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_")
"""Operators of the same libraries without traffic of data."""


class Counting(Watching):
    """Counts collectives while it is entered. One that has no name here is counted under torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Collective] = Counter()

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        library, name = _name(func)
        if library == "c10d" and name in MESSAGES:
            self.found[MESSAGES[name], _ends(name, args), _bytes(args[0])] += 1
        elif library in ("c10d", "_c10d_functional", "_c10d_functional_autograd") and name not in SILENT:
            kind, given = KINDS.get(f"{library}::{name}", (f"{library}::{name}", 0))
            self.found[kind, _ranks(args), _bytes(args[given])] += 1


@cache
def _name(func: OpOverload) -> tuple[str, str]:
    """The library of an operator, and its name there."""
    library, _, name = func._schema.name.partition("::")
    return library, name


def _bytes(given: Any) -> int:
    tensors = given if isinstance(given, list | tuple) else [given]
    return sum(_bytes(one) if isinstance(one, list | tuple) else one.numel() * one.element_size() for one in tensors)


def _ranks(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The ranks of a group: functional collectives have its name, others the group itself, boxed."""
    for arg in args:
        if isinstance(arg, str):
            try:
                return tuple(sorted(dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(arg))))
            except (RuntimeError, ValueError):  # another text, such as the name of the reduction
                continue
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return tuple(sorted(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg))))
    return ()


def _ends(name: str, args: tuple[Any, ...]) -> tuple[int, int]:
    """The sender and the receiver of a message."""
    here, there = dist.get_rank(), dist.get_global_rank(dist.ProcessGroup.unbox(args[1]), args[2])
    return (here, there) if name == "send" else (there, here)
