"""Released counts: the counts of a metric by period, as a collector returns and a file stores."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rappor import Counts, FileError, Params
from rappor.counts.released_counts import Period, ReleasedCounts

PARAMS = Params(k=2, m=2, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
DAYS = [datetime.date(2026, 11, day) for day in range(1, 31)]
FIRST_COUNTS = Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page", 7)
OTHER_COUNTS = Counts(OTHER, [[1, 3]], [3], "page")
"""Counts under another parameter set. A metric has several if its entry changed."""

RELEASED = ReleasedCounts(
    metric="page",
    first=DAYS[0],
    last=DAYS[-1],
    periods=(
        Period(first=DAYS[1], last=DAYS[1], collections=(FIRST_COUNTS, OTHER_COUNTS)),
        Period(first=DAYS[2], last=DAYS[8], collections=(FIRST_COUNTS,)),
    ),
    withheld=(DAYS[-2], DAYS[-1]),
)
"""Example of a response: a day with two parameter sets, a week with one, and two days whose reports
are not released yet."""


def make_document(**changes: Any) -> dict[str, Any]:
    """Return the JSON object of `RELEASED` with changed keys. None removes a key."""
    document = json.loads(RELEASED.to_json()) | changes
    return {key: value for key, value in document.items() if value is not None}


def make_entry(**changes: Any) -> dict[str, Any]:
    """Return the first entry of `RELEASED`, the counts of a period, with changed keys."""
    return dict(make_document()["collections"][0]) | changes


def parse(document: object) -> ReleasedCounts:
    """Parse a document as the response of a collector."""
    return ReleasedCounts.from_json(json.dumps(document).encode())


def test_reports_and_counts_include_all_parameters_and_periods() -> None:
    """Numbers of reports are sums over all parameter sets of a period: 4 + 2 + 3, and 4 + 2."""
    assert [period.n_reports for period in RELEASED.periods] == [9, 6]
    assert RELEASED.n_reports == 15
    assert RELEASED.collections == [FIRST_COUNTS, OTHER_COUNTS, FIRST_COUNTS]


def test_a_period_is_named_by_its_days() -> None:
    """The name of a period is its day, or its first and last day. An open end is not written."""
    names = [period.name for period in RELEASED.periods]
    assert names == ["2026-11-02", "2026-11-03/2026-11-09"]
    first, last, day = datetime.date.min, datetime.date.max, DAYS[0]
    open_ranges = [(first, last), (first, day), (day, last)]
    names = [Period(first=a, last=b, collections=()).name for a, b in open_ranges]
    assert names == ["all days", "to 2026-11-01", "from 2026-11-01"]


def test_a_file_is_read_back(tmp_path: Path) -> None:
    """A saved file is one line of JSON with the requested days, and is read back.

    `Counts.load_all` reads the counts of all periods from the same file.
    """
    path = tmp_path / "page.json"
    RELEASED.save(path)
    assert ReleasedCounts.load(path) == RELEASED
    data = path.read_bytes()
    assert (data.count(b"\n"), data[-1:]) == (1, b"\n")
    document = json.loads(data)
    assert (document["from"], document["to"], document["reports"]) == (
        "2026-11-01",
        "2026-11-30",
        15,
    )
    assert Counts.load_all(path) == RELEASED.collections


def test_a_reader_of_a_file_sees_no_half_written_file(tmp_path: Path) -> None:
    """Saving replaces a file as a whole, so a program that reads the old file is not disturbed."""
    path = tmp_path / "page.json"
    RELEASED.save(path)
    with path.open("rb") as file:
        dataclasses.replace(RELEASED, periods=(), withheld=()).save(path)
        assert ReleasedCounts.from_json(file.read()) == RELEASED
    assert ReleasedCounts.load(path).n_reports == 0
    assert Counts.load_all(path) == []


def test_entries_without_days_have_the_days_of_the_document() -> None:
    """An entry without days has the days of the whole document.

    A collector returns such entries if the request asks for no periods.
    """
    entries = make_document()["collections"][:2]
    for entry in entries:
        del entry["from"], entry["to"]
    del entries[1]["devices"]
    (period,) = parse(make_document(collections=entries)).periods
    assert (period.first, period.last) == (DAYS[0], DAYS[-1])
    assert period.collections == (FIRST_COUNTS, OTHER_COUNTS)


def test_periods_are_in_the_order_of_their_days() -> None:
    """Periods are sorted by their days, whatever the order of the entries in the document."""
    entries = make_document()["collections"]
    assert parse(make_document(collections=[entries[2], *entries[:2]])) == RELEASED


def test_load_needs_one_parameter_set(tmp_path: Path) -> None:
    """`Counts.load` returns one `Counts`, so it refuses a file with no entry or several.

    The message has their number.
    """
    path = tmp_path / "page.json"
    for n in (1, 0, 2):
        path.write_text(json.dumps(make_document(collections=[make_entry()] * n), indent=1))
        if n == 1:
            assert Counts.load(path) == FIRST_COUNTS
            continue
        with pytest.raises(FileError, match=f"one parameter set, got {n}"):
            Counts.load(path)


@pytest.mark.parametrize("load", [Counts.load_all, ReleasedCounts.load])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"metric": "page"}', "it is neither a counts file nor the counts of a collector"),
        ('{"metric":' + "[" * 100_000, "it is neither a counts file nor"),
        ("{", "it is neither a counts file nor"),
        ('{"type": "about:blank", "status": 401}', "it is neither a counts file nor"),
        *(
            (json.dumps(make_document(collections=collections)), reason)
            for collections, reason in (
                (3, "it is neither a counts file nor"),
                ([3], "it is neither a counts file nor"),
                (
                    [make_entry(fingerprint="0" * 16)],
                    "its parameters are wrong: fingerprint must be",
                ),
                ([make_entry(params={"v": 2})], "its parameters are wrong"),
                ([make_entry(), make_entry(reports=[1, 1])], "ones must be at most the reports"),
                ([make_entry(ones=[[3], [0, 2]])], ".*inhomogeneous"),
                ([make_entry(reports=[4, 1 << 70])], "reports must be integers"),
            )
        ),
        (json.dumps(make_document(metric=3)), "metric must be a text"),
    ],
)
def test_other_documents_are_refused(
    load: Callable[[Path], object], text: str, reason: str, tmp_path: Path
) -> None:
    """A file that is not the response of a collector is refused by both readers.

    The message is one sentence with the name of the file and the reason.
    """
    path = tmp_path / "page.json"
    path.write_text(text)
    with pytest.raises(FileError, match=f"page.json: {reason}"):
        load(path)


NOT_COUNTS = "it is not the counts of a collector"
WRONG_DAY = "its days must be written as 2026-11-30"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"from": None}, NOT_COUNTS),
        ({"to": None}, NOT_COUNTS),
        ({"withheld": None}, NOT_COUNTS),
        ({"withheld": 3}, NOT_COUNTS),
        ({"withheld": ["soon"]}, WRONG_DAY),
        ({"from": 20261101}, WRONG_DAY),
        ({"to": "2026-11-31"}, WRONG_DAY),
    ],
)
def test_missing_and_wrong_days_are_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """The first and the last day of the document, and the withheld days, must be dates."""
    path = tmp_path / "page.json"
    path.write_text(json.dumps(make_document(**changes)))
    with pytest.raises(FileError, match=f"page.json: {reason}"):
        ReleasedCounts.load(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read is refused with the reason of the operating system."""
    with pytest.raises(FileError, match=r"nothing\.json: No such file"):
        ReleasedCounts.load(tmp_path / "nothing.json")
    with pytest.raises(FileError, match="Is a directory"):
        ReleasedCounts.load(tmp_path)
