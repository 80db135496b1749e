"""The free text in the columns of `data/training_runs.csv`, read by general rules.

Each rule is about a spelling, none about a run: what the text does not say stays None or empty.

    interconnect   parts joined by "+": links inside the host (nvlink…, nvl…, ici…) are left to the device; of the rest,
                   "8xhdr200" and "4x100g" count NICs and their rate, "1600gbps_per_node" is a sum over the host, and a
                   kind with a number ("roce400") is the rate beside each device. All in Gb/s.
    precision      fp8 without a scaling, and fp8_cs (current scaling), are tensorwise; "a_or_b" is the one that every
                   device of the table has at the same peak: fp16_or_bf16 is bf16, fp8_or_int8 is tensorwise fp8
    recompute      none | full, "full_layers:N" | selective, "selective:a+b" | selective_op | selective_layer |
                   "remat:…" (MaxText)
    zero           fsdp…, zero3, fully_sharded: 3; "zero2": 2; "zero1": 1; "within_N": shards inside groups of N;
                   no_reshard, shard_grad_op: parameters stay gathered between forward and backward
    notes          "key=value" parts, and words of WORDS
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from meshwright.cost_models.hardware.parts import Nic
from meshwright.cost_models.hardware.quantity import given

_INSIDE = re.compile(r"^(nv|ici|xgmi|pcie|ualink)")
_COUNTED = re.compile(r"(\d+)x[a-z]*(\d+)")
_PER_NODE = re.compile(r"(\d+)gbps_per_node")
_PER_DEVICE = re.compile(r"(?:roce|rdma|ib|ethernet)v?(\d{2,})")
_KINDS = (("roce", r"roce|rdma"), ("infiniband", r"\bib\b|_ib|infiniband|[hne]dr\d"), ("ethernet", r"eth|efa|tcp"))


def nic_of(text: str, *, gpus_per_host: int, usual_kind: str, usual_gbps: float | None) -> Nic | None:
    """The NICs of one host; None: the text does not say, and the device's usual ones stand."""
    outer = "+".join(part for part in text.lower().split("+") if not _INSIDE.match(part))
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, outer)), None)
    count = gpus_per_host
    if found := _COUNTED.search(outer):
        count, gbps = int(found[1]), float(found[2])
    elif found := _PER_NODE.search(outer):
        gbps = float(found[1]) / gpus_per_host
    elif found := _PER_DEVICE.search(outer):
        gbps = float(found[1])
    elif kind is not None and usual_gbps is not None:
        gbps = usual_gbps
    else:
        return None
    return Nic(kind=kind or usual_kind, rate=given(gbps, "Gb/s"), count=count)


_PRECISIONS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp16_or_bf16": "bf16",
    "fp8": "fp8_tensorwise",
    "fp8_cs": "fp8_tensorwise",
    "fp8_ds": "fp8_tensorwise",
    "fp8_tensorwise": "fp8_tensorwise",
    "fp8_or_int8": "fp8_tensorwise",
    "fp8_blockwise": "fp8_blockwise",
    "fp8_sc": "fp8_blockwise",
    "mxfp8": "mxfp8",
    "fp8_mx": "mxfp8",
    "nvfp4": "nvfp4",
}


def precision_of(text: str) -> str | None:
    return _PRECISIONS.get(text.strip().lower())


