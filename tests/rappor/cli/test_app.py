"""The command as a whole: exit codes, typos, completion, what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from shell import Shell, ok, refused

from rappor.cli.app import MOVED, cli


def test_usage_errors_end_with_2(shell: Shell) -> None:
    """An unknown command, an unknown option and a missing one are usage errors."""
    for words in (["nothing"], ["demo", "--nothing"], ["decode"], ["encode", "engine", "x"]):
        assert "Usage:" in refused(shell(*words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("demmo",), "unknown command 'demmo'; did you mean 'demo'?"),
        (("attack", "poisonig"), "unknown command 'poisonig'; did you mean 'poisoning'?"),
        (("zzz",), "unknown command 'zzz'; see --help for all commands"),
        (("decode", "x", "--candidtaes", "y"), "'--candidates'"),
        (("collects", "thme", "--registry", "metrics.toml"), "'thme'; did you mean 'theme'?"),
    ],
)
def test_a_typo_gets_a_suggestion(shell: Shell, words: tuple[str, ...], said: str) -> None:
    """Commands, options and metrics: what was probably meant, and exit code 2."""
    assert said in refused(shell(*words))


@pytest.mark.parametrize("name", MOVED)
def test_an_earlier_name_says_the_new_one(shell: Shell, name: str) -> None:
    """In one sentence; the new one is a command with that option."""
    assert refused(shell(name, "--anything")) == f"Error: `rappor {name}` is now `{MOVED[name]}`"
    _, command, *options = MOVED[name].split()
    names = [option for each in cli.commands[command].params for option in each.opts]
    assert set(options) <= set(names)


def test_completion_prints_a_script(shell: Shell) -> None:
    """Each shell gets a script that names the program."""
    for name in ("bash", "zsh", "fish"):
        assert "_RAPPOR_COMPLETE" in ok(shell("completion", name))


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\x00", b"metrics = 3", b"[metrics.x]\ncolour = 1", b"[metrics"]
)
def test_bad_registries(shell: Shell, content: bytes | None) -> None:
    """A missing, empty, binary, wrong or unclosed registry gets one sentence, exit code 2."""
    if content is not None:
        (shell.place / "bad.toml").write_bytes(content)
    err = refused(shell("collects", "--registry", shell.path("bad.toml")))
    assert err.startswith("rappor: ")


def test_light_commands_load_no_numpy() -> None:
    """Help, parameters and what is collected come without the scientific packages."""
    program = (
        "import sys\n"
        "from rappor.cli.app import run\n"
        "run(['privacy', '--profile', 'strict'])\n"
        "run(['decode', '--help'])\n"
        "assert not {'numpy', 'scipy', 'sklearn', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_commands_without_the_analysts_packages_name_the_extra() -> None:
    """With the command line alone, light commands work and the others say what to install."""
    program = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from rappor.cli.app import run\n"
        "assert run(['privacy', '--profile', 'strict']) == 0\n"
        "sys.exit(run(['demo']))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "rappor[analysis]" in answer.stderr
