"""Decode counts: estimate the share of every candidate, with standard errors and tests.

`decode` is for analysts, commands and the collector. The input is `Counts` and a list of candidate
strings. The output is the table `Estimates`. `decode` is the sequence of the steps, and each step
is a module of `rappor.estimator`:

    counts --> de-bias --> screen --> select (lasso) --> refit --> test every candidate
                             ^                             |
                             +---- screen the residual <---+

| step | result | module |
|---|---|---|
| de-bias | estimated share of the devices that set each bit of each cohort | `debias` |
| screen | a score of every candidate; only the best take part in the selection | `screening` |
| select, refit | candidates with a significant share, each with a column of its own | `selection` |
| test | p-value: probability that an absent candidate has such an estimate | `presence_tests` |

*Example.* Of 10,000 candidates, 40 are selected. A least-squares fit of their 40 columns and a
constant background explains the bits. The other 9,960 candidates are scored by the bits that the
fit does not explain. All 10,000 are tested, and 38 are detected at a false discovery rate of 5 %.

Three cases are decoded differently:

- Categories, booleans and buckets have a bit for each value, so a closed form replaces the
  regression (`closed_form`). Every category has a row in the table.
- Strings have a column of bits for each candidate, and the regression is as drawn above. Every
  candidate has a row.
- Strings with more candidates than `MOST_ROWS`: the candidates are read as a stream, several times,
  and only the best candidates have rows.

Candidates with the same bits in every cohort (an identifiability group) cannot be distinguished. An
*entry* is a candidate, or a group: it has one column in the regression, one estimate and one
p-value. Every member of a group has a row of the table, with the estimate of its entry.

All cases end in the same table, whose rows share one joint covariance. METHOD.md in this folder
derives the formulas.

Arrays have these axes: n rows of the regression (bits of cohorts), c entries. Estimates, standard
errors and their squares are shares of all reports. Functions of this module use these symbols:

| symbol | meaning |
|---|---|
| e, beta | estimated share of a string, its true share |
| D | effective number of devices: reports divided by reports per device |
| R | reports per device |
| k, h | bits of a cohort, and bits that a string sets in a cohort |
| w | weight of a row in the fit |
| p*, q* | probability that a reported bit is 1 if the value does not set it, and if it does |
| mu | probability of a reported 1 in a row |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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
from rappor.decoding.inference import (
    EntryEstimates,
    Interval,
    build_estimates,
    build_normal_interval,
)
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.bucket_tests import BucketCounts, count_bucket_reports
from rappor.estimator.debias import Target, debias
from rappor.estimator.design_matrix import Columns
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.identifiability_groups import DistinctCandidates
from rappor.estimator.near_capacity import (
    describe_capacity,
    fit_all_for_test,
    fit_all_if_saturated,
)
from rappor.estimator.p_values import PValues, compute_least_p_value
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.rank_weights import RankWeights
from rappor.estimator.score_tests import (
    NullTail,
    build_normal_tail,
    compute_null_tail,
    compute_ones_variance,
)
from rappor.estimator.selection import SCREENED, Selection, select_candidates
from rappor.estimator.set_refit import (
    SetDesign,
    describe_correlation,
    has_sets,
    refit_sets,
)
from rappor.estimator.shrinkage import ShrunkenFit
from rappor.protocol.encodings import get_encoding

MOST_ROWS: Final = 1 << 17
"""Largest number of candidates that all have rows. A longer list is read as a stream, and only the
best candidates have rows: one for each bit of each cohort, and 10,000 more (a comment in `decode`
explains this number). If the number grows, more memory is needed: the hashed bits of 131,072
candidates take 67 MB at 128 cohorts and one hash function."""


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
    """Estimate the share of the reports with each candidate.

    Repeated reports of a device carry less information than reports of different devices. Pass
    `devices` or `reports_per_device` if you know how often devices report. Otherwise the number in
    the counts is used, or a number that is estimated from the counts of several days. If the counts
    have neither, every report is assumed to come from a different device. `Estimates.assumptions`
    states the assumption. README.md in this folder explains how to read the result.

    Parameters
    ----------
    counts : one collection, or several collections under any mixture of parameter sets. Collections
        of one metric and one parameter set are added, because the same devices may have reported in
        all of them, as on several days.
    candidates : the strings to estimate: a list or column of strings, or `Candidates`. Of more than
        `MOST_ROWS` candidates, the best have a row, and all other candidates are counted in
        `Estimates.p_value_counts`. Encodings other than Bloom have fixed categories and take no
        candidates.
    listed : strings that the metric's entry in the registry lists. They are candidates, too. Their
        rows come first, detected or not. `Estimates.not_listed` is the share of all other strings.
    error_control : error rates of detections and intervals. The method "adaptive" is replaced by
        "bh" if strings have few reports. `Estimates.error_control` contains the method that was
        applied. With `ranked`, candidates must be ordered by how likely they are. The rank of a
        candidate is its position among the listed strings and, after them, `candidates`. A repeated
        string keeps its first rank.
    distribution : True also estimates the shares of the complete list together
        (`Estimates.posterior_share`).
    devices : number of devices behind all reports together, in [1, number of reports]. Pass at most
        one of `devices` and `reports_per_device`.
    reports_per_device : number of reports per device, in [1, number of reports]. If devices have
        unequal numbers of reports, store them in `Counts.sum_squared_reports` instead.
    complete : True if every value belongs to one of the categories or buckets, so that their shares
        sum to 1. Ignored for strings.
    progress : function that `decode` calls with the name of a stage, the number of finished steps,
        and the number of all steps.

    Returns
    -------
    Estimates, with a row for every candidate up to MOST_ROWS. Strings are sorted by count, largest
    first. Categories and buckets keep their own order. The result is deterministic.

    Raises
    ------
    DecodeError
        There are no reports or no candidates. The collections have different parts, segments,
        normalizers or categories. A number is outside its range. `error_control` is for a ranked
        list, although the encoding has fixed categories. `complete` is True for a yes-or-no
        question. The candidates are a table of estimates of the same metric. For more than
        `MOST_ROWS` candidates also: `distribution` is True, or too many candidates would have the
        same bits in all cohorts.
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
    # A stream keeps the best candidates. n rows determine at most n shares, so at most n candidates
    # are selected. Beside them, the selection screens the best `SCREENED` candidates. The stream
    # keeps twice this number, so that two screenings may choose different candidates. If a
    # candidate that is not kept could be detected, an error is raised (`Thresholds.largest`).
    n_kept = len(target) + 2 * SCREENED
    most_in_memory = max(n_kept, MOST_ROWS)
    listed_strings = normalize_listed(listed, collections)
    requested = normalize_candidates(candidates, listed_strings, collections, most_in_memory)
    if requested is None:
        with limit_to_one_thread():
            return _decode_categories(
                target, error_control, distribution=distribution, complete=complete
            )
    _check_origins(requested, collections)
    with limit_to_one_thread():
        if _is_streamed(requested, target, most_in_memory, distribution=distribution):
            # Import the stream only here. The import loads the compiler, which categories do not
            # need.
            from rappor.estimator.streamed_design_matrix import StreamedDesign  # noqa: PLC0415

            stream = StreamedDesign(
                requested,
                target,
                n_kept,
                n_first=len(listed_strings),
                ranked_level=error_control.alpha if error_control.ranked else None,
            )
            selection = select_candidates(target, stream, progress)
            distinct, ranks, n_ranks = stream.strings, stream.ranks, stream.n_streamed
            repeated = stream.repeated_weight
        else:
            distinct = DistinctCandidates(requested, target, progress)
            selection = fit_all_if_saturated(
                target, distinct.design, select_candidates(target, distinct.design, progress)
            )
            ranks, n_ranks, repeated = np.arange(1, len(requested) + 1), len(requested), 0.0
        weights = None
        if error_control.ranked:
            weights = RankWeights.of(
                ranks,
                distinct.entry,
                n_ranks=n_ranks,
                repeated=repeated,
                others=selection.other_ratios,
            )
        design: Columns = distinct.design
        # The value of a device may be a set of items, each of which belongs to a bucket. The linear
        # fit adds the shares of all items of a bucket, so it counts a device twice that has two of
        # them. `refit_sets` fits a model without this error. A shrunken fit has no selected columns
        # to refit.
        if has_sets(target) and not isinstance(selection.fit, ShrunkenFit):
            target, design, selection = refit_sets(target, design, selection)
        estimates = _build_string_estimates(
            target, distinct, design, selection, error_control, weights, distribution=distribution
        )
    return dataclasses.replace(estimates, listed=frozenset(listed_strings))


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
            f"counts must be of one segment, got {len(segments)}: call rappor.compare_segments, or "
            "run `rappor compare --by all`"
        )
    return collections


