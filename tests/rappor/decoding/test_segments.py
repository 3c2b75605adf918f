"""Shares in segments: each alone, differences from the largest, and dimensions added up."""

from __future__ import annotations

import csv
import io
import json

import pytest

from rappor import Counts, Params, Population, by_segment, compare, decode, simulate_counts
from rappor.decoding.detection import Detection
from rappor.decoding.segments.segments import Segments
from rappor.ground.errors import DecodeError

PARAMS = Params(k=32, h=1, m=16, f=0.25, p=0.2, q=0.8)
NAMES = ["cat", "dog", "emu"]
ABSENT = [f"x{i}" for i in range(20)]


def counts_of(weights: list[float], n: float, seed: int, **segment: str) -> Counts:
    params = PARAMS.in_segment(tuple(sorted(segment.items())))
    population = Population(NAMES, weights)
    return simulate_counts(population, params, n_reports=n, seed=seed, metric="pet")


SMALL = counts_of([1, 1, 2], 2e4, 1, version="2", country="de")
LARGE = counts_of([2, 1, 1], 6e4, 2, version="1", country="de")
OTHER = counts_of([2, 1, 1], 3e4, 3, version="1", country="other")


@pytest.fixture(scope="module")
def found() -> Segments:
    return by_segment([SMALL, LARGE, OTHER], NAMES + ABSENT)


def test_each_segment_is_a_decode_of_its_own_the_largest_first(found: Segments) -> None:
    """The estimates of its counts alone, whose reports and values are named."""
    assert [each.name for each in found.segments] == [
        "country=de, version=1",
        "country=other, version=1",
        "country=de, version=2",
    ]
    assert found.segments[2].values == {"country": "de", "version": "2"}
    assert [each.reports for each in found.segments] == [60_000, 30_000, 20_000]
    assert set(found.candidates) == set(NAMES)
    for number, counts in enumerate((LARGE, OTHER, SMALL)):
        alone = decode(counts.unsegmented, NAMES + ABSENT)
        shares = dict(zip(alone.candidates, alone.proportion, strict=True))
        for column, name in enumerate(found.candidates):
            assert found.levels.proportion[number, column] == shares[name]


def test_differences_are_those_of_other_devices_from_the_largest(found: Segments) -> None:
    """As `compare` finds them at overlap 0; what differs is told."""
    samples = {
        each.name: counts.unsegmented
        for each, counts in zip(found.segments, (LARGE, OTHER, SMALL), strict=True)
    }
    again = compare(
        samples, found.candidates, overlap=0.0, detection=Detection(level=0.05 * 3 / 23)
    )
    ours = {(row["segment"], row["candidate"]): row for row in found.rows() if "difference" in row}
    assert len(ours) == 6
    for row in again.rows():
        mine = ours[row["sample"], row["candidate"]]
        assert (mine["difference"], mine["differs"]) == (row["difference"], row["changed"])
    differing = {key for key, row in ours.items() if row["differs"]}
    assert {("country=de, version=2", "cat"), ("country=de, version=2", "emu")} <= differing


def test_devices_of_two_segments_are_others_and_report_as_often_as_their_counts_say() -> None:
    """That is said of the differences, whatever the bits would suggest."""
    found = by_segment([SMALL.of_devices(1e4), LARGE], NAMES)
    assert [each.devices for each in found.segments] == pytest.approx([60_000, 10_000])
    assert found.differences is not None
    assert [each.overlap for each in found.differences.against] == [0.0]
    assert "0.00 of country=de, version=2 (as given)" in found.differences.assumed


def test_a_dimension_adds_up_what_is_told_beside_it() -> None:
    """Two versions, the first one of both countries."""
    found = by_segment([SMALL, LARGE, OTHER], NAMES, dimension="version")
    assert [(each.name, each.reports) for each in found.segments] == [
        ("version=1", 90_000),
        ("version=2", 20_000),
    ]


def test_answers_and_devices_that_tell_nothing() -> None:
    """All answers are shown; who tells no segment has one of its own name."""
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    told = simulate_counts(
        population, params.in_segment((("version", "1"),)), n_reports=2000, seed=1
    )
    untold = simulate_counts(population, params, n_reports=1000, seed=2)
    found = by_segment([told, untold])
    assert [each.name for each in found.segments] == ["version=1", "not told"]
    assert found.candidates == ("no", "yes")


def test_json_and_csv_have_the_rows_of_the_record(found: Segments) -> None:
    """Every string in every segment."""
    document = json.loads(found.to_json())
    assert document["rows"] == list(found.rows())
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["segment"] for row in table] == [row["segment"] for row in found.rows()]
    assert len(table) == 9


def test_what_does_not_go_together_is_refused() -> None:
    """One sum of several segments, counts without any, an unknown dimension, no reports."""
    with pytest.raises(DecodeError, match="counts must be of one segment, got 2"):
        decode([SMALL, LARGE], NAMES)
    with pytest.raises(DecodeError, match="counts must be of segments, got none"):
        by_segment([SMALL.unsegmented], NAMES)
    with pytest.raises(DecodeError, match="dimension must be one of country, version, got size"):
        by_segment([SMALL], NAMES, dimension="size")
    with pytest.raises(DecodeError, match="at least 1 report"):
        by_segment([], NAMES)
