"""Decode counts: estimate the share of every candidate, with standard errors and tests.

`decode` is the sequence of the steps; each step is a module of `rappor.estimator`:

    counts --> de-bias --> screen --> select (lasso) --> refit --> test every candidate
                             ^                             |
                             +---- screen the residual <---+

Three kinds of counts take different ways:

- Categories, booleans and buckets have a bit for each value, so a closed form replaces the
  regression (`closed_form`).
- Strings have a column of bits for each candidate, and the regression is as drawn above.
- More candidates than `MOST_ROWS` are read as a stream, several times, and only the best ones have
  rows in the result.

All ways end in the same table, `Estimates`, whose rows share one joint covariance. METHOD.md in
this folder derives the formulas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from rappor.base.argument_checks import explain_error_control
from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Floats, Integers
from rappor.counts.counts import Counts
from rappor.decoding import diagnostics
from rappor.decoding.closed_form import CompleteCategoryEstimates, estimate_categories
from rappor.decoding.collection_summary import standardise
from rappor.decoding.contrasts import add_sampling
from rappor.decoding.distribution import estimate_shares
from rappor.decoding.estimates import Estimates
from rappor.decoding.forgery_breakdown import (
    compute_category_effects,
    compute_string_effects,
    count_forged_reports,
)
from rappor.decoding.inference import EntryEstimates, build_estimates, build_normal_interval
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.debias import Target, debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.identifiability_groups import DistinctCandidates
from rappor.estimator.near_capacity import (
    describe_capacity,
    fit_all_for_test,
    fit_all_if_saturated,
)
from rappor.estimator.p_values import PValues, least_p_value
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.score_tests import (
    NullTail,
    build_normal_tail,
    compute_null_tail,
    compute_ones_variance,
)
from rappor.estimator.selection import SCREENED, Selection, select_candidates
from rappor.estimator.shrinkage import ShrunkenFit
from rappor.protocol.encodings import get_encoding

MOST_ROWS: Final = 1 << 17
"""Largest number of candidates that all have rows. A longer list is read as a stream, and only the
best candidates have rows: as many as the counts have rows, and 10,000 more."""


@explain_error_control
def decode(  # noqa: PLR0913 - all that a caller may know of the counts
    counts: Counts | Sequence[Counts],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    listed: Iterable[str] = (),
    error_control: ErrorControl = ErrorControl(),
    distribution: bool = False,
    devices: float | None = None,
    reports_per_device: float | None = None,
    complete: bool = False,
    progress: Progress = no_progress,
) -> Estimates:
    """Estimate how many reports contain each candidate.

    Repeated reports of a device carry less information than reports of different devices. Pass
    `devices` or `reports_per_device` if you know how often devices report. Otherwise the number in
    the counts is used, or a number estimated from the counts of several days. Without any of these,
    every report is assumed to come from a different device. `Estimates.assumptions` states the
    assumption. README.md in this folder explains the statistics.

    Parameters
    ----------
    counts : one collection, or several collections under any mixture of parameter sets. Collections
        of one metric and one parameter set are added, like days on which the same devices may have
        reported.
    candidates : the strings to estimate: a list or column of strings, or `Candidates`. Of more than
        MOST_ROWS candidates, the best have a row, and all others are counted in
        `Estimates.p_value_counts`. Encodings other than Bloom have fixed categories and take no
        candidates.
    listed : strings that the metric's entry lists. They are candidates, too. Their rows come first,
        detected or not. `Estimates.not_listed` is the share of all other strings.
    error_control : error rates of detections and intervals. The method "adaptive" is replaced by
        "bh" if strings have few reports. `Estimates.error_control` contains the method that was
        applied.
    distribution : True also estimates the shares of the complete list together
        (`Estimates.posterior_share`).
    devices, reports_per_device : number of devices behind all reports together, or number of
        reports per device. At most one of both. Store unequal numbers in
        `Counts.sum_squared_reports`.
    complete : True if every value belongs to one of the categories or buckets, so that their shares
        sum to 1. Ignored for strings.
    progress : function of a stage, the number of finished steps, and the number of all steps.

    Returns
    -------
    Estimates, with a row for every candidate up to MOST_ROWS. Strings are sorted by count, largest
    first. Categories and buckets keep their own order. The result is deterministic.

    Raises
    ------
    DecodeError
        There are no reports or no candidates, or the collections do not belong together. For a
        stream also: `distribution` is True, or the candidates cannot be distinguished.
    FileError
        A file of candidates cannot be read to its end.
    ParamsError
        The candidates are one text instead of a list.

    Examples
    --------
    >>> from rappor import Params, Population, decode, simulate_counts
    >>> params = Params.profile("balanced")
    >>> population = Population(["cat", "dog"], [3, 1])
    >>> counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    >>> estimates = decode(counts, ["cat", "dog", "emu"])
    >>> estimates.detected_candidates
    ['cat', 'dog']
    """
    collections = _check_collections(counts)
    target = debias(
        *add_collections(collections, devices=devices, reports_per_device=reports_per_device)
    )
    keep = len(target) + 2 * SCREENED
    most = max(keep, MOST_ROWS)
    first = normalize_listed(listed, collections)
    requested = normalize_candidates(candidates, first, collections, most)
    if requested is None:
        return _decode_closed(target, error_control, distribution=distribution, complete=complete)
    with limit_to_one_thread():
        if _is_streamed(requested, target, most, distribution=distribution):
            # Import the stream only here. The import loads the compiler, which categories do not
            # need.
            from rappor.estimator.streamed_design_matrix import StreamedDesign  # noqa: PLC0415

            pool = StreamedDesign(requested, target, keep, n_first=len(first))
            selection = select_candidates(target, pool, progress)
            strings = pool.strings
        else:
            strings = DistinctCandidates(requested, target, progress)
            selection = fit_all_if_saturated(
                target, strings.design, select_candidates(target, strings.design, progress)
            )
        estimates = _build_string_estimates(
            target, strings, selection, error_control, distribution=distribution
        )
    return dataclasses.replace(estimates, listed=frozenset(first))


def _check_collections(counts: Counts | Sequence[Counts]) -> list[Counts]:
    """Check that the collections can be decoded together, and return them as a list."""
    collections = list(counts) if isinstance(counts, Iterable) else [counts]
    for collection in collections:
        if not isinstance(collection, Counts):
            raise DecodeError(
                f"counts must be Counts or a list of them, got {type(collection).__name__}; "
                "call decode(counts, candidates)"
            )
    # Different parts of a metric are different pieces of a string. Their sum would describe no
    # string.
    parts = sorted({collection.params.part for collection in collections})
    if len(parts) > 1:
        raise DecodeError(
            f"counts must be of one part of a metric, got {', '.join(filter(None, parts))}: "
            "rappor.discover takes all parts"
        )
    # Segments have different shares. A joint estimate would be an average with weights that nobody
    # chose.
    segments = {collection.params.segment for collection in collections}
    if len(segments) > 1:
        raise DecodeError(
            f"counts must be of one segment, got {len(segments)}: call rappor.compare_segments"
        )
    return collections


def normalize_listed(listed: Iterable[str], collections: Sequence[Counts]) -> tuple[str, ...]:
    """Return the distinct strings of a metric's list, normalised as on the devices."""
    normalizer = collections[0].params.normalize
    return Candidates.from_list(listed, normalize=normalizer).strings


