"""Rows that we believe wrong, and why: what they state is not what the recipe of their release runs, or their release
is known to be slow.

The Megatron-Bridge summaries print degrees beside each figure, and the recipes that they name are public, by release
(NVIDIA-NeMo/Megatron-Bridge, scripts/performance). Where the two differ, and the figure fits the recipe, the row is
doubted. Nothing here touches a price, or leaves a row out of the figures: `published_runs` names these rows, and says
beside the figures of all mixtures those of the others.

A doubt is about what a row states, so that a table without the statement has no doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A statement that we do not believe: of this table, model and device, with an option or with these sizes."""

    table: str
    model: str
    device: str
    why: str
    option: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    def about(self, run: Run) -> bool:
        same = (run.table, run.model.name, run.device.name) == (self.table, self.model, self.device)
        stated = not self.option or self.option in run.options
        return same and stated and all(getattr(run, name) == size for name, size in self.sizes)


DOUBTS = (
    Doubt(
        table="26.02.01_pretrain",
        model="qwen3_235b_a22b",
        device="H100-80G",
        option="dispatcher=deepep",
        why="the recipe of 0.3.1 names DeepEP as the backend of a flexible dispatcher, and then sets "
        "moe_token_dispatcher_type to alltoall, so that no token went through it; the time is that of rows without",
    ),
    Doubt(
        table="25.11_pretrain",
        model="gpt_oss_120b",
        device="B200",
        sizes=(("ep", 8),),
        why="the recipe of 0.2.0 has ep 64; the throughput, 8,213 tokens/s each, is that of the row of 26.02 with 64 "
        "(8,047), while rows with ep 8 reach 13,000",
    ),
    Doubt(
        table="25.11_pretrain",
        model="gpt_oss_120b",
        device="H100-80G",
        sizes=(("micro_batch", 4),),
        why="the recipe of 0.2.0 has micro-batch 1; with 4, 8 micro-batches would leave 4 stages idle for 27 % of the "
        "step, and yet the throughput is within 6 % of rows with 80",
    ),
    Doubt(
        table="25.11_pretrain",
        model="qwen3_30b_a3b",
        device="H100-80G",
        sizes=(("micro_batch", 2), ("vp", 24)),
        why="the recipe of 0.2.0 has micro-batch 1, 12 virtual stages and overlapped exchanges; the throughput, 5,275 "
        "tokens/s each, is that of the row of 26.02 which states these (5,113)",
    ),
    Doubt(
        table="recompute_moonlight16b",
        model="moonlight_16b_a3b",
        device="H100-80G",
        sizes=(("tp", 2),),
        why="measured in August 2026, when the known issues of release 26.06 name this model with tp above 1 as slower "
        "than it was, by the base image (docs/releases/known-issues.md); other mixtures on H100 take near 10 ms for a "
        "layer and a micro-batch of 4,096 tokens, and these rows 17 ms and more",
    ),
)


def doubted(runs: Iterable[Run]) -> list[tuple[Run, str]]:
    """Rows that we believe wrong, and why."""
    return [(run, doubt.why) for run in runs for doubt in DOUBTS if doubt.about(run)]


def believed(run: Run) -> bool:
    return not any(doubt.about(run) for doubt in DOUBTS)
