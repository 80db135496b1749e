"""What the command line asks of a model on a cluster, read and checked before the model is touched.

What nobody named of the target, the stack and the recipe follows from the framework of the model, once it is loaded
(`Ask.loaded`).
"""

from __future__ import annotations

import gc
from argparse import Namespace
from dataclasses import dataclass, field, replace

from meshwright.backends.door import usual_target
from meshwright.calibrate.kept import kept_for, unlike
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.measured.file import load_measured
from meshwright.cost_models.profile import Profile, calibrated, published
from meshwright.ir.errors import PinRepeated, WorkloadImpossible, WorkloadMissing
from meshwright.ir.files.store import Store, usual
from meshwright.ir.frontends.door import Source, read_again
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.capabilities import ANY, Capabilities
from meshwright.ir.target.workload import STACK_OF_STYLE, Workload, stack_named, traced_in
from meshwright.planner.question import pricing
from meshwright.planner.question.constraints import Asked, Constraints
from meshwright.planner.question.constraints import asked as constrained
from meshwright.planner.question.module_pins import OPTIONS, ModulePin, apart
from meshwright.planner.question.objective import check_objective
from meshwright.planner.question.pins import Pins, parse
from meshwright.planner.question.pricing import Folds, Setting, target_of

ASSUMED = "torch-cuda"
"""What is checked before the model is touched, where no target is named."""
USUAL = ("bf16", "fp32")
"""The precisions that are taken where none is asked for, the preferred one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The arguments of a question about a model on a cluster, read and checked before the model is touched."""

    model: str
    cluster_reference: str
    cluster: Cluster
    workload: Workload
    """Where --global-batch is left to the lines of --configs, of one sequence."""
    global_batch: int | None
    target: Capabilities
    pins: Pins
    seed: int
    profile: Profile = field(default_factory=published)
    """The numbers that prices are made of."""
    modules: tuple[ModulePin, ...] = ()
    """What is asked of single modules of what is priced."""
    notes: tuple[str, ...] = ()
    """What was chosen otherwise than usual, and why."""
    unsaid: frozenset[str] = frozenset()
    """Of target, stack and recipe, what nobody named."""
    annotated: Mesh | None = None
    """The mesh that the model's own shardings are of, where these are priced."""
    store: Store | None = None
    """What earlier runs kept."""
    given: Source | None = None
    """The model where it exists already."""

    def loaded(self, known: Setting | None = None) -> tuple[Ask, Setting]:
        """Load the model, which is captured once a batch is asked for; with what its framework decides.

        `known` is a setting of the same model: what was loaded and captured for it is taken, as far as this question
        has the same dtype and length.
        """
        folds = self._folds(known)
        gc.freeze()  # frameworks stay: a collection that walks them takes longer than a configuration
        ask = self._of(folds.source.framework)
        setting = Setting(
            folds,
            ask.cluster.ranks,
            ask.workload,
            ask.target,
            pricing.price_of(ask.cluster, ask.profile),
            modules=ask.modules,
            constraints=Constraints() if self.annotated else Constraints.of(ask.pins),
            annotated=self.annotated,
        )
        return ask, setting

    def _folds(self, known: Setting | None) -> Folds:
        traced, seq = traced_in(self.workload.precision), self.workload.seq
        if known is not None and traced == traced_in(known.workload.precision):
            return known.folds if seq == known.folds.seq else Folds(known.folds.source, seq, self.seed)
        mesh = tuple((axis.name, axis.size) for axis in self.annotated.axes) if self.annotated else ()
        source = self.given.in_dtype(traced) if self.given is not None else None
        source = source or read_again(self.model, dtype=traced, mesh=mesh, store=self.store)
        return Folds(source, seq, self.seed)

    def setting(self) -> Setting:
        """Load the model of a question in which all is said."""
        return self.loaded()[1]

    def _of(self, framework: str) -> Ask:
        """The question with the usual target, stack and recipe of a framework for those that nobody named."""
        usual = usual_target(framework, kinds_of(self.cluster))
        target = target_of(usual) if "target" in self.unsaid else self.target
        workload = self.workload
        if "stack" in self.unsaid:
            style = (target_of(usual) if target is ANY else target).styles[0].name
            workload = replace(workload, stack=stack_named(STACK_OF_STYLE[style]))
            if "recipe" in self.unsaid:
                workload = replace(workload, recipe=recipe_of(target, workload))
        return replace(self, target=target, workload=workload)


def asked(args: Namespace) -> Ask:
    """Read the arguments of a command into an `Ask`."""
    if args.seq is None:
        raise missing("--seq", "4096", "the tokens of one sequence", f"plan {args.verb}")
    plain, modules = apart({"fix": args.fix})
    pins = parse(plain["fix"])
    if args.micro_batch is not None:
        said = pins.given.get("mbs", args.micro_batch)
        if said != args.micro_batch:
            raise PinRepeated(
                place=f"--micro-batch {args.micro_batch}", cause=f"--fix says mbs={said}", fix="give one of them"
            )
        pins = Pins(mbs=args.micro_batch).over(pins)
    target = target_of(args.target or ASSUMED)
    cluster = args.cluster if isinstance(args.cluster, Cluster) else read_cluster(args.cluster)
    precision, notes = precision_of(args.dtype, cluster)
    profile = profile_of(args.profile, cluster)
    profile.check_of(cluster)
    return Ask(
        model=args.model,
        cluster_reference=_reference(args),
        cluster=cluster,
        workload=_workload(args, precision, target),
        global_batch=args.global_batch,
        target=target,
        pins=pins,
        seed=args.seed,
        modules=modules,
        profile=profile,
        notes=(*notes, *said_of(profile, cluster)),
        store=None if getattr(args, "no_cache", False) else usual(),
        unsaid=frozenset(
            name
            for name, said in (("target", args.target), ("stack", args.stack or args.style), ("recipe", args.recipe))
            if said is None
        ),
    )


