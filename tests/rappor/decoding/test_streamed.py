"""Decoding a stream: the best rows of the whole table, and a histogram of all other p-values.

More than 131,072 candidates are a stream. They are read several times, and only the best candidates
have rows: as many as the counts have bits of cohorts, and 10,000 more. The tests compare a stream
with a decode that has all rows, which `distribution=True` requires.
"""

from __future__ import annotations

import dataclasses
import functools
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
"""Number of candidates. A decode reads so many candidates as a stream."""
NAMES = [f"example.org/{i}" for i in range(N)]
MANY = Candidates.from_list(NAMES)
COLUMNS = (
    *("share", "std_error", "ci_low", "ci_high", "p_value", "detected", "ci_low_adjusted"),
    *("ci_high_adjusted", "forged_to_make", "forged_to_hide", "group"),
)
"""These columns must be equal in a stream and in a list."""


def make_params(h: int = 1, m: int = 16) -> Params:
    """Return parameters with so few rows that a tenth of the candidates have a row."""
    return dataclasses.replace(BALANCED, k=32, h=h, m=m)


def collect(params: Params, n_reports: float = 1e6, seed: int = 1) -> Counts:
    """Return counts of 1,000 present strings, every 140th candidate, with shares of Zipf's law."""
    population = Population(NAMES[::140][:1000], 1 / np.arange(1.0, 1001.0))
    return simulate_counts(population, params, n_reports=n_reports, seed=seed)


@functools.cache
def decode_as_list(h: int, m: int, correction: str) -> Estimates:
    """Return the estimates of a table of all candidates. Several tests share them."""
    detection = ErrorControl(method=correction)
    return decode(collect(make_params(h, m)), MANY, error_control=detection, distribution=True)


def check_equal(streamed: Estimates, listed: Estimates) -> None:
    """Check that kept rows, and all numbers of the whole table, are equal."""
    index_of_candidate = {candidate: i for i, candidate in enumerate(listed.candidates)}
    rows = [index_of_candidate[candidate] for candidate in streamed.candidates]
    assert rows == sorted(rows)
    for name in COLUMNS:
        streamed_column, listed_column = getattr(streamed, name), getattr(listed, name)[rows]
        assert np.array_equal(streamed_column, listed_column, equal_nan=True), name
    assert np.array_equal(streamed.p_value_counts, listed.p_value_counts)
    assert streamed.n_candidates == listed.n_candidates == len(listed)
    assert streamed.detected.sum() == listed.detected.sum() > 0
    assert streamed.unallocated == listed.unallocated
    assert streamed.remaining == listed.remaining


@pytest.mark.slow
@pytest.mark.parametrize(("h", "m", "correction"), [(1, 16, "adaptive"), (2, 8, "bonferroni")])
def test_rows_of_the_best_candidates_equal_those_of_a_full_table(
    h: int, m: int, correction: str
) -> None:
    """The rows of a stream equal those of a table of all candidates, to the last bit.

    A result must not depend on the way in which the candidates are read.
    """
    counts, detection = collect(make_params(h, m)), ErrorControl(method=correction)
    best = decode(counts, MANY, error_control=detection)
    assert len(best) < N / 2
    check_equal(best, decode_as_list(h, m, correction))


@pytest.mark.slow
def test_a_stream_is_decoded_from_several_parameter_sets() -> None:
    """Collections under two parameter sets are decoded together, as with a list."""
    counts = [collect(make_params()), collect(make_params(2, 8), seed=2)]
    check_equal(decode(counts, MANY), decode(counts, MANY, distribution=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "n_reports"),
    [
        (16, 1e9),
        pytest.param(64, 0.5e6, marks=pytest.mark.acceptance),
        pytest.param(64, 1e9, marks=pytest.mark.acceptance),
    ],
)
def test_several_passes_equal_several_screenings_of_a_list(m: int, n_reports: float) -> None:
    """A stream that is read in several passes has the result of a list with several screenings.

    With little noise, rare strings appear only after frequent ones are explained. The screening is
    then repeated on the residual, which needs a further pass over the stream.
    """
    counts = collect(make_params(m=m), n_reports)
    check_equal(decode(counts, MANY), decode(counts, MANY, distribution=True))


@pytest.mark.slow
def test_a_short_stream_is_a_list() -> None:
    """A stream of 300 strings has a row for each, like a list."""
    counts = collect(make_params())
    streamed = decode(counts, Candidates.from_stream(lambda: NAMES[:300]))
    assert len(streamed) == streamed.n_candidates == 300
    check_equal(streamed, decode(counts, NAMES[:300]))


@pytest.mark.slow
def test_repeated_strings_of_a_stream_have_one_row() -> None:
    """A frequent string that is repeated in the stream has one row and counts as one candidate."""
    counts = collect(make_params())
    repeated = [NAMES[0]] * 50 + NAMES + [NAMES[0]] * 1000
    detection = ErrorControl(method="adaptive")
    stream = Candidates.from_stream(lambda: repeated)
    estimates = decode(counts, stream, error_control=detection)
    assert estimates.candidates.count(NAMES[0]) == 1
    check_equal(estimates, decode_as_list(1, 16, "adaptive"))
    assert estimates.to_json() == decode(counts, repeated, error_control=detection).to_json()


