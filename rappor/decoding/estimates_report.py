"""EstimatesReport: the complete content of a page about one decode, as one record.

`report` builds the record from `Estimates`. Pages of `rappor.reporting` render it, and compute
nothing. The record contains a readable number of rows, residuals and cohorts, and the numbers of
those that it omits.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.counts.arrays import Floats
from rappor.decoding.collection_summary import CollectionSummary
from rappor.decoding.contrasts import Contrast
from rappor.decoding.diagnostics import (
    FIT_FALSE_ALARM,
    IMBALANCE,
    get_decisive_fit_p_value,
)
from rappor.decoding.estimates import Estimates
from rappor.estimator.fit import TAPER
from rappor.privacy.assessment import Loss, compute_loss
from rappor.protocol.params import Params

MOST_LISTED_ROWS: Final = 1000
"""Largest number of rows on a page. Further rows are counted."""

MOST_CHARTED_ROWS: Final = 10
"""Largest number of listed and detected rows in the chart. The page shows all later detected rows
together as one share ("other detected"). A larger number makes the chart taller."""

CHARTED_UNDETECTED_ROWS: Final = 3
"""Number of undetected rows in the chart. They are the rows with the smallest p-values, so that the
reader sees the limit of detection."""

MOST_CELLS: Final = 64
"""Largest number of rows and columns of a grid of residuals, and of points in a chart of cohorts.
Neighbouring cohorts and bits share a cell if there are more, because no page shows 65,536 cohorts
of 2,040 bits."""

LARGE_RESIDUAL: Final = 4.0
"""Residual, in standard deviations, above which a bit is listed. Noise exceeds it in one bit of
16,000."""

_LISTED_GROUPS: Final = 100
"""Largest number of identifiability groups on a page. A page with more would be hard to read."""
_PACKAGES: Final = ("rappor", "numpy", "scipy", "scikit-learn")
"""Packages whose versions the page lists, because their rounding may change a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that was read: its name, the SHA-256 of its bytes, and the days that it covers."""

    name: str
    sha256: str
    days: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The command and the files of a table, so that other people can reproduce it."""

    command: str = ""
    files: tuple[InputFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualGrid:
    """Residuals by cohort and bit, in standard deviations.

    Attributes
    ----------
    cells : (r, c) float64. For each block of neighbouring cohorts and bits, the residual with the
        largest absolute value. NaN if no cohort of the block has reports.
    cohorts, bits : number of cohorts and bits in a cell.
    large : (cohort, bit, residual) of residuals beyond `LARGE_RESIDUAL`, the largest first, at most
        ten.
    """

    cells: Floats
    cohorts: int
    bits: int
    large: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortRange:
    """Neighbouring cohorts: range of their numbers of reports, and of the true bits in a report.

    The true bits are the ones of a value before noise. Their mean number in the reports of a cohort
    is estimated from the number of ones. If it is outside its limits, some reports of the cohort
    come from no honest device.

    Attributes
    ----------
    first, last : first and last cohort.
    least_reports, most_reports : smallest and largest number of reports.
    least_bits, most_bits : smallest and largest estimate of the mean number of true bits. None if
        no cohort has reports.
    low, high : limits of these estimates. If all devices are honest, the estimates of all cohorts
        are inside of the limits, except with a negligible probability (`diagnostics.TrueBits`).
        None if no cohort has reports.
    """

    first: int
    last: int
    least_reports: int
    most_reports: int
    least_bits: float | None
    most_bits: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectionReport:
    """One parameter set: its reports, its privacy loss, and the findings about its counts.

    Attributes
    ----------
    summary : summary of the reports.
    losses : privacy loss of one report, of the assumed number of reports per device, and of any
        number.
    cohorts : ranges of neighbouring cohorts.
    residuals : grid of residuals. None if nothing was fitted.
    """

    summary: CollectionSummary
    losses: tuple[Loss, ...]
    cohorts: tuple[CohortRange, ...]
    residuals: ResidualGrid | None

    @property
    def params(self) -> Params:
        """The parameter set."""
        return self.summary.params

    @property
    def expected_reports(self) -> float:
        """Mean number of reports of a cohort."""
        return self.summary.n_reports / self.params.m


@dataclass(frozen=True, slots=True)
class Check:
    """A reviewer's question, its answer, and a verdict: "yes", "no", or "you answer".

    "you answer" means that the data cannot answer the question.
    """

    question: str
    answer: str
    verdict: str = "you answer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatesReport:
    """The complete content of a page.

    Attributes
    ----------
    estimates : the table.
    rows : at most `MOST_LISTED_ROWS` rows, as `Estimates.rows` yields them: listed strings, then
        detected strings, then all other candidates by p-value.
    charted : the rows of the chart.
    joint_shares : shares of several rows together: of all detected rows, of detected rows outside
        the chart, of the unallocated reports, and of strings that the metric's entry does not list.
        Empty for the encodings `boolean` and `set`.
    unlisted_detected, unlisted_undetected : numbers of rows that the page only counts.
    collections : one report for each parameter set.
    groups : candidates that cannot be distinguished, at most `_LISTED_GROUPS` groups.
    checks : the reviewer's questions.
    origin : command and files.
    versions : versions of Python and of the packages, by name.
    candidates_sha256 : SHA-256 of all candidates with a row, sorted by their UTF-8 bytes, each
        followed by a newline.
    """

    estimates: Estimates
    rows: tuple[dict[str, Any], ...]
    charted: tuple[dict[str, Any], ...]
    joint_shares: tuple[Contrast, ...]
    unlisted_detected: int
    unlisted_undetected: int
    collections: tuple[CollectionReport, ...]
    groups: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]
    origin: Origin
    versions: tuple[tuple[str, str], ...]
    candidates_sha256: str

    @property
    def n_detected(self) -> int:
        """Number of detected rows, on the page or not."""
        return int(self.estimates.detected.sum())


