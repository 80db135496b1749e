"""Emitted pipelines whose stages have unlike meshes: exact, with the messages and collectives of the Program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.errors import EmissionSchedule, NotExpressible
from meshwright.ir.frontends.door import load_model
from meshwright.ir.names import Degrees
from meshwright.ir.target.workload import Workload
from meshwright.planner.refine.heterogeneous import neighbours, over_parts
from tests.backends.torch_.emitted import BATCH, MIXED, SEQ, TINY, WORKLOAD, lowered, model, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit import unlike


@dataclass(frozen=True, slots=True)
class Case:
    """Degrees of the stages, their blocks, and what else a plan has."""

    degrees: Sequence[Degrees]
    blocks: Sequence[int]
    schedule: Schedule
    workload: Workload = WORKLOAD
    init: str = ""
    reference: str = TINY


PAGE = Path(__file__).parents[3] / "docs" / "emit.md"
ONE, COPIES, CUT = Degrees(), Degrees(dp=2), Degrees(tp=2)
SEQUENCES = Degrees(tp=2, sequence_parallel=True)
ENCODER, NANO = (f"{Path(__file__).parent / 'printed_models.py'}:{name}" for name in ("encoder", "nano"))
FUSED, TIED = (f"{Path(__file__).parent / f'llama_{kind}.py'}:{kind}" for kind in ("fused", "tied"))
TWO = Schedule("1f1b", 2)
EXACT: dict[str, Case] = {
    "1 + 2, tp": Case((ONE, CUT), (1, 3), Schedule("1f1b", 4)),
    "2 + 1, tp+sp": Case((SEQUENCES, ONE), (3, 1), TWO),
    "1 + 2, dp": Case((ONE, COPIES), (1, 3), Schedule("gpipe", 2)),
    "2 + 1, zero 1 in bf16": Case((Degrees(dp=2, zero=1), ONE), (2, 2), TWO, MIXED),
    "1 + 2, fused weights": Case((ONE, CUT), (1, 1), TWO, reference=FUSED, init="meta"),
    "1 + 2, tied weights": Case((ONE, CUT), (1, 3), TWO, reference=TIED),
    "2 + 1, zero 3, tied weights": Case((Degrees(dp=2, zero=3), ONE), (2, 2), TWO, reference=TIED),
    "1 + 2 + 1, dp": Case((ONE, COPIES, ONE), (1, 2, 1), Schedule("1f1b", 4)),
    "2 + 2, encoder": Case((CUT, COPIES), (1, 1), TWO, reference=ENCODER),
    "1 + 2, loss of the model": Case((ONE, CUT), (2, 2), TWO, reference=NANO),
    "1 + 2, zero 3": Case((ONE, Degrees(dp=2, zero=3)), (1, 3), TWO),
    "1 + 2, zero 3, drawn in parts": Case((ONE, Degrees(dp=2, zero=3)), (1, 3), TWO, init="meta"),
}
UNEVEN = {"1 + 2, dp"}
"""Those that train on batches whose sequences have unlike numbers of targets."""


def subject(case: Case) -> Subject:
    """The plan of a case."""
    fold, calls = model(BATCH // case.schedule.microbatches, case.reference, case.workload.precision)
    decisions = over_parts(fold, neighbours(*case.degrees), case.blocks, case.schedule, "torch-gloo")
    return Subject(
        fold=fold,
        decisions=decisions,
        program=lowered(decisions, case.workload, case.reference),
        workload=case.workload,
        calls=calls,
        config="unlike",
        init=case.init,
    )


def unread(plan: Subject, reference: str) -> Iterator[int]:
    """Bytes of entries of the batch that a model does not read, of every rank: files of several models make them."""
    read = {entry.name for entry in plan.program.entries}
    batch = load_model(reference).hooks.example_inputs(BATCH, SEQ)
    nbytes = sum(one.nbytes for name, one in batch.items() if name not in read)
    for stage, ranks in zip(plan.decisions.stages, plan.decisions.groups, strict=True):
        copies = stage.mesh.axis("dp").size if "dp" in stage.mesh.names else 1
        yield from [nbytes // copies] * len(ranks)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    made = {kind: subject(case) for kind, case in EXACT.items()}
    return made | {kind: unlike(made[kind], tmp_path_factory.mktemp("model")) for kind in UNEVEN}


@pytest.fixture(scope="module")
def found(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All of them in one launch."""
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("unlike", scripts, steps=2, limit_s=600)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", EXACT)
def test_stages_of_different_meshes_are_exact_and_communicate_what_they_say(
    kind: str, found: dict[str, Verified], plans: dict[str, Subject]
) -> None:
    one = found[kind]
    assert one.differences == ()
    assert one.ranks == plans[kind].ranks
    assert one.losses[1] < one.losses[0] or EXACT[kind].reference == TIED  # whose second batch is harder
    assert_planned(plans[kind], one, list(unread(plans[kind], EXACT[kind].reference)))
    TORCH_GLOO.check(plans[kind].decisions, plans[kind].fold)


def test_the_page_shows_what_crosses(tmp_path: Path) -> None:
    shown = re.search(r"^CROSSING = \(.*?^\)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown
    written(subject(Case((ONE, SEQUENCES), (1, 3), TWO)), tmp_path)
    assert shown[0] in (tmp_path / "train_parts.py").read_text(encoding="utf-8")


def test_scripts_of_unlike_stages_are_clean(plans: dict[str, Subject], tmp_path: Path) -> None:
    for number, plan in enumerate(plans.values()):
        text = written(plan, tmp_path / f"plan{number}").read_text()
        assert len(text.splitlines()) <= 260
    assert not unclean(tmp_path)


@pytest.mark.parametrize("fused", ["first", "last"])
def test_the_order_of_fused_weights_is_told_by_stage(fused: str, tmp_path: Path) -> None:
    """Of those that another stage cuts, a checkpoint has the model's own order, too."""
    degrees, parts = ((CUT, ONE), (2, 1)) if fused == "first" else ((ONE, CUT), (1, 2))
    text = written(subject(Case(degrees, (1, 1), TWO, reference=FUSED)), tmp_path).read_text()
    assert "all_reordered(state, back=True)" in text
    assert "all_reordered(saved[part])" in text
    assert f'qkv\\.bias": (0, (32, 16, 16), {parts}),' in (tmp_path / "train_parts.py").read_text()


def test_scripts_of_unlike_stages_have_types(plans: dict[str, Subject], tmp_path: Path) -> None:
    for kind in ("2 + 1, tp+sp", "2 + 1, zero 1 in bf16", "1 + 2, fused weights", "1 + 2, tied weights"):
        written(plans[kind], tmp_path / kind.replace(" ", "_"))
    assert not unclean(tmp_path, types=True)


REFUSED: dict[str, tuple[Case, str]] = {
    "gradients of weights apart": (Case((ONE, CUT), (1, 3), Schedule("zb-h1", 2)), "zb-h1"),
    "sequences": (Case((ONE, Degrees(cp=2)), (1, 3), TWO), "sequences"),
    "copies of shards": (Case((ONE, Degrees(dp=4, shard=2, zero=3)), (1, 3), TWO), "cut the batch"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_emitted_beside_different_meshes_is_refused(what: str, tmp_path: Path) -> None:
    """By the target too, so that searches pass over it."""
    case, says = REFUSED[what]
    plan = subject(case)
    with pytest.raises(EmissionSchedule, match=says):
        emit(plan, tmp_path)
    with pytest.raises(NotExpressible):
        TORCH_GLOO.check(plan.decisions, plan.fold)
