"""Cases for tests of what makes a plan fit its cluster: a small decoder, or Llama-3.1-8B, on clusters given as text."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meshwright.cost_models.evaluate import Evaluator
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.hardware.text import read_cluster
from meshwright.cost_models.hardware.toml import read
from meshwright.cost_models.prediction import Prediction
from meshwright.cost_models.prices import Prices
from meshwright.cost_models.profile import published
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.frontends.door import load_model
from meshwright.ir.graph.fold import Fold
from meshwright.ir.program.program import Program
from meshwright.ir.target.workload import Workload, stack_named
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import Config, fill, parse
from meshwright.planner.question.pricing import Folds, Setting, target_of
from meshwright.planner.refine.candidate import Candidate
from meshwright.planner.refine.fitted import Fitted, Mixed
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.search.search import Search

ROOT = Path(__file__).parents[2]
LLAMA = str(ROOT / "examples" / "configs" / "llama-3.1-8b")
TINY = str(ROOT / "examples" / "tiny_decoder.toml")
CLUSTERS = ROOT / "examples" / "clusters"
BATCH = 64

SMALL = """
name = "small decoder"
layers = {layers}
hidden = 1024
ffn_hidden = 4096
vocab = 32000
heads = 16
kv_heads = 16
dtype = "{dtype}"
"""


@lru_cache(maxsize=8)
def folds(model: str, seq: int, dtype: str) -> Folds:
    return Folds(load_model(model, dtype=dtype), seq)


class Case:
    """A model on a cluster."""

    def __init__(
        self, model: str, cluster: Cluster, *, seq: int = 4096, batch: int = BATCH, fp16: bool = False
    ) -> None:
        self.cluster, self.batch = cluster, batch
        self.evaluator = Evaluator(cluster, published())
        workload = Workload(
            global_batch=batch, seq=seq, stack=stack_named("megatron"), precision="fp16" if fp16 else "bf16"
        )
        held = folds(model, seq, workload.precision)
        self.setting = Setting(held, cluster.ranks, workload, target_of("any"), self.evaluator)

    @property
    def prices(self) -> Prices:
        return self.evaluator.prices

    def config(self, pins: str, ranks: int = 0) -> Config:
        filled = fill(parse([pins]), ranks=ranks or self.cluster.ranks, global_batch=self.batch)
        return self.setting.settled(filled, self.batch)

    def plan(self, pins: str) -> tuple[Fold, Decisions]:
        config = self.config(pins)
        return self.setting.fold(config), self.setting.decisions(config, self.batch)

    def lowered(self, fold: Fold, plan: Decisions) -> Program:
        return self.setting.lowered(fold, plan, self.batch)

    def price(self, fold: Fold, plan: Decisions) -> Prediction:
        return self.evaluator(self.lowered(fold, plan))

    def bench(self, asked: Asked | None = None, **changes: Any) -> Bench:
        """A bench with nothing priced before, whose plans code is written for."""
        space = {"global_batch": self.batch, "target": self.setting.target, "grants": lambda config: True}
        own = {"setting": self.setting, "prices": self.prices, "space": SimpleNamespace(**space), "found": {}}
        own |= {"writes": lambda *_: True, "upper_s": inf} | changes
        search: Search = SimpleNamespace(**own)  # type: ignore[assignment]
        return Bench(search, asked or Asked())

    def start(self, config: Config) -> Candidate:
        """A configuration as it is."""
        bench, fold = self.bench(), self.setting.fold(config)
        decisions = bench.decisions(config)
        return bench.candidate(decisions, self.price(fold, decisions), fold, config=config, origin=config)

    def given(self, fold: Fold, plan: Decisions) -> Candidate:
        """Any plan on a fold of the model."""
        batch = next(batch for batch, one in self.setting.folds.found.items() if one is fold)
        origin: Config = SimpleNamespace(batch=batch)  # type: ignore[assignment]
        allowed = self.setting.allowed(plan, fold)
        return Candidate(allowed, self.price(fold, allowed), origin=origin)

    def refined(self, config: Config, limit: int = 0) -> list[Candidate]:
        return list(Fitted(limit).neighbours(self.start(config), self.bench()))

    def mixed(self, config: Config) -> list[Candidate]:
        start: Candidate = SimpleNamespace(origin=config)  # type: ignore[assignment]
        return list(Mixed().neighbours(start, self.bench()))


def example(name: str) -> Cluster:
    return read_cluster(str(CLUSTERS / f"{name}.toml"))


def hosts(count: int, rows: list[list[float]] | None = None, *, per_host: int = 4, gpu: str = "A100-80G") -> Cluster:
    """Equal hosts, perhaps with measured rates between them."""
    matrix = f"link_matrix = {rows}\n" if rows else ""
    return read(f'{matrix}[[pool]]\nname = "all"\nhosts = {count}\ngpu = "{gpu}"\ngpus_per_host = {per_host}\n')
