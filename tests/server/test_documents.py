"""server/README.md: its commands print what it shows, and its tables list what exists."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import re
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
from collectors import run_script
from places import ROOT
from rappor_server.app.settings import Settings
from rappor_server.cli.command_group import server
from rappor_server.storage.block_rules import Block, Rule
from rappor_server.storage.tallies import Tally
from readers import blocks, script_of

FOLDER = ROOT / "server"
SETTINGS = (FOLDER / "SETTINGS.md").read_text(encoding="utf-8")
"""Text of the page of settings. Its table must have a row for each field of `Settings`, in the same
order."""
BLOCKS = blocks(FOLDER / "README.md")
"""Blocks of code that the collector's page shows."""
POSTGRESQL = "postgresql://rappor:PASSWORD@db.example.org/rappor"
"""Address that the page shows, which a test replaces by a real database."""
OMISSION = "..."
"""Mark of omitted output. A line that consists of the mark is not compared. A line that ends with
the mark is compared up to the mark."""


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
    assert (tmp_path / "restored.sqlite3").exists()
    log = (tmp_path / "serve.log").read_text(encoding="utf-8")
    printed = {mask(line) for line in (result.stdout + result.stderr + log).splitlines()}
    for line in list_documented_output():
        start = mask(line.removesuffix(OMISSION))
        is_shortened = line.endswith(OMISSION)
        assert start in printed or (
            is_shortened and any(other.startswith(start) for other in printed)
        ), line


def list_documented_output() -> list[str]:
    """Return the lines that the page shows as output of its blocks of `sh`."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    blocks_of_page = re.findall(r"```(\w+)\n(.*?)```(\s*)", page, re.DOTALL)
    outputs = [
        output
        for (command, _, gap), (language, output, _) in itertools.pairwise(blocks_of_page)
        if (command, gap, language) == ("sh", "\n\n", "text")
    ]
    assert len(outputs) == len([block for block in BLOCKS if block.language == "sh"])
    lines = [line for output in outputs for line in output.splitlines()]
    return [line for line in lines if line != OMISSION]


def mask(line: str) -> str:
    """Return a line without everything that differs between two runs.

    Secrets, ids and bits have at least 16 characters. The noise chooses the numbers, the order of
    the candidates, and seldom whether one is detected.
    """
    line = re.sub(r"\brappor\.\S+|(?<![.\w-])[A-Za-z0-9_-]{16,}", "", line)
    line = re.sub(r"\b[a-z]+\.(com|org)\b( \(not detected\))?", "SITE", line)
    line = re.sub(r"-?\d+(?:[.,]\d+)*(?:e-?\d+)?", "0", line)
    return " ".join(line.split())


def test_six_days_of_blocks_are_those_of_the_rule() -> None:
    """The blocks below each cohort, and the reports set aside, follow from its reports."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    cohorts = re.findall(r"^cohort \d+ ([\d ]+)\n +(.*)$", page, flags=re.MULTILINE)
    assert len(cohorts) == 2
    rule = Rule(pace="day", epoch="life", min_cohort=10, min_reports=100)
    first, by_day = datetime.date(2026, 11, 23), [0] * 6
    for numbers, below in cohorts:
        waiting: tuple[Block, ...] = ()
        closed, set_aside = [], []
        for day, reports in enumerate(map(int, numbers.split())):
            date = first + datetime.timedelta(days=day)
            today = Block(date, date, Tally(reports, np.array([reports])))
            decision = rule.decide([*waiting, today])
            waiting = decision.waiting
            if decision.closed is not None:
                closed.append(decision.closed.tally.reports)
                by_day[day] += closed[-1]
            if decision.set_aside:
                set_aside.append(decision.set_aside)
        assert closed == [int(number) for number in re.findall(r"\[-* *(\d+) *-*\]", below)]
        assert set_aside == [int(number) for number in re.findall(r"\((\d+)\)", below)]
        assert bool(waiting) == (".." in below)
    so_far = [int(number) for number in re.findall(r"^\| (?:[MTWFS]\w\w) .* (\d+) \|$", page, re.M)]
    assert so_far == list(itertools.accumulate(by_day))
    (window,) = re.findall(r"^window +\{-+ (\d+) -+\}$", page, flags=re.MULTILINE)
    assert so_far[-2] < rule.min_reports <= so_far[-1] == int(window)


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
