"""Questions in files: what `plan init` writes is read, key by key, and the command line takes its place."""

from __future__ import annotations

import json
import re
import tomllib
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import ConfigError, MeshwrightError, QuestionKeyMissing
from meshwright.ir.files.documents import spelled
from meshwright.planner.cli.arguments.reference import init
from meshwright.planner.cli.declared import declared
from meshwright.planner.cli.main import CONFIG, VERBS, build_parser, main
from meshwright.planner.cli.questions.keys import HOME, KEYS, OF_ONE_RUN, OF_ONE_VERB
from meshwright.planner.cli.questions.reading import question, read, settled
from meshwright.planner.cli.questions.table import FORM, QuestionTable
from meshwright.planner.cli.questions.template import EXAMPLES, template
from meshwright.planner.cli.verbs.plans.plan import read_asked
from tests.mutations import mutated, refusal

ROOT = Path(__file__).parents[3]
FULL: dict[str, Any] = {
    "model": "net.py:build",
    "cluster": "2x8xH100",
    "profile": "published",
    "objective": "memory",
    "seed": 3,
    "global_batch": 64,
    "micro_batch": 2,
    "seq": 1024,
    "dtype": "fp16",
    "optimizer": "muon",
    "imbalance": 1.5,
    "target": "torch-cuda",
    "stack": "torch-compile",
    "style": "compiled",
    "recipe": "bf16",
    "fix": ["tp=2,pp=2", "blocks.*.mlp:sharding=column"],
    "allow": ["zero=1|2"],
    "forbid": ["cp", "vp=2"],
    "time_limit": 60.5,
    "operators": True,
    "max_gap": 0.02,
    "top": 3,
}
WORDS = {verb.name: declared(verb.arguments) for verb in VERBS}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Keys in their tables."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        (found.setdefault(HOME[key], {}) if HOME[key] else found)[key] = value
    return found


def asking(verb: str, *argv: str) -> Namespace:
    """The arguments of a verb, as `main` makes them."""
    said = build_parser(completed=True).parse_args([verb, *argv])
    return settled(said, next(one.arguments for one in VERBS if one.name == verb))


# Completeness --------------------------------------------------------------------------------------------------------


def test_every_option_is_a_key_or_of_one_run() -> None:
    """No option is forgotten: what `plan` and others understand is in the file, or says what becomes of the answer."""
    assert set(OF_ONE_VERB) == {
        name for name, verb in WORDS.items() if any(one.dest == "config" for one in verb.options)
    }
    for name, own in OF_ONE_VERB.items():
        options = {one.dest for one in WORDS[name].options}
        assert options <= set(HOME) | own | OF_ONE_RUN, name
        assert own <= options
    assert {one.dest for one in WORDS["plan"].options} == set(HOME) | OF_ONE_RUN
    assert {one.dest for one in WORDS["init"].options} == set(HOME) | {"out", "force", "help"}


def test_every_key_is_in_the_schema_and_in_the_template() -> None:
    tables = {"": QuestionTable} | {name: type(getattr(QuestionTable(), name)) for name in KEYS if name}
    for table, keys in KEYS.items():
        assert set(keys) == set(tables[table].model_fields) - set(KEYS)
    text = template({}, declared(init), "plan.toml")
    assert question(text, "plan.toml") == {}
    written = re.findall(r"^# (\w+) = ", text, re.MULTILINE)
    assert written == list(HOME)
    opened = question(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE), "plan.toml")
    assert set(opened) == set(HOME)
    assert {key: opened[key] for key in EXAMPLES} == EXAMPLES


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs" / "cli.md").read_text().split("| table | keys |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    told = {re.sub(r"\W", "", table): tuple(re.findall(r"`(\w+)`", keys)) for table, keys in rows}
    assert told == {name or "beforealltables": keys for name, keys in KEYS.items()}


# Written and read ----------------------------------------------------------------------------------------------------