def report(estimates: Estimates, origin: Origin | None = None) -> EstimatesReport:
    """Collect the content of a page about estimates."""
    origin = origin or Origin()
    # Listed rows, detected or not, and after them the detected rows.
    leading = estimates.order(detected_only=True)
    undetected = np.flatnonzero(~estimates.detected & ~estimates.is_listed)
    # Undetected rows are sorted by p-value, so that the reader sees the candidates that were nearly
    # detected.
    undetected = undetected[np.argsort(estimates.p_value[undetected], kind="stable")]
    listed_rows = np.concatenate([leading, undetected])[:MOST_LISTED_ROWS]
    rows = tuple(estimates.row(int(i)) for i in listed_rows)
    n_leading = min(len(leading), MOST_LISTED_ROWS)
    n_detected = int(estimates.detected[listed_rows].sum())
    return EstimatesReport(
        estimates=estimates,
        rows=rows,
        charted=_select_charted(rows, n_leading),
        joint_shares=tuple(list_joint_shares(estimates)),
        unlisted_detected=int(estimates.detected.sum()) - n_detected,
        unlisted_undetected=(
            estimates.n_candidates - int(estimates.detected.sum()) - (len(listed_rows) - n_detected)
        ),
        collections=tuple(_report_collection(summary) for summary in estimates.collections),
        groups=tuple(map(tuple, estimates.diagnostics.get("groups", [])[:_LISTED_GROUPS])),
        checks=tuple(_answer_checks(estimates, origin)),
        origin=origin,
        versions=(
            ("Python", platform.python_version()),
            *((name, metadata.version(name)) for name in _PACKAGES),
        ),
        candidates_sha256=hash_candidates(estimates.candidates),
    )


def _select_charted(rows: Sequence[dict[str, Any]], n_leading: int) -> tuple[dict[str, Any], ...]:
    """Select the rows of the chart: the first rows, and the rows nearest to detection.

    The first `n_leading` rows are listed or detected. The rows after them are sorted by p-value.
    """
    return (*rows[: min(n_leading, MOST_CHARTED_ROWS)], *rows[n_leading:][:CHARTED_UNDETECTED_ROWS])


def hash_candidates(candidates: Sequence[str]) -> str:
    """Compute the SHA-256 of sorted candidates, like `LC_ALL=C sort -u FILE | sha256sum`."""
    digest = hashlib.sha256()
    for line in sorted(text.encode("utf-8", "surrogatepass") for text in candidates):
        digest.update(line + b"\n")
    return digest.hexdigest()


