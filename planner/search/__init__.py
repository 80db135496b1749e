"""The search through the space: best first by bounds, until nothing left can be better.

| module | what it has |
|---|---|
| `search` | the search for the fastest plan |
| `pinned` | the same where something is asked of single modules |
| `least_memory` | the same space, in the order of what configurations need at least |
| `masks` | what a refusal holds for, beside the plan that met it |
| `phases` | the phases of an answer, for whoever shows how it goes on |
| `emittable` | the guard of answers: whether code is written for a plan |
"""
