"""`rappor suggest`: what is in a larger list and not among the candidates."""

from __future__ import annotations

import gzip
import json

import pytest
from shell import Shell


@pytest.fixture
def counts(shell: Shell) -> str:
    """Counts of 1e5 devices, of which 3 in 10 hold a string that is no candidate."""
    (shell.place / "population.csv").write_text("value,weight\nbing,4\nqwant,3\nmojek,3\n")
    words = "\n".join(["mojek", "bing", *(f"engine {i}" for i in range(2000))])
    (shell.place / "list.txt").write_text(words)
    (shell.place / "list.txt.gz").write_bytes(gzip.compress(words.encode()))
    simulated = ("--population", "population.csv", "--reports", "1e5", "--seed", "1")
    assert shell.metric("simulate", *simulated, "--out", shell.path("week.counts"))[0] == 0
    return "week.counts"


@pytest.mark.parametrize("listed", ["list.txt", "list.txt.gz"])
def test_a_string_of_the_list_is_suggested(shell: Shell, counts: str, listed: str) -> None:
    """With its share and p-value, and the bits that no candidate explains."""
    words = ("suggest", counts, "--candidates", "engines.txt", "--list", listed)
    code, printed, err = shell(*words, "--level", "0.04", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(printed)
    first = answer["suggestions"][0]
    assert first["string"] == "mojek"
    # Six standard errors: missed with probability 2e-9 under the estimate's normal distribution.
    assert abs(first["count"] - 30_000) < 6 * first["std_error"]
    assert first["p_value"] < 1e-6
    assert answer["candidates"] == 2001
    assert (answer["level"], answer["reports"]) == (0.04, 100_000)
    assert {"cohort", "bit", "share", "std_error"} <= answer["unexplained_bits"][0].keys()
    assert "bing" not in {row["string"] for row in answer["suggestions"]}


def test_the_table_says_the_same(shell: Shell, counts: str) -> None:
    """A sentence, the strings, and the first unexplained bits."""
    words = (counts, "--candidates", "engines.txt", "--list", "list.txt")
    code, printed, _ = shell("suggest", *words)
    assert code == 0
    assert "of 2,001 listed strings explain what the known candidates do not" in printed
    suggested = printed.partition("Suggested")[2]
    assert suggested.split("\n")[2].split()[0] == "mojek"
    assert "Bits that no known candidate explains" in printed


def test_known_candidates_may_be_the_metrics_own(shell: Shell, counts: str) -> None:
    """The registry names their file; its minimum of reports holds."""
    words = (counts, "--registry", "metrics.toml", "--list", "list.txt")
    code, _, err = shell("suggest", *words)
    assert code == 2
    assert "the metric names none" in err
    code, _, err = shell("suggest", *words, "--candidates", "engines.txt", "--metric", "theme")
    assert code == 2
    assert "counts must be of theme, got engine" in err


def test_answers_in_full_need_no_suggestions(shell: Shell) -> None:
    """Of categories all are known."""
    (shell.place / "population.csv").write_text("value,weight\nlight,1\ndark,1\n")
    (shell.place / "list.txt").write_text("light\n")
    simulated = ("--population", "population.csv", "--reports", "1e3", "--metric", "theme")
    out = ("--registry", "metrics.toml", "--out", shell.path("theme.counts"))
    assert shell("simulate", *simulated, *out)[0] == 0
    words = ("theme.counts", "--registry", "metrics.toml", "--list", "list.txt")
    code, _, err = shell("suggest", *words)
    assert code == 2
    assert "every answer of another metric is known" in err


def test_a_list_that_is_not_there_is_told(shell: Shell, counts: str) -> None:
    """Its name, in one sentence."""
    words = (counts, "--candidates", "engines.txt", "--list", "nothing.txt")
    code, _, err = shell("suggest", *words)
    assert code == 2
    assert "nothing.txt" in err
