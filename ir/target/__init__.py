"""Targets: what each can be made to do, and the workloads that are trained on it.

| module | what it has |
|---|---|
| `capabilities` | capabilities as data |
| `combined` | what a target can have each and not together |
| `precisions` | in which precisions emitted code computes |
| `workload` | what is trained: batch, sequence, precision, optimizer, software |
"""
