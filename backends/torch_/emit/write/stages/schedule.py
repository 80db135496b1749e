"""The schedule of a pipeline: a class of torch.distributed.pipelining where one does the same action by action, else
action lists of our own in a file beside the script, which the runtime under these classes reads. That is a private
interface of torch, so one function alone touches it."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.backends.torch_.emit.write.parts import Parts

LISTS = "schedule.csv"
CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Classes whose action lists are ours; `tests/backends/torch_/test_emit_pipeline.py` holds them together."""
SINGLE = ("gpipe", "1f1b")
"""Those that are for one stage per rank."""


def class_of(parts: Parts) -> str | None:
    """The torch class that runs the plan's schedule, if there is one."""
    decisions = parts.subject.decisions
    name, several = decisions.schedule.name, len(decisions.stages) > len(decisions.groups)
    return None if name in SINGLE and several else CLASSES.get(name)


def made_of(parts: Parts) -> str:
    """The expression that makes the schedule from the stages that are `running`."""
    found = class_of(parts)
    if found is None:
        return "by_lists(running, self.loss)"
    running = "running[0]" if parts.subject.decisions.schedule.name in SINGLE else "running"
    return f"{found}({running}, MICROBATCHES, loss_fn=self.loss, scale_grads=False)"


def by_lists() -> Iterator[str]:
    """The function `by_lists`: a schedule from its file."""
    yield "def by_lists(stages: list[PipelineStage], loss: Callable[..., Tensor]) -> _PipelineScheduleRuntime:"
    yield f'    """The schedule of {LISTS}, a line per rank along pp. A private interface of torch."""'
    yield "    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss, scale_grads=False)"
    yield f'    schedule._load_csv(str(Path(__file__).with_name("{LISTS}")), format="compute_only")'
    yield "    return schedule"


def action_lists(parts: Parts) -> str:
    """The text of schedule.csv: the actions of every rank along pp in order: stage, F (forward), B (backward), or I and
    W (its parts for inputs and for weights), micro-batch."""
    lists = [[action for action in actions if len(action.kind) == 1] for _, actions in parts.subject.program.actions]
    return "".join(f"{','.join(map(str, actions))}\n" for actions in lists)
