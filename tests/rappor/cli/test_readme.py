"""README of the command line: its table and its exit codes equal those of the program."""

from __future__ import annotations

import re

import click
from places import ROOT
from rappor_client.cli.command_line import COMMANDS
from rappor_client.cli.parser import build_parser
from rappor_server.cli.command_group import server

from rappor.cli.app import INTERRUPTED, NO_ANSWER, USAGE, cli

FOLDER = ROOT / "rappor" / "cli"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text of the README below a heading."""
    _, _, rest = README.partition(title)
    return rest.partition("\n## ")[0]


def test_the_table_lists_exactly_the_commands() -> None:
    """The table has one row for each command."""
    rows = [line for line in section("# The command line").splitlines() if "| `rappor " in line]
    names = [re.findall(r"`rappor (\w+)", row)[0] for row in rows]
    assert sorted(names) == sorted(cli.commands)
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            (row,) = [row for row in rows if f"`rappor {name} " in row]
            inner = re.findall(rf"`rappor {name} (\w+)`", row)
            assert sorted(inner) == sorted(command.commands)


def test_options_in_the_table_exist() -> None:
    """Every option in a row of the table is an option of its command."""
    for line in section("# The command line").splitlines():
        for name, rest in re.findall(r"^\| `rappor (\w+)(.*)", line):
            command = cli.commands[name]
            known = {spelt for option in command.params for spelt in option.opts}
            assert set(re.findall(r"(?<=[ `])--[a-z0-9-]+", rest)) <= known, name


def test_commands_with_and_without_json() -> None:
    """Only `completion` has no option --json, as the README states."""
    without = {
        name
        for name, command in cli.commands.items()
        if not isinstance(command, click.Group)
        and not any("--json" in option.opts for option in command.params)
    }
    assert without == {"completion"}
    assert "All commands but `completion` take `--json`" in README


def test_exit_codes_are_those_of_the_program() -> None:
    """The README has the four exit codes. The help pages of all three programs list them."""
    codes = re.findall(r"^\| (\d+) \|", section("## Exit codes"), flags=re.MULTILINE)
    assert list(map(int, codes)) == [0, NO_ANSWER, USAGE, INTERRUPTED]
    sentence = "Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted."
    for text in (cli.help, server.help, build_parser(COMMANDS).format_help()):
        assert sentence in " ".join((text or "").split())
