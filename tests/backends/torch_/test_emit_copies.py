"""What ranks along data and context axes have of parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from meshwright.backends.subject import Piece
from meshwright.backends.torch_.emit.read.axes import Axes
from meshwright.backends.torch_.emit.read.copies import COPIED, Copies
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.backends.torch_.emit.write.steps.copies import sum_apart, sum_scalars


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


def test_gradients_that_are_sums_over_a_tensor_axis_are_none_any_more_once_they_are_added_up() -> None:
    """Left as they are, every operator of the optimizer would add them up again."""
    parts: Any = SimpleNamespace(summed_otherwise={"up": ("tp",), "down": ("dp",)}, axes=Axes(("dp",), "tp"))
    groups: list[str] = []

    class Held:
        def __init__(self, of: str) -> None:
            self.of, self.shape, self.device_mesh, self.placements = of, (2,), "mesh", "shards"
            self.grad: Any = None

        def stride(self) -> tuple[int, ...]:
            return (1,)

        def to_local(self) -> str:
            return f"local of {self.of}"

        @staticmethod
        def from_local(local: str, *_: object, **__: object) -> str:
            return f"whole of {local}"

    def add(grad: str, group: str, async_op: bool) -> Any:
        groups.append(f"{grad} over {group}")
        return SimpleNamespace(wait=lambda: None)

    held = {name: Held(name) for name in ("up", "down", "other")}
    for name, one in held.items():
        one.grad = Held(f"gradient of {name}")
    model = SimpleNamespace(named_parameters=held.items)
    summed = {"up": "tp", "down": "dp"}
    names: dict[str, Any] = {"SUMMED": summed, "dist": SimpleNamespace(all_reduce=add), "re": __import__("re")}
    names |= {"nn": nn, "DeviceMesh": object, "DTensor": Held}
    exec("\n".join(sum_apart(parts)), names)  # noqa: S102
    names["sum_apart"](model, {axis: SimpleNamespace(get_group=lambda axis=axis: axis) for axis in ("dp", "tp")})
    assert groups == ["local of gradient of up over tp", "local of gradient of down over dp"]
    assert held["up"].grad == "whole of local of gradient of up"
    assert held["other"].grad.of == "gradient of other"
