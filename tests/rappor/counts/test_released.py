"""What a collector releases: its periods, its file, the counts in it, and what is not one."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rappor import Counts, FileError, Params
from rappor.counts.released import Period, Released

PARAMS = Params(k=2, m=2, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
DAYS = [datetime.date(2026, 11, day) for day in range(1, 31)]
ONE = Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page", 7)
TWO = Counts(OTHER, [[1, 3]], [3], "page")
RELEASED = Released(
    metric="page",
    first=DAYS[0],
    last=DAYS[-1],
    periods=(
        Period(first=DAYS[1], last=DAYS[1], collections=(ONE, TWO)),
        Period(first=DAYS[2], last=DAYS[8], collections=(ONE,)),
    ),
    withheld=(DAYS[-2], DAYS[-1]),
)


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of RELEASED with other keys; None takes one away."""
    whole = json.loads(RELEASED.to_json()) | changes
    return {key: value for key, value in whole.items() if value is not None}


def entry(**changes: Any) -> dict[str, Any]:
    """Return the first entry of RELEASED with other keys."""
    return dict(document()["collections"][0]) | changes


def read(found: object) -> Released:
    """Read a document as a collector's answer."""
    return Released.from_json(json.dumps(found).encode())


def test_reports_and_counts_are_of_all_parameters_and_periods() -> None:
    """Nine of one day, and six of the week after it."""
    assert [period.n_reports for period in RELEASED.periods] == [9, 6]
    assert RELEASED.n_reports == 15
    assert RELEASED.collections == [ONE, TWO, ONE]


def test_a_period_is_named_by_its_days() -> None:
    """A day as it is, a stretch by both ends; an end that nobody has named is not shown."""
    names = [period.name for period in RELEASED.periods]
    assert names == ["2026-11-02", "2026-11-03/2026-11-09"]
    first, last, day = datetime.date.min, datetime.date.max, DAYS[0]
    open_ranges = [(first, last), (first, day), (day, last)]
    names = [Period(first=a, last=b, collections=()).name for a, b in open_ranges]
    assert names == ["all days", "to 2026-11-01", "from 2026-11-01"]


def test_a_file_is_read_back(tmp_path: Path) -> None:
    """Days without reports at either end too; it is one line of JSON."""
    path = tmp_path / "page.json"
    RELEASED.save(path)
    assert Released.load(path) == RELEASED
    data = path.read_bytes()
    assert (data.count(b"\n"), data[-1:]) == (1, b"\n")
    found = json.loads(data)
    assert (found["from"], found["to"], found["reports"]) == ("2026-11-01", "2026-11-30", 15)
    assert Counts.load_all(path) == RELEASED.collections


def test_who_reads_a_file_is_not_disturbed_by_a_new_one(tmp_path: Path) -> None:
    """It is replaced as a whole."""
    path = tmp_path / "page.json"
    RELEASED.save(path)
    with path.open("rb") as file:
        dataclasses.replace(RELEASED, periods=(), withheld=()).save(path)
        assert Released.from_json(file.read()) == RELEASED
    assert Released.load(path).n_reports == 0
    assert Counts.load_all(path) == []


def test_entries_without_days_are_of_the_whole_range() -> None:
    """As an answer that nobody asked to divide has them."""
    entries = document()["collections"][:2]
    for entry in entries:
        del entry["from"], entry["to"]
    del entries[1]["devices"]
    (period,) = read(document(collections=entries)).periods
    assert (period.first, period.last) == (DAYS[0], DAYS[-1])
    assert period.collections == (ONE, TWO)


def test_periods_are_in_the_order_of_their_days() -> None:
    """However the entries are ordered."""
    entries = document()["collections"]
    assert read(document(collections=[entries[2], *entries[:2]])) == RELEASED


def test_load_wants_one_parameter_set(tmp_path: Path) -> None:
    """It is that of the answer; of none or several the sentence says how many."""
    path = tmp_path / "page.json"
    for n in (1, 0, 2):
        path.write_text(json.dumps(document(collections=[entry()] * n), indent=1))
        if n == 1:
            assert Counts.load(path) == ONE
            continue
        with pytest.raises(FileError, match=f"one parameter set, got {n}"):
            Counts.load(path)


@pytest.mark.parametrize("load", [Counts.load_all, Released.load])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"metric": "page"}', "it is neither a counts file nor the counts of a collector"),
        ('{"metric":' + "[" * 100_000, "it is neither a counts file nor"),
        ("{", "it is neither a counts file nor"),
        ('{"type": "about:blank", "status": 401}', "it is neither a counts file nor"),
        *(
            (json.dumps(document(collections=collections)), reason)
            for collections, reason in (
                (3, "it is neither a counts file nor"),
                ([3], "it is neither a counts file nor"),
                ([entry(fingerprint="0" * 16)], "its parameters are wrong: fingerprint must be"),
                ([entry(params={"v": 2})], "its parameters are wrong"),
                ([entry(), entry(reports=[1, 1])], "ones must be at most the reports"),
                ([entry(ones=[[3], [0, 2]])], ".*inhomogeneous"),
                ([entry(reports=[4, 1 << 70])], "reports must be integers"),
            )
        ),
        (json.dumps(document(metric=3)), "metric must be a text"),
    ],
)
def test_what_is_no_answer_is_refused(
    load: Callable[[Path], object], text: str, reason: str, tmp_path: Path
) -> None:
    """By whoever reads it, in one sentence that names the file."""
    path = tmp_path / "page.json"
    path.write_text(text)
    with pytest.raises(FileError, match=f"page.json: {reason}"):
        load(path)


NO_ANSWER = "it is not the counts of a collector"
NO_DAY = "its days must be written as 2026-11-30"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"from": None}, NO_ANSWER),
        ({"to": None}, NO_ANSWER),
        ({"withheld": None}, NO_ANSWER),
        ({"withheld": 3}, NO_ANSWER),
        ({"withheld": ["soon"]}, NO_DAY),
        ({"from": 20261101}, NO_DAY),
        ({"to": "2026-11-31"}, NO_DAY),
    ],
)
def test_days_that_are_none_are_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Those of the answer, and those that are withheld."""
    path = tmp_path / "page.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(FileError, match=f"page.json: {reason}"):
        Released.load(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(FileError, match=r"nothing\.json: No such file"):
        Released.load(tmp_path / "nothing.json")
    with pytest.raises(FileError, match="Is a directory"):
        Released.load(tmp_path)
