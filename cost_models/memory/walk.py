"""The fullest instant of a list of statements: storages are made and let go of, one statement after another."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from meshwright.cost_models.memory.fullest import Fullest, Mix
from meshwright.cost_models.memory.storages import Names, Step
from meshwright.ir.program.program import Statement

_NEARLY = 1 - 1e-9
"""Of a sum: what rounding cannot take from it."""


class Walk:
    """One walk over statements: begins with some storages, leaves the names in `stay`; makes and frees, and remembers
    the fullest instant."""

    def __init__(self, of: Names, statements: Sequence[Statement], begin: dict[str, float], stay: set[str]) -> None:
        self.of, self.stay = of, stay
        self.inside = of.interiors(statements, {*stay, *of.kept}) | of.inner
        self.size: dict[str, float] = {}
        self.kind: dict[str, str] = {}
        self.held = {"activations": 0.0, "recomputed": 0.0, "transient": 0.0, "logits": 0.0}
        """Bytes of all storages by the names of `Mix`."""
        self.whole = True
        """Whether all sizes are whole numbers of bytes so far, whose sums are exact in whatever order."""
        self.backward = statements is not of.body.forward
        self.steps = [of.step(statement, backward=self.backward) for statement in statements]
        self.last: dict[str, int] = {}
        for index, statement in enumerate(statements):
            for name in of.reads(statement):
                self.last[name] = index
        self.views = of.views if self.backward else {}
        """The kept storages that names of the forward pass are views of."""
        self.through = self.followers()
        self.owner: dict[str, str] = {}
        self.home: dict[str, str] = {}
        """For every name that holds on to a storage, which."""
        self.lying: dict[str, set[str]] = {}
        """The same by storage."""
        self.until: dict[str, float] = {}
        """The last statement that reads a storage, as far as that was asked for since its last reader went."""
        self.changed: set[str] = set()
        """Storages that names came to, or left, since the last statement."""
        for name, size in begin.items():
            self.hold(name, size)
            self.own(name, name)
        self.spared = {at for at in of.kept if self.backward and not self.ever_read(at)}

    def followers(self) -> dict[str, list[str]]:
        """The names that lie where another name lies, as long as they are not made themselves."""
        found: dict[str, list[str]] = {}
        for name, base in (*self.views.items(), *self.of.logits.items()):
            found.setdefault(base, []).append(name)
        return found

    def storage(self, name: str) -> str | None:
        """The storage of a name, if it is counted here."""
        if name in self.of.logits:
            name = self.of.logits[name]
        if name not in self.owner and name in self.views:
            name = self.views[name]
        return self.owner.get(name)

    def own(self, name: str, at: str) -> None:
        """Put a name into a storage; its followers come along."""
        self.owner[name] = at
        self.settle(name)
        if name in self.through:
            near = self.through[name]
            far = [one for other in near for one in self.through.get(other, ()) if one != name and one not in near]
            for one in (*near, *far):
                self.settle(one)

    def settle(self, name: str) -> None:
        """Note where a name lies now. Names that are not made yet, or were made forward, count for the storage that
        they are views of, no other."""
        at = self.storage(name)
        if name not in self.owner and at not in (self.views.get(name), self.of.logits.get(name)):
            at = None
        before = self.home.get(name)
        if at == before:
            return
        if before is not None:
            self.lying[before].discard(name)
            if before in self.until and self.ends(name) >= self.until[before]:
                del self.until[before]
            self.changed.add(before)
        if at is None:
            del self.home[name]
            return
        self.home[name] = at
        self.lying.setdefault(at, set()).add(name)
        if at in self.until:
            self.until[at] = max(self.until[at], self.ends(name))
        self.changed.add(at)

    def run(self) -> Fullest:
        most, total = self.sums()
        now = total  # added up as it comes: near enough to tell when to sum anew
        recomputing = routed = False
        due: dict[float, list[str]] = {}
        for index, step in enumerate(self.steps):
            made, beside = self.make(step, index), step.beside
            now += made
            if (made or beside) and now + beside >= total * _NEARLY:
                sums, now = self.sums()
                if now + beside > total:
                    most, total = sums | {"transient": sums["transient"] + beside}, now + beside
                    recomputing, routed = self.backward and step.computes, step.routed
            for at in (*self.changed, *due.pop(index, ())):
                if at not in self.size or at in self.spared:
                    continue
                if self.needed(at, index):
                    due.setdefault(self.until[at], []).append(at)
                else:
                    now -= self.free(at)
            self.changed.clear()
        return Fullest(Mix(**most), recomputing, routed)

    def make(self, step: Step, index: int) -> float:
        """Give the results of a statement their storages; returns the bytes of new ones."""
        new = 0.0
        for name, lies in zip(step.results, step.lies, strict=True):
            at = self.storage(lies) if lies is not None else self.summed(step, index)
            if at is not None:
                self.own(name, at)
                continue
            if name in self.of.free or name in self.inside:
                continue
            root = self.of.logits.get(name, name)
            self.own(root, root)
            if name != root:
                self.own(name, root)
            if root not in self.size:
                self.kind[root] = self.kind_of(root, step)
                self.hold(root, self.of.size(root))
                self.changed.add(root)
                new += self.size[root]
        for name, size in step.own:
            self.own(name, name)
            if name in self.size:
                self.free(name)
            self.kind[name] = "recomputed" if self.backward else "activations"
            self.hold(name, size)
            self.changed.add(name)
            new += size
        return new

    def kind_of(self, name: str, step: Step) -> str:
        if name in self.of.logits_names:
            return "logits"
        if not self.backward and name in self.of.kept:
            return "activations"
        if self.backward and step.recomputes:
            return "recomputed"
        return "transient"

    def summed(self, step: Step, index: int) -> str | None:
        """The storage of an operand that a sum is written into: one that nobody reads afterwards."""
        for operand in step.sums:
            at = self.storage(operand)
            if at is not None and at not in self.of.kept and not self.needed(at, index):
                return at
        return None

    def needed(self, at: str, index: int) -> bool:
        """Whether a storage is read after a statement, or stays."""
        until = self.until.get(at)
        if until is None:
            until = self.until[at] = max(map(self.ends, self.lying.get(at, ())), default=-1)
        return until > index

    def ends(self, name: str) -> float:
        """The last statement that reads a name."""
        return inf if name in self.stay else self.last.get(name, -1)

    def ever_read(self, at: str) -> bool:
        return at in self.last or any(name in self.last for name in self.through.get(at, ()))

    def of_mix(self, name: str) -> str:
        """The name of `Mix` that a storage counts for."""
        if name in self.of.logits_names:
            return "logits"
        return "activations" if name in self.of.kept else self.kind.get(name, "transient")

    def hold(self, name: str, size: float) -> None:
        """Count a storage."""
        self.size[name] = size
        self.held[self.of_mix(name)] += size
        self.whole = self.whole and float(size).is_integer()

    def free(self, name: str) -> float:
        """Count a storage no more; returns its bytes."""
        size = self.size.pop(name)
        self.held[self.of_mix(name)] -= size
        return size

    def sums(self) -> tuple[dict[str, float], float]:
        """Bytes by the names of `Mix`, and all of them: added up anew where sums depend on the order."""
        sums = dict(self.held)
        if not self.whole:
            sums = dict.fromkeys(sums, 0.0)
            for name, size in self.size.items():
                sums[self.of_mix(name)] += size
        return sums, sums["activations"] + sums["recomputed"] + sums["transient"] + sums["logits"]
