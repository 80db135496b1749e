"""What parts of a batch weigh in its loss: by hand, and against torch on batches that are cut apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.backends.torch_.verify.apart import Apart
from meshwright.ir.analysis.weights import COUNT, MEAN, SUM, Weight, counted_in, shows_sums, weights_of
from meshwright.ir.errors import EmissionLoss
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromSegment, Segment
from meshwright.ir.graph.graph import Graph, Input
from meshwright.ir.same import Same
from tests.build import Builder

ROWS, CLASSES = 8, 5
Loss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


def batch() -> dict[str, Tensor]:
    """Scores of classes, a class for each sample of which some do not count, numbers, and a mask."""
    torch.manual_seed(0)
    label = torch.randint(0, CLASSES, (ROWS,))
    label[::3] = -100
    return {
        "x": torch.randn(ROWS, CLASSES, dtype=torch.float64),
        "label": label,
        "y": torch.rand(ROWS, CLASSES, dtype=torch.float64),
        "mask": torch.arange(ROWS) % 3 > 0,
    }


class Scaled(nn.Module):
    """A scale of every class."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(CLASSES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def weights(loss: Any, kind: type[nn.Module] = Scaled) -> tuple[Weight, ...]:
    """Those of a traced loss."""
    return weights_of(traced(loss, kind))


def traced(loss: Any, kind: type[nn.Module]) -> Graph:
    """The graph of a model and its loss."""
    with torch.device("meta"):
        model = kind()
    given = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in batch().items()}
    dims = {name: ("b", *[""] * (one.dim() - 1)) for name, one in given.items()}
    source = TorchSource(model, Hooks(loss=loss, dims=dims), "here")
    return trace(source, given).graph


def folded(kind: type[nn.Module]) -> Fold:
    """A model with a mean of squares, in one body."""
    graph = traced(TERMS["mse"][0], kind)
    entry = tuple(FromInput(item.value) for item in graph.inputs)
    held = tuple((item, graph.types[item.value]) for item in graph.inputs)
    segments = (Segment(("model",), ("",), entry, (entry,), glue=True),)
    return Fold((Body("model", graph),), segments, held, (FromSegment(0, 0, 0),), 0)


def masked(out: Tensor, of: Mapping[str, Tensor]) -> Tensor:
    """A mean over what a mask lets through, written by hand."""
    each, mask = (out - of["y"]).square().mean(-1), of["mask"].double()
    return (each * mask).sum() / mask.sum()


TERMS: Mapping[str, tuple[Loss, str]] = {
    "cross entropy": (lambda out, of: F.cross_entropy(out, of["label"]), COUNT),
    "nll": (lambda out, of: F.nll_loss(F.log_softmax(out, -1), of["label"]), COUNT),
    "masked": (masked, COUNT),
    "mse": (lambda out, of: F.mse_loss(out, of["y"]), "mean"),
    "l1": (lambda out, of: F.l1_loss(out, of["y"]), "mean"),
    "smooth l1": (lambda out, of: F.smooth_l1_loss(out, of["y"], beta=0.3), "mean"),
    "huber": (lambda out, of: F.huber_loss(out, of["y"], delta=0.3), "mean"),
    "bce": (lambda out, of: F.binary_cross_entropy(out.sigmoid(), of["y"]), "mean"),
    "bce of logits": (lambda out, of: F.binary_cross_entropy_with_logits(out, of["y"]), "mean"),
    "kl": (lambda out, of: F.kl_div(out.log_softmax(-1), of["y"].softmax(-1), reduction="batchmean"), "mean"),
    "z": (lambda out, of: 1e-2 * out.logsumexp(-1).square().mean(), "mean"),
    "by hand": (lambda out, of: ((out - of["y"]) ** 2).sum() / len(out), "mean"),
    "sum": (lambda out, of: F.mse_loss(out, of["y"], reduction="sum"), "sum"),
    "sum by hand": (lambda out, of: 0.1 * (out - of["y"]).abs().sum(), "sum"),
}


@pytest.mark.parametrize("name", TERMS)
def test_parts_of_a_batch_add_up(name: str) -> None:
    """Unequal ones, each times its weight, to the loss of the whole and its gradients."""
    loss, kind = TERMS[name]
    (found,) = weights(loss)
    assert found.kind == kind
    whole, model = batch(), Scaled()
    expected = loss(model(whole["x"]), whole)
    expected.backward()
    gradient, model.scale.grad = model.scale.grad, None
    total = 0.0
    for weight, part in Apart(2, (3, 1), found).parts(whole):
        one = loss(model(part["x"]), part) * weight
        one.backward()
        total += one.item()
    assert total == pytest.approx(expected.item())
    torch.testing.assert_close(model.scale.grad, gradient)