def normalize_listed(listed: Iterable[str], collections: Sequence[Counts]) -> tuple[str, ...]:
    """Return the distinct strings of a metric's list, normalised as on the devices.

    Parameters
    ----------
    listed : the strings of the metric's entry.
    collections : counts of one metric, whose parameters contain the normalizer.
    """
    params = collections[0].params
    return Candidates.from_list(
        listed, normalize=params.normalize, field_names=params.field_names
    ).strings


def normalize_candidates(
    candidates: Candidates | Iterable[str] | None,
    listed_strings: Sequence[str],
    collections: Sequence[Counts],
    most_in_memory: int,
) -> Candidates | None:
    """Normalise candidates as the devices did. Returns None for encodings with fixed categories.

    Parameters
    ----------
    candidates : the argument of `decode`.
    listed_strings : result of `normalize_listed`. These strings come before all other candidates.
    collections : the counts. All must have one normalizer.
    most_in_memory : largest number of candidates that are read into memory. A longer list stays a
        stream.

    Raises
    ------
    DecodeError
        The counts have several normalizers or fields, the candidates have another normalizer or
        other fields, there are no candidates, or an encoding with fixed categories gets candidates.
    """
    if not all(get_encoding(collection.params).is_hashed for collection in collections):
        if candidates is not None or listed_strings:
            raise DecodeError("candidates must be omitted: each bit of this encoding is a category")
        return None
    normalizer, field_names = _find_spelling(collections)
    if not isinstance(candidates, Candidates):
        strings = () if candidates is None else candidates
        candidates = Candidates.from_list(strings, normalize=normalizer, field_names=field_names)
    _check_spelling(candidates, normalizer, field_names)
    if listed_strings:
        # `Candidates.product` appends characters to strings, here none, so it yields the strings
        # as they are. `from_list` would normalise them a second time, and some normalizers change a
        # text again that they have normalised.
        listed_candidates = Candidates.product(
            listed_strings, "", 0, 0, normalize=normalizer, field_names=field_names
        )
        all_candidates = Candidates.chain(listed_candidates, candidates)
        in_memory = None
        # A list in memory stays in memory, even if the listed strings make it exceed the limit.
        if candidates.is_in_memory:
            in_memory = all_candidates.load_into_memory(len(listed_strings) + len(candidates))
        candidates = all_candidates if in_memory is None else in_memory
    # A file or a product that is short enough is read into memory once, instead of in every pass.
    if (in_memory := candidates.load_into_memory(most_in_memory)) is not None:
        candidates = in_memory
    if candidates.is_in_memory and len(candidates) == 0:
        raise DecodeError(
            "candidates must number at least 1, got 0; give candidates: a list of strings"
        )
    return candidates