def list_joint_shares(
    estimates: Estimates, *, after: int = MOST_CHARTED_ROWS
) -> Iterator[Contrast]:
    """Yield the shares of several rows together, each as one contrast.

    They are: all detected rows; all detected rows after the first rows; the unallocated reports;
    and the strings that the metric's entry does not list.

    Parameters
    ----------
    estimates : the table.
    after : number of first rows that "other detected" excludes. The rows have the reading order
        (`Estimates.order`): listed rows, then detected rows.
    """
    detected = estimates.covariance.detected
    # Shares of a boolean metric or of sets do not add up to 1, so no reports are unallocated.
    if detected is None:
        return
    error = estimates.unallocated_std_error
    yield _build_joint_share(estimates, "all detected", 1 - estimates.unallocated, error)
    # `Estimates.remaining` has the same sums in the order of the counts. A chart begins with the
    # listed rows, which may be rare or undetected. The sum after the ten largest rows would then
    # exclude large rows that the chart does not show.
    rows = estimates.order(detected_only=True)
    later = rows[after:][estimates.detected[rows[after:]]]
    if len(later):
        entry = estimates.covariance.entry
        # A group counts once, at the first of its rows.
        later_entries = np.setdiff1d(entry[later], entry[rows[:after]])
        name = f"other detected ({len(later):,})"
        yield _build_joint_share(estimates, name, *detected.sum_entries(later_entries))
    yield _build_joint_share(estimates, "unallocated", estimates.unallocated, error)
    if estimates.not_listed is not None:
        yield estimates.not_listed


def _build_joint_share(estimates: Estimates, name: str, share: float, std_error: float) -> Contrast:
    """Build the contrast of a share of many rows, with a normal interval."""
    margin = NormalDist().inv_cdf((1 + estimates.error_control.confidence) / 2) * std_error
    return Contrast(
        name=name,
        estimate=share,
        std_error=std_error,
        ci_low=share - margin,
        ci_high=share + margin,
        p_value=None,
    )


def _report_collection(summary: CollectionSummary) -> CollectionReport:
    """Build the report of one parameter set."""
    # Privacy loss of one report, of the assumed number of reports per device, and of any number.
    sent = math.ceil(summary.repetition.reports_per_device)
    return CollectionReport(
        summary=summary,
        losses=tuple(compute_loss(summary.params, n) for n in (1, sent, None)),
        cohorts=tuple(_summarise_cohorts(summary)),
        residuals=None if summary.residuals is None else _summarise_residuals(summary.residuals),
    )


def _summarise_cohorts(summary: CollectionSummary) -> Iterator[CohortRange]:
    """Yield ranges of neighbouring cohorts, at most `MOST_CELLS`."""
    # Cohorts with more reports have narrower limits. A range shows its narrowest limits: the
    # largest lower limit and the smallest upper limit.
    m, bits = summary.params.m, summary.true_bits
    step = math.ceil(m / MOST_CELLS)
    for first in range(0, m, step):
        cohorts = slice(first, min(first + step, m))
        yield CohortRange(
            first=first,
            last=cohorts.stop - 1,
            least_reports=int(summary.reports[cohorts].min()),
            most_reports=int(summary.reports[cohorts].max()),
            least_bits=_reduce_range(np.fmin, bits.mean[cohorts]),
            most_bits=_reduce_range(np.fmax, bits.mean[cohorts]),
            low=_reduce_range(np.fmax, bits.low[cohorts]),
            high=_reduce_range(np.fmin, bits.high[cohorts]),
        )


def _reduce_range(choose: np.ufunc, values: Floats) -> float | None:
    """Compute the smallest or the largest value, None if all are NaN."""
    end = float(choose.reduce(values))
    # A range without reports has only NaN.
    return None if math.isnan(end) else end


def _summarise_residuals(residuals: Floats) -> ResidualGrid:
    """Summarise residuals in a grid of at most `MOST_CELLS` rows and columns."""
    m, k = residuals.shape
    cohorts, bits = math.ceil(m / MOST_CELLS), math.ceil(k / MOST_CELLS)
    rows, columns = math.ceil(m / cohorts), math.ceil(k / bits)
    # Pad to full blocks, so that the last block of a row has the same size. NaN never counts as the
    # largest residual.
    padded = np.full((rows * cohorts, columns * bits), np.nan)
    padded[:m, :k] = residuals
    blocks = padded.reshape(rows, cohorts, columns, bits).swapaxes(1, 2).reshape(rows, columns, -1)
    furthest = np.nanargmax(np.where(np.isnan(blocks), -1.0, np.abs(blocks)), axis=2)
    return ResidualGrid(
        cells=np.take_along_axis(blocks, furthest[:, :, None], axis=2)[:, :, 0],
        cohorts=cohorts,
        bits=bits,
        large=_list_largest(residuals),
    )


