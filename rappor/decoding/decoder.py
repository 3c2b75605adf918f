"""Decode: from counts and candidates to estimates with honest errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Floats, Integers
from rappor.counts.counts import Counts
from rappor.decoding import diagnostics
from rappor.decoding.closed_form import CompleteAnswers, read_answers
from rappor.decoding.collection_summary import standardise
from rappor.decoding.contrasts import add_sampling
from rappor.decoding.distribution import estimate_shares
from rappor.decoding.estimates import Estimates
from rappor.decoding.forgery_breakdown import answer_rows, break_down, string_rows
from rappor.decoding.inference import Raw, conclude, normal_interval
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.debias import Target, debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.identifiability_groups import Strings
from rappor.estimator.near_capacity import describe_capacity, fit_all_if_filled
from rappor.estimator.p_values import PValues, least_p_value
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.score_tests import NullTail, normal_tail, null_tail, ones_variance
from rappor.estimator.selection import SCREENED, Selection, select
from rappor.estimator.shrinkage import ShrunkenFit
from rappor.protocol.encodings import encoding_of

MOST_ROWS: Final = 1 << 17
"""Candidates that all have rows; of more the best have, as many as there are rows of counts and
10,000 more."""


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
    """Estimate how many reports hold each candidate.

    Devices that report again say less than others would. How often they did is what `devices` or
    `reports_per_device` say, else what the counts know, else what days kept apart tell; without
    any of these every report is taken for another device. `Estimates.assumed` says which.
    README.md in this folder has the statistics.

    Parameters
    ----------
    counts : one collection, or several under any mixture of parameter sets. Those of one metric
        and one parameter set are added, as days on which the same devices may have reported.
    candidates : the strings to estimate: a list or column of them, or `Candidates`. Of more than
        MOST_ROWS the best have a row, and all others are in `Estimates.p_value_counts`. Other
        encodings than Bloom answer for all their categories and take none.
    listed : strings that the metric's entry lists. They are candidates, too, each with a row that
        is shown first, detected or not; `Estimates.not_listed` is the share of all others.
    error_control : how sure to be. "adaptive" is applied as "bh" to strings in few reports, which
        `Estimates.detection` says.
    distribution : also estimate the whole list at once (`Estimates.share`).
    devices, reports_per_device : how many devices are behind all reports together, or how many
        reports each of them sent; at most one of both. Uneven ones are said by
        `Counts.squares`.
    complete : every value is in one of the categories or buckets, as the metric's entry says, so
        that their shares sum to one. Strings take no notice of it.
    progress : called with a stage, the steps done and the steps in all.

    Returns
    -------
    Estimates, a row for every candidate up to MOST_ROWS: strings by count, largest first;
    categories and buckets in their own order. Deterministic.

    Raises
    ------
    DecodeError
        There are no reports or no candidates, or the collections do not go together; of candidates
        that are not held also what `StreamedDesign` cannot do, and `distribution`.
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
    >>> found = decode(counts, ["cat", "dog", "emu"])
    >>> [found.candidates[i] for i in range(3) if found.detected[i]]
    ['cat', 'dog']
    """
    collections = _collections(counts)
    target = debias(
        *add_collections(collections, devices=devices, reports_per_device=reports_per_device)
    )
    keep = len(target) + 2 * SCREENED
    most = max(keep, MOST_ROWS)
    first = normalize_listed(listed, collections)
    asked = normalize_candidates(candidates, first, collections, most)
    if asked is None:
        return _decode_closed(target, error_control, distribution=distribution, complete=complete)
    with limit_to_one_thread():
        if _is_streamed(asked, target, most, distribution=distribution):
            # Imported here: it loads the compiler, which categories do without.
            from rappor.estimator.streamed_design_matrix import StreamedDesign  # noqa: PLC0415

            pool = StreamedDesign(asked, target, keep, n_first=len(first))
            selection = select(target, pool, progress)
            strings = pool.strings
        else:
            strings = Strings(asked, target, progress)
            selection = fit_all_if_filled(
                target, strings.design, select(target, strings.design, progress)
            )
        estimates = _conclude_strings(
            target, strings, selection, error_control, distribution=distribution
        )
    return dataclasses.replace(estimates, listed=frozenset(first))


def _collections(counts: Counts | Sequence[Counts]) -> list[Counts]:
    collections = [counts] if isinstance(counts, Counts) else list(counts)
    for collection in collections:
        if not isinstance(collection, Counts):
            raise DecodeError(
                f"counts must be Counts or a list of them, got {type(collection).__name__}; "
                "call decode(counts, candidates)"
            )
    parts = sorted({collection.params.part for collection in collections})
    if len(parts) > 1:
        raise DecodeError(
            f"counts must be of one part of a metric, got {', '.join(filter(None, parts))}: "
            "rappor.discover takes all parts"
        )
    segments = {collection.params.segment for collection in collections}
    if len(segments) > 1:
        raise DecodeError(
            f"counts must be of one segment, got {len(segments)}: rappor.by_segment shows each"
        )
    return collections


def normalize_listed(listed: Iterable[str], collections: Sequence[Counts]) -> tuple[str, ...]:
    """Return the strings of a metric's list as the devices normalise them, each once."""
    normalizer = collections[0].params.normalize
    return Candidates.from_list(listed, normalize=normalizer).strings


