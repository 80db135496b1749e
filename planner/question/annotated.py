"""What is asked of a model's own shardings: a mesh, and how many micro-batches run on it.

    --annotated dp=8,tp=4 --fix microbatches=2,recompute=full

The mesh has the axes that the code names, major to minor, and as many ranks as the cluster. The shardings say what each
axis does; of pins the batch and recomputation are left.
"""

from __future__ import annotations

from meshwright.ir.errors import AnnotatedMesh, BatchIndivisible, MeshwrightError, PinsContradict
from meshwright.ir.sharding.mesh import Mesh
from meshwright.planner.question.pins import Config, Pins

LEFT = ("microbatches", "recompute")
"""The pins that say nothing of how axes are used."""


def mesh_of(text: str, ranks: int) -> Mesh:
    """The mesh of --annotated. Raises `AnnotatedMesh`."""
    place = f"--annotated {text}"
    try:
        mesh = Mesh.parse(text.replace(",", " "))
    except MeshwrightError as error:
        raise AnnotatedMesh(place=place, cause=error.cause, fix="write NAME=SIZE,NAME=SIZE, as in dp=8,tp=4") from None
    if mesh.size != ranks or not mesh.axes:
        raise AnnotatedMesh(
            place=place,
            cause=f"a mesh of {mesh.size} ranks for a cluster of {ranks}",
            fix=f"give sizes whose product is {ranks}, or another --cluster",
        )
    return mesh


def config_of(pins: Pins, global_batch: int) -> Config:
    """The configuration in which all ranks together run a micro-batch. Raises `PinsContradict`, `BatchIndivisible`."""
    if beyond := next((name for name in pins.given if name not in LEFT), None):
        raise PinsContradict(
            place=f"--fix {beyond}",
            cause="the model's own shardings say what every axis does",
            fix=f"with --annotated, pin {' and '.join(LEFT)} alone",
        )
    asked = pins.config
    if ":" in asked.recompute:
        raise PinsContradict(
            place=f"--fix recompute={asked.recompute}",
            cause="with --annotated all blocks have one plan",
            fix="pin recompute=full, selective or none",
        )
    mbs, rest = divmod(global_batch, asked.microbatches)
    if rest or not mbs:
        raise BatchIndivisible(
            place="--fix microbatches",
            cause=f"{global_batch} sequences in {asked.microbatches} micro-batches",
            fix="pin a number that divides the global batch",
        )
    return Config(mbs=mbs, microbatches=asked.microbatches, recompute=asked.recompute)
