"""A jaxpr as one flat list of equations.

In: the jaxpr of a training step, and what its arguments are (`Leaf`). Out: `Flat`: equations in order, over numbered
values, with calls written out.

    jit, remat, custom_jvp, custom_vjp    their body, where they are called
    scan over stacked parameters          a stack: one run of the body per traced block, of which there are as many as
                                          `Stack` says; a parameter [blocks, …] becomes one per traced block
    any other short scan                  its body, as often as it runs
    while, cond, a long scan              one equation, which nothing is known of

A scan over parameters is traced like a deep torch model: a few of its blocks stand for all, unless it hands on what
every block gives (its stacked results are read).

With `Sites`, the source of an equation is where it stands in the jaxpr: its number, after those of the equations whose
bodies it lies in, and which result of it is meant, `17/3:0`. A call of `jit` stands for what comes out of it, and so
does one with a derivative of its own, whose body nobody must take apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from meshwright.ir.annotated.annotations import Spec
from meshwright.ir.frontends.folding.stacks import SHORT_WALK, Stack, short_walk
from meshwright.ir.frontends.foreign import HOME
from meshwright.ir.frontends.jax_.dtypes import is_key, type_of
from meshwright.ir.frontends.jax_.sites import Sites, site
from meshwright.ir.graph.graph import Type

CALLS = frozenset(
    (
        "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
        "remat", "remat2", "checkpoint", "custom_lin",
    )
)  # fmt: skip
"""Primitives that only call a body."""

LARGE_BYTES = 2**20
"""What an array that the code closes over may have before that is said."""
WRITTEN_OUT = 16
"""Runs, at most, of a scan without parameters that is written out."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What an argument of the step is: a `param`, a `buffer` (state that is not trained), an `input`, a `random` state,
    or a `constant`, whose `data` is known."""

    kind: str
    path: str
    type: Type
    trained: bool = True
    data: Any = None
    random: bool = False
    spec: Spec = ()
    """Where the model's own code says that it lies."""


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar that stands in the code."""

    value: Any
    type: Type


Atom = int | Number


@dataclass(frozen=True, slots=True)
class Equation:
    """One primitive: `inputs` and `outputs` are values by number; `room` is the block that it is known to lie in."""

    name: str
    params: Mapping[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    types: tuple[Type, ...]
    source: str = ""
    room: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan over parameters: where it stands (`jax_.sites`), which of its stacked results are read, with their types,
    and which operand of its body every parameter of a block is, by its path in the block, with the path of the stacked
    one."""

    site: str
    stacks: tuple[tuple[int, Type], ...]
    operands: Mapping[str, tuple[int, str]]


@dataclass
class Flat:
    """The whole step."""

    types: list[Type] = field(default_factory=list)
    leaves: dict[int, Leaf] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    outputs: tuple[Atom, ...] = ()
    stacks: list[Stack] = field(default_factory=list)
    scans: dict[str, Scan] = field(default_factory=dict)
    """Those stacks that are scans, by path."""
    notes: list[str] = field(default_factory=list)


def flattened(
    closed: Any, leaves: Sequence[Leaf], *, whole: bool = False, seed: int = 0, sites: Sites | None = None
) -> Flat:
    """The flat form of a closed jaxpr. `whole`: every block of a scan is traced."""
    walk = _Flattening(whole, seed, sites)
    arguments = [walk.leaf(leaf) for leaf in leaves]
    flat = walk.flat
    flat.outputs = tuple(walk.call(closed, arguments))
    read = {atom for equation in flat.equations for atom in equation.inputs if isinstance(atom, int)}
    read |= {atom for atom in flat.outputs if isinstance(atom, int)}
    flat.leaves = {at: leaf for at, leaf in flat.leaves.items() if at in read or at not in walk.unstacked}
    return flat


