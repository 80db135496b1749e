"""Devices and clusters.

| module | what it has |
|---|---|
| `devices` | what one accelerator promises |
| `cluster` | what lies between any two devices; `parts`: pools, adapters, links; `faults`: what is wrong with them |
| `text`, `toml`, `schema` | what `--cluster` understands |
| `quantity` | a number that says where it comes from |
"""
