"""`Comparison`: the result of `trend`, `compare_samples` and `compare_segments`.

A comparison has two parts:

- a table of shares, (T samples, c strings), each estimated from its sample alone;
- contrasts: weighted sums of the samples, such as the second sample minus the first, each with an
  estimate, an error and a test for every string. They are estimated from the bits of all samples
  together, and more precise than differences of the table.

`build_comparison` is the last step of all three functions:

    requested contrasts --> estimated changes --> decisions --> display order --> `Comparison`
                     (`Samples`)     (`decide_contrasts`)  (`_order_candidates`)

Two orders of the c strings exist. Decodes and estimated changes have the order of the candidates
that the caller passed. All arrays of a `Comparison` have the display order: strings with large
changes come first. `_order` contains the index in the first order of each string in the second.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from rappor.base.atomic_files import save_text
from rappor.base.display import DisplayedRecord, call_renderer
from rappor.base.errors import DecodeError
from rappor.base.progress import Progress
from rappor.base.ranges import check_weights
from rappor.base.sentence_numbers import format_plural
from rappor.comparison.per_sample import SampleEstimates
from rappor.comparison.sample_contrasts import RequestedContrast, SampleContrast, decide_contrasts
from rappor.comparison.samples import Samples
from rappor.counts.arrays import Booleans, Integers
from rappor.counts.installations import Installations
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import number_or_none
from rappor.decoding.spreadsheet_csv import format_csv
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

FORMAT: Final = 1
"""Number of the format of the JSON document. It grows if a key changes its meaning."""

COLUMNS: Final = (
    "candidate",
    "what",
    "name",
    "estimate",
    "std_error",
    "ci_low",
    "ci_high",
    "detected",
    "before",
    "after",
    "p_value",
    "changed",
    "direction",
    "ci_low_adjusted",
    "ci_high_adjusted",
    "group",
)
"""Columns of the CSV file, in order. `Comparison.rows` explains them."""

_Period = TypeVar("_Period")
"""`select_thirds` returns periods, or indices of periods, as it got them."""

_ERROR_COLUMNS: Final = ("std_error", "ci_low", "ci_high")
"""Attributes of `SampleEstimates` that the row of a share contains beside the share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a comparison: its name, its days or segment, and its reports.

    Attributes
    ----------
    name : name for tables, such as "2026-11-02" or "country=de".
    reports : number of reports under all parameter sets.
    devices : effective number of devices.
    params : parameter sets, in the order of their fingerprints.
    first, last : first and last day of a period. None for other samples.
    missing_days : number of days of the period without reports. None if the counts do not separate
        days.
    withheld : number of days of the period with reports that the collector has not released.
    segment : properties of the devices, by name. Empty for other samples.
    """

    name: str
    reports: int
    devices: float
    params: tuple[Params, ...]
    first: datetime.date | None = None
    last: datetime.date | None = None
    missing_days: int | None = None
    withheld: int | None = None
    segment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_collections(cls, name: str, added: AddedCollections | None, **coverage: Any) -> Sample:
        """Describe the added collections of a sample.

        Parameters
        ----------
        name : name of the sample.
        added : the sums of the sample's collections, one for each parameter set. None for a sample
            without reports.
        coverage : the fields that describe the days or the segment, by name.
        """
        counts = () if added is None else added.counts
        used = {collection.params.fingerprint: collection.params for collection in counts}
        return cls(
            name=name,
            reports=sum(collection.n_reports for collection in counts),
            devices=0.0 if added is None else added.n_devices,
            params=tuple(params for _, params in sorted(used.items())),
            **coverage,
        )

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the sample's parameter sets."""
        return tuple(params.fingerprint for params in self.params)

    @property
    def label(self) -> str:
        """Property values of the sample's segment, or the sample's name if it is no segment."""
        return ", ".join(self.segment.values()) or self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the sample for JSON. Days are texts in ISO 8601, unknown numbers are None."""
        return {
            "name": self.name,
            "reports": self.reports,
            "devices": self.devices,
            "fingerprints": list(self.fingerprints),
            "segment": dict(self.segment),
            "first": self.first and str(self.first),
            "last": self.last and str(self.last),
            "missing_days": self.missing_days,
            "withheld": self.withheld,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Comparison(DisplayedRecord):
    """Shares of c strings in T samples, and tests of how samples differ.

    Attributes
    ----------
    metric : name of the metric, empty for several metrics.
    by : kind of the samples: "sample", "day", "week", "month", "period" (of any length) or
        "segment".
    samples : (T,) samples in order, also periods without reports.
    candidates : (c,) texts. Strings with a significant change come first, the largest change first.
        All other strings follow by their share of all reports. Categories keep the order of the
        parameters.
    group : (c,) int64. Candidates with the same number above 0 are indistinguishable.
    per_sample : estimates of each sample by itself, (T, c).
    window : number of periods of the moving window, 1 for no smoothing.
    smoothed : estimates of each sample together with the `window` - 1 samples before it, (T, c).
        None if `window` is 1.
    detected_overall : (c,) bool. True if the pooled samples or any single sample detect the string.
    contrasts : all contrasts. The kind of the first contrast answers the question, such as the
        slope of a trend: these contrasts are `primary`. Other kinds are supplementary.
    device_correlation : correlation of the device noise of two samples: 0 if they share no device,
        1 if they share all; None if unknown.
    assumptions : one line about the assumed devices. All errors depend on these assumptions.
    warnings : reasons to distrust the result, each with a code.
    error_control : the error rate and confidence level passed to `trend`, `compare_samples` or
        `compare_segments`.
    installations : number of devices that reported the metric of active installations; None if the
        counts have none.
    _samples : counts and decodes, from which `contrast` estimates further contrasts.
    _order : (c,) int64. Index of each string of `candidates` among the candidates of `_samples`.
    """

    _renderer: ClassVar[str] = "comparison"

    metric: str
    by: str
    samples: tuple[Sample, ...]
    candidates: tuple[str, ...]
    group: Integers
    per_sample: SampleEstimates
    window: int = 1
    smoothed: SampleEstimates | None = None
    detected_overall: Booleans
    contrasts: tuple[SampleContrast, ...]
    device_correlation: float | None
    assumptions: str
    warnings: tuple[Caution, ...]
    error_control: ErrorControl
    installations: Installations | None = None
    _samples: Samples
    _order: Integers

    def __repr__(self) -> str:
        return (
            f"Comparison({len(self.candidates)} candidates in {len(self.samples)} {self.by}s, "
            f"{self.reports} reports, {self.n_changed} changes)"
        )

    def __str__(self) -> str:
        """Return the changes as text, like `rappor compare` and `rappor trend`."""
        return str(call_renderer("comparison_text", "comparison_text", self))

    @property
    def reports(self) -> int:
        """Number of reports of all samples."""
        return sum(sample.reports for sample in self.samples)

    @property
    def share_unit(self) -> str:
        """Noun of the things of which a share is a proportion: "devices" for sets, or "reports"."""
        # All samples have one encoding, and some sample has reports.
        used = [params for sample in self.samples for params in sample.params]
        return get_encoding(used[0]).share_unit

    @property
    def value_noun(self) -> str:
        """Noun for a candidate of this comparison, such as "string", "category" or "item"."""
        used = [params for sample in self.samples for params in sample.params]
        return get_encoding(used[0]).value_noun

    @property
    def has_sets(self) -> bool:
        """Whether a device may have several candidates: the reports are of sets."""
        used = [params for sample in self.samples for params in sample.params]
        return get_encoding(used[0]).supports_items

    @property
    def has_adjusted_shares(self) -> bool:
        """Whether intervals of shares are adjusted: shares of strings, which results select.

        All categories are shown, so nothing selects them.
        """
        used = [params for sample in self.samples for params in sample.params]
        return get_encoding(used[0]).is_hashed

    @property
    def missing(self) -> tuple[Sample, ...]:
        """The samples without reports."""
        return tuple(sample for sample in self.samples if not sample.reports)

    @property
    def primary(self) -> tuple[SampleContrast, ...]:
        """The contrasts that answer the question: all contrasts of the first contrast's kind."""
        return tuple(
            contrast for contrast in self.contrasts if contrast.kind == self.contrasts[0].kind
        )

    @property
    def thirds(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """Periods of the first and of the last third of a trend, only periods with reports.

        Tables of a trend contain the mean shares of both thirds as the shares before and after.
        """
        return select_thirds([sample for sample in self.samples if sample.reports])

    @property
    def n_changed(self) -> int:
        """Number of changed strings, added over the primary contrasts."""
        return sum(contrast.n_changed for contrast in self.primary)

    @property
    def changed(self) -> Booleans:
        """(c,) bool. True for candidates that changed in any primary contrast."""
        # `np.any` needs at least one array. A comparison of one sample has no contrasts.
        unchanged = np.zeros(len(self.candidates), dtype=bool)
        masks = [unchanged, *(contrast.changed for contrast in self.primary)]
        return np.asarray(np.any(masks, axis=0))

    @property
    def shown_rows(self) -> Integers:
        """(x,) int64. Indices of the candidates that tables show by default.

        A comparison of samples shows changed strings only. A comparison of periods or segments also
        shows detected strings, or all categories.
        """
        if self.by == "sample":
            return np.flatnonzero(self.changed)
        has_categories = self._samples.candidates is None
        return np.flatnonzero(self.changed | self.detected_overall | has_categories)

    @property
    def params_changes(self) -> tuple[tuple[Sample, Sample], ...]:
        """Pairs of consecutive periods with reports whose parameter sets differ."""
        with_reports = [sample for sample in self.samples if sample.reports and sample.first]
        pairs = itertools.pairwise(with_reports)
        return tuple(
            (before, after) for before, after in pairs if before.fingerprints != after.fingerprints
        )

    def contrast(self, weights: Sequence[float], name: str = "contrast") -> SampleContrast:
        """Estimate a weighted sum of the samples' shares of every candidate.

        `changed` controls the error rate over all candidates of this contrast.

        Parameters
        ----------
        weights : (T,) weights that sum to 0. The weight of a sample without reports is 0.
        name : a name for the contrast.

        Raises
        ------
        DecodeError
            Weights are not finite, do not sum to 0, or do not fit the samples.

        Examples
        --------
        >>> from rappor import Params, Population, compare_samples, simulate_counts
        >>> params = Params.profile("balanced")
        >>> population = Population(["cat", "dog"], [3, 1])
        >>> may, june = (simulate_counts(population, params, n_reports=1e4, seed=s) for s in (1, 2))
        >>> comparison = compare_samples({"May": may, "June": june}, ["cat", "dog"])
        >>> comparison.contrast([-1, 1], "June less May").n_changed
        0
        """
        check_weights("weights", weights, error=DecodeError)
        weight_array = np.asarray(weights, dtype=float)
        # `LEAST_NOISE`, the smallest variance of a row, is an absolute number. With weights of 1e-9
        # all variances would be smaller, so the largest weight is scaled to 1 and the result is
        # scaled back.
        scale = float(np.abs(weight_array).max())
        changes = self._samples.estimate_changes(weight_array / scale).scaled(scale)
        requested = RequestedContrast.from_weights("own", name, weight_array)
        # Changes have the order of the candidates that the caller passed, tables the display order.
        inverse_order = np.argsort(self._order)
        shares, detected = (
            self.per_sample.share[:, inverse_order],
            self.per_sample.detected[:, inverse_order],
        )
        (contrast,) = decide_contrasts([(requested, changes)], shares, detected, self.error_control)
        return contrast.ordered(self._order)

    def rows(self, *, include_all: bool = False) -> Iterator[dict[str, Any]]:
        """Yield shares and contrasts of each candidate as dictionaries.

        The keys are those of `COLUMNS`, as far as the row has them:

        - All rows: "candidate"; "what", which is "share", "smoothed" or the kind of a contrast;
          "name" of the sample or of the contrast; and "group" if the candidate has a group.
        - Shares: "estimate", "std_error", "ci_low", "ci_high" and "detected", as in
          `SampleEstimates`.
        - Contrasts: the keys of `SampleContrast.row`, as in the attributes of `SampleContrast`.

        "estimate", "before" and "after" are shares of all reports of a sample, or sums of such
        shares. A number that does not exist is None. The estimate of a contrast may differ from
        "after" minus "before" (`SampleContrast`).

        Parameters
        ----------
        include_all : also yield candidates that are not in `shown_rows`.
        """
        kinds = ["share"] if self.smoothed is None else ["share", "smoothed"]
        for i in range(len(self.candidates)) if include_all else self.shown_rows.tolist():
            group = {"group": int(self.group[i])} if self.group[i] else {}
            for kind in kinds:
                for sample in range(len(self.samples)):
                    yield self.share_row(sample, i, kind) | group
            for contrast in self.contrasts:
                yield self.contrast_row(contrast, i) | group

    def share_row(self, sample: int, i: int, what: str = "share") -> dict[str, Any]:
        """Return the row of the share of candidate i in one sample.

        Parameters
        ----------
        sample : index of the sample.
        i : index of the candidate.
        what : "share" for the sample by itself, "smoothed" for the moving window.
        """
        estimates = self.per_sample if what == "share" else self.smoothed
        assert estimates is not None
        numbers = [number_or_none(getattr(estimates, name)[sample, i]) for name in _ERROR_COLUMNS]
        return {
            "candidate": self.candidates[i],
            "what": what,
            "name": self.samples[sample].name,
            "estimate": number_or_none(estimates.share[sample, i]),
            **dict(zip(_ERROR_COLUMNS, numbers, strict=True)),
            "detected": bool(estimates.detected[sample, i]),
        }

    def contrast_row(self, contrast: SampleContrast, i: int) -> dict[str, Any]:
        """Return the row of candidate i in one contrast.

        The keys are "candidate", "what" (the kind of the contrast), "name" (of the contrast), and
        those of `SampleContrast.row`.
        """
        names = {"candidate": self.candidates[i], "what": contrast.kind, "name": contrast.name}
        return names | contrast.row(i)

    def to_dict(self, *, include_all: bool = False) -> dict[str, Any]:
        """Return the object that `rappor compare --json` and `rappor trend --json` print.

        Parameters
        ----------
        include_all : include candidates that are not in `shown_rows`.
        """
        unallocated = zip(
            self.per_sample.unallocated, self.per_sample.unallocated_std_error, strict=True
        )
        return {
            "format": FORMAT,
            "metric": self.metric,
            "by": self.by,
            "samples": [
                sample.to_dict()
                | {
                    "unallocated": number_or_none(share),
                    "unallocated_std_error": number_or_none(error),
                }
                for sample, (share, error) in zip(self.samples, unallocated, strict=True)
            ],
            "contrasts": [
                {
                    "kind": contrast.kind,
                    "name": contrast.name,
                    "weights": contrast.weights.tolist(),
                    "how": contrast.how,
                    "changed": contrast.n_changed,
                    "unchanged_p_value": contrast.unchanged_p_value,
                    "rows_p_value": contrast.rows_p_value,
                }
                for contrast in self.contrasts
            ],
            "rows": list(self.rows(include_all=include_all)),
            "candidates": len(self.candidates),
            "found": int(self.detected_overall.sum()),
            "window": self.window,
            "device_correlation": self.device_correlation,
            "assumptions": self.assumptions,
            "warnings": [dataclasses.asdict(caution) for caution in self.warnings],
            **({"installations": self.installations.to_dict()} if self.installations else {}),
        }

    def to_json(self, *, include_all: bool = False) -> str:
        """Return `to_dict` as the text of one JSON object."""
        return json.dumps(
            self.to_dict(include_all=include_all), ensure_ascii=False, allow_nan=False
        )

    def to_csv(
        self, path: str | os.PathLike[str] | None = None, *, include_all: bool = False
    ) -> str:
        """Return the rows as CSV with a header, and write them to `path` if given.

        A text that a spreadsheet would evaluate as a formula gets an apostrophe in front.
        """
        return save_text(format_csv(COLUMNS, self.rows(include_all=include_all)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the comparison as one HTML page, and write it to `path` if given.

        The page needs no other file and no network.
        """
        return save_text(str(call_renderer("comparison_page", "comparison_page", self)), path)

    def _table(self) -> dict[str, Any]:
        """Return the columns of the table by name, for data frames."""
        rows = list(self.rows(include_all=True))
        return {name: [row.get(name) for row in rows] for name in COLUMNS}


def select_thirds(periods: Sequence[_Period]) -> tuple[tuple[_Period, ...], tuple[_Period, ...]]:
    """Return the first and the last third of the periods with reports: at least one period each."""
    n_third = max(len(periods) // 3, 1)
    return tuple(periods[:n_third]), tuple(periods[-n_third:])


def build_comparison(
    samples: Samples,
    columns: Sequence[Sample],
    requested: Sequence[RequestedContrast],
    progress: Progress,
    **details: Any,
) -> Comparison:
    """Estimate the requested contrasts, and put candidates in display order.

    Parameters
    ----------
    samples : the T decoded samples.
    columns : (T,) descriptions of the samples.
    requested : the contrasts. The kind of the first contrast is the primary kind.
    progress : function that reports the progress.
    details : attributes of the `Comparison` that its caller determines, by name, such as `by`.
    """
    separate = samples.separate
    order = np.arange(len(separate.candidates))
    estimates = separate.tabulate(order, separate.per_sample)
    pairs = [
        (contrast, samples.estimate_changes(contrast.weights, progress)) for contrast in requested
    ]
    # The error rate holds over all contrasts of one kind together.
    contrasts: list[SampleContrast] = []
    for kind in dict.fromkeys(contrast.kind for contrast in requested):
        of_kind = [pair for pair in pairs if pair[0].kind == kind]
        contrasts += decide_contrasts(
            of_kind, estimates.share, estimates.detected, samples.error_control
        )
    # Categories keep the order of the parameters.
    if samples.candidates is not None:
        order = _order_candidates(
            samples, [contrast for contrast in contrasts if contrast.kind == contrasts[0].kind]
        )
    names = [sample.name for sample in columns]
    saturated = [contrast.name for contrast, changes in pairs if changes.is_saturated]
    noun = separate.pooled.value_noun
    return Comparison(
        samples=tuple(columns),
        candidates=tuple(separate.candidates[i] for i in order),
        group=separate.pooled.group[separate.pooled.indices_of(separate.candidates)][order],
        per_sample=separate.tabulate(order, separate.per_sample),
        detected_overall=separate.detected[order],
        contrasts=tuple(contrast.ordered(order) for contrast in contrasts),
        device_correlation=samples.device_correlation,
        warnings=(
            *samples.collect_warnings(names),
            *(_warn_of_many_changes(name, noun) for name in saturated),
        ),
        error_control=samples.error_control,
        _samples=samples,
        _order=order,
        **details,
    )


def _order_candidates(samples: Samples, primary: Sequence[SampleContrast]) -> Integers:
    """Compute the display order of the candidates, (c,) indices.

    Candidates with significant changes come first, the largest change first. All other candidates
    follow by their share of all reports.

    Parameters
    ----------
    samples : the decoded samples.
    primary : the contrasts of the primary kind.
    """
    # Rows of the pooled decode are sorted by share, so the index of a row is its rank.
    by_share = samples.separate.pooled.indices_of(samples.separate.candidates)
    if not primary:
        return np.argsort(by_share)
    sizes = [np.where(contrast.changed, np.abs(contrast.estimate), 0.0) for contrast in primary]
    return np.lexsort((by_share, -np.max(sizes, axis=0)))


def _warn_of_many_changes(name: str, value_noun: str) -> Caution:
    """Return the warning that too many strings changed for the number of bits."""
    return Caution(
        "many_changes",
        f"{name}: too many {format_plural(value_noun)} changed for this number of bits. Some may "
        "be missed, and intervals are too narrow. More cohorts would help.",
    )
