"""Parameters in shards are gathered for a block and again for its backward pass: in loops, written out, printed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.recompute import again, cheaply
from meshwright.backends.jax_.emit.script import printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import verdict
from meshwright.backends.jax_.verify.predicted import OF_PRINTED, REWRITES, predicted
from meshwright.ir.program.program import Move
from meshwright.planner.plan.needs import planned_memory
from tests.backends.jax_.planned import LLAMA, TARGET, ZOO, needed_of, ran_together, subject

EVALUATED = (
    (f"{LLAMA}:tiny_scan", {"dp": 4, "zero": 3}),
    (f"{LLAMA}:tiny", {"dp": 2, "tp": 2, "zero": 3, "recompute": "full"}),
    (f"{ZOO}/linen.py:gpt", {"dp": 4, "zero": 3}),
    (f"{ZOO}/plain.py:lora", {"dp": 4, "zero": 3}),
)
PRINTED = (
    (f"{ZOO}/linen.py:gpt", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}),
    (f"{ZOO}/plain.py:gshard", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}),
    (f"{ZOO}/plain.py:lora", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}),
)


@pytest.mark.e2e
@pytest.mark.slow
def test_scripts_that_gather_again_are_exact(tmp_path: Path) -> None:
    """The gathers of both passes are executed, those of frozen parameters, too (of LoRA). Biases of norms are
    read by no derivative (the model in Linen has some), and code for CPUs merges what no loop keeps apart."""
    for number, (one, left) in enumerate(ran_together("regathered", (*EVALUATED, *PRINTED), tmp_path, 300)):
        found, printed = verdict(one, left), number >= len(EVALUATED)
        assert found.differences == ()
        assert found.worst < 1e-5
        assert (printed_in(Shardings(one.subject)) is not None) == printed
        needed = needed_of(one, left, OF_PRINTED if printed else REWRITES)
        assert ("unread" in needed) == (number == 2)
        assert ("merged" in needed) == printed


def test_only_blocks_gather_again_and_in_one_micro_batch() -> None:
    """What stands once is gathered once, and so is everything where micro-batches follow each other."""

    def gathering(**degrees: int) -> list[str]:
        plan = subject(f"{LLAMA}:tiny_scan", dp=2, zero=3, **degrees)
        moved = {b.name: [one for one in b.backward if isinstance(one, Move)] for b in plan.program.bodies}
        return sorted(name for name, several in moved.items() if any(one.reason == "parameter" for one in several))

    assert gathering() == ["blocks"]
    assert gathering(microbatches=2) == []


def test_blocks_that_only_gather_again_are_told_from_those_computed_again() -> None:
    kept, computed = (Shardings(subject(f"{LLAMA}:tiny_scan", dp=2, zero=3, recompute=how)) for how in ("none", "full"))
    assert again(kept) == again(computed) != {}
    assert cheaply(kept) == set(again(kept))
    assert cheaply(computed) == set()
    assert kept.gathered_again == computed.gathered_again != {}
    assert not any(kept.gathers)


def test_gathering_again_saves_what_is_gathered_but_for_a_block() -> None:
    """Four blocks' parameters in fp32, of which one block's largest is there; and twice the bytes are gathered."""
    once, twice = (subject(f"{LLAMA}:tiny", dp=4, zero=3, regather=regather) for regather in (False, True))
    assert max(planned_memory(once.program)) > max(planned_memory(twice.program))
    block = sum(
        once.program.body("blocks").nbytes[one.operand]
        for one in once.program.body("blocks").forward
        if isinstance(one, Move) and one.reason == "parameter"
    )
    gathered = [predicted(one.program, one.fold, TARGET).packed["all_gather", ("dp",)] for one in (once, twice)]
    assert gathered[1] - gathered[0] == 4 * block
