"""Plans in the compiled style, as text, and printed ones compiled by a backend that writes no code: to have it written
for four ranks takes minutes. `plan verify` does; docs/emit.md says for which plans it did."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.fx import GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.emitted_matrix import Small
from meshwright.backends.torch_.capabilities import TORCH_CUDA
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.printed.language.moves import used_by
from meshwright.ir.errors import CombinationNotExpressible, EmissionSoftware
from meshwright.ir.names import Degrees
from meshwright.ir.quoting import identifier
from meshwright.ir.target.workload import STACKS
from tests.backends.torch_.emitted import ROOT, WORKLOAD, subject, unclean, written
from tests.backends.torch_.proved import proved

NORMED = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'normed.py'}:tiny"
MIXTURE = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'mixtures.py'}:tiny"


def compiled(**degrees: Any) -> Subject:
    """The plan that degrees mean, in the compiled style."""
    plan = subject(**degrees)
    workload = replace(WORKLOAD, stack=STACKS["torch-compile"])
    return replace(plan, decisions=replace(plan.decisions, style="compiled"), workload=workload)


@pytest.mark.parametrize(
    ("degrees", "count"),
    [
        ({"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}, "range(4)"),
        ({"pp": 2, "microbatches": 2, "schedule": "1f1b"}, "BLOCKS[model.index]"),
    ],
)
def test_every_block_is_compiled_before_it_is_sharded(degrees: dict[str, Any], count: str, tmp_path: Path) -> None:
    text = written(compiled(**degrees), tmp_path).read_text()
    lines = [
        f"    for index in {count}:",
        '        block = model.get_submodule(f"blocks.{index}")',
        "        block.forward = torch.compile(block.forward)",
    ]
    assert text.count("torch.compile") == 1
    before, _, after = text.partition("\n".join(lines))
    assert after
    assert "fully_shard(" not in before
    assert unclean(tmp_path) == ""


def test_async_tensor_parallelism_is_asked_of_the_compiler(tmp_path: Path) -> None:
    line = "inductor._micro_pipeline_tp = True"
    stack = replace(WORKLOAD, stack=STACKS["torch-async-tp"])
    plan = replace(compiled(tp=2, sequence_parallel=True, target="torch-cuda"), workload=stack)
    text = written(plan, tmp_path / "hidden").read_text()
    group = 'enable_symm_mem_for_group(mesh["tp"].get_group().group_name)'
    assert text.index(line) < text.index(group) < text.index("torch.compile(")
    assert unclean(tmp_path) == ""
    alone = replace(compiled(dp=2, target="torch-cuda"), workload=stack)
    assert line not in written(alone, tmp_path / "alone").read_text()
    with pytest.raises(EmissionSoftware, match="on GPUs only"):
        emit(replace(compiled(tp=2), workload=stack), tmp_path)


@pytest.fixture
def ranks() -> Iterator[DeviceMesh]:
    """Two, one of which is here, and nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch itself calls
def test_the_compiler_joins_printed_moves_with_their_products(ranks: DeviceMesh) -> None:
    """As it does under async tensor parallelism, there and back; the gradient of two products is a sum before it is
    scattered, which nothing is joined with."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch.distributed._symmetric_memory import _test_mode

    names: dict[str, Any] = {"torch": torch, "F": F, "funcol": funcol, "cast": cast, "Tensor": Tensor}
    names |= {"Any": Any, "Callable": Callable, "Sequence": Sequence, "DeviceMesh": DeviceMesh}
    exec("\n".join(used_by(["gather_from", "reduce_scatter_to"], "")), names)  # noqa: S102 - as it stands in scripts
    gather_from, reduce_scatter_to = names["gather_from"], names["reduce_scatter_to"]
    found = list[list[str]]()

    def look(graph: GraphModule, inputs: object) -> Any:
        seen = copy.deepcopy(graph)
        view_to_reshape(seen)
        with _test_mode(), patch("torch.distributed.is_nccl_available", lambda: True):
            micro_pipeline_tp_pass(seen.graph)
        called = (str(node.target) for node in seen.graph.nodes)
        found.append(sorted(name.split(".")[1] for name in called if name.startswith(("symm_mem.", "_c10d"))))
        return make_boxed_func(graph.forward)

    def block(x: Tensor, up: Tensor, gate: Tensor, down: Tensor) -> Tensor:
        x = gather_from(x, ranks, 1)
        return cast(Tensor, reduce_scatter_to(F.linear(F.linear(x, up) * F.linear(x, gate), down), ranks, 1))

    backend = aot_autograd(fw_compiler=look, bw_compiler=look, decompositions=select_decomp_table())
    given = [torch.randn(shape, requires_grad=True) for shape in ((2, 4, 8), (16, 8), (16, 8), (8, 16))]
    torch.compile(block, backend=backend, fullgraph=True)(*given).sum().backward()
    assert found == [
        ["fused_all_gather_matmul", "fused_matmul_reduce_scatter"],
        ["fused_all_gather_matmul", "reduce_scatter_tensor", "wait_tensor"],
    ]


PRINTED: dict[str, tuple[dict[str, Any], bool]] = {
    "tp+sp x zero 3": ({"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}, True),
    "tp+sp, all but products again": ({"tp": 2, "sequence_parallel": True, "recompute": "selective_op"}, True),
    "heads exchanged, attention again": ({"cp": 2, "context": "ulysses", "recompute": "selective"}, True),
    "pp x tp": ({"pp": 2, "tp": 2, "microbatches": 2, "schedule": "1f1b"}, True),
    "experts cut": ({"tp": 2, "reference": MIXTURE}, True),
    "statistics of copies": ({"dp": 2, "reference": NORMED}, True),
    "keys and values gathered": ({"cp": 2}, False),
    "keys and values gathered, attention again": ({"cp": 2, "recompute": "selective"}, False),
    "a ring": ({"cp": 2, "context": "ring"}, False),
}
"""Degrees, and whether a block is one graph: a mask of torch's own class, and messages of a ring, are in none."""