def _find_spelling(collections: Sequence[Counts]) -> tuple[str, tuple[str, ...]]:
    """Return the normalizer and the names of the fields; DecodeError if the counts have several."""
    normalizers = {collection.params.normalize for collection in collections}
    if len(normalizers) > 1:
        raise DecodeError(f"counts must share one normalizer, got {sorted(normalizers)}")
    fields = {collection.params.field_names for collection in collections}
    if len(fields) > 1:
        raise DecodeError(f"counts must have the same fields, got {sorted(fields)}")
    return normalizers.pop(), fields.pop()


def _check_spelling(candidates: Candidates, normalizer: str, field_names: tuple[str, ...]) -> None:
    """Raise DecodeError unless candidates have the normalizer and the fields of the devices.

    Candidates in another spelling would set bits that no device sends. Every estimate would be 0
    without an error.
    """
    if candidates.normalize != normalizer:
        raise DecodeError(
            f"candidates must be normalised by {normalizer!r} as on the devices, "
            f"got {candidates.normalize!r}"
        )
    if candidates.field_names != field_names:
        raise DecodeError(
            f"candidates must have the fields of the metric ({', '.join(field_names) or 'none'}), "
            f"got {', '.join(candidates.field_names) or 'none'}"
        )


def _check_origins(candidates: Candidates, collections: Sequence[Counts]) -> None:
    """Raise DecodeError if the candidates are the result of the decoded metric, of any epoch.

    The hash functions of a metric are the same in every epoch, so collisions repeat: an absent
    string that was detected last quarter has a small p-value in this quarter, too. In the order of
    the result of the last quarter, a ranked list had a false discovery rate of .21 in place of .05
    (benchmark `ranked`). A list of the detected strings only has the same fault without ranks.
    """
    metrics = {collection.metric for collection in collections} - {""}
    fingerprints = {collection.params.fingerprint for collection in collections}
    for origin in sorted(candidates.origins):
        # A metric with a new fingerprint has other hash functions, but the same devices, so chance
        # and noise of the devices may repeat. Its results are refused, too.
        if origin.fingerprint in fingerprints or metrics.intersection(origin.metric.split()):
            raise DecodeError(
                f"candidates must not be a result of the same metric, got {candidates.name}, a "
                f"result of {origin.metric or 'a metric without a name'} ({origin.fingerprint}): "
                "its strings and their order come from the reports, so too many detections would "
                "be false"
            )


