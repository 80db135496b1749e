"""Plans: what searches find, prove and say, on small models and clusters of many kinds; what verbs print of them."""

from __future__ import annotations

import atexit
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from zlib import crc32

from benchmarks.searches import Case, opened, searched
from meshwright.backends.torch_.verify.emitted import Verified
from meshwright.planner import hosted
from meshwright.planner import partial as partial_
from meshwright.planner.cli import main
from meshwright.planner.pins import Config
from meshwright.planner.plan import nothing_to_json, read_asked
from meshwright.planner.plan_file import plan_to_json
from meshwright.planner.relax import relax
from meshwright.planner.report import plan_of
from meshwright.planner.search import Search
from meshwright.planner.solve import solve
from meshwright.planner.verify import shown, to_json
from tests.figures import Cases, text
from tests.planner.solved import ARGV, TINY, parsed

ROOT = Path(__file__).parents[2]
MOE = str(ROOT / "examples" / "tiny_decoder.toml")
TOMLS = ROOT / "examples" / "clusters"


def asked(model: str, cluster: str, batch: int = 8, seq: int = 64, *more: str) -> tuple[str, ...]:
    return model, "--cluster", cluster, "--global-batch", str(batch), "--seq", str(seq), *more


QUESTIONS = {
    "four A100": ARGV,
    "slow hosts": asked(TINY, "2x2xH100,inter=10G", 8, 2048),
    "any target": asked(TINY, "2x4xH100,inter=100G", 16, 1024, "--target", "any"),
    "fused": asked(TINY, "1x8xH100", 16, 2048, "--target", "any", "--stack", "megatron"),
    "experts": asked(MOE, "1x4xL40S", 8, 256, "--target", "any"),
    "experts, fused": asked(
        *(MOE, "2x2xB200", 8, 512, "--target", "any", "--stack", "megatron", "--imbalance", "1.4"),
        *("--fix", "mbs=1,recompute=none,zero=1"),
    ),
    "xla": asked(TINY, "1x4xTPU-v5p", 8, 512, "--target", "any", "--stack", "jax"),
    "compiled": asked(TINY, "1x4xA100", 8, 512, "--stack", "torch-compile"),
    "three unlike": asked(TINY, str(TOMLS / "three_gpus.toml"), 12, 512, "--dtype", "fp16"),
    "seven unlike": asked(TINY, str(TOMLS / "seven_gpus.toml"), 14, 512, "--target", "any"),
    "pinned": asked(TINY, "1x8xA100", 16, 512, "--fix", "pp=2,tp=2,zero=1,mbs=2", "--forbid", "recompute=full"),
    "modules pinned": asked(TINY, "1x4xA100", 8, 512, "--fix", "blocks.*.feed_forward:recompute=on"),
    "least memory": asked(TINY, "1x4xA100", 8, 2048, "--objective", "memory"),
    "least cost": asked(
        TINY, str(TOMLS / "two_pools.toml"), 192, 64, "--objective", "cost", "--fix", "tp=4,pp=1,mbs=1"
    ),
    "pipeline, own schedule": asked(TINY, "1x4xA100", 16, 512, "--target", "any", "--fix", "pp=4,schedule=custom"),
    "nothing fits": asked(TINY, "1x2xT4", 64, 65536, "--dtype", "fp16", "--fix", "mbs=32,pp=1,recompute=none"),
    "short of memory": asked(TINY, "1x4xT4", 8, 16384, "--target", "any", "--dtype", "fp16", "--fix", "tp=1,pp=2"),
    "alone": asked(TINY, "1x1xT4", 4, 32768, "--target", "any", "--dtype", "fp16"),
    "long": asked(TINY, "1x4xT4", 4, 65536, "--target", "any", "--dtype", "fp16"),
}
SILENT = ("format_version", "provenance", "model", "cluster", "config", "bodies", "placements")


def plan(name: str) -> Iterator[str]:
    """What `plan.json` says, but for single operators; what the search looked at."""
    ask, wished = read_asked(parsed(*QUESTIONS[name]))
    solved = solve(ask, ask.setting(), wished)
    yield f"counts: {text(solved.search.counts)}"
    if solved.best is None:
        yield from map(str, nothing_to_json(relax(solved)).items())
        return
    found = plan_of(solved)
    told = plan_to_json(found)
    yield f"config: {found.config}"
    for key, value in told.items():
        if key not in SILENT:
            yield from _lines(key, value)


