"""Verification of a Program's action lists as a step, without trusting the schedule or the lowering.

Must:
- every group of ranks works on its own stages only, on every micro-batch once (F, then B, or I and W), and ends with
  sync and step;
- where values cross from one group to another, each micro-batch is sent once and received once, and likewise its
  gradient back; nothing else is sent;
- the lists, run together, never wait for each other in a circle: forward after what it receives or what its own group
  computed before, backward after its forward and after the later stages' gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwright.ir.errors import ActionMismatch, WaitCircle, WorkForeign, WorkMiscounted
from meshwright.ir.program.program import Action, Program

ENDING = (Action("sync"), Action("step"))


def verify_actions(program: Program) -> None:
    """Check the action lists of all groups (see the module docstring)."""
    for ranks, actions in program.actions:
        _verify_own(program, ranks, actions)
    counts = Counter(action for _, actions in program.actions for action in actions)
    _verify_work(program, counts)
    _verify_mail(program, counts)
    _Order(program).verify()


def _verify_own(program: Program, ranks: tuple[int, ...], actions: Sequence[Action]) -> None:
    held = {index for index, stage in enumerate(program.stages) if stage.ranks == ranks}
    for action in actions:
        if action.kind in ("sync", "step"):
            continue
        if action.stage not in held or not 0 <= action.microbatch < program.microbatches:
            raise WorkForeign(
                place=f"ranks {ranks}", cause=f"{action} is not theirs", fix="give it to the ranks of its stage"
            )
    if tuple(actions[-2:]) != ENDING or actions.count(ENDING[0]) + actions.count(ENDING[1]) != 2:
        raise WorkMiscounted(
            place=f"ranks {ranks}", cause="they do not end with one sync and one step", fix="end the list with both"
        )


def _verify_work(program: Program, counts: Counter[Action]) -> None:
    for stage in range(len(program.stages)):
        for mb in range(program.microbatches):
            done = tuple(counts[Action(kind, stage, mb)] for kind in "FBIW")
            if done not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                raise WorkMiscounted(
                    place=f"stage {stage}, micro-batch {mb}",
                    cause=f"F, B, I, W run {done} times",
                    fix="run F once, then B once or I and W once",
                )


def crossings(program: Program, *, gradients: bool = False) -> tuple[tuple[int, int], ...]:
    """The pairs of stages that values (or gradients, the same way back) cross, between different groups."""
    ranks = [stage.ranks for stage in program.stages]
    found = {
        (hop.from_stage, hop.to_stage)
        for hop in program.transfers
        if ranks[hop.from_stage] != ranks[hop.to_stage] and (hop.differentiable or not gradients)
    }
    return tuple(sorted(found))


def _verify_mail(program: Program, counts: Counter[Action]) -> None:
    expected: set[Action] = set()
    for mb in range(program.microbatches):
        for one, other in crossings(program):
            expected |= {Action("send_F", one, mb, other), Action("recv_F", other, mb, one)}
        for one, other in crossings(program, gradients=True):
            expected |= {Action("send_B", other, mb, one), Action("recv_B", one, mb, other)}
    for action in sorted(expected | set(counts), key=str):
        mail = action.kind.startswith(("send", "recv"))
        if mail and counts[action] != (action in expected):
            raise ActionMismatch(
                place=f"stage {action.stage}, micro-batch {action.microbatch}",
                cause=f"{action} appears {counts[action]} times",
                fix="send and receive every crossing once, and nothing else",
            )


class _Order:
    """A run of the lists against each other: an action that waits for ever is an error."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = crossings(program)
        self.gradients = crossings(program, gradients=True)
        self.own = sorted({(hop.from_stage, hop.to_stage) for hop in program.transfers} - set(self.values))
        self.done: set[Action] = set()

    def verify(self) -> None:
        lists = [actions for _, actions in self.program.actions]
        at = [0] * len(lists)
        progress = True
        while progress:
            progress = False
            for group, actions in enumerate(lists):
                while at[group] < len(actions) and self.ready(actions[at[group]]):
                    self.done.add(actions[at[group]])
                    at[group] += 1
                    progress = True
        for (ranks, actions), reached in zip(self.program.actions, at, strict=True):
            if reached < len(actions):
                raise WaitCircle(
                    place=f"ranks {ranks}",
                    cause=f"{actions[reached]} waits for ever",
                    fix="order the actions without a circle",
                )

    def ready(self, action: Action) -> bool:
        stage, mb, peer = action.stage, action.microbatch, action.peer
        match action.kind:
            case "F":
                received = all(Action("recv_F", stage, mb, one) in self.done for one, to in self.values if to == stage)
                return received and all(Action("F", one, mb) in self.done for one, to in self.own if to == stage)
            case "B" | "I":
                received = all(
                    Action("recv_B", stage, mb, to) in self.done for one, to in self.gradients if one == stage
                )
                later = all(self.differentiated(to, mb) for one, to in self.own if one == stage)
                return received and later and Action("F", stage, mb) in self.done
            case "W":
                return Action("I", stage, mb) in self.done
            case "send_F":
                return Action("F", stage, mb) in self.done
            case "send_B":
                return self.differentiated(stage, mb)
            case "recv_F" | "recv_B":
                return Action(f"send_{action.kind[-1]}", peer, mb, stage) in self.done
            case _:
                return True

    def differentiated(self, stage: int, mb: int) -> bool:
        return Action("B", stage, mb) in self.done or Action("I", stage, mb) in self.done
