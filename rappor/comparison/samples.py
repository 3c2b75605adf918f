"""`Samples`: several collections of the same values, and weighted sums of their shares.

`compare_samples`, `compare_segments` and `trend` create a `Samples` and request contrasts. With T
samples, weights w_t whose sum is 0, and beta_t the share of a string in sample t, a *contrast* is
the sum of w_t beta_t: a change. Example: the weights -1 and 1 give the second share minus the
first. There are three ways to estimate a contrast:

| counts | estimator | `Changes.how` |
|---|---|---|
| categories | sums of the shares, with exact intervals (`category_changes`) | "answers" |
| strings whose samples have the same k, h and m | regression on differences of bits | "rows" |
| other strings | sums of the estimates of the separate decodes | "separate" |

k is the number of bits, h the number of hash functions and m the number of cohorts. If they are the
same, a string sets the same bits in all samples. The regression (`change_regression`) then takes
the bits of one sample less the bits of the other. Unchanged strings cancel in this difference, even
if they are no candidates. So the regression is more precise than the sums of separate decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_number
from rappor.candidates.candidates import Candidates
from rappor.comparison.category_changes import estimate_category_changes
from rappor.comparison.change_regression import Changes, estimate_string_changes
from rappor.comparison.contrast_rows import build_contrast_rows, list_shared_params
from rappor.comparison.per_sample import SeparateDecodes, decode_separately, normalize_for_samples
from rappor.comparison.shared_devices import compute_device_variance
from rappor.counts.arrays import Floats, Integers
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import AddedCollections, add_collections
from rappor.estimator.error_control import ErrorControl

_ASSUMPTION_SOURCES: Final = {
    "counts": "the largest number that the counts allow",
    "days": "estimated from the variance of the counts that were added",
    "unknown": "nothing is known of the devices; if one reported again within a sample, the errors "
    "are larger",
}
"""Sentence parts that explain where the assumed number of reports per device comes from."""

_STD_ERROR_RANGE: Final = (1e-9, 1e6)
"""Limits to which the standard error of a sample is clipped before it becomes a weight, so that no
weight of a trend line is infinite or 0."""

_LEAST_BUCKET_REPORTS: Final = 2
"""Smallest number of reports for each bucket of sets, in each sample, for which changes of sets are
fitted again (`refit_set_changes`). With fewer reports a decode warns that its errors are not
reliable (`few_reports`)."""

_SUM_TOLERANCE: Final = 1e-9
"""Largest absolute sum of the weights of a contrast, relative to the largest weight. Rounding
errors of weights that sum to 0 are smaller. With a larger sum, unchanged strings would not
cancel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Several samples: their counts, their decodes, and assumptions about their devices.

    Attributes
    ----------
    added : the added collections of each of T samples. None for a sample without reports.
    candidates : the strings. None if the bits are categories.
    separate : the decode of each sample, and the decode of all samples pooled.
    device_correlation : rho, the correlation between two samples of the noise that a device repeats
        in all its reports: its permanent response, and the chance that the device is in the sample.
        rho is 0 if the samples share no device. It is 1 if they share all devices, and each device
        sends the same share of the reports of every sample. None if it is unknown.
    complete : True if every value is in one of the categories.
    error_control : the requested error rate and confidence level.
    """

    added: tuple[AddedCollections | None, ...]
    candidates: Candidates | None
    separate: SeparateDecodes
    device_correlation: float | None
    complete: bool
    error_control: ErrorControl

    @classmethod
    def from_collections(
        cls,
        collections: Sequence[Sequence[Counts]],
        candidates: Candidates | Iterable[str] | None,
        error_control: ErrorControl,
        *,
        device_correlation: float | None,
        complete: bool,
        progress: Progress = no_progress,
    ) -> Samples:
        """Add the collections of each sample, and decode the samples.

        Parameters
        ----------
        collections : T samples, each a list of collections.
        candidates, complete, progress : as for `decode`.
        error_control : the requested error rate and confidence level.
        device_correlation : rho, or None if it is unknown.

        Raises
        ------
        DecodeError
            There are no reports, rho is outside [0, 1], or the samples have different kinds of
            values.
        ParamsError
            `error_control` is for a ranked list.
        """
        # A ranked list gives each candidate a weight in the multiple tests. A comparison divides
        # its error rate between tests of all samples together and tests of each sample. It has not
        # been measured whether the error rate holds with both.
        error_control.refuse_ranked("comparisons")
        if device_correlation is not None:
            check_number("device_correlation", device_correlation, "[0, 1]", error=DecodeError)
        all_counts = [counts for sample in collections for counts in sample]
        if not any(counts.n_reports for counts in all_counts):
            raise DecodeError("counts must have at least 1 report, got 0")
        listed = normalize_for_samples(candidates, all_counts)
        return cls(
            added=tuple(_add_sample(sample) for sample in collections),
            candidates=listed,
            separate=decode_separately(
                collections, listed, error_control, progress, complete=complete
            ),
            device_correlation=device_correlation,
            complete=complete,
            error_control=error_control,
        )

    @property
    def nonempty(self) -> Integers:
        """(x,) int64, increasing. Indices of the samples with reports."""
        return np.flatnonzero([sample is not None for sample in self.added])

    @property
    def precision(self) -> Floats:
        """(T,) float64. Weight of each sample in a trend line through all samples.

        The weight is 1 / s^2, with s the median of the standard errors of all candidates. Samples
        without reports have weight 0.
        """
        return np.array(
            [
                0.0
                if estimates is None
                else float(np.median(estimates.std_error).clip(*_STD_ERROR_RANGE)) ** -2
                for estimates in self.separate.per_sample
            ]
        )

    def decode(self, collections: Sequence[Counts]) -> Estimates:
        """Decode other collections with the options of the samples."""
        return decode(
            collections,
            self.candidates,
            error_control=self.separate.error_control,
            complete=self.complete,
        )

    def estimate_changes(self, weights: Floats, progress: Progress = no_progress) -> Changes:
        """Estimate a weighted sum of the samples' shares for each candidate.

        Parameters
        ----------
        weights : (T,) float64. The weights sum to 0. The weight of a sample without reports is 0.
        progress : function that reports the progress.

        Raises
        ------
        DecodeError
            The weights do not fit the samples, do not sum to 0, or are all 0.
        """
        # Samples with weight 0 take no part in the estimate.
        used = np.flatnonzero(weights)
        if len(weights) != len(self.added) or not set(used) <= set(self.nonempty):
            raise DecodeError(
                "weights must have one number for each sample, and 0 for a sample without reports"
            )
        if not len(used) or abs(weights.sum()) > _SUM_TOLERANCE * np.abs(weights).max():
            raise DecodeError(f"weights must sum to 0 and not all be 0, got {weights.tolist()}")
        added = [sample for index in used if (sample := self.added[index]) is not None]
        per_sample = [
            estimates
            for index in used
            if (estimates := self.separate.per_sample[index]) is not None
        ]
        with limit_to_one_thread():
            if self.candidates is None:
                return estimate_category_changes(
                    added, weights[used], self.device_correlation, complete=self.complete
                )
            return self._estimate_string_changes(
                self.candidates, added, per_sample, weights[used], progress
            )

    def _estimate_string_changes(
        self,
        candidates: Candidates,
        added: Sequence[AddedCollections],
        per_sample: Sequence[Estimates],
        weights: Floats,
        progress: Progress,
    ) -> Changes:
        """Estimate the changes of strings over the u samples with a weight.

        Parameters
        ----------
        candidates : c strings.
        added, per_sample : (u,) counts and separate decodes of the samples.
        weights : (u,) float64, none of them 0.
        progress : function that reports the progress.
        """
        # Rows of a decode are sorted by share. `orders` brings them into the order of candidates.
        orders = [estimates.indices_of(candidates.strings) for estimates in per_sample]
        shares, errors = (
            np.array(
                [
                    getattr(estimates, name)[order]
                    for estimates, order in zip(per_sample, orders, strict=True)
                ]
            )
            for name in ("share", "std_error")
        )
        params = list_shared_params(added)
        if not params:
            # The samples have no k, h, m, hash layout and normalizer in common. A string sets
            # different bits in each sample, so rows cannot be subtracted.
            return _add_separate_estimates(shares, errors, weights, self.device_correlation)
        design = Design(candidates, params)
        explained = np.array(
            [_compute_explained_rows(estimates, candidates, design) for estimates in per_sample]
        )
        target = build_contrast_rows(
            added, weights, explained, device_correlation=self.device_correlation
        )
        if not target.reports.any():
            # No cohort has reports in all samples, so no row has a difference.
            return _add_separate_estimates(shares, errors, weights, self.device_correlation)
        # The regression treats the h rows of a string in a cohort as independent measurements, so
        # it divides the sampling variance of a share by h. But the number of devices that have the
        # string is drawn once, and all h rows contain it. So the part 1 - 1/h of the sampling
        # variance is missing and is added here (`rappor.decoding.decoder` does the same).
        sampling_variance = np.clip(shares, 0, 1) * (1 - np.clip(shares, 0, 1))
        devices = np.array([[sample.n_devices] for sample in added])
        sampled = compute_device_variance(
            weights[:, None] * np.sqrt(sampling_variance / devices), self.device_correlation
        )
        h = max(parameter_set.h for parameter_set in params)
        # Samples of few reports have long tails, for which the refit was not measured. Their errors
        # are far larger than the shift that it removes.
        n_bits = max(parameter_set.k for parameter_set in params)
        mean_shares = None
        if min(_count_reports(sample) for sample in added) >= _LEAST_BUCKET_REPORTS * n_bits:
            detected = np.any(
                [
                    estimates.detected[order]
                    for estimates, order in zip(per_sample, orders, strict=True)
                ],
                axis=0,
            )
            mean_shares = np.where(detected, _compute_mean_shares(shares, errors), 0.0)
        return estimate_string_changes(
            target, candidates, (1 - 1 / h) * sampled, mean_shares, progress
        )

    def describe_assumptions(self, sample: str, between: str) -> str:
        """Write one line about the assumed devices within and between samples.

        Parameters
        ----------
        sample : the noun for a sample, such as "week".
        between : the sentence about devices in several samples.
        """
        samples = [sample for sample in self.added if sample is not None]
        repetitions = [repetition for sample in samples for repetition in sample.repetitions]
        most = max(repetition.reports_per_device for repetition in repetitions)
        reasons = "; or ".join(
            dict.fromkeys(_ASSUMPTION_SOURCES[repetition.source] for repetition in repetitions)
        )
        devices_text = "every report comes from another device"
        if most > 1:
            devices_text = f"a device sent up to {most:.3g} reports"
        return f"Assumed: within a {sample} {devices_text}, {reasons}. {between}"

    def collect_warnings(self, names: Sequence[str]) -> Iterator[Caution]:
        """Yield each warning of the samples once, with the names of its samples.

        Parameters
        ----------
        names : names of the T samples.
        """
        names_of_caution: dict[Caution, list[str]] = {}
        for name, estimates in zip(names, self.separate.per_sample, strict=True):
            for caution in () if estimates is None else estimates.warnings:
                names_of_caution.setdefault(caution, []).append(name)
        for caution, sample_names in names_of_caution.items():
            more = f" and {len(sample_names) - 1} more" if len(sample_names) > 1 else ""
            yield Caution(caution.code, f"{sample_names[0]}{more}: {caution.sentence}")


def _add_sample(collections: Sequence[Counts]) -> AddedCollections | None:
    """Add the collections of a sample as `decode` does. Return None if there are no reports."""
    # The name of the metric does not matter: two metrics may be compared.
    return add_collections(collections) if any(counts.n_reports for counts in collections) else None


def _compute_explained_rows(estimates: Estimates, candidates: Candidates, design: Design) -> Floats:
    """Compute the fitted proportion of each row, (n,), from the detected strings alone.

    A row is one bit of one cohort. Its fitted proportion is the sum of the shares of the detected
    strings that set the bit.

    Parameters
    ----------
    estimates : the separate decode of a sample.
    candidates : the candidates, in the order of the columns of `design`.
    design : the design matrix.
    """
    order = estimates.indices_of(candidates.strings)
    detected = estimates.detected[order]
    chosen = np.flatnonzero(detected)
    # Indistinguishable candidates share one estimate. Only the first candidate of a group is added.
    group = estimates.group[order][chosen]
    # Candidates outside any group have the number 0. They get different negative numbers here.
    first = np.unique(np.where(group > 0, group, -1 - np.arange(len(group))), return_index=True)[1]
    chosen = np.sort(chosen[first])
    return np.asarray(design.columns(chosen) @ estimates.share[order][chosen])


def _count_reports(sample: AddedCollections) -> int:
    """Return the number of reports of a sample."""
    return sum(counts.n_reports for counts in sample.counts)


def _compute_mean_shares(shares: Floats, errors: Floats) -> Floats:
    """Compute the mean share of each candidate over the samples, (c,), weighted by precision.

    Shares are clipped to [0, 1]. The mean is 0 if no sample has information about the candidate.

    Parameters
    ----------
    shares, errors : (u, c) float64. Separate estimates of each sample, and their standard errors.
    """
    # With equal weights, a sample of a few reports would add its noise to the mean.
    precision = np.maximum(errors, _STD_ERROR_RANGE[0]) ** -2.0  # 0 for infinite errors
    total = precision.sum(axis=0)
    weighted = (precision * np.clip(shares, 0.0, 1.0)).sum(axis=0)
    return np.where(total > 0, weighted / np.where(total > 0, total, 1.0), 0.0)


def _add_separate_estimates(
    shares: Floats, errors: Floats, weights: Floats, device_correlation: float | None
) -> Changes:
    """Add the estimates of samples that have no rows in common.

    The samples have different k, h or m, so neither collisions nor device noise cancel. If rho is
    unknown or above 0, the largest possible variance is assumed, because the correlation of the
    device noise of different bits is not known.

    Parameters
    ----------
    shares, errors : (u, c) float64. Separate estimates of each sample, and their standard errors.
    weights : (u,) float64.
    device_correlation : rho, or None if it is unknown.
    """
    estimate = weights @ shares
    assumed_correlation = 0.0 if device_correlation == 0 else None
    std_error = np.sqrt(compute_device_variance(weights[:, None] * errors, assumed_correlation))
    with np.errstate(invalid="ignore"):
        z = np.where(np.isfinite(std_error), np.abs(estimate) / std_error, 0.0)

    def interval(error: float) -> tuple[Floats, Floats]:
        critical_value = float(-special.ndtri(error / 2))
        return estimate - critical_value * std_error, estimate + critical_value * std_error

    return Changes(
        estimate=estimate,
        std_error=std_error,
        p_value=np.minimum(2 * special.ndtr(-z), 1.0),
        interval=interval,
        how="separate",
    )
