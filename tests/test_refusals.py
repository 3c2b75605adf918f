"""Refused command lines of the three commands, with exit codes and whole messages.

The folder `refusals` has one table for each command. A row is a command line and what it prints:

    $ rappor privacy --profile strict --reports 0
    exit code 2
    Usage: ...

A line that begins with # is a comment. A message that is right is an exact sentence that names the
word to change, and the remedy. To add a row, write its line that begins with $ and write the tables
anew (`support/snapshots.py`). `write_files` creates the files that the command lines name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import rappor_client.cli
import rappor_server.cli.command_group
from click.testing import CliRunner
from decodings import build_released_counts
from places import ROOT
from rappor_server.storage.schema_versions import migrate
from registries import format_entry, format_registry
from shell import REGISTRY, write_inputs
from snapshots import check_snapshot

import rappor.cli.app
from rappor import Counts, Registry

TABLES = ROOT / "tests" / "refusals"
"""Folder of the tables. A table has the name of its command."""
NOISE = {"k": "8", "h": "1", "m": "2", "f": "0.5", "p": "0.25", "q": "0.75"}
"""A metric of strings has these keys, which are its noise."""
PARTS = '[{name = "prefix:3", share = 0.5}, {name = "whole"}]'
"""Value of the key `parts` of a metric whose devices report a prefix or the whole string."""


def run_client(words: Sequence[str]) -> int:
    """Run `rappor-client`, whose argument parser terminates the process after a usage error."""
    try:
        return rappor_client.cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "rappor": rappor.cli.app.run,
    "rappor-client": run_client,
    "rappor-server": rappor_server.cli.command_group.run,
}
"""Maps each command to a function that runs words and returns the exit code."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the command lines name. No command line changes it."""
    path = tmp_path_factory.mktemp("refusals")
    write_files(path)
    return path


