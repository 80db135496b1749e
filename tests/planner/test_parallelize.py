"""`meshwright.parallelize` in a loop of one's own (examples/own_loop.py), on two processes: the losses of one device;
and models that the plan is not for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import meshwright
from meshwright.backends.torch_.parallel import Parallelized, same_parameters
from meshwright.ir.errors import BatchImpossible, OptimizerElsewhere, PlanOfAnotherModel
from meshwright.ir.frontends.door import capture, load_model
from meshwright.planner.cli.main import main
from tests.ir.frontends.tiny import write_config
from tests.planner.solved import TINY

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOP = EXAMPLES / "own_loop.py"
TIED = Path(__file__).parents[1] / "backends" / "torch_" / "llama_tied.py"
HOW = ("--cluster", "cpu:2", "--target", "torch-gloo", "--global-batch", "8", "--seq", "16", "--dtype", "fp32")
STEPS = 3


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A plan of the file's model, one of a configuration, and that configuration."""
    own, other, config = (tmp_path_factory.mktemp(name) for name in ("own", "other", "config"))
    write_config(config, "llama-3.1-8b", 2, vocab_size=256)
    assert main([TINY, *HOW, "--fix", "tp=2", "--out", str(own)]) == 0
    assert main([str(config), *HOW, "--fix", "dp=2,zero=3,microbatches=1", "--out", str(other)]) == 0
    return own, other, config


def alone(model: nn.Module, names: tuple[str, str]) -> list[float]:
    """The same loop on one device, as it was before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(STEPS):
        text = torch.randint(0, 256, (8, 17))
        optimizer.zero_grad()
        outputs = model(**{names[0]: text[:, :-1]})
        scores = getattr(outputs, "logits", outputs)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.e2e
def test_a_loop_of_ones_own_learns_what_one_device_does(plans: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, other, config = plans
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, own_loop\n"
        f"found = own_loop.main({str(own)!r}, None, {STEPS}), own_loop.main({str(other)!r}, {str(config)!r}, {STEPS})\n"
        "if os.environ['RANK'] == '0':\n    print('FOUND', *found[0], *found[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(driver)],
        env=os.environ | {"PYTHONPATH": f"{EXAMPLES.parent / 'src'}:{EXAMPLES}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = re.findall(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    found = [float(one) for one in line.split()]
    torch.manual_seed(0)
    expected = alone(_built(TINY), ("tokens", "labels"))
    torch.manual_seed(0)
    expected += alone(_of(config), ("input_ids", "targets"))
    assert found == pytest.approx(expected, rel=1e-5)


def _built(reference: str) -> nn.Module:
    built: nn.Module = load_model(reference).beside["tiny"]()
    return built


def _of(config: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = AutoConfig.from_pretrained(config, use_cache=False)
    made: nn.Module = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    return made


def test_at_most_five_lines_of_the_loop_change() -> None:
    lines = [line for line in LOOP.read_text().splitlines() if "# changed" in line]
    assert 0 < len(lines) <= 5
    using = {node.value.id for node in ast.walk(ast.parse(LOOP.read_text())) if _named(node)}
    assert {"meshwright", "part"} <= using
    assert all("# changed" in line for line in LOOP.read_text().splitlines() if re.search(r"meshwright\.|part\.", line))


def _named(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def test_another_model_is_refused(plans: tuple[Path, Path, Path]) -> None:
    own, _, _ = plans
    model = load_model(TINY).module
    model.blocks[1].attention.k_proj = nn.Linear(64, 64, bias=False)
    with pytest.raises(PlanOfAnotherModel, match=r"blocks\.1\.attention\.k_proj\.weight: it is \(64, 64\) here"):
        meshwright.parallelize(model, own)
    longer = load_model(TINY).module
    longer.more = nn.Linear(2, 2)
    with pytest.raises(PlanOfAnotherModel, match="more"):
        meshwright.parallelize(longer, own)


def test_a_parameter_of_two_names_is_one() -> None:
    """The plan places it once; where it was untied, its second name is another parameter."""
    source = load_model(f"{TIED}:tied")
    fold, model = capture(source, batch=2, seq=16).fold, source.module
    same_parameters(model, fold, "tied")
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(PlanOfAnotherModel, match=r"head\.weight"):
        same_parameters(model, fold, "tied")


@pytest.mark.parametrize(
    ("schedule", "rows", "says"), [(None, 6, "which 4 parts"), (None, 8, ""), ("1f1b", 12, "stages expect 8")]
)
def test_a_batch_that_cannot_be_shared_out_is_refused(schedule: str | None, rows: int, says: str) -> None:
    part = Parallelized(module=None, schedule=schedule, mesh=None, script=ModuleType("train"), parts=4)
    part.script.GLOBAL_BATCH = 8  # type: ignore[attr-defined]
    with pytest.raises(BatchImpossible, match=says) if says else nullcontext():
        part.check({"tokens": torch.zeros(rows, 16)})


def test_an_optimizer_whose_state_is_elsewhere_is_refused() -> None:
    """The plan's lies in the host's memory: the script makes it."""
    script, model = ModuleType("train"), nn.Linear(2, 2)
    part = Parallelized(module=model, schedule=None, mesh=None, script=script)
    own = part.optimizer(torch.optim.SGD)
    assert own.param_groups[0]["params"] == list(model.parameters())
    script.GLOBAL_BATCH, script.OnHost = 8, type("OnHost", (), {})  # type: ignore[attr-defined]
    script.make_optimizer = lambda module, make: (module, make)  # type: ignore[attr-defined]
    assert part.optimizer(torch.optim.SGD) == (model, torch.optim.SGD)
    with pytest.raises(OptimizerElsewhere, match="SGD"):
        part.step(own, {})
