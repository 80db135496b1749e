"""Emitted scripts that cut experts apart: equal to the model on one device, with the exchanges of the Program."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.groups import Group, groups_of, unlike, unlike_together
from meshwright.backends.torch_.verify.predicted import Predicted
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.frontends.torch_.operators.moe import routed_experts
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.sharding.mesh import Mesh
from tests.backends.torch_.emitted import BATCH, SEQ, WORKLOAD, unclean, written
from tests.backends.torch_.measured import assert_fullest_planned, assert_planned
from tests.backends.torch_.mixtures import limited
from tests.backends.torch_.proved import proved

MIXTURE = Path(__file__).parent / "mixtures.py"
KINDS: dict[str, dict[str, Any]] = {
    "ep": {"dp": 2, "ep": 2},
    "ep, grouped products": {"dp": 2, "ep": 2, "factory": "grouped"},
    "ep, normed products": {"dp": 2, "ep": 2, "microbatches": 2, "factory": "normed"},
    "ep, micro-batches": {"dp": 2, "ep": 2, "zero": 3, "microbatches": 2},
    "ep inside of fsdp": {"dp": 4, "ep": 2, "zero": 3},
    "ep over dp and cp": {"dp": 2, "cp": 2, "ep": 4, "zero": 1, "microbatches": 2, "context": "ulysses"},
    "shards of other dimensions": {"dp": 4, "ep": 2, "zero": 3, "factory": "few"},
    "ep beside zero 2": {"dp": 4, "ep": 4, "zero": 2},
    "ep, slots rounded up": {"dp": 2, "ep": 2, "factory": "uneven"},
    "ep where shards are": {"dp": 4, "ep": 2, "shard": 2, "zero": 3},
    "ep, all of the first activations on the host": {"dp": 2, "ep": 2, "offload": "activations:2"},
    "ep in stages": {"dp": 2, "ep": 2, "pp": 2, "zero": 3, "microbatches": 2, "schedule": "1f1b"},
    "ep over cp, in stages": {
        "cp": 2,
        "ep": 2,
        "pp": 2,
        "context": "ulysses",
        "zero": 1,
        "microbatches": 2,
        "schedule": "1f1b",
    },
}
LIMITED: dict[str, dict[str, Any]] = {
    "a capacity": {"dp": 2, "ep": 2, "factory": "limited"},
    "a capacity, tp": {"tp": 2, "factory": "limited"},
    "a capacity, tp+sp x fsdp": {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True, "factory": "limited"},
    "a capacity, cut sequences": {"dp": 2, "cp": 2, "ep": 2, "zero": 3, "microbatches": 2, "factory": "limited"},
    "a capacity, ep over dp and cp": {"dp": 2, "cp": 2, "ep": 4, "zero": 1, "factory": "limited"},
    "a capacity, of some": {"tp": 2, "sequence_parallel": True, "factory": "some"},
    "a capacity, of some, cut sequences": {"cp": 2, "factory": "some"},
    "a capacity, runs longer than what any has": {"cp": 4, "factory": "limited"},
    "a capacity, runs longer than parts": {"cp": 2, "tp": 2, "sequence_parallel": True, "factory": "limited"},
}
"""Experts that drop what they have no room for."""
CUT: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2, "recompute": "full"},
    "tp, grouped products": {"tp": 2, "recompute": "full", "factory": "grouped"},
    "tp, slots rounded up": {"tp": 2, "factory": "uneven"},
    "tp+sp, slots rounded up": {"tp": 2, "sequence_parallel": True, "factory": "uneven"},
    "tp+sp x fsdp": {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True},
    "over tp": {"tp": 2, "dp": 2, "ep": 2, "etp": 1},
    "over tp+sp": {"tp": 2, "dp": 2, "ep": 2, "etp": 1, "sequence_parallel": True, "zero": 3},
    "apart and cut": {"dp": 2, "tp": 2, "ep": 2, "etp": 2},
    "a capacity, apart and cut": {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "factory": "limited"},
    "none, in stages": {"pp": 2, "microbatches": 2, "schedule": "1f1b"},
}
"""Experts that the tensor axis cuts in themselves, or apart, and experts of stages that nothing cuts."""
TWICE: dict[str, dict[str, Any]] = {"ep, two in one body": {"dp": 2, "ep": 2, "factory": "paired"}}
"""One function with rows of several layers; it holds them until it ends, which is not planned."""


EVERYTHING = KINDS | LIMITED | CUT | TWICE


@cache
def mixture(batch: int, factory: str) -> tuple[Fold, Calls]:
    """As it is traced on a micro-batch."""
    reference = f"{MIXTURE}:{factory}"
    source = load_model(reference)
    found = capture(source, batch=batch, seq=SEQ)
    return found.fold, calls_of(source, reference, batch=batch, seq=SEQ, constants=found.constants)


def plan_of(factory: str = "tiny", **degrees: Any) -> Subject:
    fold, calls = mixture(BATCH // degrees.get("microbatches", 1), factory)
    decisions = template(fold, Degrees(**degrees), "torch-gloo")
    program = lower(fold, decisions, TORCH_GLOO.lowering(), WORKLOAD)
    config = ",".join(f"{name}={value}" for name, value in degrees.items())
    return Subject(fold=fold, decisions=decisions, program=program, workload=WORKLOAD, calls=calls, config=config)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All plans in one launch."""
    plans = {kind: plan_of(**degrees) for kind, degrees in EVERYTHING.items()}
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("experts", scripts, steps=2, limit_s=600)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", EVERYTHING)
def test_experts_are_exact(kind: str, found: dict[str, Verified]) -> None:
    """Apart, with a capacity (the same tokens are dropped), and cut in themselves."""
    one = found[kind]
    assert one.differences == ()
    assert one.tensors == 2 * (21 + 2 * (EVERYTHING[kind].get("factory") == "normed"))
    check = assert_fullest_planned if kind in KINDS else assert_planned
    if kind not in TWICE:
        check(plan_of(**EVERYTHING[kind]), one)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_experts_apart_exchange_rows_and_their_numbers(kind: str, found: dict[str, Verified]) -> None:
    counts = {f"{kind} {axes}": number for kind, axes, number, _ in found[kind].collectives}
    batches, blocks = KINDS[kind].get("microbatches", 1), 2 // KINDS[kind].get("pp", 1)
    heads = 4 * 2 if "cp" in KINDS[kind] else 0  # of queries, keys, values and results, there and back
    axis = "cp_ep" if "cp" in KINDS[kind] else "ep"  # rows there and back in both passes, and their numbers
    assert counts[f"all_to_all {axis}"] == batches * blocks * (4 + 1 + heads)
    if kind == "ep inside of fsdp":  # experts are gathered and scattered among their own copies
        assert (counts["all_gather dp"], counts["reduce_scatter dp"]) == (4, 2)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", LIMITED)
