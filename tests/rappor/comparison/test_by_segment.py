"""Comparison of segments: the share in each segment, and its difference from the other segments.

A segment is a set of devices with equal properties, such as version and country. A dimension is
one property.
"""

from __future__ import annotations

import pytest

from rappor import (
    Comparison,
    Counts,
    Params,
    Population,
    compare_samples,
    compare_segments,
    decode,
    simulate_counts,
)
from rappor.base.errors import DecodeError, ParamsError

PARAMS = Params(k=32, h=1, m=16, f=0.25, p=0.2, q=0.8)
NAMES = ["cat", "dog", "emu"]
ABSENT = [f"x{i}" for i in range(20)]


def simulate_segment(weights: list[float], n: float, seed: int, **segment: str) -> Counts:
    """Return counts of n devices of one segment that report NAMES in proportion to `weights`."""
    params = PARAMS.with_segment(tuple(sorted(segment.items())))
    population = Population(NAMES, weights)
    return simulate_counts(population, params, n_reports=n, seed=seed, metric="pet")


SMALL = simulate_segment([1, 1, 2], 2e4, 1, version="2", country="de")
LARGE = simulate_segment([2, 1, 1], 6e4, 2, version="1", country="de")
OTHER = simulate_segment([2, 1, 1], 3e4, 3, version="1", country="other")
"""The country "other" stands for all countries that the metric does not list."""


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Return the comparison of the three segments."""
    return compare_segments([SMALL, LARGE, OTHER], NAMES + ABSENT)


@pytest.mark.slow
def test_each_segment_has_the_shares_of_its_own_decode(comparison: Comparison) -> None:
    """A segment has the shares of a decode of its counts alone.

    No other segment changes them. The segment with the most reports comes first.
    """
    assert [sample.name for sample in comparison.samples] == [
        "country=de, version=1",
        "country=other, version=1",
        "country=de, version=2",
    ]
    assert comparison.samples[2].segment == {"country": "de", "version": "2"}
    assert [sample.reports for sample in comparison.samples] == [60_000, 30_000, 20_000]
    assert {comparison.candidates[i] for i in comparison.shown_rows} == set(NAMES)
    for number, counts in enumerate((LARGE, OTHER, SMALL)):
        estimates = decode(counts.without_segment, NAMES + ABSENT)
        shares = dict(zip(estimates.candidates, estimates.share.tolist(), strict=True))
        compared_shares = dict(
            zip(comparison.candidates, comparison.per_sample.share[number].tolist(), strict=True)
        )
        assert compared_shares == shares


@pytest.mark.slow
def test_each_segment_is_compared_with_the_other_segments(comparison: Comparison) -> None:
    """Each segment is compared with the mean of the other segments, weighted by their reports.

    The question is how a segment differs from the rest. No device is in two segments, so the device
    correlation is 0. `compare_samples` gives the same estimates for the same weights.
    """
    weights = [contrast.weights.tolist() for contrast in comparison.contrasts]
    # The third segment is compared with segments of 60,000 and 30,000 reports.
    assert weights[2] == pytest.approx([-2 / 3, -1 / 3, 1])
    assert comparison.device_correlation == 0.0
    small = comparison.contrasts[2]
    directions = dict(zip(comparison.candidates, small.direction.tolist(), strict=True))
    assert (directions["cat"], directions["dog"], directions["emu"]) == ("less", "", "more")
    counts = {
        sample.name: counts.without_segment
        for sample, counts in zip(comparison.samples, (LARGE, OTHER, SMALL), strict=True)
    }
    of_samples = compare_samples(counts, NAMES + ABSENT, device_correlation=0.0)
    same_contrast = of_samples.contrast(weights[2])
    assert sorted(same_contrast.estimate) == pytest.approx(sorted(small.estimate))


def test_number_of_devices_of_a_segment_is_the_one_of_its_counts() -> None:
    """Each segment has the number of devices of its counts, and no device is in two segments.

    The 20,000 reports of the small segment come from 10,000 devices. The counts of the large
    segment state no number of devices, so each of its 60,000 reports is from another device.
    """
    comparison = compare_segments([SMALL.with_devices(1e4), LARGE], NAMES)
    assert [sample.devices for sample in comparison.samples] == pytest.approx([60_000, 10_000])
    assert "No device is in two segments." in comparison.assumptions


def test_segments_of_one_value_of_a_dimension_are_added() -> None:
    """A comparison by version adds the segments of a version, over all countries.

    If all counts have the same version, the comparison has one sample and no contrast.
    """
    comparison = compare_segments([SMALL, LARGE, OTHER], NAMES, dimension="version")
    assert [(sample.name, sample.reports) for sample in comparison.samples] == [
        ("version=1", 90_000),
        ("version=2", 20_000),
    ]
    one_sample = compare_segments([LARGE, OTHER], NAMES, dimension="version")
    assert (one_sample.contrasts, one_sample.primary, one_sample.n_changed) == ((), (), 0)


@pytest.mark.slow
def test_devices_without_properties_are_a_segment() -> None:
    """Devices that send no properties are the segment "not sent". All categories are shown."""
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    with_segment = simulate_counts(
        population, params.with_segment((("version", "1"),)), n_reports=2000, seed=1
    )
    without_segment = simulate_counts(population, params, n_reports=1000, seed=2)
    comparison = compare_segments([with_segment, without_segment])
    assert [sample.name for sample in comparison.samples] == ["version=1", "not sent"]
    assert comparison.candidates == ("no", "yes")
    assert comparison.detected_overall.all()


def test_counts_that_cannot_be_compared_by_segment_are_refused() -> None:
    """Counts without segments or reports, unknown dimensions and other objects are refused.

    `decode` refuses counts of two segments, because it would mix them.
    """
    with pytest.raises(DecodeError, match="counts must be of one segment, got 2"):
        decode([SMALL, LARGE], NAMES)
    with pytest.raises(DecodeError, match="counts must be of segments, got none"):
        compare_segments([SMALL.without_segment], NAMES)
    with pytest.raises(DecodeError, match="dimension must be one of country, version, got size"):
        compare_segments([SMALL], NAMES, dimension="size")
    with pytest.raises(DecodeError, match="at least 1 report"):
        compare_segments([], NAMES)
    with pytest.raises(ParamsError, match="each element of counts must be a Counts, got str"):
        compare_segments(["counts.json"], NAMES)  # type: ignore[list-item]
