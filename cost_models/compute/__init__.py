"""Prices of compute.

| module | what it has |
|---|---|
| `kernels` | one kernel on one device, in seconds |
| `gemm`, `gemm_table` | the law of matrix products, and measured ones |
| `attention` | efficiency as a curve over the sequence |
| `memory_bound` | kernels that move bytes |
| `profile` | constants, chips and curves |
| `known` | everything that is known of a device, to be shown |
"""