def test_experts_with_a_capacity_exchange_slots_alone(kind: str, found: dict[str, Verified]) -> None:
    counts = {axes: number for one, axes, number, _ in found[kind].collectives if one == "all_to_all"}
    axes = {"a capacity, cut sequences": ("cp_ep",), "a capacity, ep over dp and cp": ("ep", "cp_ep")}
    along = axes.get(kind, ("ep",) if "ep" in LIMITED[kind] else ())
    exchanges = LIMITED[kind].get("microbatches", 1) * 2 * 4  # their numbers are known
    assert counts == dict.fromkeys(along, exchanges)


def test_traced_experts_drop_what_their_module_drops() -> None:
    """Tokens that some experts find no room for; backward, too."""
    torch.manual_seed(0)
    experts: Any = limited().get_submodule("blocks.0.feed_forward.experts")
    tokens, scores = torch.randn(64, 32), torch.randn(64, 8)
    weights, chosen = scores.softmax(-1).topk(2, -1)
    found = []
    for run in (partial(routed_experts, experts), experts):
        given = [one.clone().requires_grad_() for one in (tokens, weights)]
        made = run(given[0], chosen, given[1])
        made.square().sum().backward()
        found.append((made, *(one.grad for one in given)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert ((found[0][2] == 0).sum(0) > 0).all()  # first and second choices were dropped
    experts.capacity_factor = None
    assert not torch.allclose(experts(tokens, chosen, weights), found[0][0])


def test_a_part_of_every_expert_is_kept_and_routers_see_their_own_tokens(tmp_path: Path) -> None:
    text = written(plan_of(**CUT["tp+sp x fsdp"]), tmp_path).read_text()
    assert r'r"blocks\.\d+\.feed_forward\.experts\.gate_up_proj": {"tp": 1},' in text
    assert r'r"blocks\.\d+\.feed_forward\.experts\.gate_up_proj": (1, (24, 24), "tp"),' in text
    assert "F.linear(feed_forward_norm, local_of_sum(self.feed_forward.gate.weight))" in text
    assert "    # rows reach their experts over tp\n" in text
    text = written(plan_of(**CUT["tp"]), tmp_path).read_text()
    assert "    grouped_linear = reduce_from(grouped_linear, tp)\n" in text


def test_runs_of_tokens_that_a_rank_has_parts_of_are_joined(tmp_path: Path) -> None:
    plan = plan_of(**LIMITED["a capacity, runs longer than parts"])
    TORCH_GLOO.check(plan.decisions, plan.fold)
    text = written(plan, tmp_path).read_text()
    assert "gather_copies(hidden_states_reshaped, tp, 0, sections=(8,) * 8)\n" in text
    assert "scatter_to(final_hidden_states, tp, 0, sections=(8,) * 8)\n" in text


@pytest.mark.parametrize("factory", ["tiny", "limited", "some"])
def test_searches_pass_over_what_emit_refuses(factory: str, tmp_path: Path) -> None:
    """What they pass over besides is said in `Capabilities`, not to be printed."""
    said = Counter[bool]()
    for dp, cp, tp in product((1, 2), (1, 2, 4), (1, 2)):
        for ep in (1, 2, 4):
            if dp * cp % ep == 0:
                plan = plan_of(factory, dp=dp, cp=cp, tp=tp, ep=ep, zero=3 * (dp > 1), sequence_parallel=tp > 1)
                refused = any(TORCH_GLOO.refusals(plan.decisions, plan.fold))
                said[refused] += 1
                if not refused:
                    emit(plan, tmp_path)
    assert said.keys() == {True, False}


def test_experts_and_routers_are_cut_where_shards_divide_them(tmp_path: Path) -> None:
    text = written(plan_of(**KINDS["shards of other dimensions"]), tmp_path).read_text()
    assert 'along(block, {"feed_forward.gate.weight": 1})' in text
    assert '{"feed_forward.experts.gate_up_proj": 1, "feed_forward.experts.down_proj": 1}' in text


def test_scripts_are_clean(tmp_path: Path) -> None:
    for number, degrees in enumerate(EVERYTHING.values()):
        written(plan_of(**degrees), tmp_path / f"plan{number}")
    assert unclean(tmp_path) == ""


ROUTED = Predicted({}, {}, {}, routed={("ep",): (2, Fraction(200), ("ep",))}, counts={("all_to_all", ("ep",), 64): 1})
EXCHANGED: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "as the mean": ((100, 100), (100, 100), ""),
    "more here, less there": ((100, 140), (100, 60), ""),
    "rows that get lost": ((100, 100), (100, 90), "400 bytes planned of all of them, 390 executed"),
    "one more exchange": ((100, 90, 10), (100, 100), "2 planned, 3 executed"),
}


@pytest.mark.parametrize("what", EXCHANGED)
def test_exchanges_with_experts_are_held_against_the_plan(what: str) -> None:
    *ranks, says = EXCHANGED[what]
    group = Group(
        ranks=range(2),
        mesh=Mesh.parse("ep=2"),
        predicted=(ROUTED,) * 2,
        messages={},
        parameters=frozenset(),
        last=True,
    )
    sent, wrong = Counter[tuple[int, ...]](), list[str]()
    for rank, sizes in enumerate(ranks):
        executed = Counter({("all_to_all", (0, 1), 64): 1}) + Counter(("all_to_all", (0, 1), size) for size in sizes)
        wrong += unlike(executed, group, rank, sent)
    wrong += unlike_together(sent, group)
    assert len(wrong) == bool(says)
    assert all(says in one for one in wrong)


# Experts: of a mixture of two layers with 8 sequences of 16 tokens, 32 wide; 8 experts, two for each token, 24 inside
REST = 2 * 64 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 2 * 32 + 8 * 32)
"""Its parameters but for those of experts: table and head, the last norm; attention, norms and routers."""
EXPERT = (2 * 24 + 24) * 32
ROWS = 2 * 8 * 16 * 32
SENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # there and back, forward and backward, in both layers; before rows go there, how many for each expert
    "apart": (
        {"dp": 2, "ep": 2},
        {
            "packed": {("all_reduce", ("ep",)): 4 * (REST + 2)},
            "routed": {("ep",): (2 * 2 * 2, 8 * 4 * ROWS // 2, ("ep",))},
            "counts": {("all_to_all", ("ep",), 8 * 8): 2},
        },
    ),
    # sequences are gathered, of 2 heads of keys and values that are 8 wide; copies of experts are summed over dp
    "apart along cut sequences": (
        {"dp": 2, "cp": 2, "ep": 2},
        {
            "values": {
                ("all_gather", ("cp_ep",), 4 * 4 * 2 * 8 * 8): 2 * 2,
                ("reduce_scatter", ("cp_ep",), 4 * 4 * 2 * 16 * 8): 2 * 2,
            },
            "packed": {
                ("all_reduce", ("cp_ep", "dp")): 4 * (REST + 2),
                ("all_reduce", ("dp",)): 4 * 2 * 8 // 2 * EXPERT,
            },
            "routed": {("cp_ep",): (8, 8 * 4 * ROWS // 4, ("cp_ep",))},
            "counts": {("all_to_all", ("cp_ep",), 8 * 8): 2},
        },
    ),
    # own rows are gathered and sums of all scattered; before that, whose each of them is; gradients of routers are sums
    "cut": (
        {"tp": 2, "sequence_parallel": True},
        {
            "values": {
                ("reduce_scatter", ("tp",), 4 * 8 * 16 * 32): 3 + 3,
                ("all_gather", ("tp",), 4 * 8 * 16 * 32 // 2): 3 + 3,
                ("all_gather", ("tp",), 4 * ROWS // 2): 2 + 2,
                ("reduce_scatter", ("tp",), 4 * ROWS): 2 + 2,
                ("all_reduce", ("tp",), 4 * 8 * 16): 3,
            },
            "packed": {("all_reduce", ("tp",)): 4 * (5 * 32 + 2 * 8 * 32)},
            "whole": {("all_gather", ("tp",), 8 * 8 * 16 // 2): 2},
            "counts": {("all_gather", ("tp",), 8 * ROWS // 2 // 32): 2},
        },
    ),
}


def test_what_ranks_send_experts() -> None:
    for what, (degrees, expected) in SENT.items():
        plan = plan_of("grouped", **degrees)
        (group,) = groups_of(plan.program, plan.fold)
        one = group.predicted[0]
        parts = {name: dict(getattr(one, name)) for name in ("values", "packed", "whole", "routed", "counts")}
        parts["packed"] = dict(Counter(one.packed) + Counter(one.scalars))
        assert {name: part for name, part in parts.items() if part} == expected, what
