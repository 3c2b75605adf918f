"""Shares in segments: each segment alone, each against the rest, and dimensions."""

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
from rappor.base.errors import DecodeError

PARAMS = Params(k=32, h=1, m=16, f=0.25, p=0.2, q=0.8)
NAMES = ["cat", "dog", "emu"]
ABSENT = [f"x{i}" for i in range(20)]


def counts_of(weights: list[float], n: float, seed: int, **segment: str) -> Counts:
    params = PARAMS.with_segment(tuple(sorted(segment.items())))
    population = Population(NAMES, weights)
    return simulate_counts(population, params, n_reports=n, seed=seed, metric="pet")


SMALL = counts_of([1, 1, 2], 2e4, 1, version="2", country="de")
LARGE = counts_of([2, 1, 1], 6e4, 2, version="1", country="de")
OTHER = counts_of([2, 1, 1], 3e4, 3, version="1", country="other")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare_segments([SMALL, LARGE, OTHER], NAMES + ABSENT)


@pytest.mark.slow
def test_each_segment_is_a_decode_of_its_own_the_largest_first(comparison: Comparison) -> None:
    """Each segment has the estimates of its counts alone, and the largest segment is first."""
    assert [sample.name for sample in comparison.samples] == [
        "country=de, version=1",
        "country=other, version=1",
        "country=de, version=2",
    ]
    assert comparison.samples[2].segment == {"country": "de", "version": "2"}
    assert [sample.reports for sample in comparison.samples] == [60_000, 30_000, 20_000]
    assert {comparison.candidates[i] for i in comparison.shown_rows} == set(NAMES)
    for number, counts in enumerate((LARGE, OTHER, SMALL)):
        alone = decode(counts.without_segment, NAMES + ABSENT)
        shares = dict(zip(alone.candidates, alone.share.tolist(), strict=True))
        ours = dict(
            zip(comparison.candidates, comparison.per_sample.share[number].tolist(), strict=True)
        )
        assert ours == shares


@pytest.mark.slow
def test_each_segment_is_compared_with_the_rest(comparison: Comparison) -> None:
    """Each segment is compared with the mean of all others, as `compare_samples` does."""
    weights = [contrast.weights.tolist() for contrast in comparison.contrasts]
    assert weights[2] == pytest.approx([-2 / 3, -1 / 3, 1])
    assert comparison.device_correlation == 0.0
    small = comparison.contrasts[2]
    kinds = dict(zip(comparison.candidates, small.direction.tolist(), strict=True))
    assert (kinds["cat"], kinds["dog"], kinds["emu"]) == ("less", "", "more")
    counts = {
        sample.name: counts.without_segment
        for sample, counts in zip(comparison.samples, (LARGE, OTHER, SMALL), strict=True)
    }
    again = compare_samples(counts, NAMES + ABSENT, device_correlation=0.0).contrast(weights[2])
    assert sorted(again.estimate) == pytest.approx(sorted(small.estimate))


def test_devices_report_as_often_as_their_counts_say() -> None:
    """Each segment has the reports per device of its counts, and no device is in two segments."""
    comparison = compare_segments([SMALL.with_devices(1e4), LARGE], NAMES)
    assert [sample.devices for sample in comparison.samples] == pytest.approx([60_000, 10_000])
    assert "No device is in two segments." in comparison.assumptions


def test_a_dimension_adds_up_what_is_told_beside_it() -> None:
    """A dimension adds segments that differ in other properties only."""
    comparison = compare_segments([SMALL, LARGE, OTHER], NAMES, dimension="version")
    assert [(sample.name, sample.reports) for sample in comparison.samples] == [
        ("version=1", 90_000),
        ("version=2", 20_000),
    ]
    alone = compare_segments([LARGE, OTHER], NAMES, dimension="version")
    assert (alone.contrasts, alone.primary, alone.n_changed) == ((), (), 0)


@pytest.mark.slow
def test_answers_and_devices_that_tell_nothing() -> None:
    """All categories are shown, and devices without properties are a segment of their own."""
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    with_segment = simulate_counts(
        population, params.with_segment((("version", "1"),)), n_reports=2000, seed=1
    )
    untold = simulate_counts(population, params, n_reports=1000, seed=2)
    comparison = compare_segments([with_segment, untold])
    assert [sample.name for sample in comparison.samples] == ["version=1", "not sent"]
    assert comparison.candidates == ("no", "yes")
    assert comparison.detected_overall.all()


def test_what_does_not_go_together_is_refused() -> None:
    """Counts without segments, unknown dimensions and counts without reports are refused."""
    with pytest.raises(DecodeError, match="counts must be of one segment, got 2"):
        decode([SMALL, LARGE], NAMES)
    with pytest.raises(DecodeError, match="counts must be of segments, got none"):
        compare_segments([SMALL.without_segment], NAMES)
    with pytest.raises(DecodeError, match="dimension must be one of country, version, got size"):
        compare_segments([SMALL], NAMES, dimension="size")
    with pytest.raises(DecodeError, match="at least 1 report"):
        compare_segments([], NAMES)
