"""`compare_samples`: changes of shares between two or more periods, segments or metrics.

A *sample* is one column of a comparison: the collections of one period, segment or metric. The
function requests one contrast (difference of two samples) for each sample but the first.
`rappor.comparison.samples` estimates the contrasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from rappor.base.argument_checks import check_type, explain_error_control
from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_choice
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison, Sample, build_comparison
from rappor.comparison.sample_contrasts import RequestedContrast
from rappor.comparison.samples import Samples
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl

BASELINES: Final = ("first", "previous")
"""Samples that each sample can be compared with: the first sample, or the sample before it."""

UNKNOWN_CORRELATION: Final = (
    "It is not known how many devices are in both samples, so errors of changes are estimated from "
    "the data, or are the largest possible errors if the data do not suffice."
)
"""Sentence about the device noise if `device_correlation` is not passed. Results contain it in
their line of assumptions."""


@explain_error_control
def compare_samples(  # noqa: PLR0913 - all that a caller may know of the samples
    samples: Mapping[str, Counts | Sequence[Counts]],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    error_control: ErrorControl = ErrorControl(),
    device_correlation: float | None = None,
    baseline: str = "first",
    complete: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate the change of each candidate's share between samples.

    Samples are periods, segments or metrics of the same values. If the samples have the same number
    of bits k, of hash functions h and of cohorts m, the proportions of ones at each bit of each
    cohort are subtracted. Strings with an unchanged share cancel, even if they are no candidates.
    README.md in the folder of this module explains the statistics.

    Parameters
    ----------
    samples : two or more collections, or lists of collections, by name. Several collections of one
        sample are merged as `decode` merges them.
    candidates : strings to compare, as for `decode`, at most 131,072. Encodings of categories take
        no candidates.
    error_control : the error rate of changes over all candidates and samples, and the confidence
        level.
    device_correlation : rho, the correlation of the device noise of two samples, in [0, 1]: 0 if
        samples share no device, 1 if they share all devices and each device sends the same
        proportion of the reports in every sample. By default, the errors of changes are estimated
        from the variance of the bits.
    baseline : "first" compares each sample with the first one, "previous" with the one before it.
    complete : as for `decode`: every value is in one of the categories or buckets.
    progress : as for `decode`.

    Returns
    -------
    Comparison, with a contrast for each sample but the first. The result is deterministic.

    Raises
    ------
    ParamsError
        The samples are no mapping, or an argument is outside its range.
    DecodeError
        There are fewer than two samples, a sample has no reports, or the values do not fit
        together.

    Examples
    --------
    >>> from rappor import Params, Population, compare_samples, simulate_counts
    >>> params = Params.profile("balanced")
    >>> before = simulate_counts(Population(["cat", "dog"], [3, 1]), params, n_reports=1e5, seed=1)
    >>> after = simulate_counts(Population(["cat", "dog"], [1, 3]), params, n_reports=1e5, seed=2)
    >>> comparison = compare_samples({"May": before, "June": after}, ["cat", "dog", "emu"])
    >>> rows = [row for row in comparison.rows() if row["what"] == "difference"]
    >>> {row["candidate"]: row["direction"] for row in rows}
    {'dog': 'rise', 'cat': 'fall'}
    """
    # Samples in a list have no names, which tables and charts need.
    check_type("samples", samples, Mapping, 'give each sample a name: {"before": a, "after": b}')
    check_choice("baseline", baseline, BASELINES, error=DecodeError)
    collections = [_check_collections(name, sample) for name, sample in samples.items()]
    if len(collections) < 2:
        raise DecodeError(f"samples must number at least 2, got {len(collections)}")
    decoded = Samples.from_collections(
        collections,
        candidates,
        error_control,
        device_correlation=device_correlation,
        complete=complete,
        progress=progress,
    )
    # Row i of `unit` are the weights that select sample i.
    names, unit = list(samples), np.eye(len(samples))
    requested = []
    for number, name in enumerate(names[1:], start=1):
        base = number - 1 if baseline == "previous" else 0
        requested.append(
            RequestedContrast.from_weights(
                "difference", f"from {names[base]} to {name}", unit[number] - unit[base]
            )
        )
    correlation = UNKNOWN_CORRELATION
    if device_correlation is not None:
        correlation = (
            "The correlation of the device noise of two samples is "
            f"{device_correlation:.2f}, as passed."
        )
    metrics = {counts.metric for sample in collections for counts in sample}
    return build_comparison(
        decoded,
        [
            Sample.from_collections(name, collections)
            for name, collections in zip(names, decoded.added, strict=True)
        ],
        requested,
        progress,
        metric=metrics.pop() if len(metrics) == 1 else "",
        by="sample",
        assumptions=decoded.describe_assumptions("sample", correlation),
    )


def _check_collections(name: str, collections: Counts | Sequence[Counts]) -> list[Counts]:
    """Return the collections of one sample as a list.

    Raises DecodeError for other objects, and for a sample without reports.
    """
    if not isinstance(name, str) or not name:
        raise DecodeError("samples must be collections by their names")
    listed = [collections] if isinstance(collections, Counts) else collections
    if not isinstance(listed, Sequence) or not all(isinstance(counts, Counts) for counts in listed):
        raise DecodeError(f"sample {name!r} must be Counts or a list of them")
    if not sum(counts.n_reports for counts in listed):
        raise DecodeError(f"sample {name!r} must have at least 1 report, got 0")
    return list(listed)
