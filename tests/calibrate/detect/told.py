"""Outputs for tests: those that stand in files, and short ones."""

from __future__ import annotations

from pathlib import Path

from meshwright.calibrate.detect.hosts import host_of
from meshwright.calibrate.detect.machine import saved
from meshwright.calibrate.detect.outputs.sources import Source, recognised
from meshwright.calibrate.detect.pools import Found, found
from meshwright.calibrate.detect.told import Host

OUTPUTS = Path(__file__).parent / "outputs"
HOSTS = ("dgx_h100", "dgx_a100", "dgx_1v", "cloud_l40s")


def text_of(name: str) -> str:
    return (OUTPUTS / name).read_text()


def sources(*texts: str) -> tuple[Source, ...]:
    return tuple(recognised(text, f"output {number}") for number, text in enumerate(texts, 1))


def host(*texts: str, like: str | None = None) -> Host:
    return host_of(sources(*texts), "here", like)


def cluster(*names: str) -> Found:
    return found(saved(tuple(str(OUTPUTS / name) for name in names)))


def listed(name: str, count: int) -> str:
    return "".join(f"GPU {index}: {name} (UUID: GPU-{index})\n" for index in range(count))


def queried(name: str, count: int, **columns: str) -> str:
    header = ", ".join(["index", "name", *(key.replace("__", ".") for key in columns)])
    rows = [", ".join([str(index), name, *columns.values()]) for index in range(count)]
    return "\n".join([header, *rows, ""])


def drawn(*rows: str) -> str:
    """A matrix of GPUs, a row of cells for each."""
    heading = "\t".join(["", *(f"GPU{index}" for index in range(len(rows))), "CPU Affinity"])
    return "\n".join([heading, *(f"GPU{index}\t{row}" for index, row in enumerate(rows)), ""])
