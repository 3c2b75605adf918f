"""The record of a page about a decode, and the summary of each parameter set.

40 strings have shares in proportion to 1 / rank, in 100,000 reports with 16 cohorts of 64 bits. The
candidates are the 40 strings and 20 absent strings. `NAMES[0]` is the most frequent string.
"""

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
    """Return the counts of 100,000 reports of 40 strings."""
    weights = [1 / (rank + 1) for rank in range(40)]
    return simulate_counts(Population(NAMES, weights), PARAMS, n_reports=100_000, seed=2)


@pytest.fixture(scope="module")
def estimates(counts: Counts) -> Estimates:
    """Return estimates of all 40 present strings and 20 absent ones."""
    return decode(counts, [*NAMES, *(f"absent {number}" for number in range(20))])


def test_remaining_shares_are_corrected_for_the_detection(estimates: Estimates) -> None:
    """The total of the detected rows after the first 10 or 20 is below the sum of their shares.

    A string is detected if its estimate is large, so the sum of detected estimates is too large.
    The total in `remaining` is corrected for this selection, by less than four standard errors. Its
    error lies between the error of one row and the sum of all errors.
    """
    detected = estimates.share[estimates.detected]
    assert [rest.after for rest in estimates.remaining] == [10, 20]
    for rest in estimates.remaining:
        remaining = slice(rest.after, None)
        errors = estimates.std_error[estimates.detected][remaining]
        assert rest.rows == len(detected) - rest.after
        assert 0 < detected[remaining].sum() - rest.share < 4 * rest.std_error
        assert errors.max() < rest.std_error < errors.sum()


def test_residuals_have_the_size_of_noise(estimates: Estimates) -> None:
    """With all strings among the candidates, the mean square of the residuals is 1.

    A residual is divided by its standard deviation. Six standard errors are allowed.
    """
    (collection,) = estimates.collections
    assert collection.residuals is not None
    assert collection.residuals.shape == (16, 64)
    squares = float((collection.residuals**2).mean())
    # Each of the detected strings takes one degree of freedom from the 1,024 residuals. The square
    # of a normal residual has the variance 2.
    fitted_share = int(estimates.detected.sum()) / collection.residuals.size
    assert abs(squares - (1 - fitted_share)) < 6 * math.sqrt(2 / collection.residuals.size)


def test_the_bits_of_an_unlisted_string_have_the_largest_residuals(counts: Counts) -> None:
    """Without the most frequent string among the candidates, each cohort has a large residual.

    The chart of the page draws large residuals as full squares, one in each cohort, so that a
    reader sees that a string is missing.
    """
    estimates = decode(counts, NAMES[1:])
    (decoded,), (collection,) = estimates.collections, report(estimates).collections
    assert decoded.residuals is not None
    assert collection.residuals is not None
    assert (decoded.residuals.max(axis=1) > 5).all()
    cohort, bit, value = collection.residuals.large[0]
    assert value == decoded.residuals[cohort, bit] == np.abs(decoded.residuals).max()


def test_true_bits_of_honest_reports_are_within_their_limits(estimates: Estimates) -> None:
    """With one hash function, a report has one true bit in the mean of all cohorts.

    The number is estimated from the number of ones. `low` and `high` are the limits that honest
    devices do not exceed in a cohort; forged reports with many ones do.
    """
    (collection,) = estimates.collections
    bits = collection.true_bits
    assert ((bits.low < bits.mean) & (bits.mean < bits.high)).all()
    # The mean of 16 cohorts has a quarter of the standard error of one cohort.
    assert abs(bits.mean.mean() - 1) < 6 * bits.std_error.mean() / 4


def test_the_hash_of_counts_depends_on_their_numbers_and_metric(counts: Counts) -> None:
    """Equal counts have equal hashes, and another metric or other numbers change the hash.

    A page has the hash, so that a reader can check from which counts it was computed.
    """
    equal_counts = Counts(
        PARAMS, counts.bit_counts, counts.cohort_reports, counts.metric, counts.sum_squared_reports
    )
    assert equal_counts.sha256 == counts.sha256
    other_counts = Counts(
        PARAMS, counts.bit_counts, counts.cohort_reports, "other", counts.sum_squared_reports
    )
    assert len({counts.sha256, other_counts.sha256, (counts + counts).sha256}) == 3


def test_questions_of_a_reviewer_have_honest_verdicts(counts: Counts) -> None:
    """The page answers 16 questions of a reviewer, with "no" where assumptions do not hold.

    Here the number of devices is unknown, and the three most frequent strings are no candidates, so
    the candidates do not explain the counts. No command is known, so the table cannot be made
    again. Some questions only the author can answer.
    """
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
        f"A share of {100 * share:.2g} % is detected with 80 % probability; smaller ones are missed"
    )
    assert sentence in enough.answer


def test_only_shares_of_sets_may_add_up_to_more_than_all() -> None:
    """The page states for sets, and not for a yes-or-no question, that shares may exceed 100 %.

    A device may have several items. A yes-or-no question has one share, and no sum.
    """
    yes_or_no, sets = (
        Params.profile("once", encoding="boolean"),
        Params.profile("once", encoding="set", items=2),
    )
    for params, values, candidates in (
        (yes_or_no, ["yes", "no"], None),
        (sets, ["git\tvim", "git"], ["git", "vim"]),
    ):
        counts = simulate_counts(Population(values, [1, 1]), params, n_reports=10_000, seed=1)
        checks = {check.question: check for check in report(decode(counts, candidates)).checks}
        answer = checks["Are shares normalised, and by what?"].answer
        assert ("more than 100 %" in answer) == (params is sets)


def test_unexplained_outliers_have_the_verdict_no(counts: Counts, estimates: Estimates) -> None:
    """The question about outliers has the verdict "no" if more bits are outliers than by chance.

    A bit whose count is more than 3.5 standard deviations above the fit has less weight. Noise
    alone lifts 1,024 P(z > 3.5) = .24 of the 1,024 bits so far. A frequent unlisted string lifts
    more.
    """
    verdicts = []
    for result in (estimates, decode(counts, NAMES[1:])):
        n_outliers = result.diagnostics["set_aside_rows"]
        (check,) = [check for check in report(result).checks if "outliers" in check.question]
        sentence = f"{n_outliers:,} of 1,024 bits have less weight; noise alone gives about 0.2."
        assert sentence in check.answer
        verdicts.append(check.verdict)
    assert verdicts == ["yes", "no"]


def test_the_record_has_the_loss_of_the_reports_of_a_device(counts: Counts) -> None:
    """The record has the loss of one report, of the three that each device sent, and of any number.

    The losses increase in this order.
    """
    (collection,) = report(decode(counts, NAMES, reports_per_device=3)).collections
    first_loss, sent_loss, total_loss = collection.losses
    assert (first_loss.reports, sent_loss.reports, total_loss.reports) == (1, 3, None)
    assert first_loss.epsilon < sent_loss.epsilon < total_loss.epsilon
