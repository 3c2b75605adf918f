"""The program `rappor` as a whole: completion, and errors about missing libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from shell import Shell, ok


def test_completion_prints_a_script(shell: Shell) -> None:
    """The script of each shell names the program."""
    for name in ("bash", "zsh", "fish"):
        assert "_RAPPOR_COMPLETE" in ok(shell("completion", name))


@pytest.mark.slow
def test_commands_without_the_analysts_packages_name_the_extra() -> None:
    """Light commands and help run without the libraries.

    Other commands name the extra to install.
    """
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
