"""Measuring kernels and collectives with torch, on processes of this machine or under torchrun.

    cases -> ranks -> samples, line by line

| module | what it has |
|---|---|
| `door` | what a calibration asks of this backend: software, ranks started and watched |
| `ranks` | the loop of one rank |
| `kernels` | products, attention, streams and chains on one rank |
| `wires` | collectives, alone and beside products |
| `steps` | emitted scripts run in turns |
| `reference` | models whose whole steps are measured |
"""
