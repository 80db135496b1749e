"""Analyses of a graph alone, or of a graph and a workload, before any plan.

| module | what it has |
|---|---|
| `loops` | the factors of single operators, joined into the loops of the model: batch, heads, ffn, … |
| `account` | work and bytes by the rules |
| `cuts` | where a model can be divided into pipeline stages, and what would cross there |
| `microbatch` | whether the batch may be cut in time |
| `rebatch` | the same model at another batch size |
| `weights` | what the loss of a part of a batch weighs in the whole |
| `fused` | products that yield several values side by side |
| `saved` | what is kept from the forward pass for the backward pass |
"""
