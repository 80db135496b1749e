"""What becomes of models that nobody here chose: every architecture that packages ship, and styles that people write.

    python -m benchmarks.registry [--draw N --seed S | --all | --only NAME …] [--of PREFIX] [--cells …]
                                  [--done FILE] [--table FILE]

`answers.jsonl` holds the last answer to every question that was asked, and docs/registry.md is made of it: `--done` and
`--table` with these two ask what is not on record yet, and `--again` what is open.

| room | in → out |
|---|---|
| `entries` | what is installed → names of models, each with how it is written as users give it |
| `hugging_face`, `vision`, `models/` | the architectures of transformers and torchvision, and models of our own |
| `cells` | the questions that are asked of every model, and their pins |
| `asking` | a model, cells → rows: the command line's own verbs, in one process |
| `running` | models, cells → rows: each model in processes of its own, under limits, taken up again where one ended |
| `rows` | an exit code and what was said → a `Row`: exact, refused, failed, differs, no time |
| `lawful` | the closed list of refusals that are laws of mathematics or of torch |
| `page` | rows → the table, and which bars hold |

A model is given as users give it: a directory with a `config.json`, or `file.py:factory`. Cells of the published size
are inspected and planned; small twins, made by the product itself (`meshwright.ir.frontends.door.twin_of`), are
planned for a few local processes, emitted, run and held against the model on one device, as `plan verify` does.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Draw, ask, print."""
    from benchmarks.registry.command import run

    return run(argv)
