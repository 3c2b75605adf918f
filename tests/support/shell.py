"""Runs of the command `rappor` in a folder with a registry, a population and candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor import Registry, Upload, encode_value
from rappor.cli.app import run

SECRET = "07" * 32
"""Secret of a device in hexadecimal. Commands that encode a value take it."""

REGISTRY = """
[budget]
total = inf

[metrics.engine]
description = "Where a typed query goes"
owner = "search@example.org"
expires = 2999-12-31
epoch = "life"
encoding = "bloom"
profile = "balanced"

[metrics.engine_strict]
description = "The same with a minimum and candidates"
owner = "search@example.org"
expires = 2999-12-31
epoch = "life"
encoding = "bloom"
profile = "strict"
candidates = "engines.txt"
min_reports = 5_000

[metrics.theme]
description = "Light or dark"
owner = "design@example.org"
expires = 2999-12-31
encoding = "onehot"
categories = ["light", "dark", "other"]
profile = "strict"
epoch = "quarter"

[metrics.sync]
description = "Whether bookmarks are synchronised"
owner = "design@example.org"
expires = 2999-12-31
epoch = "life"
encoding = "boolean"
profile = "low-noise"

[metrics.old]
description = "No longer"
owner = "search@example.org"
expires = 2020-01-01
epoch = "life"
encoding = "boolean"
f = 0.5
p = 0.25
q = 0.75
"""
"""Registry of the folder: two metrics of strings, one with a minimum of reports and a list of
candidates, a metric of categories, a boolean metric, and an expired metric."""


class Shell:
    """Shell that runs commands of `rappor` in one folder and returns their output."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Store the folder and the fixture that captures the output."""
        self.folder = folder
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run one command; return exit code, standard output and standard error.

        A word that is the name of a file of the folder becomes the path of the file.
        """
        paths = {path.name: str(path) for path in self.folder.iterdir()}
        words = [paths.get(word, word) for word in arguments]
        code = run(words)
        out, err = self._capfd.readouterr()
        return code, out, err

    def run_on_metric(
        self, command: str, *arguments: str, name: str = "engine"
    ) -> tuple[int, str, str]:
        """Run a command on a metric of the registry.

        Some commands take the metric as their argument. The arguments of other commands are files,
        and the metric is their option `--metric`.
        """
        is_argument = command in ("simulate", "plan", "privacy", "audit")
        metric_words = (name,) if is_argument else ("--metric", name)
        return self(command, *metric_words, *arguments, "--registry", "metrics.toml")

    def simulate(self, out: str, n: object, *words: str, name: str = "engine") -> str:
        """Simulate n reports of the population; return the path of the file of counts."""
        path = self.path(out)
        options = ("--population", "population.csv", "--reports", str(n), "--seed", "1")
        expect_success(self.run_on_metric("simulate", *options, *words, "--out", path, name=name))
        return path

    def path(self, name: str) -> str:
        """Return the path of a file in the folder. A command that writes the file needs the path.

        `__call__` knows the paths of existing files only.
        """
        return str(self.folder / name)


def expect_success(result: tuple[int, str, str]) -> str:
    """Assert that a command has ended with exit code 0, and return its standard output."""
    code, out, err = result
    assert code == 0, err
    return out


def expect_refusal(result: tuple[int, str, str], code: int = 2) -> str:
    """Assert that a command has failed as documented, and return its message in one line.

    The exit code is 2 after wrong use or input, and 1 if the question has no result. Standard
    output is empty, because the program that reads it would take a sentence for data. A
    `RapporError` is one line that begins with "rappor: ". After a wrong command line, click also
    prints the usage.
    """
    exit_code, out, err = result
    assert (exit_code, out) == (code, ""), err
    assert "Traceback" not in err
    assert err.count("\n") == 1 or not err.startswith("rappor: ")
    return " ".join(err.split())


def write_inputs(folder: Path) -> None:
    """Write the registry, a population of three engines, and the candidates of `engine_strict`."""
    (folder / "metrics.toml").write_text(REGISTRY)
    (folder / "population.csv").write_text("value,weight\nduckduckgo,5\nqwant,3\nother,2\n")
    (folder / "engines.txt").write_text("bing\nduckduckgo\nqwant\n")


def make_uploads(folder: Path, n: int) -> list[bytes]:
    """Return the bodies of n uploads. Each has one report of `engine`, of a device of its own."""
    metric = Registry.load(folder / "metrics.toml").metric("engine")
    return [
        Upload(
            id=Upload.new_id(),
            reports=(encode_value(bytes([i]) * 32, metric, "qwant").report,),
        ).to_json()
        for i in range(n)
    ]
