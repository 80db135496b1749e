"""Measurements of one machine, as prices read them.

    profile file -> `Measured` -> `Times` of a device, `Curves` of its collectives -> prices

| module | what it has |
|---|---|
| `measured` | what a calibration found, as one value |
| `times` | seconds of a kernel: its own measurement, or those near it |
| `several` | profiles joined, and held against each other |
| `file` | a `Measured` as JSON, alone in a file or inside a plan |
"""
