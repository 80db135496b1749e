"""Kernels that the plans of a model run on a machine, the most work first.

Every kernel configuration of the space is lowered, body by body, and its ledger written down; what differs in storage,
stages and schedule alone runs the same products.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

from meshwright.cost_models.compute.kernels import Kernel
from meshwright.cost_models.ledger.books import Books
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.rules.base import Engine
from meshwright.planner.answer.solve import space_of
from meshwright.planner.question.ask import Ask, asked
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import LEAST_BATCH, Setting

MOST = 200
"""Kernels of a model that are measured beside the grid."""


def kernels_of(args: Namespace, dtype: str) -> tuple[Kernel, ...]:
    """Products and attention of a model on the ranks of this machine."""
    ask, setting = _ask(args, dtype).loaded()
    space = space_of(setting, ask.cluster, Constraints())
    books, work = Books(), Counter[Kernel]()
    for base in space.bases():
        work.update(_work(setting, base, books))
    ordered = sorted(work.items(), key=lambda one: (-one[1], str(one[0])))
    return tuple(kernel for kernel, _ in ordered[:MOST])


def _ask(args: Namespace, dtype: str) -> Ask:
    usual: dict[str, Any] = dict.fromkeys(("micro_batch", "stack", "style", "recipe", "profile"))
    usual |= {"cluster": f"cpu:{args.ranks}", "fix": [], "optimizer": "adamw", "imbalance": 1.0, "seed": 0}
    return asked(Namespace(**vars(args) | usual | {"dtype": dtype}))


def _work(setting: Setting, base: Config, books: Books) -> Counter[Kernel]:
    """FLOPs of every kernel of a configuration, over one run of each body."""
    work = Counter[Kernel]()
    for body in setting.folds.first(LEAST_BATCH).fold.bodies:
        try:
            made = setting.body(base, body.name)
        except MeshwrightError:
            continue
        for phase in books.ledger(made, setting.workload, False).phases.values():
            for kernel, count in phase.kernels.items():
                if kernel.engine in (Engine.MATMUL, Engine.ATTENTION):
                    work[kernel] += int(count * kernel.flops)
    return work
