"""`compare`: what changed between two periods, segments or metrics, or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_choice
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison, Sample, panel
from rappor.comparison.sample_contrasts import Asked
from rappor.comparison.samples import Samples
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl

BASELINES: Final = ("first", "previous")
"""What a sample is compared with: the first one, or the one before it."""

UNKNOWN: Final = (
    "It is not known how many devices are in both samples, so errors of changes are estimated from "
    "the data, or are the largest possible where that fails."
)


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
    """Estimate how much the share of each candidate differs from the first sample to the others.

    Samples are periods, segments or metrics of the same values. Where they have the same k, h and
    m, their bits are compared one by one: strings whose share is unchanged cancel, also those that
    are no candidates. README.md in this folder has the statistics.

    Parameters
    ----------
    samples : two or more collections, or lists of them, by their names. Several collections of one
        sample are merged as `decode` merges them.
    candidates : strings to compare, as for `decode`, at most 131,072; other encodings take
        none.
    error_control : how sure to be; its level is that of what is called changed, over all candidates
        and samples.
    device_correlation : rho, from 0 for other devices in each sample to 1 for the same ones with
    reports in proportion. If omitted, the errors of changes follow the variance of the bits.
    baseline : "first" compares each sample with the first one, "previous" with the one before it.
    complete : as for `decode`: every value is in one of the categories or buckets.

    Returns
    -------
    Panel, with a contrast for each sample but the first. Deterministic.

    Raises
    ------
    DecodeError
        There are fewer than two samples, one has no reports, or they do not have the same values.

    Examples
    --------
    >>> from rappor import Params, Population, compare, simulate_counts
    >>> params = Params.profile("balanced")
    >>> before = simulate_counts(Population(["cat", "dog"], [3, 1]), params, n_reports=1e5, seed=1)
    >>> after = simulate_counts(Population(["cat", "dog"], [1, 3]), params, n_reports=1e5, seed=2)
    >>> found = compare({"May": before, "June": after}, ["cat", "dog", "emu"])
    >>> {row["candidate"]: row["direction"] for row in found.rows() if row["what"] == "difference"}
    {'dog': 'rise', 'cat': 'fall'}
    """
    check_choice("baseline", baseline, BASELINES, error=DecodeError)
    collections = [_listed(name, some) for name, some in samples.items()]
    if len(collections) < 2:
        raise DecodeError(f"samples must number at least 2, got {len(collections)}")
    decoded = Samples.decoded(
        collections,
        candidates,
        error_control,
        overlap=device_correlation,
        complete=complete,
        progress=progress,
    )
    names, one = list(samples), np.eye(len(samples))
    asked = []
    for number, name in enumerate(names[1:], start=1):
        other = number - 1 if baseline == "previous" else 0
        asked.append(
            Asked.of("difference", f"from {names[other]} to {name}", one[number] - one[other])
        )
    metrics = {counts.metric for some in collections for counts in some}
    return panel(
        decoded,
        [Sample.of(*each) for each in zip(names, decoded.merged, strict=True)],
        asked,
        progress,
        metric=metrics.pop() if len(metrics) == 1 else "",
        by="sample",
        assumptions=decoded.assumed(
            "sample",
            UNKNOWN
            if device_correlation is None
            else f"The overlap of two samples is {device_correlation:.2f}, as given.",
        ),
    )


def _listed(name: str, collections: Counts | Sequence[Counts]) -> list[Counts]:
    """Return the collections of a sample; DecodeError for what is none."""
    if not isinstance(name, str) or not name:
        raise DecodeError("samples must be collections by their names")
    listed = [collections] if isinstance(collections, Counts) else collections
    if not isinstance(listed, Sequence) or not all(isinstance(each, Counts) for each in listed):
        raise DecodeError(f"sample {name!r} must be Counts or a list of them")
    if not sum(counts.n_reports for counts in listed):
        raise DecodeError(f"sample {name!r} must have at least 1 report, got 0")
    return list(listed)
