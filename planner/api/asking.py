"""Questions in Python: `plan`, `what_if`, `scale` and `estimate`, with the arguments of the command line.

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
from meshwright.planner.answer.changed.scale import Scaling, read_sized, scaled
from meshwright.planner.answer.changed.what_if import WhatIf, read_changed, what_ifs
from meshwright.planner.answer.estimate import Estimate
from meshwright.planner.answer.estimate import estimate as estimated
from meshwright.planner.answer.kept import Question
from meshwright.planner.answer.relax import Nothing, relax
from meshwright.planner.answer.remedies import refused
from meshwright.planner.answer.report import ALTERNATIVES
from meshwright.planner.answer.solve import Solved, Stop
from meshwright.planner.api.model import named
from meshwright.planner.exchange.taken import Taken
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import nbytes
from meshwright.planner.question.ask import asked, missing, read_asked
from meshwright.planner.question.changed.sizes import STRONG, read_sizes
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
    args = _question(
        model, cluster, told=told, global_batch=global_batch, seq=seq, micro_batch=micro_batch, dtype=dtype,
        optimizer=optimizer, stack=stack, style=style, recipe=recipe, imbalance=imbalance, target=target,
        profile=profile, fix=fix, allow=allow, forbid=forbid, objective=objective, time_limit=time_limit,
        operators=operators, top=top, seed=seed, cache=cache, **hooks,
    )  # fmt: skip
    found = _answer(args, _loaded(args), Stop())
    if isinstance(found, Solved):
        raise refused(found, time_limit) or _lacking(relax(found))
    return found


def what_if(model: Any, cluster: str | Cluster, changes: str | Iterable[str], **question: Any) -> tuple[WhatIf, ...]:
    """Answer a question, and the same question with each of these changes, as `plan MODEL --what-if` does.

    A change is `KEY=VALUE,…`, as in `inter=800G,global_batch=512`; `question` has the keywords of `plan`. Each answer
    has its `plan` and the answer `before`, which are None where nothing fits, and `kept`: what the plan before costs
    there.
    """
    args = _question(model, cluster, **usual() | question)
    changed = read_changed(args, [changes] if isinstance(changes, str) else list(changes))
    stop, asked = Stop(), _loaded(args)
    found = _answer(args, asked, stop)
    before = found if isinstance(found, Plan) else None
    return tuple(what_ifs(args, changed, before, asked.setting, stop, args.told))


def scale(
    model: Any, cluster: str | Cluster, sizes: str | Iterable[int], *, scaling: str = STRONG, **question: Any
) -> Scaling:
    """Answer a question on several numbers of devices, as `plan MODEL --scale` does.

    `sizes` are a range that doubles, as in "64..4096", or numbers; `scaling` is `strong` (the same global batch) or
    `weak` (as many sequences for each device as on `cluster`); `question` has the keywords of `plan`.
    """
    args = _question(model, cluster, **usual() | question)
    text = sizes if isinstance(sizes, str) else ",".join(map(str, sizes))
    found = scaled(args, read_sized(args, read_sizes(text), scaling), Stop(), args.told)
    return Scaling(scaling=scaling, sizes=tuple(found))


def usual() -> dict[str, Any]:
    """What `plan` takes where nobody says otherwise; what has no such value is missing."""
    return {"global_batch": None, "seq": None, **(plan.__kwdefaults__ or {})}


def _question(
    model: Any,
    cluster: str | Cluster,
    *,
    profile: str | PathLike[str] | None,
    fix: Wish,
    allow: Wish,
    forbid: Wish,
    cache: bool,
    **given: Any,
) -> Namespace:
    """The arguments of a question for a plan; what is no keyword of `plan` is a hook of the model."""
    hooks = {name: given.pop(name) for name in list(given) if name not in usual()}
    wishes: dict[str, Any] = {"fix": words(fix), "allow": words(allow), "forbid": words(forbid)}
    return _arguments(model, cluster, profile, hooks, no_cache=not cache, **given, **wishes)


def _loaded(args: Namespace) -> Question:
    """The question, with its model loaded."""
    ask, request = read_asked(args)
    return Question.of(args, *replace(ask, given=args.given).loaded(), request)


def _answer(args: Namespace, question: Question, stop: Stop) -> Plan | Solved:
    stop.begin(args.time_limit)
    return question.answer(stop, args.told, limited=args.time_limit is not None)


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
