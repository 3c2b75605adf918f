"""Help pages of the commands: sentences, 80 columns, working examples, hints, completion."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from collectors import REGISTRY, command, run_command, run_script
from rappor_server.app.settings import Settings
from rappor_server.cli.command_group import server

from rappor.cli.commands import Explained

SEARCHES = REGISTRY.replace("[metrics.sound]", "[metrics.search_engine]")
SEARCHES = SEARCHES.replace("min_cohort = 2", "min_cohort = 20")
"""A registry with the metric `search_engine`, which the examples contain."""


def list_commands(
    command: click.Command = server, *names: str
) -> Iterator[tuple[tuple[str, ...], Explained]]:
    """Yield the words and the object of every command, including commands of groups."""
    assert isinstance(command, Explained)  # click's own class cuts long help texts
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
    """No line is cut or too wide, every option has a sentence, and the page has examples."""
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
    """Numbers have commas and no fraction of 0. A port has no commas."""
    page = CliRunner().invoke(server, ["serve", "--help-all"], prog_name="rappor-server").output
    defaults = re.findall(r"\[default: ([^;\]]*)", " ".join(page.split()))
    assert [default for default in defaults if re.search(r"\d{4}|\.0$", default)] == ["8080"]
    assert "4,000,000,000" in defaults


@pytest.mark.slow
def test_serve_shows_eight_options_at_first() -> None:
    """`--help-all` shows an option for each setting."""
    short_page = run_command("serve", "--help", COLUMNS="80").stdout
    full_page = run_command("serve", "--help-all", COLUMNS="80").stdout
    shown, documented = (
        set(re.findall(r"^  (--[\w-]+)", page, re.M)) for page in (short_page, full_page)
    )
    assert len(shown - {"--help-all"}) == 8
    fields = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)}
    assert shown < documented == fields - {"--registry"} | {"--config", "--help-all"}
    assert max(map(len, full_page.splitlines())) <= 80


_OTHER_EXAMPLES = ((), ("demo",), ("serve",), ("restore",), ("healthy",), ("forget",))
"""Commands whose examples need more than a folder with a registry: a running collector, a backup,
or counters. Other tests run these commands."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a registry, an edit of it, and a database with a token."""
    for name in ("metrics.toml", "new.toml"):
        (tmp_path / name).write_text(SEARCHES)
    (tmp_path / "pages.txt").write_text("a\n")
    options = ["--registry", str(tmp_path / "metrics.toml")]
    for words in (["migrate"], ["token", "create"]):
        assert run_command(*words, *options).returncode == 0
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [names for names in COMMANDS if names not in _OTHER_EXAMPLES],
    ids=" ".join,
)
def test_examples_run(names: tuple[str, ...], folder: Path) -> None:
    """The examples of each command end with exit code 0 in a folder with a registry."""
    result = run_script(join_examples(*names), folder)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_example_of_restore_runs_after_that_of_backup(folder: Path) -> None:
    """The example of `restore` reads the file that the example of `backup` has written."""
    result = run_script("\n".join(map(join_examples, ("backup", "restore"))), folder)
    assert result.returncode == 0, result.stderr
    assert (folder / "restored.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", join_examples("serve").splitlines())
def test_examples_of_serve_listen(example: str, folder: Path) -> None:
    """The collector starts on a free port, and a signal stops it."""
    program, *words = example.split()
    assert program == "rappor-server"
    process = subprocess.Popen(
        command(*words, "--port", "0"), cwd=folder, stderr=subprocess.PIPE, text=True
    )
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
        ("serv", 2, "did you mean 'serve'?"),
        ("token crate", 2, "did you mean 'create'?"),
    ],
)
def test_options_and_hints_equal_those_of_rappor(words: str, code: int, message: str) -> None:
    """Short options, completion and hints for typos work as in the command `rappor`."""
    result = run_command(*words.split())
    assert result.returncode == code
    assert message in result.stdout + result.stderr


@pytest.mark.slow
def test_hints_for_mistyped_metrics_and_options(tmp_path: Path) -> None:
    """A hint names a metric of the registry or an option of the command."""
    options = ["--registry", str(tmp_path / "metrics.toml")]
    (tmp_path / "metrics.toml").write_text(SEARCHES)
    metric = run_command("token", "create", *options, "--metric", "serch_engine")
    assert metric.returncode == 2
    assert "search_engine" in metric.stderr
    assert "page" not in metric.stderr
    option = run_command("token", "create", *options, "--metrc", "page")
    assert "--metric" in option.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [("rappor-server ser", "serve"), ("rappor-server serve --suspicious r", "refuse")],
)
def test_completion_of_commands_and_choices(words: str, expected: str) -> None:
    """The completion script of bash gets the commands and choices that begin so."""
    result = run_command(
        _RAPPOR_SERVER_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert f"plain,{expected}" in result.stdout.splitlines()
