"""The completion script of fish: a line for every option of every verb."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.planner.cli.completion.grammar import Clusters, Files, Grammar, Pins, Place, Value, Words

HEAD = """# Completion of `plan` for fish, written by `plan completion fish`. In ~/.config/fish/config.fish:
#   plan completion fish | source

function __plan_at --description 'Whether the command line is at a verb, or at an action of one'
    set -l words (commandline -opc)
    set -l said @DEFAULT@
    if set -q words[2]; and contains -- $words[2] @VERBS@
        set said $words[2]
        if set -q words[3]; and contains -- "$said $words[3]" @ACTIONS@
            set said $said' '$words[3]
        end
    end
    test "$said" = "$argv[1]"
end

function __plan_first --description 'Whether nothing is said yet'
    test (count (commandline -opc)) -eq 1
end

function __plan_cluster --description 'HOSTSxGPUSxGPU, or files'
    set -l head (string match -r '^[0-9]+x[0-9]+x' -- (commandline -ct))
    if test -n "$head"
        string replace -r '^' $head -- $argv
    else
        __fish_complete_path (commandline -ct)
    end
end

function __plan_pins --description 'NAME=VALUE, with commas in between'
    set -l said (commandline -ct)
    set -l head (string match -r '^.*,' -- $said)
    set -l last (string replace -r '^.*,' '' -- $said)
    set -l name (string match -rg '^([^=]*)=' -- $last)
    switch "$name"
@PINS@
        case ''
            printf '%s=\\n' "$head"$argv
    end
end

complete -c plan -f
complete -c plan -n __plan_first -F
"""


def script(grammar: Grammar) -> str:
    """The script."""
    cases = [
        line
        for name, words in grammar.named.items()
        for line in (f"        case {name}", f"            printf '%s\\n' \"$head\"{name}={{{','.join(words)}}}")
    ]
    verbs = [place.path[0] for place in grammar.verbs]
    actions = [_quoted(" ".join(place.path)) for place in grammar.places if len(place.path) > 1]
    head = HEAD.replace("@DEFAULT@", verbs[0]).replace("@VERBS@", " ".join(verbs))
    lines = [head.replace("@ACTIONS@", " ".join(actions)).replace("@PINS@", "\n".join(cases))]
    lines += [f"complete -c plan -n __plan_first -a {one.path[0]} -d {_quoted(one.told)}" for one in grammar.verbs]
    for place in grammar.places:
        at = f"complete -c plan -n {_quoted('__plan_at ' + _quoted(' '.join(place.path)))}"
        lines += ["", *(f"{at} {rest}" for rest in _place(place))]
    return "\n".join(lines) + "\n"


def _place(place: Place) -> Iterator[str]:
    for option, value in place.options:
        names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        yield f"{names}{'' if value is None else _value(value, required=True)} -d {_quoted(option.told)}"
    for name, told in place.actions:
        yield f"-a {name} -d {_quoted(told)}"
    for option, value in place.positionals:
        if rest := _value(value, required=False):
            yield f"{rest.lstrip()} -d {_quoted(option.metavar or option.dest)}"


def _value(value: Value, *, required: bool) -> str:
    """What completes a value; `required`: of an option, which then takes one."""
    match value:
        case Words(words):
            return f"{' -x' if required else ''} -a {_quoted(' '.join(words))}"
        case Files(folders_only):
            if folders_only:
                return f"{' -x' if required else ''} -a '(__fish_complete_directories (commandline -ct))'"
            return " -r -F" if required else " -F"
        case Clusters(gpus):
            return f"{' -x' if required else ''} -a {_quoted('(__plan_cluster ' + ' '.join(gpus) + ')')}"
        case Pins(words):
            return f"{' -x' if required else ''} -a {_quoted('(__plan_pins ' + ' '.join(words) + ')')}"
        case _:
            return " -x" if required else ""


def _quoted(text: str) -> str:
    r"""A word of fish: in single quotes, where only \ and ' are marks."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
