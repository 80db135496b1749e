"""The imports of a script: found in its text, so that no section has to say what another one uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache

from meshwright.backends.lines import wrapped

STANDARD = ("argparse", "copy", "functools", "inspect", "itertools", "math", "os", "re", "sys", "time")
WHOLE = {
    "torch": "import torch",
    "inductor": "import torch._inductor.config as inductor",
    "dist": "import torch.distributed as dist",
    "funcol": "import torch.distributed._functional_collectives as funcol",
    "dcp": "import torch.distributed.checkpoint as dcp",
    "F": "import torch.nn.functional as F",
}
FROM = {
    "collections.abc": ("Callable", "Iterator", "Mapping", "Sequence"),
    "contextlib": ("nullcontext",),
    "functools": ("partial",),
    "importlib": ("import_module",),
    "importlib.machinery": ("SourceFileLoader",),
    "pathlib": ("Path",),
    "types": ("ModuleType",),
    "typing": ("Any", "NamedTuple", "cast"),
    "weakref": ("ref",),
    "torch": ("Tensor", "UntypedStorage", "nn"),
    "torch.autograd.graph": ("saved_tensors_hooks",),
    "torch.distributed._symmetric_memory": ("enable_symm_mem_for_group",),
    "torch.distributed.checkpoint.state_dict": (
        "StateDictOptions",
        "get_model_state_dict",
        "get_optimizer_state_dict",
        "get_state_dict",
        "set_model_state_dict",
        "set_optimizer_state_dict",
        "set_state_dict",
    ),
    "torch.distributed.device_mesh": ("DeviceMesh", "init_device_mesh"),
    "torch.distributed.fsdp": ("FSDPModule", "MixedPrecisionPolicy", "fully_shard"),
    "torch.distributed.pipelining": (
        "PipelineStage",
        "Schedule1F1B",
        "ScheduleDualPipeV",
        "ScheduleGPipe",
        "ScheduleInterleaved1F1B",
        "ScheduleZBVZeroBubble",
    ),
    "torch.distributed.pipelining.schedules": ("_PipelineScheduleRuntime",),
    "torch.distributed.tensor": ("DTensor", "Partial", "Replicate", "Shard", "distribute_tensor"),
    "torch.func": ("functional_call",),
    "torch.nn.attention.bias": ("causal_lower_right",),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.overrides": ("TorchFunctionMode",),
    "torch.utils.checkpoint": (
        "CheckpointPolicy",
        "checkpoint",
        "create_selective_checkpoint_contexts",
        "noop_context_fn",
    ),
    "torchao.float8": ("convert_to_float8_training",),
}
"""What a script may use, by the module that has it."""
IMPORTED = frozenset((*STANDARD, *WHOLE, *(name for names in FROM.values() for name in names)))
"""The names of all of that."""


@lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """The names that a text uses."""
    return frozenset(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))


def imports(text: str, beside: Mapping[str, str]) -> Iterator[str]:
    """The imports that a text needs; `beside` are texts of other files, by the names of their modules."""
    used = names_in(text)
    yield from (f"import {name}" for name in STANDARD if name.partition(".")[0] in used)
    yield from _named(used, of_torch=False)
    yield ""
    yield from (line for name, line in WHOLE.items() if name in used)
    yield from _named(used, of_torch=True)
    for module, other in beside.items():
        needed = sorted(used & _defined(other), key=lambda name: (not name.isupper(), name.islower(), name))
        yield ""
        yield from wrapped(f"from {module} import (", needed, ")")


@lru_cache(maxsize=64)
def _defined(text: str) -> frozenset[str]:
    """Names that a file defines for others."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def _named(used: Set[str], *, of_torch: bool) -> Iterator[str]:
    for module, names in FROM.items():
        needed = [name for name in names if name in used]
        if needed and module.startswith("torch") == of_torch:
            yield from wrapped(f"from {module} import (", needed, ")")
