"""Reading: the parts of a plan that decide its code.

| module | what it has |
|---|---|
| `allowed` | what no code is written for, as far as it shows without looking into bodies |
| `axes` | what every mesh axis is for |
| `storage`, `copies` | how parameters and their copies are kept |
| `pipeline`, `heterogeneous` | stages, and stages of different meshes |
| `recompute`, `precision` | what is computed again, and in which dtypes |
| `sections`, `statistics` | fused weights, batch norms |
"""
