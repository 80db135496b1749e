"""Loops: the factors of single operators, joined into the loops of the whole model.

A rule knows the loops of one operator by local names (d0, n, k). Followed through values, they are few: the batch, the
sequence, the heads, the hidden width. `loops` finds them by union-find. An element stands for a dimension of a value
or a factor of an operator; where a rule says that a dimension runs over some factors, the two are joined. A view may
write one dimension as two, so an element can be *split* into parts, major to minor; both sides are then refined from
the right until their parts are equal in size. What is left at the end are *atoms*, and every dimension is a tuple of
atoms: of one, mostly; of two where a view merges heads and their width.

Two relations are looser than equality, because sizes differ: a dimension of one factor with another extent (the slots
of an expert, filled by tokens), and the sections of a fused projection. They do not join; `Atoms.images` lists them.

Names are given in this order, and atoms of one name and size are one `Loop` (every layer has heads):

    labels of inputs      "b", "s"; "s.0", "s.1" where a labelled dimension falls into parts (windows of a sequence)
    roles in known kinds  heads, group, head_dim (attention); vocab (the loss; other look-ups have a table); experts,
                          top_k, slots (routing); hidden (embedding, norms); fused (a product that is cut into sections)
    ffn                   what leads back to hidden and has no name yet
    dim64                 by size, the rest

Where a name is wanted by loops of several sizes, the largest has it and the others append their size: ffn, ffn2048.
`stem` takes the size off again, and the number of an outermost part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from meshwright.ir.errors import FactorUndeclared
from meshwright.ir.graph.fold import Body, Fold, short_of, unfolded_short
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.rules.base import Rule
from meshwright.ir.rules.registry import rules_of
from meshwright.ir.same import Same

Names = tuple[str, ...]
"""The loops that a dimension, or a factor of one operator, runs over, major to minor."""

MOST_GRAPHS = 16
"""Whose atoms and loops are remembered."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the model.

    `label` is the input label that it carries, if any; `occurs` lists the (operator, factor) pairs that run over it.
    """

    name: str
    size: int
    label: str = ""
    occurs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of a graph: those with labels first, then in the order in which they occur.

    `dims` gives, for every value and dimension, the names of its loops; `factors` the same for every factor of every
    operator (by the operator's name). Of a body's values that enter or leave it, `ends` has those on which its calls
    do not agree: the names that all have, also those of the bodies where such a value comes from or goes to.
    """

    loops: tuple[Loop, ...]
    dims: Mapping[str, tuple[Names, ...]]
    factors: Mapping[str, Mapping[str, Names]]
    ends: Mapping[str, tuple[Names, ...]] = field(default_factory=dict)

    def loop(self, name: str) -> Loop:
        for loop in self.loops:
            if loop.name == name:
                return loop
        raise FactorUndeclared(
            place=name,
            cause="the graph has no such loop",
            fix=f"use one of {', '.join(known.name for known in self.loops)}",
        )


@lru_cache(maxsize=4096)
def stem(name: str) -> str:
    """The name of a loop without its size, ffn for ffn2048. The outermost part of a labelled dimension stands for all
    of it, s for s.0: to cut that is to cut the dimension in equal runs."""
    return re.sub(r"(?<=[a-z_])\d+$|(?<=[a-z])\.0$", "", name)


def loops(graph: Graph) -> Loops:
    """Find and name the loops of a graph."""
    return _loops(Same(graph))


@lru_cache(maxsize=MOST_GRAPHS)
def atoms_of(graph: Same[Graph]) -> Atoms:
    """The atoms of a graph, found once: its loops, its batch and its loss's weights are all read off them."""
    return Atoms(graph.of)


@lru_cache(maxsize=MOST_GRAPHS)
def _loops(key: Same[Graph]) -> Loops:
    graph, atoms = key.of, atoms_of(key)
    names, labels = _Naming(atoms).named()
    occurs: dict[str, dict[tuple[str, str], None]] = {}
    sizes: dict[str, int] = {}
    for op, factor, parts in atoms.occurrences:
        for atom in parts:
            sizes.setdefault(names[atom], atoms.size[atom])
            occurs.setdefault(names[atom], {})[op.name, factor] = None
    for value in graph.types:
        for dim in atoms.dims(value):
            for atom in dim:
                sizes.setdefault(names[atom], atoms.size[atom])
    by_name = {names[atom]: label for atom, label in labels.items()}
    ordered = [*by_name, *(name for name in sizes if name not in by_name)]
    found = tuple(Loop(name, sizes[name], by_name.get(name, ""), tuple(occurs.get(name, ()))) for name in ordered)

    def named(parts: Iterable[int]) -> Names:
        return tuple(names[atom] for atom in parts)

    dims = {value: tuple(named(dim) for dim in atoms.dims(value)) for value in graph.types}
    factors: dict[str, dict[str, Names]] = {op.name: {} for op in graph.ops}
    for op, factor, parts in atoms.occurrences:
        factors[op.name][factor] = named(parts)
    return Loops(found, MappingProxyType(dims), MappingProxyType(factors))