def normalize_candidates(
    candidates: Candidates | Iterable[str] | None,
    first: Sequence[str],
    collections: Sequence[Counts],
    most: int,
) -> Candidates | None:
    """Normalise candidates as the devices did. Returns None for encodings with fixed categories.

    Parameters
    ----------
    candidates : the argument of `decode`.
    first : normalised strings that come before all other candidates.
    collections : the counts. All must have one normalizer.
    most : largest number of candidates that are read into memory.
    """
    if not all(get_encoding(collection.params).is_hashed for collection in collections):
        if candidates is not None or first:
            raise DecodeError("candidates must be omitted: this encoding answers for every bit")
        return None
    normalizers = {collection.params.normalize for collection in collections}
    if len(normalizers) > 1:
        raise DecodeError(f"counts must share one normalizer, got {sorted(normalizers)}")
    (normalizer,) = normalizers
    if not isinstance(candidates, Candidates):
        strings = () if candidates is None else candidates
        candidates = Candidates.from_list(strings, normalize=normalizer)
    # Candidates under another normalizer would set bits that no device sends. Every estimate would
    # be 0 without an error.
    if candidates.normalize != normalizer:
        raise DecodeError(
            f"candidates must be normalised by {normalizer!r} as on the devices, "
            f"got {candidates.normalize!r}"
        )
    if first:
        # Do not normalise these strings again: some normalizers are not idempotent.
        first_candidates = Candidates.product(first, "", 0, 0, normalize=normalizer)
        all_candidates = Candidates.chain(first_candidates, candidates)
        in_memory = (
            all_candidates.load_into_memory(len(first) + len(candidates))
            if candidates.is_in_memory
            else None
        )
        candidates = all_candidates if in_memory is None else in_memory
    if (in_memory := candidates.load_into_memory(most)) is not None:
        candidates = in_memory
    if candidates.is_in_memory and len(candidates) == 0:
        raise DecodeError(
            "candidates must number at least 1, got 0; give candidates: a list of strings"
        )
    return candidates


