"""Settings of other frameworks as a person reads of them: what was written of a plan, and a file beside a plan."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cost_models.prediction import Prediction
from meshwright.planner.answer.exchanged.beside import Beside
from meshwright.planner.answer.exchanged.said import Exchanged
from meshwright.planner.cli.views.tables import Page, Table, Way, text
from meshwright.planner.exchange.run import worded
from meshwright.planner.exchange.target import REASONS, Lost
from meshwright.planner.plan.types import Plan
from meshwright.planner.plan.units import percent, seconds
from meshwright.planner.plan.words import more, short


def show_exchanged(found: Exchanged, written: Sequence[str]) -> None:
    """Print what was written, what the target cannot say, and both prices, to standard output."""
    page = Page()
    called = found.target.called
    page.say(_price(found.planned), label="as planned  ")
    page.say(f"{_price(found.prediction)}, as {called} can say it", label="as written  ")
    if found.lost:
        page.blank()
        page.table(_lost(found.lost, called))
    if found.elsewhere:
        page.blank()
        for name, value in found.elsewhere.items():
            page.say(f"to be said in your script: {name} = {worded(value)}")
    page.blank()
    for path in written:
        page.say(f"written: {path}")
    if found.target.how:
        page.say(found.target.how)
    page.print()


def show_beside(found: Beside, plan: Plan) -> None:
    """Print a file's price beside a plan's to standard output."""
    page = Page()
    target, settings = found.taken.settings.target, found.settings
    page.blank()
    page.say(f"beside {settings.name}, as {target.called} takes it", "bold")
    page.say(f"{_price(found.prediction)}: {short(found.config)}", label="settings    ")
    page.say(_verdict(found, plan), "bold", label="the plan    ")
    if settings.lost and settings.slower != 1:
        page.say(settings.lost, label="            ")
    if found.said is None:
        page.say(f"{target.called} cannot say the plan: {found.why_not}", label="as settings ")
    else:
        own = found.said
        beside = 1 - own.prediction.step_time_s / found.prediction.step_time_s
        how = f"{percent(abs(beside))} {'faster' if beside > 0 else 'slower'} than the file" if beside else "as fast"
        page.say(f"{_price(own.prediction)}, {how}: {short(own.config)}", label="as settings ")
        for one in own.lost:
            page.say(f"without {one.name} {one.was} ({REASONS[one.reason]})", label="            ")
    for note in found.taken.settings.notes():
        page.say(f"note: {note}")
    page.print()


def _verdict(found: Beside, plan: Plan) -> str:
    """How much faster the plan is, and whether that is more than a prediction is sure of."""
    step_s, theirs_s = plan.prediction.step_time_s, found.prediction.step_time_s
    if step_s == theirs_s:
        return "takes as long"
    if step_s > theirs_s:
        return f"takes {percent(step_s / theirs_s - 1)} longer than the settings"
    where = "inside" if found.inside else "beyond"
    theirs = f"the settings take {more(found.settings.slower)}, {where} its interval"
    return f"takes {percent(1 - step_s / theirs_s)} less; {theirs}"


def _price(prediction: Prediction) -> str:
    low, high = seconds(prediction.step_time_low_s), seconds(prediction.step_time_high_s)
    fits = "" if prediction.fits else ", and does not fit"
    return f"{seconds(prediction.step_time_s)} ({low} to {high}) a step{fits}"


def _lost(lost: Sequence[Lost], called: str) -> Table:
    table = Table(
        f"what {called} cannot say",
        (text("of", 3), text("planned", 4, least=10), text("written", 4, least=10), text("why", 1, Way.BELOW)),
    )
    for one in lost:
        table.add(one.name, one.was, one.becomes, f"{REASONS[one.reason]}: {one.why}")
    return table
