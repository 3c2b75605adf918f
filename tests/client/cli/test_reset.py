"""`rappor-client reset`: the erasure of a device, after a confirmation.

The device has the metric `page` for life with profile "balanced", which reserves 4 nats.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from days import record_days
from devices import Home, peek
from forks import run_in_child
from programs import CLIENT, run_python
from rappor_client.cli import main


@pytest.mark.parametrize(
    "response", ["\n", "n\n", "no\n", ""], ids=["enter", "n", "no", "closed input"]
)
def test_reset_needs_a_yes(response: str, home: Home) -> None:
    """Any other response than yes, and a closed input, erase nothing and give exit code 1."""
    client = home.open()
    record_days(client, "page", "x")
    client.close()
    process = run_python(*CLIENT, "reset", str(home.folder), text=response, code=1)
    assert "Erase the secret, waiting reports, state and log in" in process.stdout
    assert "Traceback" not in process.stderr
    assert peek(home.folder).has_secret
    assert len(peek(home.folder).queued_reports) == 1


@pytest.mark.parametrize("line", ['exec "$@" <&-', "printf '\\377\\n' | \"$@\""])
def test_an_input_that_cannot_be_read_is_no_yes(line: str, home: Home) -> None:
    """An input that was closed, or that is no text, erases nothing and prints no traceback."""
    client = home.open()
    record_days(client, "page", "x")
    client.close()
    words = ["sh", "-c", line, "sh", sys.executable, *CLIENT, "reset", str(home.folder)]
    process = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (1, "")
    assert peek(home.folder).has_secret


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs another user")
@pytest.mark.parametrize("words", [["reset", "--yes"], ["show"]], ids=" ".join)
def test_folder_without_access_is_named(words: list[str], home: Home) -> None:
    """A command on a folder that the system does not let it read says so, with exit code 2.

    Bad case: the message was "standard output: Permission denied".
    """
    home.open().close()
    home.folder.chmod(0)
    messages = home.parent / "messages"

    def run_without_access() -> bool:
        with messages.open("w", encoding="utf-8") as sys.stderr:
            if os.getuid() == 0:  # root has access to every folder
                os.setuid(65_534)
            return main([*words, str(home.folder)]) != 2

    try:
        assert run_in_child(run_without_access) == 0
    finally:
        home.folder.chmod(0o700)
    assert f"{home.folder}: EACCES" in messages.read_text(encoding="utf-8")


@pytest.mark.parametrize("confirmation", ["asked", "--yes"])
def test_reset_erases(confirmation: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A reset erases secret, reports and scopes, and keeps the reserved nats.

    A person confirms the reset by the input "y" or by the option `--yes`.
    """
    client = home.open()
    client.record("page", "x")
    client.close()
    if confirmation == "asked":
        printed = run_python(*CLIENT, "reset", str(home.folder), text="y\n").stdout
    else:
        assert main(["reset", str(home.folder), "--yes"]) == 0
        printed = capsys.readouterr().out
    assert "Erased. Privacy loss that stays reserved: epsilon = 4.00 in 2026." in printed
    contents = peek(home.folder)
    assert not contents.has_secret
    assert contents.queued_reports == ()
    assert contents.scopes == ()
    assert home.open().privacy_spent().reserved == {2026: pytest.approx(4, abs=1e-3)}


@pytest.mark.parametrize("words", [["reset", "--yes"], ["show"]], ids=" ".join)
def test_folder_without_telemetry_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command on a folder without telemetry says so, and does not create the folder."""
    assert main([*words, str(tmp_path / "absent")]) == 2
    assert "there is no telemetry in it" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()