def _list_largest(residuals: Floats) -> tuple[tuple[int, int, float], ...]:
    """List the ten largest residuals beyond `LARGE_RESIDUAL`."""
    flat = np.nan_to_num(residuals.ravel())
    order = np.argsort(-np.abs(flat), kind="stable")[:10]
    positions = (divmod(int(position), residuals.shape[1]) for position in order)
    return tuple(
        (cohort, bit, float(residuals[cohort, bit]))
        for cohort, bit in positions
        if abs(residuals[cohort, bit]) >= LARGE_RESIDUAL
    )


def _answer_checks(estimates: Estimates, origin: Origin) -> Iterator[Check]:
    """Answer a reviewer's sixteen questions from the data, or leave them to the reader."""
    error_control, n = estimates.error_control, estimates.n_candidates
    yield Check(
        "Is the question stated?",
        f"{n:,} candidates were tested. What does the answer decide, and was this written "
        "into the metric's description before the counts were seen?",
    )
    yield Check(
        "Do the data answer it, and soon enough?",
        "Does a share of reports answer the question, and does it come before the decision?",
    )
    yield Check(
        "Is the right thing measured?",
        "Does a report count on the day of the event or on the day of its upload, and which of the "
        "two does the question mean?",
    )
    # Uneven cohorts are a sign of devices that chose their cohort, or of forged reports.
    even = all(cohorts["p_value"] >= IMBALANCE for cohorts in estimates.diagnostics["cohorts"])
    yield Check(
        "Is the sample representative?",
        f"{estimates.reports:,} reports spread over the cohorts {'as' if even else 'less'} evenly "
        f"{'as' if even else 'than'} honest devices do. Devices that never report are not in the "
        "counts. Which are they, and was a share of devices drawn (`sample`)?",
        "you answer" if even else "no",
    )
    yield Check(
        "Were the inputs checked?",
        "The counts do not contain refused reports. How many did the collector refuse, and why?",
    )
    # An impossible number of ones is a sign of forged reports. Unexplained bits are a sign of
    # missing candidates.
    odd_cohorts = len(estimates.diagnostics["odd_popcounts"])
    unexplained = len(estimates.diagnostics.get("unexplained_bits", []))
    yield Check(
        "Are outliers handled?",
        _count_odd_cohorts(odd_cohorts)
        + " a number of ones that honest devices do not send."
        + _describe_lighter_bits(estimates)
        + (
            f" Neither candidates nor noise explain at least {format_count(unexplained, 'bit')}."
            if unexplained
            else ""
        ),
        "no" if odd_cohorts or unexplained else "yes",
    )
    yield Check(
        "Does the season matter?",
        "These estimates are for all days together. Do weekdays and holidays differ? A trend by "
        "day shows it.",
    )
    yield _check_enough_data(estimates.diagnostics.get("detectable_share"), estimates.value_noun)
    yield Check(
        "Are comparisons tested, and corrected for their number?",
        f"{_CORRECTIONS[error_control.method]} of {100 * error_control.alpha:.4g} % over all "
        f"{n:,} candidates, detected or not."
        + (
            " The tests have weights by the ranks of the list. Does the order of the list come "
            "from anything but reports of this metric?"
            if error_control.ranked
            else ""
        ),
        "you answer" if error_control.ranked else "yes",
    )
    yield Check(
        "Do estimates have intervals that hold?",
        "Detected rows have intervals that are widened because the rows were selected: "
        f"on average {100 * error_control.confidence:.4g} % of such intervals cover the truth. "
        "Intervals of undetected rows are for each row alone.",
        "yes",
    )
    yield Check(
        "Are shares normalised, and by what?",
        f"By {estimates.reports:,} reports, not by people. "
        + (
            "A device may have several items, so shares may add up to more than 100 %."
            if estimates.has_sets
            else "A report has one answer."
        ),
        "yes",
    )
    # The model has two assumptions: how often devices reported, and that bits are independent and
    # explained by the candidates. The goodness of the fit tests the second assumption.
    is_repetition_known = all(
        summary.repetition.source != "unknown" for summary in estimates.collections
    )
    is_good_fit, fit_sentence = _check_fit(estimates)
    yield Check(
        "Do the model's assumptions hold?",
        f"{estimates.assumptions} {fit_sentence}",
        "yes" if is_repetition_known and is_good_fit else "no",
    )
    yield Check(
        "Is a cause claimed?",
        "A difference between groups need not be caused by what distinguishes them. Was anything "
        "changed at random?",
    )
    yield Check(
        "Does each picture answer a question?",
        f"The chart shows which {format_plural(estimates.value_noun)} are common, residuals "
        "whether the candidates explain the counts, and cohorts whether reports spread evenly.",
        "yes",
    )
    yield Check(
        "Are axes labelled?",
        "Each axis on this page says what it shows and in which unit. An axis that does not begin "
        "at 0, or that leaves out a range, says so.",
        "yes",
    )
    yield Check(
        "Can the table be made again?",
        "Decoding draws no random numbers: the same counts, candidates and versions give "
        "the same table. "
        + ("Their hashes are below." if origin.files else "Which files were read is not known."),
        "yes" if origin.files else "no",
    )


