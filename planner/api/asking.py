"""Questions in Python: `plan` and `estimate`, with the arguments of the verbs of these names.

model, cluster, workload, what is asked for -> Ask, Asked -> solve -> Plan
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.ir.errors import NoPlanFits
from meshwright.planner.answer.estimate import Estimate
from meshwright.planner.answer.estimate import estimate as estimated
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.relax import Nothing, relax
from meshwright.planner.answer.remedies import refused
from meshwright.planner.answer.report import ALTERNATIVES, plan_of
from meshwright.planner.answer.solve import Stop, solve
from meshwright.planner.api.model import named
from meshwright.planner.exchange.taken import Taken
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import nbytes
from meshwright.planner.question.ask import asked, missing, read_asked
from meshwright.planner.question.pins import fill, word
from meshwright.planner.search.phases import Told, untold

Wish = str | Iterable[str] | Mapping[str, Any] | None
"""Pins or constraints: as --fix, --allow and --forbid take them, several of these, or values by name."""


def plan(
    model: Any,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int,
    micro_batch: int | None = None,
    dtype: str | None = None,
    optimizer: str = "adamw",
    stack: str | None = None,
    style: str | None = None,
    recipe: str | None = None,
    imbalance: float = 1.0,
    target: str | None = None,
    profile: str | PathLike[str] | None = None,
    fix: Wish = None,
    allow: Wish = None,
    forbid: Wish = None,
    objective: str = "time",
    time_limit: float | None = None,
    operators: bool = False,
    top: int = ALTERNATIVES,
    seed: int = 0,
    cache: bool = True,
    told: Told = untold,
    **hooks: Any,
) -> Plan:
    """Find the fastest plan that fits, as `plan MODEL` does.

    `model` is a reference as on the command line, a function that makes a model, or an existing module, whose
    `example_inputs`, `loss`, `dims` and `optimizer` may be given as keywords; `cluster` a description as on the command
    line, or a `Cluster`. `told` is called with every phase, and with the search after every piece of work. Raises
    `NoPlanFits` where nothing fits, and other errors of ours where the question cannot be asked.
    """
    given: dict[str, Any] = {
        "micro_batch": micro_batch, "dtype": dtype, "optimizer": optimizer, "stack": stack, "style": style,
        "recipe": recipe, "imbalance": imbalance, "target": target, "seed": seed, "no_cache": not cache,
    }  # fmt: skip
    wishes: dict[str, Any] = {"fix": words(fix), "allow": words(allow), "forbid": words(forbid)}
    args = _arguments(model, cluster, profile, hooks, global_batch=global_batch, seq=seq, **given, **wishes)
    args.objective, args.operators = objective, operators
    ask, request = read_asked(args)
    ask, setting = replace(ask, given=args.given).loaded()
    question = Question(ask=ask, setting=setting, asked=request, objective=objective, top=top)
    if (known := question.known()) is not None:
        return known
    stop = Stop(time_limit)
    solved = solve(ask, setting, request, stop, told, objective)
    if solved.best is None:
        raise refused(solved, time_limit) or _lacking(relax(solved))
    found = plan_of(solved, top)
    if time_limit is None:
        question.keep(found)
    return found


def estimate(
    model: Any,
    cluster: str | Cluster,
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    fix: Wish = None,
    settings: str | PathLike[str] | None = None,
    settings_of: str | None = None,
    micro_batch: int | None = None,
    dtype: str | None = None,
    optimizer: str = "adamw",
    stack: str | None = None,
    style: str | None = None,
    recipe: str | None = None,
    imbalance: float = 1.0,
    target: str = "any",
    profile: str | PathLike[str] | None = None,
    seed: int = 0,
    cache: bool = True,
    **hooks: Any,
) -> Estimate:
    """Price one configuration, as `plan estimate` does; `fix` has what it is, and what it leaves open is filled in.

    `settings` is a file with the settings of another framework, which says what is not said here; `settings_of` says
    whose it is. Without one, `global_batch` and `seq` must be given.
    """
    given: dict[str, Any] = {
        "micro_batch": micro_batch, "dtype": dtype, "optimizer": optimizer, "stack": stack, "style": style,
        "recipe": recipe, "imbalance": imbalance, "target": target, "seed": seed, "no_cache": not cache,
    }  # fmt: skip
    args = _arguments(
        model, cluster, profile, hooks, global_batch=global_batch, seq=seq, fix=words(fix), verb="estimate",
        from_format=settings_of, **given,
    )  # fmt: skip
    taken = Taken.of(args, fspath(settings)) if settings is not None else None
    ask = asked(taken.args if taken else args)
    if ask.global_batch is None:
        raise missing("global_batch", "256", "the sequences of one optimizer step", "estimate")
    batch, pinned = ask.global_batch, ask.pins
    ask = taken.asked(ask) if taken else ask
    config = fill(ask.pins, ranks=ask.cluster.ranks, global_batch=batch)
    ask, setting = replace(ask, given=args.given).loaded()
    if taken:
        ask, setting, config = taken.placed(ask, setting, pinned)
    return estimated(ask, setting, setting.settled(config, batch))


def _arguments(
    model: Any,
    cluster: str | Cluster,
    profile: str | PathLike[str] | None,
    hooks: Mapping[str, Any],
    *,
    verb: str = "plan",
    **given: Any,
) -> Namespace:
    """What the command line would have read, and the model where it exists already."""
    reference, source = named(model, hooks)
    measured = None if profile is None else fspath(profile)
    return Namespace(model=reference, given=source, cluster=cluster, profile=measured, verb=verb, **given)


def words(wish: Wish) -> list[str]:
    """Pins or constraints as words of the command line."""
    if wish is None:
        return []
    if isinstance(wish, Mapping):
        return [f"{name}={'|'.join(map(word, _several(values)))}" for name, values in wish.items()]
    return [wish] if isinstance(wish, str) else list(wish)


def _several(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple | set | range) else [values]


def _lacking(nothing: Nothing) -> NoPlanFits:
    """The error where nothing fits: by how much at least, and what would help."""
    stage, lack = nothing.short
    nearest = nothing.nearest
    ways = "; ".join(one.what for one in nothing.relaxations)
    return NoPlanFits(
        place=f"plan, {nothing.solved.ask.model}",
        cause="nothing fits"
        if nearest is None
        else f"nothing fits: what lacks least is short {nbytes(lack)} on stage {stage} ({nearest.config})",
        fix=f"what would help, each tried: {ways}" if ways else "use more devices, or a smaller model",
    )
