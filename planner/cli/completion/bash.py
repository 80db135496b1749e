"""The completion script of bash (4 and later, and the 3.2 of macOS).

Bash cuts words at `=` and `:`, so a value of `--fix tp=2,zero=` arrives in pieces; `_plan_pins` puts it together.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.quoting import word
from meshwright.planner.cli.completion.grammar import Anything, Clusters, Files, Grammar, Pins, Place, Value, Words

HEAD = r"""# Completion of `plan` for bash, written by `plan completion bash`. In ~/.bashrc:
#   source <(plan completion bash)

_plan_words() {
    local IFS=$' \t\n'
    COMPREPLY=( $(compgen -W "$1" -- "$cur") )
}

_plan_files() {
    local IFS=$'\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=( $(compgen "$1" -- "$cur") )
}

_plan_cluster() {
    if [[ $cur =~ ^([0-9]+x[0-9]+x)([^,]*)$ ]]; then
        local head=${BASH_REMATCH[1]} tail=${BASH_REMATCH[2]}
        COMPREPLY=( $(compgen -P "$head" -W "$1" -- "$tail") )
    else
        _plan_files -f
    fi
}

_plan_pins() {
    local name=$2 head= tail=$cur
    if [[ $cur == *,* ]]; then
        head=${cur%,*}, tail=${cur##*,} name=
    fi
    if [[ -n $name ]]; then
        COMPREPLY=( $(compgen -P "$head" -W "$(_plan_pin_words "$name")" -- "$tail") )
    else
        compopt -o nospace 2>/dev/null
        COMPREPLY=( $(compgen -P "$head" -S = -W "$1" -- "$tail") )
    fi
}
"""
MAIN = r"""
_plan() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place=@DEFAULT@ pin=
    COMPREPLY=()
    if [[ $cur == = ]]; then
        pin=$prev cur=
    elif [[ $prev == = ]]; then
        pin=${COMP_WORDS[COMP_CWORD-2]}
    fi
    if [[ -n $pin ]]; then
        local at=$COMP_CWORD
        while (( at > 0 )) && [[ ${COMP_WORDS[at]} != --* ]]; do (( at-- )); done
        prev=${COMP_WORDS[at]} pin=${pin##*,}
        [[ $prev == $pin ]] && pin=
    fi
    if (( COMP_CWORD == 1 )) && [[ $cur != -* ]]; then
        _plan_files -f
        COMPREPLY+=( $(compgen -W "@VERBS@" -- "$cur") )
        return
    fi
    case ${COMP_WORDS[1]} in
        @PATTERN@) place=${COMP_WORDS[1]} ;;
    esac
    case "$place ${COMP_WORDS[2]}" in
        @ACTIONS@) (( COMP_CWORD > 2 )) && place="$place ${COMP_WORDS[2]}" ;;
    esac
"""
TAIL = """
complete -F _plan plan
"""


def script(grammar: Grammar) -> str:
    """The script."""
    verbs = [place.path[0] for place in grammar.verbs]
    actions = [" ".join(place.path) for place in grammar.places if len(place.path) > 1]
    filled = {
        "DEFAULT": verbs[0],
        "VERBS": " ".join(verbs),
        "PATTERN": "|".join(verbs),
        "ACTIONS": "|".join(f'"{action}"' for action in actions),
    }
    main = MAIN
    for name, text in filled.items():
        main = main.replace(f"@{name}@", text)
    lines = [HEAD + "\n".join(_pin_words(grammar)) + main + '    case "$place:$prev" in']
    lines += _values(grammar)
    lines += ["    esac", '    case "$place:$cur" in']
    for place in grammar.places:
        names = " ".join(name for option, _ in place.options for name in option.names)
        lines.append(f"        {word(' '.join(place.path))}:-*) _plan_words {word(names)} ;;")
    for place in grammar.places:
        lines.append(f"        {word(' '.join(place.path))}:*) {_positional(place)} ;;")
    return "\n".join([*lines, "    esac", "}", TAIL.lstrip("\n")])


def _pin_words(grammar: Grammar) -> Iterator[str]:
    yield "\n_plan_pin_words() {"
    yield "    case $1 in"
    for name, words in grammar.named.items():
        yield f"        {name}) echo {word(' '.join(words))} ;;"
    yield "    esac"
    yield "}\n"


def _values(grammar: Grammar) -> Iterator[str]:
    """What completes the values of options, those with the same together."""
    found: dict[str, list[str]] = {}
    for place in grammar.places:
        for option, value in place.options:
            if value is not None:
                where = [word(f"{' '.join(place.path)}:{name}") for name in option.names]
                found.setdefault(_action(value), []).extend(where)
    for action, places in found.items():
        yield f"        {'|'.join(places)}) {action}; return ;;"


def _positional(place: Place) -> str:
    """What completes a word that is no option; words of all positional arguments together."""
    if place.actions:
        return f"_plan_words {word(' '.join(name for name, _ in place.actions))}"
    values = [value for _, value in place.positionals]
    words = [one for value in values if isinstance(value, Words) for one in value.words]
    if words:
        return f"_plan_words {word(' '.join(words))}"
    return next((_action(value) for value in values), ":")


def _action(value: Value) -> str:
    match value:
        case Words(words):
            return f"_plan_words {word(' '.join(words))}"
        case Files(folders_only):
            return f"_plan_files {'-d' if folders_only else '-f'}"
        case Clusters(gpus):
            return f"_plan_cluster {word(' '.join(gpus))}"
        case Pins(words):
            return f'_plan_pins {word(" ".join(words))} "$pin"'
        case Anything():
            return ":"
