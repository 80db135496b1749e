"""A file of settings: whose it is, what it says, what is left of it; and how one is written.

Whose a file is follows from its name and from what is in it: of the targets whose files end so, the one of which it has
most options. What is not published is listed (`unknown`), or refused where it is nearly an option of the target's table
and so would silently decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.ir.errors import (
    SettingsContradict,
    SettingsOfUnknown,
    SettingsUnreadable,
    SettingUnknown,
    closest,
    instead,
)
from meshwright.ir.files.near import did_you_mean
from meshwright.ir.files.reading import Unreadable, read_text
from meshwright.ir.limits import FILE_BYTES
from meshwright.planner.exchange.options import Entry, Given, names
from meshwright.planner.exchange.published import published
from meshwright.planner.exchange.syntax import arguments, tables
from meshwright.planner.exchange.target import Target, unpriced
from meshwright.planner.exchange.targets.every import TARGETS
from meshwright.planner.exchange.targets.megatron import MEGATRON, NEGATED

SLIP = 0.85
"""Likeness of a name to an option's, as difflib counts it, from which on it is a slip."""

Read = Callable[[str, str], dict[str, Entry]]
_arguments: Read = partial(arguments.read, negated=NEGATED, once=frozenset(names(MEGATRON.options)))
ENDINGS: Mapping[str, Read] = {
    ".toml": tables.read_toml,
    ".json": tables.read_json,
    ".yaml": tables.read_yaml,
    ".yml": tables.read_yaml,
}
"""Readers by how a file's name ends; all others are scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A file of settings that was read."""

    target: Target
    given: Given
    unknown: tuple[str, ...]
    """Names that the target does not publish."""
    left: int
    """Options that say nothing of what a step costs."""
    conditional: tuple[str, ...] = ()
    """Options of a script that stand behind a condition, and are read all the same."""

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Options that change a step, and of which prices know nothing."""
        return unpriced(self.target, self.given)

    def notes(self) -> tuple[str, ...]:
        """What is to be said of the file beside its price."""
        told = []
        if self.conditional:
            told.append(f"{', '.join(self.conditional)} in {self.given.place}: a condition before is taken to hold")
        if self.unpriced:
            told.append(f"prices know nothing of {', '.join(self.unpriced)} in {self.given.place}")
        if self.unknown:
            told.append(f"{self.target.called} publishes no {', '.join(self.unknown)}, as {self.given.place} has")
        return tuple(told)


def read_settings(path: str, named: str | None = None) -> Settings:
    """Read a file of settings; `named`: the target whose it is."""
    try:
        text = read_text(path, FILE_BYTES)
    except Unreadable as error:
        raise SettingsUnreadable(
            place=path, cause=error.cause, fix=f"{did_you_mean(path)}name a file of settings"
        ) from None
    target, entries = _whose(text, path, named)
    listed = published(target.name)
    known = {option.name for option in target.options} | {one.name for one in target.unpriced}
    strange = sorted(name for name in entries if name not in known and not listed.has(name))
    for name in strange:
        alike = [one for one in known if one.count(".") == name.count(".")]
        if meant := closest(name, alike, cutoff=SLIP):
            raise SettingUnknown(
                place=Given(place=path, entries=entries).at(name),
                cause=f"{target.called} has no such option",
                fix=f"did you mean {meant[0]}?",
            )
    return Settings(
        target=target,
        given=Given(place=path, entries=entries),
        unknown=tuple(strange),
        left=sum(name not in known for name in entries) - len(strange),
        conditional=_conditional(text, path, {name: entries[name].line for name in entries if name in known}),
    )


def target_named(name: str, place: str) -> Target:
    """A target by its name."""
    if name not in TARGETS:
        raise SettingsOfUnknown(place=place, cause="there is no such framework", fix=instead(name, TARGETS))
    return TARGETS[name]


def _whose(text: str, path: str, named: str | None) -> tuple[Target, dict[str, Entry]]:
    """The target whose file it is, and its entries."""
    if named is not None:
        target = target_named(named, f"--from-format {named}")
        return target, read_text_of(target, text, path)
    reader = ENDINGS.get(Path(path).suffix.lower())
    found: dict[str, dict[str, Entry]] = {}
    for target in TARGETS.values():
        if reader is None or _reader(target, path) is reader:
            found[target.name] = read_text_of(target, text, path)
    counts = {name: _known(TARGETS[name], entries) for name, entries in found.items()}
    most = max(counts.values(), default=0)
    best = [name for name, count in counts.items() if count == most]
    if not most or len(best) > 1:
        cause = "it has options of " + " and ".join(best) if most else "it has no option of a framework that is known"
        raise SettingsOfUnknown(place=path, cause=cause, fix=f"say whose it is: --from-format {'|'.join(TARGETS)}")
    return TARGETS[best[0]], found[best[0]]


def _conditional(text: str, path: str, lines: Mapping[str, int]) -> tuple[str, ...]:
    """Of options, those behind a condition of a script."""
    if Path(path).suffix.lower() in ENDINGS:
        return ()
    guarded = set(arguments.conditions(text))
    return tuple(name for name, line in lines.items() if line in guarded)


def _known(target: Target, entries: Mapping[str, Entry]) -> int:
    """How many options of a target's table there are."""
    return sum(option.name in entries for option in target.options)


def _reader(target: Target, path: str) -> Read:
    """How a file of a target is read that is called so: scripts have words instead of tables."""
    if target is MEGATRON:
        return _arguments
    return ENDINGS.get(Path(path).suffix.lower(), tables.read_words)


def read_text_of(target: Target, text: str, path: str) -> dict[str, Entry]:
    """The options of a text that is of a target's file, by the names of its table."""
    found = _reader(target, path)(text, path)
    given = Given(place=path, entries=found)
    for alias, name in target.aliases.items():
        if alias in found and name in found and found[alias].value != found[name].value:
            raise SettingsContradict(place=given.at(alias), cause=f"{name} says otherwise", fix="give one of them")
    return {target.aliases.get(name, name): entry for name, entry in found.items()}


def text_of(target: Target, options: Mapping[str, Any], comments: tuple[str, ...]) -> str:
    """The text of a target's file. Where its syntax has no comments, they are left to who prints them."""
    if target is MEGATRON:
        return arguments.write(options, comments, NEGATED)
    ending = Path(target.file).suffix
    if ending == ".json":
        return tables.write_json(options)
    return (tables.write_toml if ending == ".toml" else tables.write_yaml)(options, comments)
