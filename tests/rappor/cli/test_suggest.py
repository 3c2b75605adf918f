"""`rappor discover --list`: strings of a long list that explain the remaining bits of the counts.

Bits are unexplained if known strings set them too rarely.
"""

from __future__ import annotations

import gzip
import json

import pytest
from shell import Shell, expect_refusal, expect_success

from rappor import Params, Population, simulate_counts
from rappor.reporting.numbers import format_p_value, format_share


@pytest.fixture
def counts(shell: Shell) -> str:
    """Return the counts of 1e5 devices, 30 % of them with a string that is no candidate, mojek."""
    (shell.folder / "population.csv").write_text("value,weight\nbing,4\nqwant,3\nmojek,3\n")
    words = "\n".join(["mojek", "bing", *(f"engine {i}" for i in range(2000))])
    (shell.folder / "list.txt").write_text(words)
    (shell.folder / "list.txt.gz").write_bytes(gzip.compress(words.encode()))
    return shell.simulate("week.counts", "1e5")


def test_a_string_of_the_list_is_suggested(shell: Shell, counts: str) -> None:
    """The JSON has mojek with its number of devices and p-value, and the unexplained bits.

    The list may be compressed by gzip.
    """
    words = ("discover", counts, "--known", "engines.txt", "--list", "list.txt.gz")
    code, printed, err = shell(*words, "--level", "0.04", "--json")
    assert (code, err) == (0, "")
    document = json.loads(printed)
    first = document["suggestions"][0]
    assert first["string"] == "mojek"
    # A normal estimate misses by six standard errors with probability 2e-9.
    assert abs(first["count"] - 30_000) < 6 * first["std_error"]
    assert first["p_value"] < 1e-6
    assert document["candidates"] == 2001
    assert (document["level"], document["reports"]) == (0.04, 100_000)
    assert document["assumptions"].startswith(
        "Assumed: each of 100,000 reports comes from a different device"
    )
    assert {"cohort", "bit", "share", "std_error"} <= document["unexplained_bits"][0].keys()
    assert "bing" not in {row["string"] for row in document["suggestions"]}


@pytest.mark.slow
def test_the_text_has_the_numbers_of_the_json(shell: Shell) -> None:
    """The text has a sentence, the suggested strings, and the bits of each parameter set.

    Markup in a string is printed as text.
    """
    population = Population(["bing", "qwant", "[b]mojek[/b]"], [4, 3, 3])
    for profile in ("balanced", "strict"):
        counts = simulate_counts(population, Params.profile(profile), n_reports=1e5, seed=1)
        counts.save(shell.path(f"{profile}.counts"))
    (shell.folder / "list.txt").write_text("[b]mojek[/b]\nbing\nstartpage\n")
    files = ("strict.counts", "balanced.counts")
    words = (*files, "--known", "engines.txt", "--list", "list.txt")
    code, printed, _ = shell("discover", *words, "--level", "0.04")
    document = json.loads(shell("discover", *words, "--level", "0.04", "--json")[1])
    text = " ".join(printed.split())
    assert code == 0
    assert f"1 of {document['candidates']} listed strings explain what the known" in text
    assert "at a false discovery rate of 4 %." in text
    (row,) = document["suggestions"]
    reports, error = f"{row['count']:,.0f}", row["std_error"]
    number = f"{reports} {error:,.0f} {format_share(row['share'], error / document['reports'])}"
    assert f"[b]mojek[/b] {number} {format_p_value(row['p_value'])}" in text
    assert {bit["collection"] for bit in document["unexplained_bits"]} == {0, 1}
    for bit in document["unexplained_bits"]:
        position = f"{bit['collection']} {bit['cohort']} {bit['bit']}"
        share, error = bit["share"], bit["std_error"]
        assert f"{position} {format_share(share, error)} {format_share(error, error)}" in text


def test_without_a_suggestion_there_are_no_tables(shell: Shell, counts: str) -> None:
    """Without a suggestion, the sentence states it and no table follows."""
    (shell.folder / "engines.txt").write_text("bing\nmojek\nqwant\n")
    (shell.folder / "list.txt").write_text("startpage\nkarma\n")
    words = ("--known", "engines.txt", "--list", "list.txt", "--level", "1e-9")
    printed = expect_success(shell("discover", counts, *words))
    assert printed.startswith("0 of 2 listed strings explain")
    assert "Suggested" not in printed
    assert "Bits that" not in printed


@pytest.mark.parametrize("method", ["bh", "adaptive", "bonferroni"])
def test_a_list_of_known_strings_is_refused(shell: Shell, counts: str, method: str) -> None:
    """A list without a further string has nothing to test, so no correction divides by 0 tests."""
    (shell.folder / "engines.txt").write_text("bing\nqwant\n")
    words = ("--known", "engines.txt", "--list", "engines.txt", "--correction", method)
    err = expect_refusal(shell("discover", counts, *words), 1)
    assert err.endswith("listed must have at least 1 string that is not known, got 0")


def test_known_strings_may_come_from_the_registry(shell: Shell, counts: str) -> None:
    """Without --known, the candidates of the metric are the known strings.

    The metric's minimum of reports applies.
    """
    words = ("--registry", "metrics.toml", "--list", "list.txt")
    for n_reports, expected in ((4999, 1), (5000, 0)):
        shell.simulate("strict.counts", n_reports, name="engine_strict")
        code, _, err = shell("discover", "strict.counts", *words)
        assert (code, "at least 5,000 reports, the minimum of engine_strict" in err) == (
            expected,
            bool(expected),
        )
    assert "the metric names none" in expect_refusal(shell("discover", counts, *words))
    err = expect_refusal(
        shell("discover", counts, *words, "--known", "engines.txt", "--metric", "theme")
    )
    assert "counts must be of theme, got engine" in err


def test_strings_of_the_list_are_normalized(shell: Shell) -> None:
    """Strings of the list are normalized as on a device, here to the host of an address."""
    toml = (shell.folder / "metrics.toml").read_text()
    (shell.folder / "metrics.toml").write_text(
        toml.replace('encoding = "bloom"', 'encoding = "bloom"\nnormalize = "host"')
    )
    (shell.folder / "population.csv").write_text("value,weight\nqwant,7\nmojek.example,3\n")
    (shell.folder / "list.txt").write_text("https://Mojek.example/search\n")
    shell.simulate("week.counts", "1e4")
    words = ("week.counts", "--known", "engines.txt", "--list", "list.txt", "--json")
    (row,) = json.loads(shell("discover", *words)[1])["suggestions"]
    assert row["string"] == "mojek.example"


def test_categories_have_no_suggestions(shell: Shell) -> None:
    """A metric of categories is refused, because all its values are known."""
    (shell.folder / "population.csv").write_text("value,weight\nlight,1\ndark,1\n")
    (shell.folder / "list.txt").write_text("light\n")
    shell.simulate("theme.counts", "1e3", name="theme")
    words = ("theme.counts", "--registry", "metrics.toml", "--list", "list.txt")
    assert "other metrics have a fixed list of categories" in expect_refusal(
        shell("discover", *words)
    )
