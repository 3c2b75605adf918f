"""The program `rappor`: completion in shells, and errors about missing libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from shell import Shell, expect_success


def test_completion_prints_a_script(shell: Shell) -> None:
    """The completion script of each shell sets the variable by which it calls `rappor`."""
    for name in ("bash", "zsh", "fish"):
        assert "_RAPPOR_COMPLETE" in expect_success(shell("completion", name))


@pytest.mark.slow
def test_commands_without_their_libraries_name_the_extra() -> None:
    """Without numpy, scipy, sklearn and numba, `privacy` and help work.

    A command that needs the libraries ends with one line that names the extra to install.
    """
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['numpy', 'scipy', 'sklearn', 'numba'])\n"
        "from rappor.cli.app import run\n"
        "assert run(['privacy', '--profile', 'strict']) == 0\n"
        "assert run(['decode', '--help']) == 0\n"
        "sys.exit(run(['demo']))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "rappor[analysis]" in process.stderr
