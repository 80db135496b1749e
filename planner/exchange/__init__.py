"""Exchange: a configuration in the settings of other training frameworks, and back.

| module | what it holds |
|---|---|
| `run` | a `Run`: a configuration and its workload in one normal form, what is said of it and what it follows from |
| `options` | options of a target: their names, the kinds of their values, and a file's values, read strictly |
| `target` | a `Target`: its tables, and what follows from them: `projected`, `said`, `meant` |
| `targets/` | one table for each target |
| `syntax/` | files as they are written: command lines, TOML, JSON, YAML, `key=value` |
| `published/` | names of options as targets publish them, with their source; no code reads more into them than that |
| `files` | a file of settings: which target's it is, what it says, what is left, what is refused |
| `taken` | a question with what a file of settings says |

In: a `Run` and the `Room` that it has (ranks, layers). Out: the text of a settings file, and everything that the target
cannot say, with the nearest that it can. The other way: a settings file, and what it says of a run.

    run --projected--> run' --said--> options --text--> file --given--> options --meant--> run'

A table has two halves. A `Line` ties options to fields of a run, both ways, for runs that the target can say. A `Limit`
makes of any run one that it can say, and says why. Laws (tests/planner/exchange): `meant` is the inverse of `said` on
what `projected` gives, and `projected` changes nothing that it has given.

Nothing here prices. What a projection costs is the evaluator's business (`planner.answer.exchanged`).
"""
