"""Prices: what compute, collectives, memory and schedules cost on a given cluster.

    Program, Cluster, Profile -> `evaluate` -> Prediction

| room | what it has |
|---|---|
| `hardware/` | devices and clusters, and how they are written; numbers that say where they come from |
| `compute/` | one kernel on one device |
| `collectives/` | one collective over the shape of a group |
| `measured/` | what a calibration found on one machine |
| `ledger/` | what one run of a body asks of a device and of its wires, before any price |
| `memory/` | what a rank holds at its fullest instant |
| `intervals/` | how far a step may be from its price, by what constants were fitted on |
| `schedule` | the event simulator of pipelines |
| `cost`, `prices`, `step` | phases priced, prices remembered, bodies made stages and the stages a step |
| `overlap` | what runs beside what |
| `offload`, `traffic`, `host_traffic` | what crosses the host link, and the network |
| `prediction`, `profile`, `constants` | the answer; every number that a price needs; the same as a table |
"""
