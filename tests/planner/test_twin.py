"""Plans for real models and clusters, projected onto small twins: what is kept, what shrinks, what is refused; and the
twins' files, run."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import emit
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.decisions.project import Sizes, layers_of, projected, sizes_of
from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends.door import load_model, twin_of
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.frontends.twin import Scale
from meshwright.ir.names import Degrees
from meshwright.ir.schedules import Shape, check_schedule, compute_actions, stage_groups
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.target.workload import STACKS
from meshwright.planner.plan import twin as planner_twin
from meshwright.planner.plan.needs import parameters_of
from meshwright.planner.plan.twin import Planned, twinned
from tests.backends.torch_.proved import proved
from tests.planner.told import config
from tests.planner.twins import EXAMPLES, LLAMA, OWN, captured, over_unlike, planned, subject_of

SCALE = Scale(layers=2, seq=32, tokens=4096)
PHI = str(EXAMPLES / "configs" / "phi-3-mini")
FSDP, BOTH = "dp=64,zero=3,microbatches=1", "tp=8,dp=8,zero=3,microbatches=1"


def test_every_degree_keeps_two_ranks() -> None:
    sizes = sizes_of(planned(OWN, "tp=8,dp=4,pp=2,zero=3,microbatches=8").decisions, 8, 4)
    assert (sizes.meshes, sizes.microbatches, sizes.ranks) == ((Mesh.parse("dp=2 tp=2"),) * 2, 4, 8)


def test_a_single_degree_takes_what_there_is_room_for() -> None:
    assert sizes_of(planned(OWN, FSDP).decisions, 8, 4).meshes == (Mesh.parse("dp=4"),)


def test_what_has_no_room_is_told(tmp_path: Path) -> None:
    plan = planned(OWN, "tp=4,dp=8,shard=2,pp=2,zero=3,microbatches=4")
    assert sizes_of(plan.decisions, 4, 4).meshes == (Mesh.parse("dp=1 dp_shard=1 tp=2"),) * 2
    assert twinned(planned(OWN, FSDP), tmp_path).told == ()


@pytest.mark.parametrize("model", [OWN, LLAMA])
def test_the_twin_decides_what_the_plan_does(model: str, tmp_path: Path) -> None:
    plan, twin = planned(model, BOTH), twinned(planned(model, BOTH), tmp_path).subject
    for mine, its in zip(plan.decisions.plans, twin.decisions.plans, strict=True):
        kept = [pair for pair in mine.strategies if not pair[0].startswith("cast")]
        assert (mine.name, tuple(kept), mine.storage) == (its.name, its.strategies, its.storage)
    assert twin.decisions.stages[0].mesh == Mesh.parse("dp=2 tp=2")
    assert twin.decisions.target == "torch-gloo"


def shaped(*meshes: str, groups: int = 0, microbatches: int = 32) -> Any:
    """As much of a plan as sizes follow from: a mesh for every stage."""
    return SimpleNamespace(
        stages=[SimpleNamespace(mesh=Mesh.parse(mesh)) for mesh in meshes],
        groups=[()] * (groups or len(meshes)),
        schedule=SimpleNamespace(microbatches=microbatches),
    )


@pytest.mark.parametrize(
    ("plan", "most", "enough", "meshes", "stands_for", "microbatches"),
    [
        (shaped(*["dp=8 tp=4"] * 8, groups=4), 8, 4, ["dp=2 tp=2"] * 2, (0, 2, 4, 6), 4),
        (shaped(*["dp=8 tp=4"] * 8, groups=4, microbatches=3), 8, 4, ["dp=2 tp=2"] * 2, (0, 2, 4, 6), 3),
        (shaped(*["dp=8 tp=4"] * 3), 4, 4, ["dp=1 tp=2"] * 2, (0, 1), 4),
        (shaped("dp=8 tp=4"), 1, 4, ["dp=1 tp=1"], (0,), 2),
        # dp has shrunk most, then both have alike, and the later name grows
        (shaped("dp=8 tp=4"), 64, 8, ["dp=4 tp=2"], (0,), 2),
        (shaped("dp=8 tp=4"), 64, 16, ["dp=4 tp=4"], (0,), 2),
        (shaped("dp=8 tp=4"), 64, 99, ["dp=8 tp=4"], (0,), 2),
        (shaped("dp=3 tp=1"), 64, 99, ["dp=2 tp=1"], (0,), 2),
        # stages with meshes of their own: all as far as there is room, else the first and the last
        (shaped("dp=4", "dp=4", "dp=2 tp=2", "tp=8"), 8, 4, ["dp=2", "dp=2 tp=2", "tp=2"], (0, 2, 3), 6),
        (shaped("dp=4", "dp=4", "dp=2 tp=2", "tp=8"), 7, 4, ["dp=2", "dp=1 tp=2", "tp=2"], (0, 2, 3), 6),
        (shaped("dp=4", "dp=4", "dp=2 tp=2", "tp=8"), 4, 4, ["dp=2", "tp=2"], (0, 3), 4),
        (shaped("dp=4", "dp=4", "tp=8", microbatches=1), 2, 4, ["dp=1", "tp=1"], (0, 2), 1),
        (shaped("dp=4", "dp=2 tp=2", "dp=4"), 5, 4, ["dp=2", "dp=2"], (0, 2), 4),
    ],
)
def test_sizes_of_twins(
    plan: Any, most: int, enough: int, meshes: list[str], stands_for: tuple[int, ...], microbatches: int
) -> None:
    """Two ranks along every axis, outer ones given up where they are too many, then more where they were more."""
    sizes = sizes_of(plan, most, enough)
    assert sizes.meshes == tuple(map(Mesh.parse, meshes))
    assert (sizes.stands_for, sizes.microbatches) == (stands_for, microbatches)
    assert sizes.ranks == sum(mesh.size for mesh in sizes.meshes)
    assert sizes.axis("none") == 1
    assert sizes.axis("dp") == max((mesh.axis("dp").size for mesh in sizes.meshes if "dp" in mesh.names), default=1)


def test_fused_weights_are_cut_into_the_twins_sections(tmp_path: Path) -> None:
    plan = planned(PHI, BOTH)
    twin = twinned(plan, tmp_path).subject
    for decisions, sizes in (
        (plan.decisions, {"3072, 3072, 3072", "8192, 8192"}),
        (twin.decisions, {"64, 64, 64", "72, 72"}),
    ):
        assert set(re.findall(r"Sections\(sizes=\(([\d, ]+)\)\)", str(decisions.plans))) == sizes


def test_what_is_padded_for_many_ranks_is_cut_for_few(tmp_path: Path) -> None:
    """T5's table of 32 distances: 64 ranks have a row, or none; 4 have 8 rows each."""
    plan = planned(str(EXAMPLES / "configs" / "t5-large"), FSDP)
    twin = twinned(plan, tmp_path).subject
    for decisions, said in ((plan.decisions, "padded(1)"), (twin.decisions, "")):
        tables = [
            one.params for each in decisions.plans for one in each.storage if "relative_attention_bias" in one.path
        ]
        assert {str(shard.layout) for table in tables for shard in table.dims[0]} == {said}


