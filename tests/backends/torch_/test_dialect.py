"""Every operator as it is printed, on the shards of every rank, against the reference's local kernels."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from meshwright.backends.printing import LocalOp, items_of
from meshwright.backends.printing.items import Walked
from meshwright.backends.torch_.emit.printed.language.dialect import Torch
from meshwright.backends.torch_.emit.printed.language.moves import TEXT
from meshwright.backends.torch_.emit.printed.language.operators import WRITERS
from meshwright.backends.torch_.emit.read.axes import joined
from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.backends.torch_.verify.interpreted.rules import single, strategies
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import EmissionPrinted
from meshwright.ir.graph.graph import Graph, Type
from meshwright.ir.graph.numbers import numbers_of, with_numbers
from meshwright.ir.program.program import Kernels
from meshwright.ir.program.routes import routed
from meshwright.ir.rules import Signature, infer, kinds
from meshwright.ir.sharding.adjoint import Split, Strategy, apply, choices
from meshwright.ir.sharding.layouts import CONTIGUOUS, Sections, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, Shard, State
from meshwright.ir.sharding.reshard import MOVES, Step
from tests.backends.operators import cases
from tests.samples import SAMPLES

UNPRINTED = {"constant", "dispatch", "combine", "opaque", "dropout", "cast", "grouped_mm"}
"""Those that a sample says too little of, that draw numbers, that are not printed yet, or that are not in fp64."""


GIVEN: dict[str, Any] = {"tensor": None, "batch": (), "flat": joined, "constants": {}, "device": "cpu"}
"""What a dialect is given beside the sizes of axes."""


@dataclass(frozen=True)
class Axis:
    """What printed code asks of a mesh axis, where nothing is sent."""

    here: int
    parts: int

    def get_local_rank(self) -> int:
        return self.here

    def size(self) -> int:
        return self.parts


def together(major: Axis, minor: Axis) -> Axis:
    """Two axes as one."""
    return Axis(major.here * minor.parts + minor.here, major.parts * minor.parts)


@functools.cache
def library() -> dict[str, Any]:
    """The functions that printed code calls."""
    scope: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "Tensor": Tensor,
        "Any": Any,
        "cast": cast,
        "NamedTuple": NamedTuple,
        "functools": functools,
        "causal_lower_right": causal_lower_right,
        "DeviceMesh": Axis,
        "nn": nn,
        "convert_to_float8_training": lambda module: module,
    }
    exec(f"from __future__ import annotations\n{TEXT.replace('Move = Callable[[Tensor], Tensor]', '')}", scope)  # noqa: S102
    return scope


def dialect_of(mesh: Mesh) -> Torch:
    return Torch(**GIVEN, sizes={axis.name: axis.size for axis in mesh.axes})


def unevenly(signature: Signature) -> Iterator[tuple[Mesh, Strategy]]:
    """Every factor in unequal parts: of a batch, where it is one of samples."""
    rule, mesh = infer(signature), Mesh.parse("a=2")
    for choice in choices(rule):
        if isinstance(choice, Split) and len(choice.factors) == 1 and choice.layout == CONTIGUOUS:
            size = rule.factor(choice.factors[0]).size
            if size > 1:
                yield mesh, Strategy((("a", Split(choice.factors, Uneven((size - 1, 1)))),))


def compared(signature: Signature, ways: Iterable[tuple[Mesh, Strategy]]) -> int:
    """How many strategies of an operator were printed, and computed what its local kernels do."""
    found = set()
    for case in cases(signature, ways, dialect_of):
        axes = {name: Axis(at, case.mesh.axis(name).size) for name, at in case.here.items()}
        axes |= {joined(two): together(*(axes[one] for one in two)) for two in combinations(case.mesh.names, 2)}
        scope = {**library(), **axes, **{f"x{n}": x for n, x in enumerate(case.operands)}}
        result = eval(case.text, scope)  # noqa: S307 - it is what was printed
        results = result if isinstance(result, (tuple, list)) else (result,)
        for one, wanted in zip(results, case.wanted, strict=True):
            torch.testing.assert_close(one.double(), wanted.double(), msg=case.about)
        found.add(case.about)
    return len(found)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in UNPRINTED])
def test_an_operator_is_printed_as_it_computes(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "reduction:")
        assert sum(compared(signature, strategies(signature)) for signature in SAMPLES[kind])


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in UNPRINTED])
def test_an_operator_on_unequal_parts_is_printed_for_all_ranks_or_refused(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "reduction:")
        found = sum(compared(signature, unevenly(signature)) for signature in SAMPLES[kind])
    assert found or kind not in ("view", "expand", "attention", "conv2d", "mean")


def numbered() -> Iterator[tuple[Signature, Graph, Sequence[tuple[float, ...]]]]:
    """Samples of operators with open numbers, and three sets of these: no rule sees what they are."""
    for signature in (one for kind in kinds() if kind not in UNPRINTED for one in SAMPLES[kind]):
        graph = single(signature)
        if own := numbers_of(graph):
            yield signature, graph, [tuple(n + at if type(n) is int else n / (at + 1) for n in own) for at in range(3)]


def test_numbers_in_which_calls_differ_are_given_by_name() -> None:
    """What is printed once for several calls is, with each one's numbers, what is printed for it alone."""
    mesh, found = Mesh.parse("a=1"), set()
    for signature, graph, several in numbered():
        entry = tuple((f"x{n}", State.replicated(len(one.shape))) for n, one in enumerate(signature.operands))
        plan = BodyPlan("op", "op", tuple((op.name, Strategy(())) for op in graph.ops), entry)

        def items(graph: Graph, numbers: Sequence[Sequence[float]] = (), plan: BodyPlan = plan) -> Walked:
            return items_of(routed(graph, plan, mesh, MOVES), dialect_of(mesh), frozenset(), {}, Kernels(), numbers)

        together = items(graph, several)
        for number, own in enumerate(several):
            given = {name: each[number] for name, each in together.numbers.items()}
            texts = [re.sub(r"\w+", lambda name: given.get(name[0], name[0]), one.text) for one in together.items]  # noqa: B023
            assert texts == [one.text for one in items(with_numbers(graph, own)).items]
            assert given
        found.add(signature.kind)
    assert {"select", "mul", "rms_norm"} <= found


