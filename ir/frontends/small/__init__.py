"""Small twins of models, whatever their framework: the same code with small numbers.

| module | what it has |
|---|---|
| `runs` | what a front end tells of a model that is tried, and what it must be able to try |
| `shrink` | numbers made small by what they size, whatever they are called |
| `settings` | numbers in tables and lists, by their places |
| `same` | whether a model with smaller numbers is the same one |
| `made` | how a factory made its model, so that it can be made again with other numbers |
| `written` | the file that makes a twin |
"""
