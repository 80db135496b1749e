"""Words of the command line, one verb at a time, some of which mean nothing; and signals."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.fuzzing.case import Case

REPO = Path(__file__).parents[2]
TINY = f"{REPO / 'examples' / 'llama.py'}:tiny"
"""Four blocks of four heads, two of them for keys and values."""
ON_FOUR = ("--cluster", "1x4xA100", "--global-batch", "8", "--seq", "64")
PINNED = ("--fix", "pp=2,dp=2,mbs=1,recompute=none")
"""Few configurations are left to search through, and copies that share the batch."""
PLAN = "plan.json"

COUNTS = ("0", "-1", "1.5", "x", "", "nan", "1e3", "1_0", "0x10", "9" * 5000, "²", "٣")
AMOUNTS = ("-1", "x", "", "nan", "inf", "1e999", "1_0", "1,5", "٣")
WORDS = ("nonsense", "", "BF16 ", "none", "\x1b[2J", "*", "0")
PINS = (
    *("tp=0", "tp=-1", "tp=1.5", "tp=", "tp", "=", "=4", "tp=nan", "tp=2,tp=4", "tp=²", f"tp={'9' * 5000}", "nope=1"),
    *(
        "tp=8",
        "tp=3",
        "pp=5,tp=1",
        "pp=3",
        "dp=3",
        "dp=8",
        "cp=8",
        "ep=2",
        "tp=4,pp=4",
        "mbs=3",
        "mbs=16",
        "zero=4",
        "zero=-1",
    ),
    *(
        "recompute=some",
        "recompute=selective:",
        "recompute=selective:nope",
        "schedule=nope",
        "schedule=custom",
        "sp=maybe",
    ),
    *(
        "context=nope",
        "offload=nope",
        "offload=activations:0",
        "offload=activations:99",
        "split=nope",
        "shard=3,zero=3",
    ),
    *("stage_blocks=1+1,pp=2", "stage_blocks=a", "stage_blocks=", "vp=2,pp=1", "vp=99,pp=2"),
    *("microbatches=3", "microbatches=0", "mbs=8,microbatches=8", "mbs=2,dp=4,microbatches=4", "etp=4,ep=1,tp=1"),
    *("blocks.9.*:sharding=column", "nope:sharding=column", "blocks.*:nope=1", "blocks.*:sharding=", "blocks.*:", ":"),
    *("blocks.*.attention:sharding=nope", "[:sharding=column", "tp = 2 = 2", "TP=2", "tp=２,"),
)
"""What no plan of the tiny model on four devices can have."""
POSSIBLE = (
    *(
        "tp=2",
        "tp=4",
        "pp=2",
        "pp=4",
        "dp=4",
        "cp=2",
        "dp=2,tp=2",
        "zero=0",
        "zero=1",
        "zero=2",
        "zero=3",
        "mbs=1",
        "mbs=2",
    ),
    *("recompute=full", "recompute=selective", "schedule=gpipe", "sp=on", "sp=off", "tp=2,sp=on", "offload=optimizer"),
    *(
        "pp=2,vp=2",
        "pp=2,stage_blocks=3+1",
        "split=ends",
        "",
        ",",
        " tp=2 , pp=2 ",
        "microbatches=2",
        "shard=2",
        "etp=1",
    ),
    *(
        "context=ring,cp=2",
        "context=ulysses,cp=2",
        "zigzag=off",
        "regather=off",
        "blocks.*.attention.q_proj:sharding=column",
    ),
)
CLUSTERS = (
    *(
        "0x8xH100",
        "-1x8xH100",
        "1x0xH100",
        "1x4xNOPE",
        "1x4x",
        "x",
        "xx",
        "1x4",
        "cpu:0",
        "cpu:x",
        "cpu:",
        "cpu:-1",
        "",
    ),
    *("1x4xA100,inter=0", "2x8xH100,inter=nanG", "2x8xH100,inter=-400G", "2x8xH100,inter=infG", "1x4xA100,nope=1"),
    *(
        "2x8xH100,inter=",
        f"{'9' * 5000}x8xH100",
        "999999999x8xH100",
        "1x99999xH100",
        "1.5x8xH100",
        "²x8xH100",
    ),
    *("2x8xH100,inter=400G,inter=400G", "/dev/null", "/dev/zero", ".", "nope.toml"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option with values that it can have and values that mean nothing."""

    name: str
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


