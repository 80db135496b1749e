"""`OnHost`: an optimizer whose state lies in the memory of the host, which makes the step.

Parameters stay where they are. The optimizer is given copies of them, under the same names, so that checkpoints know
nothing of it: gradients go down, each copy is stepped as soon as its own is there, and what becomes of it goes up.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.read.allowed import device_of
from meshwright.backends.torch_.emit.write.parts import Parts

HEAD = '''\
class OnHost(torch.optim.Optimizer):
    """An optimizer with its state in the host's memory, where it steps copies of the parameters."""

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], make: Callable[..., Any]) -> None:
        self.model, self.copies, self.kept = model, nn.Module(), list[tuple[nn.Parameter, nn.Parameter, Tensor]]()'''

BODY = '''\
        for parameter in parameters:
            *path, last = names[parameter].split(".")
            holder = self.copies
            for part in path:
                if part not in dict(holder.named_children()):
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            below, grad = (torch.empty_like(parameter, device="cpu"{pinned}) for _ in range(2))
            holder.register_parameter(last, nn.Parameter(below))
            self.kept.append((parameter, holder.get_parameter(last), grad))
        self.fetch()
        self.inner: torch.optim.Optimizer = make([below for _, below, _ in self.kept])
        super().__init__([below for _, below, _ in self.kept], self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def fetch(self) -> None:
        """Take over what the parameters are."""
        with torch.no_grad():
            for parameter, below, _ in self.kept:
                below.copy_(parameter)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
'''

ON_CPU = """\
        with torch.no_grad():
            for parameter, below, grad in self.kept:
                if parameter.grad is not None:
                    below.grad = grad.copy_(parameter.grad)
                    self.inner.step()
                    below.grad = None
                    parameter.copy_(below)
"""

ON_CUDA = '''\
        """While gradients go down, copies whose own is there are stepped, and go up."""
        arriving, down = [], torch.cuda.Stream()
        down.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(down), torch.no_grad():
            for parameter, below, grad in self.kept:
                if parameter.grad is not None:
                    grad.copy_(parameter.grad, non_blocking=True)
                    arriving.append((parameter, below, grad, down.record_event()))
        for parameter, below, grad, arrived in arriving:
            arrived.synchronize()
            below.grad = grad
            self.inner.step()
            below.grad = None
            with torch.no_grad():
                parameter.copy_(below, non_blocking=True)
'''

STATES = '''
    def states(self) -> dict[str, Any]:
        """For a checkpoint."""
        found: dict[str, Any] = get_optimizer_state_dict(self.copies, self.inner, options=FLAT)
        return found

    def take_up(self, states: dict[str, Any]) -> None:
        """Go on from a checkpoint, once the model has its parameters of it."""
        self.fetch()
        set_optimizer_state_dict(self.copies, self.inner, optim_state_dict=states, options=FLAT)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state'''


def on_host(parts: Parts) -> Iterator[str]:
    """The class `OnHost`, for the device of a script."""
    cuda = device_of(parts.subject) == "cuda"
    yield from HEAD.split("\n")
    named = "model.module" if parts.wrapped else "model"
    yield f"        names = {{parameter: name for name, parameter in {named}.named_parameters()}}"
    text = BODY.format(pinned=", pin_memory=True" if cuda else "") + (ON_CUDA if cuda else ON_CPU) + STATES
    yield from text.split("\n")
