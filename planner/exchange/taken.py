"""A question that takes what a file of settings says: its workload, its software, its configuration.

    --from FILE    estimate: the file is what is priced
    --beat FILE    plan: the file is what a plan is held against; the plan is for the same workload and software

What the command line says takes the place of what the file says, name by name. Before the model is loaded a file says
all but how layers are shared out, for which their number is needed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.names.check import extents
from meshwright.ir.target.workload import STACKS, Workload, traced_in
from meshwright.planner.exchange.files import Settings, read_settings
from meshwright.planner.exchange.run import Room, pins_of
from meshwright.planner.exchange.target import meant
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import KNOBS, Config, Pins, fill
from meshwright.planner.question.pricing import LEAST_BATCH, Setting, layers_of

OF_WORKLOAD = {"global_batch": "global_batch", "seq": "seq", "precision": "dtype", "optimizer": "optimizer"}
"""Fields of a run, and the options that say them."""
OPTIMIZER = "adamw"
"""What the command line says where it says nothing."""


def room_of(cluster: Cluster, setting: Setting | None = None) -> Room:
    """The room of a cluster, and of a model once it is loaded."""
    bare = Room(
        ranks=cluster.ranks,
        per_host=min(pool.gpus_per_host for pool in cluster.pools),
        per_slice=min(pool.gpus_per_host * pool.hosts_per_island for pool in cluster.pools),
        experts=True,
    )
    if setting is None:
        return bare
    fold = setting.folds.first(LEAST_BATCH).fold
    return replace(bare, layers=layers_of(fold), experts=bool(extents(fold, "experts")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A file of settings beside a question.

    - `stack` and `recipe` are those of the file that the command line leaves to it.
    """

    settings: Settings
    args: Namespace
    """The arguments with what the file says of the workload."""
    named: bool
    """Whether the command line names the software."""
    batched: bool
    """Whether the command line names the batch: how many micro-batches there are follows from it."""

    @staticmethod
    def of(args: Namespace, path: str) -> Taken:
        """Read a file beside the arguments of a verb."""
        settings = read_settings(path, args.from_format)
        cluster = args.cluster if isinstance(args.cluster, Cluster) else read_cluster(args.cluster)
        found = meant(settings.target, settings.given, room_of(cluster))
        batch = found.get("global_batch")
        if batch is None and {"mbs", "microbatches", "dp"} <= found.keys():
            found = found | {"global_batch": found["mbs"] * found["microbatches"] * found["dp"]}
        given = vars(args).copy()
        for field, option in OF_WORKLOAD.items():
            unsaid = given[option] is None or (option == "optimizer" and given[option] == OPTIMIZER)
            if unsaid and found.get(field) is not None:
                given[option] = found[field]
        named = args.stack is not None or args.style is not None
        return Taken(settings=settings, args=Namespace(**given), named=named, batched=args.global_batch is not None)

    def found(self, room: Room) -> Mapping[str, Any]:
        return meant(self.settings.target, self.settings.given, room)

    def with_software(self, ask: Ask) -> Ask:
        """The question with the file's software, where the command line names none."""
        found = self.found(room_of(ask.cluster))
        workload, unsaid = ask.workload, set(ask.unsaid)
        if not self.named:
            workload = replace(workload, stack=found["stack"])
            unsaid.discard("stack")
            if self.args.recipe is None and traced_in(workload.precision) != "fp32":
                workload = replace(workload, recipe=_recipe(found["recipe"], workload))
                unsaid.discard("recipe")
        return replace(ask, workload=workload, unsaid=frozenset(unsaid))

    def for_plan(self, ask: Ask) -> Ask:
        """The question of a plan for the file's software, or the nearest that has a name: plans are kept by it."""
        own = self.with_software(ask)
        if own.workload.stack.name in STACKS:
            return own
        usual = STACKS[self.settings.target.stacks[0]]
        note = f"the plan is for stack {usual.name}; the file has other overlaps"
        return replace(own, workload=replace(own.workload, stack=usual), notes=(*own.notes, note))

    def pins(self, room: Room, over: Pins | None = None) -> Pins:
        """What the file pins, under what is pinned `over` it, and what follows from that."""
        over = over or Pins()
        given = over.to_json()
        gone = {name for pin in given for name in KNOBS[pin].refills.split()} - set(given)
        gone |= {"microbatches"} if self.batched else set()
        under = {name: value for name, value in pins_of(self.found(room), room).given.items() if name not in gone}
        return over.over(Pins(**under))

    def asked(self, ask: Ask) -> Ask:
        """The question whose configuration is the file's, as far as it is known before the model is."""
        ask = self.with_software(ask)
        pins = self.pins(room_of(ask.cluster), ask.pins)
        if self.args.micro_batch is not None:
            pins = Pins(mbs=self.args.micro_batch).over(pins)
        told = f"settings of {self.settings.given.place}, as {self.settings.target.called} takes them"
        return replace(ask, pins=pins, notes=(*ask.notes, told, *self.settings.notes()))

    def placed(self, ask: Ask, setting: Setting, over: Pins) -> tuple[Ask, Setting, Config]:
        """The same once the model is loaded, with the configuration that it means, under what is pinned `over` it."""
        room = room_of(ask.cluster, setting)
        pins = self.pins(room, over)
        ask = replace(ask, pins=pins, notes=(*ask.notes, *self.found(room)["notes"]))
        batch, place = setting.workload.global_batch, self.settings.given.place
        config = fill(pins, ranks=room.ranks, global_batch=batch, place=place)
        return ask, replace(setting, constraints=Constraints.of(pins)), config


def _recipe(name: str, workload: Workload) -> str:
    return "" if name == workload.stack.recipe else name