def _is_streamed(
    requested: Candidates, target: Target, most_in_memory: int, *, distribution: bool
) -> bool:
    """Return whether the candidates are read as a stream, so that only the best have a row.

    A long list in memory is streamed, too, unless `distribution` needs all candidates at once, or
    the bits of its strings could hardly differ (`can_stream`).

    Raises
    ------
    DecodeError
        `distribution` is True, and the candidates do not fit into memory.
    """
    if requested.is_in_memory and len(requested) <= most_in_memory:
        return False
    # Import the stream only here. The import loads the compiler, which categories do not need.
    from rappor.estimator.streamed_design_matrix import can_stream  # noqa: PLC0415

    if requested.is_in_memory and (distribution or not can_stream(target, len(requested))):
        return False
    if distribution:
        raise DecodeError(
            f"distribution needs all candidates at once: more than {most_in_memory:,} candidates "
            "must be a list, or a file of up to 64 MB"
        )
    return True


def _build_string_estimates(  # noqa: PLR0913 - all results of the steps before
    target: Target,
    distinct: DistinctCandidates,
    design: Columns,
    selection: Selection,
    error_control: ErrorControl,
    weights: RankWeights | None,
    *,
    distribution: bool,
) -> Estimates:
    """Build the table of all candidates, including all members of identifiability groups.

    Parameters
    ----------
    target : n rows.
    distinct : the candidates, which have c distinguishable entries.
    design : the columns of the fit, one for each entry.
    selection : the fit, and the estimates of the c entries.
    error_control, distribution : as in `decode`.
    weights : weights of the entries of a ranked list. None for an unranked list.
    """
    bucket_counts = count_bucket_reports(target, distinct.design)
    tail, p_values = _compute_p_values(target, selection, bucket_counts)
    detection = error_control.for_ones_variance(_compute_ones_variance(target))
    thresholds = Thresholds(detection, p_values, weights)
    forgery_effects = compute_string_effects(
        target, design, selection, tail, thresholds, bucket_counts
    )
    findings = _collect_diagnostics(target, distinct, design, selection, thresholds)
    shares = None
    if distribution:
        shares = _estimate_posterior_shares(target, selection, findings["goodness_of_fit"])
    entries = EntryEstimates(
        names=distinct.candidates.strings,
        entry=distinct.entry,
        group=distinct.group,
        estimate=selection.estimate,
        std_error=_add_shared_sampling(target, selection.estimate, selection.std_error),
        thresholds=thresholds,
        interval=_build_interval(target, selection, tail, bucket_counts),
        covariance=partial(_compute_covariance, target, design, selection),
        shares=shares,
        search_factor=_list_search_factors(selection),
        residual=standardise(target, selection.fit),
        breakdown=count_forged_reports(forgery_effects, thresholds.detected, target.n_reports),
    )
    return build_estimates(entries, target, findings)


