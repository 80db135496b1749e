"""Tables of targets, one module each. In: options of a target's files. Out: its `Target`.

| module | target |
|---|---|
| `megatron` | command lines of Megatron-LM |
| `megatron_bridge` | YAML overrides of Megatron-Bridge |
| `torchtitan` | TOML of torchtitan |
| `deepspeed` | JSON of DeepSpeed |
| `accelerate` | YAML of accelerate |
| `maxtext` | YAML of MaxText |

What several targets share: `megatron_core` and `megatron_overlaps` (all that both Megatrons mean alike), `stages` (how
layers are shared out), `fsdp` (what torch's data parallelism is). `every` is the list of all.
"""
