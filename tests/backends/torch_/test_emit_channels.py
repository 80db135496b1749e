"""Convolutions and norms whose channels the tensor axis cuts: by output, by input, by groups; also beside copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject
from meshwright.ir.names.held import Subject as Held
from meshwright.ir.names.held import holds
from meshwright.ir.names.pinned import NOTHING_PINNED
from meshwright.ir.sharding.adjoint import Choice, Split, Strategy
from tests.backends.torch_.emitted import lowered, subject, unclean, written
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit_statistics import NORMED, UNET

CUTS: dict[str, dict[str, dict[str, str]]] = {
    NORMED: {
        "embed": {"conv2d": "co", "group_norm": "g"},
        "Block": {"conv2d": "co", "batch_norm.0": "c"},
        "head": {
            "group_norm": "g",
            "silu": "d1",
            "conv2d": "g",
            "avg_pool2d": "d1",
            "view": "f1",
            "batch_norm.0": "c",
        },
    },
    UNET: {
        "model": {
            "conv2d_3": "co",
            "batch_norm.0_3": "c",
            "relu_3": "d1",
            "conv2d_4": "ci",
            "batch_norm.0_4": "c",
            "relu_4": "d1",
            "conv2d_5": "co",
            "conv2d_6": "ci",
            "conv_transpose2d": "ci",
            "conv_transpose2d_2": "co",
            "conv2d_10": "ci",
            "batch_norm.0_10": "c",
            "relu_10": "d1",
        }
    },
}
"""The factor that the tensor axis cuts of operators, by body: of convolutions output or input channels, or groups."""


def cut(plan: Subject, cuts: Mapping[str, Mapping[str, str]]) -> Subject:
    """The plan, with these operators cut."""
    plans = []
    for one in plan.decisions.plans:
        factors = cuts.get(one.body, {})
        graph = plan.fold.body[one.body].graph
        before = [(op.name, one.strategy(op.name)) for op in graph.ops]
        after = [
            (name, Strategy((*_without(kept), ("tp", Split((factors[name],))))) if name in factors else kept)
            for name, kept in before
        ]
        plans.append(replace(one, strategies=tuple(after)))
    decisions = replace(plan.decisions, plans=tuple(plans))
    reference = NORMED if "Block" in cuts else UNET
    return replace(plan, decisions=decisions, program=lowered(decisions, reference=reference))


def test_tensor_parallelism_by_name_cuts_channels() -> None:
    """Of one convolution those that it makes, of the next one those that it sums; and the plan says that it does."""
    plan = subject(reference=UNET, tp=2)
    chosen = [(op, choice) for one in plan.decisions.plans for op, how in one.strategies for _, choice in how.choices]
    found = {choice.factors for op, choice in chosen if op.startswith("conv") and isinstance(choice, Split)}
    assert {("co",), ("ci",)} <= found
    assert holds(Held(plan.decisions, plan.fold, NOTHING_PINNED), "tp", 2)


def _without(kept: Strategy) -> Iterator[tuple[str, Choice]]:
    """What other axes do."""
    return (pair for pair in kept.choices if pair[0] != "tp")


@pytest.fixture(scope="module")
def plans() -> dict[str, Subject]:
    return {
        "groups": cut(subject(reference=NORMED, tp=2), CUTS[NORMED]),
        "beside copies": cut(subject(reference=UNET, dp=2, tp=2), CUTS[UNET]),
    }


@pytest.fixture(scope="module")
def found(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All in one launch."""
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("channels", scripts, steps=2, limit_s=120)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["groups", "beside copies"])
def test_a_script_is_exact(kind: str, found: dict[str, Verified]) -> None:
    assert found[kind].exact, found[kind].differences[:4]


@pytest.mark.e2e
def test_scripts_are_clean(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("clean")
    for kind, plan in plans.items():
        written(plan, folder / kind)
    assert unclean(folder, types=True) == ""
