"""What a target is asked to measure, and what it answers: cases and samples, as lines of text.

    product fp32 1 256 512 1024 @2           groups, m, n, k, while 2 ranks of every host are at work
    attention fp32 forward causal 2 8 8 128 128 64 64 @2
    stream 1048576 @2                        bytes
    chain 64 @2                              a training step of so many products of nothing: what launches take
    collective all_reduce 65536 @2           bytes, among 2 ranks of every host
    overlap growth 8388608 512 @2            wires alone, or by how much compute grows beside them: bytes of each
                                             all-reduce, size of a product
    step narrow dp=2,zero=3 @2               a whole training step of a reference model under a plan

Seconds are those of one run; `cpu` is the share of that time in which the process had a core, where that is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

KINDS = ("product", "attention", "stream", "chain", "collective", "overlap", "step")
CHAIN_LAUNCHES = 5
"""Launches of one product of a chain: itself, an activation, and backward the two derivatives of the one and that of
the other."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: its kind and its words, and how many ranks of every host are at work."""

    kind: str
    words: tuple[str | int, ...]
    busy: int

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(map(str, self.words))} @{self.busy}"

    @staticmethod
    def parse(text: str) -> Case:
        """Read what `str` writes. Raises `ValueError`."""
        kind, *words, busy = text.split()
        if kind not in KINDS or not busy.startswith("@"):
            raise ValueError(text)
        return Case(kind, tuple(int(word) if word.isdigit() else word for word in words), int(busy[1:]))

    @property
    def ints(self) -> tuple[int, ...]:
        """The numbers among the words."""
        return tuple(word for word in self.words if isinstance(word, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Repeated times of one case on one rank."""

    case: Case
    rank: int
    seconds: tuple[float, ...]
    cpu: tuple[float, ...] = ()

    def line(self) -> str:
        """The sample as a line of JSON."""
        told = {"case": str(self.case), "rank": self.rank, "seconds": self.seconds, "cpu": self.cpu}
        return json.dumps(told)

    @staticmethod
    def read(line: str) -> Sample:
        """Read what `line` writes. Raises `ValueError` or `KeyError` for anything else."""
        told = json.loads(line)
        case = Case.parse(told["case"])
        return Sample(case=case, rank=int(told["rank"]), seconds=tuple(told["seconds"]), cpu=tuple(told["cpu"]))


class Told(Protocol):
    """Who is told of progress."""

    def __call__(self, case: Case) -> None:
        """A case is measured."""
