"""Names of hosts, as Slurm and hostfiles give them, and what is declared of each.

In: `SLURM_…` variables (`env | grep SLURM`), or a hostfile of Open MPI, DeepSpeed (`node1 slots=8`) or MPICH
(`node1:8`), or plain names. Out: `Declared`. Slurm folds names: `gpu[01-04,07]`, `rack[1-2]n[1-8]`; `unfolded` and
`folded` are each other's inverse, up to order in what is folded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from meshwright.ir.errors import OutputBroken, OutputsContradict
from meshwright.ir.limits import HOSTS

BY_SLURM, BY_HOSTFILE = "Slurm", "the hostfile"
_VARIABLE = re.compile(r"(?:export )?(SLURM_\w+)=(.*)")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9_][\w.-]*)(?::(?P<colon>\d{1,6}))?(?P<rest>(?:\s+[\w-]+=\S+)*)")
_SLOTS = re.compile(r"\bslots=(\d{1,6})")
_PART = re.compile(r"[^\[\],]*(?:\[[^\[\]]*\][^\[\],]*)*")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Hosts of a job: their names, and how many devices each gives, 0 where that is not said."""

    names: tuple[str, ...]
    slots: tuple[int, ...]


def is_slurm(text: str) -> bool:
    return any(_VARIABLE.fullmatch(line.strip()) for line in text.splitlines())


def is_hostfile(text: str) -> bool:
    lines = _lines(text)
    return bool(lines) and all(_HOST.fullmatch(line) for _, line in lines)


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, without comments."""
    stripped = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in stripped if line]


def read_hostfile(text: str, place: str) -> Declared:
    """The hosts of a file, in the order of their first lines."""
    slots: dict[str, list[int]] = {}
    for number, line in _lines(text):
        found = _HOST.fullmatch(line)
        if found is None:
            raise OutputBroken(
                place=f"{place}:{number}",
                cause=f"{line[:60]!r} names no host",
                fix="write one host a line, as in `node1 slots=8`",
            )
        said = _SLOTS.search(found["rest"])
        slots.setdefault(found["name"], []).append(int(said[1] if said else found["colon"] or 0))
    if not slots:
        raise OutputBroken(place=place, cause="it names no host", fix="write one host a line, as in `node1 slots=8`")
    return Declared(names=tuple(slots), slots=tuple(map(_together, slots.values())))


def _together(slots: list[int]) -> int:
    """The slots of one host's lines; without any number, a line is a slot where there are several."""
    return sum(slots) or (len(slots) if len(slots) > 1 else 0)


def read_slurm(text: str, place: str) -> Declared:
    """The hosts of an allocation; without a list of nodes, as many as are counted, without names."""
    found = [_VARIABLE.fullmatch(line.strip()) for line in text.splitlines()]
    said = {one[1]: one[2].strip("'\"") for one in found if one}
    nodes = said.get("SLURM_JOB_NODELIST") or said.get("SLURM_NODELIST") or ""
    names = unfolded(nodes, f"{place}, SLURM_JOB_NODELIST") if nodes else ()
    counted = _whole(said.get("SLURM_JOB_NUM_NODES") or said.get("SLURM_NNODES"))
    if names and counted and counted != len(names):
        raise OutputsContradict(
            place=f"{place}, SLURM_NNODES",
            cause=f"it is {counted}, and SLURM_JOB_NODELIST names {len(names)} hosts",
            fix="take both from one job",
        )
    # A step that asked for no GPUs has none of these, and a typed request reads gpu:h100:8.
    gpus = said.get("SLURM_GPUS_ON_NODE") or said.get("SLURM_GPUS_PER_NODE") or ""
    each = _whole(gpus.rpartition(":")[2]) or 0
    return Declared(names=names, slots=(each,) * (len(names) or counted or 1))


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) else None


def unfolded(text: str, place: str) -> tuple[str, ...]:
    """The names of a list of nodes as Slurm writes it."""
    names: list[str] = []
    rest = text.strip()
    while rest:
        part = _PART.match(rest)
        end = part.end() if part else 0
        if not end or rest[end : end + 1] not in ("", ","):
            raise _bad(text, place)
        names += _expanded(rest[:end], text, place)
        if len(names) > HOSTS.most:
            raise OutputBroken(place=place, cause=HOSTS.refused(len(names)), fix="give fewer hosts")
        rest = rest[end + 1 :]
    return tuple(names)


def _expanded(part: str, text: str, place: str) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    choices = [[piece] if index % 2 == 0 else _numbers(piece, text, place) for index, piece in enumerate(pieces)]
    size = 1
    for choice in choices:
        size *= len(choice)
    if size > HOSTS.most:
        raise OutputBroken(place=place, cause=HOSTS.refused(size), fix="give fewer hosts")
    return ["".join(words) for words in product(*choices)]


def _numbers(ranges: str, text: str, place: str) -> list[str]:
    """Numbers of ranges, as wide as their first ones are written."""
    found: list[str] = []
    for one in ranges.split(","):
        ends = _RANGE.fullmatch(one.strip())
        if ends is None:
            raise _bad(text, place)
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or last - first >= HOSTS.most:
            raise _bad(text, place)
        found += [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]
    return found


def _bad(text: str, place: str) -> OutputBroken:
    return OutputBroken(
        place=place, cause=f"{text[:60]!r} is no list of nodes", fix="write it as Slurm does: node[01-04,07]"
    )


def folded(names: tuple[str, ...]) -> str:
    """Names as Slurm folds them, by the last number in each, in the order in which they first come."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name in names:
        cut = re.fullmatch(r"(.*?)(\d{1,9})(\D*)", name, re.DOTALL)
        before, digits, after = cut.groups() if cut else (name, "", "")
        groups.setdefault((before, after, len(digits)), []).append(digits)
    return ",".join(_fold(before, after, numbers) for (before, after, _), numbers in groups.items())


def _fold(before: str, after: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return f"{before}{numbers[0]}{after}"
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{before}[{spelled}]{after}" if numbers[0] else before
