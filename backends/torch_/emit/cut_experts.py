"""Routed experts that the tensor axis cuts in themselves: every rank has its part of each, and what the parts make of a
row is added up.

In the script the module is called as it is, with this rank's part of its stacked weights: every row that goes to an
expert goes to all ranks of the axis, and the results are summed before they are weighted, as priced. Where the axis
cuts sequences around, the module that holds experts and their router runs on this rank's tokens: rows are gathered, and
each rank is given back the sum of its own. Runs of tokens that share a capacity may be longer than what a rank has of
a sequence: then tokens are gathered before they take their slots, which are those of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.backends.torch_.emit.experts import limited_in
from meshwright.backends.torch_.emit.subject import Piece, Subject
from meshwright.ir.errors import EmissionModule
from meshwright.ir.fused import GROUPED
from meshwright.ir.graph import Op
from meshwright.ir.rewrite import facts_of


@dataclass(frozen=True, slots=True)
class CutExperts:
    """Such modules of one body; paths relative to the instance."""

    modules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The dimension along which each of their parameters is cut, by its name in the module."""
    around: tuple[str, ...] = ()
    """The modules around them that run on this rank's tokens."""
    routers: tuple[str, ...] = ()
    """Those in these with whole parameters, whose gradients are sums."""
    shared: tuple[str, ...] = ()
    """Those in these that all tokens run through, cut as any other modules are."""
    joined: tuple[str, ...] = ()
    """Those of them that take the tokens of all ranks, where these have tokens of their own around."""
    limited: tuple[str, ...] = ()
    """Those of them that have a capacity."""

    def holds(self, module: str) -> bool:
        """Whether a module is one of them or in one, or one that runs on this rank's tokens."""
        return any(_in(module, path) for path in (*self.modules, *self.around)) and not self.shares(module)

    def shares(self, module: str) -> bool:
        return any(_in(module, path) for path in self.shared)


def cut_experts_of(subject: Subject, piece: Piece, axis: str) -> CutExperts:
    """The experts of a body that an axis cuts in themselves."""
    return _Reader(subject, piece, axis).found()


@dataclass(frozen=True)
class _Reader:
    """Reads them off the states of a body."""

    subject: Subject
    piece: Piece
    axis: str

    def found(self) -> CutExperts:
        cut = {op.module: (op, self.dims(op)) for op in self.piece.graph.ops if op.kind == "dispatch"}
        modules = {path: dims for path, (_, dims) in cut.items() if dims}
        own = [path for path in modules if self.made_cut(cut[path][0].operands[0])]
        joined = tuple(path for path in own if self.cuts(cut[path][0])[0] is None)
        shared = {path: self.shared(path) for path in own}
        routers = [router for path in own for router in self.routers(path, cut[path][0], shared[path])]
        around = tuple(_around(path) for path in own)
        limited = tuple(path for path in limited_in(self.piece) if path in modules)
        return CutExperts(modules, around, tuple(dict.fromkeys(routers)), sum(shared.values(), ()), joined, limited)

    def shared(self, experts: str) -> tuple[str, ...]:
        """The modules beside experts whose weights the axis cuts."""
        around, weights = _around(experts), {param.value for param in self.piece.graph.params}
        found = [
            ".".join(op.module.split(".")[: len(around.split(".")) + 1])
            for op in self.piece.graph.ops
            if _in(op.module, around) and not _in(op.module, experts)
            for value, dim in zip(op.operands, self.cuts(op), strict=True)
            if value in weights and dim is not None
        ]
        return tuple(dict.fromkeys(found))

    def cuts(self, op: Op) -> tuple[int | None, ...]:
        """The dimensions of what an operator reads that the axis cuts."""
        applied = facts_of(self.piece.graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh)
        places = [state.value.on(self.axis) for state in applied.operands]
        return tuple(place if isinstance(place, int) else None for place in places)

    def made_cut(self, value: str) -> bool:
        """Whether the axis cuts a value where it is made."""
        op = next(op for op in self.piece.graph.ops if value in op.results)
        applied = facts_of(self.piece.graph)[op.name].applied(self.piece.plan.strategy(op.name), self.subject.mesh)
        return isinstance(applied.results[op.results.index(value)].value.on(self.axis), int)

    def dims(self, dispatch: Op) -> dict[str, int]:
        """How the axis cuts what a module of experts holds; empty if it does not, or if it cuts experts apart."""
        graph, module = self.piece.graph, dispatch.module
        path_of = {param.value: param.path for param in graph.params}
        found = {
            path_of[value]: dim
            for op in graph.ops
            if op.kind == GROUPED and _in(op.module, module)
            for value, dim in zip(op.operands, self.cuts(op), strict=True)
            if value in path_of and dim
        }
        if not found:
            return {}
        if found.keys() != {path for path in path_of.values() if path.startswith(f"{module}.")}:
            raise self.refuse(dispatch, "its module holds more than weights of products that are cut")
        if not dispatch.attr("dropless") and not dispatch.attr("groups"):
            raise self.refuse(dispatch, "tokens of all ranks share slots: their module has no `group_size`")
        return {path.removeprefix(f"{module}."): dim for path, dim in found.items()}

    def routers(self, experts: str, dispatch: Op, shared: tuple[str, ...]) -> Iterator[str]:
        """The modules with parameters beside experts, in a module that runs on this rank's tokens."""
        around, calls = _around(experts), self.subject.calls
        path = self.piece.path(around)
        if not around or len(calls.arguments.get(path, ())) != 1 or calls.keywords.get(path):
            raise self.refuse(dispatch, "the module around them is not called with one argument, its tokens")
        weights = {param.value for param in self.piece.graph.params}
        for op in self.piece.graph.ops:
            if not _in(op.module, around) or any(_in(op.module, path) for path in (experts, *shared)):
                continue
            held = weights.intersection(op.operands)
            for value, dim in zip(op.operands, self.cuts(op), strict=True):
                if (dim is None) != (value in weights):
                    raise self.refuse(op, f"{op.kind} does not run on the tokens that each rank of {self.axis} has")
            if held:
                yield op.module

    def refuse(self, op: Op, cause: str) -> EmissionModule:
        return EmissionModule(
            place=f"plan {self.piece.plan.name}, %{op.name} ({op.kind}) of {self.piece.path(op.module) or 'the model'}",
            cause=f"experts that are cut in themselves are not emitted so: {cause}",
            ways=("--fix tp=1",),
        )


def _in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")


def _around(path: str) -> str:
    return path.rpartition(".")[0]
