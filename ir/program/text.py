"""The text form of Programs.

Writing and reading are inverse: ``parse_program(program_text(program)) == program``. The grammar, one statement a line,
comments from ``#``; names that are not plain are JSON strings:

    program    "program" "x" micro-batches  stage* transfer* actions* tie* body*
    stage      "stage" first..last "on" "(" mesh ")" "ranks" ranks
               ("run" body, … "x" repeats "at" call)*
    transfer   "transfer" call.output "stage" from "->" to  type placement "->" placement  ["grad" ["waiting" axes]]
    actions    "actions" "ranks" ranks ":" action …             0F1 0send_F1>1 1recv_F1<0 sync step
    tie        "tie" path "held" stage.call, …
    body       "body" name "for" body "on" "(" mesh ")" "by" style device attention ["fused_loss"] ["copied" precision]
               ("local" %name type placement)*
               ("input" %name ["grad" %name])*
               ("output" %name ["grad" %name])*
               ("param" path part*)*                            see `_param_line`
               ("kept" %name bytes ["host"])*
               ("update" path "=" %name "by" reduction)*
               "forward" statement*  "backward" statement*  "sync" statement*  "publish" statement*
    statement  %name "=" "0"
             | %name "=" %name "+" …
             | %name "=" step %name "for" reason
             | %name, … "=" ["ring" "[" axis "]"] kind ["'"] ["[" key "=" attr, … "]"] "(" operand, … ")"
               ["grads" (%name | "0"), … "of" %name, … "wanted" ["none" | slot, …]] ["{" strategy "}"] "as" %op
    operand    %name [":" type]                                 the type where it is not the one of its local

An operator's line says `'` for its gradient; "wanted" numbers the operands whose gradients are made.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.decisions.scan import ranges_text, string_text, value_text, values_text, word_text
from meshwright.ir.graph.graph import Attr
from meshwright.ir.program.crossing import Transfer
from meshwright.ir.program.program import (
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Move,
    ParamSlot,
    Program,
    Ring,
    Statement,
    Zero,
)

# Writing -------------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """The text form of a program."""
    lines = [f"program x {program.microbatches}"]
    if program.workload:
        lines.append(f"  workload {program.workload}")
    for stage in program.stages:
        lines.append(f"  stage {stage.first}..{stage.last} on ({stage.mesh}) ranks {ranges_text(stage.ranks)}".rstrip())
        lines += [
            f"    run {', '.join(map(word_text, run.programs))} x {run.repeats} at {run.first_call}"
            for run in stage.runs
        ]
    lines += [f"  {_transfer_line(hop)}" for hop in program.transfers]
    for ranks, actions in program.actions:
        lines.append(f"  actions ranks {ranges_text(ranks)}: {' '.join(map(str, actions))}".rstrip())
    for tie in program.ties:
        holders = ", ".join(f"{stage}.{call}" for stage, call in tie.holders)
        lines.append(f"  tie {string_text(tie.path)} held {holders}".rstrip())
    lines += [f"  entry {value_text(e.name)}  {e.type}  {e.placement} on ({e.mesh})" for e in program.entries]
    for body in program.bodies:
        lines += [f"  {line}" for line in body_lines(body)]
    return "\n".join(lines) + "\n"


def body_lines(body: BodyProgram) -> Iterator[str]:
    """One body program, a line per local, port, parameter and statement."""
    kernels = body.kernels
    by = " ".join(map(word_text, (kernels.style, kernels.device, kernels.attention)))
    by += " fused_loss" if kernels.fused_loss else ""
    by += f" copied {word_text(kernels.copied)}" if kernels.copied else ""
    yield f"body {word_text(body.name)} for {word_text(body.body)} on ({body.mesh}) by {by}"
    for name, local in body.locals.items():
        yield f"  local {value_text(name)}  {local.type}  {local.placement}"
    for keyword, names, grads in (
        ("input", body.inputs, body.input_grads),
        ("output", body.outputs, body.output_grads),
    ):
        for name, grad in zip(names, grads, strict=True):
            yield f"  {keyword} {value_text(name)}{_optional('grad', grad)}"
    for slot in body.params:
        yield f"  {_param_line(slot)}"
    for kept in body.kept:
        yield f"  kept {value_text(kept.name)} {kept.nbytes}{' host' if kept.host else ''}"
    for update in body.updates:
        yield f"  update {string_text(update.buffer)} = {value_text(update.value)} by {word_text(update.reduction)}"
    for title in LISTS:
        yield f"  {title}"
        statements: tuple[Statement, ...] = getattr(body, title)
        yield from (f"    {statement_text(statement, body)}" for statement in statements)


LISTS = ("forward", "backward", "sync", "publish")
NAMED = ("grad", "synced", "updated", "published", "lent")
MARKS = ("buffer", "host")
"""What the line of a parameter says besides, by the fields of `ParamSlot`."""


def _param_line(slot: ParamSlot) -> str:
    line = f"param {string_text(slot.path)} value {value_text(slot.value)} stored {value_text(slot.stored)}"
    for key in NAMED:
        line += _optional(key, getattr(slot, key))
    line += f" grads {slot.grads} optimizer {slot.optimizer}"
    marks = (mark for mark in MARKS if getattr(slot, mark))
    borrowed = "" if slot.borrowed is None else f" borrowed {word_text(slot.borrowed)}"
    return " ".join((line, *marks)) + borrowed


def _optional(key: str, name: str | None) -> str:
    return "" if name is None else f" {key} {value_text(name)}"


def _transfer_line(hop: Transfer) -> str:
    head = f"transfer {hop.call}.{hop.output} stage {hop.from_stage} -> {hop.to_stage}"
    grad = (" grad" if hop.differentiable else "") + (f" waiting {', '.join(hop.waiting)}" if hop.waiting else "")
    return f"{head}  {hop.type}  {hop.source} -> {hop.target}{grad}"


def statement_text(statement: Statement, body: BodyProgram) -> str:
    """One statement with everything in it; `str(statement)` is the short form for messages."""
    match statement:
        case Zero():
            return f"{value_text(statement.result)} = 0"
        case Add():
            return f"{value_text(statement.result)} = {' + '.join(map(value_text, statement.operands))}"
        case Move():
            moved = f"{value_text(statement.result)} = {statement.step} {value_text(statement.operand)}"
            return f"{moved}  for {word_text(statement.reason)}"
        case _:
            return _operator_text(statement, body)


def _operator_text(statement: Compute | Gradient | Ring, body: BodyProgram) -> str:
    ring = f"ring[{statement.axis}] " if isinstance(statement, Ring) else ""
    backward = "" if isinstance(statement, Compute) or not _is_backward(statement) else "'"
    signature = statement.signature
    attrs = ", ".join(f"{word_text(key)}={_attr_text(value)}" for key, value in signature.attrs)
    operands = ", ".join(
        value_text(name) + ("" if name in body.locals and body.locals[name].type == type_ else f": {type_}")
        for name, type_ in zip(statement.operands, signature.operands, strict=True)
    )
    kind = f"{ring}{word_text(signature.kind)}{backward}" + (f"[{attrs}]" if attrs else "")
    parts = [f"{values_text(statement.results)} = {kind}({operands})"]
    if not isinstance(statement, Compute) and _is_backward(statement):
        grads = ", ".join(value_text(name) if name else "0" for name in statement.grads)
        wanted = ", ".join(map(str, statement.wanted)) or "none"
        parts.append(f"grads {grads} of {values_text(statement.outputs)} wanted {wanted}")
    if statement.strategy.choices:
        parts.append(f"{{{statement.strategy}}}")
    parts.append(f"as {value_text(statement.op)}")
    return "  ".join(parts)


def _is_backward(statement: Gradient | Ring) -> bool:
    return isinstance(statement, Gradient) or statement.backward


def _attr_text(value: Attr) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_attr_text, value))})"
    if isinstance(value, str):
        return string_text(value)
    return repr(value).lower() if value is None or isinstance(value, bool) else repr(value)