def test_stages_begin_where_they_did_in_proportion(tmp_path: Path) -> None:
    plan = planned(OWN, "pp=4,dp=16,microbatches=4,stage_blocks=2+6+16+8")
    assert [stage.first for stage in plan.decisions.stages] == [0, 3, 9, 25]
    twin = captured(OWN.replace("llama_8b", "tiny"), 4)[1]
    made = projected(plan.decisions, plan.fold, twin, sizes_of(plan.decisions, 8, 4), "torch-gloo")
    assert [(stage.first, stage.last) for stage in made.stages] == [(0, 2), (2, 6)]
    assert [stage.ranks for stage in made.stages] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("apart", [True, False])
def test_a_list_of_actions_becomes_a_schedule_for_the_same_seats(apart: bool) -> None:
    plan = planned(OWN, "pp=2,vp=2,dp=16,tp=2,microbatches=4,schedule=zbv,zero=0")
    both = compute_actions("zbv", Shape(stage_groups("zbv", 2, 2), 4))
    actions = tuple(tuple(str(one) for one in each if apart or one.kind != "W") for each in both)
    listed = replace(plan.decisions, schedule=Schedule("custom", 4, actions))
    twin = captured(OWN.replace("llama_8b", "tiny"), 4)[1]
    made = projected(listed, plan.fold, twin, sizes_of(listed, 8, 4), "torch-gloo")
    assert made.schedule == Schedule("zbv" if apart else "interleaved", 4)
    check_schedule(made.schedule.name, Shape(((0, 3), (1, 2)) if apart else ((0, 2), (1, 3)), 4))
    assert (made.stages[0].ranks == made.stages[3].ranks) == apart


