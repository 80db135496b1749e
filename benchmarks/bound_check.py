"""Bounds beside prices, on configurations drawn from the declared space at random.

    python -m benchmarks.bound_check --each 500
    python -m benchmarks.bound_check --published
    python -m benchmarks.bound_check --profile profile.json

A search proves its answer by bounds (`planner.bounds`): none may exceed what the evaluator says. For
each configuration of a sample that no search has touched, these must hold, weakest first:

    least <= pipeline <= step <= run <= price       lacks <= peak - capacity, at the fullest stage
    coarse, kernels, parts <= price                 of what fits: these bounds are about nothing else
    its work, kept <= the base's                    one micro-batch, before shapes: the parts of coarse bounds

`--published` holds the configurations of the table of runs against them, as people ran these, with uneven stages and
whatever else no search draws; what bounds are not about (values on the host, some layers of a stage computed again) is
counted and left out.

What is printed: how many were held against their prices, how many violate, and how tight each bound is.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from random import Random
from statistics import quantiles

from benchmarks.beat_published import asked, by_question, runs_in
from benchmarks.price import Pricer, degrees_of
from benchmarks.runs import Run, readings, zero_stages
from benchmarks.searches import EXAMPLES, Case, Opened, base_of, disagreements, drawn, exhausted, opened, searched
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import MeshwrightError
from meshwright.planner.bounds.bases import priced
from meshwright.planner.bounds.bounds import Bounds
from meshwright.planner.bounds.coarse import CoarseBounds
from meshwright.planner.bounds.common import Common
from meshwright.planner.question.pins import SHARED, Config
from meshwright.planner.question.pricing import LEAST_BATCH
from meshwright.planner.refine.improvement import Bench
from meshwright.planner.refine.operators.bodies import Built
from meshwright.planner.refine.operators.bounds import Arrangement, arrangements, key_of, no_less, parts_s
from meshwright.planner.refine.operators.operators import FEW_AXES
from meshwright.planner.space.declared import NOWHERE, Storage

CASES = (
    Case(model="gpt2", cluster="1x4xA100", batch=16, seq=1024),
    Case(model="gpt2", cluster="cpu:4", batch=8, seq=1024, precision="fp32"),
    Case(model="gpt2", cluster="2x8xA100", batch=64, seq=1024, stack="megatron-2021"),
    Case(model="llama-3.1-8b", cluster="8x8xH100", batch=128, seq=8192),
    Case(model="llama-3.1-8b", cluster="2x8xA100", batch=64, seq=4096, stack="megatron"),
    Case(model="llama-3.1-8b", cluster="4x8xH100", batch=64, seq=8192, stack="jax"),
    Case(model="llama-3.1-8b", cluster="4x8xA100", batch=64, seq=4096, stack="megatron", rolling=True),
    Case(model="llama-3.1-70b", cluster="16x8xH100", batch=256, seq=8192, stack="megatron"),
    Case(model="mixtral-8x7b", cluster="8x8xH100", batch=128, seq=4096, stack="megatron"),
    Case(model="mixtral-8x7b", cluster="4x8xH800", batch=96, seq=4096),
    Case(model="deepseek-v3", cluster="64x8xH800", batch=1024, seq=4096, stack="megatron"),
    Case(model="gemma-3-1b", cluster="1x8xL40S", batch=32, seq=2048),
    Case(model="gemma-3-27b", cluster="4x8xH100", batch=64, seq=8192, stack="torch-compile"),
    Case(model="llama-3.1-8b", cluster="examples/clusters/two_pools.toml", batch=384, seq=4096, stack="megatron"),
)
"""Dense models and mixtures of experts, windows, every style of execution, GPUs, CPUs and unlike pools."""

SMALL = tuple(
    Case(model=str(EXAMPLES / model), cluster=cluster, batch=8, seq=4096, stack=stack, margin=margin)
    for model in ("llama.py:tiny", "tiny_decoder.toml")
    for cluster in ("1x4xA100", "2x2xH100,inter=100G", "1x2xL40S", "1x3xA100")
    for stack in ("torch", "megatron")
    for margin in (None, 0.985)
)
"""Few blocks on few devices, with room and without."""

BOUNDS = ("floor", "least", "pipeline", "step", "run")
OF_WHAT_FITS = ("floor", "kernels", "parts")
"""Bounds that leave out what has no room; `kernels` and `parts` are those of all plans of operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A configuration, its bounds and its price."""

    config: str
    price_s: float
    bounds_s: dict[str, float]
    shares: dict[str, float]
    """Of the base's own work, and of what it keeps, how much coarse bounds say."""
    lacks_bytes: float
    """By how much it does not fit by the bound, and by the evaluator; negative where it fits."""
    over_bytes: float
    capacity_bytes: float

    @property
    def violations(self) -> list[str]:
        """What should not be."""
        fits = self.over_bytes <= 0
        known = {name: bound for name, bound in self.bounds_s.items() if fits or name not in OF_WHAT_FITS}
        found = [f"{name} {bound} > {self.price_s} s" for name, bound in known.items() if bound > self.price_s]
        steps = [self.bounds_s[name] for name in BOUNDS[1:]]
        if any(one > other * (1 + ROUNDING) for one, other in pairwise(steps)):
            found.append(f"bounds do not grow: {steps}")
        found += [f"floor of {name} is {share} of it" for name, share in self.shares.items() if share > 1]
        if self.lacks_bytes > self.over_bytes:
            found.append(f"lacks {self.lacks_bytes / 1e9} > {self.over_bytes / 1e9} GB")
        return found