@pytest.mark.e2e
def test_printed_blocks_are_compiled(tmp_path: Path) -> None:
    plans = {kind: compiled(**degrees) for kind, (degrees, _) in PRINTED.items()}
    scripts = {kind: (plan, written(plan, tmp_path / identifier(kind))) for kind, plan in plans.items()}
    assert unclean(tmp_path) == ""
    for kind, (_, script) in scripts.items():
        how = 'backend="aot_eager", fullgraph=True' if PRINTED[kind][1] else 'backend="aot_eager"'
        for file in script.parent.glob("train*.py"):
            file.write_text(
                file.read_text().replace("torch.compile(block.forward", f"torch.compile(block.forward, {how}")
            )
        assert how in "".join(file.read_text() for file in script.parent.glob("train*.py"))
    for one in proved("compiled", scripts, steps=2, limit_s=600).values():
        assert one.differences == ()


TWICE = {"schedule": "zbv", "pp": 2, "vp": 2, "microbatches": 2}
RUN: dict[str, dict[str, Any]] = {
    "blocks again": {"dp": 2, "zero": 3, "recompute": "full"},
    "first layers again": {"dp": 2, "recompute": "full_layers:1"},
    "all but products again, tp+sp": {"tp": 2, "sequence_parallel": True, "recompute": "selective_op"},
    "heads exchanged, attention again": {"cp": 2, "context": "ulysses", "recompute": "selective"},
    "keys and values gathered": {"cp": 2},
    "a ring": {"cp": 2, "context": "ring", "recompute": "full"},
    "experts apart": {"dp": 2, "ep": 2, "reference": MIXTURE},
}
"""What was run with compiled blocks, and exact (docs/emit.md)."""
NOT_RUN: dict[str, tuple[dict[str, Any], str]] = {
    "halves": (TWICE, "schedule zbv"),
    "tp, all but products again": ({"tp": 2, "recompute": "selective_op"}, "beside tensor parallelism"),
    "tp+sp, blocks again": ({"tp": 2, "sequence_parallel": True, "recompute": "full"}, "beside tensor parallelism"),
}


@pytest.mark.parametrize("name", RUN)
def test_what_was_run_compiled_is_emitted(name: str, tmp_path: Path) -> None:
    text = written(compiled(**RUN[name]), tmp_path).read_text()
    again = [text.find(f"{call}(block") for call in ("run_again", "run_within")]
    compiles = text.index("torch.compile(block")
    assert max(again) < compiles
    assert (max(again) > 0) == ("recompute" in RUN[name])
    assert unclean(tmp_path) == ""


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_does_not_run_compiled_is_refused_and_not_searched_for(name: str, tmp_path: Path) -> None:
    degrees, says = NOT_RUN[name]
    plan = compiled(**degrees)
    with pytest.raises(EmissionSoftware, match=says):
        emit(plan, tmp_path)
    with pytest.raises(CombinationNotExpressible, match=says):
        TORCH_CUDA.check(plan.decisions, plan.fold)
    eager = replace(plan.decisions, style="eager")
    assert not [*TORCH_CUDA.refusals(eager, plan.fold)]


def assert_printed(plan: Subject, folder: Path) -> None:
    """Must: the search may answer with it."""
    assert not [*TORCH_CUDA.refusals(plan.decisions, plan.fold)]
    text = written(plan, folder).read_text()
    assert text.index("_forward, block") < text.index("torch.compile(block")
    assert unclean(folder) == ""


def test_statistics_of_copies_are_printed_where_blocks_are_compiled(tmp_path: Path) -> None:
    """The compiler does not see what the model's own code would exchange."""
    plan = compiled(dp=2, reference=NORMED)
    eager = replace(plan, decisions=replace(plan.decisions, style="eager"), workload=WORKLOAD)
    assert "_forward, block" not in written(eager, tmp_path / "eager").read_text()
    assert_printed(plan, tmp_path / "compiled")


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"cp": 2}], ids=str)
def test_a_trained_bias_that_is_cut_is_printed_where_blocks_are_compiled(
    degrees: dict[str, Any], tmp_path: Path
) -> None:
    plan = Small("t5", tmp_path, style="compiled").subject("compiled", Degrees(**degrees))
    assert isinstance(plan, Subject)
    assert_printed(plan, tmp_path / "script")