class _Flattening:
    def __init__(self, whole: bool, seed: int, sites: Sites | None) -> None:
        self.flat = Flat()
        self.whole, self.seed, self.sites = whole, seed, sites
        self.site: tuple[int, ...] = ()
        self.producer: dict[int, Equation] = {}
        self.room = ""
        self.unstacked: dict[int, dict[int, int]] = {}
        """Of stacked parameters, the parameters of their blocks."""

    def value(self, type_: Type) -> int:
        self.flat.types.append(type_)
        return len(self.flat.types) - 1

    def leaf(self, leaf: Leaf) -> int:
        number = self.value(leaf.type)
        self.flat.leaves[number] = leaf
        return number

    def emit(
        self, name: str, inputs: Sequence[Atom], types: Sequence[Type], source: str = "", **params: Any
    ) -> tuple[int, ...]:
        outputs = tuple(self.value(type_) for type_ in types)
        equation = Equation(name, params, tuple(inputs), outputs, tuple(types), source, self.room)
        self.flat.equations.append(equation)
        self.producer |= dict.fromkeys(outputs, equation)
        return outputs

    def call(self, body: Any, arguments: Sequence[Atom], source: str = "") -> list[Atom]:
        """The equations of a body with these arguments; what it gives."""
        constants = getattr(body, "consts", ())
        jaxpr = getattr(body, "jaxpr", body)
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        closed_over = zip(jaxpr.constvars, constants, strict=True)
        env |= {var: self.constant(var.aval, data, source) for var, data in closed_over}

        def read(var: Any) -> Atom:
            return env[var] if not hasattr(var, "val") else Number(var.val, type_of(var.aval))

        around = self.site
        for equation in jaxpr.eqns:
            inputs = [read(var) for var in equation.invars]
            self.site = (*around, self.sites.number(equation)) if self.sites is not None else ()
            first = len(self.flat.equations)
            results = self.equation(equation, inputs, source)
            closed = equation.primitive.name.startswith("custom_")
            if self.sites is not None and (closed or equation.primitive.name in ("jit", "pjit")):
                self.stand_for(results, first, closed=closed)
            for var, atom in zip(equation.outvars, results, strict=True):
                env[var] = atom
        self.site = around
        return [read(var) for var in jaxpr.outvars]

    def stand_for(self, results: Sequence[Atom], first: int, *, closed: bool) -> None:
        """What a call gives, and was made since, stands where the call does; nothing else does of a `closed` body."""
        given = {atom: at for at, atom in enumerate(results) if isinstance(atom, int)}
        place = site(self.site)
        for at in range(first, len(self.flat.equations)):
            one = self.flat.equations[at]
            if len(one.outputs) == 1 and one.outputs[0] in given:
                self.flat.equations[at] = replace(one, source=f"{place}:{given[one.outputs[0]]}")
            elif closed:
                self.flat.equations[at] = replace(one, source="")

    def constant(self, aval: Any, data: Any, source: str) -> int:
        """An array that the code holds."""
        type_ = type_of(aval, source)
        if type_.nbytes > LARGE_BYTES:
            self.flat.notes.append(
                f"{source}: an array of {type_.nbytes / 2**20:.0f} MiB is closed over, and no parameter"
            )
        return self.leaf(Leaf("constant", "", type_, data=data, random=is_key(aval)))

    def equation(self, equation: Any, inputs: Sequence[Atom], around: str) -> Sequence[Atom]:
        name, params = equation.primitive.name, equation.params
        source = source_line(equation.source_info) or around
        if name in CALLS:
            if name.startswith("custom_vjp"):
                self.flat.notes.append(
                    f"{source}: a custom_vjp is planned by its forward pass, not by its own backward"
                )
            body = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
            return self.call(body, inputs, source)
        if name == "scan":
            found = self.scan(equation, inputs, source)
            if found is not None:
                return found
        types = [type_of(var.aval, source) for var in equation.outvars]
        if self.sites is not None:
            source = f"{site(self.site)}:0" if len(types) == 1 else ""
        return self.emit(name, inputs, types, source, **params)

    # Scans ------------------------------------------------------------------------------------------------------------

    def scan(self, equation: Any, inputs: Sequence[Atom], source: str) -> Sequence[Atom] | None:
        params = equation.params
        length, fixed, carried = params["length"], params["num_consts"], params["num_carry"]
        constants, carry, scanned = inputs[:fixed], list(inputs[fixed : fixed + carried]), inputs[fixed + carried :]
        stacked = {
            index: leaf for index, atom in enumerate(scanned) if (leaf := self.stacked(atom, length)) is not None
        }
        if not stacked and length > WRITTEN_OUT:
            return None
        read = [str(var) != "_" for var in equation.outvars[carried:]]
        order: Sequence[int] = range(length)[:: -1 if params["reverse"] else 1]
        around, prefix = self.room, ""
        if stacked and not around:
            prefix = self.prefix([self.flat.leaves[leaf].path for leaf in stacked.values()])
            few = short_walk((0,) * length, seed=f"{prefix} {self.seed}", most=SHORT_WALK)
            walk = few if not (self.whole or any(read) or params["reverse"]) else tuple(range(length))
            self.flat.stacks.append(Stack(prefix, (0,) * length, walk))
            if self.sites is not None:
                places = {fixed + carried + index: self.flat.leaves[leaf].path for index, leaf in stacked.items()}
                operands = {at: (self.sites.operand(equation, at), path) for at, path in places.items()}
                own = {path.removeprefix(f"{prefix}."): (at, path) for at, path in operands.values()}
                rows = enumerate(zip(equation.outvars[carried:], read, strict=True), carried)
                stacks = tuple((at, type_of(var.aval, source)) for at, (var, wanted) in rows if wanted)
                self.flat.scans[prefix] = Scan(site(self.site), stacks, own)
            order = walk if not params["reverse"] else order
        given: list[list[Atom]] = []
        for at in order:
            self.room = f"{prefix}.{at}" if prefix else around
            slices = [self.taken(atom, at, stacked.get(index), prefix) for index, atom in enumerate(scanned)]
            results = self.call(params["jaxpr"], [*constants, *carry, *slices], source)
            carry = results[:carried]
            given.append(results[carried:])
        self.room = around
        if params["reverse"]:
            given.reverse()
        sources = [source if self.sites is None else f"{site(self.site)}:{carried + at}" for at in range(len(read))]
        all_rows = zip(zip(*given, strict=True), read, sources, strict=True)
        return [*carry, *(self.joined(each, here) if wanted else -1 for each, wanted, here in all_rows)]

    def stacked(self, atom: Atom, length: int) -> int | None:
        """The parameter [length, …] that a value is, but for its dtype."""
        while isinstance(atom, int) and atom in self.producer and self.producer[atom].name == "convert_element_type":
            atom = self.producer[atom].inputs[0]
        leaf = self.flat.leaves.get(atom) if isinstance(atom, int) else None
        if leaf is None or leaf.kind not in ("param", "buffer") or leaf.type.shape[:1] != (length,):
            return None
        return atom  # type: ignore[return-value]

    def prefix(self, paths: Sequence[str]) -> str:
        """What the paths of these parameters begin with, or a name of our own; one that no other stack has."""
        parts = [path.split(".")[:-1] for path in paths]
        common = []
        for words in zip(*parts, strict=False):
            if len(set(words)) > 1:
                break
            common.append(words[0])
        found = ".".join(common) or "blocks"
        taken = {stack.path for stack in self.flat.stacks}
        number = 2
        while found in taken:
            found, number = f"{'.'.join(common) or 'blocks'}_{number}", number + 1
        return found

    def taken(self, atom: Atom, at: int, leaf: int | None, prefix: str) -> Atom:
        """Row `at` of what is scanned: of a stacked parameter, the block's own."""
        type_ = self.flat.types[atom] if isinstance(atom, int) else atom.type
        row = Type(type_.shape[1:], type_.dtype)
        if leaf is not None and prefix:
            own = self.instance(leaf, at, prefix)
            if self.flat.types[own].dtype == row.dtype:
                return own
            return self.emit("convert_element_type", [own], [row], new_dtype=row.dtype)[0]
        starts, ends = (at, *(0 for _ in row.shape)), (at + 1, *row.shape)
        cut = Type((1, *row.shape), type_.dtype)
        part = self.emit("slice", [atom], [cut], start_indices=starts, limit_indices=ends, strides=None)
        return self.emit("squeeze", part, [row], dimensions=(0,))[0]

    def instance(self, stacked: int, at: int, prefix: str) -> int:
        known = self.unstacked.setdefault(stacked, {})
        if at not in known:
            leaf = self.flat.leaves[stacked]
            inside = leaf.path.removeprefix(f"{prefix}.")
            type_ = Type(leaf.type.shape[1:], leaf.type.dtype)
            own = replace(leaf, path=f"{prefix}.{at}.{inside}", type=type_, spec=leaf.spec[1:])
            known[at] = self.leaf(own)
        return known[at]

    def joined(self, rows: Sequence[Atom], source: str) -> Atom:
        """Rows side by side in a new first dimension."""
        type_ = self.flat.types[rows[0]] if isinstance(rows[0], int) else rows[0].type
        narrow = Type((1, *type_.shape), type_.dtype)
        wide = Type((len(rows), *type_.shape), type_.dtype)
        seen = [self.emit("reshape", [row], [narrow], source, new_sizes=narrow.shape)[0] for row in rows]
        return self.emit("concatenate", seen, [wide], source, dimension=0)[0]


LIBRARIES = frozenset(("jax", "jaxlib", "flax", "equinox", "optax", "jaxtyping", "chex", "einops", "contextlib.py"))


def source_line(info: Any) -> str:
    """The innermost line of a trace outside the libraries of JAX, as in `model.py:12`."""
    traceback = info.traceback
    for frame in traceback.frames if traceback is not None else ():
        path = PurePath(frame.file_name)
        if path.is_relative_to(HOME) or frame.file_name.startswith("<"):
            continue
        parts = path.parts
        library = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), None)
        if library is not None and parts[library + 1] in LIBRARIES:
            continue
        if any(part in LIBRARIES for part in parts[-6:-1]) or parts[-1] in LIBRARIES:
            continue
        shown = parts[library + 1 :] if library is not None else parts[-1:]
        return f"{'/'.join(shown)}:{frame.line_num}"
    return ""