ROUNDING = 1e-12
"""Relative, of sums in different orders."""


@dataclass(slots=True)
class Tally:
    """What a case came to."""

    case: str
    checked: list[Checked] = field(default_factory=list)
    refused: int = 0
    outside: int = 0

    @property
    def violations(self) -> list[str]:
        return [f"{self.case}: {one.config}: {what}" for one in self.checked for what in one.violations]

    def tightness(self, name: str) -> list[float]:
        """The bound as a share of the price, or of the bytes of the fullest stage; for coarse bounds, of what fits."""
        if name == "bytes":
            return [
                (one.capacity_bytes + one.lacks_bytes) / (one.capacity_bytes + one.over_bytes) for one in self.checked
            ]
        return [
            one.bounds_s[name] / one.price_s for one in self.checked if name not in OF_WHAT_FITS or one.over_bytes <= 0
        ]


class Checker:
    """Holds configurations of one case against their prices; what they share is kept."""

    def __init__(self, own: Opened) -> None:
        self.own = own
        self.common = Common(own.setting, own.evaluator.prices, own.setting.folds.at(LEAST_BATCH))
        self.coarse = CoarseBounds(self.common, own.space)
        self._bounds: dict[Config, Bounds] = {}
        self._parts: dict[tuple[object, ...], float] = {}

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.own.search())

    @cached_property
    def arrangements(self) -> Mapping[tuple[object, ...], Arrangement]:
        """All arrangements of the space."""
        return {key_of(one.config): one for one in arrangements(self.bench)}

    def bounds(self, config: Config) -> Bounds:
        base = base_of(config)
        if base not in self._bounds:
            self._bounds[base] = Bounds(self.common, priced(self.own.setting, self.common.prices, base))
        return self._bounds[base]

    def floor_s(self, config: Config) -> float:
        """CoarseBounds are about schedules of the space, which leaves out those that no target runs with so few
        micro-batches."""
        if (config.schedule, config.vp) not in self.own.space.schedules(config.pp, config.microbatches):
            return 0.0
        return max(self.coarse.bound_s(base_of(config), fine=fine) for fine in (False, True))

    def kernels_s(self, config: Config) -> float:
        """The bound of all plans of operators, for the same schedules."""
        known = (config.schedule, config.vp) in self.own.space.schedules(config.pp, config.microbatches)
        return self.coarse.operators_s(config) if known else 0.0

    def parts_s(self, config: Config) -> float:
        """The bound of all plans of operators by their parts: those of the arrangement itself, and of the one on its
        mesh with the fewest micro-batches, of which nothing is computed again."""
        known = self.arrangements.get(key_of(config))
        if known is None or known.axes > FEW_AXES or self.bench.cluster.heterogeneous:
            return 0.0
        alike = [one.config for one in self.arrangements.values() if no_less(known.config, one.config)]
        fewest = min(alike, key=lambda one: (one.recompute != "none", one.microbatches))
        return max(self._at_least_s(config, one) for one in (fewest, known.config))

    def _at_least_s(self, config: Config, one: Config) -> float:
        key = key_of(one)
        if key not in self._parts:
            self._parts[key] = one.microbatches * parts_s(one, self.bench, Built())
        known = (config.schedule, config.vp) in self.own.space.schedules(config.pp, config.microbatches)
        return self.coarse.operators_s(config, self._parts[key] / config.microbatches) if known else 0.0

    def shares(self, base: Config, bounds: Bounds) -> dict[str, float]:
        """Of what a base does and keeps, how much the coarse or the fine floor says."""
        sizes, calls = {base.mbs, self.own.space.most_sequences}, self.common.calls
        by_body = [self.coarse.kept_bytes(base, size) for size in sizes]
        least = [max(float(one[at]) for one in by_body) for at in range(len(calls))]
        alone = [one / (bounds.room(((name, 1),)).kept or 1.0) for (name, _), one in zip(calls, least, strict=True)]
        together = sum(times * one for (_, times), one in zip(calls, least, strict=True))
        return {
            "work": max(self.coarse.work_s(base, size) for size in sizes) / bounds.work_s,
            "kept": max(*alone, together / (bounds.room(calls).kept or 1.0)),
        }

    def checked(self, config: Config) -> Checked:
        """Raises what the model or the target refuse of it."""
        prediction = self.own.setting.predict(config, config.batch * config.microbatches)
        bounds = self.bounds(config)
        wires = bounds.wires(config)
        return Checked(
            config=str(config),
            price_s=prediction.step_time_s,
            bounds_s={
                "floor": self.floor_s(config),
                "kernels": self.kernels_s(config),
                "parts": self.parts_s(config),
                "least": bounds.least_s(config),
                "pipeline": bounds.step_s(replace(config, zero=0, shard=0)),
                "step": bounds.step_s(config, wires),
                "run": bounds.run_s(config, wires),
            },
            shares=self.shares(base_of(config), bounds),
            lacks_bytes=bounds.lacks_bytes(
                bounds.loads(config), config, Storage(config.zero, config.shard, config.regather)
            ),
            over_bytes=over_bytes(prediction),
            capacity_bytes=self.common.capacity,
        )


