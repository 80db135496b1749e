"""The registry draws by seed, goes on where it stopped, and calls what became of a cell by its name; and a sample of it
inspects and is exact on two copies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.mutation.forking import Ended
from benchmarks.registry import asking, command, hugging_face, running
from benchmarks.registry.asking import ask
from benchmarks.registry.cells import CELLS, TWINS
from benchmarks.registry.command import WORKING_TREE, _parser, chosen, drawn_by, read
from benchmarks.registry.entries import MODELS, WRITTEN, Entry, drawn, entries
from benchmarks.registry.lawful import LAWFUL
from benchmarks.registry.page import bars, counted, kind_of, kinds, page
from benchmarks.registry.rows import Row, of_error, of_exit, untold
from benchmarks.registry.sample import RECORD, outcome_of, recorded, sample
from meshwright.backends.torch_.verify import emitted
from meshwright.ir.errors import RanksFailed, catalogue

# What there is -------------------------------------------------------------------------------------------------------


def test_there_are_two_hundred_architectures_and_every_file_has_its_factory() -> None:
    known = entries()
    assert sum(name.startswith("hf:") for name in known) >= 200
    assert len({entry.slug for entry in known.values()}) == len(known)
    for _, reference in WRITTEN.values():
        file, _, factory = reference.partition(":")
        assert f"def {factory}(" in (MODELS / file).read_text()


def test_every_model_file_is_in_the_registry() -> None:
    assert {path.name for path in MODELS.glob("*.py")} == {ref.partition(":")[0] for _, ref in WRITTEN.values()}


def test_an_architecture_is_there_once_by_its_first_head() -> None:
    found = hugging_face.names()
    assert found["llama"] == "causal language model"
    assert found["t5"] == "translation"
    assert found["vit"] == "image classification"


def test_a_draw_follows_from_its_seed_and_begins_with_a_smaller_one() -> None:
    names = [f"m{number}" for number in range(50)]
    assert drawn(names, 12, 3) == drawn(names[::-1], 30, 3)[:12]
    assert drawn(names, 12, 3) != drawn(names, 12, 4)
    assert len(set(drawn(names, 50, 3))) == 50


def test_that_nothing_fits_is_lawful_of_whole_models_alone() -> None:
    """A twin that does not fit is no small one."""
    rows = [Row(model="m", cell=cell, outcome="refused", code="exit 3") for cell in ("plan", "dp", "free")]
    assert [kind_of(row) for row in rows] == ["lawful", "refused", "refused"]


def test_a_draw_may_be_among_the_models_of_one_package() -> None:
    known: Any = dict.fromkeys(("tv:a", "hf:a", "tv:b", "hf:b", "nanogpt"))
    args = _parser().parse_args(["--draw", "9", "--of", "tv:"])
    assert sorted(chosen(args, known)) == ["tv:a", "tv:b"]
    assert drawn_by(args) == "--draw 9 --seed 0 --of tv:"
    assert chosen(_parser().parse_args(["--all", "--of", "hf:"]), known) == ["hf:a", "hf:b"]


def test_every_lawful_code_is_an_error_that_exists() -> None:
    known = {kind.code for kind in catalogue()}
    assert [code for code in LAWFUL if code != "exit 3" and code not in known] == []
    assert all(sentence.endswith(".") for sentence in LAWFUL.values())


# What became of a cell -----------------------------------------------------------------------------------------------

REFUSED = "loading model.py\nerror MW4075 at plan, cp=2: there is no sequence\n  fix: ask for cp=1\n"
INTERNAL = "Traceback (most recent call last):\n  File x\nKeyError: 'dim12'\nerror MW9002 at plan: KeyError: 'dim12'\n"
DIED = (
    "error MW9004 at /a/train.py: rank 1 ended with 1; the others were ended\n  fix: correct what it died of; what was "
    "printed last:\nTraceback\nRuntimeError: mixed torch.Tensor and DTensor"
)
FULL = f"{DIED.partition('RuntimeError')[0]}RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"
LATE = "error MW9004 at /a/train.py: ranks 0, 1 were still running after 90 s, and were ended\n  fix: …"


@pytest.mark.parametrize(
    ("code", "said", "outcome", "named", "line"),
    [
        (0, "", "exact", "", ""),
        (4, "the gap is 3 %", "exact", "", ""),
        (2, REFUSED, "refused", "MW4075", "plan, cp=2: there is no sequence"),
        (3, "nothing fits", "refused", "exit 3", "nothing fits"),
        (1, INTERNAL, "failed", "MW9002", "KeyError: 'dim12'"),
        (8, DIED, "failed", "MW9004", "RuntimeError: mixed torch.Tensor and DTensor"),
        (8, f"{DIED}:\n  at x\n", "failed", "MW9004", "RuntimeError: mixed torch.Tensor and DTensor: at x"),
        (8, LATE, "no time", "MW9004", "/a/train.py: ranks 0, 1 were still running after 90 s, and were ended"),
        (8, FULL, "no memory", "MW9004", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"),
        (7, "2 ranks: DIFFERENT\nthe loss", "differs", "", "2 ranks: DIFFERENT"),
        (130, "", "no time", "", ""),
        (70, "Segmentation fault", "failed", "exit 70", "Segmentation fault"),
    ],
)
def test_an_exit_code_and_what_was_said_are_an_outcome(
    code: int, said: str, outcome: str, named: str, line: str
) -> None:
    row = of_exit("a", "tp", "plan", code, said)
    assert (row.outcome, row.code, row.said) == (outcome, named, line)


def test_an_exception_is_a_failure_of_its_class() -> None:
    row = of_error("a", "tp", "emit", IndexError("list index out of range"), "…\nTraceback\nIndexError: list …")
    assert (row.outcome, row.code, row.said) == ("failed", "IndexError", "IndexError: list index out of range")
    assert row.detail.endswith("IndexError: list …")
    died = of_error("a", "tp", "run", RanksFailed(place="train.py", cause="rank 0 ended with 1", fix="…"), "")
    assert (died.outcome, died.code) == ("failed", "MW9004")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("", "differs"),
        ("rank 2 ended with 1; the others were ended", "differs"),
        ("rank 12 ended with -9; the others were ended", "no memory"),
        ("ranks 0, 1 were still running after 90 s, and were ended", "no time"),
    ],
)
def test_what_is_off_and_was_not_run_in_fp64_is_neither_rounding_nor_a_fault(said: str, outcome: str) -> None:
    assert untold(said) == outcome


def test_a_refusal_has_a_code_and_an_outcome_is_one_of_the_list() -> None:
    with pytest.raises(ValueError, match="no code"):
        Row(model="a", cell="tp", outcome="refused")
    with pytest.raises(ValueError, match="no outcome"):
        Row(model="a", cell="tp", outcome="good")


# Processes -----------------------------------------------------------------------------------------------------------

GOOD, KILLED = (
    Ended(code=0, stopped=None, out_of_time=False, cpu_s=1.0),
    Ended(code=None, stopped=9, out_of_time=True, cpu_s=61.0),
)
DEAD = Ended(code=None, stopped=11, out_of_time=False, cpu_s=2.0)


def _piece(folder: Path, notes: Sequence[object], cells: tuple[str, ...] = ("dp", "tp", "pp")) -> running.Piece:
    (folder / running.NOTES).write_text("".join(json.dumps(one) + "\n" for one in notes))
    return running.Piece(Entry(name="a", family="plain torch", write=lambda _: ""), cells, folder)


def _outcomes(rows: Sequence[Row]) -> dict[str, str]:
    return {row.cell: f"{row.outcome} {row.code}".strip() for row in rows}


def test_the_cell_that_was_begun_last_is_the_one_that_a_process_died_of(tmp_path: Path) -> None:
    done = {"row": Row(model="a", cell="dp", outcome="exact").to_json()}
    notes = [{"step": "plan", "cells": ["dp"]}, done, {"step": "plan", "cells": ["tp"]}]
    rows, left = running.found_by(_piece(tmp_path, notes), DEAD)
    assert _outcomes(rows) == {"dp": "exact", "tp": "failed stopped by signal 11"}
    assert left is not None
    assert left.cells == ("pp",)
    rows, _ = running.found_by(_piece(tmp_path, notes), KILLED)
    assert _outcomes(rows) == {"dp": "exact", "tp": "no time"}


def test_scripts_that_died_together_are_run_one_by_one(tmp_path: Path) -> None:
    rows, left = running.found_by(_piece(tmp_path, [{"step": "run", "cells": ["dp", "tp", "pp"]}]), KILLED)
    assert rows == []
    assert left is not None
    assert (left.cells, left.together) == (("dp", "tp", "pp"), False)


def test_without_a_twin_no_cell_is_asked_again(tmp_path: Path) -> None:
    rows, left = running.found_by(_piece(tmp_path, [{"step": "twin", "cells": ["dp", "tp", "pp"]}]), KILLED)
    assert _outcomes(rows) == dict.fromkeys(("dp", "tp", "pp"), "no time")
    assert left is None


def test_a_process_that_found_all_leaves_nothing(tmp_path: Path) -> None:
    row = {"row": Row(model="a", cell="dp", outcome="exact").to_json()}
    assert running.found_by(_piece(tmp_path, [row], ("dp",)), GOOD)[1] is None


def test_a_script_may_run_as_long_as_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts of one launch have the time of all of them."""
    limits: list[float] = []

    def verified(jobs: Sequence[Any], *, steps: int, limit_s: float) -> list[Any]:
        limits.append(limit_s)
        return [SimpleNamespace(exact=True, failed_in_fp64="", differences=()) for _ in jobs]

    monkeypatch.setattr(emitted, "verify", verified)
    monkeypatch.setattr(emitted.Job, "of", lambda subject, script: script)
    asked = asking.Asked(Entry(name="a", family="f", write=str), tmp_path, limit_s=7.0)
    nothing: Any = None
    made = [asking.Made(asked=asked, name=name, subject=nothing, script=tmp_path, cpu_s=0.0) for name in ("dp", "tp")]
    assert [row.outcome for row in asking.compared(made)] == ["exact", "exact"]
    assert limits == [14.0]


