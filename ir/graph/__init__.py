"""Graphs: the computation of a model as plain data, framework-free, with every tensor by name.

| module | what it has |
|---|---|
| `graph` | operators, values, parameters, types |
| `fold` | a deep model as a short list of bodies, each used many times; `unfold` gives the graph back |
| `numbers` | numbers in which blocks may differ that are one body |
| `paths` | paths of blocks in lists, as numbers between texts |
| `invocation` | a call of the framework's operator by name, as attributes |
| `constants` | how the constants of a model are made, as lines of code |
| `calls` | how a user's model is called |
| `text`, `reader` | the text forms of graphs and folds, and back |
| `digest` | what a saved plan recognises a model by |
"""
