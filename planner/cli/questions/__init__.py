"""Questions in files: `plan.toml`, which `plan init` writes and --config reads.

| module | in | out |
|---|---|---|
| `keys` | | the keys of the file, by their tables; each stands for the option of its name |
| `table` | | what each key may be; imports pydantic |
| `reading` | a file and what the command line says | the arguments of the verb |
| `template` | what is known of a question | the text of a file with every key |

The command line takes the place of the file, key by key: `--fix` of all that `fix` says. What nobody says is as it is
without a file.
"""