TRACED = (
    Option(name="--dump-after", bad=("nope", "", "LOAD")),
    Option(name="--seed", good=("1", "-1", "0", "1" + "0" * 30), bad=("x", "", "1.5", "nan", "9" * 5000)),
)
WORKLOAD = (
    Option(name="--global-batch", good=("8", "4"), bad=(*COUNTS, str(2**62), "262145")),
    Option(name="--micro-batch", good=("1", "2"), bad=(*COUNTS, "3", "16", str(2**62))),
    Option(name="--seq", good=("64", "1", "63"), bad=(*COUNTS, str(2**62), "16777217")),
    Option(name="--dtype", good=("bf16", "fp32", "fp16"), bad=WORDS),
    Option(name="--optimizer", good=("adamw", "sgd", "muon"), bad=WORDS),
    Option(name="--stack", good=("torch", "megatron", "jax"), bad=WORDS),
    Option(name="--style", good=("eager", "compiled"), bad=WORDS),
    Option(name="--recipe", good=("bf16", "fsdp", "megatron"), bad=WORDS),
    Option(name="--imbalance", good=("1", "1.5"), bad=(*AMOUNTS, "0", "0.99", "1e300")),
    Option(name="--target", good=("any", "torch-cuda", "torch-gloo"), bad=(*WORDS, "jax", "tpu")),
    Option(name="--cluster", good=("1x4xA100", "1x4xH100", "cpu:4", "2x2xA100"), bad=CLUSTERS),
    Option(name="--fix", good=POSSIBLE, bad=PINS),
    Option(name="--top", good=("1", "1000"), bad=COUNTS),
    *TRACED,
)
CHANGES = ("inter=800G", "hosts=2,gpu=H100", "memory_gb=40", "global_batch=16", "dtype=fp32", "cluster=1x4xH100")
NO_CHANGES = (
    "", "=", ",", "inter", "inter=", "intre=8G", "tp=4", "hosts=0", "hosts=1e9", "a.hosts=2", ".hosts=2", "gbps=4",
    "memory_gb=nan", "island_size=0.5", "cluster=", "cluster=x", "gpu=T4,gpu=T4", "seq=-1", "dtype=bf61", "nic=wire",
)  # fmt: skip
SAVED = (
    Option(
        name="--model",
        good=(TINY,),
        bad=("", ".", "nope.py:x", f"{TINY}x", "/dev/zero", TINY.replace("tiny", "llama_8b")),
    ),
)
VERBS: dict[str, tuple[tuple[str, ...], tuple[Option, ...]]] = {
    "inspect": (
        ("inspect", TINY, "--seq", "64"),
        (
            Option(name="--batch", good=("1", "3"), bad=(*COUNTS, str(2**62))),
            Option(name="--seq", good=("1", "64"), bad=(*COUNTS, str(2**62))),
            Option(name="--dtype", good=("fp32",), bad=WORDS),
            Option(name="--style", good=("fused",), bad=WORDS),
            Option(name="--device", good=("cpu",), bad=WORDS),
            *TRACED,
        ),
    ),
    "estimate": (
        ("estimate", TINY, *ON_FOUR),
        (
            *WORKLOAD,
            Option(name="--jobs", good=("1",), bad=COUNTS),
            Option(name="--configs", bad=("", ".", "nope", "/dev/zero")),
        ),
    ),
    "plan": (
        (TINY, *ON_FOUR, *PINNED),
        (
            *WORKLOAD,
            Option(name="--forbid", good=("tp=2", "cp"), bad=("pp", "pp=2", "mbs=1", "nope", "tp=0", "=", "tp=nan")),
            Option(name="--allow", good=("pp=2|4", "tp=1|2"), bad=("tp=0", "nope=1", "tp", "tp=|", "pp=4", "mbs=4")),
            Option(name="--objective", good=("time", "memory"), bad=(*WORDS, "cost")),
            Option(name="--time-limit", good=("1", "0.5"), bad=AMOUNTS),
            Option(name="--max-gap", good=("0.5", "1"), bad=AMOUNTS),
            Option(name="--what-if", good=CHANGES, bad=NO_CHANGES),
            Option(name="--scale", good=("4", "2..4"), bad=(*COUNTS, "4..2", "0..4", "3", "4,,8", "1..9999999", "4-8")),
            Option(name="--scaling", good=("weak",), bad=WORDS),
            Option(name="--out", good=("made",), bad=("", "/dev/null", PLAN, "/proc/nope", "x" * 300)),
        ),
    ),
    "explain": (("explain", PLAN), (Option(name="--why-not", good=("tp=2", "mbs=2"), bad=("", ",", *PINS[:12])), *SAVED,
        Option(name="--cluster", good=("1x4xH100", "2x2xA100"), bad=(*CLUSTERS, "1x8xA100")))),
    "diff": (("diff", PLAN), ()),
    "emit": (
        ("emit", PLAN, "--out", "made"),
        (
            *SAVED,
            Option(name="--out", bad=("", "/dev/null", PLAN, "/proc/nope", "x" * 300)),
            Option(name="--target", good=("torch-cuda", "torch-gloo"), bad=(*WORDS, "any")),
            Option(name="--init", good=("whole", "meta"), bad=WORDS),
        ),
    ),
    "verify": (
        ("verify", PLAN),
        (
            Option(name="--steps", bad=COUNTS),
            Option(name="--time-limit", bad=AMOUNTS),
            Option(name="--out", bad=("", "/dev/null", PLAN)),
        ),
    ),
    "cluster": (("cluster", "show"), ()),
    "schema": (("schema",), ()),
    "compare": (("compare", PLAN, "log"), (Option(name="--skip", bad=("-1", "x", "", "99", "9" * 5000, "1.5")),)),
}  # fmt: skip
LAST: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cluster": (("1x4xA100", "2x8xH100", "cpu:4", "2x8xH100,inter=400G", "262144x1xH100"), CLUSTERS),
    "schema": (("plan", "cluster", "matrix", "shape", "config", "configs", "pins", "log"), WORDS),
    "diff": (("tp=2", "mbs=2", PLAN, "zero=1"), (*PINS[:12], "nope", "", "tp=3", "mbs=3", "x" * 300 + "=1")),
}
"""What stands at the end of a command."""
LOG = b"".join(
    b"step %d loss 5.6 step_time_s 0.1000 tokens_per_s 5120.0 flops_per_s 2e+08 mfu 0.002 memory_bytes 1000\n" % n
    for n in range(4)
)


