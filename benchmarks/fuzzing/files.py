"""Files that commands read: one thing of each is changed, or it is none at all."""

from __future__ import annotations

import json
import tomllib
from random import Random
from typing import Any

from benchmarks.fuzzing.case import Case
from benchmarks.fuzzing.documents import NOT_FINITE, Path_, Told, as_json, as_toml, changed
from benchmarks.fuzzing.words import LOG, ON_FOUR, PINS, PLAN, POSSIBLE, REPO, TINY

# Paths ---------------------------------------------------------------------------------------------------------------

NO_FILES = (
    *(
        "",
        " ",
        ".",
        "..",
        "/",
        "~",
        "nope",
        "nope.py",
        "nope.py:x",
        "nope.json",
        "nope.toml",
        ":",
        ":x",
        ".py",
        ".py:x",
        "-",
    ),
    *(
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/zero.toml",
        "/proc/self/mem",
        "/proc/self/environ",
        "/nope/nope.toml",
    ),
    *(
        "a" * 300,
        "a" * 300 + ".toml",
        "a" * 300 + ".json",
        "a" * 300 + "=1",
        "a" * 300 + ".py:x",
        "/" * 5000,
        "x/../" * 900 + "nope.json",
        "dир.toml",
        "\udcff\udcfe.json",
    ),
    *(
        "pipe",
        "pipe.toml",
        "pipe.json",
        "pipe.py:x",
        "loop",
        "loop.toml",
        "loop.json",
        "loop.py:x",
        "socket.toml",
        "socket.json",
    ),
    *(
        "folder",
        "folder.toml",
        "folder.json",
        "folder.py:x",
        "bytes",
        "bytes.toml",
        "bytes.json",
        "bytes.py:x",
        "empty.toml",
    ),
    *(
        "empty.json",
        "empty.py:x",
        "half.json",
        "half.toml",
        "\x1b[31m.toml",
        "a\nb.toml",
        "'",
        '"',
        "$(x)",
        "*",
        "model.py:",
    ),
    *("nul.py:x", "nul.json", "nul.toml", "latin.json", "latin.py:x", "utf16.json", "utf16.toml", "marked.json:x"),
)
BYTES = bytes(range(256))
ODD: tuple[tuple[str, bytes], ...] = tuple(
    (f"{name}{end}", content)
    for name, content, ends in (
        ("bytes", BYTES, ("", ".toml", ".json", ".py")),
        ("empty", b"", (".toml", ".json", ".py")),
        ("half", b'{"a": ', (".json", ".toml")),
        ("nul", b"\x00" * 100, (".json", ".toml", ".py")),
        ("latin", "é = 'ü'".encode("latin-1"), (".json", ".py")),
        ("utf16", '{"model_type": "gpt2"}'.encode("utf-16"), (".json", ".toml")),
        ("marked", b"\xef\xbb\xbf{}", (".json",)),
        ("model", b"def x(): pass", (".py",)),
    )
    for end in ends
)
MADE = tuple(
    (kind, f"{kind}{end}")
    for kind, ends in (
        ("pipe", ("", ".toml", ".json", ".py")),
        ("loop", ("", ".toml", ".json", ".py")),
        ("folder", ("", ".toml", ".json", ".py")),
        ("socket", (".toml", ".json")),
    )
    for end in ends
)


SAVED_AT = f"saved/{PLAN}"
"""Not in the folder that a path without a name means."""


def paths(rng: Random, plan: bytes) -> Case:
    """The path of no model, no cluster, no plan, no log."""
    name = rng.choice(NO_FILES)
    argv = rng.choice(
        (
            ("inspect", "--", name),
            ("plan", *ON_FOUR, "--", name),
            ("estimate", *ON_FOUR, "--", name),
            ("estimate", TINY, *ON_FOUR, f"--configs={name}"),
            ("cluster", "show", "--", name),
            ("inspect", TINY, f"--dump-after={name}"),
            ("explain", "--", name),
            ("explain", SAVED_AT, f"--model={name}"),
            ("explain", SAVED_AT, f"--cluster={name}"),
            ("diff", "--", name, SAVED_AT),
            ("diff", SAVED_AT, "--", name),
            ("emit", "--out=made", "--", name),
            ("emit", SAVED_AT, "--out=made", f"--model={name}"),
            ("verify", "--", name),
            ("compare", "--", name, "log"),
            ("compare", SAVED_AT, "--", name),
        )
    )
    if rng.random() < 0.3:
        argv = (argv[0], "--json", *argv[1:])
    return Case(
        argv=argv,
        files=((SAVED_AT, plan), ("log", LOG), *ODD),
        made=MADE,
        nonsense="no such file",
        lines="--configs" in argv[-1],
    )


