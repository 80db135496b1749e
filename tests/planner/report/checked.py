"""A page read as a browser's parser would, with what must hold of any page; and a report made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from meshwright.planner.question.pins import Config
from meshwright.planner.report.facts.memory import memory_of
from meshwright.planner.report.facts.placements import BodyUse, Stored, Use
from meshwright.planner.report.facts.priced import priced_of
from meshwright.planner.report.facts.report import Report
from meshwright.planner.report.facts.summary import summary_of
from meshwright.planner.report.facts.timeline import Lane, Part, Slice, Timeline
from meshwright.planner.report.facts.traffic import Flow, Pool, Seat, Traffic
from tests.planner.handmade import plan, prediction

VOID = {"meta", "br", "link", "img", "input", "hr", "col", "source", "base", "embed", "wbr"}


@dataclass
class Page(HTMLParser):
    """A document as a list of elements; every open element must be closed in its order."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    inside: list[tuple[str, ...]] = field(default_factory=list)
    """Of every element those that it is in."""
    words: list[tuple[str, str]] = field(default_factory=list)
    """Every text, with the element that it is in."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.feed(self.text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tuple(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.words.append((self.open[-1], data))

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def said(self, *tags: str) -> str:
        """The text of elements of some kinds, or all text that is shown."""
        hidden = ("style", "script")
        return " ".join(text for tag, text in self.words if (tag in tags if tags else tag not in hidden))


def check_page(text: str) -> Page:
    """Hold what a page must be; it, read."""
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "data-legend"):
            assert set((attributes.get(name) or "").split()) <= set(ids), attributes
        href = attributes.get("href")
        assert href is None or (href.startswith("#") and href[1:] in ids)
        assert not {"src", "srcset", "action", "data", "poster", "background"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    for asks in ("url(", "@import", "http:", "https:", "//", "fetch(", "XMLHttpRequest", "import("):
        assert asks not in text.replace("// ", ""), asks
    assert {tag for tag, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "embed", "base"})
    check_structure(page)
    return page


def check_structure(page: Page) -> None:
    """Headings in order, tables with headers and captions, drawings and regions with names, what is to be focused."""
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("main")) == 1
    assert page.inside[[tag for tag, _ in page.elements].index("title")] == ("html", "head")
    tables = len(page.all("table"))
    assert tables == len(page.all("caption")) == len(page.all("thead")) == len(page.all("tbody"))
    assert all(one.get("scope") in ("col", "row") for one in page.all("th"))
    for one in page.all("svg"):
        assert one["role"] == "img"
        assert one["aria-labelledby"]
        assert one["viewbox"]
    regions = [(one["aria-label"] or "").lower() for one in page.all("div") if one.get("role") == "region"]
    named = [*regions, *(text.lower() for tag, text in page.words if tag == "h2")]
    assert len(set(named)) == len(named)
    for tag, one in page.elements:
        if one.get("role") == "region":
            assert one["aria-label"]
            assert one["tabindex"] == "0"
        if tag == "section":
            assert one["aria-labelledby"]
        if tag == "button":
            assert one["type"] == "button"
    assert len(page.all("summary")) == len(page.all("details"))


def lane(group: int, microbatches: int, *, forward_s: float = 1.0, ranks: int = 8, end_s: float = 0.0) -> Lane:
    """A group that runs all forward passes, then all backward passes, and waits to the end."""
    slices = []
    at = float(group) * forward_s
    if at:
        slices.append(Slice(name="wait", start_s=0.0, end_s=at, parts=(Part("bubble", at, (("bubble", at),)),)))
    for kind, taken in (("F", forward_s), ("B", 2 * forward_s)):
        for number in range(microbatches):
            half = taken / 2
            done = "forward" if kind == "F" else "backward"
            parts = (Part(done, half, (("matmul", half),)), Part("communication", half, (("tensor", half),)))
            one = Slice(
                name=f"{group}{kind}{number}",
                start_s=at,
                end_s=at + taken,
                parts=parts,
                stage=group,
                microbatch=number,
            )
            slices.append(one)
            at += taken
    if end_s > at:
        left = end_s - at
        slices.append(Slice(name="wait", start_s=at, end_s=end_s, parts=(Part("bubble", left, (("bubble", left),)),)))
    members = tuple(range(group * ranks, (group + 1) * ranks))
    return Lane(group=group, ranks=members, stages=(group,), slices=tuple(slices))


def timeline(groups: int = 3, microbatches: int = 2, ranks: int = 8) -> Timeline:
    """A pipeline of groups that take a second forward and two back."""
    end_s = groups - 1 + 3.0 * microbatches
    lanes = tuple(lane(group, microbatches, ranks=ranks, end_s=end_s) for group in range(groups))
    return Timeline(
        step_s=end_s,
        schedule="gpipe",
        microbatches=microbatches,
        lanes=lanes,
        transfers=(),
        last=groups - 1,
        straggling_s=0.0,
        rolling=False,
    )


def report(**words: Any) -> Report:
    """A report on the plan made by hand."""
    seats = tuple(Seat(rank=rank, stages=(rank // 4,)) for rank in range(8))
    pool = Pool(
        name="a",
        device="H100",
        hosts=2,
        first=seats,
        last=seats,
        island="nvlink4",
        island_devices=8,
        island_bytes_per_s=4.5e11,
        network="infiniband",
        network_bytes_per_s=4e11,
    )
    flows = (
        Flow(tier="island", reason="value", axes=("tp",), ranks=8, nbytes=2.0**40),
        Flow(tier="rail", reason="sync", axes=("dp",), ranks=2, nbytes=2.0**30),
    )
    body = BodyUse(
        plans=("block",),
        module="Block",
        mesh="tp=2",
        calls=4,
        operators=9,
        uses=(Use(axis="tp", size=2, named="tp", what="cuts heads", operators=tuple(f"op{n}" for n in range(9))),),
        stored=(Stored(parameters="[tp, -]", gradients="[tp, -]", optimizer="[tp.dp, -]", paths=("w",)),),
        recomputed=1,
    )
    one = plan()
    usual: dict[str, Any] = {
        "summary": summary_of(one, one.prediction),
        "timeline": timeline(),
        "memory": memory_of(prediction(), (0, 1, 2)),
        "traffic": Traffic(flows=flows, pools=(pool,)),
        "placements": (body,),
        "priced": priced_of(one, one.prediction),
        "baselines": one.baselines,
        "alternatives": one.alternatives,
    }
    return Report(**usual | words)


def with_every_text(value: Any, text: str, but: tuple[str, ...] = ()) -> Any:
    """The same data, where every text is followed by another one; fields of some names, and pins, are left."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, tuple):
        return type(value)(with_every_text(one, text, but) for one in value)
    if is_dataclass(value) and not isinstance(value, (type, Config)):
        changed = {
            one.name: with_every_text(getattr(value, one.name), text, but)
            for one in fields(value)
            if one.init and one.name not in but
        }
        return replace(value, **changed)
    return value