def write_files(folder: Path) -> None:
    """Write registries, populations, candidates, counts and a database.

    Further files have contents that contradict their names: text encodings other than UTF-8,
    separators other than commas, JSON documents in place of counts.
    """
    write_inputs(folder)
    registry = Registry.loads(REGISTRY)
    engine, theme = registry["engine"].params, registry["theme"].params
    bit_counts = np.full((engine.m, engine.k), 50)
    counts = Counts(engine, bit_counts, np.full(engine.m, 100), "engine")
    theme_counts = Counts(theme, [[40, 40, 40]], [100], "theme")
    counts.save(folder / "week.counts")
    dataclasses.replace(counts, metric="").save(folder / "unnamed.counts")
    for name in ("theme.counts", "later.counts"):
        theme_counts.save(folder / name)
    Counts.zero(engine, "engine").save(folder / "zero.counts")
    part = dataclasses.replace(engine, part="prefix:2")
    Counts(part, bit_counts, counts.cohort_reports, "engine").save(folder / "prefix.counts")
    for version in ("1", "2"):
        params = engine.with_segment((("version", version),))
        Counts(params, bit_counts, counts.cohort_reports, "engine").save(
            folder / f"version-{version}.counts"
        )
    monday = datetime.date(2026, 11, 2)
    for name, days in (("days.json", (0, 1)), ("more-days.json", (1, 2))):
        build_released_counts(
            {monday + datetime.timedelta(day): theme_counts for day in days}, "theme"
        ).save(folder / name)
    strict = registry["engine_strict"].params
    Counts(strict, np.full((strict.m, strict.k), 1), np.full(strict.m, 3), "engine_strict").save(
        folder / "few.counts"
    )
    (folder / "parts.toml").write_text(format_registry("engine", **NOISE, parts=PARTS))
    (folder / "once.toml").write_text(
        format_registry(
            "sync", encoding='"boolean"', f="0.5", p="0.25", q="0.75", epoch='"quarter"',
            interval='"epoch"',
        )
    )  # fmt: skip
    (folder / "tuples.toml").write_text(
        format_registry(
            "visits", **NOISE, fields='["site", "country"]', candidates='"pairs.txt"'
        )
        + format_entry(
            "setup", encoding='"onehot"', profile='"strict"', epoch='"quarter"',
            categories='{editor = ["vim", "code"], system = ["linux", "mac"], shell = ["a", "b"]}',
        )
    )  # fmt: skip
    for name in ("visits", "setup"):
        params = Registry.load(folder / "tuples.toml")[name].params
        shape = (params.m, params.k)
        Counts(params, np.full(shape, 50), np.full(params.m, 100), name).save(
            folder / f"{name}.counts"
        )
    texts = {
        "pairs.txt": "a\tde\na\tfr\nb\tde\nb\tfr\n",
        "three-pairs.txt": "a\tde\na\tfr\nb\tde\n",
        "one-country.txt": "a\tde\nb\tde\n",
        "many-pairs.txt": "".join(f"s{i}\tc{j}\n" for i in range(1025) for j in range(2)),
        "own.txt": "cat\ndog\n",
        "empty.txt": "",
        "blank.txt": "\n\n \n",
        "semicolons.csv": "value;count\ncat;3\n",
        "tabs.csv": "value\tcount\ncat\t3\n",
        "header.csv": "value,count\n",
        "comma.txt": "Paris, France\nRome\n",
        "fraction.csv": "value,count\ncat,1.5\n",
        "columns.csv": "name,devices\ncat,3\n",
        "numbers.csv": "cat,3\ndog,2\n",
        "long.csv": "x" * 200_000 + ",",
        "large.csv": "value,count\ncat,99999999\ndog,2\n",
        "table.counts": "cohort,reports,bit_0\n0,5,3\n",
        "list.counts": "[1, 2]\n",
        "deep.counts": "[" * 100_000,
        "object.counts": '{"id": 3}\n',
        "empty.json": '{"metric": "engine", "collections": []}',
        "life.toml": REGISTRY.replace("[metrics.engine]", "[metrics.renamed]"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "utf16.csv").write_bytes("value,count\ncat,3\n".encode("utf-16"))
    (folder / "utf16-le.txt").write_bytes("cat\ndog\n".encode("utf-16-le"))
    (folder / "latin.txt").write_bytes(b"good\n\xff\xfe\n")
    (folder / "junk.counts").write_bytes(bytes(range(256)) * 20)
    (folder / "short-secret").write_bytes(b"S" * 31)
    (folder / "site").mkdir()
    (folder / "site" / "mine").touch()
    migrate(f"sqlite:///{folder / 'metrics.sqlite3'}")


def split_rows(table: str) -> list[tuple[str, list[str]]]:
    """Return the comments before each command line, and its words, in the order of the table."""
    rows: list[tuple[str, list[str]]] = []
    comments = ""
    for line in table.splitlines():
        if line.startswith("# "):
            comments += f"{line}\n"
        elif line.startswith("$ "):
            rows.append((comments, shlex.split(line.removeprefix("$ "))))
            comments = ""
    return rows


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("rappor", marks=pytest.mark.slow),
        "rappor-client",
        pytest.param("rappor-server", marks=pytest.mark.slow),
    ],
)
def test_refusals_are_those_of_the_table(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refused command line has the exit code and the message of the table.

    It prints nothing to standard output, whose reader would take a sentence for data, and it writes
    no file.
    """
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("RAPPOR_SERVER_REGISTRY", raising=False)
    path = TABLES / f"{command}.txt"
    contents = read_contents(folder)
    printed = ""
    with contextlib.chdir(folder):
        for comments, words in split_rows(path.read_text(encoding="utf-8")):
            assert words[0] == command
            line = shlex.join(words)
            with CliRunner().isolation() as (out, err, _):
                code = COMMANDS[command](words[1:])
                sys.stderr.flush()  # argparse writes without it
                message = drop_version(err.getvalue().decode()).replace(f"{folder}/", "")
            assert code in (1, 2), line
            assert out.getvalue() == b"", line
            assert is_refusal(command, message), line
            printed += f"{comments}$ {line}\nexit code {code}\n{message}\n"
    check_snapshot(path, printed)
    assert read_contents(folder) == contents


def drop_version(message: str) -> str:
    """Return a message without the parts that argparse words differently in each Python version."""
    message = re.sub(
        r"^usage: .*?(?=^rappor-client: )", "", message, flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"\(choose from [^)]*\)", lambda choices: choices[0].replace("'", ""), message)


def is_refusal(command: str, message: str) -> bool:
    """Return whether a message is one sentence of the command, perhaps after warnings and usage."""
    *before, last = [line for line in message.splitlines() if not line.startswith("warning: ")]
    if before:
        return before[0].lower().startswith("usage: ") and "Traceback" not in message
    return last.startswith(f"{command}: ")


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by their paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_tables_have_each_command_line_once() -> None:
    """No command line has two rows, and each command has a table."""
    for command in COMMANDS:
        rows = split_rows((TABLES / f"{command}.txt").read_text(encoding="utf-8"))
        lines = [shlex.join(words) for _, words in rows]
        assert len(lines) == len(set(lines)) > 0
