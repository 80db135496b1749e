"""Constants of traces.

| module | what it has |
|---|---|
| `constants` | evaluated lazily at single points |
| `code`, `forms` | as lines of torch code |
"""
