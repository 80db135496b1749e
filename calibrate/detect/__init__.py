"""Detection: the cluster file of machines, from what their tools print.

    outputs -> facts of each (`outputs`) -> hosts -> pools of equal hosts -> TOML, read back

| module | what it has |
|---|---|
| `machine` | this machine asked, and saved files read: nothing else here runs or opens anything |
| `nvml` | GPUs by NVIDIA's library, where `nvidia-smi` is missing |
| `outputs/` | a parser for each tool |
| `told` | a number with how it is known, and what a host has of them |
| `gpus`, `nics` | the devices and the adapters of a host, beside those of the table |
| `hosts` | one host, from all its outputs |
| `pools` | equal hosts together, and links between pools |
| `written` | the file, each number with a comment |

Where outputs contradict each other they are refused; what a file cannot say becomes a warning in it.
"""
