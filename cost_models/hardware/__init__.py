"""Devices and clusters.

| module | what it has |
|---|---|
| `devices` | what one accelerator promises |
| `cluster` | pools of equal hosts, and what lies between any two of their devices |
| `text`, `toml`, `schema` | what `--cluster` understands |
| `quantity` | a number that says where it comes from |
"""
