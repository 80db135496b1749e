"""`save` and `resume`: checkpoints that any other plan of the model can load, since they are kept by names of
parameters and cut anew when they are read."""

from __future__ import annotations

from collections.abc import Iterator


def save() -> Iterator[str]:
    yield "def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:"
    yield '    """A checkpoint that this model can be resumed from on any number of ranks, however it is cut there."""'
    yield "    weights, states = get_state_dict(model, optimizer)"
    yield '    dcp.save({"model": weights, "optimizer": states, "step": step}, checkpoint_id=folder)'


def resume() -> Iterator[str]:
    yield "def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:"
    yield '    """Take up a checkpoint; returns the step to go on with."""'
    yield "    weights, states = get_state_dict(model, optimizer)"
    yield '    state: dict[str, Any] = {"model": weights, "optimizer": states, "step": 0}'
    yield "    dcp.load(state, checkpoint_id=folder)"
    yield "    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)"
    yield '    return int(state["step"])'
