"""Constants of traces as lines of torch code.

| module | what it has |
|---|---|
| `code` | the lines that make one |
| `forms` | how each operator is written |
"""