def test_another_structure_is_refused() -> None:
    plan = planned(OWN, FSDP)
    other = captured(f"{EXAMPLES / 'mlp.py'}:build", 4)[1]
    with pytest.raises(NoTwin, match="in the model"):
        projected(plan.decisions, plan.fold, other, sizes_of(plan.decisions, 8, 4), "torch-gloo")
    body = plan.fold.body["Block"]
    ops = tuple(replace(op, kind="gelu") if op.kind == "silu" else op for op in body.graph.ops)
    bodies = tuple(
        replace(body, graph=replace(body.graph, ops=ops)) if one.name == "Block" else one for one in plan.fold.bodies
    )
    with pytest.raises(NoTwin, match=r"the twin has %silu \(gelu\)"):
        projected(plan.decisions, plan.fold, replace(plan.fold, bodies=bodies), sizes_of(plan.decisions, 8, 4), "any")


def test_stages_of_different_meshes_keep_theirs(tmp_path: Path) -> None:
    plan = over_unlike(OWN, Degrees(dp=2, tp=4), Degrees(tp=8), Degrees(tp=8))
    made = twinned(plan, tmp_path)
    first, second = made.subject.decisions.stages
    assert (first.mesh, first.ranks) == (Mesh.parse("dp=2 tp=2"), (0, 1, 2, 3))
    assert (second.mesh, second.ranks) == (Mesh.parse("tp=2"), (4, 5))
    assert first.last == second.first
    assert made.told == ()


def test_kinds_of_stages_that_there_is_no_room_for_are_told(tmp_path: Path) -> None:
    plan = over_unlike(OWN, Degrees(dp=2, tp=4), Degrees(tp=8), Degrees(dp=4, tp=2))
    assert sizes_of(plan.decisions, 8, 4).ranks == 8
    assert twinned(plan, tmp_path).told == ("kinds of stages that 8 processes have no room for are left out: 1",)


def test_a_stage_without_plans_for_what_it_would_run_has_no_twin() -> None:
    plan = over_unlike(OWN, Degrees(dp=2, tp=4), Degrees(tp=8))
    *others, last = plan.decisions.stages
    stages = (*others, replace(last, plans=tuple(name for name in last.plans if "Block" not in name)))
    unlike = replace(plan.decisions, stages=stages)
    with pytest.raises(NoTwin, match=r"on mesh \(tp=8\) nothing is planned for Block"):
        projected(unlike, plan.fold, captured(f"{EXAMPLES / 'llama.py'}:tiny", 4)[1], sizes_of(unlike, 8, 4), "any")


SPREAD = {"pp": 4, "vp": 2, "mbs": 4, "microbatches": 32, "stage_blocks": (1,) * 8, "split": "ends"}
DEGREES: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    # one of each degree that was larger; at most two sequences, even shares
    (SPREAD | {"dp": 8, "tp": 4}, ["dp=2 tp=2"] * 2, {"pp": 2, "vp": 2, "dp": 2, "tp": 2, "mbs": 2}),
    ({"cp": 4}, ["cp=2"], {"cp": 2}),
    # storage over some copies: over two
    ({"dp": 16, "shard": 4}, ["dp=2 dp_shard=2"], {"dp": 4, "shard": 2}),
    ({"dp": 8, "shard": 2}, ["dp=1 dp_shard=2"], {"dp": 2, "shard": 2}),
    ({"dp": 8, "shard": 1}, ["dp=2 dp_shard=1"], {"dp": 2, "shard": 1}),
    # an axis is one thing outside of experts, and another inside: copies outside, experts inside
    ({"dp": 8, "ep": 4}, ["dp=2 ep=2"], {"dp": 4, "ep": 2}),
    ({"dp": 4, "tp": 2, "ep": 4, "etp": 1}, ["dp=1 ep=2 tp_ep=2"], {"dp": 2, "tp": 2, "ep": 4, "etp": 1}),
    ({"dp": 4, "tp": 2, "etp": 8}, ["dp_tp=2 tp=2"], {"dp": 2, "tp": 2, "etp": 4}),
    ({"dp": 4, "tp": 2, "ep": 2}, ["dp=2 ep=2 tp=2"], {"dp": 4, "tp": 2, "ep": 2}),
    # stages with meshes of their own have those; micro-batches that all of them can share out
    (
        SPREAD | {"dp": 4, "tp": 2, "cp": 2, "ep": 2, "etp": 2, "shard": 2},
        ["tp=2", "dp=2 tp=2"],
        {"pp": 2, "vp": 2, "mbs": 4},
    ),
]