def over_bytes(prediction: Prediction) -> float:
    """By how much the fullest stage is over what its devices have."""
    return max(stage.memory.peak_bytes - stage.memory.capacity_bytes for stage in prediction.stages)


def check(case: Case, count: int, seed: int = 0) -> Tally:
    """So many configurations of a case, at random."""
    own, tally = opened(case), Tally(str(case))
    checker = Checker(own)
    for config in islice(drawn(own.space, Random(seed)), count):
        try:
            tally.checked.append(checker.checked(config))
        except MeshwrightError:
            tally.refused += 1
    return tally


def check_published(every: int) -> Iterator[Tally]:
    """Every reading of the rows, question by question."""
    pricer = Pricer()
    for lot in by_question(runs_in())[::every]:
        tally = Tally(f"{lot[0].model.name} on {lot[0].devices} {lot[0].device.name}")
        try:
            checker = Checker(asked(lot[0], pricer))
        except MeshwrightError:
            tally.refused += len(lot)
            yield tally
            continue
        configs = dict.fromkeys(
            config_of(staged) for run in lot for one in readings(run) for staged in zero_stages(one)
        )
        for config in configs:
            if config.offload != NOWHERE or config.recompute.startswith("full_layers"):
                tally.outside += 1
                continue
            try:
                tally.checked.append(checker.checked(config))
            except MeshwrightError:
                tally.refused += 1
        yield tally


def config_of(run: Run) -> Config:
    """A run's configuration as a search has it."""
    own = degrees_of(run)
    shared = {name: getattr(own, name) for name in SHARED}
    return Config(**shared, sp=own.sequence_parallel, mbs=run.micro_batch)


def lines(tally: Tally) -> Iterator[str]:
    """What is said of a case."""
    outside = f", {tally.outside} that bounds are not about" if tally.outside else ""
    counts = f"{len(tally.checked)} priced, {tally.refused} refused{outside}, {len(tally.violations)} violations"
    yield f"{tally.case}: {counts}"
    for name, found in ((name, tally.tightness(name)) for name in (*BOUNDS, "parts")):
        if len(found) < 2:
            continue
        cuts = quantiles(found, n=20)
        middle = f"p5 {cuts[0]:.3f}, median {cuts[9]:.3f}, p95 {cuts[18]:.3f}"
        yield f"    {name:5} / price: {middle}, most {max(found):.5f}"
    for name in ("work", "kept"):
        most = max((one.shares[name] for one in tally.checked), default=0.0)
        yield f"    floor / {name} of a micro-batch: most {most:.5f}"
    yield from (f"    {line}" for line in tally.violations[:MOST_LINES])


MOST_LINES = 5


def exhaust() -> int:
    """Small spaces: all of their configurations beside what the search says; 1 if it says anything that is not so."""
    wrong = 0
    for case in SMALL:
        own = opened(case)
        everything, asked = exhausted(own)
        search = searched(own)
        found = disagreements(search, everything)
        wrong += len(found)
        print(
            f"{case}: {asked} configurations, {len(everything)} fit, "
            f"gap {search.gap:.2%}, {search.counts.priced} priced"
        )
        print("".join(f"    {line}\n" for line in found), end="", flush=True)
    print(f"{len(SMALL)} spaces, {wrong} disagreements")
    return 1 if wrong else 0


def main(argv: Sequence[str]) -> int:
    """Check and print; 1 if a bound exceeds a price."""
    parser = ArgumentParser(prog="python -m benchmarks.bound_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--each", type=int, default=100, help="configurations of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: %(default)s)")
    parser.add_argument("--profile", help="price cases on CPUs, and those alone, by this profile")
    parser.add_argument("--case", type=int, help="only the one of this number")
    parser.add_argument("--published", action="store_true", help="check the configurations of published runs instead")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th question of --published")
    parser.add_argument("--exhaust", action="store_true", help="price all of small spaces beside their searches")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if args.exhaust:
        return exhaust()
    cases = [case for number, case in enumerate(CASES) if args.case in (None, number)]
    if args.profile:
        cases = [replace(case, profile=args.profile) for case in cases if case.cluster.startswith("cpu:")]
    chosen = (check(case, args.each, args.seed) for case in cases)
    tallies = []
    for tally in check_published(args.every) if args.published else chosen:
        tallies.append(tally)
        print("\n".join(lines(tally)), file=sys.stderr if args.json else sys.stdout, flush=True)
    priced_, wrong = sum(len(one.checked) for one in tallies), [line for one in tallies for line in one.violations]
    if args.json:
        print(json.dumps({"priced": priced_, "violations": wrong, "cases": [asdict(one) for one in tallies]}))
    else:
        print(f"{priced_} configurations priced, {len(wrong)} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
