"""Emitted pipelines and micro-batches: exact, with the messages and collectives of the Program; their schedules are
torch's own where these are said to be the same; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from benchmarks.emitted_matrix import Small
from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.write.stages.schedule import CLASSES, LISTS, SINGLE
from meshwright.ir.errors import EmissionStorage
from meshwright.ir.names import Degrees
from meshwright.ir.schedules import Shape, compute_actions, stage_groups
from tests.backends.torch_.emitted import MIXED, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit import blocks_again, unlike

PIPELINES: dict[str, dict[str, Any]] = {
    "1f1b, unlike stages": {"pp": 2, "stage_blocks": (3, 1), "microbatches": 4, "schedule": "1f1b"},
    "the head alone": {"pp": 2, "stage_blocks": (4, 0), "microbatches": 2, "schedule": "gpipe"},
    "dualpipev": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "dualpipev"},
    "v-half": {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "v-half"},
    "gpipe x dp, recompute": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "gpipe", "pins": blocks_again},
    "zbv x zero 1": {"pp": 2, "vp": 2, "dp": 2, "microbatches": 4, "schedule": "zbv", "zero": 1},
    "interleaved x zero 2": {"pp": 2, "vp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 2},
    "1f1b x zero 3": {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 3},
    "gpipe x zero 3, kept": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "gpipe", "zero": 3, "regather": False},
    "zb-h1 x tp+sp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "zb-h1", "sequence_parallel": True},
    "1f1b x dp in bf16, first layer of each stage again": {
        "pp": 2,
        "dp": 2,
        "microbatches": 2,
        "schedule": "1f1b",
        "workload": MIXED,
        "recompute": "full_layers:1",
    },
    "1f1b x zero 3 x tp": {"pp": 2, "dp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
}
ONE_STAGE: dict[str, dict[str, Any]] = {
    "copies": {"dp": 2, "microbatches": 2, "schedule": "1f1b"},
    "zero 1": {"dp": 2, "microbatches": 4, "schedule": "1f1b", "zero": 1},
    "zero 2": {"dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 2},
    "zero 3": {"dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
    "copies of shards": {"dp": 4, "shard": 2, "microbatches": 2, "schedule": "1f1b", "zero": 2},
    "tp+sp": {"tp": 2, "microbatches": 2, "schedule": "1f1b", "sequence_parallel": True},
}
TIED: dict[str, dict[str, Any]] = {
    "1f1b, tied, x dp": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b"},
    "1f1b, tied, zero 3": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
    "1f1b, tied, tp": {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "1f1b"},
    "zbv, tied, tp": {"pp": 2, "vp": 2, "tp": 2, "microbatches": 4, "schedule": "zbv"},
    "zbv, tied, zero 1": {"pp": 2, "vp": 2, "dp": 2, "microbatches": 4, "schedule": "zbv", "zero": 1},
    "zbv, tied, copies in bf16": {
        "pp": 2,
        "vp": 2,
        "dp": 2,
        "microbatches": 4,
        "schedule": "zbv",
        "workload": MIXED,
    },
    "tied, copies": {"dp": 2, "microbatches": 2, "schedule": "1f1b"},
    "tied, zero 3": {"dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
    "tied, copies in bf16": {"dp": 2, "microbatches": 2, "schedule": "1f1b", "workload": MIXED},
    "tied, zero 2": {"dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 2},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "two of a stage, zero 3": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", "zero": 3},
    "two of a stage, tp": {"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b"},
    "two of a rank, tp": {"pp": 2, "vp": 2, "tp": 2, "microbatches": 4, "schedule": "zbv"},
    "a bias crosses, copies": {"pp": 2, "dp": 2, "microbatches": 2, "schedule": "1f1b", "stage_blocks": (1, 3)},
    "a bias crosses, zero 1": {"pp": 2, "vp": 2, "dp": 2, "microbatches": 4, "schedule": "zbv", "zero": 1},
}
"""T5: a parameter of three modules, and a bias of positions that goes from stage to stage."""
TIED_MODEL = f"{Path(__file__).parent / 'llama_tied.py'}:tied"
"""Those of a model whose embedding is its head."""
UNLIKE = {"zero 1", "1f1b, unlike stages"}
"""Those that train on batches whose sequences have unlike numbers of targets."""


def plan_of(degrees: dict[str, Any]) -> Subject:
    given = dict(degrees)
    pins = given.pop("pins", None)
    return subject(pins() if pins else None, **given)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    made = {kind: plan_of(degrees) for kind, degrees in (PIPELINES | ONE_STAGE).items()}
    made |= {kind: unlike(made[kind], tmp_path_factory.mktemp("model")) for kind in UNLIKE}
    made |= {kind: plan_of(degrees | {"reference": TIED_MODEL}) for kind, degrees in TIED.items()}
    t5 = Small("t5", tmp_path_factory.mktemp("t5"))
    for kind, degrees in SEVERAL.items():
        plan = t5.subject(kind, Degrees(**degrees))
        assert isinstance(plan, Subject)
        made[kind] = plan
    return made


@pytest.fixture(scope="module")
def found(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All of them in one launch."""
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("pipeline", scripts, steps=2, limit_s=900)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [*PIPELINES, *ONE_STAGE, *TIED, *SEVERAL])
def test_micro_batches_are_exact_and_communicate_what_they_say(
    kind: str, found: dict[str, Verified], plans: dict[str, Subject]
) -> None:
    one = found[kind]
    assert one.differences == ()
    assert_planned(plans[kind], one)
    assert len(set(one.losses)) == 2  # each equal to the reference's: the second one is of parameters that were stepped
    sent = [number for what, axes, number, _ in one.collectives if (what, axes) == ("send", "pp")]
    if kind == "1f1b x zero 3":  # the tables of positions and the sequences, of four micro-batches
        assert sent == [3 * 4]
    if kind.startswith("1f1b, tied"):  # the gradient of the table, or of a rank's shard of it, once
        shards = 2 if kind.endswith(("zero 3", "tp")) else 1
        assert ("all_reduce", "pp", 1, 256 * 64 * 4 // shards) in one.collectives
    if kind in ONE_STAGE:
        assert sent == []


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "1f1b"])
@pytest.mark.parametrize(("groups", "microbatches"), [(2, 4), (2, 8), (4, 8)])
def test_a_class_of_torch_does_what_our_schedule_of_that_name_says(name: str, groups: int, microbatches: int) -> None:
    """Not 1F1B: torch prints another list of it than it runs; its messages are counted."""
    virtual = 1 if name in SINGLE else 2
    known = {"num_stages": groups * virtual, "group_size": groups, "group_rank": 0, "stage_index": 0}
    stages = [SimpleNamespace(**known, is_last=False, submod=None) for _ in range(virtual)]
    made = getattr(schedules, CLASSES[name])(stages if virtual > 1 else stages[0], microbatches)
    theirs = [
        [str(part) for action in made.pipeline_order[rank] if action for part in action.sub_actions or (action,)]
        for rank in range(groups)
    ]
    ours = compute_actions(name, Shape(stage_groups(name, groups, virtual), microbatches))
    assert [[one for one in each if "REDUCE" not in one] for each in theirs] == [
        [str(one) for one in each] for each in ours
    ]