def _list_search_factors(selection: Selection) -> Floats:
    """Return rho of each selected entry, and 1 for all other entries, (e,).

    The standard errors of other entries contain rho already. A fit of all candidates has no search.
    """
    factors = np.ones(len(selection.estimate))
    if not isinstance(selection.fit, ShrunkenFit):
        factors[selection.selected] = selection.fit.search_factor
    return factors


def _compute_p_values(
    target: Target, selection: Selection, bucket_counts: BucketCounts | None
) -> tuple[NullTail, PValues]:
    """Compute the tail of an absent candidate's z score, and the p-values of all entries.

    `bucket_counts` has the numbers of reports of items of sets if there are few reports.
    """
    # If the counts contain no information about a candidate, its z score is 0 and its p-value 1:
    # there is no evidence of its presence.
    is_identified = np.isfinite(selection.std_error)
    z = np.where(is_identified, selection.estimate / selection.std_error, 0.0)
    if isinstance(selection.fit, ShrunkenFit):
        # A shrunken fit accounts for the collisions of all candidates in its standard errors, and
        # selects nothing. So z scores of absent candidates are compared with the normal tail. An
        # absent string may have exactly the bits of a present string by chance, so no p-value may
        # be smaller than the probability of this event (`compute_least_p_value`).
        tail = build_normal_tail()
        tested = np.maximum(tail.p_values(z), compute_least_p_value(target))
    else:
        tail = compute_null_tail(target, selection.fit)
        tested = compute_p_values(target, selection.fit, z, selection.selected)
    if bucket_counts is not None:
        tested = bucket_counts.p_values()
    return tail, PValues(
        in_memory=np.where(is_identified, tested, 1.0),
        other_counts=selection.other_counts,
        least_other=selection.least_other,
    )


def _build_interval(
    target: Target, selection: Selection, tail: NullTail, bucket_counts: BucketCounts | None
) -> Interval:
    """Build the function that computes the intervals of all entries.

    Parameters
    ----------
    target : n rows.
    selection : the fit, and the estimates of the c entries.
    tail : tail of an absent candidate's z score.
    bucket_counts : numbers of reports of items of sets if there are few reports, otherwise None.
    """
    interval = build_normal_interval(
        selection.estimate,
        _compute_variance_without_own_devices(target, selection),
        tail,
        devices=_count_sampling_devices(target, selection),
        slope=_compute_variance_slope(target, selection),
    )
    if bucket_counts is None:
        return interval

    def compute_interval(error: float | Floats) -> tuple[Floats, Floats]:
        low, high = interval(error)
        return bucket_counts.lower_ends(low, error), high

    return compute_interval