def _is_streamed(listed: Candidates, target: Target, most: int, *, distribution: bool) -> bool:
    """Return whether the candidates are read as a stream, so that only the best have a row."""
    if listed.is_in_memory and len(listed) <= most:
        return False
    # Import the stream only here. The import loads the compiler, which categories do not need.
    from rappor.estimator.streamed_design_matrix import can_stream  # noqa: PLC0415

    if listed.is_in_memory and (distribution or not can_stream(target, len(listed))):
        return False
    if distribution:
        raise DecodeError(
            f"distribution needs all candidates at once: of more than {most:,}, those of a list or "
            "of a file up to 64 MB"
        )
    return True


def _build_string_estimates(
    target: Target,
    strings: DistinctCandidates,
    selection: Selection,
    detection: ErrorControl,
    *,
    distribution: bool,
) -> Estimates:
    """Create the table of all candidates, including all members of identifiability groups."""
    tail, p_values = _compute_p_values(target, selection)
    thresholds = Thresholds(detection.for_ones(_compute_ones_variance(target)), p_values)
    rows = compute_string_effects(target, strings.design, selection, tail, thresholds)
    raw = EntryEstimates(
        names=strings.candidates.strings,
        entry=strings.entry,
        group=strings.group,
        estimate=selection.estimate,
        std_error=_add_shared_sampling(target, selection.estimate, selection.std_error),
        thresholds=thresholds,
        interval=build_normal_interval(
            selection.estimate,
            _variance_without_sampling(target, selection),
            tail,
            devices=_count_sampling_devices(target, selection),
        ),
        covariance=partial(_compute_covariance, target, strings.design, selection),
        shares=_estimate_posterior_shares(target, selection) if distribution else None,
        residual=standardise(target, selection.fit),
        breakdown=count_forged_reports(rows, thresholds.detected, target.n_reports),
    )
    return build_estimates(
        raw, target, _collect_diagnostics(target, strings, selection, thresholds)
    )


def _compute_p_values(target: Target, selection: Selection) -> tuple[NullTail, PValues]:
    """Compute the tail of an absent candidate's score, and the p-values of all candidates."""
    # If the counts contain no information about a candidate, its p-value is 1: there is no evidence
    # of its presence.
    is_identified = np.isfinite(selection.std_error)
    z = np.where(is_identified, selection.estimate / selection.std_error, 0.0)
    if isinstance(selection.fit, ShrunkenFit):
        tail = build_normal_tail()
        tested = np.maximum(tail.p_values(z), least_p_value(target))
    else:
        tail = compute_null_tail(target, selection.fit)
        tested = compute_p_values(target, selection.fit, z, selection.selected)
    rows = np.where(is_identified, tested, 1.0)
    return tail, PValues(
        in_memory=rows, other_counts=selection.other_counts, least_other=selection.least_other
    )


def _collect_diagnostics(
    target: Target, strings: DistinctCandidates, selection: Selection, thresholds: Thresholds
) -> dict[str, Any]:
    """Collect the diagnostics of a decode of strings."""
    fit = diagnostics.describe_fit(
        target, selection.fit, selection.std_error, threshold=thresholds.next_threshold
    )
    goodness_of_fit = fit["goodness_of_fit"]
    misfit = goodness_of_fit["p_value"] < diagnostics.FIT_FALSE_ALARM
    if misfit and (complete_fit := fit_all_for_test(target, strings.design, selection)) is not None:
        goodness_of_fit["all_candidates_p_value"] = diagnostics.compute_fit_p_value(
            target, complete_fit
        )
    return {
        **diagnostics.describe_cohorts(target),
        **fit,
        "selected": len(selection.selected),
        "undetected_intervals": diagnostics.count_undetected_intervals(
            selection.estimate, selection.std_error, thresholds.detected
        ),
        "capacity": describe_capacity(
            target, selection, strings.design.columns(selection.selected), misfit=misfit
        ),
        "groups": [list(strings.candidates.select(group).strings) for group in strings.groups],
    }


def _compute_ones_variance(target: Target) -> float:
    """Compute the variance of the ones at one bit of each cohort, for all devices together."""
    pairs = zip(target.counts, target.effective_devices, strict=True)
    return sum(compute_ones_variance(counts.params, float(devices)) for counts, devices in pairs)


def _estimate_posterior_shares(target: Target, selection: Selection) -> Floats:
    """Compute the posterior shares and their standard errors, (2, c)."""
    share, error = estimate_shares(selection.estimate, selection.std_error)
    return np.stack([share, _add_shared_sampling(target, share, error)])


