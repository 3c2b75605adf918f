"""Pages and packaging files of the collector describe what the collector does.

The commands of server/README.md print the output that the page shows, and its picture of blocks
follows from the rule of blocks. server/SETTINGS.md lists every setting. The files in
server/packaging call commands that exist.
"""

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
from readers import build_script, read_blocks

FOLDER = ROOT / "server"
SETTINGS = (FOLDER / "SETTINGS.md").read_text(encoding="utf-8")
"""Text of the page of settings. Its table must have a row for each field of `Settings`, in the same
order."""
BLOCKS = read_blocks(FOLDER / "README.md")
"""Blocks of code that the collector's page shows."""
POSTGRESQL = "postgresql://rappor:PASSWORD@db.example.org/rappor"
"""Address that the page shows, which a test replaces by a real database."""
OMISSION = "..."
"""Mark of omitted output. A line that consists of the mark is not compared. A line that ends with
the mark is compared up to the mark."""


@pytest.mark.slow
def test_commands_of_the_page_work_in_an_empty_folder(tmp_path: Path) -> None:
    """All blocks of the page run in their order without a change, and print what the page shows.

    The page and the run have other secrets, dates and noise. So lines are compared without the
    parts that differ between two runs (`mask`).
    """
    result = run_script(build_script(BLOCKS), tmp_path)
    assert result.returncode == 0, result.stderr + result.stdout
    (estimates,) = [line for line in result.stdout.splitlines() if line.startswith('{"estimates"')]
    document = json.loads(estimates)
    assert document["reports"] == 5
    assert len(document["estimates"]) == 5
    # The page states that each interval is wider than 100 %.
    assert all(row["ci_high"] - row["ci_low"] > 1 for row in document["estimates"])
    assert "candidate,count,std_error" in result.stdout
    assert "of 5 candidates detected in 5 reports" in result.stdout
    # The page lists the tokens before it revokes one, so no token has a day of revocation.
    assert re.search(r"revoked \d{4}-", result.stdout) is None
    assert (tmp_path / "restored.sqlite3").exists()
    log = (tmp_path / "serve.log").read_text(encoding="utf-8")
    printed = {mask(line) for line in (result.stdout + result.stderr + log).splitlines()}
    for line in list_documented_output():
        start = mask(line.removesuffix(OMISSION))
        is_shortened = line.endswith(OMISSION)
        assert start in printed or (
            is_shortened and any(printed_line.startswith(start) for printed_line in printed)
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

    The noise of the reports changes the estimated numbers, the order of the candidates, and seldom
    whether a candidate is detected.
    """
    # Tokens begin with "rappor.". Secrets, ids and bits have at least 16 characters.
    line = re.sub(r"\brappor\.\S+|(?<![.\w-])[A-Za-z0-9_-]{16,}", "", line)
    # The candidates are domains of sites.
    line = re.sub(r"\b[a-z]+\.(com|org)\b( \(not detected\))?", "SITE", line)
    # Numbers, times, and days.
    line = re.sub(r"-?\d+(?:[.,]\d+)*(?:e-?\d+)?", "0", line)
    return " ".join(line.split())


def test_six_days_of_blocks_are_those_of_the_rule() -> None:
    """The page's picture of six days of two cohorts follows from the rule of blocks.

    The picture, for a daily metric with `min_cohort` = 10 and `min_reports` = 100:

        cohort 2      1     12     14      3      5      4     reports of each day
                    (1)   [12]   [14]    ..     ..     ..      set aside, two blocks, waiting days
        window      {----------------- 102 -----------------}  reports of all blocks, released

    A table below the picture has a row for each day. Its last column is the number of reports of
    all blocks until the night after that day.
    """
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    cohorts = re.findall(r"^cohort \d+ ([\d ]+)\n +(.*)$", page, flags=re.MULTILINE)
    assert len(cohorts) == 2
    rule = Rule(pace="day", epoch="life", min_cohort=10, min_reports=100, sampling_rate=1.0)
    first, closed_by_day = datetime.date(2026, 11, 23), [0] * 6
    for numbers, line_below in cohorts:
        waiting: tuple[Block, ...] = ()
        closed, set_aside = [], []
        for day, reports in enumerate(map(int, numbers.split())):
            date = first + datetime.timedelta(days=day)
            today = Block(date, date, Tally(reports, np.array([reports])))
            decision = rule.decide([*waiting, today])
            waiting = decision.waiting
            if decision.closed is not None:
                closed.append(decision.closed.tally.reports)
                closed_by_day[day] += closed[-1]
            if decision.set_aside:
                set_aside.append(decision.set_aside)
        blocks_of_page = re.findall(r"\[-* *(\d+) *-*\]", line_below)
        assert closed == list(map(int, blocks_of_page))
        set_aside_on_page = re.findall(r"\((\d+)\)", line_below)
        assert set_aside == list(map(int, set_aside_on_page))
        assert bool(waiting) == (".." in line_below)
    column = re.findall(r"^\| (?:[MTWFS]\w\w) .* (\d+) \|$", page, flags=re.MULTILINE)
    closed_until_day = list(map(int, column))
    assert closed_until_day == list(itertools.accumulate(closed_by_day))
    # The window is formed on the last day. Before, the blocks had fewer reports than the minimum.
    (window,) = re.findall(r"^window +\{-+ (\d+) -+\}$", page, flags=re.MULTILINE)
    assert closed_until_day[-2] < rule.min_reports <= closed_until_day[-1] == int(window)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_block_of_postgresql_works(tmp_path: Path, database: str) -> None:
    """The block for PostgreSQL works with the address of a real database."""
    (command,) = [block for block in BLOCKS if POSTGRESQL in block.text]
    typed = command._replace(language="sh", text=command.text.removeprefix("$ "))
    registry = next(block for block in BLOCKS if "cat > metrics.toml" in block.text)
    script = build_script([registry, typed]).replace(POSTGRESQL, shlex.quote(database))
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "ready" in result.stdout
    assert not list(tmp_path.glob("*.sqlite3"))


def test_every_setting_has_a_row_with_its_default() -> None:
    """The table of settings has a row for each setting, in the order of the fields of `Settings`.

    A row has the default of its setting. Only booleans, numbers and texts that are not empty are
    compared. Other defaults are described in words.
    """
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
