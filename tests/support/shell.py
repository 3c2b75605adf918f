"""A shell in a folder with a registry, a population and candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor import Registry, Upload, encode_value
from rappor.cli.app import run

SECRET = "07" * 32

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


class Shell:
    """Shell that runs commands of `rappor` in one folder and returns their output."""

    def __init__(self, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Store the folder and the fixture that captures the output."""
        self.place = place
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run one command; return exit code, standard output and standard error.

        A word that is the name of a file of the folder becomes the path of the file.
        """
        known = {path.name: str(path) for path in self.place.iterdir()}
        words = [known.get(word, word) for word in arguments]
        code = run(words)
        out, err = self._capfd.readouterr()
        return code, out, err

    def metric(self, command: str, *arguments: str, name: str = "engine") -> tuple[int, str, str]:
        """Run a command of one metric, which is an argument unless the arguments are files."""
        takes_metric = command in ("simulate", "plan", "privacy", "audit")
        named = (name,) if takes_metric else ("--metric", name)
        return self(command, *named, *arguments, "--registry", "metrics.toml")

    def simulated(self, out: str, n: object, *words: str, name: str = "engine") -> str:
        """Simulate n reports of the population; return the path of the file."""
        path = self.path(out)
        given = ("--population", "population.csv", "--reports", str(n), "--seed", "1")
        ok(self.metric("simulate", *given, *words, "--out", path, name=name))
        return path

    def path(self, name: str) -> str:
        """Return the path of a file in the folder, for a command that writes it."""
        return str(self.place / name)


def ok(answer: tuple[int, str, str]) -> str:
    """Return the standard output of a successful command."""
    code, out, err = answer
    assert code == 0, err
    return out


def refused(answer: tuple[int, str, str], code: int = 2) -> str:
    """Return the error sentence of a command that ended with this exit code and printed no result.

    The error of the library is one line. A wrong command line also prints the usage.
    """
    got, out, err = answer
    assert (got, out) == (code, ""), err
    assert "Traceback" not in err
    assert err.count("\n") == 1 or not err.startswith("rappor: ")
    return " ".join(err.split())


def fill(folder: Path) -> None:
    """Write a registry, a population and candidates."""
    (folder / "metrics.toml").write_text(REGISTRY)
    (folder / "population.csv").write_text("value,weight\nduckduckgo,5\nqwant,3\nother,2\n")
    (folder / "engines.txt").write_text("bing\nduckduckgo\nqwant\n")


def uploads(place: Path, n: int) -> list[bytes]:
    """Make n uploads of one report each."""
    metric = Registry.load(place / "metrics.toml").metric("engine")
    return [
        Upload(
            id=Upload.new_id(),
            reports=(encode_value(bytes([i]) * 32, metric, "qwant").report,),
        ).to_json()
        for i in range(n)
    ]
