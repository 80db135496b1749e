"""Runs of emitted scripts on local processes.

| module | what it has |
|---|---|
| `ranks` | one process per rank, forked from one |
| `loading` | a script as a module |
| `counting`, `memory` | collectives executed, bytes held; `watching` is their base |
| `precise`, `still` | in fp64; without draws |
| `state` | what is compared beside parameters |
| `fake` | one rank of a mesh that no machine here has |
"""