def _lines(key: str, value: Any) -> Iterator[str]:
    """A line for a value; for a list of tables, one for each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            yield f"{key}: {text({name: held for name, held in one.items() if held})}"
    else:
        yield f"{key}: {text(value)}"


SEARCHES = {
    "alike": Case(model=TINY, cluster="1x4xA100", batch=8, seq=4096),
    "alike, little memory": Case(model=TINY, cluster="1x4xA100", batch=8, seq=4096, margin=0.985),
    "pipelines, little memory": Case(model=TINY, cluster="2x1xH100,inter=100G", batch=8, seq=8192, margin=0.985),
    "for cuda, little memory": Case(
        model=TINY, cluster="1x4xA100", batch=16, seq=8192, target="torch-cuda", margin=0.985
    ),
    "fused, little memory": Case(model=TINY, cluster="1x4xL40S", batch=8, seq=8192, stack="megatron", margin=0.98),
    "experts, little memory": Case(model=MOE, cluster="1x2xL40S", batch=4, seq=2048, margin=0.985),
    "sequences": Case(model=TINY, cluster="1x4xH100", batch=1, seq=65536, stack="megatron"),
    "alone, little memory": Case(model=TINY, cluster="1x1xA100", batch=4, seq=4096, margin=0.986),
}


def search(name: str) -> Iterator[str]:
    """What a search prices and proves, and what is found between the configurations of its space."""
    own = opened(SEARCHES[name])
    ran = searched(own)
    yield f"{text(ran.counts)} {text([ran.lower_s, ran.upper_s])}"
    before = set(ran.found)
    yield from _priced(ran, before)
    for improve in (partial_.improve, hosted.improve):
        improve(ran, lambda: False)
        yield f"{improve.__module__}: {text(ran.counts)} {text([ran.lower_s, ran.upper_s])}"
        yield from _priced(ran, set(ran.found) - before)
        before = set(ran.found)


def _priced(ran: Search, configs: set[Config]) -> Iterator[str]:
    """The fastest, and a checksum of all."""
    found = sorted((ran.found[config] for config in configs), key=lambda one: (one.step_s, str(one.config)))
    lines = [f"{one.config} {one.step_s:.6g} {one.fits} {one.prediction.peak_memory_bytes:.6g}" for one in found]
    yield from lines[:8]
    yield f"{len(lines)} {crc32(' '.join(sorted(str(one.config) for one in found)).encode()):08x}"


VERBS: dict[str, tuple[str, ...]] = {
    "plan": ("{ask}",),
    "explain": ("explain", "a"),
    "why not": ("explain", "a", "--why-not", "tp=2"),
    "diff": ("diff", "a", "b"),
    "cluster": ("cluster", "show", str(TOMLS / "seven_gpus.toml")),
    "estimate": ("estimate", "{ask}", "--fix", "tp=2,pp=2,mbs=1"),
    "ranked": ("estimate", "{ask}"),
    "inspect": ("inspect", TINY, "--seq", "64"),
    "inspect, experts": ("inspect", MOE, "--seq", "64"),
}


def words(name: str) -> Iterator[str]:
    """What a verb prints."""
    argv: list[str] = []
    for word in VERBS[name]:
        argv += ARGV if word == "{ask}" else [str(saved() / word) if word in ("a", "b") else word]
    for line in printed(*argv).splitlines():
        if clean := re.sub(r"\s+", " ", line.replace(str(saved()), "").replace(str(ROOT), "")).strip():
            yield clean


@cache
def saved() -> Path:
    """A folder with two plans of one question."""
    folder = Path(mkdtemp(prefix="figures-"))
    atexit.register(rmtree, folder)
    printed(*ARGV, "--out", str(folder / "a"))
    printed(*ARGV, "--fix", "pp=2", "--out", str(folder / "b"))
    return folder


FOUND = Verified(
    ranks=4,
    steps=2,
    losses=(5.5, 5.25),
    tensors=39,
    worst=1.5e-6,
    collectives=(("all_reduce", "dp", 3, 4096), ("send", "pp", 2, 128)),
    once=(("broadcast", "dp", 1, 8),),
    memory=(1000, 3000, 2000, 500),
    rounded=2,
    unlike=(),
    off=tuple(f"gradient {number}" for number in range(99)),
)


def verdicts(name: str) -> Iterator[str]:
    """What `plan verify` prints of what was found."""
    exact = replace(FOUND, off=(), rounded=0, memory=())
    found, whole, planned = (FOUND, 3, (900.0, 3500.0, 1.0, 1.0)) if name == "different" else (exact, 0, ())
    yield from shown(found, whole, planned)
    yield text(to_json(found, whole, planned))


def printed(*argv: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(list(argv))
    return f"exit {code}\n{out.getvalue()}"


def plans() -> Cases:
    return {name: partial(plan, name) for name in QUESTIONS}


def searches() -> Cases:
    return {name: partial(search, name) for name in SEARCHES}


def printings() -> Cases:
    return {name: partial(words, name) for name in VERBS} | {
        name: partial(verdicts, name) for name in ("different", "exact")
    }
