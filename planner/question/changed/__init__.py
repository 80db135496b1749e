"""Questions that are otherwise in one thing: --what-if, and --scale.

    the arguments of a question, KEY=VALUE,… -> the arguments of the changed question

| module | what it has |
|---|---|
| `tables` | keys of a workload and of its software, as tables of files: types, ranges, words |
| `changes` | the table of all that may be changed; a `Change` read, and made |
| `sizes` | numbers of devices that one model is planned for, and the question at each |
"""
