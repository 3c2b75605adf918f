"""`rappor compare`: samples from files, and the printed differences."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from decodings import released
from shell import Shell, ok, refused

from rappor import Counts, Population, Registry, simulate_counts

DAY = datetime.date(2026, 11, 2)


@pytest.fixture
def samples(shell: Shell) -> Shell:
    """Return a shell in a folder with two counts files and a file of two days.

    The string qwant leaves.
    """
    params = Registry.load(shell.place / "metrics.toml")["engine"].params
    may, june = (
        simulate_counts(
            Population(["duckduckgo", "qwant"], shares),
            params,
            n_reports=5e4,
            seed=i,
            metric="engine",
        )
        for i, shares in enumerate(([5, 5], [10, 0]))
    )
    may.save(shell.place / "may.counts")
    june.save(shell.place / "june.counts")
    days = {DAY: may, DAY + datetime.timedelta(1): june}
    released(days, "engine").save(shell.place / "days.json")
    return shell


@pytest.mark.slow
def test_changes_are_listed(samples: Shell) -> None:
    """The output has a leaver, a rise, the overall test and a page."""
    page = samples.path("changes.html")
    words = ("compare", "may.counts", "june.counts", "--candidates", "engines.txt")
    out = ok(samples(*words, "--html", page))
    assert "What changed from may to june" in Path(page).read_text(encoding="utf-8")
    lines = out.splitlines()
    assert lines[0] == "from may to june"
    rows = {line.split()[0]: line.split()[1] for line in lines[2:4]}
    assert rows == {"qwant": "leaver", "duckduckgo": "rise"}
    assert "2 of 3 differences are significant" in out
    assert "significant: from may to june (p = " in " ".join(out.split())
    assert "It is not known how many devices are in both samples" in " ".join(out.split())


@pytest.mark.slow
def test_periods_of_one_file_are_samples(samples: Shell) -> None:
    """The periods of one file become samples named by their days. --all lists every candidate."""
    words = ("--candidates", "engines.txt", "--all", "--json")
    document = json.loads(ok(samples("compare", "days.json", *words)))
    assert [sample["name"] for sample in document["samples"]] == ["2026-11-02", "2026-11-03"]
    assert len(document["rows"]) == 3 * document["candidates"] == 9


def test_the_registry_names_candidates_and_the_minimum(samples: Shell) -> None:
    """Each sample must have the metric's minimum number of reports."""
    strict = Registry.load(samples.place / "metrics.toml")["engine_strict"].params
    for name, n in (("many", 9000), ("few", 4000)):
        counts = Counts.zero(strict, "engine_strict")
        population = Population(["qwant"], [1])
        counts += simulate_counts(population, strict, n_reports=n, seed=1, metric="engine_strict")
        counts.save(samples.place / f"{name}.counts")
    words = ("--registry", "metrics.toml")
    assert samples("compare", "many.counts", "many.counts", *words)[0] == 2
    err = refused(samples("compare", "many.counts", "few.counts", *words), 1)
    assert "at least 5,000 reports" in err
