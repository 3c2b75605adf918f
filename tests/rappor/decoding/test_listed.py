"""The list of a metric's entry: its strings come first, and the share of all others comes last.

A metric may list the strings that its owner expects (`listed`). Further candidates may be passed to
a decode. The tests decode editors: four are listed, two are present and not listed, and `kate` is
an absent candidate.
"""

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
from rappor.decoding.estimates_report import list_joint_shares, report
from rappor.reporting.page import estimates_page
from rappor.reporting.text import estimates_text

LISTED = ("vscode", "vim", "emacs", "ed")
UNLISTED = ("helix", "zed")
"""Editors that devices have, and that the metric does not list. They have 20 % of the reports."""
POPULATION = Population(["vscode", "vim", "emacs", *UNLISTED], [50, 20, 10, 15, 5])
PARAMS = Params.profile("balanced")


@pytest.fixture(scope="module")
def counts() -> Counts:
    """Return 100,000 reports of three listed editors and two unlisted ones; nobody has `ed`."""
    return simulate_counts(POPULATION, PARAMS, n_reports=100_000, seed=1)


def decode_listed(counts: Counts, **options: Any) -> Estimates:
    """Decode with the list of the metric, and with three further candidates."""
    return decode(counts, [*UNLISTED, "kate"], listed=LISTED, **options)


def test_rows_of_the_list_come_first(counts: Counts) -> None:
    """Listed strings have the first rows, detected or not, and other detected strings follow.

    The owner of the metric expects each listed string in the table: a missing row would leave open
    whether the string was tested. `kate` is neither listed nor detected.
    """
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
    """A list changes the order of the rows and adds the share of all others, but no number.

    Listed strings are tested like all other candidates.
    """
    with_list, without_list = decode_listed(counts), decode(counts, [*LISTED, *UNLISTED, "kate"])
    assert without_list.not_listed is None
    rows = {row["candidate"]: row for row in without_list.rows()}
    for row in with_list.rows():
        del row["listed"]
        assert row == rows[row["candidate"]]
    assert decode(counts, listed=LISTED).candidates == decode(counts, LISTED).candidates


def test_other_detected_rows_are_all_rows_after_the_first_ones(counts: Counts) -> None:
    """The share "other detected" contains exactly the detected rows that a chart leaves out.

    A chart begins with the listed strings, here `emacs` with 10 % and the absent `ed`. The two
    largest strings follow, so the share after the two largest rows would contain neither the rows
    of the chart nor all others. Each sum is within five standard errors of the sum of its rows.
    """
    estimates = decode(counts, [*LISTED, *UNLISTED], listed=["ed", "emacs"])
    rows = list(estimates.rows(detected_only=True))
    assert [row["candidate"] for row in rows[:3]] == ["emacs", "ed", "vscode"]
    for n_first in range(len(rows)):
        later = [row["share"] for row in rows[n_first:] if row["detected"]]
        shares = {share.name: share for share in list_joint_shares(estimates, after=n_first)}
        others = shares[f"other detected ({len(later)})"]
        assert abs(others.estimate - sum(later)) < 5 * others.std_error
    names = [share.name for share in list_joint_shares(estimates, after=len(rows))]
    assert names == ["all detected", "unallocated", "not in the list"]


def test_the_share_of_all_others_is_one_less_the_list(counts: Counts) -> None:
    """The share of strings outside the list is 1 minus the sum of the listed shares.

    It has the standard error of this sum, from the joint covariance. The true share of the unlisted
    editors is 20 % and lies within five standard errors. A false alarm has probability 6e-7.
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
    """Listed strings with the same bits count once in the share of all others.

    Each member of an identifiability group has the share of the whole group. With two bits in one
    cohort, eight strings form two groups. A sum over strings would count a group twice.
    """
    params = Params(k=2, h=1, m=1, f=0.0, p=0.25, q=0.75)
    counts = Counts(params, [[6000, 4000]], [10_000])
    names = [f"name {i}" for i in range(8)]
    estimates = decode(counts, names, listed=names[:2])
    assert estimates.group.all()
    rest = estimates.not_listed
    assert rest is not None
    listed_groups = {estimates.group[estimates.candidates.index(name)] for name in names[:2]}
    shares_of_groups = [
        estimates.share[np.flatnonzero(estimates.group == group)[0]] for group in listed_groups
    ]
    assert rest.estimate == pytest.approx(1 - sum(shares_of_groups), abs=1e-12)


def test_share_of_all_others_is_missing_if_its_error_is_infinite() -> None:
    """The share of strings outside the list either has a finite standard error, or is None.

    All 64 bits have equal counts here, so the counts may determine no share of the listed string. A
    number with an infinite error would be printed as a result.
    """
    params = Params(k=64, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(Counts(params, np.full((1, 64), 5), [10]), ["b"], listed=["a"])
    rest = estimates.not_listed
    assert rest is None or math.isfinite(rest.std_error)


def test_spellings_are_those_of_the_devices(counts: Counts) -> None:
    """List and candidates are normalized as devices do, and equal strings become one row."""
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
    """All listed strings have rows, also absent ones, if other candidates have rows only if needed.

    A decode of very many candidates keeps rows for the best ones. The two limits are lowered, so
    that 60,000 candidates are already many.
    """
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
    printed = [row["candidate"] for row in estimates.rows(detected_only=True)]
    assert set(printed[: len(listed)]) == set(listed)
    assert {"helix", "zed"} <= set(printed[len(listed) :])
    assert estimates.not_listed is not None


def test_categories_have_no_list() -> None:
    """A list is refused for categories, because the categories are the list."""
    params = Params.profile("balanced", encoding="onehot", categories=("a", "b"))
    with pytest.raises(DecodeError, match="candidates must be omitted"):
        decode(Counts(params, [[60, 40]], [100]), listed=["a"])


def test_text_and_page_show_the_list_first(counts: Counts) -> None:
    """Terminal and page show the list first, and end with the share of all other strings."""
    estimates = decode_listed(counts)
    lines = estimates_text(estimates).split("\n")
    # One string of the list is not detected, so not every interval is adjusted.
    assert lines[0].endswith("95 % interval, adjusted where detected")
    names = [line.split("  ")[0] for line in lines[1:8]]
    assert names == [
        *("vscode", "vim", "emacs", "ed (not detected)", "helix", "zed", "not in the list")
    ]
    rest = estimates.not_listed
    assert rest is not None
    assert f"{100 * rest.estimate:.2f} %" in lines[7]
    result_report = report(estimates)
    assert [row["candidate"] for row in result_report.rows] == [*LISTED, *UNLISTED, "kate"]
    assert (result_report.unlisted_detected, result_report.unlisted_undetected) == (0, 0)
    page = estimates_page(estimates)
    assert "not in the list" in page
    assert "those of the metric's list first" in html.unescape(page)