@pytest.mark.slow
def test_a_stream_that_changes_is_refused() -> None:
    """A stream that has other strings in a later pass is refused.

    The numbers of a candidate come from several passes, and would belong to different strings.
    """
    passes = iter([NAMES, NAMES, NAMES, NAMES[:-1], NAMES])

    def read() -> Iterator[str]:
        return iter(next(passes))

    with pytest.raises(DecodeError, match="got 140,000 and then 139,999"):
        decode(collect(make_params()), Candidates.from_stream(read))


@pytest.mark.slow
def test_a_stream_with_too_few_patterns_of_bits_is_refused() -> None:
    """140,000 strings with only 1,024 patterns of bits are decoded as a list, but not as a stream.

    Two cohorts of 32 bits have 32^2 patterns with one hash function. Candidates with equal patterns
    form an identifiability group, here of 137 candidates in the mean. A stream keeps the best
    candidates only, and could not state all members of the groups.
    """
    counts = collect(make_params(m=2))
    assert len(decode(counts, MANY)) == N
    with pytest.raises(DecodeError, match="1,024 patterns"):
        decode(counts, Candidates.from_stream(lambda: NAMES))


def test_options_that_need_all_candidates_are_refused_for_a_stream() -> None:
    """A distribution, another normalizer, and an empty stream are refused with the reason."""
    counts = collect(make_params())
    with pytest.raises(DecodeError, match="all candidates at once"):
        decode(counts, Candidates.from_stream(lambda: NAMES), distribution=True)
    with pytest.raises(DecodeError, match="normalised by 'none'"):
        decode(counts, Candidates.from_stream(lambda: NAMES, normalize="nfc"))
    with pytest.raises(DecodeError, match="at least 1, got 0"):
        decode(counts, Candidates.from_stream(list))


@pytest.mark.slow
def test_progress_counts_candidates() -> None:
    """The progress of the first pass has no total, because the length of a stream is unknown.

    Later passes know it.
    """
    progress: list[tuple[int, int | None]] = []

    def store_progress(stage: str, n_done: int, total: int | None) -> None:
        if stage == "screening candidates":
            progress.append((n_done, total))

    decode(collect(make_params()), MANY, progress=store_progress)
    # A step has 16,384 candidates, so the first pass takes nine steps.
    assert progress[0] == (1 << 14, None)
    assert progress[8] == (N, None)
    assert {total for _, total in progress[9:]} == {N}


def split_p_values(p_values: list[float], n_rows: int) -> PValues:
    """Return the smallest p-values exactly, and all others as a histogram."""
    ordered = np.sort(p_values)
    return PValues(
        in_memory=ordered[:n_rows],
        other_counts=count_p_values(ordered[n_rows:]),
        least_other=float(ordered[n_rows - 1]),
    )


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
@pytest.mark.parametrize("seed", range(20))
def test_a_histogram_decides_as_all_p_values_do(seed: int, correction: str) -> None:
    """Exact small p-values and a histogram of the others give the threshold of all p-values.

    2,000 p-values are uniform and 50 are small. If one detected p-value is in the histogram, its
    exact value is lost, and so is the threshold. An error then names the number of kept candidates.
    """
    rng = np.random.default_rng(seed)
    p_values = np.concatenate([rng.random(2000), rng.random(50) ** 20]).tolist()
    detection = ErrorControl(alpha=0.1, method=correction)
    expected = Thresholds(detection, PValues(in_memory=np.array(p_values))).largest
    n_detected = sum(p_value <= expected for p_value in p_values)
    assert n_detected > 1
    assert Thresholds(detection, split_p_values(p_values, n_detected + 200)).largest == expected
    with pytest.raises(DecodeError, match=f"more than the {n_detected - 1} best"):
        _ = Thresholds(detection, split_p_values(p_values, n_detected - 1)).largest


def test_bins_are_closed_above() -> None:
    """A p-value at an edge of the histogram belongs to the bin below, and 0 to the first bin.

    A procedure compares by "at most", so the number of p-values up to an edge must be exact.
    """
    # The first bin ends at 2^-64. It contains the first three p-values.
    counts = count_p_values(np.array([0.0, 2.0**-70, 2.0**-64, 0.5, 1.0]))
    assert counts[0] == 3
    assert counts[np.searchsorted(EDGES, 0.5) - 1] == counts[-1] == 1


@pytest.mark.parametrize("n", [1, 3, 128, 4096])
def test_rounded_values_have_sums_that_do_not_depend_on_order(n: int) -> None:
    """Rounded values have exactly the same sum in every order, near the unrounded sum.

    Candidates are screened in blocks and by several threads. The score of a candidate must not
    depend on the block that it is in.
    """
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n) * 10 ** rng.uniform(-6, 6, n)
    rounded = round_for_sums(values, n)
    sums = {float(np.cumsum(rng.permutation(rounded))[-1]) for _ in range(50)}
    assert len(sums) == 1
    assert np.abs(rounded - values).max() <= np.abs(values).max() * n * 2.0**-52
