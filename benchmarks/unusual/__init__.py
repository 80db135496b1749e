"""Models that named configurations do not fit well, and questions about them.

| file | what it holds |
|---|---|
| `tables`, `towers`, `convolutions` | models in plain torch |
| `*.toml` | decoders: a huge vocabulary, one head of keys, a wide layer, few experts, eleven heads, long sequences |
| `questions` | what is asked of them, and of usual models, on which clusters; pins drawn by seed |
"""
