"""Recomputation in the backward pass, by `torch.utils.checkpoint`.

    whole blocks, or modules in them   a checkpoint around each: all that is made in it is computed again
    attention alone                    a checkpoint around the call, in the modules that make it
    a block but for some products      a checkpoint around the block with a policy: these products, counted as they run,
    and attention                      and attention are kept, all else is computed again

Together they must make all that the plan computes again, and exchange again what it does: what is chosen otherwise,
operator by operator, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.backends.subject import Piece, Subject
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.names.recompute import is_loss
from meshwright.ir.program.program import Move
from meshwright.ir.sharding.adjoint import Split

ATTENTION, PRODUCT = "attention", "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The recomputed part of a body."""

    piece: Piece
    start: int = 0
    stop: int | None = None
    """Which of the instances in a stage."""
    paths: tuple[str, ...] = ()
    """Modules that run again, relative to the instance; empty for the instance itself."""
    attention: tuple[str, ...] = ()
    """Modules whose attention alone does."""
    changes: bool = False
    """Whether it has changed buffers by then."""
    kept: tuple[int, ...] | None = None
    """The products that are kept, by number, where the instance runs again but for them and attention."""

    @property
    def which(self) -> str:
        """The recomputed part of a stage's instances, in Python."""
        return f"[{self.start or ''}:{self.stop or ''}]" if self.start or self.stop else ""


def recomputed(subject: Subject) -> tuple[Again, ...]:
    """The recomputed part of every body."""
    found = []
    for piece in subject.pieces:
        first = piece.ahead.first if piece.ahead is not None else 0
        for plan, start, stop in ((piece.ahead, 0, first), (piece.plan, first, None)):
            if plan is not None and plan.recompute:
                found += [replace(one, start=start, stop=stop) for one in _Reader(subject, piece, plan).found()]
    return tuple(found)


class _Reader:
    """The recomputation of one body, read off its plan."""

    def __init__(self, subject: Subject, piece: Piece, plan: BodyPlan) -> None:
        self.subject, self.piece, self.plan = subject, piece, plan
        self.maker = {value: op for op in piece.graph.ops for value in op.results}
        self.chosen = self.maker.keys() & set(plan.recompute)

    def found(self) -> Iterator[Again]:
        if not self.chosen:
            return
        left = self.maker.keys() - self.chosen
        if left == self.losses() and (self.piece.repeated or self.alone):
            yield self.again(paths=("",))
            return
        self.check_rings()
        whole = tuple(self.modules())
        others = [self.maker[value] for value in self.chosen if not self.covered(self.maker[value].module, whole)]
        if not self.piece.repeated and not whole:
            raise self.refuse("computing again what stands outside of blocks")
        if all(op.kind == ATTENTION for op in others):
            again = self.again(paths=whole, attention=tuple(dict.fromkeys(op.module for op in others)))
            self.check_attention(again)
            self.check_exchanges(again)
            yield again
        else:
            yield self.again(paths=("",), kept=tuple(self.products(len(others))))

    def losses(self) -> set[str]:
        """Values made of the model's outputs, outside of it."""
        graph = self.piece.graph
        return {value for value in graph.outputs if is_loss(graph, value)}

    @property
    def alone(self) -> bool:
        """Whether the model is one body, with nothing of the model outside."""
        return len(self.subject.pieces) == 1

    def again(
        self, *, paths: tuple[str, ...], attention: tuple[str, ...] = (), kept: tuple[int, ...] | None = None
    ) -> Again:
        buffers = [update.buffer for update in self.piece.graph.updates]
        changes = any(inside(name, path) for path in paths for name in buffers)
        return Again(piece=self.piece, paths=paths, attention=attention, kept=kept, changes=changes)

    def modules(self) -> Iterator[str]:
        """The outermost modules that are recomputed completely."""
        left = {op.module for value, op in self.maker.items() if value not in self.chosen}
        parts = {module for value in self.chosen for module in _around(self.maker[value].module)}
        whole = {path for path in parts if not any(inside(module, path) for module in left)}
        yield from sorted(path for path in whole if not any(inside(path, other) for other in whole - {path}))

    def covered(self, module: str, paths: tuple[str, ...]) -> bool:
        return any(inside(module, path) for path in paths)

    def products(self, others: int) -> Iterator[int]:
        """The products that are kept, by number, where nothing else is but attention."""
        kept = [op for value, op in self.maker.items() if value not in self.chosen]
        if not self.piece.repeated or any(op.kind not in (ATTENTION, PRODUCT) for op in kept):
            shown = f"{others} of {len(self.chosen)} values are made in modules that do more"
            raise self.refuse(f"computing a part of a module again ({shown})")
        held = {one.name for one in self.subject.bodies[self.plan.name].kept}
        for op in kept:
            if any(name.startswith(f"{op.name}@") for name in held):
                raise self.refuse(f"keeping %{op.name} as it is after an exchange, while others are computed again,")
        products = [op for op in self.piece.graph.ops if op.kind == PRODUCT]
        yield from (number for number, op in enumerate(products) if op in kept and op.name in held)

    def check_rings(self) -> None:
        """Check that ring attention is recomputed with all of its block, or not at all: it is one function with its own
        backward pass, into which policies cannot look."""
        for op in (op for op in self.piece.graph.ops if op.kind == ATTENTION):
            cuts = [choice.factors for _, choice in self.plan.strategy(op.name).choices if isinstance(choice, Split)]
            if ("sq", "sk") in cuts and not self.around_is_kept(op.module):
                raise self.refuse(f"computing again with or without %{op.name}, which is a ring,")

    def around_is_kept(self, module: str) -> bool:
        """Whether nothing that a module makes is recomputed."""
        return not any(self.maker[value].module == module for value in self.chosen)

    def check_attention(self, again: Again) -> None:
        """Check that a module calls attention only where it is recomputed."""
        for op in self.piece.graph.ops:
            if op.kind == ATTENTION and op.module in again.attention and not self.chosen.issuperset(op.results):
                raise self.refuse(f"computing one of the attentions of {op.module} again, and not the other")

    def check_exchanges(self, again: Again) -> None:
        """Check that nothing is exchanged again except inside of modules that are recomputed."""
        graph, body = self.piece.graph, self.subject.bodies[self.plan.name]
        made = {value: op.module for value, op in self.maker.items()}
        for one in body.backward:
            if not isinstance(one, Move) or one.reason != "value" or one.step.free:
                continue
            value = one.operand.partition("@")[0]
            users = [made.get(value, ""), *(graph.ops[index].module for index, _ in graph.readers.get(value, ()))]
            if not any(all(inside(module, path) for module in users) for path in again.paths):
                raise self.refuse(f"exchanging %{value} again between {' and '.join(dict.fromkeys(users))}")

    def refuse(self, what: str) -> EmissionRecompute:
        stacks = [piece.instances().before for piece in self.subject.pieces if piece.repeated]
        blocks = f"{stacks[0]}*" if stacks else "*"
        return EmissionRecompute(
            place=f"plan {self.plan.name}",
            cause=f"{what} is not emitted yet",
            ways=("--fix recompute=none",),
            fix=f"pin whole blocks or modules, as in --fix '{blocks}:recompute=on'",
        )


def _around(module: str) -> Iterator[str]:
    """A module and all that contain it, up to the instance."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def inside(module: str, path: str) -> bool:
    """Whether a module is this one, or in it."""
    return not path or module == path or module.startswith(f"{path}.")
