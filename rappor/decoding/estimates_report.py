"""EstimatesReport: all that a page about one decode shows, as one record.

A page, a notebook and a terminal draw from it; none of them computes. Rows, cells and cohorts
beyond what anybody reads are counted here instead of listed.
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

from rappor.base.plurals import counted
from rappor.counts.arrays import Floats
from rappor.decoding.collection_summary import Collected
from rappor.decoding.contrasts import Contrast
from rappor.decoding.diagnostics import FIT_FALSE_ALARM, IMBALANCE
from rappor.decoding.estimates import Estimates
from rappor.estimator.fit import TAPER
from rappor.privacy.report import Loss, loss_of
from rappor.protocol.params import Params

LISTED: Final = 1000
"""Rows that a page lists; the others are counted."""

CHARTED: Final = 10
"""Detected rows of the chart, one of the tops for which `Estimates.rests` has the others' sum."""

CHARTED_UNDETECTED: Final = 3
"""Undetected rows of the chart: the nearest to detection, to see how near they are."""

CELLS: Final = 64
"""Rows and columns of a grid of residuals, and points of a chart of cohorts."""

LARGE: Final = 4.0
"""Residual, in standard deviations, from which a bit is named: noise has one in 16,000."""

_LISTED_GROUPS: Final = 100
_PACKAGES: Final = ("rappor", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that was read: its name, the SHA-256 of its bytes, the days it says that it covers."""

    name: str
    sha256: str
    days: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a table comes from, so that others can make it again: the command, the files."""

    command: str = ""
    files: tuple[InputFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualGrid:
    """Residuals by cohort and bit, in standard deviations.

    Attributes
    ----------
    cells : (r, c) float64. Of each block of neighbouring cohorts and bits the residual that is
        furthest from 0; NaN where no cohort has reports.
    cohorts, bits : how many cohorts and bits a cell covers.
    large : (cohort, bit, residual) of those beyond `LARGE`, the largest first; ten at most.
    """

    cells: Floats
    cohorts: int
    bits: int
    large: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortRange:
    """Neighbouring cohorts: least and most of their reports, and of the true bits in a report.

    `low` and `high` are the least and the most true bits that all of them could have honestly.
    True bits are None where no cohort has reports.
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
class CollectedReport:
    """One parameter set: the reports, the promise, and what the counts show.

    `losses` are those of one report, of as many as one device is assumed to have sent, and of any
    number.
    """

    collected: Collected
    losses: tuple[Loss, ...]
    cohorts: tuple[CohortRange, ...]
    residuals: ResidualGrid | None

    @property
    def params(self) -> Params:
        """The parameters."""
        return self.collected.params

    @property
    def expected_reports(self) -> float:
        """Reports of a cohort in the mean."""
        return self.collected.n_reports / self.params.m


@dataclass(frozen=True, slots=True)
class Check:
    """A reviewer's question, and what the data answer: "yes", "no", or "you answer"."""

    question: str
    answer: str
    verdict: str = "you answer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatesReport:
    """All that a page shows.

    Attributes
    ----------
    rows : at most `LISTED` rows as `Estimates.rows` yields them: strings that the metric's entry
        lists, then detected ones, then the others.
    charted : those of the chart.
    masses : of all detected rows, of those that are not charted if there are any, what is
        unallocated, and of strings that the metric's entry does not list, if it has a list; empty
        for yes or no.
    unlisted_detected, unlisted_undetected : rows that are only counted.
    groups : indistinguishable candidates, at most a hundred groups of them.
    versions : of Python and the packages that computed, by name.
    candidates_sha256 : of all candidates that have a row, sorted by their UTF-8 bytes, a newline
        after each.
    """

    estimates: Estimates
    rows: tuple[dict[str, Any], ...]
    charted: tuple[dict[str, Any], ...]
    masses: tuple[Contrast, ...]
    unlisted_detected: int
    unlisted_undetected: int
    collected: tuple[CollectedReport, ...]
    groups: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]
    origin: Origin
    versions: tuple[tuple[str, str], ...]
    candidates_sha256: str

    @property
    def n_detected(self) -> int:
        """Detected rows, listed or not."""
        return int(self.estimates.detected.sum())


def report(estimates: Estimates, origin: Origin | None = None) -> EstimatesReport:
    """Gather what a page about these estimates shows."""
    origin = origin or Origin()
    first = estimates.order(detected_only=True)
    others = np.flatnonzero(~estimates.detected & ~estimates.is_listed)
    others = others[np.argsort(estimates.p_value[others], kind="stable")]
    shown = np.concatenate([first, others])[:LISTED]
    rows = tuple(estimates.row(int(i)) for i in shown)
    n_first = min(len(first), LISTED)
    n_detected = int(estimates.detected[shown].sum())
    return EstimatesReport(
        estimates=estimates,
        rows=rows,
        charted=_charted(rows, n_first),
        masses=tuple(masses(estimates)),
        unlisted_detected=int(estimates.detected.sum()) - n_detected,
        unlisted_undetected=(
            estimates.n_candidates - int(estimates.detected.sum()) - (len(shown) - n_detected)
        ),
        collected=tuple(_collected(each) for each in estimates.collections),
        groups=tuple(map(tuple, estimates.diagnostics.get("groups", [])[:_LISTED_GROUPS])),
        checks=tuple(_checks(estimates, origin)),
        origin=origin,
        versions=(
            ("Python", platform.python_version()),
            *((name, metadata.version(name)) for name in _PACKAGES),
        ),
        candidates_sha256=hash_candidates(estimates.candidates),
    )


def _charted(rows: Sequence[dict[str, Any]], n_first: int) -> tuple[dict[str, Any], ...]:
    """Return the rows of the chart: the first ones, and the nearest to detection of the others."""
    return (*rows[: min(n_first, CHARTED)], *rows[n_first:][:CHARTED_UNDETECTED])


def hash_candidates(candidates: Sequence[str]) -> str:
    """Return the SHA-256 of candidates, sorted by bytes: `LC_ALL=C sort -u FILE | sha256sum`."""
    digest = hashlib.sha256()
    for line in sorted(text.encode("utf-8", "surrogatepass") for text in candidates):
        digest.update(line + b"\n")
    return digest.hexdigest()


def masses(estimates: Estimates, *, after: int = CHARTED) -> Iterator[Contrast]:
    """Yield what is detected, what of it comes after the first rows, and what is unallocated.

    `after` is one of the tops of `Estimates.rests`.
    """
    if math.isnan(estimates.unallocated):
        return
    error = estimates.unallocated_std_error
    yield _mass(estimates, "all detected", 1 - estimates.unallocated, error)
    for rest in estimates.remaining:
        if rest.after == after:
            name = f"other detected ({rest.rows:,})"
            yield _mass(estimates, name, rest.share, rest.std_error)
    yield _mass(estimates, "unallocated", estimates.unallocated, error)
    if estimates.not_listed is not None:
        yield estimates.not_listed


def _mass(estimates: Estimates, name: str, proportion: float, std_error: float) -> Contrast:
    margin = NormalDist().inv_cdf((1 + estimates.error_control.confidence) / 2) * std_error
    return Contrast(
        name=name,
        estimate=proportion,
        std_error=std_error,
        ci_low=proportion - margin,
        ci_high=proportion + margin,
        p_value=None,
    )


def _collected(collected: Collected) -> CollectedReport:
    sent = math.ceil(collected.repetition.reports_per_device)
    return CollectedReport(
        collected=collected,
        losses=tuple(loss_of(collected.params, n) for n in (1, sent, None)),
        cohorts=tuple(_cohort_ranges(collected)),
        residuals=None if collected.residuals is None else _grid(collected.residuals),
    )


def _cohort_ranges(collected: Collected) -> Iterator[CohortRange]:
    m, bits = collected.params.m, collected.true_bits
    step = math.ceil(m / CELLS)
    for first in range(0, m, step):
        some = slice(first, min(first + step, m))
        yield CohortRange(
            first=first,
            last=some.stop - 1,
            least_reports=int(collected.reports[some].min()),
            most_reports=int(collected.reports[some].max()),
            least_bits=_end(np.fmin, bits.mean[some]),
            most_bits=_end(np.fmax, bits.mean[some]),
            low=_end(np.fmax, bits.low[some]),
            high=_end(np.fmin, bits.high[some]),
        )


def _end(choose: np.ufunc, values: Floats) -> float | None:
    end = float(choose.reduce(values))
    return None if math.isnan(end) else end


def _grid(residuals: Floats) -> ResidualGrid:
    m, k = residuals.shape
    cohorts, bits = math.ceil(m / CELLS), math.ceil(k / CELLS)
    rows, columns = math.ceil(m / cohorts), math.ceil(k / bits)
    whole = np.full((rows * cohorts, columns * bits), np.nan)
    whole[:m, :k] = residuals
    blocks = whole.reshape(rows, cohorts, columns, bits).swapaxes(1, 2).reshape(rows, columns, -1)
    furthest = np.nanargmax(np.where(np.isnan(blocks), -1.0, np.abs(blocks)), axis=2)
    return ResidualGrid(
        cells=np.take_along_axis(blocks, furthest[:, :, None], axis=2)[:, :, 0],
        cohorts=cohorts,
        bits=bits,
        large=_largest(residuals),
    )


def _largest(residuals: Floats) -> tuple[tuple[int, int, float], ...]:
    flat = np.nan_to_num(residuals.ravel())
    order = np.argsort(-np.abs(flat), kind="stable")[:10]
    places = (divmod(int(place), residuals.shape[1]) for place in order)
    return tuple(
        (cohort, bit, float(residuals[cohort, bit]))
        for cohort, bit in places
        if abs(residuals[cohort, bit]) >= LARGE
    )


def _checks(estimates: Estimates, origin: Origin) -> Iterator[Check]:
    """Answer a reviewer's sixteen questions as far as the data can, and ask the others."""
    detection, n = estimates.error_control, estimates.n_candidates
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
    even = all(each["p_value"] >= IMBALANCE for each in estimates.diagnostics["cohorts"])
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
    odd = len(estimates.diagnostics["odd_popcounts"])
    unexplained = len(estimates.diagnostics.get("unexplained_bits", []))
    yield Check(
        "Are outliers handled?",
        ("No cohort has" if not odd else "1 cohort has" if odd == 1 else f"{odd:,} cohorts have")
        + f" a number of ones that honest devices do not send.{_lighter(estimates)}"
        + (
            f" Neither candidates nor noise explain at least {counted(unexplained, 'bit')}."
            if unexplained
            else ""
        ),
        "no" if odd or unexplained else "yes",
    )
    yield Check(
        "Does the season matter?",
        "These estimates are for all days together. Do weekdays and holidays differ? A trend by "
        "day shows it.",
    )
    yield _enough(estimates.diagnostics.get("detectable_share"))
    yield Check(
        "Are comparisons tested, and corrected for their number?",
        f"{_CORRECTIONS[detection.method]} of {100 * detection.alpha:.4g} % over all "
        f"{n:,} candidates, detected or not.",
        "yes",
    )
    yield Check(
        "Do estimates have intervals that hold?",
        "Detected rows have intervals that are widened because the rows were selected: "
        f"on average {100 * detection.confidence:.4g} % of such intervals cover the truth. "
        "Intervals of undetected rows are for each row alone.",
        "yes",
    )
    one_answer = not math.isnan(estimates.unallocated)
    yield Check(
        "Are shares normalised, and by what?",
        f"By {estimates.reports:,} reports, not by people. "
        + ("A report has one answer." if one_answer else "Shares may add up to more than 100 %."),
        "yes",
    )
    # The fit tests independence of bits too; the other assumption is how often devices reported.
    known = all(each.repetition.source != "unknown" for each in estimates.collections)
    fits, fit = _fit(estimates)
    yield Check(
        "Do the model's assumptions hold?",
        f"{estimates.assumptions} {fit}",
        "yes" if known and fits else "no",
    )
    yield Check(
        "Is a cause claimed?",
        "A difference between groups need not be caused by what distinguishes them. Was anything "
        "changed at random?",
    )
    yield Check(
        "Does each picture answer a question?",
        "The chart shows which strings are common, residuals whether the candidates explain "
        "the counts, and cohorts whether reports spread evenly.",
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


def _enough(share: float | None) -> Check:
    question = "Are there enough data?"
    if share is None:
        return Check(question, "No limit is known here. Which share must not be missed?")
    if share > 1:
        return Check(question, "No string can be detected here, however common.", "no")
    return Check(
        question,
        f"A string of {100 * share:.2g} % is detected with 80 % probability; rarer ones are missed "
        "more often. Is every group that matters larger?",
    )


def _lighter(estimates: Estimates) -> str:
    """Say how many bits the fit gave less weight, and how many noise alone makes so high."""
    if "set_aside_rows" not in estimates.diagnostics:
        return ""
    bits = sum(int((each.reports > 0).sum()) * each.params.k for each in estimates.collections)
    alone = bits * NormalDist().cdf(-TAPER[0])
    return (
        f" {estimates.diagnostics['set_aside_rows']:,} of {bits:,} bits have less weight; noise "
        f"alone gives about {alone:,.{0 if alone >= 1 else 1}f}."
    )


def _fit(estimates: Estimates) -> tuple[bool, str]:
    """Return whether the candidates explain the counts, and how well."""
    fit = estimates.diagnostics.get("goodness_of_fit")
    if fit is None:
        return True, "Each bit is an answer, so there is nothing to explain."
    explained = fit["p_value"] >= FIT_FALSE_ALARM
    return explained, (
        f"The candidates {'explain' if explained else 'do not explain'} the counts: the squared "
        f"residuals are {fit['chi2_per_degree']:.3g} times those of the noise "
        f"(p = {fit['p_value']:.2g})."
    )
