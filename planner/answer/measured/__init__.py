"""What a calibration takes from the planner: kernels that plans of a model run, and whole steps, of reference models
and of a user's own runs.

| module | in → out |
|---|---|
| `kernels` | a model → the kernels that its plans run |
| `residuals` | a profile of kernels → the same with what whole steps take beyond them |
| `learned` | a profile and a run of a plan → the profile moved towards it |
"""
