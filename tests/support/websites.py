"""Website of client/javascript/README.md for tests, with a collector of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from browsers import run_web_application
from click.testing import CliRunner
from collectors import Running, make_token, run_collector
from node import CLIENT

from rappor.cli.app import cli

README = (CLIENT / "README.md").read_text(encoding="utf-8")


def read_block(language: str) -> str:
    """Return the text of the only code block of a language in the README."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return str(text)


class Site(NamedTuple):
    """A running website, its collector, and the folder of their files."""

    url: str
    collector: Running
    folder: Path

    @property
    def token(self) -> str:
        """A new read token of the collector."""
        return make_token(self.database)

    @property
    def database(self) -> str:
        """The address of the collector's database."""
        return f"sqlite:///{self.folder}/collector.sqlite3"

    def n_received(self) -> int:
        """Return the number of reports that the collector has counted."""
        self.collector.merge_uploads()
        with contextlib.closing(sqlite3.connect(self.folder / "collector.sqlite3")) as db:
            (n,) = db.execute("SELECT TOTAL(reports) FROM tally").fetchone()
        return int(n)


@contextlib.contextmanager
def run_readme_site(folder: Path, registry: str | None = None) -> Iterator[Site]:
    """Run the website of the README while the block runs.

    The function does what the README tells a reader to do. It writes the registry (or another
    registry in its place), converts the registry to JSON, writes the page, and starts the collector
    and the application.
    """
    (folder / "metrics.toml").write_text(registry or read_block("toml"))
    (folder / "index.html").write_text(read_block("html"))
    words = shlex.split(read_block("sh"))
    assert (words[0], words[-2:]) == ("rappor", [">", "registry.json"])
    (folder / "registry.json").write_text(_run_rappor(folder, words[1:-2]))
    database = f"sqlite:///{folder}/collector.sqlite3"
    with (
        run_collector(folder, database) as collector,
        run_web_application(_import_app(folder, collector)) as url,
    ):
        yield Site(url, collector, folder)


def _run_rappor(folder: Path, words: list[str]) -> str:
    """Run a command of `rappor` on the registry of a folder, and return its output."""
    path = str(folder / "metrics.toml")
    result = CliRunner().invoke(cli, [path if word == "metrics.toml" else word for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def _import_app(folder: Path, collector: Running) -> Any:
    """Write and import the application of the README, with the address of this collector.

    The application serves the client of this repository.
    """
    text = read_block("python").replace("http://127.0.0.1:8080", collector.url)
    (folder / "app.py").write_text(text.replace("/path/to/the/copy/client/javascript", str(CLIENT)))
    spec = importlib.util.spec_from_file_location("site_of_the_readme", folder / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app
