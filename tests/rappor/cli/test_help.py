"""Help pages: complete sentences, one name for one option, and examples that run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from decodings import build_released_counts
from places import ROOT
from registries import format_entry, format_registry
from sockets import run_handler
from warm_commands import locate_commands

from rappor import Counts, Population, Registry, Upload, encode_value
from rappor.cli.app import cli, run
from rappor.cli.commands import DocumentedCommand
from rappor.google import files
from rappor.protocol.parts import Part
from rappor.simulation import simulate_counts, simulate_parts

REGISTRY = (
    format_registry("search_engine", candidates='"engines.txt"')
    + format_entry(
        "theme",
        encoding='"onehot"',
        categories='["light", "dark", "high contrast"]',
        profile='"strict"',
        epoch='"quarter"',
    )
    + format_entry(
        "plugins",
        encoding='"set"',
        items="8",
        profile='"once"',
        interval='"epoch"',
        epoch='"quarter"',
    )
    + format_entry(
        "editor_by_system",
        encoding='"onehot"',
        categories='{editor = ["vim", "code"], system = ["linux", "mac"]}',
        epoch='"quarter"',
    )
)

PARTS = (Part("prefix:2", 0.5), Part("whole"))


def list_commands() -> Iterator[tuple[tuple[str, ...], DocumentedCommand]]:
    """Yield every command and group, with the words of its call."""
    waiting: list[tuple[tuple[str, ...], click.Command]] = [((), cli)]
    while waiting:
        words, command = waiting.pop()
        assert isinstance(command, DocumentedCommand)
        yield words, command
        if isinstance(command, click.Group):
            waiting += [
                ((*words, name), subcommand) for name, subcommand in command.commands.items()
            ]


COMMANDS = dict(list_commands())
EXAMPLES = sorted({example for command in COMMANDS.values() for example in command.examples})
NEEDS_SHELL = re.compile(r"[|>]|--command|https?://")
"""Matches examples that need a shell, or a collector at an address."""

TAKES_LONG = re.compile(r"^rappor audit")
"""Matches examples that take minutes. They run in the stage acceptance, because their commands have
faster tests of their own."""


def examples(*, for_shell: bool) -> list[Any]:
    """Return the examples. Examples that take minutes run in the stage acceptance."""
    return [
        pytest.param(example, marks=pytest.mark.acceptance if TAKES_LONG.match(example) else ())
        for example in EXAMPLES
        if bool(NEEDS_SHELL.search(example)) is for_shell
    ]


def page(words: tuple[str, ...], capfd: pytest.CaptureFixture[str], option: str = "--help") -> str:
    """Return the help page of a command, on a terminal of 80 columns."""
    assert run([*words, option]) == 0
    return capfd.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_page_is_cut(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """A help page has lines of at most 80 columns and no cut text. -h prints the same page.

    Large and small default numbers are written in a form for people, not as 100000 or 1e-05.
    """
    text = page(words, capfd)
    assert page(words, capfd, "-h") == text
    assert text.startswith(f"Usage: {' '.join(('rappor', *words))} ")
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text
    assert "…" not in text
    defaults = re.findall(r"\[default: ([^\]]*)\]", " ".join(text.split()))
    assert not [default for default in defaults if re.search(r"\d{4}|\de\d|e-0|^\(", default)]


@pytest.mark.parametrize("words", [words for words in COMMANDS if words], ids=" ".join)
def test_a_summary_is_one_sentence_on_one_line(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """The page of the group lists each command with a complete sentence in one line."""
    listed = [line.strip() for line in page(words[:-1], capfd).splitlines()]
    (line,) = [line for line in listed if re.match(rf"{words[-1]}  ", line)]
    sentence = line.removeprefix(words[-1]).strip()
    assert sentence == COMMANDS[words].get_short_help_str()
    assert re.fullmatch(r"[A-Z][^.]+\.", sentence)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_explains_itself(words: tuple[str, ...]) -> None:
    """Each option has a help text and a metavariable, and each example belongs to its command."""
    command = COMMANDS[words]
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert re.match(r"[A-Za-z]", option.help), option.name
            takes_choice = isinstance(option.type, click.Choice)
            assert option.is_flag or takes_choice or option.metavar, option.name
    assert command.examples
    assert all(" ".join(("rappor", *words)) in example for example in command.examples)


def test_one_option_has_one_name_everywhere() -> None:
    """Options that several commands share have one name and one kind of value."""
    spellings: dict[str, set[tuple[object, ...]]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                spelt = (tuple(option.opts), option.metavar)
                for name in option.opts:
                    spellings.setdefault(name, set()).add(spelt)
    # Options with two kinds of values:
    # --by is a property of devices, or a period of days.
    # --candidates and --values are a number, or a file.
    # --reports is a number. In `convert` it states the kind of a file.
    # --client is a command to audit, or the client of google/rappor that sent the counts.
    # --out is a file, or the folder of a site.
    # --to is the last day, or the address of a collector.
    several = {name for name, spelt in spellings.items() if len(spelt) > 1}
    expected = {"--by", "--candidates", "--values", "--reports", "--client", "--out", "--to"}
    assert several == expected
    assert spellings["-k"] == {(("-k", "--bits"), "N")}
    assert not {"-h", "-m", "--h"} & set(spellings)


EDITORS = format_registry(
    "editor",
    epoch='"quarter"',
    fields='["editor", "system"]',
    candidates='"pairs.txt"',
    profile='"low-noise"',
)
"""Registry with one metric of two fields, whose candidates the file pairs.txt lists."""


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that examples of help pages name."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "metrics.toml").write_text(REGISTRY)
    (folder / "new.toml").write_text(REGISTRY.replace('"balanced"', '"strict"'))
    (folder / "token.txt").write_text("token\n")
    (folder / "engines.txt").write_text("bing.com\nduckduckgo.com\nqwant.com\n")
    (folder / "population.csv").write_text("value,weight\nduckduckgo.com,5\nqwant.com,3\n")
    (folder / "words.txt").write_text("cat\n" * 3000 + "dog\n" * 2000)
    metric = Registry.load(folder / "metrics.toml")["search_engine"]
    reports = [encode_value(bytes([i]) * 32, metric, "qwant.com").report for i in range(200)]
    uploads = [Upload(id=Upload.new_id(), reports=(report,)).to_json() for report in reports]
    (folder / "uploads.jsonl").write_bytes(b"\n".join(uploads))
    counts = Counts.from_reports(reports, metric.params, metric.name)
    counts.save(folder / "week.counts")
    week = (datetime.date(2026, 11, 1), datetime.date(2026, 11, 7))
    build_released_counts({week: counts}, counts.metric).save(folder / "counts.json")
    for name in ("may", "june"):
        counts.save(folder / f"{name}.counts")
    days = [datetime.date(2026, 11, 2), datetime.date(2026, 11, 9)]
    build_released_counts(dict.fromkeys(days, counts), counts.metric).save(folder / "weeks.json")
    segment_counts = Counts(
        metric.params.with_segment((("version", "2"),)),
        counts.bit_counts,
        counts.cohort_reports,
        counts.metric,
    )
    build_released_counts({days[0]: (counts, segment_counts)}, counts.metric).save(
        folder / "segments.json"
    )
    pets = Population(["cat", "dog"], [2, 1])
    parts = simulate_parts(pets, metric.params, PARTS, n_reports=1e4, seed=1)
    for part in parts:
        part.save(folder / f"pet-{part.params.part.replace(':', '-')}.counts")
    write_tuples(folder)
    (folder / "words-by-frequency.txt").write_text("duckduckgo.com\nqwant.com\n")
    (folder / "lake").mkdir()
    words = [metric.name, "--population", str(folder / "population.csv")]
    for name in ("reports.parquet", "lake/reports.parquet"):
        out = ["--reports", "200", "--out", str(folder / name)]
        assert run(["simulate", "--registry", str(folder / "metrics.toml"), *words, *out]) == 0
    write_google(folder)
    return folder


def write_tuples(folder: Path) -> None:
    """Write a registry with a metric of two fields, its candidates, and simulated counts."""
    (folder / "editors.toml").write_text(EDITORS)
    pairs = [(editor, system) for editor in ("vim", "code") for system in ("linux", "mac")]
    (folder / "pairs.txt").write_text("".join(f"{editor}\t{system}\n" for editor, system in pairs))
    metric = Registry.load(folder / "editors.toml")["editor"]
    population = Population(["\x1f".join(pair) for pair in pairs], [4, 1, 2, 3])
    counts = simulate_counts(population, metric.params, n_reports=20_000, seed=1)
    dataclasses.replace(counts, metric="editor").save(folder / "editors.counts")


def write_google(folder: Path) -> None:
    """Write a collection of google/rappor, and its conversion by `rappor convert`."""
    for name in ("counts.csv", "params.csv", "candidates.txt"):
        shutil.copy(ROOT / "tests" / "rappor" / "google" / "data" / name, folder / name)
    params = files.read_params(folder / "params.csv")
    files.read_counts(folder / "counts.csv", params).save(folder / "google.counts")


@pytest.fixture
def folder(shared_folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the shared folder, in which an example may write."""
    return Path(shutil.copytree(shared_folder, tmp_path / "copy"))


