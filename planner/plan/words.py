"""Words for a plan: its configuration, what is proved of it, what numbers are worth, what a step's time goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from meshwright.cost_models.hardware.quantity import Kind
from meshwright.cost_models.prediction import SHARES
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.names import CONTEXTS
from meshwright.ir.schedules import CUSTOM
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import nbytes, percent, seconds
from meshwright.planner.question.pins import Config, word

SHARED = {"optimizer": "optimizer states", "grads": "gradients", "params": "parameters"}
WAITING = {
    "optimizer": "the optimizer's state; the host makes the step",
    "activations": "what blocks keep for backward",
}
RECOMPUTED = {"none": "nothing", "full": "every block", "selective": "the core of attention",
              "selective_op": "all but attention and every other product"}  # fmt: skip


def gap_text(plan: Plan) -> str:
    """What is proved, in words."""
    bounds = plan.bounds
    if not bounds.proved and bounds.complete and bounds.only.get("schedule") == (CUSTOM,):
        return "unknown: bounds are of schedules that have names"
    if not bounds.proved:
        return "unknown: the search was cut short before anything could be proved"
    if bounds.gap <= 0:
        return f"0 %: nothing that was searched {BETTER[bounds.objective]}{_free(plan)}"
    least = amount(bounds.objective, bounds.lower)
    return f"{percent(bounds.gap)}: nothing that was searched is below {least}{_free(plan)}"


def operator_gap_text(plan: Plan) -> str:
    """What is proved of plans without names, in words."""
    least, more, step_s = plan.bounds.operators_s, plan.bounds.more_axes_s, plan.prediction.step_time_s
    found = f"{percent(1 - least / step_s)}: whatever one or two mesh axes do in operators, no plan takes less than"
    if more >= least:
        return f"{found} {seconds(least)}"
    return f"{found} {seconds(least)} ({seconds(more) if more else 'nothing is known'} with more axes)"


def _free(plan: Plan) -> str:
    """The space that the proof is about, where something is asked of modules."""
    return ", the pins of modules left out" if plan.bounds.modules else ""


BETTER = {"time": "is faster", "cost": "costs less", "memory": "needs less memory"}


def amount(objective: str, value: float) -> str:
    """A figure of the objective with its unit; money has none."""
    if objective == "cost":
        return f"{value:.4g} a step"
    return nbytes(value) if objective == "memory" else seconds(value)


def in_words(config: Config, shares: Sequence[int] = ()) -> list[str]:
    """The meaning of a configuration, a line per feature; `shares` are those of the batch on every copy, if they
    differ."""
    found = []
    if shares:
        sequences = [share * config.batch // sum(shares) for share in shares]
        each = ", ".join(f"{len(list(run))} x {size}" for size, run in groupby(sequences))
        found.append(f"data parallel {config.dp}: of {config.batch} sequences of a micro-batch copies take {each}")
    elif config.dp > 1:
        found.append(
            f"data parallel {config.dp}: {_several(config.mbs * config.microbatches, 'sequence')} a step on every copy"
        )
    if config.tp > 1:
        beside = ", activations between blocks split along the sequence" if config.sp else ""
        found.append(f"tensor parallel {config.tp}: heads, widths and vocabulary are split{beside}")
    if config.cp > 1:
        zigzag = ", zigzag" if config.zigzag else ""
        attention = CONTEXTS[config.context].said
        found.append(f"context parallel {config.cp}: sequences are split, attention {attention}{zigzag}")
    if config.ep > 1:
        inside = f", each split over {config.etp} ranks" if config.etp > 1 else ""
        found.append(f"expert parallel {config.ep}: experts are apart{inside}")
    if config.pp > 1:
        virtual = f", {config.vp} stages for each group of ranks" if config.vp > 1 else ""
        layers = "+".join(map(str, config.stage_blocks)) or config.split
        found.append(f"pipeline parallel {config.pp}: schedule {config.schedule}{virtual}, layers shared {layers}")
    over = f" over {config.shard} ranks each" if config.shard else ""
    again = "" if config.regather or not config.sharding.params else ", parameters kept from forward to backward"
    *more, last = [said for kind, said in SHARED.items() if kind in config.sharding.kinds] or ["nothing"]
    shared = f"ZeRO-{config.zero}: {' and '.join(filter(None, (', '.join(more), last)))} are shared out{over}{again}"
    whole = "no ZeRO: everything is on every copy" if config.dp * config.cp > 1 else "no copies to share"
    found.append(shared if config.zero else whole)
    mean = " on average" if shares else ""
    found.append(f"{_several(config.microbatches, 'micro-batch', 'es')} of {_several(config.mbs, 'sequence')}{mean}")
    found.append(f"computed again in the backward pass: {_again(config)}")
    found += [f"in the host's memory: {WAITING[kind]}" for kind in Offload.parse(config.offload).kinds]
    return found


def _several(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{plural if number > 1 else ''}"


def _again(config: Config) -> str:
    return RECOMPUTED.get(config.recompute, config.recompute)


def short(config: Config) -> str:
    """A configuration in short: pins that mean the same, without those that go without saying."""
    usual: dict[str, object] = {"pp": 1, "tp": 1, "recompute": "none"}
    usual |= {"zero": 0} if config.dp * config.cp == 1 else {}
    usual |= {"schedule": config.schedule} if config.pp == 1 else {}
    usual |= {"microbatches": config.microbatches}  # they follow from dp and mbs
    words = str(config).split(",")
    return ",".join(text for text in words if text not in {f"{name}={word(value)}" for name, value in usual.items()})


def worth(kind: Kind) -> str:
    """The reliability of numbers that rest on this provenance."""
    return kind if kind == "measured" else f"no better than {kind} (uncalibrated: not measured on this cluster)"


def rough(share: float) -> str:
    """A share in whole percent, and never nothing where there is something."""
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def more(slower: float) -> str:
    """How much longer another plan takes, from its time over that of the plan."""
    change = 100 * (slower - 1)
    return f"{change:+,.0f} %" if abs(change) >= 100 else f"{change:+.1f} %"


def share_name(name: str) -> str:
    """The name of a share of the step, as people who run Megatron know it."""
    return "param gather" if name == "publish" else name


_SHARE = re.compile(rf"(?<= )(?:{'|'.join(SHARES)})(?=[,;]|$)")


def told(lost: str) -> str:
    """Why a plan lost, with the names of shares as people know them."""
    return _SHARE.sub(lambda share: share_name(share[0]), lost)


GOES_TO: Mapping[str, str] = {
    "matmul": "matrix products",
    "attention": "attention",
    "memory-bound": "norms, activations, casts: bound by memory",
    "launch": "starting kernels",
    "recompute": "forward passes that run again",
    "tensor": "communication of tensor parallelism",
    "context": "communication of context parallelism",
    "expert": "communication of expert parallelism",
    "parameters": "gathers of sharded parameters",
    "transfers": "sends between stages of the pipeline",
    "bubble": "ranks that wait for others",
    "gradients": "reduction of gradients",
    "optimizer": "the optimizer's step",
    "publish": "gathers of updated parameters",
    "host": "waiting for the host",
}
"""What a step's time goes to; of communication, what nothing hides."""


def rows_alike(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Rows by number; equal neighbours become one, such as 1-6."""
    found: list[tuple[int, int, tuple[str, ...]]] = []
    for at, row in enumerate(rows):
        if found and found[-1][2] == row:
            found[-1] = (found[-1][0], at, row)
        else:
            found.append((at, at, row))
    return [(ranged(first, last), row) for first, last, row in found]


def ranged(first: int, last: int) -> str:
    """Numbers from the one to the other."""
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"