class Spelled(Torch):
    """A dialect whose operators are as long as what they make."""

    def operator(self, call: LocalOp) -> str:
        return "x" * call.made[0].shape[0]


def test_ranks_with_unequal_parts_run_one_text() -> None:
    signature = Signature("relu", (Type((4, 2), "f32"),), ())
    strategy, mesh = Strategy.parse("a=d0:uneven(3,1)"), Mesh.parse("a=2")
    states = apply(infer(signature), signature.operands, strategy, mesh).operands
    plan = BodyPlan("op", "op", (("y0", strategy),), (("x0", states[0]),))
    way = routed(single(signature), plan, mesh, MOVES)
    with pytest.raises(EmissionPrinted, match="unequal parts of the batch run it in different ways"):
        items_of(
            way,
            Spelled(**GIVEN, sizes={"a": 2}),
            frozenset(),
            {},
            Kernels(),
        )


def test_every_kind_is_written() -> None:
    assert set(WRITERS) == set(EAGER)


def test_parts_that_are_exchanged_are_put_in_order() -> None:
    """What an all-to-all puts together was cut as the placement before it says, which its step does not."""
    sizes = Sections((4, 8))
    rows, sections = Placement(((Shard("tp"),), ())), Placement(((), (Shard("tp", sizes),)))
    dialect = Torch(**GIVEN, sizes={"tp": 2})
    text = dialect.steps("x", [Step("all_to_all", ("tp",), 0, 1, sizes)], rows, (2, 12))
    assert text == "all_to_all(x, tp, 0, 1, sections=(4, 8))"
    text = dialect.steps("x", [Step("all_to_all", ("tp",), 1, 0)], sections, (4, 6))
    assert text == "in_order(all_to_all(x, tp, 1, 0), tp, 1, sections=(4, 8))"
