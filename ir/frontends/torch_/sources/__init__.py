"""Sources of torch models: the forms of MODEL.

| module | what it has |
|---|---|
| `hf_config` | a Hugging Face `config.json` |
| `shape_toml`, `decoder` | a shape file, and the reference decoder that it describes |
| `factory` | a module with its hooks: of a file's factory, or one that exists already |
| `language`, `labels`, `own_loss` | batches and losses where there are no hooks |
| `model_file` | a model that has no file, as one |
| `dtypes` | torch dtypes by our names |
"""
