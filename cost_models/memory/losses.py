"""Temporaries of torch's loss kernels, for losses that a program has in operators of its own.

A loss over ranks is planned as the operators that it is made of. torch's kernels keep logarithms of probabilities
forward, make exponentials from them again, and add up the gradients of the scores while they write them. So on CPUs,
where live tensors were measured. On GPUs all operators count as they are written: without, two of the six runs of
torchtitan on H100 (`tests/cost_models/test_memory.py`) come out 16 and 18 % low; why is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeGuard

from meshwright.ir.program.program import BodyProgram, Compute, Gradient, Statement


def exponentials(body: BodyProgram, scores: Set[str]) -> dict[str, str]:
    """Exponentials of scores, and the values that they are made of."""
    computed = [s for s in body.forward if isinstance(s, Compute) and s.signature.kind == "exp"]
    return {name: s.operands[0] for s in computed for name in s.results if name in scores}


def takes_two_steps(statement: Statement) -> TypeGuard[Gradient]:
    """Whether a derivative makes gradients as large as the scores one beside the other: a cross entropy those of the
    logarithms first."""
    return isinstance(statement, Gradient) and statement.signature.kind == "cross_entropy"


def inside_losses(body: BodyProgram, exps: Mapping[str, str]) -> set[str]:
    """Gradients that kernels add up beside that of the chosen scores: of exponentials, and what these become."""
    if body.kernels.device != "cpu":
        return set()
    made = [s for s in body.backward if isinstance(s, Gradient)]
    ops = {name.partition("@")[0] for name in exps}
    found = {name for s in made for slot, name in zip(s.wanted, s.results, strict=True) if s.operands[slot] in exps}
    return found | {name for s in made if s.op in ops for name in s.results}


def made_again(body: BodyProgram, exps: Mapping[str, str], inner: Set[str]) -> set[str]:
    """Exponentials that are made again in the backward pass; on CPUs those of scores in shards, which have no
    kernel."""
    cut = {name for name in exps if any(body.locals[name].placement.dims[-1:])}
    return cut if inner else set(exps)