def body_loops(fold: Fold) -> Mapping[str, Loops]:
    """The loops of every body, found in the whole model: a block recognises the batch by where its input comes from,
    and a loop has one name in all bodies."""
    whole = unfolded_short(Same(fold))
    found = loops(whole.graph)
    calls = [(call.body, names) for call, names in zip(short_of(Same(fold)).calls(), whole.names, strict=True)]
    ends = _ends(calls, found)
    made: dict[str, Loops] = {}
    for body, names in calls:
        if body.name not in made:
            made[body.name] = replace(_seen_from(body.graph, names, found), ends=ends[body.name])
    return made


def _ends(
    calls: Sequence[tuple[Body, Mapping[str, str]]], found: Loops
) -> Mapping[str, Mapping[str, tuple[Names, ...]]]:
    """The `ends` of every body. A value of the whole goes through many ports, and a port has other values in other
    calls; all that are connected must lie alike."""
    ports: dict[tuple[str, str], list[str]] = {}
    for body, names in calls:
        for value in dict.fromkeys((*(item.value for item in body.graph.inputs), *body.graph.outputs)):
            ports.setdefault((body.name, value), []).append(names[value])
    parent = {value: value for values in ports.values() for value in values}

    def root(value: str) -> str:
        while parent[value] != value:
            value = parent[value]
        return value

    for first, *others in ports.values():
        for other in others:
            parent[root(other)] = root(first)
    agreed: dict[str, tuple[Names, ...]] = {}
    for value in parent:
        before = agreed.setdefault(root(value), found.dims[value])
        agreed[root(value)] = tuple(
            one if one == other else () for one, other in zip(before, found.dims[value], strict=True)
        )
    made: dict[str, dict[str, tuple[Names, ...]]] = {body.name: {} for body, _ in calls}
    for (name, port), (first, *_) in ports.items():
        if agreed[root(first)] != found.dims[first]:
            made[name][port] = agreed[root(first)]
    return made


def resized(found: Loops, graph: Graph, known: Mapping[str, int] | None = None) -> Loops | None:
    """The loops of a graph that is another one with some dimensions of another extent. A loop that no dimension shows
    by itself keeps its size, or has that in `known`, if it is of a value that only passes through a body. None where
    that does not agree with the dimensions that show it with others, where one has or had no extent, which loops do not
    count, and where a size is not known."""
    extents = [
        (names, extent)
        for value, dims in found.dims.items()
        for names, extent in zip(dims, graph.types[value].shape, strict=True)
    ]
    shown = {names[0]: extent for names, extent in extents if len(names) == 1}
    sizes = dict(known or {}) | {loop.name: loop.size for loop in found.loops} | shown
    for names, extent in extents:
        alone, hidden = len(names) == 1, any(name not in shown for name in names)
        if any(name not in sizes for name in names):
            return None
        if (extent == 1) != (not names) or ((alone or hidden) and prod(sizes[name] for name in names) != extent):
            return None
    return replace(found, loops=tuple(replace(loop, size=sizes[loop.name]) for loop in found.loops))


def _seen_from(graph: Graph, names: Mapping[str, str], found: Loops) -> Loops:
    """The loops of the whole model as one body sees them, under its own names."""
    factors = {op.name: found.factors[names[op.name]] for op in graph.ops}
    own = {names[op.name]: op.name for op in graph.ops}
    occurs = {loop.name: tuple((own[op], factor) for op, factor in loop.occurs if op in own) for loop in found.loops}
    dims = {value: found.dims[names[value]] for value in graph.types}
    return Loops(
        tuple(replace(loop, occurs=occurs[loop.name]) for loop in found.loops if occurs[loop.name]), dims, factors
    )


