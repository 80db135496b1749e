"""Random operators put in their means: what dropout, noise and masks are then, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.backends.torch_.verify.run.still import LEFT, MEANS, Still

X = torch.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
QUERY = X.reshape(1, 2, 3, 4)

DRAWS: dict[str, tuple[Callable[[], Tensor], Tensor, set[str]]] = {
    "a function that is told": (lambda: F.dropout(X, 0.3, training=True), X, {"bernoulli"}),
    "a module": (lambda: nn.Dropout(0.9)(X), X, {"bernoulli"}),
    "of channels": (lambda: F.dropout1d(X, 0.5, True), X, {"bernoulli"}),
    "in attention": (
        lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=0.4),
        F.scaled_dot_product_attention(QUERY, QUERY, QUERY),
        {"bernoulli"},
    ),
    "paths": (lambda: X * X.new_empty(2, 1, 1).bernoulli_(0.8).div_(0.8), X, {"bernoulli"}),
    "chances": (lambda: torch.bernoulli(X.abs()), X.abs(), {"bernoulli"}),
    "noise": (lambda: X + torch.randn_like(X), X, {"randn_like"}),
    "noise of a size": (lambda: X + torch.randn(2, 3, 4), X, {"randn"}),
    "jitter": (lambda: X * torch.empty_like(X).uniform_(0.5, 1.5), X, {"uniform"}),
    "Gumbel": (lambda: torch.empty_like(X).exponential_().log(), torch.zeros_like(X), {"exponential"}),
    "normal": (lambda: torch.normal(X, 0.5), X, {"normal"}),
    "integers": (lambda: torch.randint(2, 9, (3,)), torch.full((3,), 2), {"randint"}),
    "an order": (lambda: torch.randperm(4), torch.arange(4), {"randperm"}),
    "samples": (lambda: torch.multinomial(X[0].abs(), 2), torch.arange(2).expand(3, 2), {"multinomial"}),
    "nothing": (lambda: F.dropout(X, 0.3, training=False) + 1, X + 1, set()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_makes_its_mean(name: str) -> None:
    """And is noted by name; what does not draw runs as it would."""
    run, expected, noted = DRAWS[name]
    with Still() as still:
        found = run()
    torch.testing.assert_close(found, expected)
    assert {one for one in still.noted if one != "native_dropout"} == noted


def test_gradients_are_those_of_what_was_computed() -> None:
    """Also where a forward pass runs again."""
    x = X.clone().requires_grad_()
    with Still():
        torch.utils.checkpoint.checkpoint(
            lambda one: F.dropout(one, 0.5).square(), x, use_reentrant=False
        ).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X)


def test_every_operator_of_torch_that_draws_is_stilled_or_told() -> None:
    """Of all that torch tags: those that take a chance to drop, those with a mean, and a list of what is neither."""
    left = set()
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, full = name.partition("::")
        if space != "aten":
            continue
        packet = getattr(torch.ops.aten, full.partition(".")[0], None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            plain = op._schema.name.partition("::")[2].rstrip("_")
            takes = {argument.name for argument in op._schema.arguments}
            if torch.Tag.nondeterministic_seeded in op.tags and plain not in MEANS:
                left |= set() if takes & {"p", "dropout_p", "dropout"} else {plain}
    assert left <= TOLD
    assert LEFT.endswith(" ")


TOLD = {
    "_nested_tensor_softmax_with_shape",
    "_sample_dirichlet",
    "_standard_gamma",
    "rrelu",
    "rrelu_with_noise",
    "rrelu_with_noise_functional",
}
