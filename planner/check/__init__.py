"""Running a plan on this machine: what that takes, and one rank of every group alone.

| module | what it has |
|---|---|
| `needs` | the memory and time that a verification takes, held against what there is |
| `alone` | one rank of every group under a process group that communicates nothing |

What compares runs with one device stands in `backends.torch_.verify`.
"""
