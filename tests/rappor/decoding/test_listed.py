"""The list of a metric's entry: its strings come first, and the share of all others comes last."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from typing import Any

import numpy as np
import pytest

from rappor import Candidates, Counts, Params, Population, decode, simulate_counts
from rappor.base.errors import DecodeError
from rappor.decoding import decoder
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import report
from rappor.reporting.page import estimates_page
from rappor.reporting.text import estimates_text

LISTED = ("vscode", "vim", "emacs", "ed")
FOUND = ("helix", "zed")
POPULATION = Population(["vscode", "vim", "emacs", *FOUND], [50, 20, 10, 15, 5])
PARAMS = Params.profile("balanced")


@pytest.fixture(scope="module")
def counts() -> Counts:
    """100,000 reports of three listed editors and two others; nobody has `ed`."""
    return simulate_counts(POPULATION, PARAMS, n_reports=100_000, seed=1)


def decode_listed(counts: Counts, **options: Any) -> Estimates:
    return decode(counts, [*FOUND, "kate"], listed=LISTED, **options)


def test_rows_of_the_list_come_first(counts: Counts) -> None:
    """Detected or not; then what else is detected; `kate`, which is neither, only in full."""
    estimates = decode_listed(counts)
    first = ["vscode", "vim", "emacs", "ed", "helix", "zed"]
    assert [row["candidate"] for row in estimates.rows(detected_only=True)] == first
    assert [row["candidate"] for row in estimates.rows()] == [*first, "kate"]
    assert [row["listed"] for row in estimates.rows()] == [True] * 4 + [False] * 3
    table = list(csv.DictReader(io.StringIO(estimates.to_csv(detected_only=True))))
    assert [row["candidate"] for row in table] == first
    assert [row["listed"] for row in table] == ["True"] * 4 + ["False"] * 2


@pytest.mark.slow
def test_a_list_changes_no_number(counts: Counts) -> None:
    """Listed strings are candidates like all others: only the order and the last line are new."""
    with_list, plain = decode_listed(counts), decode(counts, [*LISTED, *FOUND, "kate"])
    assert plain.not_listed is None
    rows = {row["candidate"]: row for row in plain.rows()}
    for row in with_list.rows():
        del row["listed"]
        assert row == rows[row["candidate"]]
    assert decode(counts, listed=LISTED).candidates == decode(counts, LISTED).candidates


def test_the_share_of_all_others_is_one_less_the_list(counts: Counts) -> None:
    """With the error of the sum of its strings; the truth, 20 %, is within five of them.

    A false alarm has probability 6e-7.
    """
    estimates = decode_listed(counts)
    rest, total = estimates.not_listed, estimates.total(LISTED)
    assert rest is not None
    assert rest.estimate == pytest.approx(1 - total.estimate, abs=1e-12)
    assert rest.std_error == pytest.approx(total.std_error, rel=1e-9)
    assert rest.ci_high - rest.ci_low == pytest.approx(2 * 1.959964 * rest.std_error, rel=1e-6)
    assert abs(rest.estimate - 0.2) < 5 * rest.std_error
    assert json.loads(estimates.to_json())["not_listed"]["estimate"] == rest.estimate


def test_indistinguishable_strings_count_once() -> None:
    """With one bit in one cohort apart, two strings are one entry: their total is one share."""
    params = Params(k=2, h=1, m=1, f=0.0, p=0.25, q=0.75)
    counts = Counts(params, [[6000, 4000]], [10_000])
    names = [f"name {i}" for i in range(8)]
    estimates = decode(counts, names, listed=names[:2])
    assert estimates.group.all()
    rest = estimates.not_listed
    assert rest is not None
    listed = {estimates.group[estimates.candidates.index(name)] for name in names[:2]}
    of_groups = {
        group: estimates.share[np.flatnonzero(estimates.group == group)[0]] for group in listed
    }
    assert rest.estimate == pytest.approx(1 - sum(of_groups.values()), abs=1e-12)


def test_nothing_is_said_of_a_list_that_the_counts_say_nothing_about() -> None:
    """A cohort in which nobody has reported leaves no error to show."""
    params = Params(k=64, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(Counts(params, np.full((1, 64), 5), [10]), ["b"], listed=["a"])
    rest = estimates.not_listed
    assert rest is None or math.isfinite(rest.std_error)


def test_spellings_are_those_of_the_devices(counts: Counts) -> None:
    """Both the list and the other candidates are normalised; equal ones are one row."""
    params = Params.profile("balanced", normalize="casefold")
    folded = Counts(params, counts.bit_counts, counts.cohort_reports)
    estimates = decode(folded, ["VIM", "Helix"], listed=["Vscode", "Vim"])
    assert list(estimates.candidates) == ["vscode", "vim", "helix"]
    assert estimates.listed == {"vscode", "vim"}


@pytest.mark.slow
@pytest.mark.parametrize("is_stream", [False, True])
def test_of_many_candidates_listed_ones_have_rows(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    """Also those of which nothing was reported, where only the best candidates have rows."""
    monkeypatch.setattr(decoder, "MOST_ROWS", 1)
    monkeypatch.setattr(decoder, "SCREENED", 4)
    absent = [f"absent {i}" for i in range(60_000)]
    names = [*absent, "helix", "vim", "zed"]
    candidates = Candidates.from_stream(lambda: names) if is_stream else names
    listed = (*LISTED, *(f"nobody {i}" for i in range(50)))
    estimates = decode(counts, candidates, listed=listed)
    assert estimates.n_candidates == len(set(names) | set(listed))
    assert len(estimates) < 30_000
    assert set(listed) <= set(estimates.candidates)
    displayed = [row["candidate"] for row in estimates.rows(detected_only=True)]
    assert set(displayed[: len(listed)]) == set(listed)
    assert {"helix", "zed"} <= set(displayed[len(listed) :])
    assert estimates.not_listed is not None


def test_categories_have_no_list() -> None:
    """Their values are all known."""
    params = Params.profile("balanced", encoding="onehot", categories=("a", "b"))
    with pytest.raises(DecodeError, match="candidates must be omitted"):
        decode(Counts(params, [[60, 40]], [100]), listed=["a"])


def test_text_and_page_show_the_list_first(counts: Counts) -> None:
    """The last line of both has the share of all strings that are not in the list."""
    estimates = decode_listed(counts)
    lines = estimates_text(estimates).split("\n")
    names = [line.split("  ")[0] for line in lines[1:8]]
    assert names == [
        *("vscode", "vim", "emacs", "ed (not detected)", "helix", "zed", "not in the list")
    ]
    rest = estimates.not_listed
    assert rest is not None
    assert f"{100 * rest.estimate:.2f} %" in lines[7]
    result_report = report(estimates)
    assert [row["candidate"] for row in result_report.rows] == [*LISTED, *FOUND, "kate"]
    assert (result_report.unlisted_detected, result_report.unlisted_undetected) == (0, 0)
    page = estimates_page(estimates)
    assert "not in the list" in page
    assert "those of the metric's list first" in html.unescape(page)
