"""The text form of Decisions: what people read and write, what `--dump-after` prints.

Writing and reading are inverse: ``parse_decisions(decisions_text(decisions)) == decisions``. The grammar, one statement
a line, comments from ``#``; names that are not plain are JSON strings:

    decisions  "decisions" head stage* plan* schedule
    head       "target" word  "style" word  ["offload" kind "+" …]
    stage      "stage" first..last "on" "(" mesh ")" "ranks" ranks ":" plan name, …
    plan       "plan" name "for" body ["keep_gathered"]
               ("state" %value state)*                          states and placements as `str` writes them
               ("op" %op strategy)*
               ("store" string "params" placement "grads" placement "optimizer" placement)*
               ["recompute" %value, …]
    schedule   "schedule" name "x" micro-batches
               ("actions" word, …)*                             a custom schedule: one line per group of ranks

    decisions
      target torch-cuda
      style eager
      stage 0..4 on (dp=2@rail tp=4@nvlink) ranks 0..7: layer
      plan layer for LlamaDecoderLayer
        state %x  [dp, tp, -]
        op %q  dp=d0 tp=n
        store "q.weight" params [tp.dp, -] grads [tp.dp, -] optimizer [tp.dp, -]
      schedule 1f1b x 8
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, StagePlan, Storage
from meshwright.ir.decisions.offload import NOTHING, Offload
from meshwright.ir.decisions.scan import (
    PLACEMENT,
    Scanner,
    ranges_text,
    string_text,
    value_text,
    values_text,
    word_text,
)
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State


def decisions_text(decisions: Decisions) -> str:
    """The text form of decisions."""
    lines = ["decisions", f"  target {word_text(decisions.target)}", f"  style {word_text(decisions.style)}"]
    if decisions.offload != NOTHING:
        lines.append(f"  offload {decisions.offload}")
    lines += [f"  {_stage_line(stage)}" for stage in decisions.stages]
    for plan in decisions.plans:
        lines += [f"  {line}" for line in _plan_lines(plan)]
    lines.append(f"  schedule {word_text(decisions.schedule.name)} x {decisions.schedule.microbatches}")
    lines += [f"    actions {', '.join(map(word_text, one))}".rstrip() for one in decisions.schedule.actions]
    return "\n".join(lines) + "\n"


def _stage_line(stage: StagePlan) -> str:
    plans = ", ".join(map(word_text, stage.plans))
    ranks = ranges_text(stage.ranks)
    return f"stage {stage.first}..{stage.last} on ({stage.mesh}) ranks {ranks}: {plans}".rstrip()


def _plan_lines(plan: BodyPlan) -> Iterator[str]:
    keep = "" if plan.regather else "  keep_gathered"
    first = f"  first {plan.first}" if plan.first else ""
    yield f"plan {word_text(plan.name)} for {word_text(plan.body)}{keep}{first}"
    for value, state in plan.states:
        yield f"  state {value_text(value)}  {state}"
    for op, strategy in plan.strategies:
        yield f"  op {value_text(op)}  {strategy}"
    for item in plan.storage:
        places = f"params {item.params} grads {item.grads} optimizer {item.optimizer}"
        yield f"  store {string_text(item.path)} {places}"
    if plan.recompute:
        yield f"  recompute {values_text(plan.recompute)}"


def parse_decisions(text: str) -> Decisions:
    """Read what `decisions_text` writes. Raises `PlanSyntax`, or what `Decisions` itself refuses."""
    scanner = Scanner(text)
    scanner.expect("decisions")
    scanner.end_line()
    target = _entry(scanner, "target")
    style = _entry(scanner, "style")
    offload = NOTHING
    if scanner.accept("offload"):
        offload = scanner.parsed(Offload.parse, r"[^\n# ]*", "what waits on the host, such as activations:4")
        scanner.end_line()
    stages = []
    while scanner.accept("stage"):
        stages.append(_read_stage(scanner))
    plans = []
    while scanner.accept("plan"):
        plans.append(_read_plan(scanner))
    schedule = _read_schedule(scanner)
    scanner.finish()
    return Decisions(tuple(plans), tuple(stages), schedule, target, style, offload)


def _entry(scanner: Scanner, key: str) -> str:
    scanner.expect(key)
    word = scanner.word(f"the {key}")
    scanner.end_line()
    return word


def read_mesh(scanner: Scanner) -> Mesh:
    """A mesh in parentheses."""
    scanner.expect("(")
    mesh = scanner.parsed(Mesh.parse, r"[^)\n]*", "a mesh, such as dp=2 tp=4")
    scanner.expect(")")
    return mesh


def read_placement(scanner: Scanner) -> Placement:
    return scanner.parsed(Placement.parse, PLACEMENT, "a placement, such as [dp, -]")


def read_stage(scanner: Scanner) -> tuple[int, int, Mesh, tuple[int, ...]]:
    """The calls of a stage, from the first up to another one, its mesh and its ranks."""
    first = scanner.natural()
    scanner.expect("..")
    last = scanner.natural()
    scanner.expect("on")
    mesh = read_mesh(scanner)
    scanner.expect("ranks")
    return first, last, mesh, scanner.ranges()


def _read_stage(scanner: Scanner) -> StagePlan:
    first, last, mesh, ranks = read_stage(scanner)
    scanner.expect(":")
    plans = () if scanner.look(r"\n|\Z") else scanner.listed(lambda: scanner.word("the name of a plan"))
    scanner.end_line()
    return StagePlan(first, last, mesh, ranks, plans)


def _read_plan(scanner: Scanner) -> BodyPlan:
    name = scanner.word("the name of a plan")
    scanner.expect("for")
    body = scanner.word("the name of a body")
    regather = not scanner.accept("keep_gathered")
    first = scanner.natural() if scanner.accept("first") else 0
    scanner.end_line()
    states = []
    while scanner.accept("state"):
        states.append((scanner.value(), scanner.parsed(State.parse, PLACEMENT, "a state, such as [dp, -]")))
        scanner.end_line()
    strategies = []
    while scanner.accept("op"):
        strategies.append((scanner.value(), scanner.parsed(Strategy.parse, r"[^\n#]*", "a strategy, such as dp=d0")))
        scanner.end_line()
    storage = []
    while scanner.accept("store"):
        storage.append(_read_storage(scanner))
    recompute: tuple[str, ...] = ()
    if scanner.accept("recompute"):
        recompute = scanner.listed(scanner.value)
        scanner.end_line()
    return BodyPlan(name, body, tuple(strategies), tuple(states), tuple(storage), recompute, regather, first)


def _read_storage(scanner: Scanner) -> Storage:
    path, places = scanner.string("a parameter's path"), []
    for kind in ("params", "grads", "optimizer"):
        scanner.expect(kind)
        places.append(read_placement(scanner))
    scanner.end_line()
    return Storage(path, *places)


def _read_schedule(scanner: Scanner) -> Schedule:
    scanner.expect("schedule")
    name = scanner.word("a schedule")
    scanner.expect("x")
    microbatches = scanner.natural()
    scanner.end_line()
    actions = []
    while scanner.accept("actions"):
        ends = scanner.look(r"\n|\Z")
        actions.append(() if ends else scanner.listed(lambda: scanner.word("an action, such as 0F0")))
        scanner.end_line()
    return Schedule(name, microbatches, tuple(actions))
