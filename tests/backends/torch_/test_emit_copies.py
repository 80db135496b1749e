"""What ranks along data and context axes have of parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.copies import COPIED, Copies
from meshwright.backends.torch_.emit.read.subject import Piece
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.copies import sum_scalars


def test_gradients_add_up_along_axes_that_neither_cut_a_parameter_nor_compute_it_alike() -> None:
    piece = cast(Piece, SimpleNamespace(plan=SimpleNamespace(name="Block")))
    found = Copies({("Block", "experts.up"): ("ep",)}, {("Block", "router.weight"): ("dp",)})
    for path, apart, alike, added in [
        ("experts.up", ("ep",), (), ("dp",)),
        ("router.weight", (), ("dp",), ("ep",)),
        ("norm.weight", (), (), ("dp", "ep")),
    ]:
        assert (found.apart(piece, path), found.alike(piece, path)) == (apart, alike), path
        assert found.added(piece, path, ("dp", "ep")) == added, path
    assert found
    assert not COPIED


def test_of_scalars_those_whose_gradient_all_ranks_have_whole_are_not_added_up() -> None:
    precision = SimpleNamespace(sums="")
    parts = SimpleNamespace(precision=precision, axes=Axes(("dp",), None), alike=True)
    summed: list[torch.Tensor] = []
    dist = SimpleNamespace(all_reduce=lambda grad, group: summed.append(grad))
    names: dict[str, Any] = {"ALIKE": {r"scale": ("dp",)}, "dist": dist, "re": __import__("re")}
    names |= {"nn": nn, "DeviceMesh": object}
    exec("\n".join(sum_scalars(cast(Parts, parts))), names)  # noqa: S102
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(())) for name in ("scale", "scales")})
    for parameter in model.values():
        parameter.grad = torch.ones(())
    names["sum_scalars"](model, {"dp": SimpleNamespace(get_group=lambda: None)})
    assert [grad is model["scales"].grad for grad in summed] == [True]
