"""Outputs of tools, each read into the facts that it has.

    a text, and its place for errors -> the parser that its content tells -> a `Source`

| module | what it reads |
|---|---|
| `smi` | GPUs: `nvidia-smi --query-gpu`, `nvidia-smi -L` |
| `topo` | what joins them: `nvidia-smi topo -m` |
| `nccl` | both, and adapters: NCCL's topology |
| `adapters` | `ibstat`, /sys/class/infiniband, `ethtool`, /sys/class/net |
| `processors` | `lscpu`, /proc/cpuinfo |
| `names` | hosts of a job: Slurm's variables, hostfiles |
| `sources` | which of them a text is |

Parsers run nothing and open nothing.
"""
