"""Objectives: what plans are compared by. The least is best.

    time     seconds of an optimizer step
    cost     what a step costs: its time, times the price of the devices per hour. With every device of a cluster in use
             it is least where time is; so hosts may be left idle, and the search goes over numbers of hosts
    memory   bytes by which the fullest stage is too full: negative where there is room. The least is the most room:
             where all devices are alike, the least peak memory

Whatever is compared, a plan must fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.cost_models.cluster import Cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import ObjectiveUnknown, PriceMissing, nearest

HOUR_S = 3600.0
OBJECTIVES = ("time", "cost", "memory")


@dataclass(frozen=True, slots=True)
class Objective:
    """What plans are compared by: its name, and the score of a prediction."""

    name: str
    score: Callable[[Prediction], float]


def price_per_s(cluster: Cluster) -> float:
    """What all devices of a cluster cost in a second, in the currency of their prices."""
    for pool in cluster.pools:
        if pool.price is None:
            raise PriceMissing(
                place=f"cluster, pool {pool.name!r}",
                cause="it has no price, and plans are to be compared by cost",
                fix="give price_per_gpu_hour in the cluster's file, or price=2.5 in its short form",
            )
    return sum(pool.ranks * pool.price.value for pool in cluster.pools if pool.price) / HOUR_S


def too_full_bytes(prediction: Prediction) -> float:
    """Of the fullest stage; negative where there is room."""
    return max(stage.memory.peak_bytes - stage.memory.capacity_bytes for stage in prediction.stages)


def objective_named(name: str, cluster: Cluster) -> Objective:
    """An objective by its name."""
    if name == "time":
        return Objective(name, lambda prediction: prediction.step_time_s)
    if name == "cost":
        price = price_per_s(cluster)
        return Objective(name, lambda prediction: prediction.step_time_s * price)
    if name == "memory":
        return Objective(name, too_full_bytes)
    meant = nearest(name, OBJECTIVES)
    raise ObjectiveUnknown(
        place=f"--objective {name}",
        cause="plans cannot be compared by it",
        fix=f"did you mean {meant!r}?" if meant else f"use one of {', '.join(OBJECTIVES)}",
    )
