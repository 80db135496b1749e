"""Objectives: what plans are compared by. The least is best; whatever it is, a plan must fit.

    time     seconds of an optimizer step
    cost     what a step costs: its time, times the price of the devices per hour. With every device of a cluster in use
             it is least where time is, so hosts may be left idle: the search goes over numbers of hosts
             (`planner.cheapest`), and what one has found is the ceiling of the next
    memory   peak memory of the fullest rank; of two plans with the same, the faster (`planner.search.least_memory`)

Prices are in whatever currency the cluster's file is in.
"""

from __future__ import annotations

from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import ObjectiveUnknown, PriceMissing, instead

HOUR_S = 3600.0
OBJECTIVES = ("time", "cost", "memory")


def price_per_s(cluster: Cluster) -> float:
    """Price of all devices of a cluster per second."""
    for pool in cluster.pools:
        if pool.price is None:
            raise PriceMissing(
                place=f"cluster, pool {pool.name!r}",
                cause="it has no price, and plans are to be compared by cost",
                fix="give price_per_gpu_hour in the cluster's file, or price=2.5 in its short form",
            )
    return sum(pool.ranks * pool.price.value for pool in cluster.pools if pool.price) / HOUR_S


def check_objective(name: str, cluster: Cluster) -> None:
    """Check that plans for this cluster can be compared by an objective."""
    if name not in OBJECTIVES:
        raise ObjectiveUnknown(
            place=f"--objective {name}",
            cause="plans cannot be compared by it",
            fix=instead(name, OBJECTIVES),
        )
    if name == "cost":
        price_per_s(cluster)


def score(name: str, prediction: Prediction, cluster: Cluster) -> float:
    """The figure by which a plan is compared: seconds, money or bytes."""
    if name == "cost":
        return prediction.step_time_s * price_per_s(cluster)
    return prediction.peak_memory_bytes if name == "memory" else prediction.step_time_s