def test_what_init_writes_is_what_plan_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same arguments by a file as by the command line, word for word; so the same question."""
    monkeypatch.chdir(tmp_path)
    words = spoken(FULL)
    assert main(["init", *words]) == 0
    told = build_parser().parse_args(["plan", *words])
    asked = asking("plan", CONFIG, "plan.toml")
    assert vars(asked) == vars(told) | {"config": "plan.toml"}
    written = tomllib.loads(Path("plan.toml").read_text())
    assert written == nested(FULL)
    (tmp_path / "sub").mkdir()
    assert main(["init", *words, "--out", "sub/q.toml"]) == 0
    assert read("sub/q.toml") == FULL | {"model": "sub/../net.py:build"}


def spoken(values: dict[str, Any]) -> list[str]:
    """Keys as the command line says them."""
    words = [values["model"]] if "model" in values else []
    for key, value in values.items():
        if key != "model":
            option = f"--{key.replace('_', '-')}"
            words += [option] if value is True else [part for one in _listed(value) for part in (option, str(one))]
    return words


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30).filter(lambda text: text[0] != "-")


@given(
    known=st.fixed_dictionaries(
        {},
        optional={
            "model": names,
            "seed": st.integers(-(2**63), 2**63 - 1),
            "seq": st.integers(1, 2**24),
            "imbalance": st.floats(1, 1e300),
            "operators": st.just(True),
            "fix": st.lists(st.sampled_from(["tp=2", "pp=4,vp=2", "a.*:sharding=row"]), min_size=1, unique=True),
            "time_limit": st.floats(0, 1e9),
        },
    ),
    name=names,
)
def test_any_question_is_read_as_it_is_written(known: dict[str, Any], name: str) -> None:
    text = template(known, declared(init), "plan.toml")
    assert question(text, name) == known


def test_the_command_line_takes_the_place_of_the_file(tmp_path: Path) -> None:
    """Key by key; a list as a whole; and what is so without a file stays so where neither says it."""
    file = tmp_path / "q.toml"
    file.write_text(
        'model = "a.py:f"\ncluster = "cpu:2"\nseed = 9\n[workload]\nseq = 64\n[constraints]\nfix = ["tp=2"]\n'
    )
    args = asking("plan", f"{CONFIG}={file}", "--seed", "0", "--fix", "pp=2", "--cluster", "cpu:4")
    assert (args.seed, args.fix, args.cluster, args.seq) == (0, ["pp=2"], "cpu:4", 64)
    assert (args.model, args.optimizer, args.top, args.allow) == (str(tmp_path / "a.py:f"), "adamw", 5, [])
    assert asking("plan", CONFIG, str(file), "b.py:g").model == "b.py:g"
    estimated = asking("estimate", CONFIG, str(file))
    assert (estimated.target, estimated.top, estimated.fix) == ("any", 20, ["tp=2"])
    seen = asking("inspect", CONFIG, str(file))
    assert (seen.seq, seen.seed, seen.dtype, seen.batch) == (64, 9, "bf16", 1)
    measured = asking("calibrate", CONFIG, str(file))
    assert (measured.model, measured.seq, measured.global_batch, measured.target) == (args.model, 64, 8, "torch-gloo")


def test_a_file_names_others_from_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    table = {"model": "net.py:f", "cluster": "site.toml", "profile": "mine.json"}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    (tmp_path / "sub" / "q.toml").write_text(text)
    (tmp_path / "q.toml").write_text(text)
    assert read("sub/q.toml") == {key: f"sub/{value}" for key, value in table.items()}
    assert read("q.toml") == table
    (tmp_path / "sub" / "q.toml").write_text('cluster = "2x8xH100"\nprofile = "published"\nmodel = "/m"\n')
    assert read("sub/q.toml") == {"cluster": "2x8xH100", "profile": "published", "model": "/m"}


def test_an_answer_by_a_file_is_that_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(ROOT / "examples" / "configs" / "gpt2")
    words = [model, "--cluster", "1x4xH100", "--global-batch", "8", "--seq", "128", "--fix", "dp=4"]
    assert main(["estimate", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["init", *words]) == 0
    capsys.readouterr()
    assert main(["estimate", CONFIG, "plan.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert main([CONFIG, "plan.toml", "--dump-after", "space"]) == 0
    assert "only dp=4" in capsys.readouterr().out
    ask, request = read_asked(asking("plan", CONFIG, "plan.toml"))
    assert (ask.model, ask.global_batch, request.constraints.only) == (model, 8, {"dp": (4,)})


# Refusals ------------------------------------------------------------------------------------------------------------


def read_document(document: dict[str, Any]) -> object:
    return FORM.read(document, "q.toml")


def test_every_key_is_held_to_its_schema() -> None:
    """Dropped is left out; whatever else a key may be is refused at its path, unless it is another legal value."""
    document = nested({key: value for key, value in FULL.items() if key not in ("style", "stack")})
    read_document(document)
    legal = {("seed", how) for how in ("zero", "negative", "huge")} | {("top", "huge"), ("operators", "true")}
    legal |= {(key, how) for key in ("time_limit", "max_gap") for how in ("zero", "fraction", "huge")}
    legal |= {("seed", "endless"), ("top", "endless")}  # as a document: a file has no such numbers
    legal |= {("imbalance", "huge"), ("model", "text"), ("cluster", "text"), ("profile", "text")}
    for path, how, changed in mutated(document):
        refused = refusal(partial(read_document, changed))
        key = str(path[-1])
        if refused is None:
            assert how in ("dropped", "null") or (key, how) in legal, (path, how)  # TOML has no null
        else:
            assert isinstance(refused, MeshwrightError)
            assert f"q.toml: {spelled(path)}" in refused.place, (path, how)
            assert (key, how) not in legal, (path, how)


@pytest.mark.parametrize(
    ("text", "code", "place", "fix"),
    [
        ("seq = 8", "MW2011", "q.toml:1: seq", "'seq' stands under [workload]"),
        ("[workload]\nmodel = 'm'", "MW2011", "q.toml:2: workload.model", "'model' stands before all tables"),
        ("sed = 8", "MW2011", "q.toml:1: sed", "did you mean 'seed'?"),
        ("optimiser = 'muon'", "MW2011", "q.toml:1: optimiser", "did you mean 'optimizer', under [workload]?"),
        ("[worklod]", "MW2011", "q.toml:1: worklod", "did you mean 'workload'?"),
        ("#\n[workload]\n\nglobal-batch = 8", "MW2011", "q.toml:4: workload.global-batch", "mean 'global_batch'?"),
        ("seed = 0\nobjective = 'tiem'", "MW2013", "q.toml:2: objective", "did you mean 'time'?"),
        ("[software]\ntarget = 'torch-cdua'", "MW2013", "q.toml:2: software.target", "did you mean 'torch-cuda'?"),
        ("[workload]\nseq = true", "MW2013", "q.toml:2: workload.seq", "give a whole number"),
        ("[workload]\nseq = 99999999999999999999", "MW2013", "q.toml:2: workload.seq", "give a smaller number"),
        ("[workload]\nseq = 99999999", "MW2013", "q.toml:2: workload.seq", "give at most 16,777,216"),
        ("[search]\nmax_gap = inf", "MW2013", "q.toml:2: search.max_gap", "give a finite number"),
        (
            "[constraints]\nfix = ['tp=2', 'zero=7']",
            "MW8005",
            "q.toml:2: constraints.fix[1]",
            "use 0 or 1 or 2 or 3",
        ),
        ("[workload]\nimbalance = 1e999", "MW2013", "q.toml:2: workload.imbalance", "give a finite number"),
        ("[constraints]\nallow = ['pp']", "MW8005", "q.toml:2: constraints.allow[0]", "write pp=A|B"),
        ("[constraints]\nforbid = ['a.*:shardng=row']", "MW8004", "q.toml:2: constraints.forbid[0]", "'sharding'?"),
        ("seed = 1\nseed = 2", "MW2010", "q.toml", "correct the line"),
    ],
)
def test_a_fault_is_told_with_its_line(text: str, code: str, place: str, fix: str) -> None:
    refused = refusal(lambda: question(text, "q.toml"))
    assert refused is not None
    assert (refused.code, refused.exit_code) == (code, 2 if code.startswith("MW8") else 6)
    assert refused.place.startswith(place)
    assert fix in refused.fix


def test_the_first_fault_is_told() -> None:
    refused = refusal(lambda: question("[workload]\nseq = 0\n[search]\ntop = 0\nglobal_batch = 1", "q.toml"))
    assert refused is not None
    assert refused.place == "q.toml:2: workload.seq"


def test_what_nobody_says_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    for text, fix in (("", "give MODEL"), ("model = 'm'", "give --cluster")):
        file.write_text(text)
        with pytest.raises(QuestionKeyMissing) as refused:
            asking("plan", CONFIG, str(file))
        assert fix in refused.value.fix
    assert isinstance(refusal(partial(read, str(tmp_path))), ConfigError)


def test_init_writes_over_nobodys_file_and_nothing_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--fix", "pt=2"]) == 2
    assert "error MW8004 at plan.toml:" in capsys.readouterr().err
    assert not Path("plan.toml").exists()
    assert main(["init"]) == 0
    assert "plan --config plan.toml" in capsys.readouterr().out
    kept = Path("plan.toml").read_text()
    assert main(["init", "m.py:f"]) == 8
    assert Path("plan.toml").read_text() == kept
    assert main(["init", "m.py:f", "--force"]) == 0
    assert read("plan.toml") == {"model": "m.py:f"}
    assert main(["init", "--out", "none/plan.toml"]) == 8
    assert main(["init", "--out", "a\nseed = 5\n.toml"]) == 0
    assert read("a\nseed = 5\n.toml") == {}


@pytest.mark.parametrize(
    "words", [["plan", CONFIG], ["explain", CONFIG, "q.toml"], ["plan", CONFIG, "q.toml", "--sq", "1"]]
)
def test_usage_errors_are_so_with_a_file_too(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


def test_help_is_shown_beside_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", CONFIG, "q.toml", "--help"])
    assert end.value.code == 0
    assert "(default: adamw)" in capsys.readouterr().out
