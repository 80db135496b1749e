"""The completion script of zsh: `_arguments` for every verb."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.quoting import word
from meshwright.planner.cli.completion.grammar import Clusters, Files, Grammar, Pins, Place, Value, Words
from meshwright.planner.cli.declared import Option

HEAD = r"""#compdef plan
# Completion of `plan` for zsh, written by `plan completion zsh`. As a file _plan in $fpath; or, after compinit:
#   source <(plan completion zsh)

_plan_cluster() {
    if [[ $PREFIX == [0-9]##x[0-9]##x* ]]; then
        compset -P '[0-9]##x[0-9]##x'
        compadd -- "$@"
    else
        _files
    fi
}

_plan_pins() {
    compset -P '*,'
    if compset -P '*='; then
        local name=${${IPREFIX##*,}%=}
        case $name in
@PINS@
        esac
    else
        compadd -S = -- "$@"
    fi
}
"""
TAIL = """
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _plan "$@"
else
    compdef _plan plan
fi
"""


def script(grammar: Grammar) -> str:
    """The script."""
    named = grammar.named.items()
    cases = "\n".join(f"            {name}) compadd -- {' '.join(words)} ;;" for name, words in named)
    lines = [HEAD.replace("@PINS@", cases), "_plan() {", "    setopt localoptions extendedglob", "    local -a verbs"]
    lines += ["    verbs=(", *_described((place.path[0], place.told) for place in grammar.verbs), "    )"]
    lines += [
        "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then",
        "        _describe verb verbs",
        "        _files",
        "        return",
        "    fi",
        "    case $words[2] in",
        f"        {'|'.join(place.path[0] for place in grammar.verbs)}) shift words; (( CURRENT-- )) ;;",
        f"        *) words=({grammar.verbs[0].path[0]} $words[2,-1]) ;;",
        "    esac",
        "    case $words[1] in",
    ]
    for place in grammar.verbs:
        lines.append(f"        {place.path[0]})")
        lines += _actions(place, grammar) if place.actions else _arguments(place, " " * 12)
        lines.append("            ;;")
    return "\n".join([*lines, "    esac", "}", TAIL])


def _actions(verb: Place, grammar: Grammar) -> Iterator[str]:
    """The actions of a verb, and what each takes."""
    yield "            local -a actions"
    yield "            actions=("
    yield from (f"        {line}" for line in _described(verb.actions))
    yield "            )"
    yield "            if (( CURRENT == 2 )); then"
    yield "                _describe action actions"
    yield "                return"
    yield "            fi"
    yield "            shift words; (( CURRENT-- ))"
    yield "            case $words[1] in"
    for place in grammar.places:
        if len(place.path) > 1 and place.path[0] == verb.path[0]:
            yield f"                {place.path[1]})"
            yield from _arguments(place, " " * 20)
            yield "                    ;;"
    yield "            esac"


def _described(entries: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, told in entries:
        yield f"        {word(f'{name}:{_plain(told)}')}"


def _arguments(place: Place, margin: str) -> Iterator[str]:
    specs = [spec for option, value in place.options for spec in _option(option, value)]
    specs += [_positional(option, value) for option, value in place.positionals]
    yield f"{margin}_arguments -s -S \\"
    yield from (f"{margin}    {word(spec)} \\" for spec in specs[:-1])
    yield f"{margin}    {word(specs[-1])}"


def _option(option: Option, value: Value | None) -> Iterator[str]:
    again = "*" if option.repeated else ""
    told = _plain(option.told).replace("[", r"\[").replace("]", r"\]")
    for name in option.names:
        ends = "=" if value is not None else ""
        takes = f":{_plain(option.metavar) or option.dest}:{_action(value)}" if value is not None else ""
        yield f"{again}{name}{ends}[{told}]{takes}"


def _positional(option: Option, value: Value) -> str:
    return f"{'*' if option.repeated else ''}:{option.metavar or option.dest}:{_action(value)}"


def _action(value: Value) -> str:
    match value:
        case Words(words):
            return f"({' '.join(words)})"
        case Files(folders_only):
            return "_files -/" if folders_only else "_files"
        case Clusters(gpus):
            return f"_plan_cluster {' '.join(gpus)}"
        case Pins(words):
            return f"_plan_pins {' '.join(words)}"
        case _:
            return " "


def _plain(text: str) -> str:
    """A text in which nothing is a mark of `_arguments`."""
    return " ".join(text.split()).replace(":", r"\:")
