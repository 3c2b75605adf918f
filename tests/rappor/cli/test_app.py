"""The command as a whole: exit codes, typos, completion, what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from shell import Shell, ok, refused

from rappor.cli.app import MOVED, cli


@pytest.mark.parametrize("name", MOVED)
def test_an_earlier_name_says_the_new_one(shell: Shell, name: str) -> None:
    """In one sentence; the new one is a command with that option."""
    assert refused(shell(name, "--anything")) == f"rappor: `rappor {name}` is now `{MOVED[name]}`"
    _, command, *options = MOVED[name].split()
    names = [option for each in cli.commands[command].params for option in each.opts]
    assert set(options) <= set(names)


def test_completion_prints_a_script(shell: Shell) -> None:
    """Each shell gets a script that names the program."""
    for name in ("bash", "zsh", "fish"):
        assert "_RAPPOR_COMPLETE" in ok(shell("completion", name))


def test_commands_without_the_analysts_packages_name_the_extra() -> None:
    """Light commands and help need none of them, and the others say what to install."""
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['numpy', 'scipy', 'sklearn', 'numba'])\n"
        "from rappor.cli.app import run\n"
        "assert run(['privacy', '--profile', 'strict']) == 0\n"
        "assert run(['decode', '--help']) == 0\n"
        "sys.exit(run(['demo']))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "rappor[analysis]" in answer.stderr
