"""`LossScale`: in fp16 small gradients vanish, and large ones overflow. So the loss is scaled, as far as goes well.

Where it begins and how it changes is what `torch.amp.GradScaler` does by default (torch 2.13). That one does not ask
ranks of other stages whether gradients are finite, so that some ranks would step and others would not.
"""

from __future__ import annotations

from collections.abc import Iterator

SCALED = "register_hook(SCALE.times)"
"""What is called on a loss before the backward pass: its gradient is scaled, and what it says stays."""

TEXT = '''\
class LossScale:
    """By what gradients are multiplied while they are in fp16: half of it after a step in which some are not finite,
    which is left out, and twice as much after two thousand in which all are."""

    def __init__(self) -> None:
        self.now, self.good = 2.0**16, 0

    def times(self, grad: Tensor) -> Tensor:
        return grad * self.now

    def undo(self, model: nn.Module) -> bool:
        """Divide all gradients by it, and choose the next one; whether they are finite on all ranks."""
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        own = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
        wrong = torch.stack([grad.div_(self.now).isfinite().logical_not().any() for grad in own]).any().float()
        dist.all_reduce(wrong, op=dist.ReduceOp.MAX)
        finite = not wrong.item()
        self.good = self.good + 1 if finite else 0
        self.now *= (2.0 if self.good % 2000 == 0 else 1.0) if finite else 0.5
        return finite

    def state(self) -> dict[str, float]:
        return {"scale": self.now, "good": self.good}

    def take_up(self, saved: dict[str, Any]) -> None:
        self.now, self.good = saved.get("scale", self.now), saved.get("good", self.good)


SCALE = LossScale()'''


def loss_scale() -> Iterator[str]:
    yield from TEXT.split("\n")
