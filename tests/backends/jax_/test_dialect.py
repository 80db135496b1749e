"""Every operator as it is printed in JAX, on the shards of every rank, against the reference's local kernels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from meshwright.backends.jax_.emit.printed.dialect import Jax
from meshwright.backends.jax_.emit.printed.moves import TEXT
from meshwright.backends.jax_.emit.printed.operators import WRITERS
from meshwright.backends.torch_.verify.interpreted.rules import strategies
from meshwright.ir.rules import kinds
from meshwright.ir.sharding.mesh import Mesh
from tests.backends.operators import Case, cases
from tests.samples import SAMPLES

UNPRINTED = {
    *("constant", "dispatch", "combine", "opaque", "pointwise", "dropout"),
    *("batch_norm", "batch_moments", "batch_normalize", "upsample"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("adaptive_avg_pool2d", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
"""Those that no model of JAX has: it is said in other operators there."""
APART = {"cast", "grouped_mm"}
"""Those that are not in fp64."""
DRAWN = 2
"""Of the strategies and ranks that share an expression."""


def dialect_of(mesh: Mesh) -> Jax:
    return Jax(sizes={axis.name: axis.size for axis in mesh.axes}, batch=(), constants={}, reads={})


@functools.cache
def library() -> dict[str, Any]:
    """The functions that printed code calls, with a rank's place for that of a device."""
    scope: dict[str, Any] = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "math": math,
        "itertools": itertools,
        "partial": functools.partial,
        "MESH": {},
        "RANK": {},
    }
    text = TEXT.replace("jax.lax.axis_index(", "RANK.__getitem__(")
    exec(f"from __future__ import annotations\n{text}", scope)  # noqa: S102
    return scope


def drawn(found: Iterable[Case]) -> Iterator[Case]:
    """Every expression with some of its cases, by seed: XLA compiles each anew."""
    by_text: dict[str, list[Case]] = {}
    for case in found:
        by_text.setdefault(case.text, []).append(case)
    for text, group in by_text.items():
        yield from Random(text).sample(group, min(DRAWN, len(group)))


@pytest.mark.parametrize("kind", sorted(set(WRITERS) - APART))
def test_an_operator_is_printed_as_it_computes(kind: str) -> None:
    scope, found = library(), 0
    with jax.enable_x64(True):
        for signature in SAMPLES[kind]:
            for case in drawn(cases(signature, strategies(signature), dialect_of)):
                scope["RANK"].update(case.here)
                scope["MESH"].update({axis.name: axis.size for axis in case.mesh.axes})
                given = {f"x{n}": jnp.asarray(one.numpy()) for n, one in enumerate(case.operands)}
                result = eval(case.text, scope, given)  # noqa: S307 - it is what was printed
                results = result if isinstance(result, (tuple, list)) else (result,)
                for one, wanted in zip(results, case.wanted, strict=True):
                    made = torch.from_numpy(np.array(one, np.float64))
                    torch.testing.assert_close(
                        made, wanted.double(), msg=lambda said, case=case: f"{case.about}: {said}"
                    )
                found += 1
    assert found


def test_every_kind_is_written_but_those_that_no_model_has() -> None:
    assert set(WRITERS) == set(kinds()) - UNPRINTED
