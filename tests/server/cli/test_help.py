"""Help pages: whole sentences at 80 columns, examples that run, hints for typos, completion."""

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
from rappor_server.cli.app import server

from rappor.cli.commands import Explained

SEARCHES = REGISTRY.replace("[metrics.sound]", "[metrics.search_engine]")
SEARCHES = SEARCHES.replace("min_cohort = 2", "min_cohort = 20")
"""A registry with the metric that the examples name."""


def commands(
    command: click.Command = server, *names: str
) -> Iterator[tuple[tuple[str, ...], Explained]]:
    """Yield every command with its words, those of groups too."""
    assert isinstance(command, Explained)  # a page of click's own class is cut
    yield names, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *names, name)


COMMANDS = dict(commands())


def examples_of(*names: str) -> str:
    """Return the examples of a command as a script."""
    return "\n".join(COMMANDS[names].examples)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_pages_are_whole_sentences_at_80_columns(names: tuple[str, ...]) -> None:
    """Nothing is cut or too wide, every option is explained, and there are examples."""
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
    """With commas, but for a port, and without a fraction of 0."""
    page = CliRunner().invoke(server, ["serve", "--help-all"], prog_name="rappor-server").output
    defaults = re.findall(r"\[default: ([^;\]]*)", " ".join(page.split()))
    assert [each for each in defaults if re.search(r"\d{4}|\.0$", each)] == ["8080"]
    assert "4,000,000,000" in defaults


def test_serve_shows_eight_options_at_first() -> None:
    """`--help-all` shows the rest too, one for each setting."""
    first = run_command("serve", "--help", COLUMNS="80").stdout
    every = run_command("serve", "--help-all", COLUMNS="80").stdout
    shown, known = (set(re.findall(r"^  (--[\w-]+)", page, re.M)) for page in (first, every))
    assert len(shown - {"--help-all"}) == 8
    fields = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)}
    assert shown < known == fields - {"--registry"} | {"--config", "--help-all"}
    assert max(map(len, every.splitlines())) <= 80


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
    [names for names in COMMANDS if names not in ((), ("demo",), ("serve",), ("restore",))],
    ids=" ".join,
)
def test_examples_run(names: tuple[str, ...], folder: Path) -> None:
    """Each command's examples end with exit code 0 beside a registry."""
    answer = run_script(examples_of(*names), folder)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_example_of_restore_runs_after_that_of_backup(folder: Path) -> None:
    """The one fills the database that the other has copied."""
    answer = run_script("\n".join(map(examples_of, ("backup", "restore"))), folder)
    assert answer.returncode == 0, answer.stderr
    assert (folder / "restored.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", examples_of("serve").splitlines())
def test_examples_of_serve_listen(example: str, folder: Path) -> None:
    """The collector starts, on a port that is free, and a signal ends it."""
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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("-h", 0, "Usage: rappor-server"),
        ("token -h", 0, "Usage: rappor-server token"),
        ("--version", 0, "rappor-server, version "),
        ("completion fish", 0, "_RAPPOR_SERVER_COMPLETE=fish_complete"),
        ("serv", 2, "did you mean 'serve'?"),
        ("token crate", 2, "did you mean 'create'?"),
    ],
)
def test_it_answers_as_the_other_commands_do(words: str, code: int, said: str) -> None:
    """Short options, completion and hints are those of `rappor`."""
    answer = run_command(*words.split())
    assert answer.returncode == code
    assert said in answer.stdout + answer.stderr


def test_mistyped_metrics_and_options_are_hinted_at(tmp_path: Path) -> None:
    """The registry's own names, and the command's own options."""
    options = ["--registry", str(tmp_path / "metrics.toml")]
    (tmp_path / "metrics.toml").write_text(SEARCHES)
    metric = run_command("token", "create", *options, "--metric", "serch_engine")
    assert metric.returncode == 2
    assert "search_engine" in metric.stderr
    assert "page" not in metric.stderr
    option = run_command("token", "create", *options, "--metrc", "page")
    assert "--metric" in option.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [("rappor-server ser", "serve"), ("rappor-server serve --suspicious r", "refuse")],
)
def test_completion_names_commands_and_choices(words: str, expected: str) -> None:
    """What the script of bash gets for a beginning."""
    answer = run_command(
        _RAPPOR_SERVER_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert f"plain,{expected}" in answer.stdout.splitlines()
