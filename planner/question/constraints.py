"""What a person wants of the space: --fix, --allow and --forbid, read and held against each other.

    --fix tp=8,recompute=full       the only value
    --allow tp=2|4|8,schedule=1f1b  the only values
    --forbid tp=8,zero=3|2,cp       values that must not be; a name alone forbids whatever uses it (cp other than 1)

Every name may be given to each of the three options; what they leave together must not be nothing. What a name leaves
is said in the words that were given, so that whoever reads the refusal finds what to take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshwright.ir.errors import ConstraintsContradict, PinRepeated, PinValue
from meshwright.ir.schedules import CUSTOM
from meshwright.planner.question.module_pins import ModulePin
from meshwright.planner.question.pins import KNOBS, NAMES, Config, Pins, Value, read, word


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints on the space: per name, the only values allowed and the values ruled out."""

    only: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    never: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.only or self.never)

    @staticmethod
    def of(pins: Pins) -> Constraints:
        """The constraints that pins stand for: each pinned value is the only one."""
        return Constraints({name: (value,) for name, value in pins.to_json().items()})

    @property
    def named(self) -> Constraints:
        """The constraints on the searched configurations, whose schedules all have names: a schedule made for a plan
        may take the place of any of them."""
        names = tuple(name for name in self.only.get("schedule", ()) if name != CUSTOM)
        others = {name: values for name, values in self.only.items() if name != "schedule"}
        return replace(self, only=others | ({"schedule": names} if names else {}))

    @property
    def made_only(self) -> bool:
        """Whether a pipeline's schedule must be one that is made for it."""
        return self.only.get("schedule") == (CUSTOM,)

    @property
    def meant(self) -> Constraints:
        """The constraints with 1F1B over several virtual stages under its own name, `interleaved`."""
        words = self.only.get("schedule", ())
        if "1f1b" not in words or 1 in self.only.get("vp", (1,)):
            return self
        named = tuple(dict.fromkeys("interleaved" if name == "1f1b" else name for name in words))
        return replace(self, only={**self.only, "schedule": named})

    def grants(self, name: str, value: Value) -> bool:
        only = self.only.get(name)
        return (only is None or value in only) and value not in self.never.get(name, ())

    def among(self, name: str, values: Iterator[Value] | tuple[Value, ...] | list[int]) -> list[Value]:
        """The values that are granted, of those given; a pinned value is returned even if it is not among them."""
        own = self.only.get(name, tuple(values))
        return [value for value in own if value not in self.never.get(name, ())]


