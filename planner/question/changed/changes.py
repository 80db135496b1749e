"""What may be changed of a question, and a change: --what-if inter=800G,global_batch=512.

    text -> Change;   Change, arguments -> the arguments of the changed question

`KEYS` is the table of all that may be changed: what a cluster's text forms say (`cost_models.hardware.changed`), and
the options of the workload and its software, with `_` for `-`. A key of a cluster may name the pool or the link that it
is of: `fast.hosts=32`, `fast-old.gbps=400`. What is changed is asked as if it had been said so in the first place: what
nobody named follows anew, such as the precision of devices that have no bf16.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.cost_models.hardware import changed as hardware
from meshwright.cost_models.hardware.changed import Wish
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import ChangeUnknown, WorkloadImpossible, nearest
from meshwright.ir.files.documents import parse_value
from meshwright.ir.files.schema import Table, faults_of
from meshwright.planner.question.changed.tables import SoftwareKeys, WorkloadKeys
from meshwright.planner.question.pins import NAMES

OPTION = "--what-if"
WORKLOAD: Mapping[str, type[Table]] = {
    key: table for table in (WorkloadKeys, SoftwareKeys) for key in table.model_fields
}
KEYS = (*hardware.KEYS, *WORKLOAD)
"""All that may be changed."""
MEANT: Mapping[str, str] = {
    "intra": "island_gb_per_s", "nvlink": "island_gb_per_s", "memory": "memory_gb", "latency": "latency_us",
    "nodes": "hosts", "gpus": "gpus_per_host", "device": "gpu", "price_per_gpu_hour": "price", "batch": "global_batch",
    "mbs": "micro_batch", "sequence": "seq", "precision": "dtype",
}  # fmt: skip
"""Other words for some of them, each with the one that is taken."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is otherwise in a question: its text, wishes to the cluster, and options of the workload."""

    text: str
    cluster: tuple[Wish, ...]
    workload: Mapping[str, Any]

    def of(self, args: Namespace) -> Namespace:
        """The arguments of the changed question. Of a cluster that is changed by number the reference says how."""
        made = Namespace(**{**vars(args), **self._instead(), **self.workload})
        if self.cluster:
            before: Cluster = args.cluster if isinstance(args.cluster, Cluster) else read_cluster(args.cluster)
            made.cluster = hardware.changed(before, self.cluster)
            made.cluster_reference = self._reference(args.cluster)
        return made

    def _instead(self) -> dict[str, None]:
        """The option that another one takes the place of."""
        return {other: None for key, other in (("stack", "style"), ("style", "stack")) if key in self.workload}

    def _reference(self, before: str | Cluster) -> str | None:
        """What the changed cluster is called; None where the one before has no name."""
        whole = next((wish.text for wish in self.cluster if wish.key == "cluster"), before)
        said = ",".join(wish.place.partition(" ")[2] for wish in self.cluster if wish.key != "cluster")
        return None if isinstance(whole, Cluster) else f"{whole} with {said}" if said else whole


def read_change(text: str) -> Change:
    """Read one changed question."""
    wishes: list[Wish] = []
    workload: dict[str, Any] = {}
    for part in (part.strip() for part in text.split(",")):
        named, equals, value = (one.strip() for one in part.partition("="))
        of, _, key = named.rpartition(".")
        if not equals or not value:
            raise _unread(part, key, "there is no value" if key in KEYS else f"{key!r} cannot be changed")
        if key not in KEYS:
            raise _unread(part, key, f"{key!r} cannot be changed")
        if of and (key in WORKLOAD or key == "cluster"):
            raise _unread(part, key, f"{key!r} is of no pool and no link")
        if (key, of) in ((wish.key, wish.of) for wish in wishes) or key in workload:
            raise ChangeUnknown(place=f"{OPTION} {text}", cause=f"{named} is given twice", fix="give it once")
        if key in WORKLOAD:
            workload[key] = _read(key, value)
        else:
            wishes.append(Wish(key=key, text=value, of=of))
    return Change(text, tuple(wishes), workload)


def _unread(part: str, key: str, cause: str) -> ChangeUnknown:
    """The refusal of a part of a change, with what was probably meant."""
    meant = MEANT.get(key) or nearest(key, KEYS)
    if key in KEYS:
        fix = f"write {key}=…"
    elif key in NAMES and key not in MEANT:
        fix = f"pins are no part of the question's setting: plan explain PLAN --why-not {part}"
    else:
        fix = f"did you mean {meant}?" if meant else f"use {', '.join(KEYS)}"
    return ChangeUnknown(place=f"{OPTION} {part}", cause=cause, fix=fix)


def _read(key: str, text: str) -> Any:
    """The value of an option."""
    found, refused = faults_of(WORKLOAD[key], {key: parse_value(text)})
    for one in refused:
        raise WorkloadImpossible(place=f"{OPTION} {key}={text}", cause=one.cause, fix=one.fix)
    return getattr(found, key)
