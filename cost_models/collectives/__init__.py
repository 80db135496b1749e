"""Prices of collectives.

| module | what it has |
|---|---|
| `collective` | the door: kind, bytes, shape of the group → seconds |
| `topology` | which wires a collective runs over, and how many share them |
| `locations` | where the ranks of a cluster stand, as arrays |
| `laws`, `curves`, `facts` | laws of libraries, measured curves, what is known of both |
"""