OFF: Mapping[str, Value] = {name: knob.off for name, knob in KNOBS.items() if knob.off is not None}
"""Names that can be forbidden altogether, and what is left of them then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a question: constraints, pins and pins of modules.

    - What is pinned is in `pins` too: baselines and first tries are filled in from there.
    """

    constraints: Constraints = field(default_factory=Constraints)
    pins: Pins = field(default_factory=Pins)
    operators: bool = False
    """Choose what axes do in every operator on meshes of three axes too."""
    modules: tuple[ModulePin, ...] = ()
    """What is asked of single modules."""
    tried: tuple[Config, ...] = ()
    """Configurations that are priced first, so that no answer is worse than one of them that is allowed."""

    @property
    def text(self) -> str:
        """The request as the command line takes it."""
        only = [f"{name}={'|'.join(map(word, values))}" for name, values in self.constraints.only.items()]
        never = [f"not {name}={'|'.join(map(word, values))}" for name, values in self.constraints.never.items()]
        return ", ".join((*only, *never, *map(str, self.modules)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names that something was asked of."""
        return tuple(dict.fromkeys((*self.constraints.only, *self.constraints.never)))

    def without(self, name: str) -> Asked:
        """The request with every constraint on one name dropped."""
        kept = self.pins.to_json()
        kept.pop(name, None)
        only, never = (
            {key: values for key, values in table.items() if key != name}
            for table in (self.constraints.only, self.constraints.never)
        )
        return replace(self, constraints=Constraints(only, never), pins=_pinned(kept))

    def without_module(self, pin: ModulePin) -> Asked:
        """The request without one pin of a module."""
        return replace(self, modules=tuple(own for own in self.modules if own != pin))

    def with_modules(self, pins: Iterable[ModulePin]) -> Asked:
        """The request with these pins of modules in place of earlier ones for the same pattern and word."""
        new = {(pin.pattern, pin.what): pin for pin in pins}
        kept = (pin for pin in self.modules if (pin.pattern, pin.what) not in new)
        return replace(self, modules=(*kept, *pins))

    def pinned(self, pins: Pins) -> Asked:
        """The request with these pins in place of whatever was asked of their names."""
        asked = self
        for name in pins.to_json():
            asked = asked.without(name)
        constraints = Constraints({**asked.constraints.only, **Constraints.of(pins).only}, asked.constraints.never)
        return replace(asked, constraints=constraints, pins=pins.over(asked.pins))


def _pinned(values: Mapping[str, Value]) -> Pins:
    """Read pins from values as JSON has them."""
    return read(values, "--fix")


def asked(pins: Pins, allow: Iterable[str] = (), forbid: Iterable[str] = ()) -> Asked:
    """Read --allow and --forbid beside pins that are read already."""
    allowed, (never, off) = _lists(allow, "--allow"), _forbidden(forbid)
    only: dict[str, tuple[Value, ...]] = {}
    for name in NAMES:
        pin = pins.to_json().get(name)
        given: list[tuple[str, tuple[Value, ...]]] = [("--fix", (pin,))] if pin is not None else []
        given += [
            (option, table[name]) for option, table in (("--allow", allowed), ("--forbid all of", off)) if name in table
        ]
        if not given:
            continue
        left = [value for value in given[0][1] if all(value in values for _, values in given)]
        if name in never:
            given.append(("--forbid", never[name]))
            left = [value for value in left if value not in never[name]]
        if not left:
            raise _contradiction(name, given)
        only[name] = tuple(left)
        if len(left) == 1:
            pins = _pinned({name: left[0]}).over(pins)
    return Asked(Constraints(only, never).meant, pins)


def _contradiction(name: str, given: Sequence[tuple[str, tuple[Value, ...]]]) -> ConstraintsContradict:
    said = [name if option.endswith(" all of") else f"{name}={'|'.join(map(word, values))}" for option, values in given]
    options = [option.removesuffix(" all of") for option, _ in given]
    return ConstraintsContradict(
        place=" ".join(f"{option} {text}" for option, text in zip(options, said, strict=True)),
        cause=f"together they leave no value of {name}",
        fix=f"take {' or '.join(dict.fromkeys(options))} of {name} back",
    )


def _lists(texts: Iterable[str], option: str) -> dict[str, tuple[Value, ...]]:
    """Read the values per name of an option that may be given more than once."""
    found: dict[str, tuple[Value, ...]] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        if not text:
            continue
        name, equals, values = (part.strip() for part in text.partition("="))
        if name in found:
            raise PinRepeated(place=f"{option} {text}", cause=f"{name} is given twice", fix=f"write {name}=A|B once")
        if name in NAMES and not equals:
            raise PinValue(
                place=f"{option} {text}", cause="there is no value", fix=f"write {name}=A|B, with values of it"
            )
        read_ = (read({name: value.strip()}, option).to_json()[name] for value in values.split("|"))
        found[name] = tuple(dict.fromkeys(read_))
    return found


def _forbidden(texts: Iterable[str]) -> tuple[dict[str, tuple[Value, ...]], dict[str, tuple[Value, ...]]]:
    """Read --forbid: values ruled out, and the value that remains for each name that is forbidden altogether."""
    words = [part.strip() for given in texts for part in given.split(",")]
    alone = [text for text in words if text in OFF]
    return _lists([text for text in words if text not in OFF], "--forbid"), {name: (OFF[name],) for name in alone}