def read_asked(args: Namespace) -> tuple[Ask, Asked]:
    """Read the arguments of a question for a plan; what contradicts itself is refused before the model is touched."""
    if args.global_batch is None:
        raise missing("--global-batch", "256", "the sequences of one optimizer step", "plan")
    plain, modules = apart({option: getattr(args, option) for option in OPTIONS})
    ask = asked(Namespace(**vars(args) | plain))
    given = parse(plain["fix"])
    request = constrained(given.over(Pins(mbs=args.micro_batch)), plain["allow"], plain["forbid"])
    check_objective(args.objective, ask.cluster)
    return ask, replace(request, pins=request.pins.over(ask.pins), operators=args.operators, modules=modules)


def precision_of(asked: str | None, cluster: Cluster) -> tuple[str, tuple[str, ...]]:
    """The precision as asked for, whatever the devices can; else the first usual one that all of them have a peak for,
    and what is to be said of it."""
    devices = {pool.device.name: pool.device.dtypes for pool in cluster.pools}
    usual = next((one for one in USUAL if all(one in known for known in devices.values())), USUAL[0])
    if asked is not None or usual == USUAL[0]:
        return asked or usual, ()
    without = ", ".join(name for name, known in devices.items() if USUAL[0] not in known)
    return usual, (f"precision {usual} instead of {USUAL[0]}, which {without} has no matrix peak for",)


def kinds_of(cluster: Cluster) -> tuple[str, ...]:
    """The devices of the table that those of the cluster are, or are like."""
    return tuple(pool.device.like or pool.device.name for pool in cluster.pools)


IN_PYTHON = "Python"
"""What a cluster is called that has no name on the command line."""
SHIPPED = "published"
"""What --profile says for the shipped prices."""


def profile_of(path: str | None, cluster: Cluster) -> Profile:
    """The profile of a file. None: what was measured of this machine, where ranks are devices of its kind; else the
    shipped one."""
    if path is None:
        kept = kept_for(kinds_of(cluster))
        return published() if kept is None else calibrated(load_measured(kept))
    return published() if path == SHIPPED else calibrated(load_measured(path))


def said_of(profile: Profile, cluster: Cluster) -> tuple[str, ...]:
    """What is to be said of prices by a profile: what was measured, when, and what is priced by it nevertheless."""
    found = profile.measured
    if found is None:
        return ()
    forced = ", while something else was running" if found.forced else ""
    told = [f"prices are of profile {found.name}, measured {found.made}{forced}: {found.identity}"]
    if another := unlike(found.identity):
        told.append(f"that was measured elsewhere: {another}")
    if not found.spreads:
        told.append("no whole steps were measured there: intervals are those of the shipped prices")
    for pool in cluster.pools:
        ranks = found.with_ranks(pool.gpus_per_host).ranks
        if pool.device.name == found.identity.device and ranks != pool.gpus_per_host:
            told.append(f"a host of pool {pool.name} has {pool.gpus_per_host} ranks, and {ranks} were measured at once")
    return tuple(told)


def recipe_of(target: Capabilities, workload: Workload) -> str:
    """How parameters and states are kept where nobody says it: all in fp32 for fp32; as the stack does (empty), unless
    the target's code has other ways alone."""
    if traced_in(workload.precision) == "fp32":
        return "fp32"
    written = next((line.recipes for line in target.precisions if line.name == workload.precision), ())
    return "" if not written or workload.stack.recipe in written else written[0]


def _reference(args: Namespace) -> str:
    """What the cluster is called: as the command line has it, or as whoever made it says."""
    if isinstance(args.cluster, str):
        return args.cluster
    return getattr(args, "cluster_reference", None) or IN_PYTHON


def missing(option: str, example: str, what: str, place: str = "plan estimate") -> WorkloadMissing:
    """The error for a workload that lacks a required value."""
    return WorkloadMissing(place=place, cause=f"{option} is missing", fix=f"give {what}: {option} {example}")


def _workload(args: Namespace, precision: str, target: Capabilities) -> Workload:
    stack = args.stack or STACK_OF_STYLE[args.style or target.styles[0].name]
    workload = Workload(
        global_batch=args.global_batch or 1,
        seq=args.seq,
        precision=precision,
        optimizer=args.optimizer,
        stack=stack_named(stack),
        recipe=args.recipe or ("fp32" if traced_in(precision) == "fp32" else ""),
        imbalance=args.imbalance,
    )
    if args.style not in (None, workload.stack.style):
        raise WorkloadImpossible(
            place="workload, style",
            cause=f"stack {stack} runs {workload.stack.style}, not {args.style}",
            fix=f"give one of them, or --stack {STACK_OF_STYLE[args.style]}",
        )
    return workload
