"""`rappor-client reset`: nothing stays but the loss already spent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from devices import Opener, peek
from rappor_client.cli import main

PROGRAM = "import sys; from rappor_client.cli import main; sys.exit(main())"


def answered(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run the command and type an answer."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "reset", str(folder)],
        input=answer,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("answer", ["\n", "n\n", "no\n", ""], ids=["enter", "n", "no", "nobody"])
def test_reset_needs_a_yes(answer: str, open_client: Opener, tmp_path: Path) -> None:
    """Without one, not even by a closed input, nothing is erased and the code is 1."""
    client = open_client()
    client.record("page", "x")
    client.close()
    ended = answered(tmp_path / "device", answer)
    assert ended.returncode == 1
    assert "Erase the identity and all records in" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert peek(tmp_path / "device").has_secret
    assert len(peek(tmp_path / "device").waiting) == 1


@pytest.mark.parametrize("how", ["asked", "--yes"])
def test_reset_erases(
    how: str, open_client: Opener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Secret, reports and ledger go; the loss already spent stays."""
    client = open_client()
    client.record("page", "x")
    client.close()
    folder = tmp_path / "device"
    if how == "asked":
        ended = answered(folder, "y\n")
        assert ended.returncode == 0
        printed = ended.stdout
    else:
        assert main(["reset", str(folder), "--yes"]) == 0
        printed = capsys.readouterr().out
    assert "Erased. What was reserved is kept: epsilon = 4.00 in 2026." in printed
    contents = peek(folder)
    assert not contents.has_secret
    assert contents.waiting == ()
    assert contents.scopes == ()
    assert open_client().spent().reserved == {2026: pytest.approx(4, abs=1e-3)}


def test_reset_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without telemetry is named."""
    assert main(["reset", str(tmp_path), "--yes"]) == 2
    assert "there is no telemetry in it" in capsys.readouterr().err
