"""Front ends: users' models as folds. Framework-free parts are here, torch's in `torch_`, JAX's in `jax_`.

| module | what it has |
|---|---|
| `door` | front ends by framework: which one reads a model, and what is asked of each |
| `remembered` | what an earlier run saw of a model, where nothing that it follows from has changed |
| `contract` | the hooks of a user's file |
| `foreign` | running code of users: nothing that it raises, prints or waits for escapes |
| `folding/` | from traced operators to a fold |
| `recognise/` | composites that a model wrote out (attention, norms, losses), as one operator each |
| `shape`, `hf_schema` | which keys a shape file has, and a Hugging Face `config.json` |
| `twin` | the small twin of a model: how small, and what it is called |
| `small/` | how twins are made, whatever the framework |
"""
