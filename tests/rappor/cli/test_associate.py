"""`rappor associate`: output, files, and refusals of metrics and candidates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from registries import format_entry, format_registry
from shell import Shell, expect_refusal, expect_success

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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("setup.counts", "fields must be two of editor, system, theme: name the two to compare"),
        ("setup.counts --fields editor shell", "two different ones of editor, system, theme, got"),
        ("setup.counts --fields editor editor", "two different ones of editor, system, theme, got"),
        ("theme.counts", "the metric must be a tuple, got one without fields"),
        ("visits.counts --candidates part.txt", "all 4 combinations .* got 3: b \\| fr is missing"),
        ("visits.counts --candidates many.txt", "at most 2,048 for an association, got 2,050"),
        ("visits.counts --candidates one.txt", "field country must have at least 2 values, got 1"),
    ],
)
def test_fields_and_candidates_without_a_table_are_refused(
    tuples: Shell, words: str, sentence: str
) -> None:
    """Unsuitable fields, metrics and candidates give one sentence and exit code 1."""
    lists = {
        "part.txt": [("a", "de"), ("a", "fr"), ("b", "de")],
        "many.txt": [(f"s{i}", f"c{j}") for i in range(1025) for j in range(2)],
        "one.txt": [("a", "de"), ("b", "de")],
    }
    for name, pairs in lists.items():
        text = "".join(f"{site}\t{country}\n" for site, country in pairs)
        (tuples.folder / name).write_text(text, encoding="utf-8")
    result = tuples("associate", *words.split(), "--registry", "tuples.toml")
    assert re.search(sentence, expect_refusal(result, code=1))


def test_one_field_is_a_usage_error(tuples: Shell) -> None:
    """--fields takes two names."""
    result = tuples("associate", "setup.counts", "--registry", "tuples.toml", "--fields", "editor")
    assert "--fields" in expect_refusal(result)