def test_the_degrees_of_a_twin() -> None:
    for words, meshes, expected in DEGREES:
        sizes = Sizes(tuple(map(Mesh.parse, meshes)), (), 3)
        assert planner_twin._config(config(**words), sizes) == config(microbatches=3, **expected), words


def staged(*meshes: str, schedule: str = "1f1b", style: str = "eager") -> Any:
    stages = [SimpleNamespace(mesh=Mesh.parse(mesh)) for mesh in meshes]
    return SimpleNamespace(stages=stages, schedule=SimpleNamespace(name=schedule), style=style)


def test_how_a_twin_differs_from_its_plan() -> None:
    """Axes that have no ranks left, by name, each once; kinds of stages that none stands for; schedule and style."""
    lost = "axis {} of {} ranks has one rank: 8 processes have no room for it"
    table = (
        (staged("cp=1 dp=8 tp=4"), staged("cp=1 dp=2 tp=2"), (0,), []),
        (
            staged("dp=8 cp=2 tp=4", "dp=8 cp=2 tp=4"),
            staged("dp=1 cp=1 tp=2", "dp=1 cp=1 tp=2"),
            (0, 1),
            [lost.format("cp", 2), lost.format("dp", 8)],
        ),
        (
            staged("dp=4", "tp=4", "tp=2", "dp=2 tp=2", "dp=2 tp=2"),
            staged("dp=2", "dp=1 tp=2"),
            (0, 4),
            [lost.format("dp", 2), "kinds of stages that 8 processes have no room for are left out: 2"],
        ),
        (
            staged("dp=2", schedule="custom", style="compiled"),
            staged("dp=2", schedule="zbv"),
            (0,),
            ["its schedule is zbv: the plan's is a list of actions for its own ranks", "it runs eager, not compiled"],
        ),
    )
    for plan, made, stands_for, told in table:
        sizes = Sizes(tuple(stage.mesh for stage in made.stages), stands_for, 1)
        assert list(planner_twin._told(plan, made, sizes)) == told


# Models --------------------------------------------------------------------------------------------------------------


ARCHITECTURES = {
    "bart": "BartForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gptj": "GPTJForCausalLM",
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "t5": "T5ForConditionalGeneration",
}
"""Of transformers, with the numbers that their configurations have by default."""
SEED, DRAWS = 17, 2
DRAWN = (
    sorted(ARCHITECTURES)
    if os.environ.get("HYPOTHESIS_PROFILE") == "long"
    else random.Random(SEED).sample(sorted(ARCHITECTURES), DRAWS)
)
MOST_PARAMETERS = 1_000_000


@pytest.mark.parametrize("kind", DRAWN)
def test_architectures_that_were_drawn_have_a_small_twin(kind: str, tmp_path: Path) -> None:
    """Of the same structure, which is checked where decisions are projected: operators of all blocks."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [ARCHITECTURES[kind]]}))
    plan = planned(str(tmp_path), FSDP)
    twin = twinned(plan, tmp_path)
    assert parameters_of(twin.subject.fold) < MOST_PARAMETERS
    blocks = Counter(path.rpartition(".")[0] for path in twin.subject.fold.instances)
    assert max(blocks.values()) == layers_of(plan.decisions, plan.fold, sizes_of(plan.decisions, 8, 4)) <= 4
    assert twin.told == ()


OWN_MODEL = """
import torch
from torch import nn

def example_inputs(batch, seq):
    return {{"x": torch.randn(batch, seq, 64), "y": torch.randint(0, 64, (batch, seq))}}

def loss(outputs, batch):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["y"].flatten())