def normalize_candidates(
    candidates: Candidates | Iterable[str] | None,
    first: Sequence[str],
    collections: Sequence[Counts],
    most: int,
) -> Candidates | None:
    """Normalise candidates as the devices did; None where bits are answers. `most` are held.

    Those in `first`, which are normalised already, come before all others.
    """
    if not all(encoding_of(collection.params).hashed for collection in collections):
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
    if candidates.normalize != normalizer:
        raise DecodeError(
            f"candidates must be normalised by {normalizer!r} as on the devices, "
            f"got {candidates.normalize!r}"
        )
    if first:
        # As they are: some normalizers would change a second time what they made.
        own = Candidates.product(first, "", 0, 0, normalize=normalizer)
        both = Candidates.chain(own, candidates)
        held = both.hold(len(first) + len(candidates)) if candidates.is_held else None
        candidates = both if held is None else held
    if (held := candidates.hold(most)) is not None:
        candidates = held
    if candidates.is_held and len(candidates) == 0:
        raise DecodeError(
            "candidates must number at least 1, got 0; give candidates: a list of strings"
        )
    return candidates


def _is_streamed(listed: Candidates, target: Target, most: int, *, distribution: bool) -> bool:
    """Return whether only the best candidates get a row."""
    if listed.is_held and len(listed) <= most:
        return False
    # Imported here: it loads the compiler, which categories do without.
    from rappor.estimator.streamed_design_matrix import can_stream  # noqa: PLC0415

    if listed.is_held and (distribution or not can_stream(target, len(listed))):
        return False
    if distribution:
        raise DecodeError(
            f"distribution needs all candidates at once: of more than {most:,}, those of a list or "
            "of a file up to 64 MB"
        )
    return True


def _conclude_strings(
    target: Target,
    strings: Strings,
    selection: Selection,
    detection: ErrorControl,
    *,
    distribution: bool,
) -> Estimates:
    """Make the table of the candidates of a design, and of those in ties with them."""
    tail, p_values = _p_values(target, selection)
    thresholds = Thresholds(detection.for_ones(_ones_variance(target)), p_values)
    rows = string_rows(target, strings.design, selection, tail, thresholds)
    raw = Raw(
        names=strings.candidates.strings,
        entry=strings.entry,
        group=strings.group,
        estimate=selection.estimate,
        std_error=_with_sampling(target, selection.estimate, selection.std_error),
        thresholds=thresholds,
        interval=normal_interval(
            selection.estimate, _apart(target, selection), tail, devices=_devices(target, selection)
        ),
        covariance=partial(_covariance, target, strings.design, selection),
        shares=_shares(target, selection) if distribution else None,
        residual=standardise(target, selection.fit),
        breakdown=break_down(rows, thresholds.detected, target.n_reports),
    )
    return conclude(raw, target, _diagnostics(target, strings, selection, thresholds))


def _p_values(target: Target, selection: Selection) -> tuple[NullTail, PValues]:
    """Return the tail of an absent candidate's score, and the p-values."""
    # Where the counts say nothing about a candidate, nothing speaks for its presence.
    known = np.isfinite(selection.std_error)
    z = np.where(known, selection.estimate / selection.std_error, 0.0)
    if isinstance(selection.fit, ShrunkenFit):
        tail = normal_tail()
        tested = np.maximum(tail.p_values(z), least_p_value(target))
    else:
        tail = null_tail(target, selection.fit)
        tested = compute_p_values(target, selection.fit, z, selection.chosen)
    rows = np.where(known, tested, 1.0)
    return tail, PValues(rows=rows, others=selection.others, least=selection.least)


def _diagnostics(
    target: Target, strings: Strings, selection: Selection, thresholds: Thresholds
) -> dict[str, Any]:
    fit = diagnostics.describe_fit(
        target, selection.fit, selection.std_error, threshold=thresholds.for_next
    )
    misfit = fit["goodness_of_fit"]["p_value"] < diagnostics.FIT_FALSE_ALARM
    return {
        **diagnostics.describe_cohorts(target),
        **fit,
        "selected": len(selection.chosen),
        "capacity": describe_capacity(target, selection, misfit=misfit),
        "groups": [list(strings.candidates.subset(group).strings) for group in strings.groups],
    }


