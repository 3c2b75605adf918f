"""server/README.md: its commands work, and its tables list what exists."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import click
import pytest
from collectors import run_script
from places import ROOT
from rappor_server.app.settings import Settings
from rappor_server.cli.command_group import server
from readers import blocks, script_of

FOLDER = ROOT / "server"
SETTINGS = (FOLDER / "SETTINGS.md").read_text(encoding="utf-8")
BLOCKS = blocks(FOLDER / "README.md")
POSTGRESQL = "postgresql://rappor:PASSWORD@db.example.org/rappor"


@pytest.mark.slow
def test_commands_of_the_page_work_in_an_empty_folder(tmp_path: Path) -> None:
    """All blocks of the page run in their order without a change."""
    result = run_script(script_of(BLOCKS), tmp_path)
    assert result.returncode == 0, result.stderr + result.stdout
    (estimates,) = [line for line in result.stdout.splitlines() if line.startswith('{"estimates"')]
    document = json.loads(estimates)
    assert document["reports"] == 5
    assert len(document["estimates"]) == 5
    # The page says that each interval is wider than 100 %.
    assert all(row["ci_high"] - row["ci_low"] > 1 for row in document["estimates"])
    assert "candidate,count,std_error" in result.stdout
    assert "of 5 candidates detected in 5 reports" in result.stdout
    assert re.search(r"revoked \d{4}-", result.stdout) is None  # listed before it was revoked
    assert "\nrevoked\n" in result.stdout
    assert (tmp_path / "restored.sqlite3").exists()
    assert "metrics.toml: 1 metric may be served" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_block_of_postgresql_works(tmp_path: Path, database: str) -> None:
    """The block for PostgreSQL works with the address of a real database."""
    (shown,) = [block for block in BLOCKS if POSTGRESQL in block.text]
    typed = shown._replace(language="sh", text=shown.text.removeprefix("$ "))
    registry = next(block for block in BLOCKS if "cat > metrics.toml" in block.text)
    script = script_of([registry, typed]).replace(POSTGRESQL, shlex.quote(database))
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "ready" in result.stdout
    assert not list(tmp_path.glob("*.sqlite3"))


def test_every_setting_has_a_row_with_its_default() -> None:
    """The table of settings has a row for each setting, with its default."""
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", SETTINGS, flags=re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        if isinstance(default, bool):
            assert rows[name].strip() == f"{default}".lower(), name
        elif isinstance(default, int | float):
            assert float(rows[name].replace(",", "")) == default, name
        elif isinstance(default, str) and default:
            assert rows[name].strip() == default, name


@pytest.mark.parametrize(
    "file",
    ["Dockerfile", "rappor-server.service", "rappor-prune.service", "rappor-backup.service"],
)
def test_command_lines_have_existing_commands_and_options(file: str) -> None:
    """Every `rappor-server COMMAND ...` line has an existing command and existing options."""
    text = (FOLDER / "packaging" / file).read_text(encoding="utf-8").replace('", "', " ")
    lines = re.findall(r"^(?:CMD \[\"|ExecStart=.*/)rappor-server (.*?)[\"']*\]?$", text, re.M)
    assert lines
    for line in lines:
        words = shlex.split(line)
        command: click.Command = server
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)
