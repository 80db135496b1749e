"""What a target can be made to do, and what is trained on it.

| module | what it has |
|---|---|
| `capabilities` | capabilities as data |
| `combined` | what a target can have each and not together |
| `precisions` | in which precisions emitted code computes |
| `workload` | what is trained: batch, sequence, precision, optimizer, software |
"""