# The command ---------------------------------------------------------------------------------------------------------


def test_what_is_on_record_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, list[str]]] = []

    def answer(cells: dict[str, list[str]], known: object, work: Path, **how: float) -> Iterator[Row]:
        asked.append({model: list(names) for model, names in cells.items()})
        for model, names in cells.items():
            for name in names[:1]:  # and is stopped
                yield Row(model=model, cell=name, outcome="exact", cpu_s=1.0)

    monkeypatch.setattr(command, "run_cells", answer)
    given = ["--only", "nanogpt", "--cells", "dp", "tp", "--done", str(tmp_path / "done.jsonl")]
    assert command.run(given) == 0
    with (tmp_path / "done.jsonl").open("a") as file:
        file.write('{"model": "cut sho')
    assert [row.cell for row in read(tmp_path / "done.jsonl")] == ["dp"]
    assert command.run([*given, "--json", "--table", str(tmp_path / "page.md")]) == 0
    assert asked == [{"nanogpt": ["dp", "tp"]}, {"nanogpt": ["tp"]}]
    told = json.loads(capsys.readouterr().out.partition("{")[2].join(("{", "")))
    assert told["cells"] == {"dp": {"exact": 1}, "tp": {"exact": 1}}
    assert f"| {WORKING_TREE} | 1 |" in (tmp_path / "page.md").read_text()


