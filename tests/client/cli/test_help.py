"""Help of `rappor-client` and its subcommands: widths, sentences, and examples that run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from accepting_collector import run_accepting_collector
from collectors import run_script
from devices import open_device
from rappor_client.cli import main
from rappor_client.cli.command_line import COMMANDS
from rappor_client.testing import MemoryTransport
from registries import format_registry

from rappor import Registry

HELPS = [["--help"], *([name, "--help"] for name in COMMANDS)]
"""The command lines of the main help and of the help of each subcommand."""


def run_to_exit(words: Sequence[str], capsys: pytest.CaptureFixture[str], code: int) -> str:
    """Return the output of a command line that ends the process with an exit code."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_fits_into_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No line of a help is longer than 80 columns or cut, and -h prints the same as --help."""
    output = run_to_exit(words, capsys, 0)
    assert max(map(len, output.splitlines())) <= 80
    # The usage ends with an empty line. It has three dots where an argument can be repeated.
    # Elsewhere three dots would be the end of a text that was cut.
    assert "..." not in re.sub(r"^usage: .*?\n\n", "", output, flags=re.DOTALL)
    assert run_to_exit([*words[:-1], "-h"], capsys, 0) == output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_written_in_sentences(name: str) -> None:
    """Help texts are sentences, and options of time name their unit."""
    command = COMMANDS[name]
    arguments = [settings for _, settings in command.arguments]
    helps = [settings["help"] for settings in arguments]
    for text in (command.summary, command.details, *helps):
        assert re.match(r"[A-Z]", text), text
        assert text.endswith("."), text
    in_seconds = [settings for settings in arguments if settings.get("metavar") == "SECONDS"]
    assert all("Seconds" in settings["help"] for settings in in_seconds)


def test_main_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The main help contains each command with its summary."""
    output = " ".join(run_to_exit(["--help"], capsys, 0).split())
    assert all(f" {name} {command.summary}" in output for name, command in COMMANDS.items())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the name of the program and a version, such as 1.2.0 or 1.2.0rc1."""
    assert re.fullmatch(
        r"rappor-client [0-9.]+(rc[0-9]+)?\n", run_to_exit(["--version"], capsys, 0)
    )


def test_values_after_two_dashes_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    """A value after -- may begin with a dash.

    The registry is absent, so the command fails. It fails after the command line was read: its
    message names the registry and not the value.
    """
    options = ["--registry", "absent.toml", "--metric", "m", "--collector", "http://127.0.0.1:9"]
    assert main(["send", *options, "--", "--value"]) == 2
    assert "absent.toml" in capsys.readouterr().err


def read_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the lines of a help below the heading Examples, as a script of the shell."""
    _, _, examples = run_to_exit(words, capsys, 0).partition("Examples:\n")
    assert examples
    return textwrap.dedent(examples)


@pytest.mark.slow
@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_examples_run(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example runs as printed, in a home with a device, a registry and a collector."""
    text = format_registry("search_engine")
    (tmp_path / "metrics.toml").write_text(text)
    with open_device(
        tmp_path / ".local/share/myapp/telemetry", collector=MemoryTransport()
    ) as client:
        client.record("page", "x")
    with run_accepting_collector(Registry.loads(text)) as collector:
        script = read_examples(words, capsys).replace("http://127.0.0.1:8080", collector.url)
        ended = run_script(f"export HOME={tmp_path}\n{script}", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
