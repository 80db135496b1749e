"""Names of parallelism, as people use them, in one table.

Inside Meshwright there are only axes and factors. People say "TP 8, CP 2, ZeRO-1". This table is the dictionary between
the two, used in both directions: a *degree* lists the loops that a mesh axis of this name splits, in order of
preference, operator by operator.

    dp      b, slots                  data parallelism; inside experts the tokens routed to each
    tp      heads, ffn, vocab         Megatron's column- and row-parallel linears, vocabulary-parallel ends; the queries
                                      (group) where all share one key-value head
    cp      s, slots                  context parallelism; attention by all-gather, ring or Ulysses
    ep      b, experts, slots         expert parallelism: tokens outside the experts, experts inside

Sequence parallelism is no axis of its own: with `sequence_parallel`, tp splits s where it finds none of its loops.

`template` writes a plan from degrees, as a person would; `name_of` says which names fit what an axis does in a plan.
An operator that has none of the loops, or cannot be split there, leaves the axis idle.

The rooms: `degrees` (what people write, and the mesh that it means), `body`, `storage` and `recompute` (the plan of one
block), `stages` (the cuts of a pipeline), `words` (from plans back to names), `check` (what cannot work, and what
would), `pinned` (what is asked of single operators).

What concerns one body depends on few of the degrees, so body plans are made once and shared: configurations that differ
in pipeline, schedule or micro-batches hold the same `BodyPlan` objects, and what is derived from those can be too.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.decisions.decisions import Decisions, Schedule
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names.body import body_template
from meshwright.ir.names.cache import planned, share_loops
from meshwright.ir.names.check import check
from meshwright.ir.names.degrees import CONTEXT, CONTEXTS, TABLE, Degree, Degrees, Use, uses
from meshwright.ir.names.pinned import NOTHING_PINNED, Pinned
from meshwright.ir.names.stages import cuts, even_cuts, only_layer, stage_plans, with_first
from meshwright.ir.names.words import loops_split, name_of
from meshwright.ir.same import Same

__all__ = [
    "CONTEXT",
    "CONTEXTS",
    "TABLE",
    "Degree",
    "Degrees",
    "Use",
    "body_template",
    "check",
    "cuts",
    "even_cuts",
    "loops_split",
    "name_of",
    "share_loops",
    "template",
    "uses",
]


def template(fold: Fold, degrees: Degrees, target: str = "any", pins: Pinned = NOTHING_PINNED) -> Decisions:
    """The plan that degrees stand for, changed by what is asked of single operators."""
    key, of_body, first = Same(fold), degrees.of_body(), degrees.first_layers
    usual = replace(of_body, recompute="none") if first else of_body
    plans = tuple(planned(key, body.name, usual, pins) for body in fold.bodies)
    stages = stage_plans(fold, degrees, degrees.mesh())
    if first:
        again = planned(key, only_layer(fold, "recompute"), of_body, pins)
        plans, stages = (again, *plans), with_first(fold, stages, again)
    schedule = Schedule(degrees.order, degrees.microbatches)
    return Decisions(plans, stages, schedule, target, offload=Offload.parse(degrees.offload))
