"""Completion scripts: what shells offer at every place of a command line, made of the parsers' declarations.

| module | what it has |
|---|---|
| `grammar` | verbs, their options, and what completes each value, as data |
| `bash`, `zsh`, `fish` | a `Grammar` as the script of a shell |

A script is static: it asks nothing of the command, so it costs nothing while one types.
"""
