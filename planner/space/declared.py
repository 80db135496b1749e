"""The declared space: the configurations that a search is about, and that its bound holds for.

    tp cp ep etp     divisors that the model's heads, widths, experts and sequence allow
    context          every kind that the target can; where cp > 1
    pp vp schedule   stages that the layers fill, under every schedule of the target
    mbs              sequences of a micro-batch that divide the batch: any up to `MOST_TOKENS`, with experts `SEQUENCES`
    zero shard       what is stored in shards, over all copies or over those of one host (HSDP)
    recompute        what is computed again
    dp               the copies that are left

A configuration comes in two halves. Its *base* says what one micro-batch does on the ranks that one copy of a stage
needs: kernels, and the collectives that operators wait for. Its *shape* says how many copies and stages there are, and
what is stored where. A base is priced once for all of its shapes (`planner.bounds.bases`).

What a person pins, allows or forbids narrows the space (`Constraints`); what is cut off besides, since it can hardly
pay and would cost time, is said in `Space.truncated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import gcd

from meshwright.ir.decisions.sharding import ZERO, Sharding, levels
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.names import CONTEXT, CONTEXTS
from meshwright.ir.names.counts import divisors
from meshwright.ir.names.degrees import SPLITS
from meshwright.ir.names.stages import shared
from meshwright.ir.same import Same
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.target.capabilities import Capabilities
from meshwright.planner.question.constraints import Constraints
from meshwright.planner.question.pins import NAMES, Config, Value

SEQUENCES = (1, 2, 4, 8)
"""Of a micro-batch of a model with experts. Products are as fast as they get at a few thousand rows, and memory grows
with every sequence."""
MOST_TOKENS = 131_072
"""Of a micro-batch: small models are trained with as much (MPT of 125 million parameters: 81,920 and more)."""
LEAST_TOKENS = 2048
"""Of a sequence, on each of the ranks that share it."""
LAYERS = ("split", "stage_blocks")
"""Names of a configuration that say how layers are shared out, which follows from the others unless it is asked for."""
ANYWHERE = tuple(name for name in NAMES if name not in LAYERS)
OF_BASES = ("etp", "sp", "context", "zigzag")
"""Names of a base that follow from others where nobody asks for them."""
RECOMPUTE = ("none", "selective", "selective_op", "full")
"""Selective recomputation of the core of attention is tried where scores are written out: fused, it keeps little."""
MOST_VIRTUAL = 8
NOWHERE = "none"
"""What waits in the host's memory."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The values of a configuration that say where parameters and optimizer states are stored."""

    zero: int
    shard: int
    regather: bool

    @property
    def sharding(self) -> Sharding:
        return ZERO[self.zero]

    def on(self, pipeline: Config) -> Config:
        return replace(pipeline, zero=self.zero, shard=self.shard, regather=self.regather)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The declared space of configurations: ranks, batch, model, target and constraints.

    - Must: at least one rank, sequence and layer.
    """

    ranks: int
    per_host: int
    global_batch: int
    seq: int
    layers: int
    experts: tuple[int, ...]
    """Experts of the layers that have some."""
    heads: int
    """Heads that tensor parallelism may split; those of keys and values where queries share them. 0: none."""
    scores: bool
    """Whether attention writes its scores out."""
    target: Capabilities
    constraints: Constraints = field(default_factory=Constraints)

    @property
    def sequences(self) -> list[int]:
        """The micro-batch sizes of the space."""
        batch, most = self.global_batch, MOST_TOKENS // self.seq
        few = [n for n in SEQUENCES if batch % n == 0]
        if self.experts:
            return [int(n) for n in self.constraints.among("mbs", few)]
        return [
            int(n) for n in self.constraints.among("mbs", sorted({*few, *(n for n in divisors(batch) if n <= most)}))
        ]

    @property
    def most_sequences(self) -> int:
        return max(self.sequences, default=1)

    @property
    def truncated(self) -> tuple[str, ...]:
        """What the space leaves out of everything that could be named."""
        return (
            f"micro-batches of other than {', '.join(map(str, SEQUENCES))} sequences"
            if self.experts
            else f"micro-batches of more than {MOST_TOKENS} tokens",
            "tensor parallelism across hosts",
            "tensor parallel experts beside expert parallelism",
            f"less than {LEAST_TOKENS} tokens of a sequence on a rank",
            f"more than {MOST_VIRTUAL} virtual stages",
            "parts of a block in recompute; the first layers of every stage only are tried, not proved",
            "what waits in the host's memory; activations of layers and optimizer state are tried, not proved",
            "pipeline schedules without a name",
        )

    def grants(self, config: Config) -> bool:
        """Whether the constraints allow a configuration."""
        return self.as_asked(config, ANYWHERE) and (config.split, config.stage_blocks) in self.shares(
            config.pp * config.vp
        )

    def as_asked(self, config: Config, names: Iterable[str]) -> bool:
        """Whether these names of a configuration satisfy the constraints. A name that the configuration has no use for
        is never ruled out."""
        if not self.constraints:
            return True
        said = config.to_json() | {"etp": config.degrees().expert_tp if self.experts else 1}
        idle = (*(("schedule",) if config.pp == 1 else ()), *(("context",) if config.cp == 1 else ()))
        return all(
            said[name] in self.constraints.only.get(name, (said[name],))
            and (name in idle or said[name] not in self.constraints.never.get(name, ()))
            for name in names
        )

    def settled(self, config: Config) -> Config:
        """The configuration with its layers shared out and the experts' tensor-parallel degree made explicit."""
        etp = config.degrees().expert_tp if self.experts else 0
        split, blocks = next(iter(self.shares(config.pp * config.vp)), ("spread", ()))
        sp, zigzag = config.sp, config.zigzag
        if "sp" in dict(config.open):
            sp, zigzag = self.tokens(config.tp, config.cp, config.context)
        return replace(config, split=split, stage_blocks=blocks, etp=etp, sp=sp, zigzag=zigzag, open=())

    # bases

    def bases(self) -> Iterator[Config]:
        """What a micro-batch can do on one copy of a stage, by the ranks that this takes. Each is a configuration of
        one stage with as few copies as its experts need. What waits on the host undercuts bounds of memory, so that a
        search has nothing to offer who asks for it."""
        if not self.constraints.grants("offload", NOWHERE):
            return
        for tp in self._sizes("tp", self.heads or self.ranks, self.per_host):
            for cp in self._context_sizes(tp):
                for ep, etp in self._expert_sizes(tp, cp):
                    for context in self._contexts(cp):
                        for mbs in self.sequences:
                            for recompute in self.recompute():
                                base = self.base(tp, cp, ep, etp, mbs, str(context), str(recompute))
                                if self.as_asked(base, OF_BASES):
                                    yield base

    def base(self, tp: int, cp: int, ep: int, etp: int, mbs: int, context: str, recompute: str) -> Config:
        """One kernel configuration."""
        room = ep * (etp or 1)
        sp, zigzag = self.tokens(tp, cp, context)
        return Config(
            tp=tp,
            dp=room // gcd(room, tp * cp),
            cp=cp,
            ep=ep,
            etp=etp,
            mbs=mbs,
            recompute=recompute,
            sp=sp,
            context=context,
            zigzag=zigzag,
        )

    def tokens(self, tp: int, cp: int, context: str) -> tuple[bool, bool]:
        """Options for sequence dimensions: whether tensor parallelism shards them too, and whether context parallelism
        cuts them in a zigzag."""
        known = "zigzag" in {line.name for line in self.target.layouts}
        zigzag = cp > 1 and not CONTEXTS[context].heads and known and self.constraints.grants("zigzag", True)
        divides = self.seq % (tp * cp * (2 if zigzag else 1)) == 0
        return tp > 1 and self.constraints.grants("sp", True) and divides, zigzag

    def recompute(self) -> list[Value]:
        """Options for recomputation."""
        return self.constraints.among("recompute", tuple(n for n in RECOMPUTE if self.scores or n != "selective"))

    def _counts(self, name: str, most: int, of: int) -> list[int]:
        return [int(value) for value in self.constraints.among(name, [n for n in divisors(of) if n <= most])]

    def _sizes(self, name: str, of: int, most: int) -> list[int]:
        common = gcd(of, self.ranks)
        return [size for size in self._counts(name, min(most, common), common) if self.ranks % size == 0]

    def _context_sizes(self, tp: int) -> list[int]:
        most = max(1, self.seq // LEAST_TOKENS)
        sizes = [n for n in divisors(self.ranks // tp) if n <= most and self.seq % (2 * n) == 0] if most > 1 else [1]
        return [int(n) for n in self.constraints.among("cp", sizes) if self.ranks // tp % int(n) == 0]

    def contexts(self) -> Iterator[tuple[int, str]]:
        """Degrees of context parallelism above one, with ways to exchange what attention reads."""
        for cp in self._context_sizes(1):
            yield from ((cp, str(context)) for context in self._contexts(cp) if cp > 1)

    def _contexts(self, cp: int) -> list[Value]:
        if cp == 1:
            return [CONTEXT[0]]
        return self.constraints.among("context", tuple(line.name for line in self.target.attention))

    def _expert_sizes(self, tp: int, cp: int) -> Iterator[tuple[int, int]]:
        if not self.experts:
            if self.constraints.grants("ep", 1):
                yield 1, 0
            return
        for ep in self._sizes("ep", gcd(*self.experts), self.ranks):
            for etp in self.constraints.among("etp", (1,) if ep > 1 else tuple(dict.fromkeys((1, tp)))):
                if self.ranks % (ep * int(etp)) == 0 and _nest(tp, tp * cp, int(etp), int(etp) * ep):
                    yield ep, int(etp)

    # shapes

    def shapes(self, base: Config) -> Iterator[Config]:
        """Every configuration with this kernel configuration."""
        for pipeline in self.pipelines(base):
            for storage in self.storages(pipeline):
                yield storage.on(pipeline)

    def pipelines(self, base: Config) -> Iterator[Config]:
        """Pipeline configurations of a kernel configuration, before storage, whose constraints `storages` checks."""
        for sized in self.pipelined(base):
            for schedule, vp in self.schedules(sized.pp, sized.microbatches):
                for split, blocks in self.shares(sized.pp * vp):
                    yield replace(sized, vp=vp, schedule=schedule, split=split, stage_blocks=blocks)

    def pipelined(self, base: Config) -> tuple[Config, ...]:
        """Numbers of copies and stages for a kernel configuration."""
        return _pipelined(Same(self), base)

    def sizes(self, base: Config) -> Iterator[Config]:
        """The same, made anew."""
        for pp in self.pipeline_sizes(base):
            dp = self.ranks // (base.tp * base.cp * pp)
            if dp % base.dp or self.global_batch % (dp * base.mbs) or not self.constraints.grants("dp", dp):
                continue
            microbatches = self.global_batch // (dp * base.mbs)
            if self.constraints.grants("microbatches", microbatches):
                yield replace(base, pp=pp, dp=dp, microbatches=microbatches)

    def pipeline_sizes(self, base: Config) -> list[int]:
        most, stages = self.ranks // (base.tp * base.cp), max(1, self.layers)
        own = [n for n in divisors(most) if n <= stages] if most <= 4096 else _divisors_up_to(most, stages)
        return [int(n) for n in self.constraints.among("pp", own) if most % int(n) == 0]

    def schedules(self, pp: int, microbatches: int) -> Iterator[tuple[str, int]]:
        """Schedules, each with its number of stages per group."""
        if pp == 1:
            if self.constraints.grants("vp", 1) and "1f1b" in self.constraints.only.get("schedule", ("1f1b",)):
                yield "1f1b", 1
            return
        for line in self.target.schedules:
            if line.name not in SCHEDULES or not self.constraints.grants("schedule", line.name):
                continue
            own = SCHEDULES[line.name]
            least = max(own.least_per_group, line.min_microbatches_per_group) * pp
            if microbatches < least or ((own.multiple or line.multiple_of_groups) and microbatches % pp):
                continue
            if own.vee:
                virtual: tuple[int, ...] = (2,)
            elif line.name == "interleaved":
                virtual = tuple(range(2, min(MOST_VIRTUAL, self.layers // pp) + 1))
            else:
                virtual = (1,)
            for vp in virtual:
                if pp * vp <= self.layers and self.constraints.grants("vp", vp):
                    yield line.name, vp

    def shares(self, stages: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Ways to share layers out that are searched, each a word or the layers of every stage: those asked for, or
        equal shares, or embedding and head counted as a layer each, or as even as possible."""
        return _shares(Same(self.constraints), self.layers, stages)

    def storages(self, pipeline: Config) -> tuple[Storage, ...]:
        """Storage options: which tensors are stored in shards, and over which copies; the least sharded first."""
        return _storages(Same(self), pipeline.dp * pipeline.cp, pipeline.tp, pipeline.cp)

    def stored(self, copies: int, tp: int, cp: int) -> Iterator[Storage]:
        """The same for so many ranks that hold the same parameters, made anew."""
        known = {line.name for line in self.target.storage}
        for zero in self.constraints.among("zero", levels(known) if copies > 1 else [0]):
            if zero and copies == 1:
                continue
            near = self.per_host // tp
            shards = [0, near] if zero and 1 < near < copies and copies % near == 0 and near % cp == 0 else [0]
            for shard in self.constraints.among("shard", shards):
                if shard and (not zero or copies % int(shard)):
                    continue
                for regather in (True, False) if ZERO[int(zero)].params else (True,):
                    if self.constraints.grants("regather", regather):
                        yield Storage(int(zero), int(shard), regather)


@lru_cache(maxsize=4096)
def _pipelined(space: Same[Space], base: Config) -> tuple[Config, ...]:
    return tuple(space.of.sizes(base))


@lru_cache(maxsize=4096)
def _storages(space: Same[Space], copies: int, tp: int, cp: int) -> tuple[Storage, ...]:
    return tuple(space.of.stored(copies, tp, cp))


@lru_cache(maxsize=1024)
def _shares(constraints: Same[Constraints], layers: int, stages: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    asked = [tuple(map(int, str(value).split("+"))) for value in constraints.of.only.get("stage_blocks", ())]
    own = [(SPLITS[0], blocks) for blocks in asked if len(blocks) == stages and sum(blocks) == layers]
    words = [
        (str(word), ()) for word in constraints.of.only.get("split", SPLITS) if _counted(layers, stages, str(word))
    ]
    granted = [one for one in (own if asked else words) if _granted(constraints.of, layers, stages, *one)]
    return tuple(granted if asked else granted[:1])


def _counted(layers: int, stages: int, word: str) -> tuple[int, ...]:
    """The layers of every stage by a word; nothing where the word does not apply."""
    try:
        return shared(layers, stages, word)
    except MeshwrightError:
        return ()


def _granted(constraints: Constraints, layers: int, stages: int, word: str, blocks: tuple[int, ...]) -> bool:
    """Whether the constraints allow a way to share layers out, by any of its words."""
    counts = blocks or _counted(layers, stages, word)
    if stages > 1 and "+".join(map(str, counts)) in constraints.never.get("stage_blocks", ()):
        return False
    held = {word for word in SPLITS if _counted(layers, stages, word) == counts}
    only = constraints.only.get("split")
    return (only is None or not held.isdisjoint(only)) and (
        stages == 1 or held.isdisjoint(constraints.never.get("split", ()))
    )


def _nest(*boundaries: int) -> bool:
    """Whether sizes nest: each divides the next larger one."""
    ordered = sorted(set(boundaries))
    return all(high % low == 0 for low, high in pairwise(ordered))


def _divisors_up_to(size: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if size % n == 0]