def words(rng: Random, plan: bytes) -> Case:
    """A verb with options that it has, some of them with values that mean nothing."""
    verb = rng.choice(list(VERBS))
    argv, options = VERBS[verb]
    wrong: list[str] = []
    if verb in LAST:
        (last,) = _values(rng, *LAST[verb], wrong)
        argv = (*argv, last)
    for option in rng.sample(options, min(len(options), rng.choice((1, 1, 2, 3)))):
        (value,) = _values(rng, option.good, option.bad, wrong)
        # A value that begins like an option is no word of its own.
        argv = (*argv, *((f"{option.name}={value}",) if value.startswith("-") else (option.name, value)))
    if verb != "schema" and rng.random() < 0.3:
        argv = (*argv, "--json")
    return Case(argv=argv, files=((PLAN, plan), ("log", LOG)), nonsense=", ".join(wrong))


def _values(rng: Random, good: tuple[str, ...], bad: tuple[str, ...], wrong: list[str]) -> tuple[str]:
    """One of the values; `wrong` gets it if it means nothing."""
    if good and rng.random() < 0.3:
        return (rng.choice(good),)
    value = rng.choice(bad)
    wrong.append(f"{value:.40}")
    return (value,)


def interrupted(rng: Random, plan: bytes) -> Case:
    """A command that takes some seconds, and a signal in between."""
    argv = rng.choice(
        (
            ("inspect", TINY),
            (TINY, *ON_FOUR),
            ("estimate", TINY, *ON_FOUR),
            ("estimate", TINY, *ON_FOUR, "--configs", "lines"),
            ("explain", PLAN, "--why-not", "tp=2"),
            ("emit", PLAN, "--out", "made"),
        )
    )
    return Case(
        argv=argv,
        files=((PLAN, plan), ("lines", b'{"tp": 2}\n{"pp": 2}\n' * 50)),
        signal=rng.choice((signal.SIGINT, signal.SIGTERM)),
        after_s=rng.choice((0.0, 0.02, 0.1, rng.uniform(0, 4))),
    )