def test_a_model_that_does_not_exist_is_named() -> None:
    with pytest.raises(SystemExit, match="no such model: gpt9"):
        command.run(["--only", "gpt9"])


# The page ------------------------------------------------------------------------------------------------------------


def _rows() -> list[Row]:
    one = [Row(model=f"m{at}", cell="dp", outcome="exact", cpu_s=2.0, date="2026-11-24") for at in range(8)]
    return [
        *one,
        Row(model="m8", cell="dp", outcome="refused", code="MW4076", step="plan", said="batch 3", date="2026-11-25"),
        Row(model="m9", cell="dp", outcome="refused", code="MW5009", step="emit", said="%opaque_2: no"),
        Row(model="m8", cell="tp", outcome="failed", code="MW9004", step="run", said="RuntimeError: 3 mixed"),
        Row(model="m9", cell="tp", outcome="failed", code="MW9004", step="run", said="RuntimeError: 4 mixed"),
        Row(model="m0", cell="inspect", outcome="exact", cpu_s=12.0),
        Row(model="m7", cell="tp", outcome="none"),
    ]


def test_counts_bars_and_kinds_are_those_of_the_rows() -> None:
    assert {name: dict(found) for name, found in counted(_rows()).items()} == {
        "inspect": {"exact": 1},
        "dp": {"exact": 8, "lawful": 1, "refused": 1},
        "tp": {"failed": 2},
    }
    assert {bar.says: (bar.measured, bar.holds) for bar in bars(_rows())} == {
        "exact or lawfully refused ≥ 95%": ("9 of 12 (75%)", False),
        "dp exact, where no law forbids it ≥ 90%": ("8 of 9 (89%)", False),
        "tp exact, where no law forbids it ≥ 80%": ("0 of 2 (0%)", False),
        "no crashes": ("2", False),
        "no runs that differ": ("0", True),
        "no plans that emission refuses": ("1", False),
        "inspect in 10 CPU-s": ("0 of 1, at most 12.0", False),
    }
    assert [(one[0], one[1], one[3], one[4]) for one in kinds(_rows())] == [
        (2, "failed", "MW9004", "RuntimeError: … mixed"),
        (1, "refused", "MW5009", "… no"),
    ]


def test_the_page_has_versions_dates_counts_and_bars() -> None:
    text = page(_rows(), "--draw 12 --seed 3")
    assert "`python -m benchmarks.registry --draw 12 --seed 3 --done" in text
    assert "2026-11-24 to 2026-11-25" in text
    assert "| dp | two copies | 8 | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| MW4076 | 1 | The batch is not divided by the copies and micro-batches. |" in text
    assert "| MW5009 | 1 | no |" in text