_CORRECTIONS: Final = {
    "bh": "Benjamini-Hochberg bounds the expected share of false detections at a level",
    "adaptive": "Storey's procedure bounds the expected share of false detections at a level",
    "bonferroni": "Bonferroni bounds the probability of any false detection at a level",
}
"""Beginning of the sentence about the error rate, by the method of detection. The report adds the
level in percent and the number of tested candidates."""


def _check_enough_data(share: float | None, value_noun: str) -> Check:
    """Answer the question of sufficient data by the smallest detectable share.

    `value_noun` is the noun for a candidate.
    """
    question = "Are there enough data?"
    # Categories are tested by exact tails, for which no single limit is computed.
    if share is None:
        return Check(question, "No limit is known here. Which share must not be missed?")
    # The noise is larger than any share.
    if share > 1:
        return Check(question, f"No {value_noun} can be detected here, however common.", "no")
    return Check(
        question,
        f"A share of {100 * share:.2g} % is detected with 80 % probability; smaller ones are "
        "missed more often. Is every group that matters larger?",
    )


def _count_odd_cohorts(n: int) -> str:
    """Return the beginning of a sentence about n cohorts, with its verb."""
    if n == 0:
        return "No cohort has"
    return "1 cohort has" if n == 1 else f"{n:,} cohorts have"


def _describe_lighter_bits(estimates: Estimates) -> str:
    """Describe how many bits have less weight in the fit, compared with noise alone.

    The fit gives less weight to a bit whose proportion of ones is too far above the fitted value,
    because a string outside the candidates may have set the bit. The weight begins to fall at
    `TAPER[0]` standard deviations above the fit. Bits below the fit keep their weight, so one tail
    of the normal distribution gives the number of bits that noise alone would affect.
    """
    # Categories are decoded without a fit, so no bit has a weight.
    if "set_aside_rows" not in estimates.diagnostics:
        return ""
    bits = sum(
        int((summary.reports > 0).sum()) * summary.params.k for summary in estimates.collections
    )
    n_expected = bits * NormalDist().cdf(-TAPER[0])
    return (
        f" {estimates.diagnostics['set_aside_rows']:,} of {bits:,} bits have less weight; noise "
        f"alone gives about {n_expected:,.{0 if n_expected >= 1 else 1}f}."
    )


def _check_fit(estimates: Estimates) -> tuple[bool, str]:
    """Return whether the candidates explain the counts, and a sentence about the fit."""
    fit = estimates.diagnostics.get("goodness_of_fit")
    # The bits are categories. Each has its own share, computed from its own count, so the shares
    # explain every count exactly.
    if fit is None:
        return True, "Each bit is an answer, so there is nothing to explain."
    # Case: the list is complete, and many of its strings are too rare to be selected. The selected
    # strings then fit badly, and all candidates together fit well.
    if fit["p_value"] < FIT_FALSE_ALARM <= get_decisive_fit_p_value(fit):
        return True, (
            "The candidates explain the counts together, although many are too rare to detect "
            f"(p = {get_decisive_fit_p_value(fit):.2g} of the fit of all candidates)."
        )
    explained = fit["p_value"] >= FIT_FALSE_ALARM
    return explained, (
        f"The candidates {'explain' if explained else 'do not explain'} the counts: the squared "
        f"residuals are {fit['chi2_per_degree']:.3g} times those of the noise "
        f"(p = {fit['p_value']:.2g})."
    )
