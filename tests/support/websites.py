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

from browsers import site
from click.testing import CliRunner
from collectors import Running, make_token, serving
from node import CLIENT

from rappor.cli.app import cli

README = (CLIENT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the only block of a language on the page."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return str(text)


class Site(NamedTuple):
    """Running website, its collector, and the folder of their files."""

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
        Running.count(self.collector)
        with contextlib.closing(sqlite3.connect(self.folder / "collector.sqlite3")) as db:
            (n,) = db.execute("SELECT TOTAL(reports) FROM tally").fetchone()
        return int(n)


@contextlib.contextmanager
def the_readmes_site(folder: Path, registry: str | None = None) -> Iterator[Site]:
    """Follow the README during a `with` block: registry, its JSON, page, application, collector."""
    (folder / "metrics.toml").write_text(registry or block("toml"))
    (folder / "index.html").write_text(block("html"))
    words = shlex.split(block("sh"))
    assert (words[0], words[-2:]) == ("rappor", [">", "registry.json"])
    (folder / "registry.json").write_text(_printed(folder, words[1:-2]))
    database = f"sqlite:///{folder}/collector.sqlite3"
    with serving(folder, database) as collector, site(_application(folder, collector)) as url:
        yield Site(url, collector, folder)


def _printed(folder: Path, words: list[str]) -> str:
    """Run a command of `rappor` in a folder, and return its output."""
    path = str(folder / "metrics.toml")
    answer = CliRunner().invoke(cli, [path if word == "metrics.toml" else word for word in words])
    assert answer.exit_code == 0, answer.output
    return answer.output


def _application(folder: Path, collector: Running) -> Any:
    """Write and import the README's application, for this collector and this copy."""
    text = block("python").replace("http://127.0.0.1:8080", collector.url)
    (folder / "app.py").write_text(text.replace("/path/to/the/copy/client/javascript", str(CLIENT)))
    spec = importlib.util.spec_from_file_location("site_of_the_readme", folder / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app