def _collect_diagnostics(
    target: Target,
    distinct: DistinctCandidates,
    design: Columns,
    selection: Selection,
    thresholds: Thresholds,
) -> dict[str, Any]:
    """Collect the diagnostics of a decode of strings, ready for JSON.

    The keys are those of the table "Diagnostics" in README.md of this folder.
    """
    fit = diagnostics.describe_fit(
        target, selection.fit, selection.std_error, threshold=thresholds.next_threshold
    )
    goodness_of_fit = fit["goodness_of_fit"]
    # A complete list with many rare strings also fits badly, because the selected strings do not
    # explain the collisions of the rare ones. The fit of all candidates shows if the list is
    # complete.
    is_bad_fit = goodness_of_fit["p_value"] < diagnostics.FIT_FALSE_ALARM
    complete_fit = fit_all_for_test(target, design, selection) if is_bad_fit else None
    if complete_fit is not None:
        goodness_of_fit["all_candidates_p_value"] = diagnostics.compute_fit_p_value(
            target, complete_fit
        )
    of_sets = {}
    if isinstance(design, SetDesign):
        of_sets["correlation"] = describe_correlation(target, design, selection)
    return {
        **diagnostics.describe_cohorts(target),
        **fit,
        **of_sets,
        "selected": len(selection.selected),
        "undetected_intervals": diagnostics.count_undetected_intervals(
            selection.estimate, selection.std_error, thresholds.detected
        ),
        "capacity": describe_capacity(
            target, selection, distinct.design.columns(selection.selected), misfit=is_bad_fit
        ),
        "groups": [list(distinct.candidates.select(group).strings) for group in distinct.groups],
    }


def _compute_ones_variance(target: Target) -> float:
    """Compute the variance of the number of ones at the bits of an absent string, in reports^2.

    An absent string has one bit (per hash function) in each cohort. The devices of all cohorts
    together send ones at these bits by chance only. If the variance of their number is small,
    there are few reports, and the error control "adaptive" is replaced
    (`ErrorControl.for_ones_variance`).
    """
    pairs = zip(target.counts, target.effective_devices, strict=True)
    return sum(compute_ones_variance(counts.params, float(devices)) for counts, devices in pairs)


def _estimate_posterior_shares(
    target: Target, selection: Selection, goodness_of_fit: Mapping[str, Any]
) -> Floats:
    """Compute the posterior shares and their errors, (2, c).

    An error is the root of the mean squared difference between the posterior share and the true
    share.

    Parameters
    ----------
    target : n rows.
    selection : the fit, and the estimates of the c entries.
    goodness_of_fit : the entry of this name in the diagnostics.
    """
    fit_p_value = diagnostics.get_decisive_fit_p_value(goodness_of_fit)
    # A device with a set of several items counts for each of them, so a sum of 1 does not make a
    # list complete.
    if has_sets(target):
        fit_p_value = 0.0
    share, error = estimate_shares(selection.estimate, selection.std_error, fit_p_value=fit_p_value)
    return np.stack([share, _add_shared_sampling(target, share, error)])


def _add_shared_sampling(target: Target, share: Floats, std_error: Floats) -> Floats:
    """Add the sampling variance that the h bits of one string share. Returns standard errors, (c,).

    Chance decides how many devices of a cohort have the string. Averaged over the cohorts, this
    gives an estimate the sampling variance beta (1 - beta) / D. The fit treats the h rows of a
    cohort as independent, so it counts only 1/h of this variance. But the same devices set all h
    bits, so the mean of the h rows has all of it. The fit lacks the difference,

        (1 - 1/h) beta (1 - beta) / D

    With h = 1 nothing is added. Over several parameter sets, (1 - 1/h) / D is averaged by reports.

    *Example.* With h = 2, beta = .1 and 100,000 devices, the missing variance is 4.5e-7. A standard
    error of .0010 becomes sqrt(1e-6 + 4.5e-7) = .0012.
    """
    # (1 - 1/h) R, averaged by reports. 1/D is R/N, with N the number of all reports.
    missing_repetition = (
        sum(
            counts.n_reports * (1 - 1 / counts.params.h) * repetition.reports_per_device
            for counts, repetition in zip(target.counts, target.repetitions, strict=True)
        )
        / target.n_reports
    )
    clipped_share = np.clip(share, 0.0, 1.0)
    sampling_variance = clipped_share * (1 - clipped_share) / target.n_reports
    return np.sqrt(std_error**2 + missing_repetition * sampling_variance)


