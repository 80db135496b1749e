"""Slips of the command line are answered with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.planner.cli.declared import declared
from meshwright.planner.cli.main import VERBS, main


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_with_a_slip(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, f"{verb}x", "m.py:f")
    assert said.endswith(f"; did you mean {verb!r}?\n")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_option_with_a_slip(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what must be said; `plan cluster` has actions, whose options are theirs."""
    found = declared(verb.arguments)
    path, found = ([verb.name, "show"], found.actions["show"]) if found.actions else ([verb.name], found)
    needed = []
    for option in found.options:
        if option.required:
            needed += [*option.names[:1], option.choices[0] if option.choices else "x"]
    for option in found.options:
        for name in option.names:
            if name.startswith("--"):
                said = refused(capsys, *path, *needed, f"{name[:-2]}{name[-1]}{name[-2]}{name[-1]}=1")
                assert f"did you mean {name}?" in said, said


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("estimate m --cluster cpu:2 --dtype bf61", "'bf16'"),
        ("estimate m --cluster cpu:2 --dtype BF16", "'bf16'"),
        ("m --cluster cpu:2 --stack magatron", "'megatron'"),
        ("m --cluster cpu:2 --optimizer adam", "'adamw'"),
        ("m --cluster cpu:2 --recipe fdsp", "'fsdp'"),
        ("m --cluster cpu:2 --globl-batch 8", "--global-batch"),
        ("cluster shwo cpu:2", "'show'"),
        ("schema clustr", "'cluster'"),
        ("completion bsh", "'bash'"),
    ],
)
def test_words_with_a_slip(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *words.split()).endswith(f"did you mean {meant}?\n")


@pytest.mark.parametrize("words", ["m --cluster cpu:2 --banana", "m --cluster cpu:2 --dtype banana", "m more of it"])
def test_what_is_near_to_nothing_is_refused_all_the_same(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in refused(capsys, *words.split())


WORKLOAD = "--seq 8 --global-batch 8"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (f"m --cluster cpu:2 {WORKLOAD} --fix pt=2", "'tp'"),
        (f"m --cluster cpu:2 {WORKLOAD} --fix recompute=ful", "recompute=full"),
        (f"m --cluster cpu:2 {WORKLOAD} --allow schedule=1bf1", "schedule=1f1b"),
        (f"m --cluster cpu:2 {WORKLOAD} --forbid a.*:shardng=row", "'sharding'"),
        (f"m --cluster cpu:2 {WORKLOAD} --target torch-cdua", "'torch-cuda'"),
        (f"m --cluster cpu:2 {WORKLOAD} --objective tiem", "'time'"),
        ("inspect m --dump-after flod", "'fold'"),
        (f"estimate m --cluster cpu:2 {WORKLOAD} --dump-after lwoer", "'lower'"),
        (f"m --cluster cpu:2 {WORKLOAD} --dump-after serach", "'search'"),
        ("calibrate --target torch-glo", "'torch-gloo'"),
        ("cluster show 2x8xH100,inter=400G,nic=rocee", "'roce'"),
        ("cluster show 2x8xH100,itner=400G", "inter=…"),
        ("errors MW60077", "MW6007 DeviceUnknown"),
    ],
)
def test_refusals_say_what_was_meant(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) != 0
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(("gpu", "meant"), [("H10O", "H100-80G"), ("A10080G", "A100-80G"), ("mi300", "MI300X")])
def test_gpus_with_a_slip(gpu: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("cluster", "show", f"2x8x{gpu}"), ("gpus", gpu)):
        if main(words) != 0:
            assert f"fix: the nearest known ones are {meant}" in capsys.readouterr().err
        else:
            assert meant in capsys.readouterr().out


@pytest.mark.parametrize(("text", "option"), [("[workload]\n", "--config"), ("[[pool]]\n", "--cluster")])
def test_another_kind_of_file_is_no_model(
    text: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.toml"
    file.write_text(text)
    assert main(["inspect", str(file)]) == 6
    said = capsys.readouterr().err
    assert "error MW2004" in said
    assert f"fix: give it with {option} {file}" in said
