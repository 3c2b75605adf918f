"""`rappor-client completion`: what a real shell offers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from rappor_client.cli import main, program

SHELLS = ["bash", "zsh", "fish"]
BASH, ZSH, FISH = (shutil.which(shell) for shell in SHELLS)


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The script of a shell, in a file."""
    path = tmp_path / "completion"
    path.write_text(printed(request.param, request.getfixturevalue("capsys")))
    return path


def printed(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the script of a shell."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(script: Path, words: str) -> list[str]:
    """Return what bash offers for the last of the words."""
    typed = words.split(" ")
    program = (
        f"source {shlex.quote(str(script))}\n"
        "complete -p rappor-client\n"
        f"COMP_WORDS=({' '.join(map(shlex.quote, typed))})\n"
        f"COMP_CWORD={len(typed) - 1}\n"
        "_rappor_client\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    ended = subprocess.run(
        [str(BASH), "--norc", "-c", program], capture_output=True, text=True, check=True
    )
    registered, *words_offered = ended.stdout.split("\n")
    assert registered == "complete -o default -F _rappor_client rappor-client"
    assert ended.stderr == ""
    return [word for word in words_offered if word]


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rappor-client ", ["show", "reset", "send", "completion"]),
        ("rappor-client sh", ["show"]),
        ("rappor-client --v", ["--version"]),
        ("rappor-client show --", ["--help", "--json"]),
        ("rappor-client show folder --j", ["--json"]),
        ("rappor-client send x --re", ["--registry"]),
        ("rappor-client completion ", ["bash", "zsh", "fish"]),
        ("rappor-client completion z", ["zsh"]),
        ("rappor-client show ", []),  # file names are bash's own to offer
        ("rappor-client send --registry ", []),
    ],
)
def test_bash_completes(script: Path, typed: str, expected: list[str]) -> None:
    """Commands, options and choices, by the function that the script registers."""
    assert offered(script, typed) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_script_names_every_command_and_option(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a new one is not forgotten."""
    text = printed(shell, capsys)
    parser = program()
    for name, command in parser.commands.items():
        assert re.search(rf"\b{name}\b", text)
        for option in command.options + parser.options:
            plain = option.lstrip("-") if shell == "fish" else option
            assert re.search(rf"(?<![\w-]){re.escape(plain)}\b", text), (name, option)


@pytest.mark.skipif(FISH is None, reason="fish is not installed")
@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script: Path) -> None:
    """Commands, options and choices."""
    for typed, expected in (("sh", "show"), ("send --re", "--registry"), ("completion z", "zsh")):
        program = f"source {shlex.quote(str(script))}; complete -C 'rappor-client {typed}'"
        ended = subprocess.run(
            [str(FISH), "-N", "-c", program], capture_output=True, text=True, check=True
        )
        assert ended.stdout.split("\t")[0] == expected


@pytest.mark.skipif(ZSH is None, reason="zsh is not installed")
@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_reads_the_script(script: Path) -> None:
    """It has no mistake of syntax."""
    ended = subprocess.run(
        [str(ZSH), "-n", str(script)], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
