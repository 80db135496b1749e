"""The drawing of the first page: the step of a plan in time, as `plan report` draws it, as a file of its own.

python -m pages.picture PLAN FILE            draw the step of PLAN into FILE
python -m pages.picture PLAN FILE --check    exit with 1 if FILE holds another drawing
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from meshwright.planner.plan.file import load_plan
from meshwright.planner.plan.reload import reload
from meshwright.planner.report.facts.report import timeline
from meshwright.planner.report.facts.timeline import KINDS
from meshwright.planner.report.page.colours import DARK, LIGHT, variables
from meshwright.planner.report.page.colours import KINDS as COLOURS
from meshwright.planner.report.page.markup import Markup, drawing, label, tag
from meshwright.planner.report.page.timeline import NAMES, WIDTH
from meshwright.planner.report.page.timeline import timeline as drawn

ROOT = Path(__file__).resolve().parents[1]
ROW, SWATCH, CHARACTER = 24.0, 12.0, 6.6
STYLE = (
    f"svg{{{variables(LIGHT)}font:12px system-ui,sans-serif}}"
    f"@media (prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}"
    "text{fill:var(--text)}text.quiet{fill:var(--quiet)}text.on{fill:var(--on)}.grid{stroke:var(--rule);fill:none}"
    ".ground{fill:var(--page)}.edge{stroke:var(--page);stroke-width:.5}"
    + "".join(f".{colour}{{fill:var(--{colour})}}" for colour in dict.fromkeys(COLOURS.values()))
)


def picture(plan: Path) -> str:
    """The step of a plan, with what its colours mean below."""
    again = reload(load_plan(plan), None)
    step = timeline(again)
    found = re.search(r'<svg.*?viewBox="0 0 \S+ (\S+)".*?</desc>(.*)</svg>', drawn(step), re.DOTALL)
    if found is None:
        raise ValueError("the page has no drawing of the step")
    height = float(found[1])
    lanes = Markup(re.sub(r"<title>[^<]*</title>", "", found[2]))
    used = {part.kind for lane in step.lanes for one in lane.slices for part in one.parts}
    legend, x, y = list[Markup](), 10.0, height + 10
    for kind in KINDS:
        if kind in used:
            width = SWATCH + 30 + CHARACTER * len(NAMES[kind])
            if x + width > WIDTH:
                x, y = 10.0, y + ROW
            legend.append(tag("rect", x=x, y=y, width=SWATCH, height=SWATCH, class_=COLOURS[kind]))
            legend.append(label(x + SWATCH + 6, y + SWATCH - 2, NAMES[kind]))
            x += width
    bottom = y + ROW
    ground = tag("rect", width=WIDTH, height=bottom, class_="ground")
    title = f"The predicted step of {again.plan.model.ref} in time"
    told = "A lane for each group of ranks; a number is the micro-batch."
    made = drawing("step", title, told, WIDTH, bottom, tag("style", Markup(STYLE)), ground, lanes, *legend)
    return made.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) + "\n"


def main(argv: Sequence[str]) -> int:
    """Draw, or compare."""
    parser = ArgumentParser(prog="python -m pages.picture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("file", type=lambda path: ROOT / path, help="from the repository's root on")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    text = picture(args.plan)
    if args.check:
        if args.file.read_text(encoding="utf-8") == text:
            return 0
        print(f"{args.file} is not the step of {args.plan}: run `python -m pages.picture PLAN FILE`", file=sys.stderr)
        return 1
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