@pytest.mark.slow
@pytest.mark.parametrize("example", examples(for_shell=False))
def test_every_example_runs(example: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each example ends with exit code 0 and prints no trailing blanks."""
    program, *words = shlex.split(example.replace("\\\n", " "))
    with contextlib.chdir(folder):
        code = run(words)
    out, err = capfd.readouterr()
    assert (program, code) == ("rappor", 0), err
    assert out
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("example", examples(for_shell=True))
def test_every_example_for_a_shell_runs(example: str, folder: Path) -> None:
    """Examples with pipes, redirections and collectors run in a shell with exit code 0.

    A server of the test takes the place of the collector. It returns counts, and accepts uploads.
    """
    path = os.pathsep.join([str(locate_commands()), os.environ["PATH"]])
    counts = (folder / "counts.json").read_bytes()

    def collect(request: http.server.BaseHTTPRequestHandler) -> None:
        response_body = counts
        if request.command == "POST":
            body = request.rfile.read(int(request.headers["Content-Length"]))
            statuses = [{"status": "accepted"}] * len(json.loads(body)["reports"])
            response_body = json.dumps({"reports": statuses}).encode()
        request.send_response(200)
        request.end_headers()
        request.wfile.write(response_body)

    with run_handler(collect) as url:
        process = subprocess.run(
            ["/bin/sh", "-c", re.sub(r"https?://[\w.:]+", url, example)],
            cwd=folder,
            env={**os.environ, "PATH": path, "RAPPOR_TOKEN": "token"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert process.returncode == 0, process.stderr