def _ones_variance(target: Target) -> float:
    """Return the variance of the ones on one bit of each cohort, of all devices together."""
    pairs = zip(target.counts, target.devices, strict=True)
    return sum(ones_variance(counts.params, float(devices)) for counts, devices in pairs)


def _shares(target: Target, selection: Selection) -> Floats:
    """Return the distribution answer and its errors, (2, c)."""
    share, error = estimate_shares(selection.estimate, selection.std_error)
    return np.stack([share, _with_sampling(target, share, error)])


def _with_sampling(target: Target, share: Floats, std_error: Floats) -> Floats:
    """Add what the rows of one string share: its devices' uneven spread over the cohorts.

    The rows' noise counts that spread as if each of a string's h bits had its own; it is
    common to them, so (1 - 1/h) of beta (1 - beta) / D is missing from the mean of h bits, D being
    the devices: reports over reports a device.
    """
    repeated = sum(
        c.n_reports * (1 - 1 / c.params.h) * each.reports_per_device
        for c, each in zip(target.counts, target.repetitions, strict=True)
    )
    inside = np.clip(share, 0.0, 1.0)
    extra = repeated / target.n_reports * inside * (1 - inside) / target.n_reports
    return np.sqrt(std_error**2 + extra)


def _apart(target: Target, selection: Selection) -> Floats:
    """Return the variance of each estimate, (c,), without the sampling of its own devices.

    The noise of a row counts that of the strings in the fit, and of no others.
    """
    inside = np.clip(selection.estimate, 0.0, 1.0)
    own = inside * (1 - inside)
    apart = selection.std_error**2
    if isinstance(selection.fit, ShrunkenFit):
        fitted = np.flatnonzero(~selection.fit.random.any(axis=0))
    else:
        fitted = selection.chosen
    error = _with_sampling(target, selection.estimate, selection.std_error)[fitted]
    left = error**2 - own[fitted] / _devices(target, selection)
    apart[fitted] = np.maximum(left, 0.0)
    return apart


def _devices(target: Target, selection: Selection) -> float:
    """Return how many devices, spread evenly, would sample strings as those of the rows do."""
    live = target.reports > 0
    weight, n = selection.fit.weight[live], (target.reports / target.repeated)[live]
    n_bits = np.repeat([c.params.k for c in target.counts], np.bincount(target.group))[live]
    spread = float(np.sum(n_bits * weight**2 / n))
    return float(weight.sum()) ** 2 / max(spread, np.finfo(float).tiny)


def _covariance(target: Target, design: Design, selection: Selection, entries: Integers) -> Floats:
    """Return the covariance of the estimates of these candidates, (r, r), fitted together."""
    if isinstance(selection.fit, ShrunkenFit):
        noise = selection.fit.covariance_of(entries)
    else:
        fitted = np.union1d(selection.chosen, entries)
        own = np.isin(fitted, entries)
        more = len(fitted) > len(selection.chosen)
        every = selection.fit.covariance(design.columns(fitted) if more else None)
        noise = every[np.ix_(own, own)]
    estimate, each = selection.estimate[entries], np.diag_indices_from(noise)
    noise[each] = _with_sampling(target, estimate, np.sqrt(np.maximum(noise[each], 0.0))) ** 2
    return add_sampling(noise, estimate, np.array(1 / _devices(target, selection)))


def _decode_closed(
    target: Target, detection: ErrorControl, *, distribution: bool, complete: bool
) -> Estimates:
    """Decode categories, booleans and buckets by the closed form."""
    answers = read_answers(target, target.counts[0].params)
    encoding = encoding_of(target.counts[0].params)
    found = diagnostics.describe_cohorts(target)
    if complete:
        if not encoding.exclusive:
            raise DecodeError("complete must be false for yes or no: a no sets no bit")
        answers = CompleteAnswers.of(answers)
        found["complete"] = answers.describe()
    thresholds = Thresholds(detection, PValues(rows=answers.proportions.p_values()))
    share = answers.shares(exclusive=encoding.exclusive)
    rows = answer_rows(target, answers.proportions, thresholds)
    raw = Raw(
        names=tuple(encoding.answers),
        entry=np.arange(len(answers.estimate)),
        group=np.zeros(len(answers.estimate), dtype=np.int64),
        estimate=answers.estimate,
        std_error=answers.std_error,
        thresholds=thresholds,
        interval=answers.interval,
        covariance=answers.covariance,
        shares=np.stack([share, answers.std_error]) if distribution else None,
        breakdown=break_down(rows, thresholds.detected, target.n_reports),
    )
    return conclude(raw, target, found)
