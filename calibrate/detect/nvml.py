"""GPUs as NVIDIA's management library lists them, where the machine has it without `nvidia-smi`.

In: the library, libnvidia-ml.so.1. Out: the text that `nvidia-smi --query-gpu` would print of the same columns, so
that one parser reads both. What the library does not answer is `[N/A]` there too.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
HEADER = "index, name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max, mig.mode.current"
NAME_BYTES = 96
MISSING = "[N/A]"


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def library() -> Any | None:
    """The library, if it can be loaded."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def listed(nvml: Any) -> str | None:
    """The text of all GPUs; None where the library finds no driver or no GPU."""
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or not count.value:
            return None
        return "\n".join([HEADER, *(_row(nvml, index) for index in range(count.value)), ""])
    finally:
        nvml.nvmlShutdown()


def _row(nvml: Any, index: int) -> str:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return ", ".join([str(index), *[MISSING] * 5])
    name = ctypes.create_string_buffer(NAME_BYTES)
    named = nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(NAME_BYTES)) == 0
    memory = _Memory()
    sized = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    has_mig = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending)) == 0
    return ", ".join(
        [
            str(index),
            name.value.decode(errors="replace") if named else MISSING,
            f"{memory.total // 2**20} MiB" if sized else MISSING,
            _number(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            _number(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            ("Enabled" if current.value else "Disabled") if has_mig else MISSING,
        ]
    )


def _number(ask: Any, handle: ctypes.c_void_p) -> str:
    found = ctypes.c_uint()
    return str(found.value) if ask(handle, ctypes.byref(found)) == 0 else MISSING
