"""`rappor associate`: output and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from registries import format_entry, format_registry
from shell import Shell, expect_success

REGISTRY = (
    format_registry(
        "setup",
        epoch='"quarter"',
        interval='"epoch"',
        encoding='"onehot"',
        profile='"once"',
        categories=(
            "{editor = ['vim', 'code'], system = ['linux', 'mac'], theme = ['light', 'dark']}"
        ),
    )
    + format_entry(
        "visits",
        epoch='"quarter"',
        fields='["site", "country"]',
        profile='"low-noise"',
        candidates='{site = ["a.org", "b.org"], country = ["de", "fr", "jp"]}',
    )
    + format_entry("theme", encoding='"onehot"', categories='["light", "dark"]', profile='"strict"')
)

POPULATIONS = {
    "setup": "vim\tlinux\tlight,4\nvim\tmac\tdark,1\ncode\tlinux\tdark,2\ncode\tmac\tlight,3\n",
    "visits": "a.org\tde,3\na.org\tfr,2\na.org\tjp,1\nb.org\tde,1\nb.org\tfr,1\nb.org\tjp,2\n",
    "theme": "light,2\ndark,1\n",
}


@pytest.fixture
def tuples(shell: Shell) -> Shell:
    """Return a shell in a folder with counts of each metric."""
    (shell.folder / "tuples.toml").write_text(REGISTRY, encoding="utf-8")
    for name, rows in POPULATIONS.items():
        population = shell.folder / f"{name}.csv"
        population.write_text(f"value,weight\n{rows}", encoding="utf-8")
        words = ("simulate", name, "--registry", "tuples.toml", "--population", f"{name}.csv")
        out = shell.path(f"{name}.counts")
        expect_success(shell(*words, "--reports", "2e4", "--seed", "1", "--out", out))
    return shell


def test_two_of_three_fields_are_printed(tuples: Shell) -> None:
    """The output begins with the test of independence, and states the summed field."""
    words = ("associate", "setup.counts", "--registry", "tuples.toml")
    out = expect_success(tuples(*words, "--fields", "editor", "system"))
    assert out.startswith("editor and system depend on each other (p-value")
    assert "Of the reports with each editor, the share of each system:" in out
    assert "Cells are summed over theme." in " ".join(out.split())


def test_strings_are_written_as_files(tuples: Shell) -> None:
    """The JSON has the six cells of a metric of strings. CSV, page and chart are written."""
    names = [tuples.path(name) for name in ("a.csv", "a.html", "a.svg")]
    words = ("associate", "visits.counts", "--registry", "tuples.toml")
    files = ("--csv", names[0], "--html", names[1], "--chart", names[2])
    document = json.loads(expect_success(tuples(*words, *files, "--json")))
    cells = [row for row in document["shares"] if row["kind"] == "cell"]
    assert {(row["row"], row["column"]) for row in cells} == {
        (site, country) for site in ("a.org", "b.org") for country in ("de", "fr", "jp")
    }
    assert document["row_field"] == "site"
    assert document["independence"]["degrees_of_freedom"] == 2
    assert document["independence"]["p_value"] < 1e-6
    csv, page, chart = (Path(name).read_text(encoding="utf-8") for name in names)
    assert len(csv.splitlines()) == 1 + len(document["shares"])
    assert "visits: site and country" in page
    assert chart.startswith("<svg")
