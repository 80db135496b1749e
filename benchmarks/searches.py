"""Searches as benchmarks run them: a model, a cluster and a batch; and configurations of a space at random.

Case                       what is asked
opened(case)               the setting and the space of it
drawn(space, random)       configurations of the space, each drawn by halves: a base, then a shape of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, inf
from pathlib import Path
from random import Random

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.frontends.door import load_model
from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.answer.solve import space_of
from meshwright.planner.question.ask import SHIPPED, profile_of
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import Config
from meshwright.planner.question.pricing import Folds, Setting, target_of
from meshwright.planner.search.search import Search
from meshwright.planner.space.baselines import baselines
from meshwright.planner.space.declared import Space

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked: as `plan` takes it. A model is the name of a folder of `examples/configs`, or a reference."""

    model: str
    cluster: str
    batch: int
    seq: int
    stack: str = "torch"
    target: str = "any"
    precision: str = "bf16"
    rolling: bool = False
    """Whether groups roll on into the next step (`meshwright.ir.target.workload.Stack`)."""
    margin: float | None = None
    """Share of memory that is left free; None: as the profile has it."""
    profile: str = SHIPPED
    """The file of a profile, or the shipped one."""

    def __str__(self) -> str:
        rolling = ", rolling" if self.rolling else ""
        margin = "" if self.margin is None else f", {self.margin:.0%} of memory free"
        return f"{self.model} on {self.cluster}, {self.batch} x {self.seq}, {self.stack}{rolling}{margin}"


@dataclass(frozen=True, slots=True)
class Opened:
    """A case, ready to be searched."""

    setting: Setting
    evaluator: Evaluator
    space: Space

    def search(self) -> Search:
        return Search(self.setting, self.evaluator.prices, self.space)


def opened(case: Case, constraints: Constraints | None = None) -> Opened:
    """The setting and the space of a case."""
    cluster = read_cluster(case.cluster)
    profile = profile_of(case.profile, cluster)
    if case.margin is not None:
        profile = replace(profile, memory=replace(profile.memory, margin_share=case.margin))
    stack = replace(stack_named(case.stack), rolling=case.rolling)
    evaluator = Evaluator(cluster, profile)
    setting = Setting(
        folds_of(case.model, case.seq, "fp32" if case.precision == "fp32" else "bf16"),
        cluster.ranks,
        Workload(global_batch=case.batch, seq=case.seq, precision=case.precision, stack=stack),
        target_of(case.target),
        evaluator,
    )
    return Opened(setting, evaluator, space_of(setting, cluster, constraints or Constraints()))


@lru_cache(maxsize=64)
def folds_of(model: str, seq: int, dtype: str) -> Folds:
    """A model at every batch, traced once."""
    named = EXAMPLES / "configs" / model
    return Folds(load_model(str(named) if named.is_dir() else model, dtype=dtype), seq)


def drawn(space: Space, random: Random) -> Iterator[Config]:
    """Configurations of a space without end: a base, a pipeline of it, a storage of that, each as likely as any other
    of its kind. Pipelines with one stage, of which there are few, are drawn as often as all others together."""
    bases = list(space.bases())
    while True:
        pipelines = list(space.pipelines(random.choice(bases)))
        alone = [one for one in pipelines if one.pp == 1]
        if alone and random.random() < 0.5:
            pipelines = alone
        if pipelines:
            pipeline = random.choice(pipelines)
            yield random.choice(list(space.storages(pipeline))).on(pipeline)


def searched(own: Opened) -> Search:
    """The search of a case, run to its end."""
    search = own.search()
    for _ in search.run(baselines(own.space)):
        pass
    return search


def exhausted(own: Opened) -> tuple[dict[Config, float], int]:
    """Every configuration of a space that fits, with its price; and how many were asked for."""
    found, asked = {}, 0
    for base in own.space.bases():
        for config in own.space.shapes(base):
            asked += 1
            try:
                prediction = own.setting.predict(config, own.space.global_batch)
            except MeshwrightError:
                continue
            if prediction.fits:
                found[config] = prediction.step_time_s
    return found, asked


def disagreements(search: Search, everything: Mapping[Config, float]) -> list[str]:
    """What a search says of its space that is not so."""
    least = min(everything.values(), default=inf)
    if search.best is None:
        return [f"nothing was found, and {len(everything)} configurations fit"] if everything else []
    found = []
    if search.lower_s > least * (1 + ROUNDING):
        found.append(f"nothing is faster than {search.lower_s} s, it says: {least} s")
    if search.counts.left == 0 and search.upper_s > least:
        found.append(f"{search.best.config} takes {search.upper_s} s; the best {least} s")
    return found


ROUNDING = 1e-9


def base_of(config: Config) -> Config:
    """The base of a configuration."""
    room = config.ep * (config.etp or 1)
    return replace(
        config,
        pp=1,
        vp=1,
        dp=room // gcd(room, config.tp * config.cp),
        microbatches=1,
        zero=0,
        shard=0,
        regather=True,
        schedule="1f1b",
        split="even",
        stage_blocks=(),
    )
