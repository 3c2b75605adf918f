"""The record of a page about a decode, and the summary of each parameter set."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from rappor import Counts, Estimates, Params, Population, decode, simulate_counts
from rappor.decoding.estimates_report import report

PARAMS = dataclasses.replace(Params.profile("low-noise"), k=64, m=16)
NAMES = [f"name {number}" for number in range(40)]


@pytest.fixture(scope="module")
def counts() -> Counts:
    weights = [1 / (rank + 1) for rank in range(40)]
    return simulate_counts(Population(NAMES, weights), PARAMS, n_reports=100_000, seed=2)


@pytest.fixture(scope="module")
def estimates(counts: Counts) -> Estimates:
    return decode(counts, [*NAMES, *(f"absent {number}" for number in range(20))])


def test_rests_are_sums_of_the_rows_after_the_first(estimates: Estimates) -> None:
    """Each remaining share is below the sum of its rows, which the selection made too large."""
    detected = estimates.share[estimates.detected]
    assert [rest.after for rest in estimates.remaining] == [10, 20]
    for rest in estimates.remaining:
        remaining = slice(rest.after, None)
        errors = estimates.std_error[estimates.detected][remaining]
        assert rest.rows == len(detected) - rest.after
        assert 0 < detected[remaining].sum() - rest.share < 4 * rest.std_error
        assert errors.max() < rest.std_error < errors.sum()


def test_residuals_have_the_size_of_noise(estimates: Estimates) -> None:
    """With complete candidates the mean square of the residuals is 1 within six errors."""
    (collected,) = estimates.collections
    assert collected.residuals is not None
    assert collected.residuals.shape == (16, 64)
    squares = float((collected.residuals**2).mean())
    spent = int(estimates.detected.sum()) / collected.residuals.size
    assert abs(squares - (1 - spent)) < 6 * math.sqrt(2 / collected.residuals.size)


def test_a_string_that_is_no_candidate_shows_as_full_squares(counts: Counts) -> None:
    """The bit of a missing string is the largest residual of each cohort."""
    (collected,) = decode(counts, NAMES[1:]).collections
    assert collected.residuals is not None
    (collection,) = report(decode(counts, NAMES[1:])).collections
    assert collection.residuals is not None
    assert (collected.residuals.max(axis=1) > 5).all()
    cohort, bit, value = collection.residuals.large[0]
    assert value == collected.residuals[cohort, bit] == np.abs(collected.residuals).max()


def test_true_bits_are_within_what_is_honest(estimates: Estimates) -> None:
    """With one hash function honest cohorts have one true bit, inside the limits."""
    (collected,) = estimates.collections
    bits = collected.true_bits
    assert ((bits.low < bits.mean) & (bits.mean < bits.high)).all()
    assert abs(bits.mean.mean() - 1) < 6 * bits.std_error.mean() / 4


def test_a_hash_is_that_of_the_counts_wherever_they_lie(counts: Counts) -> None:
    """Equal counts have equal hashes. Another metric or one more report changes the hash."""
    same = Counts(
        PARAMS, counts.bit_counts, counts.cohort_reports, counts.metric, counts.sum_squared_reports
    )
    assert same.sha256 == counts.sha256
    other = Counts(
        PARAMS, counts.bit_counts, counts.cohort_reports, "other", counts.sum_squared_reports
    )
    assert len({counts.sha256, other.sha256, (counts + counts).sha256}) == 3


def test_a_reviewer_is_told_what_nobody_knows(counts: Counts) -> None:
    """Unknown devices, and counts that the candidates do not explain, have the verdict no."""
    unknown = Counts(PARAMS, counts.bit_counts, counts.cohort_reports)
    checks = {check.question: check for check in report(decode(unknown, NAMES[3:])).checks}
    assert len(checks) == 16
    assert checks["Do the model's assumptions hold?"].verdict == "no"
    assert "do not explain the counts" in checks["Do the model's assumptions hold?"].answer
    assert checks["Can the table be made again?"].verdict == "no"
    assert checks["Is the question stated?"].verdict == "you answer"
    enough = checks["Are there enough data?"]
    share = decode(unknown, NAMES[3:]).diagnostics["detectable_share"]
    sentence = (
        f"A string of {100 * share:.2g} % is detected with 80 % probability; rarer ones are missed"
    )
    assert sentence in enough.answer


def test_outliers_are_not_handled_where_candidates_and_noise_leave_bits(
    counts: Counts, estimates: Estimates
) -> None:
    """A heavy missing string lowers the weights of more bits than noise, with verdict no."""
    verdicts = []
    for estimates_ in (estimates, decode(counts, NAMES[1:])):
        rows = estimates_.diagnostics["set_aside_rows"]
        (check,) = [check for check in report(estimates_).checks if "outliers" in check.question]
        sentence = f"{rows:,} of 1,024 bits have less weight; noise alone gives about 0.2."
        assert sentence in check.answer
        verdicts.append(check.verdict)
    assert verdicts == ["yes", "no"]


def test_losses_told_are_those_of_the_reports_that_devices_sent(counts: Counts) -> None:
    """The loss of three reports lies between that of one and that of any number."""
    (collection,) = report(decode(counts, NAMES, reports_per_device=3)).collections
    one, sent, every = collection.losses
    assert (one.reports, sent.reports, every.reports) == (1, 3, None)
    assert one.epsilon < sent.epsilon < every.epsilon
