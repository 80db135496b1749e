"""`plan completion`: scripts that offer what the parsers understand, asked of the shells themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from meshwright.cost_models.hardware.devices import device_names
from meshwright.ir.errors import catalogue
from meshwright.planner.cli.arguments.reference import SHELLS
from meshwright.planner.cli.completion.grammar import Anything, Clusters, Files, Grammar, Pins, Words, grammar
from meshwright.planner.cli.main import VERBS, main
from meshwright.planner.cli.verbs.reference.completion import script
from meshwright.planner.question.pins import KNOBS

ASK = 'source "$1"; shift; COMP_CWORD=$(( $# - 1 )); COMP_WORDS=("$@"); _plan; printf "%s\\n" "${COMPREPLY[@]}"'


@cache
def found() -> Grammar:
    return grammar(tuple((verb.name, verb.help, verb.arguments) for verb in VERBS))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("shell") / "plan.bash"
    file.write_text(script("bash"))
    return file


def offered(written: Path, line: str, folder: Path | None = None) -> list[str]:
    """What bash offers at the end of a line, whose words it cuts at = and : as it does on a terminal."""
    words = re.findall(r"[=:]|[^\s=:]+", line) + ([""] if line.endswith(" ") else [])
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "_", str(written), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [one for one in done.stdout.splitlines() if one]


def test_every_verb_is_offered_and_every_option(written: Path, tmp_path: Path) -> None:
    names = [verb.name for verb in VERBS]
    assert sorted(offered(written, "plan ", tmp_path)) == sorted(names)
    assert offered(written, "plan est", tmp_path) == ["estimate"]
    for place in found().places:
        path = " ".join(place.path)
        options = [name for option, _ in place.options for name in option.names]
        assert offered(written, f"plan {path} -") == options, path
        assert "--help" in options
    assert {place.path for place in found().places if len(place.path) == 2} == {
        ("cluster", "show"),
        ("cluster", "detect"),
        ("cluster", "import"),
    }


def test_a_value_is_offered_by_its_option(written: Path) -> None:
    """Of every option with words, of every verb; of numbers and texts nothing."""
    met = 0
    for place in found().places:
        for option, value in place.options:
            told = offered(written, f"plan {' '.join(place.path)} m {option.names[0]} ") if value is not None else []
            if isinstance(value, Words):
                assert told == list(value.words), (place.path, option.names)
                met += 1
            elif isinstance(value, Anything):
                assert told == []
    assert met > 20


def test_a_model_is_asked_for_without_a_verb(written: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    (tmp_path / "a folder").mkdir()
    (tmp_path / "q.toml").touch()
    assert offered(written, "plan ne", tmp_path) == ["net.py"]
    assert "--objective" in offered(written, "plan net.py --o", tmp_path)
    assert offered(written, "plan net.py --objective m", tmp_path) == ["memory"]
    assert offered(written, "plan --config q", tmp_path) == ["q.toml"]
    assert offered(written, "plan net.py --out ", tmp_path) == ["a folder"]
    assert sorted(offered(written, "plan inspect ", tmp_path)) == ["a folder", "net.py", "q.toml"]
    assert offered(written, "plan net.py --objective=c", tmp_path) == ["cost"]


def test_gpus_of_a_cluster_are_offered(written: Path, tmp_path: Path) -> None:
    (tmp_path / "site.toml").touch()
    h100 = [f"2x8x{name}" for name in device_names() if name.startswith("H100")]
    assert len(h100) > 1
    for line in ("plan m.py --cluster 2x8xH100", "plan cluster show 2x8xH100", "plan estimate m --cluster 2x8xH100"):
        assert offered(written, line, tmp_path) == h100
    assert offered(written, "plan cluster show s", tmp_path) == ["site.toml"]
    assert offered(written, "plan cluster ", tmp_path) == ["show", "detect", "import"]
    assert offered(written, "plan gpus H100-P") == ["H100-PCIe"]
    assert offered(written, "plan errors MW600") == [kind.code for kind in catalogue() if kind.code[:5] == "MW600"]
    assert offered(written, "plan errors DeviceUnk") == ["DeviceUnknown"]


def test_pins_are_offered_with_their_values(written: Path) -> None:
    assert offered(written, "plan m --fix ") == [f"{name}=" for name in KNOBS]
    assert offered(written, "plan m --fix rec") == ["recompute="]
    assert offered(written, "plan m --fix recompute=") == list(KNOBS["recompute"].kind.words)
    assert offered(written, "plan m --fix recompute=f") == ["full"]
    assert offered(written, "plan m --fix tp=2,rec") == ["2,recompute="]
    assert offered(written, "plan m --fix tp=2,recompute=f") == ["full"]
    assert offered(written, "plan m --fix=rec") == ["recompute="]
    assert offered(written, "plan m --fix tp=") == []
    assert offered(written, "plan m --what-if hosts=4,dtype=fp3") == ["fp32"]
    assert offered(written, "plan m --what-if island_gb") == ["island_gb_per_s="]
    assert offered(written, "plan m --allow schedule=zb-h") == [
        word for word in KNOBS["schedule"].kind.words if word.startswith("zb-h")
    ]


def test_every_value_is_accounted_for() -> None:
    """No option is left without a thought: what is completed by nothing is a number, or a text of one's own."""
    own = {"--annotated", "--name", "--scale"}
    for place in found().places:
        for option, value in place.options:
            if isinstance(value, Anything):
                assert option.metavar in ("N", "S", "GIB", "G", "X") or option.names[0] in own, option
            if option.metavar == "CLUSTER":
                assert isinstance(value, Clusters)
            if option.metavar in ("PINS", "VALUES"):
                assert isinstance(value, Pins)
            if option.metavar in ("FILE", "DIR", "MODEL"):
                assert isinstance(value, Files)


def test_a_script_is_printed_for_every_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        out = capsys.readouterr().out
        assert out == script(shell) == script(shell)
        assert f"plan completion {shell}" in out
        for verb in VERBS:
            assert verb.name in out
        assert "SUPPRESS" not in out


@pytest.mark.parametrize(("shell", "only_read"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_a_shell_reads_its_script(shell: str, only_read: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / f"plan.{shell}"
    file.write_text(script(shell))
    done = subprocess.run([shell, only_read, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_offers_the_same(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    file = tmp_path / "plan.fish"
    file.write_text(script("fish"))
    lines = {
        "plan est": ["estimate"],
        "plan estimate m --recipe fsdp-": ["fsdp-bf16-reduce"],
        "plan m --cluster 2x8xH100-P": ["2x8xH100-PCIe"],
        "plan m --fix tp=2,recompute=f": ["tp=2,recompute=full"],
        "plan m --fix t": ["tp="],
        "plan cluster d": ["detect"],
        "plan gpus H100-P": ["H100-PCIe"],
    }
    for line, told in lines.items():
        command = ["fish", "--no-config", "-c", f"source {file}; complete -C '{line}'"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert [one.split("\t")[0] for one in done.stdout.splitlines()] == told, line
