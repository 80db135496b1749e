"""Refusals that are laws of mathematics or of torch: a closed list. Every other refusal is a gap of ours."""

from __future__ import annotations

from collections.abc import Mapping

LAWFUL: Mapping[str, str] = {
    "exit 3": "No plan of the whole model fits the memory of the cluster; the answer says by how much.",
    "MW1009": "Which operators run depends on values: there is no one graph to plan.",
    "MW4019": "The model has fewer blocks, or no such loop, as the degree would cut.",
    "MW4070": "The blocks of the model cannot be shared out among as many stages.",
    "MW4072": "The heads are not divided by the degree that cuts them.",
    "MW4073": "There are no experts, or as many as the degree does not divide.",
    "MW4074": "The width is not divided by the degree that cuts it.",
    "MW4075": "There is no sequence, or one that the degree does not divide.",
    "MW4076": "The batch is not divided by the copies and micro-batches.",
    "MW5020": "The loss is no mean and no sum over samples, and every pipeline has micro-batches.",
    "MW5022": "Its forward pass writes into parameters, and torch forgets what is written into shards.",
}
"""By code; a sentence says why nobody could do it."""
