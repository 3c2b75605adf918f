"""Estimates: the table of a decode, with a standard error for every number.

`rappor.decoding.decoder.decode` returns an `Estimates`. Analysts read it in Python, and commands,
pages and the collector render it. The table has one row for each candidate, and numbers about the
whole table, such as the unallocated share.

How to think about it:

- A *share* is a proportion of the reports, in [0, 1] without noise. `count` is share times reports.
- Estimates are unbiased and therefore unclipped: half of the absent candidates have a share below
  0.
- A row is *detected* if its p-value passes the test over all candidates (`ErrorControl`).
- Candidates with the same bits form an identifiability group. Each member has a row, and every row
  shows the share of the whole group. Sums count the group once.
- Every statement about several rows is a contrast: a weighted sum, with an error from the joint
  covariance of the rows (`rappor.decoding.contrasts`).

Row numbers count from 0 in the order of the table: strings by count, largest first; categories and
buckets in the order of their declaration. Results for people (`rows`, `to_csv`, `to_html`) begin
with the strings that the metric's entry in the registry lists.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from rappor.base.argument_checks import refuse_text
from rappor.base.atomic_files import save_text
from rappor.base.display import DisplayedRecord, call_renderer
from rappor.base.errors import DecodeError
from rappor.base.ranges import check_number, check_weights, format_value
from rappor.base.sentence_numbers import format_count
from rappor.candidates.result_tables import ORIGIN_COLUMNS
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.decoding.collection_summary import CollectionSummary
from rappor.decoding.contrasts import Contrast, RowCovariance, compute_critical_value
from rappor.decoding.diagnostics import Caution, list_cautions
from rappor.decoding.spreadsheet_csv import format_csv
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import get_encoding

COLUMNS: Final = (
    "candidate",
    "count",
    "std_error",
    "share",
    "ci_low",
    "ci_high",
    "p_value",
    "weight",
    "detected",
    "ci_low_adjusted",
    "ci_high_adjusted",
    "forged_to_make",
    "forged_to_hide",
    "posterior_share",
    "posterior_share_std_error",
    "group",
)
"""Columns of the table, in the order of the CSV file. README.md explains them."""

_OPTIONAL: Final = ("weight", "posterior_share", "posterior_share_std_error")
"""Columns that a table does not have if their attribute is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingShare:
    """Share of the reports of all detected rows after the first rows, together.

    A page that shows only the 10 largest rows adds one line for all later detected rows.

    Attributes
    ----------
    after : number of first rows that the share excludes.
    rows : number of detected rows after the first rows.
    share : share of all reports: the sum of posterior means, because estimates of rows that were
        selected as detected are too large (`contrasts`). An identifiability group counts once, at
        the first of its rows.
    std_error : standard error of the share.
    """

    after: int
    rows: int
    share: float
    std_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Estimates(DisplayedRecord):
    """The result of a decode, with one row for each of c candidates.

    Strings are sorted by count, largest first. Categories and buckets keep the order of their
    declaration. `rows` and the tables that are made of it begin with the strings that the metric's
    entry lists.

    Attributes
    ----------
    candidates : (c,) the candidate strings, or the names of categories and buckets.
    share : (c,) float64. Shares of all reports, unclipped: noise makes some negative. The share
        times `reports` is the count, in reports, not in devices.
    std_error : (c,) float64. Standard error of the share. Infinite if the counts contain no
        information about the candidate.
    ci_low, ci_high : (c,) float64. Two-sided interval at the confidence, for each candidate alone.
    p_value : (c,) float64. One-sided: probability that an absent candidate has at least this score.
    weight : (c,) float64, or None unless the list is ranked. Weight of the candidate's test, which
        is 1 on average: the larger the weight, the larger the p-value at which the candidate is
        detected. Each row of a group has the weight of the group, the sum over its members.
    detected : (c,) bool. True at the error rate of `error_control`, over all c candidates.
    ci_low_adjusted, ci_high_adjusted : (c,) float64. Intervals of detected rows, widened so that
        the expected share of these intervals that miss the truth is at most 1 - confidence (false
        coverage rate, Benjamini and Yekutieli 2005). NaN for other rows.
    forged_to_make : (c,) float64. Breakdown number, in reports: if this many of the reports are
        forged, they may have created the row of an absent string. NaN for rows that are not
        detected.
    forged_to_hide : (c,) float64. Breakdown number, in reports: this many additional forged reports
        would make the row undetected. Infinite if no number does, NaN for rows that are not
        detected.
    posterior_share, posterior_share_std_error : (c,) float64, or None unless the distribution was
        requested. Shares of the list with the smallest expected total error, and the roots of their
        mean squared errors. The error is infinite if the counts contain no information about the
        candidate.
    group : (c,) int64. Candidates with the same number, starting at 1, cannot be distinguished:
        each row shows the total of its group. 0 for all other candidates.
    n_candidates : number of all candidates, at least c. Of a stream only the best have rows.
    p_value_counts : (b,) int64. Histogram of the p-values of all candidates, with the bins of
        `rappor.estimator.p_values.EDGES`. Candidates of one group count once.
    reports : number of reports.
    unallocated : share of the reports that no detected candidate explains, unclipped. NaN if the
        encoding is `boolean` or `set`, whose shares do not add up to 1.
    unallocated_std_error : standard error of `unallocated`.
    assumptions : one line about the devices behind the reports, on which all errors depend.
    remaining : shares of the detected rows after the first 10, 20, 50, 100 and 1000 detected rows,
        in the order of `candidates`. Numbers that are not below the number of detected rows are
        omitted.
    diagnostics : findings about the counts, ready for JSON. README.md of this folder lists the
        keys.
    collections : summary of each of g parameter sets.
    error_control : the argument of `decode`. Its method is the one that was applied: "bh" if
        "adaptive" had too few reports.
    covariance : joint distribution of the rows, for `contrast`.
    contrasts : contrasts that the result displays. `with_contrasts` adds to them.
    listed : strings that the metric's entry lists, normalised as on the devices. Each has a row.

    Examples
    --------
    >>> from rappor import Params, Population, decode, simulate_counts
    >>> population = Population(["cat", "dog"], [3, 1])
    >>> counts = simulate_counts(
    ...     population, Params.profile("balanced"), n_reports=100_000, seed=1
    ... )
    >>> estimates = decode(counts, ["cat", "dog", "emu"])
    >>> estimates.detected_candidates
    ['cat', 'dog']
    >>> [round(float(share), 2) for share in estimates.share]
    [0.74, 0.25, 0.0]
    """

    _renderer: ClassVar[str] = "estimates"

    candidates: tuple[str, ...]
    share: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    p_value: Floats
    weight: Floats | None
    detected: Booleans
    ci_low_adjusted: Floats
    ci_high_adjusted: Floats
    forged_to_make: Floats
    forged_to_hide: Floats
    posterior_share: Floats | None
    posterior_share_std_error: Floats | None
    group: Integers
    n_candidates: int
    p_value_counts: Integers
    reports: int
    unallocated: float
    unallocated_std_error: float
    assumptions: str
    remaining: tuple[RemainingShare, ...]
    diagnostics: dict[str, Any]
    collections: tuple[CollectionSummary, ...]
    error_control: ErrorControl
    covariance: RowCovariance
    contrasts: tuple[Contrast, ...] = ()
    listed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.candidates)

    def __repr__(self) -> str:
        return (
            f"Estimates({int(self.detected.sum())} detected of {self.n_candidates} candidates, "
            f"{self.reports} reports)"
        )

    @property
    def warnings(self) -> tuple[Caution, ...]:
        """Warnings about the complete table, such as a misfit or too few reports."""
        is_repetition_known = all(
            summary.repetition.source != "unknown" for summary in self.collections
        )
        # Only counts with squared reports may hide a few devices that sent most reports. The other
        # sources assume even devices.
        has_squares = any(
            summary.repetition.source == "counts" and summary.repetition.reports_per_device > 1
            for summary in self.collections
        )
        n_devices = sum(
            summary.n_reports / summary.repetition.reports_per_device
            for summary in self.collections
        )
        return tuple(
            list_cautions(
                self.diagnostics,
                self.reports,
                devices_known=is_repetition_known,
                uneven_devices=n_devices if has_squares else math.inf,
                bucket_reports=self._count_bucket_reports(),
                has_contrasts=bool(self.contrasts),
                value_noun=self.value_noun,
            )
        )

    @property
    def distinct(self) -> Booleans:
        """(c,) bool. True for rows outside any group, and for the first row of each group."""
        first = np.zeros(len(self), dtype=bool)
        first[np.unique(self.group, return_index=True)[1]] = True
        return np.asarray((self.group == 0) | first)

    @property
    def detected_candidates(self) -> list[str]:
        """Detected candidates, in the order of their rows."""
        return [self.candidates[i] for i in np.flatnonzero(self.detected)]

    @property
    def is_listed(self) -> Booleans:
        """(c,) bool. True for rows of strings that the metric's entry lists."""
        return np.array([name in self.listed for name in self.candidates], dtype=bool)

    @property
    def not_listed(self) -> Contrast | None:
        """Share of the reports with a string that the metric's entry does not list.

        The list was chosen before the counts were seen, so the sum of its estimates is unbiased. A
        string that cannot be distinguished from a listed string counts as listed. None if the entry
        has no list, if the counts contain no information about one of its strings, or for sets,
        whose devices may have listed and other items.
        """
        if (total := self._sum_listed()) is None or self.has_sets:
            return None
        return Contrast.from_variance(
            "not in the list",
            1 - total[0],
            total[1],
            compute_critical_value(self.error_control.confidence),
        )

    def _count_bucket_reports(self) -> float:
        """Return the expected number of reports of an absent item's bucket; infinite if no sets."""
        if not self.has_sets:
            return math.inf
        return sum(summary.n_reports / summary.params.k for summary in self.collections)

    @property
    def has_sets(self) -> bool:
        """Whether a device may have several candidates: the reports are of sets."""
        return get_encoding(self.collections[0].params).supports_items

    @property
    def share_unit(self) -> str:
        """Noun of the things of which a share is a proportion: "devices" for sets, or "reports"."""
        return get_encoding(self.collections[0].params).share_unit

    @property
    def value_noun(self) -> str:
        """Noun for a candidate of these estimates, such as "string", "category" or "item"."""
        return get_encoding(self.collections[0].params).value_noun

    @property
    def mean_listed_items(self) -> Contrast | None:
        """Mean number of listed items in the set of a device: the sum of their shares.

        None for other encodings than sets, and otherwise as `not_listed`.
        """
        if (total := self._sum_listed()) is None or not self.has_sets:
            return None
        return Contrast.from_variance(
            "listed items of a device",
            *total,
            compute_critical_value(self.error_control.confidence),
        )

    def _sum_listed(self) -> tuple[float, float] | None:
        """Compute the sum of the shares of the listed strings, and its variance."""
        if not self.listed:
            return None
        # A listed string may be in an identifiability group with a string outside the list. The
        # group has one share, so all its rows must be part of the contrast.
        entries = np.unique(self.covariance.entry[self.is_listed])
        rows = np.flatnonzero(np.isin(self.covariance.entry, entries))
        if not np.isfinite(self.std_error[rows]).all():
            return None
        (value,), ((variance,),) = self.covariance.compute_contrasts(rows, np.ones((1, len(rows))))
        return float(value), float(variance)

    def order(self, *, detected_only: bool = False) -> Integers:
        """Return the indices of the rows in reading order: listed strings first.

        Parameters
        ----------
        detected_only : True omits rows that are neither listed nor detected.

        Returns
        -------
        (r,) int64.
        """
        listed = self.is_listed
        unlisted = ~listed & self.detected if detected_only else ~listed
        return np.concatenate([np.flatnonzero(listed), np.flatnonzero(unlisted)])

    def contrast(
        self,
        weights: Mapping[str, float],
        *,
        constant: float = 0.0,
        name: str = "",
        detected: bool = False,
    ) -> Contrast:
        """Compute a weighted sum of the shares of some candidates, with its standard error.

        Parameters
        ----------
        weights : weight of each candidate. Unless `detected` is True, the candidates must not have
            been chosen by their estimates: a sum of rows that were chosen because they are high is
            too large.
        constant : number that is added, as a share.
        name : description of the contrast.
        detected : True if the rows were chosen because they are detected. The sum then uses
            posterior means, whose sum is not too large.

        Returns
        -------
        Contrast, with a two-sided interval at the confidence of `error_control`, and a two-sided
        p-value of the hypothesis that the sum is 0.

        Raises
        ------
        DecodeError
            A candidate has no row, the counts do not determine the contrast
            (`RowCovariance.compute_contrasts`), weights or constant are not finite, or all weights
            are 0.

        Examples
        --------
        Is the share of "cat" more than twice the share of "dog"?

        >>> from rappor import Params, Population, decode, simulate_counts
        >>> population = Population(["cat", "dog"], [3, 1])
        >>> counts = simulate_counts(
        ...     population, Params.profile("balanced"), n_reports=100_000, seed=1
        ... )
        >>> contrast = decode(counts, ["cat", "dog"]).contrast({"cat": 1, "dog": -2})
        >>> round(contrast.estimate, 1), contrast.ci_low > 0
        (0.2, True)
        """
        check_weights("weights", weights.values(), error=DecodeError)
        check_number("constant", constant, "[-1e100, 1e100]", error=DecodeError)
        values = np.array(list(weights.values()), dtype=float)
        rows = self.indices_of(weights)
        # The estimate of a row that was chosen because it is high is too large. Its posterior mean
        # is not.
        if detected:
            value, variance = self.covariance.compute_detected_contrast(rows, values)
        else:
            (value,), ((variance,),) = self.covariance.compute_contrasts(rows, values[None])
        return Contrast.from_variance(
            name,
            constant + value,
            variance,
            compute_critical_value(self.error_control.confidence),
            include_p_value=True,
        )

    def total(self, candidates: Iterable[str], *, name: str = "") -> Contrast:
        """Compute the share of the reports with any of some candidates.

        The candidates must have been chosen before their estimates were seen.

        Parameters
        ----------
        candidates : candidates with a row.
        name : description of the contrast.

        Raises
        ------
        DecodeError
            There are no candidates, or as `contrast`.
        ParamsError
            `candidates` is one text instead of a list.
        """
        refuse_text("candidates", candidates)
        weights = dict.fromkeys(candidates, 1.0)
        if not weights:
            raise DecodeError("candidates must be at least 1, got 0")
        return self.contrast(weights, name=name)

    def total_like(self, pattern: str) -> Contrast:
        """Compute the share of the reports with a candidate that matches a regular expression.

        Parameters
        ----------
        pattern : a regular expression of Python. It may match anywhere in the candidate.

        Raises
        ------
        DecodeError
            No candidate matches, only the best candidates of a stream have rows, or `pattern` is
            not a regular expression.
        """
        # Most candidates of a stream have no row. A total without them would be too small, and its
        # standard error would not show that.
        if self.n_candidates > len(self):
            raise DecodeError(
                f"{pattern!r} must be searched in all candidates, and only the best of "
                f"{self.n_candidates:,} have rows: give fewer candidates"
            )
        try:
            matches = [name for name in self.candidates if re.search(pattern, name)]
        except re.error as error:
            raise DecodeError(f"{pattern!r} must be a regular expression: {error}") from None
        if not matches:
            raise DecodeError(
                f"regular expression {pattern!r} must match a candidate, and matches none"
            )
        return self.total(matches, name=f"{pattern} ({format_count(len(matches), 'candidate')})")

    def difference(self, first: str, second: str) -> Contrast:
        """Compute the share of one candidate minus the share of another candidate.

        Both candidates must have been chosen before their estimates were seen.

        Raises
        ------
        DecodeError
            The candidates are the same, or as `contrast`.
        """
        if first == second:
            raise DecodeError(
                f"candidates must be two different ones, got {format_value(first)} twice"
            )
        return self.contrast({first: 1.0, second: -1.0}, name=f"{first} - {second}")

    def with_contrasts(self, contrasts: Iterable[Contrast]) -> Estimates:
        """Return a copy with further contrasts."""
        return dataclasses.replace(self, contrasts=(*self.contrasts, *contrasts))

    def indices_of(self, candidates: Iterable[str]) -> Integers:
        """Return the row index of each candidate, (r,) int64.

        Raises
        ------
        DecodeError
            A candidate has no row.
        """
        rows = {name: number for number, name in enumerate(self.candidates)}
        requested = list(candidates)
        # A missing row must not count as a share of 0: the string may be frequent but without a
        # row.
        if unknown := [name for name in requested if name not in rows]:
            raise DecodeError(
                f"candidates of a sum or difference must have rows in the table, got "
                f"{len(unknown):,} without a row, such as {format_value(unknown[0])}"
            )
        return np.array([rows[name] for name in requested], dtype=np.int64)

    def rows(self, *, detected_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, listed strings first.

        `detected_only` omits rows that are neither listed nor detected. The keys are names of
        `COLUMNS`, and "listed" if the metric's entry has a list. The values of `count`,
        `std_error`, `forged_to_make` and `forged_to_hide` are in reports. A number that does not
        exist, such as an infinite error, is None. Only detected rows have the adjusted interval and
        the breakdown numbers, and only rows of a group have `group`. All rows have
        `posterior_share` and its error if they were requested, and `weight` if the list is ranked.
        """
        for i in self.order(detected_only=detected_only).tolist():
            yield self.row(i)

    def row(self, i: int) -> dict[str, Any]:
        """Return row i of the table, counted from 0, as `rows` yields it."""
        row: dict[str, Any] = {
            "candidate": self.candidates[i],
            "count": number_or_none(self.share[i] * self.reports),
            "std_error": number_or_none(self.std_error[i] * self.reports),
            "share": number_or_none(self.share[i]),
            "ci_low": number_or_none(self.ci_low[i]),
            "ci_high": number_or_none(self.ci_high[i]),
            "p_value": float(self.p_value[i]),
            **({} if self.weight is None else {"weight": float(self.weight[i])}),
            "detected": bool(self.detected[i]),
        }
        if self.detected[i]:
            # Adjusted intervals and breakdown numbers of other rows are NaN, which JSON cannot
            # contain.
            row["ci_low_adjusted"] = number_or_none(self.ci_low_adjusted[i])
            row["ci_high_adjusted"] = number_or_none(self.ci_high_adjusted[i])
            row["forged_to_make"] = _convert_to_integer(self.forged_to_make[i])
            row["forged_to_hide"] = _convert_to_integer(self.forged_to_hide[i])
        if self.posterior_share is not None and self.posterior_share_std_error is not None:
            row["posterior_share"] = float(self.posterior_share[i])
            row["posterior_share_std_error"] = number_or_none(self.posterior_share_std_error[i])
        if self.group[i]:
            row["group"] = int(self.group[i])
        if self.listed:
            row["listed"] = self.candidates[i] in self.listed
        return row

    def to_dict(self, *, detected_only: bool = False) -> dict[str, Any]:
        """Return the complete result as the object that `rappor decode --json` prints."""
        return {
            "estimates": list(self.rows(detected_only=detected_only)),
            **({"candidates": self.n_candidates} if self.n_candidates > len(self) else {}),
            "reports": self.reports,
            "unallocated": number_or_none(self.unallocated),
            "unallocated_std_error": number_or_none(self.unallocated_std_error),
            **({} if self.not_listed is None else {"not_listed": self.not_listed.to_dict()}),
            **(
                {}
                if self.mean_listed_items is None
                else {"mean_listed_items": self.mean_listed_items.to_dict()}
            ),
            **(
                {"contrasts": [contrast.to_dict() for contrast in self.contrasts]}
                if self.contrasts
                else {}
            ),
            "assumptions": self.assumptions,
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
            "diagnostics": self.diagnostics,
        }

    def to_json(self, *, detected_only: bool = False) -> str:
        """Write `to_dict` as one JSON object."""
        document = self.to_dict(detected_only=detected_only)
        return json.dumps(document, ensure_ascii=False, allow_nan=False)

    def to_csv(
        self, path: str | os.PathLike[str] | None = None, *, detected_only: bool = False
    ) -> str:
        """Return the rows as CSV with a header, and write them to `path` if it is not None.

        The last columns are the metric and the fingerprints of the reports. `decode` refuses the
        table as a list of candidates of the same metric, because its order comes from the reports.

        A candidate that a spreadsheet would compute as a formula gets an apostrophe in front.
        """
        origin = dict(zip(ORIGIN_COLUMNS, self._describe_origin(), strict=True))
        rows = (row | origin for row in self.rows(detected_only=detected_only))
        return save_text(format_csv([*self._list_columns(), *ORIGIN_COLUMNS], rows), path)

    def _describe_origin(self) -> tuple[str, str]:
        """Return the names of the metrics and the fingerprints of the reports, without repetitions.

        Counts may have no name of a metric.
        """
        metrics = dict.fromkeys(summary.metric for summary in self.collections)
        fingerprints = dict.fromkeys(summary.params.fingerprint for summary in self.collections)
        return " ".join(filter(None, metrics)), " ".join(fingerprints)

    def to_html(self, path: str | os.PathLike[str] | None = None, *, forged: bool = False) -> str:
        """Return the report as one HTML page, and write it to `path` if it is not None.

        The page needs no other file, no network and no script. README.md of `rappor.reporting`
        describes the page. `forged` adds the breakdown numbers of each row.
        """
        return save_text(str(call_renderer("page", "estimates_page", self, forged=forged)), path)

    def _table(self) -> dict[str, Any]:
        """Return the columns by name, with c values each, for data frames."""
        columns = {
            "candidate": list(self.candidates),
            "count": self.share * self.reports,
            # The first three columns are candidate, count and std_error.
            **{name: getattr(self, name) for name in self._list_columns()[3:] if name != "listed"},
            "listed": self.is_listed,
        }
        # The table shows counts, so the standard error is in reports, too.
        columns["std_error"] = self.std_error * self.reports
        return {name: columns[name] for name in self._list_columns()}

    def _list_columns(self) -> list[str]:
        """Return the names of the columns that this table has."""
        columns = [
            name for name in COLUMNS if name not in _OPTIONAL or getattr(self, name) is not None
        ]
        return [*columns, "listed"] if self.listed else columns

    def __str__(self) -> str:
        """Return the detected rows as text, like `rappor decode`."""
        return str(call_renderer("text", "estimates_text", self))


def adjusted_interval(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the adjusted interval of a detected row, with both ends in [0, 1].

    A share below 0 or above 1 is impossible, so tables and charts show 0 or 1. The columns of
    `Estimates` are not clipped.
    """
    low, high = (min(max(row[f"ci_{end}_adjusted"], 0.0), 1.0) for end in ("low", "high"))
    return low, high


def _convert_to_integer(value: float) -> int | None:
    """Return a JSON integer, or None for a number that is not finite."""
    return int(value) if math.isfinite(value) else None


def number_or_none(value: float) -> float | None:
    """Return a JSON number, or None for a number that is not finite."""
    return float(value) if math.isfinite(value) else None