SEVERAL = (("mse", "kl"), ("cross entropy", "bce", "z"), ("nll", "cross entropy"), ("masked", "mse"), ("sum", "l1"))


@pytest.mark.parametrize("names", SEVERAL)
def test_terms_that_are_added_weigh_as_each_does(names: tuple[str, ...]) -> None:
    """Means of any kind; sums with sums alone."""

    def loss(out: Tensor, of: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([0.5 * TERMS[name][0](out, of) for name in names]).sum()

    def added(out: Tensor, of: Mapping[str, Tensor]) -> Tensor:
        return sum((0.5 * TERMS[name][0](out, of) for name in names[1:]), TERMS[names[0]][0](out, of))

    alone = {one for name in names for one in weights(TERMS[name][0])}
    if SUM in alone:
        with pytest.raises(EmissionLoss, match="what parts of it weigh differently"):
            weights(added)
    else:
        assert set(weights(added)) == alone == set(weights(loss))


REFUSED: Mapping[str, tuple[Loss, str]] = {
    "a root": (lambda out, of: F.mse_loss(out, of["y"]).sqrt(), "is not linear in a sum over the batch"),
    "a product": (lambda out, of: out.mean() * of["y"].mean(), "is not linear in a sum over the batch"),
    "a maximum": (lambda out, of: out.amax(), "takes a maximum over the batch"),
    "contrast": (lambda out, of: (out @ of["y"].t()).mean(), "compares samples of the batch with each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_add_up_is_refused(name: str) -> None:
    """With the operator, and why."""
    loss, reason = REFUSED[name]
    with pytest.raises(EmissionLoss, match=reason):
        weights(loss)


class Normalised(Scaled):
    """What a mean of squares of the batch divides, less another mean."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        return (x - x.mean()) / (x.square().mean() - x.mean().square()).sqrt()


def test_what_statistics_of_the_batch_normalise_belongs_to_samples() -> None:
    """A mean over them is one; copies that see their own samples alone compute something else."""
    for name, kind in (("mse", MEAN), ("sum", SUM)):
        assert weights(TERMS[name][0], Normalised) == (kind,)
    shown = [shows_sums(Same(folded(kind))) for kind in (Scaled, Normalised)]
    assert shown == [False, True]


class Penalised(Scaled):
    """A penalty on its parameter beside what it makes."""

    def forward(self, x: Tensor) -> Any:
        return x * self.scale, self.scale.square().sum()


def test_what_does_not_depend_on_the_batch_belongs_to_means_alone() -> None:
    """A penalty on parameters is the same in every part."""

    def of(loss: Loss) -> tuple[Weight, ...]:
        return weights(lambda out, of: loss(out[0], of) + out[1], Penalised)

    assert of(TERMS["mse"][0]) == (MEAN,)
    assert [one.kind for one in of(TERMS["cross entropy"][0])] == [COUNT]
    with pytest.raises(EmissionLoss, match="what parts of it weigh differently"):
        of(TERMS["sum"][0])


def test_one_body_takes_means_over_what_counts_in_one_entry() -> None:
    """Else one function would weigh a term in two ways."""

    def fold(other: str) -> Fold:
        term, total = Builder(), Builder()
        scores = term.input((ROWS, CLASSES), labels=("b", ""))
        label = term.input((ROWS,), dtype="i64", labels=("b",))
        term.output(term.op("cross_entropy", scores, label, ignore_index=-100, reduction="mean"))
        total.output(total.op("add", *(total.input(()) for _ in range(2))))
        bodies = Body("term", term.graph()), Body("total", total.graph())
        x = FromInput("x")
        calls = [(x, FromInput("label")), (x, FromInput(other)), (FromSegment(0, 0, 0), FromSegment(1, 0, 0))]
        names = ("term", "term", "total")
        segments = tuple(
            Segment((name,), ("",), entry, (entry,), glue=True) for name, entry in zip(names, calls, strict=True)
        )
        types = {item.value: bodies[0].graph.types[item.value] for item in bodies[0].graph.inputs}
        held = zip(("x", "label", "other"), (*types.values(), types[label]), strict=True)
        inputs = tuple((Input(name, labels=("b", "")[: len(type_.shape)]), type_) for name, type_ in held)
        return Fold(bodies, segments, inputs, (FromSegment(2, 0, 0),), 0)

    assert [weight.entry for weight in counted_in(Same(fold("label"))).values()] == ["label"]
    with pytest.raises(EmissionLoss, match="calls of term take means over what counts in several entries"):
        counted_in(Same(fold("other")))
