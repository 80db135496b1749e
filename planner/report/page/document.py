"""The whole page of a report."""

from __future__ import annotations

from meshwright import __version__
from meshwright.planner.report.facts.memory import fullest
from meshwright.planner.report.facts.report import Report
from meshwright.planner.report.page.assets import SCRIPT, STYLE
from meshwright.planner.report.page.first import first
from meshwright.planner.report.page.links import links
from meshwright.planner.report.page.markup import Markup, join, tag
from meshwright.planner.report.page.memory import memory
from meshwright.planner.report.page.placements import placements
from meshwright.planner.report.page.rivals import rivals
from meshwright.planner.report.page.timeline import timeline
from meshwright.planner.report.page.tradeoff import tradeoff

GENERATOR = "meshwright report"
"""By which a page that was written here is known again."""

SECTIONS = (
    ("plan", "The plan in short"), ("time", "The step in time"), ("memory", "Memory"), ("links", "Links"),
    ("operators", "Operators"), ("tradeoff", "Time and memory"), ("rivals", "Other plans"),
)  # fmt: skip


def document(report: Report) -> str:
    """The HTML file of a report."""
    title = f"Plan of {report.summary.model}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("a", "to the plan", href="#main", class_="skip"),
        _nav(),
        tag(
            "main",
            first(report.summary, report.memory),
            timeline(report.timeline),
            memory(report.memory),
            links(report.traffic),
            placements(report.placements),
            tradeoff(report.priced, fullest(report.memory).capacity_bytes),
            rivals(report.baselines, report.alternatives),
            id="main",
        ),
        tag(
            "footer",
            tag("p", f"Written by meshwright {__version__}; every time and byte is predicted.", class_="quiet"),
        ),
        tag("script", Markup(SCRIPT)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _nav() -> Markup:
    entries = (tag("li", tag("a", title, href=f"#{name}")) for name, title in SECTIONS)
    return tag("nav", tag("ul", join(entries)), aria_label="sections")
