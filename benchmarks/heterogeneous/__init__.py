"""Plans on networks that are not alike everywhere: predicted, started by their launch.sh on a testbed, and compared.

    topology -> hosts -> profile, calibrated there -> plans and other placements of them -> step times -> figures

| module | what it has |
|---|---|
| `topologies` | hosts, links and speeds, and the cluster file that says so |
| `running` | commands on all hosts at once, step times, and no time-out of TCP |
| `calibrating` | `plan calibrate` under torchrun on the hosts of a topology |
| `placed` | plans of a topology and other placements of each, priced and written |
| `judged` | what was found, held against the bars, and told |
"""