# Models --------------------------------------------------------------------------------------------------------------

HEAD = """import os, signal, sys, threading, time
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        {init}

    def forward(self, x):
        {forward}
        return self.linear(x).sum()


def example_inputs(batch, seq):
    {inputs}
    return torch.zeros(batch, 4)


class Odd(BaseException):
    def __str__(self):
        {text}
        return "odd"


class OddText(str):
    __slots__ = ()

    def __str__(self):
        raise Odd


def build():
    net = Net()
    {build}
    return net


{top}
"""
PLACES = ("init", "forward", "inputs", "text", "build", "top")
RAISES = (
    *(
        "raise {kind}",
        "raise {kind}('x' * 10**6)",
        "raise {kind}('\\x1b[2J\\r\\n\\udc80')",
        "raise Odd",
        "raise Odd from Odd()",
    ),
    *(
        "sys.exit()",
        "sys.exit(0)",
        "sys.exit('bye')",
        "raise SystemExit(Odd())",
        "while True: pass",
        "time.sleep(1000)",
    ),
    *(
        "threading.Event().wait()",
        "1 / 0",
        "nope",
        "import nope",
        "(lambda f: f(f))(lambda f: f(f))",
        "raise {kind}(OddText())",
    ),
    *(
        "torch.zeros(4) @ torch.zeros(5)",
        "torch.ones(2).item()",
        "raise GeneratorExit",
        "assert False",
        "exec('x = = 1')",
    ),
)
KINDS = (
    "ValueError",
    "KeyboardInterrupt",
    "Exception",
    "BaseException",
    "MemoryError",
    "OSError(5, 'x')",
    "StopIteration",
)
BUILDS = (
    *(
        "net.net = net",
        "net.all = nn.ModuleList([net])",
        "return 1",
        "return None",
        "return Net",
        "return 'net'",
        "return [net]",
    ),
    *(
        "return nn.Module()",
        "return nn.Linear",
        "return torch.zeros(3)",
        "return nn.Sequential()",
        "return lambda x: x",
    ),
    *(
        "for _ in range(300): net = nn.Sequential(net)",
        "return nn.Sequential(*[nn.Linear(1, 1) for _ in range(10**6)])",
    ),
    *(
        "return nn.ModuleList(nn.Identity() for _ in iter(int, 1))",
        "return nn.Linear(2**40, 2**40)",
        "return nn.Linear(4, -1)",
    ),
    *(
        "return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 10**7)",
        "net.linear.weight = 3",
        "del net.linear",
    ),
    *(
        "return nn.Embedding(4, 4)",
        "return nn.Bilinear(2, 3, 4)",
        "return nn.LSTM(4, 4)",
        "net.register_parameter('', None); return None",
    ),
)
TOPS = (
    *(
        "example_inputs = 3",
        "example_inputs = None",
        "dims = 3",
        "dims = {'x': 3}",
        "dims = {'x': ('b',) * 9}",
        "dims = {'y': ('b',)}",
    ),
    *("loss = 'x'", "def loss(): pass", "def loss(outputs, batch): return None", "def loss(outputs, batch): raise Odd"),
    *("def loss(outputs, batch): return 1.0", "def example_inputs(batch, seq): return None", "build = 3", "del build"),
    *(
        "def example_inputs(batch, seq): return 'x'",
        "def example_inputs(batch, seq): return torch.zeros(3, 3)",
        "def build(x): pass",
    ),
    *(
        "def example_inputs(): pass",
        "def example_inputs(batch, seq): return {'x': object()}",
        "async def build(): return Net()",
    ),
    *(
        "def build(): yield Net()",
        "dims = type('D', (dict,), {'values': lambda self: 1 / 0})()",
        "def",
        "\x00",
        "  indented",
    ),
    *(
        "def build():\n    return build()",
        "class build:\n    pass",
        "build = print",
        "build = input",
    ),
)