class Model(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(64, ffn), nn.Linear(ffn, 64)

    def forward(self, x):
        return self.down(self.up(x))

{rest}
"""


def own_model(folder: Path, rest: str) -> tuple[TorchSource, str]:
    file = folder / "mine.py"
    file.write_text(OWN_MODEL.format(rest=rest))
    return load_model(f"{file}:big"), f"{file}:big"


def test_a_factory_takes_sizes_as_arguments(tmp_path: Path) -> None:
    source, reference = own_model(tmp_path, "def big(ffn=4096, bias=True):\n    return Model(ffn)\n")
    made = twin_of(source, reference, SCALE)
    assert made.reference == "twin.py:twin"
    ((name, text),) = made.files(tmp_path)
    assert "return big(ffn=72)" in text  # 64 would make squares of matrices of 64 columns
    (tmp_path / name).write_text(text)
    assert load_model(f"{tmp_path / 'twin.py'}:twin").module.up.out_features == 72


IMAGES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, image, patch, width):
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros((image // patch) ** 2, width))
        self.scores = nn.Linear(width, 2)

    def forward(self, images):
        return self.scores((self.cut(images).flatten(2).transpose(1, 2) + self.places).mean(1))

def example_inputs(batch, seq):
    return {"images": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 2, (batch,))}

def loss(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch["labels"])

def big(image=224, patch=16, width=768):
    return Model(image, patch, width)
"""


def test_images_shrink_with_the_model(tmp_path: Path) -> None:
    """To 2 patches in a row, as even as 14, which are smaller then; rows of positions are no matrix, and follow. The
    file says how."""
    file = tmp_path / "images.py"
    file.write_text(IMAGES)
    ((name, text),) = twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE).files(tmp_path)
    assert "return big(image=32, patch=8, width=64)" in text
    assert '"images": made["images"][:, :, :32, :32].contiguous(),' in text
    (tmp_path / name).write_text(text)
    twin = load_model(f"{tmp_path / name}:twin")
    batch = twin.beside["example_inputs"](2, 16)
    assert twin.module.to_empty(device="cpu")(batch["images"]).shape == (2, 2)


def test_a_twin_of_ones_own_comes_first(tmp_path: Path) -> None:
    rest = "def big():\n    return Model(4096)\n\ndef twin():\n    return Model(96)\n"
    source, reference = own_model(tmp_path, rest)
    assert twin_of(source, reference, SCALE).reference == reference.replace(":big", ":twin")


# Runs ----------------------------------------------------------------------------------------------------------------

RUN: dict[str, Callable[[], Planned]] = {
    "own, tp+sp x fsdp": lambda: planned(OWN, BOTH),
    "transformers, tp+sp x fsdp": lambda: planned(LLAMA, BOTH),
    "transformers, tp": lambda: planned(LLAMA, "tp=8,dp=8,zero=1,sp=off,microbatches=1"),
    "transformers, unlike meshes": lambda: over_unlike(LLAMA, Degrees(dp=2, zero=1), Degrees(tp=8)),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All twins, in one launch."""
    scripts = {}
    for name, plan in RUN.items():
        folder = tmp_path_factory.mktemp("twin")
        twin = twinned(plan(), folder).subject
        emit(twin, folder).write(folder)
        scripts[name] = twin, folder / "train.py"
    return proved("twins", scripts, steps=1, limit_s=400)


@pytest.mark.e2e
@pytest.mark.parametrize("name", RUN)
def test_a_twin_is_exact(name: str, found: dict[str, Verified]) -> None:
    assert found[name].differences == ()
    assert found[name].ranks == 4


def test_the_twin_of_a_compiled_plan_is_eager(tmp_path: Path) -> None:
    plan = planned(OWN, BOTH)
    compiled = replace(
        plan,
        decisions=replace(plan.decisions, style="compiled"),
        workload=replace(plan.workload, stack=STACKS["torch-compile"]),
    )
    assert twinned(compiled, tmp_path).subject.decisions.style == "eager"


@pytest.mark.filterwarnings("ignore")
def test_files_of_a_configuration_are_clean_and_of_transformers_only(tmp_path: Path) -> None:
    plan = planned(LLAMA, BOTH)
    emit(subject_of(plan), tmp_path / "whole").write(tmp_path / "whole")
    assert len((tmp_path / "whole" / "train.py").read_text().splitlines()) <= 500
    emit(twinned(plan, tmp_path).subject, tmp_path).write(tmp_path)
    text = (tmp_path / "model.py").read_text()
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert imported == {"functools", "pathlib", "typing", "torch", "transformers"}
    style = ["--isolated", "--line-length", "120"]
    for command in (
        ["ruff", "check", "--select", "E,F,I,B,UP,RET,SIM", *style],
        ["ruff", "format", "--check", *style],
        [
            "mypy",
            "--config-file",
            str(EXAMPLES.parent / "pyproject.toml"),
            "--explicit-package-bases",
            "--allow-subclassing-any",
        ],
    ):
        where = [tmp_path / "whole" / "train.py"] if command[0] == "mypy" else [tmp_path]
        done = subprocess.run(
            [sys.executable, "-m", *command, *where],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    made = load_model(f"{tmp_path / 'model.py'}:model").module
    shapes = {name: tuple(one.shape) for name, one in made.named_parameters()}
    assert shapes == {n: tuple(p.shape) for n, p in load_model(str(tmp_path), dtype="fp32").module.named_parameters()}
