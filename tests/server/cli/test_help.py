"""Help pages of the commands: sentences, 80 columns, working examples, hints, completion."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from collectors import REGISTRY, call_command, run_command, run_script
from rappor_server.app.settings import Settings
from rappor_server.cli.command_group import server
from warm_commands import locate_commands

from rappor.cli.commands import DocumentedCommand

SEARCHES = REGISTRY.replace("[metrics.sound]", "[metrics.search_engine]")
"""A registry with the metric `search_engine`, which the examples of the help pages name."""


def list_commands(
    command: click.Command = server, *names: str
) -> Iterator[tuple[tuple[str, ...], DocumentedCommand]]:
    """Yield the words and the object of every command, including commands of groups."""
    assert isinstance(command, DocumentedCommand)  # click's own class cuts long help texts
    yield names, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from list_commands(inner, *names, name)


COMMANDS = dict(list_commands())
"""Maps the words of each command to its object."""


def join_examples(*names: str) -> str:
    """Return the examples of a command as a script."""
    return "\n".join(COMMANDS[names].examples)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_pages_are_whole_sentences_at_80_columns(names: tuple[str, ...]) -> None:
    """A help page fits a terminal of 80 columns and contains whole sentences and examples.

    click cuts a long help text and writes "..." for the rest. The two names that end with "..." are
    no cut texts. A sentence of an option ends with a full stop.
    """
    words, width = [*names, "--help"], {"COLUMNS": "80"}
    page = CliRunner().invoke(server, words, prog_name="rappor-server", env=width).output
    assert "..." not in page.replace("[ARGS]...", "").replace("RAPPOR_SERVER_...", "")
    assert max(map(len, page.splitlines())) <= 80
    assert "\nExamples:\n" in page
    command = COMMANDS[names]
    assert (command.help or "").strip().endswith(".")
    for option in command.params:
        if isinstance(option, click.Option):
            assert (option.help or "").endswith("."), option.name


def test_defaults_are_written_as_numbers() -> None:
    """A default of four digits or more is written with commas, and a whole number without ".0".

    Long numbers without commas are misread by a factor of ten. A port is a name rather than a
    quantity, so 8080 is the only number without commas.
    """
    page = CliRunner().invoke(server, ["serve", "--help-all"], prog_name="rappor-server").output
    defaults = re.findall(r"\[default: ([^;\]]*)", " ".join(page.split()))
    badly_written = [default for default in defaults if re.search(r"\d{4}|\.0$", default)]
    assert badly_written == ["8080"]
    assert "4,000,000,000" in defaults


@pytest.mark.slow
def test_serve_shows_eight_options_at_first() -> None:
    """`serve --help` shows the eight options of a first start; `--help-all` shows every setting.

    A collector has dozens of settings, and a page with all of them hides the few that everybody
    needs. Each field of `Settings` has an option, except that the registry is an argument.
    """
    full_page = call_command("serve", "--help-all", COLUMNS="80").stdout
    # The short page is as short in a process that has printed the full page.
    short_page = call_command("serve", "--help", COLUMNS="80").stdout
    options_at_first, all_options = (
        set(re.findall(r"^  (--[\w-]+)", page, re.M)) for page in (short_page, full_page)
    )
    assert len(options_at_first - {"--help-all"}) == 8
    fields = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)}
    assert options_at_first < all_options == fields - {"--registry"} | {"--config", "--help-all"}
    assert max(map(len, full_page.splitlines())) <= 80
    assert call_command("serve", "--help", COLUMNS="80").stdout == short_page


_OTHER_EXAMPLES = ((), ("demo",), ("serve",), ("reload",), ("restore",), ("healthy",), ("forget",))
"""Commands whose examples need more than a folder with a registry: a running collector, a backup,
or counters. Other tests run these commands."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the examples name.

    metrics.toml is the registry in force, new.toml is a registry to check against metrics.toml, and
    pages.txt has the candidates of a metric. The database has the schema and one token.
    """
    for name in ("metrics.toml", "new.toml"):
        (tmp_path / name).write_text(SEARCHES)
    (tmp_path / "pages.txt").write_text("a\n")
    options = ["--registry", str(tmp_path / "metrics.toml")]
    for words in (["migrate"], ["token", "create"]):
        assert call_command(*words, *options).returncode == 0
    return tmp_path


def run_examples(script: str, folder: Path) -> None:
    """Run examples in a folder, and assert that their exit codes are 0.

    Only a script with variables, pipes or redirections needs a shell. Other command lines run in
    this process, which has imported the commands.
    """
    if re.search(r"[$|>]", script):
        result = run_script(script, folder)
        assert result.returncode == 0, result.stderr
        return
    for line in script.replace("\\\n", "").splitlines():
        program, *words = shlex.split(line)
        assert program == "rappor-server"
        with contextlib.chdir(folder):
            result = call_command(*words)
        assert result.returncode == 0, line + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [names for names in COMMANDS if names not in _OTHER_EXAMPLES],
    ids=" ".join,
)
def test_examples_run(names: tuple[str, ...], folder: Path) -> None:
    """The examples of each help page end with exit code 0 in a folder with a registry.

    People copy examples. An example with a removed option would be their first experience.
    """
    run_examples(join_examples(*names), folder)


@pytest.mark.slow
def test_example_of_restore_runs_after_that_of_backup(folder: Path) -> None:
    """The example of `restore` reads the file that the example of `backup` has written."""
    run_examples("\n".join(map(join_examples, ("backup", "restore"))), folder)
    assert (folder / "restored.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", join_examples("serve").splitlines())
def test_examples_of_serve_listen(example: str, folder: Path) -> None:
    """Each example of `serve` starts a collector.

    The test appends `--port 0`, so that the system chooses a free port, and ends the collector with
    SIGTERM, because a collector does not end by itself.
    """
    program, *words = example.split()
    assert program == "rappor-server"
    command = [str(locate_commands() / program), *words, "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert any("collector started" in line for line in process.stderr)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("-h", 0, "Usage: rappor-server"),
        ("token -h", 0, "Usage: rappor-server token"),
        ("--version", 0, "rappor-server 0."),
        ("completion fish", 0, "_RAPPOR_SERVER_COMPLETE=fish_complete"),
    ],
)
def test_options_and_hints_equal_those_of_rappor(words: str, code: int, message: str) -> None:
    """Short options, completion and hints for typos work as in the command `rappor`.

    The three commands of the project (`rappor`, `rappor-client`, `rappor-server`) should behave
    alike, so that a person learns them once.
    """
    result = call_command(*words.split())
    assert result.returncode == code
    assert message in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [("rappor-server ser", "serve"), ("rappor-server serve --suspicious r", "refuse")],
)
def test_completion_of_commands_and_choices(words: str, expected: str) -> None:
    """The Tab key completes the beginning of a command, and of a value of an option.

    The completion script of bash runs the command with the typed words in environment variables,
    and reads one line for each completion: its kind ("plain") and its text.
    """
    result = run_command(
        _RAPPOR_SERVER_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert f"plain,{expected}" in result.stdout.splitlines()