def _compute_variance_without_own_devices(target: Target, selection: Selection) -> Floats:
    """Compute the variance of each estimate, (c,), without the variance by its own devices.

    A string of share e raises the variance of its own estimate by e (c - e) / D
    (`_compute_variance_slope`). Intervals add this variance at their ends, with the end in place of
    e (`build_normal_interval`), so it must not be counted here, too. The noise of a row includes
    the devices of the strings in the fit, and of no other string. Their variance is therefore
    subtracted for the strings in the fit only.
    """
    clipped_share = np.clip(selection.estimate, 0.0, 1.0)
    variance = selection.std_error**2
    if isinstance(selection.fit, ShrunkenFit):
        fitted = np.flatnonzero(~selection.fit.random_columns.any(axis=0))
    else:
        fitted = selection.selected
    error = _add_shared_sampling(target, selection.estimate, selection.std_error)[fitted]
    slope = _compute_variance_slope(target, selection)
    own_variance = clipped_share[fitted] * (slope - clipped_share[fitted])
    own_variance /= _count_sampling_devices(target, selection)
    variance[fitted] = np.maximum(error**2 - own_variance, 0.0)
    return variance


def _compute_variance_slope(target: Target, selection: Selection) -> float:
    """Compute the slope c: the devices of a string of share e add the variance e (c - e) / D.

    D is the number of devices (`_count_sampling_devices`). Let mu be the probability of a 1 at a
    bit of an absent string, g = q* - p*, and p and q the probabilities of the instantaneous
    response. A share e raises mu to x = mu + g e. A row of N reports, D = N / R, has the variance
    (`rappor.estimator.debias`)

        (x (1 - x) + (R - 1) (x - p) (q - x)) / (N g^2)

    Inserting x gives the variance at e = 0, plus e (c - e) / D with

        c = ((1 - 2 mu) + (R - 1) (p + q - 2 mu)) / (R g)

    That is c for one bit. A string sets h bits in a cohort, and its estimate is their mean. c has
    two parts. Without noise only the sampling of the devices remains, with the variance
    e (1 - e) / D, so the sampling contributes 1 to c. The same devices set all h bits, so a mean
    over the bits does not reduce this part. The remaining part, c - 1, comes from independent coins
    of single bits, and a mean over h bits divides it by h. The result, 1 + (c - 1) / h, is averaged
    over the rows by their weights in the fit.

    *Example.* With p* = .1, q* = .6, mu = .1, R = 1 and h = 1, c is .8 / .5 = 1.6.
    """
    gap, repeated = target.q_star - target.p_star, target.reports_per_device
    mean = target.p_star + gap * target.density
    row_slope = (1 - 2 * mean) + (repeated - 1) * (target.p + target.q - 2 * mean)
    row_slope /= repeated * gap
    hashes = np.array([counts.params.h for counts in target.counts])[target.collection_index]
    weight = selection.fit.weight
    weight_sum = max(float(weight.sum()), np.finfo(float).tiny)
    return float(weight @ (1 + (row_slope - 1) / hashes)) / weight_sum