def value_labels(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """The loops of each dimension of every value: "b", "heads·head_dim", or "" for extent 1."""
    return {value: tuple("·".join(names) for names in dims) for value, dims in loops(graph).dims.items()}


class Atoms:
    """The union-find over dimensions and factors of one graph.

    Elements are numbers. `find` gives the representative of a set; a representative is an atom, or is split into parts.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rules = tuple(rules_of(Same(graph)).values())
        self.size: list[int] = []
        self.images: list[tuple[str, int, int, str]] = []
        """(value, dimension, operator index, factor) of another size, or sectioned: related, but not equal."""
        self._parent: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}
        self._dims = {value: tuple(map(self._element, type_.shape)) for value, type_ in graph.types.items()}
        self._factors = tuple(
            {factor.name: self._element(factor.size) for factor in rule.factors} for rule in self.rules
        )
        for index, (op, rule) in enumerate(zip(graph.ops, self.rules, strict=True)):
            self._join_op(index, op, rule)
        self._settled: list[tuple[int, ...]] = [self._atoms(element) for element in range(len(self.size))]

    def dims(self, value: str) -> tuple[tuple[int, ...], ...]:
        """The atoms of every dimension of a value."""
        return tuple(self._settled[element] for element in self._dims[value])

    def factor(self, op: int, name: str) -> tuple[int, ...]:
        """The atoms of a factor of the operator with this index."""
        return self._settled[self._factors[op][name]]

    @cached_property
    def occurrences(self) -> tuple[tuple[Op, str, tuple[int, ...]], ...]:
        """Every factor of every operator, with its atoms."""
        return tuple(
            (op, name, self._settled[element])
            for op, factors in zip(self.graph.ops, self._factors, strict=True)
            for name, element in factors.items()
        )

    def find(self, element: int) -> int:
        while self._parent[element] != element:
            self._parent[element] = self._parent[self._parent[element]]
            element = self._parent[element]
        return element

    def _atoms(self, element: int) -> tuple[int, ...]:
        """The atoms of an element so far; none, if its size is 1."""
        root = self.find(element)
        if root in self._parts:
            return tuple(atom for part in self._parts[root] for atom in self._atoms(part))
        return () if self.size[root] == 1 else (root,)

    def _element(self, size: int) -> int:
        self.size.append(size)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _join_op(self, index: int, op: Op, rule: Rule) -> None:
        sides = (("operand", op.operands, rule.operands), ("result", op.results, rule.results))
        for side, values, tensors in sides:
            for slot, (value, dims) in enumerate(zip(values, tensors, strict=True)):
                for dim, names in enumerate(dims):
                    equal = prod(rule.factor(name).size for name in names) == self.graph.types[value].shape[dim]
                    at = side, slot, dim
                    if equal and rule.section_sizes(*at) is None and rule.slot_groups(*at) is None:
                        if len(names) == 1 and self._unify(self._dims[value][dim], self._factors[index][names[0]]):
                            continue
                        self._join([self._dims[value][dim]], [self._factors[index][name] for name in names])
                    else:
                        self.images += [(value, dim, index, name) for name in names]

    def _unify(self, left: int, right: int) -> bool:
        """Unify two elements if both are still whole and as large; most are."""
        a, b = self.find(left), self.find(right)
        if self.size[a] != self.size[b] or a in self._parts or b in self._parts:
            return False
        if self.size[a] != 1:
            self._parent[max(a, b)] = min(a, b)
        return True

    def _join(self, left: list[int], right: list[int]) -> None:
        """Unify two sequences of equal size, from the right; stop where their sizes have no common boundary."""
        while left and right:
            if not (self._open(left) and self._open(right)):
                continue
            a, b = left.pop(), right.pop()
            if self.size[a] == self.size[b]:
                self._parent[max(a, b)] = min(a, b)
            elif not self.size[b] or not self.size[a]:
                return
            elif self.size[a] % self.size[b] == 0:
                left.append(self._split(a, b))
            elif self.size[b] % self.size[a] == 0:
                right.append(self._split(b, a))
            else:
                return

    def _open(self, sequence: list[int]) -> bool:
        """Make the last element an atom; False if it was split or removed instead."""
        last = sequence.pop()
        parts = self._atoms(last)
        sequence.extend(parts)
        return parts == (last,)

    def _split(self, element: int, minor: int) -> int:
        """Split an atom so that its minor part is the atom `minor`; return the major part."""
        major = self._element(self.size[element] // self.size[minor])
        self._parts[element] = (major, minor)
        return major


# Names ----------------------------------------------------------------------------------------------------------------

_ROLES: tuple[tuple[str, tuple[tuple[tuple[str, ...], str], ...]], ...] = (
    ("heads", ((("attention",), "hk"),)),
    ("group", ((("attention",), "g"),)),
    ("head_dim", ((("attention",), "d"), (("attention",), "dv"))),
    ("vocab", ((("cross_entropy", "nll_loss"), "v"),)),
    ("experts", ((("dispatch", "combine", "grouped_linear", "grouped_mm"), "e"),)),
    ("top_k", ((("dispatch", "combine"), "k"),)),
    ("hidden", ((("embedding", "dispatch", "combine"), "d"),)),
)
"""For each role, the (kinds, factor) pairs that play it. Earlier roles win."""

_PRODUCTS = ("linear", "grouped_linear", "matmul", "bmm", "grouped_mm")
_NORMS = ("layer_norm", "rms_norm")


class _Naming:
    """The naming of atoms: first a stem by label, role or size, then a size where one stem has several."""

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms
        self.stems: dict[int, str] = {}
        self.labels: dict[int, str] = {}

    def named(self) -> tuple[dict[int, str], dict[int, str]]:
        """The name of every atom, and the labels of those that have one."""
        self._by_label()
        for role, players in _ROLES:
            for kinds, factor in players:
                self._by_factor(role, kinds, factor)
        self._by_table()
        self._by_norm()
        self._by_image()
        self._feed_forward()
        self._inner_channels()
        for atom in self._all():
            self._give([atom], f"dim{self.atoms.size[atom]}")
        return self._sized(), self.labels

    def _all(self) -> Iterator[int]:
        for value in self.atoms.graph.types:
            for dim in self.atoms.dims(value):
                yield from dim
        for _, _, parts in self.atoms.occurrences:
            yield from parts

    def _give(self, parts: Sequence[int], stem: str) -> None:
        for index, atom in enumerate(parts):
            self.stems.setdefault(atom, stem if len(parts) == 1 else f"{stem}.{index}")

    def _by_label(self) -> None:
        for item in self.atoms.graph.inputs:
            for label, parts in zip(item.labels, self.atoms.dims(item.value), strict=False):
                if label:
                    self._give(parts, label)
                    for atom in parts:
                        self.labels.setdefault(atom, label)

    def _by_factor(self, role: str, kinds: tuple[str, ...], factor: str) -> None:
        for op, name, parts in self.atoms.occurrences:
            if name != factor or op.kind not in kinds:
                continue
            if len(parts) == 1:
                self._give(parts, role)
            elif role == "heads" and len(parts) == 2:  # key-value heads that were repeated before they came here
                self._give(parts[:1], "heads")
                self._give(parts[1:], "group")

    def _by_table(self) -> None:
        """Name the vocabulary: the rows of a table with as many rows as the loss has classes, tied or not."""
        classes = {self.atoms.size[atom] for atom, stem in self.stems.items() if stem == "vocab"}
        for op, name, parts in self.atoms.occurrences:
            if op.kind == "embedding" and name == "v" and len(parts) == 1:
                vocab = not classes or self.atoms.size[parts[0]] in classes
                self._give(parts, "vocab" if vocab else "table")

    def _by_norm(self) -> None:
        for op in self.atoms.graph.ops:
            if op.kind in _NORMS and self.atoms.graph.types[op.name].shape:
                parts = self.atoms.dims(op.name)[-1]
                if len(parts) == 1:
                    self._give(parts, "hidden")

    def _by_image(self) -> None:
        rows = {
            atom for op, name, parts in self.atoms.occurrences if op.kind in _PRODUCTS and name == "n" for atom in parts
        }
        for value, dim, index, _ in self.atoms.images:
            parts = self.atoms.dims(value)[dim]
            if self.atoms.graph.ops[index].kind in ("dispatch", "combine"):
                self._give(parts, "slots")
            elif self.atoms.rules[index].sections and len(parts) == 1 and parts[0] in rows:
                self._give(parts, "fused")

    def _feed_forward(self) -> None:
        """Name the feed-forward loop: a nameless one that a product sums on the way back to hidden."""
        for index, op in enumerate(self.atoms.graph.ops):
            if op.kind in _PRODUCTS:
                back, parts = self.atoms.factor(index, "n"), self.atoms.factor(index, "k")
                if len(back) == len(parts) == 1 and self.stems.get(back[0]) == "hidden":
                    self._give(parts, "ffn")

    def _inner_channels(self) -> None:
        """Name inner channels: nameless ones that one convolution makes and another one sums, of neither the batch nor
        a result."""
        ends = {*(item.value for item in self.atoms.graph.inputs), *self.atoms.graph.outputs}
        seen = {atom for value in ends for dim in self.atoms.dims(value) for atom in dim}
        loops = [(name, parts) for _, name, parts in self.atoms.occurrences]
        made, summed = ({at for name, parts in loops if name == one for at in parts} for one in ("co", "ci"))
        for atom in sorted(made & summed - seen):
            self._give([atom], "channels")

    def _sized(self) -> dict[int, str]:
        largest: dict[str, int] = {}
        for atom, stem in self.stems.items():
            largest[stem] = max(largest.get(stem, 0), self.atoms.size[atom])
        return {
            atom: stem if self.atoms.size[atom] == largest[stem] else f"{stem}{self.atoms.size[atom]}"
            for atom, stem in self.stems.items()
        }
