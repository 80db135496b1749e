"""What blocks read waits in the host's memory until they are computed again: in loops, written out, printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from meshwright.backends.jax_.capabilities import JAX_TPU
from meshwright.backends.jax_.emit.recompute import inputs_that_wait, waiting
from meshwright.backends.jax_.emit.script import printed_in
from meshwright.backends.jax_.emit.shardings import Shardings
from meshwright.backends.jax_.verify.emitted import verdict
from meshwright.backends.jax_.verify.predicted import OF_PRINTED
from meshwright.backends.jax_.verify.waiting import planned_bytes, traced_bytes
from meshwright.ir.errors import EmissionRecompute, NotExpressible
from meshwright.planner.plan.needs import planned_memory
from tests.backends.jax_.planned import BATCH, LLAMA, SEQ, ZOO, needed_of, ran_together, subject

AGAIN = {"recompute": "full", "offload": "activations"}
EVALUATED = (
    (f"{LLAMA}:tiny", {"dp": 8, "zero": 3, **AGAIN}),
    (f"{LLAMA}:tiny_scan", {"dp": 4, "tp": 2, "microbatches": 2, **AGAIN}),
    (f"{ZOO}/plain.py:decoder_scan", {"dp": 8, "microbatches": 2, **AGAIN}),
    (f"{ZOO}/plain.py:gshard_scan", {"dp": 4, "zero": 3, **AGAIN}),
)
PRINTED = (
    (f"{LLAMA}:tiny", {"dp": 4, "cp": 2, "context": "ring", "zigzag": True, **AGAIN}),
    (f"{LLAMA}:tiny_scan", {"dp": 2, "cp": 2, "context": "ring", "microbatches": 2, **AGAIN}),
    (f"{ZOO}/translation.py:build", {"dp": 2, **AGAIN}),
)
HIDDEN = BATCH * SEQ * 64 * 4
"""Bytes of what goes from block to block in the example's tiny model."""


@pytest.mark.e2e
@pytest.mark.slow
def test_scripts_whose_activations_wait_on_the_host_are_exact(tmp_path: Path) -> None:
    """As many bytes are sent there as planned."""
    for number, (one, left) in enumerate(ran_together("waiting", (*EVALUATED, *PRINTED), tmp_path, 300)):
        found = verdict(one, left)
        assert found.differences == ()
        printed, ring = printed_in(Shardings(one.subject)) is not None, "context=ring" in one.subject.config
        assert printed == (number >= len(EVALUATED))
        assert not printed or ("one_way" in needed_of(one, left, OF_PRINTED)) == ring
        (said,) = verdict(one, replace(left, waiting_bytes=0)).differences
        assert said == f"0 bytes of activations wait in the host's memory, {left.waiting_bytes} are planned"


def test_what_waits_is_what_a_block_reads_of_the_one_before() -> None:
    """Written out, by the equation that makes it; in a loop, what goes from run to run."""
    looped, plain = (Shardings(subject(f"{LLAMA}:{name}", dp=2, **AGAIN)) for name in ("tiny_scan", "tiny"))
    assert len(waiting(looped)) == 1
    assert waiting(looped)[0].endswith("@+")
    assert len(waiting(plain)) == 4
    assert [inputs_that_wait(piece, plain) for piece in plain.subject.pieces] == [(), (0,), ()]
    assert waiting(Shardings(subject(f"{LLAMA}:tiny", dp=2, recompute="full"))) == ()


def test_bytes_that_wait_are_whole_but_along_manual_axes() -> None:
    plan = subject(f"{LLAMA}:tiny", dp=4, tp=2, **AGAIN)
    assert planned_bytes(plan.program, ()) == 4 * HIDDEN
    assert planned_bytes(plan.program, ("dp",)) == HIDDEN
    assert planned_bytes(plan.program, ("dp", "tp")) == HIDDEN
    several = subject(f"{LLAMA}:tiny", dp=4, tp=2, microbatches=4, **AGAIN)
    assert planned_bytes(several.program, ()) == 4 * HIDDEN
    assert planned_bytes(subject(f"{LLAMA}:tiny", dp=4, recompute="full").program, ()) == 0


def test_a_trace_says_what_is_sent_as_often_as_loops_run() -> None:
    there = jax.memory.Space.Host

    def looped(x: jax.Array) -> jax.Array:
        rows, _ = jax.lax.scan(lambda carry, _: (jax.device_put(carry, there), None), x, length=3)
        return jax.device_put(rows, jax.memory.Space.Device)

    def once(x: jax.Array) -> jax.Array:
        return jax.jit(lambda one: jax.device_put(one, there))(x)

    x = jnp.ones((4, 8), jnp.bfloat16)
    with pytest.raises(TypeError):
        jax.make_jaxpr(looped)(x)  # a carry stays where it is
    assert traced_bytes(jax.make_jaxpr(once)(x).jaxpr) == 64
    stacked = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c, jax.device_put(c, there)), x, length=3))(x)
    assert traced_bytes(stacked.jaxpr) == 192
    assert traced_bytes(jax.make_jaxpr(jnp.tanh)(x).jaxpr) == 0


def test_devices_hold_less() -> None:
    ways = ({"recompute": "full"}, AGAIN)
    here, there = (subject(f"{LLAMA}:tiny", on=JAX_TPU, dp=8, zero=3, **way) for way in ways)
    assert max(planned_memory(there.program)) < max(planned_memory(here.program))


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"recompute": "none"}, "which is not computed again"),
        ({"recompute": "full_layers:2"}, "which is not computed again"),
        ({"offload": "activations:2"}, "the first 2 blocks alone"),
        ({"pp": 2, "microbatches": 4, "schedule": "gpipe"}, "a pipeline"),
    ],
)
def test_what_else_would_wait_is_refused(degrees: dict[str, object], said: str) -> None:
    with pytest.raises(NotExpressible, match=said):
        subject(f"{LLAMA}:tiny", dp=2, **AGAIN | degrees)


def test_what_no_equation_makes_alone_is_refused() -> None:
    plan = subject(f"{LLAMA}:tiny", dp=2, **AGAIN)
    assert plan.calls.places is not None
    lost = replace(plan.calls.places, values={})
    with pytest.raises(EmissionRecompute, match="no equation of its own makes"):
        waiting(Shardings(replace(plan, calls=replace(plan.calls, places=lost))))