def _add_shared_sampling(target: Target, share: Floats, std_error: Floats) -> Floats:
    """Add the sampling variance that the rows of one string have in common.

    Returns standard errors.

    The devices of a string are spread unevenly over the cohorts. The noise of the rows includes
    this variance as if each of a string's h bits had different devices. The bits have the same
    devices, so the mean of h bits lacks (1 - 1/h) of beta (1 - beta) / D, where D is the number of
    devices: reports divided by reports per device.
    """
    repeated = sum(
        counts.n_reports * (1 - 1 / counts.params.h) * repetition.reports_per_device
        for counts, repetition in zip(target.counts, target.repetitions, strict=True)
    )
    inside = np.clip(share, 0.0, 1.0)
    extra = repeated / target.n_reports * inside * (1 - inside) / target.n_reports
    return np.sqrt(std_error**2 + extra)


def _variance_without_sampling(target: Target, selection: Selection) -> Floats:
    """Compute the variance of each estimate, (c,), without the sampling of its own devices.

    The noise of a row includes the sampling of the strings in the fit, and of no other string.
    """
    inside = np.clip(selection.estimate, 0.0, 1.0)
    sampling = inside * (1 - inside)
    variance = selection.std_error**2
    if isinstance(selection.fit, ShrunkenFit):
        fitted = np.flatnonzero(~selection.fit.random.any(axis=0))
    else:
        fitted = selection.selected
    error = _add_shared_sampling(target, selection.estimate, selection.std_error)[fitted]
    remaining = error**2 - sampling[fitted] / _count_sampling_devices(target, selection)
    variance[fitted] = np.maximum(remaining, 0.0)
    return variance


def _count_sampling_devices(target: Target, selection: Selection) -> float:
    """Compute the number of evenly spread devices with the sampling variance of the rows."""
    has_reports = target.reports > 0
    weight, n = (
        selection.fit.weight[has_reports],
        (target.reports / target.reports_per_device)[has_reports],
    )
    n_bits = np.repeat([c.params.k for c in target.counts], np.bincount(target.collection_index))[
        has_reports
    ]
    spread = float(np.sum(n_bits * weight**2 / n))
    return float(weight.sum()) ** 2 / max(spread, np.finfo(float).tiny)


def _compute_covariance(
    target: Target, design: Design, selection: Selection, entries: Integers
) -> Floats:
    """Compute the covariance of the estimates of these candidates, (r, r).

    All of them are in one fit.
    """
    if isinstance(selection.fit, ShrunkenFit):
        noise = selection.fit.covariance_of(entries)
    else:
        fitted = np.union1d(selection.selected, entries)
        requested = np.isin(fitted, entries)
        is_extended = len(fitted) > len(selection.selected)
        complete_covariance = selection.fit.covariance(
            design.columns(fitted) if is_extended else None
        )
        noise = complete_covariance[np.ix_(requested, requested)]
    estimate, diagonal = selection.estimate[entries], np.diag_indices_from(noise)
    noise[diagonal] = (
        _add_shared_sampling(target, estimate, np.sqrt(np.maximum(noise[diagonal], 0.0))) ** 2
    )
    return add_sampling(noise, estimate, np.array(1 / _count_sampling_devices(target, selection)))


def _decode_closed(
    target: Target, detection: ErrorControl, *, distribution: bool, complete: bool
) -> Estimates:
    """Decode categories, booleans and buckets by the closed form."""
    categories = estimate_categories(target, target.counts[0].params)
    encoding = get_encoding(target.counts[0].params)
    findings = diagnostics.describe_cohorts(target)
    if complete:
        # The encoding `boolean` has one share, so there is no sum to constrain.
        if not encoding.is_exclusive:
            raise DecodeError("complete must be false for yes or no: a no sets no bit")
        categories = CompleteCategoryEstimates.of(categories)
        findings["complete"] = categories.describe()
    thresholds = Thresholds(detection, PValues(in_memory=categories.proportions.p_values()))
    share = categories.shares(exclusive=encoding.is_exclusive)
    rows = compute_category_effects(target, categories.proportions, thresholds)
    raw = EntryEstimates(
        names=tuple(encoding.category_labels),
        entry=np.arange(len(categories.estimate)),
        group=np.zeros(len(categories.estimate), dtype=np.int64),
        estimate=categories.estimate,
        std_error=categories.std_error,
        thresholds=thresholds,
        interval=categories.interval,
        covariance=categories.covariance,
        shares=np.stack([share, categories.std_error]) if distribution else None,
        breakdown=count_forged_reports(rows, thresholds.detected, target.n_reports),
    )
    return build_estimates(raw, target, findings)
