"""Several samples of the same values, and weighted sums of their shares."""

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
from rappor.comparison.category_changes import answer_changes
from rappor.comparison.change_regression import Changes, find_changes
from rappor.comparison.contrast_rows import contrast_rows, shared_params
from rappor.comparison.per_sample import Apart, decode_apart, listed_candidates
from rappor.comparison.shared_devices import devices_variance
from rappor.counts.arrays import Floats, Integers
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import AddedCollections, add_collections
from rappor.estimator.error_control import ErrorControl

_REASONS: Final = {
    "counts": "the most that the counts allow",
    "days": "estimated from the variance of the counts that were added",
    "unknown": "nothing is known of the devices; if they reported again within one, the errors are "
    "larger",
}

_ERRORS: Final = (1e-9, 1e6)
"""Standard errors between which samples have weights, so that none is infinite or 0."""

_NO_SUM: Final = 1e-9
"""Weights of a contrast sum to 0, to this part of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """What several samples say alone and together, and what is known of their devices.

    Attributes
    ----------
    merged : t of them; None without reports.
    candidates : the strings, None where bits are answers.
    apart : the decodes of each sample, and of all.
    overlap : rho of any two samples, from 0 for other devices to 1 for the same ones with reports
        in proportion; None if it is not known.
    complete : whether every value is in one of the answers.
    detection : how sure to be.
    """

    merged: tuple[AddedCollections | None, ...]
    candidates: Candidates | None
    apart: Apart
    overlap: float | None
    complete: bool
    detection: ErrorControl

    @classmethod
    def decoded(
        cls,
        collections: Sequence[Sequence[Counts]],
        candidates: Candidates | Iterable[str] | None,
        detection: ErrorControl,
        *,
        overlap: float | None,
        complete: bool,
        progress: Progress = no_progress,
    ) -> Samples:
        """Decode samples, each a list of collections; DecodeError if they do not go together."""
        if overlap is not None:
            check_number("device_correlation", overlap, "[0, 1]", error=DecodeError)
        every = [counts for each in collections for counts in each]
        if not any(counts.n_reports for counts in every):
            raise DecodeError("counts must have at least 1 report, got 0")
        listed = listed_candidates(candidates, every)
        return cls(
            merged=tuple(_merged(each) for each in collections),
            candidates=listed,
            apart=decode_apart(collections, listed, detection, progress, complete=complete),
            overlap=overlap,
            complete=complete,
            detection=detection,
        )

    @property
    def known(self) -> Integers:
        """The numbers of the samples with reports."""
        return np.flatnonzero([each is not None for each in self.merged])

    @property
    def precision(self) -> Floats:
        """What a sample weighs in a line through all: 1 over the variance of a usual string."""
        return np.array(
            [
                0.0 if each is None else float(np.median(each.std_error).clip(*_ERRORS)) ** -2
                for each in self.apart.alone
            ]
        )

    def decode(self, collections: Sequence[Counts]) -> Estimates:
        """Decode other collections as each sample alone was decoded."""
        return decode(
            collections,
            self.candidates,
            error_control=self.apart.detection,
            complete=self.complete,
        )

    def changes(self, weights: Floats, progress: Progress = no_progress) -> Changes:
        """Estimate a weighted sum of the samples' shares of each candidate.

        Parameters
        ----------
        weights : (t,) float64. They sum to 0, and are 0 for samples without reports.
        """
        used = np.flatnonzero(weights)
        if len(weights) != len(self.merged) or not set(used) <= set(self.known):
            raise DecodeError("weights must be one for each sample, and 0 for one without reports")
        if not len(used) or abs(weights.sum()) > _NO_SUM * np.abs(weights).max():
            raise DecodeError(f"weights must sum to 0 and not all be 0, got {weights.tolist()}")
        merged = [each for number in used if (each := self.merged[number]) is not None]
        alone = [one for number in used if (one := self.apart.alone[number]) is not None]
        with limit_to_one_thread():
            if self.candidates is None:
                return answer_changes(merged, weights[used], self.overlap, complete=self.complete)
            return self._of_strings(self.candidates, merged, alone, weights[used], progress)

    def _of_strings(
        self,
        candidates: Candidates,
        merged: Sequence[AddedCollections],
        alone: Sequence[Estimates],
        weights: Floats,
        progress: Progress,
    ) -> Changes:
        orders = [each.places(candidates.strings) for each in alone]
        shares, errors = (
            np.array([getattr(each, name)[o] for each, o in zip(alone, orders, strict=True)])
            for name in ("share", "std_error")
        )
        params = shared_params(merged)
        if not params:
            return _apart(shares, errors, weights, self.overlap)
        design = Design(candidates, params)
        explained = np.array([_explained(each, candidates, design) for each in alone])
        target = contrast_rows(merged, weights, explained, overlap=self.overlap)
        if not target.reports.any():  # no cohort has reports in all
            return _apart(shares, errors, weights, self.overlap)
        # With h > 1 bits a string's devices are spread over the cohorts once, not once a bit: of
        # their sampling (1 - 1/h) is missing in the rows (`rappor.decoding.decoder`).
        within = np.clip(shares, 0, 1) * (1 - np.clip(shares, 0, 1))
        devices = np.array([[each.n_devices] for each in merged])
        sampled = devices_variance(weights[:, None] * np.sqrt(within / devices), self.overlap)
        h = max(each.h for each in params)
        return find_changes(target, candidates, (1 - 1 / h) * sampled, progress)

    def assumed(self, sample: str, between: str) -> str:
        """Return one line that says what is assumed of the devices within and between samples."""
        known = [each for each in self.merged if each is not None]
        repeated = [each for sample in known for each in sample.repetitions]
        most = max(each.reports_per_device for each in repeated)
        reasons = "; or ".join(dict.fromkeys(_REASONS[each.source] for each in repeated))
        told = "every report comes from another device"
        if most > 1:
            told = f"a device sent up to {most:.3g} reports"
        return f"Assumed: within a {sample} {told}, {reasons}. {between}"

    def cautions(self, names: Sequence[str]) -> Iterator[Caution]:
        """Yield what is said of samples, each sentence once, with the samples that it is about."""
        about: dict[Caution, list[str]] = {}
        for name, each in zip(names, self.apart.alone, strict=True):
            for caution in () if each is None else each.warnings:
                about.setdefault(caution, []).append(name)
        for caution, some in about.items():
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            yield Caution(caution.code, f"{some[0]}{more}: {caution.sentence}")


def _merged(collections: Sequence[Counts]) -> AddedCollections | None:
    """Add the collections of a sample as `decode` does; None without reports."""
    # The name of the metric does not matter: two metrics may be compared.
    return add_collections(collections) if any(counts.n_reports for counts in collections) else None


def _explained(estimates: Estimates, candidates: Candidates, design: Design) -> Floats:
    """Return what the detected strings of a sample set in each row, (n,)."""
    order = estimates.places(candidates.strings)
    detected = estimates.detected[order]
    chosen = np.flatnonzero(detected)
    # A group of indistinguishable candidates counts once, with the first of its members.
    group = estimates.group[order][chosen]
    first = np.unique(np.where(group > 0, group, -1 - np.arange(len(group))), return_index=True)[1]
    chosen = np.sort(chosen[first])
    return np.asarray(design.columns(chosen) @ estimates.share[order][chosen])


def _apart(shares: Floats, errors: Floats, weights: Floats, overlap: float | None) -> Changes:
    """Add up the estimates of samples that share no bits; no error cancels."""
    estimate = weights @ shares
    known = 0.0 if overlap == 0 else None
    std_error = np.sqrt(devices_variance(weights[:, None] * errors, known))
    with np.errstate(invalid="ignore"):
        z = np.where(np.isfinite(std_error), np.abs(estimate) / std_error, 0.0)

    def interval(error: float) -> tuple[Floats, Floats]:
        reach = float(-special.ndtri(error / 2))
        return estimate - reach * std_error, estimate + reach * std_error

    return Changes(
        estimate=estimate,
        std_error=std_error,
        p_value=np.minimum(2 * special.ndtr(-z), 1.0),
        interval=interval,
        how="apart",
    )
