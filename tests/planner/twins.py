"""Plans by degrees for real models and clusters, and their small twins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from meshwright.ir.fold import Fold
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.contract import Source
from meshwright.ir.frontends.load import load_model
from meshwright.ir.names import template
from meshwright.ir.workload import Workload
from meshwright.planner.pins import fill, parse
from meshwright.planner.twin import Planned

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA, OWN = str(EXAMPLES / "configs" / "llama-3.1-8b"), f"{EXAMPLES / 'llama.py'}:llama_8b"
RANKS, SEQ = 64, 512


@cache
def captured(model: str, batch: int) -> tuple[Source, Fold]:
    source = load_model(model, dtype="bf16")
    return source, capture(source, batch=batch, seq=SEQ).fold


def planned(model: str, pins: str, batch: int = 64) -> Planned:
    """The plan that pins mean, for 64 GPUs."""
    config = replace(fill(parse([pins]), ranks=RANKS, global_batch=batch), split="even")
    source, fold = captured(model, config.batch)
    return Planned(
        model=model,
        source=source,
        fold=fold,
        decisions=template(fold, config.degrees(), "torch-cuda"),
        config=config,
        workload=Workload(global_batch=batch, seq=SEQ),
    )