RECOMPUTE = ("none", "selective", "full", "selective_op", "selective_layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What a run computes twice.

    - `kind` must be one of RECOMPUTE: nothing; some modules (`modules`; the core attention if none are named); whole
      layers; every other product and the cheap operators (torchtitan's op policy); every other layer whole.
    - `layers`: of how many layers on each stage; 0 means all.
    - `keeps`: what a full recomputation keeps nevertheless.
    - `on_host`: what is kept, the inputs of layers too, waits in the host's memory.
    """

    kind: str
    layers: int = 0
    modules: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    on_host: bool = False

    def __post_init__(self) -> None:
        if self.kind not in RECOMPUTE:
            raise ValueError(f"recompute {self.kind!r} is not among {', '.join(RECOMPUTE)}")
        if self.layers < 0:
            raise ValueError(f"recompute of {self.layers} layers")


def recompute_of(text: str, bare_selective: str) -> tuple[Recompute | None, str | None]:
    """What the text says, and how it was read where that is a choice. None: nothing is said.

    `bare_selective` is what the framework means by the bare word: core_attention, ops or every_other_block.
    """
    text = re.sub(r"\(.*?\)", "", text.strip().lower())
    if text in ("", "partial"):
        return None, None
    if text == "none":
        return Recompute(kind="none"), None
    if text == "core_attn_default_or_none":
        return Recompute(kind="none"), "recompute default or none: none, as attention is fused"
    if found := re.fullmatch(r"full_layers:(\d+)", text):
        return Recompute(kind="full", layers=int(found[1])), None
    if text.startswith("remat:"):
        return _remat(text.removeprefix("remat:"))
    if text == "full":
        return Recompute(kind="full"), None
    if text in ("selective_op", "selective_layer"):
        return Recompute(kind=text), None
    if text.startswith("selective:"):
        return Recompute(kind="selective", modules=tuple(text.removeprefix("selective:").split("+"))), None
    if text.startswith("selective"):
        if bare_selective == "core_attention":
            return Recompute(kind="selective", modules=("core_attention",)), None
        if bare_selective == "ops":
            return Recompute(kind="selective_op"), None
        return Recompute(kind="selective_layer"), "selective, in this framework a share of the layers: every other one"
    return None, f"recompute {text!r} is unknown"


def _remat(policy: str) -> tuple[Recompute | None, str | None]:
    if policy.startswith("minimal"):
        return Recompute(kind="selective_op"), "remat minimal keeps the products: as selective_op"
    if policy == "full":
        return Recompute(kind="full"), None
    if "qkv" in policy:
        return Recompute(kind="full", keeps=("qkv_proj",)), None
    if policy == "custom":
        how = (
            "remat custom: everything but the query, key and value projections, which wait on the host with the "
            "inputs of layers, as in MaxText's published policies"
        )
        return Recompute(kind="full", keeps=("qkv_proj",), on_host=True), how
    return None, f"remat policy {policy!r} is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """A ZeRO stage, 0..3; `within` devices form a sharding group (0: all data-parallel ones, -1: those of a host)."""

    stage: int
    within: int = 0
    regather: bool = True


def zero_of(text: str, dist_opt: str) -> Zero | None:
    """None: neither column says."""
    text = text.strip().lower()
    if not text:
        return {"1": Zero(stage=1), "0": Zero(stage=0)}.get(dist_opt.strip())
    found = re.search(r"within_(\d+)", text)
    within = int(found[1]) if found else 0
    if text == "none":
        return Zero(stage=0)
    if "shard_grad_op" in text or "no_reshard" in text:
        return Zero(stage=3, within=within, regather=False)
    if text.startswith("hsdp"):
        return Zero(stage=3, within=-1)
    if found := re.search(r"zero_?(\d)", text):
        return Zero(stage=min(int(found[1]), 3), within=within)
    if "fsdp" in text or "fully_sharded" in text:
        return Zero(stage=3, within=within)
    return None


SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved_1f1b": "interleaved",
    "1f1b-interleaved": "interleaved",
    "interleaved": "interleaved",
    "interleaved_1f1b_custom": "interleaved",
    "zb-1p": "zb-1p",
    "zb-2p": "zb-2p",
    "zb-v": "zb-v",
}

_PLAIN_WORDS = (
    *("eager", "float8", "packed", "unpacked", "mtp", "lamb", "parallel_block", "sliding_window", "step_time_derived"),
    *("a2a_overlap", "tp_overlap", "pp_overlap", "dp_overlap"),
)

WORDS = {word: rf"\b{word}" for word in _PLAIN_WORDS} | {
    "compile": r"(?<!no )\bcompile\b",
    "async_tp": r"\basync[ _]?tp\b",
    "short_ends": r"first/last stage has one layer less",
    "slow_network": r"\bslow inter-node\b",
    "config_read": r"\bread from release config\b",
}
"""An option, and what in the notes sets it."""

_PAIR = re.compile(r"(?:^|;)\s*(\w+)=([^;]*)")
_DEFAULT_SEQ = re.compile(r"\bseq\b.*?(\d{3,7}) default")


_PARTITION = re.compile(r"layer_partition=\[(\d+(?:/\d+)+)\]")


def options_of(notes: str, moe_routing: str = "") -> frozenset[str]:
    """Words and key=value parts of the notes."""
    text = notes.lower()
    words = {option for option, pattern in WORDS.items() if re.search(pattern, text)}
    pairs = {f"{key}={value.strip()}" for key, value in _PAIR.findall(text)}
    routing = {f"moe_routing={moe_routing}"} if moe_routing else set()
    return frozenset(words | pairs | routing)


def partition_in(notes: str, layers: int) -> tuple[int, ...]:
    """Layers of each stage, by the bounds of a partition in the notes: `layer_partition=[0/14/30]`.

    Bounds may count modules beside the layers (casts, the embedding, the last norm and the head), as many before them
    as after.
    """
    found = _PARTITION.search(notes)
    if found is None:
        return ()
    bounds = [int(bound) for bound in found[1].split("/")]
    before = max(0, bounds[-1] - layers) // 2
    ends = [min(max(bound - before, 0), layers) for bound in bounds]
    return tuple(end - start for start, end in pairwise(ends))


def number_in(options: frozenset[str], *keys: str) -> int | None:
    """The number of the first of these keys that the options give."""
    for key in keys:
        for option in options:
            name, _, value = option.partition("=")
            if name == key and re.fullmatch(r"-?\d+", value):
                return int(value)
    return None


def default_seq_in(notes: str) -> int | None:
    """A sequence length that the notes call the default."""
    found = _DEFAULT_SEQ.search(notes)
    return int(found[1]) if found else None


def finite(text: str) -> float | None:
    """The number that a cell holds, if it holds one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


MEMORY_MEANINGS = {"gib_max_over_ranks": "reserved", "gb_as_reported": "allocated", "as_reported": "device"}
"""What published figures count, by the spelling of `mem_kind`; `device`: all that the device shows.

torchtitan prints max_reserved_gib of torch's allocator each step, and its tables say GiB and the maximum over ranks.
The zero-bubble paper (2401.10241) does not say what it counts; Megatron-LM, on which it builds, reports the peak that
torch allocated (megatron/utils.py, report_memory), hence that. Other reports are read as nvidia-smi's.
"""


def memory_meaning(kind: str) -> str:
    """allocated | reserved | device; by a word that the kind contains, else what nvidia-smi shows."""
    kind = kind.strip().lower()
    named = next((word for word in ("allocated", "reserved") if word in kind), "device")
    return MEMORY_MEANINGS.get(kind, named)


def memory_bytes(text: str, kind: str) -> float | None:
    """Peak memory in bytes; GiB where the kind says so, else GB."""
    value = finite(text)
    return value * (2.0**30 if kind.lower().startswith("gib") else 1e9) if value and value > 0 else None
