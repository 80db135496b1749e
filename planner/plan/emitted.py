"""A reloaded plan, as the emitter takes it, and the places of its cluster."""

from __future__ import annotations

from dataclasses import replace

from meshwright.backends.door import TARGETS, Backend, backend
from meshwright.backends.results import Seat
from meshwright.backends.subject import Subject
from meshwright.cost_models.hardware.cluster import Cluster
from meshwright.ir.errors import EmissionTarget
from meshwright.planner.plan.reload import Reloaded, program_of
from meshwright.planner.search import emittable


def subject_of(again: Reloaded) -> Subject:
    """A reloaded plan as the emitter takes it."""
    plan, setting = again.plan, again.setting
    calls = setting.folds.calls(again.ask.model, plan.config.batch)
    subject = emittable.subject_of(setting, calls, plan.config, plan.decisions, program_of(plan, setting))
    used = again.prediction.step_time_s * again.prediction.mfu * plan.machines.ranks
    subject = replace(subject, workload=plan.workload)
    return replace(subject, peak_flops=subject.step_flops / used if used else 0.0)


def backend_of(subject: Subject) -> Backend:
    """The backend of a plan's target."""
    found = backend(subject.decisions.target)
    if found is None:
        ways = tuple(f"--target {name}" for name in TARGETS if name != subject.decisions.target)
        raise EmissionTarget(place=f"target {subject.decisions.target}", cause="it is no runtime", ways=ways)
    return found


def seats(cluster: Cluster) -> list[Seat]:
    """The host and slot of every rank of a cluster."""
    found = []
    for rank in range(cluster.ranks):
        at = cluster.place(rank)
        pool = cluster.pools[at.pool]
        nic = at.slot * pool.ports // pool.gpus_per_host if pool.adapters else -1
        kind = pool.adapters[0].kind if pool.adapters else ""
        device = pool.device.like or pool.device.name
        found.append(Seat(host=cluster.host_index(at), device=device, gpu=at.slot, nic=nic, network=kind))
    return found
