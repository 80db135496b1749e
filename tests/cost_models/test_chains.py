"""Which kernels run memory-bound operators, and what each moves: every name has bytes of a power of two of its own, so
that a sum says which names are in it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.cost_models.ledger.chains import Chains
from meshwright.ir.program.program import Add, Compute, Gradient, Kept, Move, Statement, Zero
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.reshard import Step
from tests.samples import sample

NAMES = "abcdefghijkl"
SIZES = {name: float(2**at) for at, name in enumerate(NAMES)}
SIGNATURES = {
    "relu": sample("relu", "f32[4]"),
    "mul": sample("mul", "f32[4] f32[4]"),
    "add": sample("add", "f32[4] f32[4]"),
    "softmax": sample("softmax", "f32[4]", dim=-1),
    "linear": sample("linear", "f32[4, 4] f32[4, 4]"),
    "view": sample("view", "f32[4]", shape=(2, 2)),
    "split": sample("split", "f32[8]", dim=0, sizes=(4, 4)),
    "cat": sample("cat", "f32[4] f32[4]", dim=0),
    "embedding": sample("embedding", "f32[9, 4] i64[4]"),
}


def do(kind: str, operands: str, results: str) -> Compute:
    return Compute(SIGNATURES[kind], Strategy(), tuple(operands), tuple(results), f"{kind}.{results}")


def back(kind: str, operands: str, outputs: str, grads: str, results: str, *wanted: int) -> Gradient:
    """Of the operands in `wanted`; a dash is a gradient that does not come."""
    arriving = tuple(None if name == "-" else name for name in grads)
    return Gradient(
        SIGNATURES[kind], Strategy(), tuple(operands), tuple(outputs), arriving, wanted, tuple(results), f"{kind}.back"
    )


def move(operand: str, result: str) -> Move:
    return Move(Step("all_reduce", ("dp",)), operand, result)


def kernels(
    *statements: Statement,
    style: str = "fused",
    outputs: str = "",
    kept: str = "",
    input_grads: tuple[str | None, ...] = (),
    sums: tuple[tuple[str, ...], ...] = (),
    leaving: tuple[Move, ...] = (),
    one_loss: bool = False,
    sizes: dict[str, float] = SIZES,
) -> list[str]:
    """What every kernel reads and writes, by names in order."""
    body: Any = SimpleNamespace(
        outputs=tuple(outputs), kept=tuple(Kept(name, 1) for name in kept), input_grads=input_grads, nbytes=sizes
    )
    made = Chains(body, statements, style, sums, leaving, one_loss=one_loss)
    return [moved(nbytes) for nbytes in made.kernels()]


def moved(nbytes: float) -> str:
    return "".join(name for name in NAMES if int(nbytes) & int(SIZES[name]))


RELU, MUL = do("relu", "a", "b"), do("mul", "bc", "d")
"""b = relu(a), d = b c"""


def test_a_chain_reads_from_outside_and_writes_what_is_read_outside() -> None:
    """An eager stack runs each by itself. What lies between is written only if something else wants it: a result, the
    backward pass, a gradient that leaves, a move, now or later, a product, or an operator that joins no chain."""
    table: list[tuple[dict[str, Any], tuple[Statement, ...], list[str]]] = [
        ({"style": "eager"}, (), ["ab", "bcd"]),
        ({}, (), ["acd"]),
        ({"style": "compiled"}, (), ["acd"]),
        ({"outputs": "d"}, (), ["acd"]),
        ({"outputs": "b"}, (), ["abcd"]),
        ({"kept": "b"}, (), ["abcd"]),
        ({"input_grads": (None, "b")}, (), ["abcd"]),
        ({"input_grads": (None,)}, (), ["acd"]),
        ({}, (move("b", "e"),), ["abcd"]),
        ({"leaving": (move("b", "e"),)}, (), ["abcd"]),
        ({}, (do("linear", "be", "f"),), ["abcd"]),
        ({}, (do("linear", "ae", "f"),), ["acd"]),
        ({}, (do("softmax", "b", "e"),), ["abcd", "be"]),
        ({"style": "compiled"}, (do("softmax", "b", "e"),), ["acde"]),
        ({"style": "xla"}, (do("softmax", "b", "e"),), ["acde"]),
        ({}, (do("softmax", "d", "e"),), ["acd", "de"]),
        ({"style": "compiled"}, (do("softmax", "d", "e"), do("relu", "e", "f")), ["acf"]),
        # what nobody reads is written all the same; a gradient that is zero is nothing
        ({}, (do("relu", "a", "e"), Zero("f")), ["acd", "ae"]),
        ({}, (do("relu", "d", "e"), do("mul", "bd", "f")), ["acef"]),
        # two chains that nothing joins, in the order of their first members
        ({}, (do("relu", "e", "f"), do("relu", "d", "g"), do("relu", "f", "h")), ["acg", "eh"]),
        # two that a later one joins
        ({}, (do("relu", "e", "f"), do("mul", "fd", "g")), ["aceg"]),
        ({}, (do("cat", "de", "f"),), ["acef"]),
    ]
    for words, more, expected in table:
        assert kernels(RELU, MUL, *more, **words) == expected, (words, more)


def test_views_and_sums_of_one_tensor_move_nothing() -> None:
    table: list[tuple[dict[str, Any], tuple[Statement, ...], list[str]]] = [
        # a view is where its operand is, whoever looks at it
        ({"style": "eager"}, (do("view", "a", "b"), do("relu", "b", "c")), ["ac"]),
        ({"style": "eager"}, (do("split", "a", "bc"), do("relu", "b", "d"), do("relu", "c", "e")), ["ad", "ae"]),
        ({}, (do("relu", "a", "b"), do("view", "b", "c"), do("relu", "c", "d")), ["ad"]),
        # a sum of two is a kernel that joins others, on an eager stack only other sums
        ({"style": "eager"}, (Add(("a", "b"), "c"), Add(("c", "d"), "e"), do("relu", "e", "f")), ["abde", "ef"]),
        ({}, (Add(("a", "b"), "c"), do("relu", "c", "d")), ["abd"]),
        # the same twice is the sum of what was one already
        ({"sums": (("a", "b"),)}, (Add(("a", "b"), "c"), do("relu", "c", "d")), ["ad"]),
        ({"sums": (("a", "b", "e"),)}, (Add(("b", "e"), "c"), do("relu", "c", "d")), ["ad"]),
        ({"sums": (("a", "b"),)}, (Add(("a", "c"), "d"),), ["acd"]),
        ({"sums": (("a",),)}, (Add(("a", "b"), "d"),), ["abd"]),
    ]
    for words, statements, expected in table:
        assert kernels(*statements, **words) == expected, (words, statements)


def test_what_derivatives_read_and_hand_on() -> None:
    """Of a sum the gradient itself, if as large; of a product the other operand, of a ReLU what it made; a view hands
    on what comes, and one of several parts writes them together."""
    table: list[tuple[dict[str, Any], tuple[Statement, ...], list[str]]] = [
        ({}, (back("relu", "a", "b", "c", "d", 0),), ["bcd"]),
        ({}, (back("mul", "ab", "c", "d", "e", 0),), ["bde"]),
        ({}, (back("mul", "ab", "c", "d", "e", 1),), ["ade"]),
        ({}, (back("mul", "ab", "c", "d", "ef", 0, 1),), ["abdef"]),
        ({}, (back("softmax", "a", "b", "c", "d", 0), back("relu", "f", "g", "d", "h", 0)), ["bcd", "dgh"]),
        (
            {"style": "compiled"},
            (back("softmax", "a", "b", "c", "d", 0), back("relu", "f", "g", "d", "h", 0)),
            ["bcgh"],
        ),
        ({"style": "eager"}, (back("view", "a", "b", "c", "d", 0), back("relu", "f", "g", "d", "h", 0)), ["cgh"]),
        ({"style": "eager"}, (back("split", "a", "bc", "-d", "e", 0), back("relu", "f", "g", "e", "h", 0)), ["dgh"]),
        # a product reads what its gradient needs, which an elementwise chain then writes
        ({}, (do("relu", "a", "b"), do("relu", "b", "c"), back("linear", "be", "f", "g", "h", 1)), ["abc"]),
        ({}, (do("relu", "a", "b"), do("relu", "b", "c"), back("linear", "be", "f", "g", "h", 0)), ["ac"]),
        ({}, (do("relu", "a", "b"), do("relu", "b", "c"), back("linear", "ef", "g", "b", "h", 0)), ["abc"]),
    ]
    for words, statements, expected in table:
        assert kernels(*statements, **words) == expected, (words, statements)
    same = SIZES | {"e": SIZES["d"]}
    smaller = back("add", "ab", "c", "d", "e", 1), back("relu", "f", "g", "e", "h", 0)
    assert kernels(*smaller, style="eager", sizes=same) == ["dgh"]
    assert kernels(*smaller, style="eager") == ["de", "egh"]


def test_rows_that_are_gathered_are_read_as_they_are_written() -> None:
    """Of a table no more than those: a's rows are as large as what comes out, which is counted twice."""
    found: Any = SimpleNamespace(outputs=(), kept=(), input_grads=(), nbytes=SIZES)
    made = Chains(found, [do("embedding", "ab", "d")], "eager", (), one_loss=False)
    assert list(made.kernels()) == [SIZES["b"] + 2 * SIZES["d"]]


def test_a_loss_that_is_fused_is_one_kernel() -> None:
    """On an eager stack, too, but for rows that are reduced."""
    statements = (RELU, MUL, do("softmax", "d", "e"))
    assert kernels(*statements, style="eager", one_loss=True) == ["acd", "de"]
    assert kernels(*statements, style="eager") == ["ab", "bcd", "de"]
    assert kernels(*statements, style="compiled", one_loss=True) == ["ace"]


def test_what_moves_nothing_is_no_kernel() -> None:
    assert kernels(RELU, do("relu", "c", "d"), sizes=SIZES | {"a": 0.0, "b": 0.0}) == ["cd"]
    assert kernels() == []
