"""What of a plan decides its code.

| module | what it has |
|---|---|
| `subject` | what is emitted, and what of it is not covered yet |
| `axes` | what every mesh axis is for |
| `storage`, `copies` | how parameters and their copies are kept |
| `pipeline`, `unlike`, `turns` | stages, stages of unlike meshes, blocks that take turns |
| `recompute`, `precision` | what is computed again, and in which dtypes |
| `sections`, `statistics` | fused weights, batch norms |
"""
