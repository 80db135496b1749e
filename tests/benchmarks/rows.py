"""Rows of published runs for the tests: a plain one, and tables written to disk."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

MODEL = {
    "model": "small",
    "family": "llama",
    "layers": "8",
    "hidden": "512",
    "ffn_hidden": "1024",
    "heads": "8",
    "kv_heads": "4",
    "vocab": "1000",
    "glu": "1",
}

ROW = {
    "source": "paper",
    "model": "small",
    "seq_len": "2048",
    "precision": "bf16",
    "gpu": "H100-80G",
    "n_gpus": "16",
    "gpus_per_node": "8",
    "tp": "2",
    "pp": "2",
    "cp": "1",
    "dp": "4",
    "zero": "zero1",
    "mbs": "1",
    "gbs": "64",
    "recompute": "none",
    "schedule": "1f1b",
    "framework": "megatron_core_0.8",
    "interconnect": "nvlink4+8x400g_ib",
    "step_time_best_s": "2.5",
    "step_time_s": "2.5",
}


def table(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(rows)
    return path
