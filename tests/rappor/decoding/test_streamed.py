"""Decoding a stream: the best rows of the whole table, and a histogram of all other p-values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from rappor import Candidates, Counts, Params, Population, simulate_counts
from rappor.base.errors import DecodeError
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import EDGES, PValues, count_p_values
from rappor.estimator.screening import round_for_sums

BALANCED = Params.profile("balanced")
N = 140_000
NAMES = [f"example.org/{i}" for i in range(N)]
MANY = Candidates.from_list(NAMES)
ROWS = (
    *("share", "std_error", "ci_low", "ci_high", "p_value", "detected", "ci_low_adjusted"),
    *("ci_high_adjusted", "forged_to_make", "forged_to_hide", "group"),
)


def few_bits(h: int = 1, m: int = 16) -> Params:
    """Return parameters with so few rows that a tenth of the candidates have a row."""
    return dataclasses.replace(BALANCED, k=32, h=h, m=m)


def collect(params: Params, n_reports: float = 1e6, seed: int = 1) -> Counts:
    population = Population(NAMES[::140][:1000], 1 / np.arange(1.0, 1001.0))
    return simulate_counts(population, params, n_reports=n_reports, seed=seed)


def check_equal(streamed: Estimates, listed: Estimates) -> None:
    """Check that kept rows, and all numbers of the whole table, are equal."""
    place = {candidate: i for i, candidate in enumerate(listed.candidates)}
    rows = [place[candidate] for candidate in streamed.candidates]
    assert rows == sorted(rows)
    for name in ROWS:
        one, other = getattr(streamed, name), getattr(listed, name)[rows]
        assert np.array_equal(one, other, equal_nan=True), name
    assert np.array_equal(streamed.p_value_counts, listed.p_value_counts)
    assert streamed.n_candidates == listed.n_candidates == len(listed)
    assert streamed.detected.sum() == listed.detected.sum() > 0
    assert streamed.unallocated == listed.unallocated
    assert streamed.remaining == listed.remaining


@pytest.mark.slow
@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
@pytest.mark.parametrize(("h", "m"), [(1, 16), (2, 8)])
def test_the_best_have_the_rows_of_the_whole_table(h: int, m: int, correction: str) -> None:
    """The best candidates have the rows of a table of all candidates, to the last bit."""
    counts, detection = collect(few_bits(h, m)), ErrorControl(method=correction)
    best = decode(counts, MANY, error_control=detection)
    assert len(best) < N / 2
    check_equal(best, decode(counts, MANY, error_control=detection, distribution=True))


@pytest.mark.slow
def test_collections_under_several_parameters_go_together() -> None:
    """A stream is decoded from collections under several parameter sets."""
    counts = [collect(few_bits()), collect(few_bits(2, 8), seed=2)]
    check_equal(decode(counts, MANY), decode(counts, MANY, distribution=True))


@pytest.mark.slow
@pytest.mark.parametrize("n_reports", [0.5e6, 1e9])
def test_several_passes_find_what_several_screenings_find(n_reports: float) -> None:
    """Several passes detect what several screenings of a list detect, at low noise."""
    counts = collect(few_bits(m=64), n_reports)
    check_equal(decode(counts, MANY), decode(counts, MANY, distribution=True))


@pytest.mark.slow
def test_a_short_stream_is_a_list() -> None:
    """Every candidate of a short stream has a row."""
    counts = collect(few_bits())
    streamed = decode(counts, Candidates.from_stream(lambda: NAMES[:300]))
    assert len(streamed) == streamed.n_candidates == 300
    check_equal(streamed, decode(counts, NAMES[:300]))


@pytest.mark.slow
def test_repeated_strings_are_held_once() -> None:
    """A frequent string that is repeated in the stream has one row and counts once."""
    counts = collect(few_bits())
    repeated = [NAMES[0]] * 50 + NAMES + [NAMES[0]] * 1000
    estimates = decode(counts, Candidates.from_stream(lambda: repeated))
    assert estimates.candidates.count(NAMES[0]) == 1
    check_equal(estimates, decode(counts, MANY, distribution=True))
    assert estimates.to_json() == decode(counts, repeated).to_json()


@pytest.mark.slow
def test_a_stream_that_changes_is_refused() -> None:
    """A stream with different strings in two passes is refused."""
    passes = iter([NAMES, NAMES, NAMES, NAMES[:-1], NAMES])

    def read() -> Iterator[str]:
        return iter(next(passes))

    with pytest.raises(DecodeError, match="got 140,000 and then 139,999"):
        decode(collect(few_bits()), Candidates.from_stream(read))


@pytest.mark.slow
def test_strings_that_cannot_be_distinguished_are_held_or_refused() -> None:
    """140,000 strings with a thousand patterns of bits are refused as a stream."""
    counts = collect(few_bits(m=2))
    assert len(decode(counts, MANY)) == N
    with pytest.raises(DecodeError, match="1,024 patterns"):
        decode(counts, Candidates.from_stream(lambda: NAMES))


def test_what_needs_all_candidates_at_once_is_refused() -> None:
    """The distribution and another normalizer are refused for a stream."""
    counts = collect(few_bits())
    with pytest.raises(DecodeError, match="all candidates at once"):
        decode(counts, Candidates.from_stream(lambda: NAMES), distribution=True)
    with pytest.raises(DecodeError, match="normalised by 'none'"):
        decode(counts, Candidates.from_stream(lambda: NAMES, normalize="nfc"))
    with pytest.raises(DecodeError, match="at least 1, got 0"):
        decode(counts, Candidates.from_stream(list))


@pytest.mark.slow
def test_progress_counts_candidates() -> None:
    """The first pass reports no total, and later passes report it."""
    progress: list[tuple[int, int | None]] = []

    def note(stage: str, done: int, total: int | None) -> None:
        if stage == "screening candidates":
            progress.append((done, total))

    decode(collect(few_bits()), MANY, progress=note)
    assert progress[0] == (1 << 14, None)
    assert progress[8] == (N, None)
    assert {total for _, total in progress[9:]} == {N}


def split(p_values: list[float], n_rows: int) -> PValues:
    """Keep the smallest p-values exactly, and all others in a histogram."""
    ordered = np.sort(p_values)
    return PValues(
        in_memory=ordered[:n_rows],
        other_counts=count_p_values(ordered[n_rows:]),
        least_other=float(ordered[n_rows - 1]),
    )


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
@pytest.mark.parametrize("seed", range(20))
def test_a_histogram_decides_as_all_p_values_do(seed: int, correction: str) -> None:
    """A histogram gives the threshold of all p-values, or an error if it leaves it open."""
    rng = np.random.default_rng(seed)
    p_values = np.concatenate([rng.random(2000), rng.random(50) ** 20]).tolist()
    detection = ErrorControl(alpha=0.1, method=correction)
    expected = Thresholds(detection, PValues(in_memory=np.array(p_values))).largest
    detected = sum(p_value <= expected for p_value in p_values)
    assert detected > 1
    assert Thresholds(detection, split(p_values, detected + 200)).largest == expected
    with pytest.raises(DecodeError, match=f"more than the {detected - 1} best"):
        _ = Thresholds(detection, split(p_values, detected - 1)).largest


def test_bins_are_closed_above() -> None:
    """An edge belongs to the bin below it, and 0 to the first bin."""
    counts = count_p_values(np.array([0.0, 2.0**-70, 2.0**-64, 0.5, 1.0]))
    assert counts[0] == 3
    assert counts[np.searchsorted(EDGES, 0.5) - 1] == counts[-1] == 1


@pytest.mark.parametrize("n", [1, 3, 128, 4096])
def test_rounded_values_have_sums_that_do_not_depend_on_order(n: int) -> None:
    """Rounded values have the same sum in every order, near the unrounded sum."""
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n) * 10 ** rng.uniform(-6, 6, n)
    rounded = round_for_sums(values, n)
    sums = {float(np.cumsum(rng.permutation(rounded))[-1]) for _ in range(50)}
    assert len(sums) == 1
    assert np.abs(rounded - values).max() <= np.abs(values).max() * n * 2.0**-52
