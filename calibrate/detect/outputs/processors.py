"""The processors of a host, as `lscpu` and /proc/cpuinfo tell them.

In: lines of a key and a value. Out: `Processors`. Threads of one core are one core: ranks on processors have one each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.ir.errors import OutputBroken

BY_LSCPU, BY_CPUINFO = "lscpu", "/proc/cpuinfo"
_LSCPU = re.compile(r"^CPU\(s\):\s*\d+", re.MULTILINE)
_CPUINFO = re.compile(r"^processor\s*:\s*\d+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """How many cores a host has, and what they call themselves."""

    name: str
    cores: int
    sockets: int | None = None


def is_lscpu(text: str) -> bool:
    return _LSCPU.search(text) is not None


def is_cpuinfo(text: str) -> bool:
    return _CPUINFO.match(text.strip()) is not None


def read_lscpu(text: str, place: str) -> Processors:
    """What `lscpu` says in English; where a host has several kinds of core, the name is that of the first."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            said.setdefault(key.strip(), value.strip())
    threads = _whole(said.get("Thread(s) per core")) or 1
    cpus = _whole(said.get("CPU(s)"))
    if not cpus:
        raise OutputBroken(place=place, cause="it counts no processors", fix="save the output of `LC_ALL=C lscpu`")
    return Processors(
        name=said.get("Model name", ""), cores=max(1, cpus // threads), sockets=_whole(said.get("Socket(s)"))
    )


def read_cpuinfo(text: str, place: str) -> Processors:
    """One block for each thread; those of one core have the same numbers of socket and core, where they have any."""
    blocks = [dict(_pairs(block)) for block in re.split(r"\n\s*\n", text.strip())]
    threads = [block for block in blocks if "processor" in block]
    if not threads:
        raise OutputBroken(place=place, cause="it counts no processors", fix="save /proc/cpuinfo again")
    cores = {(one.get("physical id"), one.get("core id", f"of {one['processor']}")) for one in threads}
    sockets = {one["physical id"] for one in threads if "physical id" in one}
    return Processors(name=threads[0].get("model name", ""), cores=len(cores), sockets=len(sockets) or None)


def _pairs(block: str) -> list[tuple[str, str]]:
    parts = [line.partition(":") for line in block.splitlines()]
    return [(key.strip(), value.strip()) for key, colon, value in parts if colon]


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) else None
