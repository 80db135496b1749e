"""`save` and `resume`: checkpoints that any other plan of the model can load, since they are kept by names of
parameters and cut anew when they are read. A pipeline's stages are parts of one module here, and lose its names."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.parts import Parts

FLAT = "FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # states by names of parameters"


def plain(*, tied: bool, cuts: bool = False) -> Iterator[str]:
    """The function `plain`; TIED may say how stages cut tied parameters."""
    yield "def plain(name: str) -> str:"
    yield '    """What a parameter, or a state of it, is called in the model that stages are made of."""'
    own = 're.sub(r"stages\\.\\d+\\.", "", name, count=1)'
    if not tied:
        yield f"    return {own}"
        return
    more = ", _" * cuts
    yield f"    own, ((_, first{more}), (_, other{more})) = {own}, TIED"
    yield '    if not own.startswith((f"state.{other}.", f"param_groups.{other}.")):'
    yield "        return own"
    yield "    return own.replace(other, first, 1)  # states of one parameter"


def got(parts: Parts) -> str:
    """The line that asks for weights and states."""
    both = "get_state_dict(model, optimizer, options=FLAT)"
    return f"    weights, states = {'get_model_state_dict(model), optimizer.states()' if parts.offloaded else both}"


def save(parts: Parts) -> Iterator[str]:
    scale = " | SCALE.state()" if parts.precision.scaled else ""
    told = f'{{"step": step}}{scale}'
    if parts.pipeline is not None:
        yield f"def state_of(model: nn.Module, optimizer: {parts.optimizer}) -> dict[str, Any]:"
        yield got(parts)
        yield '    both: dict[str, dict[str, Any]] = {"model": weights, "optimizer": states}'
        yield "    return {part: {plain(name): one for name, one in state.items()} for part, state in both.items()}"
        yield ""
        yield ""
    yield f"def save(folder: Path, model: nn.Module, optimizer: {parts.optimizer}, step: int) -> None:"
    yield '    """A checkpoint that this model can be resumed from on any number of ranks, however it is cut there."""'
    if parts.pipeline is None:
        yield got(parts)
        if parts.reorders:
            yield "    weights, states = all_reordered(weights, back=True), all_reordered(states, back=True)"
        both = '{"model": weights, "optimizer": states, "step": step}'
        yield f"    dcp.save({both}{scale}, checkpoint_id=folder)"
    elif parts.reorders:
        yield "    both = state_of(model, optimizer)"
        yield "    kept = {part: all_reordered(state, back=True) for part, state in both.items()}"
        yield f"    dcp.save(kept | {told}, checkpoint_id=folder)"
    else:
        yield f"    dcp.save(state_of(model, optimizer) | {told}, checkpoint_id=folder)"


def resume(parts: Parts) -> Iterator[str]:
    yield f"def resume(folder: Path, model: nn.Module, optimizer: {parts.optimizer}) -> int:"
    yield '    """Take up a checkpoint; returns the step to go on with."""'
    yield got(parts)
    if parts.pipeline is None:
        yield '    saved: dict[str, Any] = {"model": weights, "optimizer": states, "step": 0}'
        yield from loaded(parts)
        if parts.reorders:
            yield "    weights, states = all_reordered(weights), all_reordered(states)"
    else:
        yield '    saved = state_of(model, optimizer) | {"step": 0}'
        yield from loaded(parts)
        if parts.reorders:
            yield '    saved |= {part: all_reordered(saved[part]) for part in ("model", "optimizer")}'
        yield '    weights = {name: saved["model"][plain(name)] for name in weights}'
        yield '    states = {name: saved["optimizer"][plain(name)] for name in states}'
    if parts.offloaded:
        yield "    set_model_state_dict(model, weights)"
        yield "    optimizer.take_up(states)"
    else:
        yield "    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states, options=FLAT)"
    yield '    return int(saved["step"])'


def loaded(parts: Parts) -> Iterator[str]:
    """Lines that load into `saved`, with the scale of losses if the checkpoint is of a run that had one."""
    if parts.precision.scaled:
        yield "    there = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata"
        yield "    saved |= {name: one for name, one in SCALE.state().items() if name in there}"
    yield "    dcp.load(saved, checkpoint_id=folder)"
    if parts.precision.scaled:
        yield "    SCALE.take_up(saved)"
