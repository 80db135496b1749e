"""Pipeline schedules as per-group lists of actions.

A schedule says in which order one group of ranks runs forward and backward of its stages over the micro-batches. Here
only the order of compute is made; `with_transfers` then adds a receive before, and a send after, every action whose
value crosses to another group. Stages are numbered along the model.

    work.py       actions as whole numbers, and back          table.py      names, conditions, who holds which stages
    phases.py     how most schedules are written              verify.py     complete, and free of circles
    loops.py      GPipe, 1F1B, interleaved, ZB-H1, ZB-H2      live.py       how many micro-batches a group holds, when
    vees.py       ZB-V, V-Half, V-Min, DualPipeV              transfers.py  sends and receives
    of_program.py the work lists of a program                 written.py    complete lists, written when read
"""

from meshwright.ir.schedules.live import Moment, moments, moments_of, peak
from meshwright.ir.schedules.of_program import with_work, work_of
from meshwright.ir.schedules.table import (
    CUSTOM,
    SCHEDULES,
    Named,
    check_schedule,
    compute_actions,
    named,
    stage_groups,
    work_lists,
)
from meshwright.ir.schedules.transfers import with_transfers
from meshwright.ir.schedules.verify import Order, running_order, verify_actions, verify_work
from meshwright.ir.schedules.work import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Shape,
    WorkLists,
    action_of,
    decode,
    derived,
    encode,
    parse_action,
)
from meshwright.ir.schedules.written import ActionList

__all__ = [
    "BACKWARD",
    "CUSTOM",
    "FORWARD",
    "INPUT",
    "KINDS",
    "SCHEDULES",
    "WEIGHT",
    "ActionList",
    "Moment",
    "Named",
    "Order",
    "Shape",
    "WorkLists",
    "action_of",
    "check_schedule",
    "compute_actions",
    "decode",
    "derived",
    "encode",
    "moments",
    "moments_of",
    "named",
    "parse_action",
    "peak",
    "running_order",
    "stage_groups",
    "verify_actions",
    "verify_work",
    "with_transfers",
    "with_work",
    "work_lists",
    "work_of",
]