def test_scripts_of_pipelines_are_clean(tmp_path: Path) -> None:
    for number, (kind, degrees) in enumerate((PIPELINES | ONE_STAGE).items()):
        text = written(plan_of(degrees), tmp_path / f"plan{number}").read_text()
        assert len(text.splitlines()) <= 250 or kind in ONE_STAGE  # where the model stands beside it
    assert not unclean(tmp_path)


def test_scripts_of_pipelines_have_types(tmp_path: Path) -> None:
    for kind in ("1f1b x zero 3 x tp", "zb-h1 x tp+sp"):
        written(plan_of(PIPELINES[kind]), tmp_path / kind.replace(" ", "_"))
    assert not unclean(tmp_path, types=True)


def test_a_schedule_that_torch_has_no_class_for_stands_beside_the_script(tmp_path: Path) -> None:
    texts = dict(emit(plan_of(PIPELINES["zb-h1 x tp+sp"]), tmp_path).texts)
    assert texts[LISTS] == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    assert LISTS not in dict(emit(plan_of(PIPELINES["dualpipev"]), tmp_path).texts)


REFUSED: dict[str, tuple[Callable[[], Subject], type[Exception], str]] = {
    "weights' gradients apart": (
        lambda: subject(pp=2, vp=2, dp=2, microbatches=4, schedule="zbv", zero=3),
        EmissionStorage,
        "zero=1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_stages_are_written_for_is_refused(what: str, tmp_path: Path) -> None:
    made, kind, says = REFUSED[what]
    with pytest.raises(kind, match=says):
        emit(made(), tmp_path)
