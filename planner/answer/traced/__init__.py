"""Traces that profilers measured, read so that they can be held against a plan.

| module | in → out |
|---|---|
| `file` | a trace of torch's or JAX's profiler → a `Traced`: steps, and tracks of what ran |
| `tracks` | events of one track, nested → segments of compute and of communication |
| `step` | traces of several ranks → one step of all, on one clock; where its time goes |
| `beside` | that and a plan → measured beside predicted |
"""