def test_what_is_open_is_asked_again_and_the_last_answer_is_kept_beside_those_of_other_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done.jsonl"
    there = [
        Row(model="tv:a", cell="dp", outcome="exact", versions="torch 2.14.1", at="1234567", date="2026-11-27"),
        Row(model="nanogpt", cell="dp", outcome="failed", at="1234567"),
        Row(model="nanogpt", cell="tp", outcome="exact", at="1234567"),
        Row(model="nanogpt", cell="plan", outcome="exact", cpu_s=99.0, at="1234567"),
    ]
    command.keep(done, there)
    asked: list[dict[str, list[str]]] = []

    def answer(cells: dict[str, list[str]], *_: object, **how: float) -> Iterator[Row]:
        asked.append(cells)
        yield Row(model="nanogpt", cell="dp", outcome="exact")

    monkeypatch.setattr(command, "run_cells", answer)
    given = ["--only", "nanogpt", "--cells", "dp", "tp", "plan", "--done", str(done), "--again", "--as", "89abcde"]
    command.run([*given, "--table", str(tmp_path / "page.md")])
    assert asked == [{"nanogpt": ["dp", "plan"]}]
    assert {(row.model, row.cell): row.at for row in read(done)} == {
        ("nanogpt", "plan"): "1234567",
        ("nanogpt", "dp"): "89abcde",
        ("nanogpt", "tp"): "1234567",
        ("tv:a", "dp"): "1234567",
    }
    told = (tmp_path / "page.md").read_text()
    assert "| torch 2.14.1 | 1234567 | 1 | 2026-11-27 |" in told
    assert "| dp | two copies | 2 |" in told


def test_every_cell_of_a_twin_is_asked_with_words_of_the_command_line() -> None:
    from meshwright.planner.cli.main import build_parser

    parser = build_parser()
    for cell in TWINS.values():
        assert parser.parse_args(["plan", "model.py:build", *cell.words]).cluster.startswith("cpu:")
    assert set(TWINS) < set(CELLS)


def test_a_size_whose_own_code_does_not_run_in_bf16_is_asked_in_fp32_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(argv: Sequence[str]) -> tuple[int, str]:
        if argv[-1] == "fp32" and "better" in argv:
            return 0, ""
        return 2, "error MW1011 at model.py: expected bf16\n  fix: cast\n" if "better" in argv else REFUSED

    monkeypatch.setattr(asking, "ask", answer)
    asked = asking.Asked(Entry(name="m", family="f", write=str), tmp_path)
    row = asked.published("inspect", "load", ["inspect", "better"])
    assert (row.outcome, row.detail) == ("exact", "in fp32, since in bf16: model.py: expected bf16")
    assert asked.published("inspect", "load", ["inspect", "other"]).code == "MW4075"


def test_what_a_model_takes_is_found_where_its_code_names_no_device(tmp_path: Path) -> None:
    reference = hugging_face.write("imagegpt", tmp_path)
    assert reference.endswith("model.py:build")
    assert '"input_ids": torch.randint(0, 256, (batch, seq))' in (tmp_path / "model.py").read_text()


def test_what_does_not_run_on_tokens_alone_has_a_batch_of_its_own(tmp_path: Path) -> None:
    """Its configuration would be a model whose own code raises."""
    assert hugging_face.write("longt5", tmp_path).endswith("model.py:build")
    assert [one.name for one in tmp_path.iterdir()] == ["model.py"]
    assert '"attention_mask": torch.ones(batch, seq, dtype=torch.long)' in (tmp_path / "model.py").read_text()


# A sample ------------------------------------------------------------------------------------------------------------

SAMPLE, SEED = 12, 0


def test_a_sample_inspects_and_is_on_two_copies_what_is_on_record() -> None:
    """Or exact, where the record has a refusal: what is mended needs no new record to pass."""
    found = sample(SAMPLE, SEED)
    assert len(found) == SAMPLE
    assert {model: outcome_of(rows[0]) for model, rows in found.items()} == dict.fromkeys(found, "exact")
    worse = {
        model: f"{outcome_of(rows[1])}, on record {recorded()[model].outcome}: {rows[1].said}"
        for model, rows in found.items()
        if outcome_of(rows[1]) not in ("exact", recorded()[model].outcome)
    }
    assert worse == {}


def test_a_twin_of_a_file_is_written_anywhere(tmp_path: Path) -> None:
    """Its model is found from wherever it lies."""
    reference = recorded()["nanogpt"].written(tmp_path / "deep" / "down")
    code, said = ask(["inspect", reference, "--seq", "16", "--json"])
    assert code == 0, said


def test_no_record_names_a_place_of_a_machine() -> None:
    assert "/tmp" not in RECORD.read_text()
    assert "/work" not in RECORD.read_text()
