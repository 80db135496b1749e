"""What must not depend on the hash seed, by name: each entry prints it. All of them run in one process per seed, which
imports frameworks once:

    python -m tests.e2e.same_answers FOLDER     texts by name, as JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import published_runs
from benchmarks.searches import opened, searched
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.graph.text import fold_text
from meshwright.planner.cli.main import main as command
from meshwright.planner.plan.file import FILE
from tests.backends.torch_ import golden, test_emit
from tests.benchmarks import test_commands
from tests.benchmarks.rows import table
from tests.e2e.spine import CONFIGS, EXAMPLES
from tests.planner import test_search
from tests.planner.block_solver import ties
from tests.planner.scheduling import test_schedule
from tests.planner.solved import ARGV

TINY = f"{EXAMPLES / 'llama.py'}:tiny"
INSPECT = ("--batch", "2", "--seq", "32", "--json")
ESTIMATE = ("--cluster", "2x4xA100", "--global-batch", "16", "--seq", "64")


def printed(run: Callable[[list[str]], int], *argv: str) -> str:
    """What a command writes to standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(list(argv)) == 0
    return out.getvalue()


def plan(folder: Path) -> str:
    printed(command, *ARGV, "--fix", "cp=1", "--out", str(folder))
    return (folder / FILE).read_text()


def search(_: Path) -> str:
    found = searched(opened(test_search.CASES[0], test_search.FEW))
    assert found.best is not None
    return str([[str(config), one.step_s] for config, one in found.found.items()] + [str(found.best.config)])


def folds(_: Path) -> str:
    """Models with every kind of segment."""
    names = ("llama.py:tiny", "unet.py:tiny", "lora_llama.py:tiny", "tiny_decoder.toml")
    return "".join(fold_text(capture(load_model(f"{EXAMPLES}/{name}"), batch=2, seq=96).fold) for name in names)


def published(folder: Path) -> str:
    runs = table(folder / "runs.csv", test_commands.ROWS)
    models = table(folder / "models.csv", test_commands.MODELS)
    return printed(published_runs.main, "--runs", str(runs), "--models", str(models), "--json", "--processes", "1")


def many(folder: Path) -> str:
    """`estimate --configs`, which the number of processes does not change either."""
    lines = [{"tp": tp, "pp": pp, "recompute": kind} for tp in (1, 2, 4) for pp in (1, 2) for kind in ("none", "full")]
    (folder / "configs.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"tp": 3}])))
    argv = ("estimate", TINY, *ESTIMATE, "--json", "--configs", str(folder / "configs.jsonl"))
    alone, shared = (printed(command, *argv, "--jobs", jobs) for jobs in ("1", "3"))
    assert alone == shared
    return alone


ANSWERS: Mapping[str, Callable[[Path], str]] = {
    "inspect, a factory": lambda folder: printed(command, "inspect", TINY, *INSPECT),
    "inspect, a configuration": lambda folder: printed(
        command, "inspect", str(CONFIGS / "gemma-3-1b" / "config.json"), *INSPECT
    ),
    "inspect, a shape": lambda folder: printed(command, "inspect", str(EXAMPLES / "tiny_decoder.toml"), *INSPECT),
    "folds": folds,
    "estimate, JSON": lambda folder: printed(command, "estimate", TINY, *ESTIMATE, "--fix", "tp=2,pp=2", "--json"),
    "estimate, tables": lambda folder: printed(command, "estimate", TINY, *ESTIMATE, "--fix", "tp=2,pp=2"),
    "estimate, many": many,
    "search": search,
    "plan": plan,
    "script": lambda folder: golden.text_of(test_emit.plan_of("tp+sp x fsdp, recompute")),
    "block problems": lambda folder: "\n".join(ties.told()),
    "orders of pipelines": lambda folder: "\n".join(test_schedule.told()),
    "published runs": published,
}


def main(folder: Path) -> None:
    """Print all of them."""
    found = {}
    for number, (name, answer) in enumerate(ANSWERS.items()):
        own = folder / str(number)
        own.mkdir()
        found[name] = answer(own)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
