"""docs/exchange_options.md: every option that is written and read, what a target cannot say, and what has no price.

`python -m meshwright.planner.exchange > docs/exchange_options.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from meshwright.planner.exchange.published import published
from meshwright.planner.exchange.target import REASONS, Target
from meshwright.planner.exchange.targets.every import TARGETS
from meshwright.planner.exchange.targets.megatron import NEGATED

HEAD = """# Options of other frameworks

What [`plan emit --to` and `plan estimate --from`](exchange.md) write and read, framework by framework. This page is
written by `python -m meshwright.planner.exchange`.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join((HEAD, *(line for target in TARGETS.values() for line in _section(target)))).rstrip() + "\n"


def _section(target: Target) -> Iterator[str]:
    known = published(target.name)
    version = "" if known.version == "main" else f" {known.version}"
    yield f"## {target.called}: `{target.name}`\n"
    yield f"Names of options from [{known.source.removeprefix('https://github.com/')}]({known.source}){version}, commit"
    yield f"{known.commit[:12]} of {known.date}: {', '.join(known.files)}.\n"
    if target.elsewhere:
        yield f"Its scripts say, and not its files: {', '.join(f'`{name}`' for name in target.elsewhere)}.\n"
    yield "| option | a value | without it |"
    yield "|---|---|---|"
    written = {on: off for off, on in NEGATED.items()}
    for option in target.options:
        default = not option.default if option.name in written else option.default
        yield f"| `{written.get(option.name, option.name)}` | {option.kind.said} | {_default(default)} |"
    if target.aliases:
        yield f"\nOther names of these: {', '.join(f'`{name}`' for name in target.aliases)}."
    yield "\nWhat it cannot say:\n"
    for limit in target.limits:
        yield f"- {limit.what}: {REASONS[limit.reason]}"
    refused = [f"`{one.name}`" for one in target.unpriced if one.refused]
    told = [f"`{one.name}`" for one in target.unpriced if not one.refused]
    yield f"\nRefused, as prices know nothing of them: {', '.join(refused)}."
    yield f"\nTold, for the same reason: {', '.join(told)}.\n"


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.stdout.write(page())