def _count_sampling_devices(target: Target, selection: Selection) -> float:
    """Compute the number of evenly spread devices that have the sampling variance of the rows.

    With w the weight of a row, k its number of bits and n_j the effective devices of its cohort,
    the number is

        (sum of w)^2 / sum of k w^2 / n_j

    *Derivation for h = 1.* The estimate of a string is about the mean of its rows, weighted by w.
    Its sampling variance is beta (1 - beta) times the sum of w^2 / n_j, divided by (sum of w)^2,
    both over the rows of the string. A string sets each row with probability 1/k. So the sums over
    its rows are on average 1/k of the sums over all rows.

    For equal cohorts and weights the result is the effective number of all devices. Uneven cohorts,
    or rows with little weight, make it smaller.
    """
    has_reports = target.reports > 0
    weight = selection.fit.weight[has_reports]
    cohort_devices = (target.reports / target.reports_per_device)[has_reports]
    rows_by_collection = np.bincount(target.collection_index)
    n_bits = np.repeat([c.params.k for c in target.counts], rows_by_collection)[has_reports]
    spread = float(np.sum(n_bits * weight**2 / cohort_devices))
    return float(weight.sum()) ** 2 / max(spread, np.finfo(float).tiny)


def _compute_covariance(
    target: Target, design: Columns, selection: Selection, entries: Integers
) -> Floats:
    """Compute the covariance of the estimates of some entries in one joint fit.

    Entries outside the selection are added to the columns of the fit. Their covariance is then that
    of coefficients, as for selected entries.

    Parameters
    ----------
    target : n rows.
    design : the columns of all entries.
    selection : the fit.
    entries : (r,) int64, increasing. Indices of entries.

    Returns
    -------
    (r, r) float64. Noise, collisions and sampling of devices.
    """
    if isinstance(selection.fit, ShrunkenFit):
        covariance = selection.fit.compute_covariance_of(entries)
    else:
        fitted = np.union1d(selection.selected, entries)
        is_requested = np.isin(fitted, entries)
        is_extended = len(fitted) > len(selection.selected)
        complete_covariance = selection.fit.compute_covariance(
            design.columns(fitted) if is_extended else None
        )
        covariance = complete_covariance[np.ix_(is_requested, is_requested)]
    estimate, diagonal = selection.estimate[entries], np.diag_indices_from(covariance)
    std_error = np.sqrt(np.maximum(covariance[diagonal], 0.0))
    covariance[diagonal] = _add_shared_sampling(target, estimate, std_error) ** 2
    return add_sampling(covariance, estimate, _count_sampling_devices(target, selection))


def _decode_categories(
    target: Target, error_control: ErrorControl, *, distribution: bool, complete: bool
) -> Estimates:
    """Decode categories, booleans and buckets by the closed form. Each of k bits is an entry.

    Raises
    ------
    DecodeError
        `error_control` is for a ranked list: categories are declared in any order, such as by size
        or by the alphabet, so their order is no prior knowledge. Or `complete` is True for the
        encoding `boolean`.
    """
    if error_control.ranked:
        raise DecodeError(
            "ranked must be False for an encoding with fixed categories: it is for lists of strings"
        )
    categories = estimate_categories(target, target.counts[0].params)
    encoding = get_encoding(target.counts[0].params)
    findings = diagnostics.describe_cohorts(target)
    if complete:
        # The encoding `boolean` has one share, so there is no sum to constrain.
        if not encoding.is_exclusive:
            raise DecodeError("complete must be false for yes or no: a no sets no bit")
        categories = CompleteCategoryEstimates.of(categories)
        findings["complete"] = categories.describe()
    thresholds = Thresholds(error_control, PValues(in_memory=categories.proportions.p_values()))
    posterior_share = categories.shares(exclusive=encoding.is_exclusive)
    forgery_effects = compute_category_effects(target, categories.proportions, thresholds)
    entries = EntryEstimates(
        names=tuple(encoding.category_labels),
        entry=np.arange(len(categories.estimate)),
        group=np.zeros(len(categories.estimate), dtype=np.int64),
        estimate=categories.estimate,
        std_error=categories.std_error,
        thresholds=thresholds,
        interval=categories.interval,
        covariance=categories.covariance,
        shares=np.stack([posterior_share, categories.std_error]) if distribution else None,
        breakdown=count_forged_reports(forgery_effects, thresholds.detected, target.n_reports),
    )
    return build_estimates(entries, target, findings)