def models(rng: Random, plan: bytes) -> Case:
    """A model file that has nothing to plan: it raises, waits, exits, or makes something else than a model."""
    parts = dict.fromkeys(PLACES, "pass")
    where = rng.choice(("raise", "raise", "build", "top"))
    if where == "raise":
        place = rng.choice(("init", "forward", "inputs", "build", "top", "text"))
        parts[place] = rng.choice(RAISES).format(kind=rng.choice(KINDS))
        if place == "text":
            parts["build"] = "raise Odd"
    else:
        parts[where] = rng.choice(BUILDS if where == "build" else TOPS)
    content = HEAD.format(**parts).encode("utf-8", "surrogatepass")
    argv = rng.choice(
        (("inspect", "model.py:build", "--seq", "16"), ("plan", "model.py:build", *ON_FOUR, "--fix", "dp=4,mbs=1"))
    )
    if rng.random() < 0.3:
        argv = (*argv, "--json")
    return Case(
        argv=argv,
        files=(("model.py", content),),
        nonsense=next(f"{part:.60}" for part in parts.values() if part != "pass"),
    )


# Shapes --------------------------------------------------------------------------------------------------------------

SHAPES: tuple[dict[str, Any], ...] = (
    {"layers": 2, "hidden": 64, "ffn_hidden": 128, "heads": 4, "vocab": 256},
    {"layers": 3, "hidden": 64, "ffn_hidden": 128, "heads": 4, "kv_heads": 2, "vocab": 256, "experts": 4, "topk": 2,
     "moe_ffn": 32, "shared_experts": 1, "first_dense_layers": 1, "moe_layer_freq": 1, "dtype": "f32"},
    {"layers": 2, "hidden": 64, "ffn_hidden": 128, "heads": 4, "vocab": 256, "kv_lora_rank": 16, "q_lora_rank": 16,
     "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "glu": True, "tied_embeddings": True},
    {"layers": 4, "hidden": 64, "ffn_hidden": 128, "heads": 4, "vocab": 256, "sliding_window": 16,
     "full_attention_every": 2, "head_dim": 16, "biases": True, "dropout": False, "parallel_block": True},
)  # fmt: skip
SHAPE = Told(
    needed=lambda path: path[-1] in ("layers", "hidden", "ffn_hidden", "heads", "vocab"),
    sized=lambda path: True,
    typed=lambda path: True,
)


def shapes(rng: Random, plan: bytes) -> Case:
    """A shape file."""
    text, nonsense = changed(rng, rng.choice(SHAPES), SHAPE, as_toml)
    return Case(
        argv=("inspect", "shape.toml", "--seq", "16"), files=(("shape.toml", text.encode()),), nonsense=nonsense
    )


# Configurations ------------------------------------------------------------------------------------------------------

SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_ctx": 64, "vocab_size": 256},
    "llama-3.1-8b": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "num_hidden_layers": 2, "vocab_size": 256},
    "t5-large": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
                 "vocab_size": 256},
    "mixtral-8x7b": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "num_hidden_layers": 2, "vocab_size": 256, "num_local_experts": 4},
}  # fmt: skip
SIZES = frozenset(
    (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
)
CONFIG = Told(open=lambda path: True, sized=lambda path: path[-1] in SIZES, typed=lambda path: False)


def configurations(rng: Random, plan: bytes) -> Case:
    """A Hugging Face config.json."""
    name = rng.choice(list(SMALL))
    whole = json.loads((REPO / "examples" / "configs" / name / "config.json").read_text(encoding="utf-8")) | SMALL[name]
    text, nonsense = changed(rng, whole, CONFIG, as_json)
    content = text.encode("utf-8", "surrogatepass")
    return Case(argv=("inspect", "config.json", "--seq", "16"), files=(("config.json", content),), nonsense=nonsense)


# Clusters ------------------------------------------------------------------------------------------------------------

TEXTS = ("name", "gpu", "kind")
CLUSTER = Told(
    needed=lambda path: path[-1] in (*TEXTS, "hosts", "gpus_per_host", "between", "count", "gbps"),
    sized=lambda path: path[-1] in ("hosts", "gpus_per_host", "count", "gbps", "latency_us", "price_per_gpu_hour"),
    typed=lambda path: path[-1] in (*TEXTS, "hosts", "gpus_per_host", "count", "gbps", "latency_us", "pool", "link"),
)


def clusters(rng: Random, plan: bytes) -> Case:
    """A cluster file."""
    files = sorted((REPO / "examples" / "clusters").glob("*.toml"))
    whole = tomllib.loads(rng.choice(files).read_text(encoding="utf-8"))
    text, nonsense = changed(rng, whole, CLUSTER, as_toml)
    argv = ("cluster", "show", "cluster.toml", *rng.choice(((), ("--json",))))
    return Case(argv=argv, files=(("cluster.toml", text.encode()),), nonsense=nonsense)


RATES = (*NOT_FINITE, "-1", "x", "", "0", "1e400", "0x10", "9" * 5000, '"', "1_000", "١")
"""What no rate between two hosts can be."""


def matrices(rng: Random, plan: bytes) -> Case:
    """A link matrix: an entry is no rate, a row or a column is too many or too few, two directions differ."""
    size = 4
    rows = [["0" if i == j else "400" for j in range(size)] for i in range(size)]
    at, to = rng.sample(range(size), 2)
    change = rng.choice(("entry", "entry", "row", "column", "one way", "none", "empty", "long"))
    if change == "entry":
        rows[at][to] = rows[to][at] = rng.choice(RATES)
    elif change == "row":
        rows = rng.choice((rows[1:], [*rows, rows[0]]))
    elif change == "column":
        rows[at] = rng.choice((rows[at][1:], [*rows[at], "400"]))
    elif change == "one way":
        rows[at][to] = "4"
    elif change == "empty":
        rows = []
    elif change == "long":
        rows = [["400"] * 2000] * 3
    nonsense = "" if change == "none" else f"a link matrix with another {change}"
    text = "\n".join(",".join(row) for row in rows)
    pool = {
        "name": "a",
        "hosts": size,
        "gpu": "H100",
        "gpus_per_host": 8,
        "nics": [{"kind": "roce", "gbps": 400, "count": 8}],
    }
    cluster = as_toml({"link_matrix": rng.choice(("m.csv", "m.csv", "./m.csv", "folder/../m.csv")), "pool": [pool]})
    files = (("cluster.toml", cluster.encode()), ("m.csv", text.encode()))
    return Case(argv=("cluster", "show", "cluster.toml"), files=files, made=(("folder", "folder"),), nonsense=nonsense)


# Lines of --configs --------------------------------------------------------------------------------------------------

LINES: tuple[dict[str, Any], ...] = (
    {"tp": 2, "global_batch": 8},
    {"pp": 2, "mbs": 1, "schedule": "1f1b", "recompute": "none"},
    {"dp": 4, "zero": 3, "sp": False, "stage_blocks": "4"},
)
LINE = Told(sized=lambda path: True, typed=lambda path: path[-1] in ("tp", "pp", "dp", "mbs", "global_batch"))


def lines(rng: Random, plan: bytes) -> Case:
    """A file of configurations, one of which is changed."""
    text, nonsense = changed(rng, rng.choice(LINES), LINE, as_json)
    content = f'{{"tp": 2}}\n{text}\n'.encode("utf-8", "surrogatepass")
    argv = ("estimate", TINY, *ON_FOUR, "--jobs", "1", "--configs", "lines")
    return Case(argv=argv, files=(("lines", content),), nonsense=nonsense, lines=True)


def pins(rng: Random, plan: bytes) -> Case:
    """Pins that cannot be, beside others that can."""
    wrong = rng.random() < 0.7
    given = (rng.choice(PINS if wrong else POSSIBLE), *rng.sample(POSSIBLE, rng.choice((0, 0, 1, 2))))
    argv: tuple[str, ...] = ("estimate", TINY, *ON_FOUR)
    for text in rng.sample(given, len(given)):
        argv = (*argv, "--fix", text)
    return Case(argv=argv, nonsense=f"{given[0]:.40}" if wrong else "")


# Plans ---------------------------------------------------------------------------------------------------------------

NAMES = {
    ("model", "tensors"), ("storage",), ("storage", 0), ("recompute",), ("placements",), ("placements", 0, "states"),
    ("placements", 0, "strategies"), ("stages", 0, "blocks"), ("predicted", "shares"), ("predicted", "traffic"),
    ("predicted", "provenance"), ("predicted", "stages", 0, "memory"), ("bounds", "space", "counts"),
    ("baselines", 0, "differences"), ("alternatives", 0, "differences"), ("bounds", "space", "only"),
    ("bounds", "space", "never"),
}  # fmt: skip
"""Objects of a plan whose keys are names, or all of which may be left out; 0 stands for any index or name."""
SIGNED = ("gap", "seed", "capacity_bytes")


def _alike(path: Path_) -> tuple[str | int, ...]:
    found: tuple[str | int, ...] = ()
    for step in path:
        found = (*found, 0 if isinstance(step, int) or found in NAMES else step)
    return found


PLANNED = Told(
    needed=lambda path: (
        _alike(path)[:-1] not in NAMES and isinstance(path[-1], str) and _alike(path)[-2:] != ("space", "modules")
    ),
    open=lambda path: _alike(path) in {*NAMES} - {("bounds", "space", "only"), ("bounds", "space", "never")},
    sized=lambda path: "differences" not in path and path[-1] not in SIGNED and "only" not in path,
    typed=lambda path: "only" not in path and "never" not in path and path[-1] not in ("short", "config"),
)


def plans(rng: Random, plan: bytes) -> Case:
    """A plan.json."""
    text, nonsense = changed(rng, json.loads(plan), PLANNED, as_json)
    argv = rng.choice(
        (
            ("explain", PLAN),
            ("diff", PLAN, "tp=2"),
            ("emit", PLAN, "--out", "made"),
            ("compare", PLAN, "log"),
            ("verify", PLAN),
        )
    )
    return Case(argv=argv, files=((PLAN, text.encode("utf-8", "surrogatepass")), ("log", LOG)), nonsense=nonsense)


def names(rng: Random, plan: bytes) -> Case:
    """A plan.json one of whose decisions names what its model lacks."""
    whole = json.loads(plan)
    body = rng.choice(list(whole["placements"].values()))
    stage = rng.choice(whole["stages"])
    op, value = rng.choice(list(body["strategies"])), rng.choice(list(body["states"]))
    what = rng.choice(("body", "op", "value", "axis", "state", "stage", "plan", "recompute", "block", "tensor", "rank"))
    if what == "body":
        body["body"] = rng.choice(("nonsense", "", "\x00", body["body"] + "x"))
    elif what in ("op", "value"):
        kind, key = ("strategies", op) if what == "op" else ("states", value)
        body[kind][rng.choice(("nonsense", "", key + "x"))] = body[kind].pop(key)
    elif what == "axis":
        body["strategies"][op] = rng.choice(("xx=d0", "dp=d99", "dp=nonsense", "dp", "=", "", "tp=d0"))
    elif what == "state":
        body["states"][value] = rng.choice(("[xx]", "[", "", "[dp]]", "[-, -, -, -, -, -]", "dp"))
    elif what == "stage":
        stage["mesh"] = rng.choice(("dp=3", "xx=2", "dp=0", "dp=-2", "", "dp=2 dp=2", "dp=1e9", "dp=2@nonsense"))
    elif what == "plan":
        stage["plans"] = rng.choice((["nonsense"], [], stage["plans"] * 2))
    elif what == "recompute":
        whole["recompute"] = {rng.choice(list(whole["placements"])): ["nonsense"]}
    elif what == "block":
        stage["blocks"] = rng.choice(({}, {"nonsense": 1}, dict.fromkeys(stage["blocks"], 99)))
    elif what == "tensor":
        whole["model"]["tensors"] = rng.choice(({}, {"nonsense": "bf16[1]"}))
    else:
        whole["ranks"][0] = rng.choice(([], [0, 0], [99, 98], whole["ranks"][0][:1]))
    argv = rng.choice((("explain", PLAN), ("emit", PLAN, "--out", "made")))
    content = json.dumps(whole).encode("utf-8", "surrogatepass")
    return Case(argv=argv, files=((PLAN, content),), nonsense=f"another {what}")


def logs(rng: Random, plan: bytes) -> Case:
    """A log that is none, or one with a line that is changed."""
    text = LOG.decode()
    word = rng.choice(("loss", "step_time_s", "tokens_per_s", "mfu", "memory_bytes"))
    value = rng.choice((*NOT_FINITE, "-1", "x", "", "9" * 5000, "0"))
    old = f"{word} {text.partition(f'{word} ')[2].split()[0]}"
    wrong = word != "loss" and value != "0"
    return Case(
        argv=("compare", PLAN, "log"),
        files=((PLAN, plan), ("log", text.replace(old, f"{word} {value}").encode())),
        nonsense=f"{word} {value:.40}" if wrong else "",
    )
