"""The pages of docs/ and README.md: what in them is made from code, and what shows that their samples are true.

`python -m pages` writes every page that is generated (`generated.py` lists them), and `python -m pages.samples` what
commands print on all the others. Tests fail where either would change a page (`tests/pages/`), and build the site as CI
does: `make docs`.

| module | what it does |
|---|---|
| `fenced.py` | fenced blocks of a page, and the commands in them |
| `samples.py` | runs these commands, holds what they print against the page, or writes it there |
| `left_out.py` | the commands that are not run so, each with the reason, or with what runs it instead |
| `generated.py` | the pages that are generated, and what makes each |
| `cli.py`, `python.py`, `files.py`, `devices.py` | the reference |
| `accuracy.py` | predictions beside measurements, from results that benchmarks left, with their dates |
| `picture.py` | the drawing of the first page, of a plan that is planned for it |
| `site.py` | what the site makes of links that lead out of docs/ |
"""
