"""Estimates: the table of a decode, with a standard error for every number."""

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

from rappor.base.atomic_files import save_text
from rappor.base.display import DisplayedRecord, call_renderer
from rappor.base.errors import DecodeError
from rappor.base.ranges import check_number, check_weights, format_value
from rappor.base.sentence_numbers import format_count
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.decoding.collection_summary import CollectionSummary
from rappor.decoding.contrasts import Contrast, RowCovariance, compute_critical_value
from rappor.decoding.diagnostics import Caution, list_cautions
from rappor.decoding.spreadsheet_csv import csv_text
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
    "detected",
    "ci_low_adjusted",
    "ci_high_adjusted",
    "forged_to_make",
    "forged_to_hide",
    "posterior_share",
    "posterior_share_std_error",
    "group",
)
"""Columns of the table, in the order of the CSV file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingShare:
    """Share of all detected rows after the first `after` rows together.

    Attributes
    ----------
    after : number of rows at the top.
    rows : number of detected rows after them.
    share : share of all reports. An identifiability group counts once, at the first of its rows.
    std_error : standard error of the share.
    """

    after: int
    rows: int
    share: float
    std_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Estimates(DisplayedRecord):
    """The result of a decode, with one row for each candidate.

    Strings are sorted by count, largest first. Categories and buckets keep the order of
    their declaration. `rows`, and everything that is made of it, begins with the strings that the
    metric's entry lists.

    Attributes
    ----------
    candidates : c texts.
    share : (c,) float64. Shares of all reports, unclipped: noise makes some negative. The share
        times `reports` is the count, in reports, not in devices.
    std_error : (c,) float64. Standard error of the share. Infinite if the counts contain no
        information about the candidate.
    ci_low, ci_high : (c,) float64. Two-sided interval at the confidence, for each candidate alone.
    p_value : (c,) float64. One-sided: probability that an absent candidate has at least this score.
    detected : (c,) bool. True at the error rate of `error_control`, over all c candidates.
    ci_low_adjusted, ci_high_adjusted : (c,) float64. Intervals of detected rows, widened so that
        all of them together keep their confidence (Benjamini and Yekutieli 2005). NaN for other
        rows.
    forged_to_make, forged_to_hide : (c,) float64. Number of the reports that, if forged, would
        create a detected row for an absent string, and number of additional forged reports that
        would hide the row. Infinite if no number hides the row, NaN for rows that are not detected.
    posterior_share, posterior_share_std_error : (c,) float64 or None. The estimated distribution,
        if it was requested, and the root of its mean squared error. Infinite if the counts contain
        no information about the candidate.
    group : (c,) int64. Candidates with the same number, starting at 1, cannot be distinguished:
        each row shows the total of its group. 0 for all other candidates.
    n_candidates : number of all candidates. Of a stream only the best have rows.
    p_value_counts : (b,) int64. Number of p-values of all candidates in each bin of
        `rappor.estimator.p_values.EDGES`. Candidates of one group count once.
    reports : number of reports.
    unallocated : share of the reports that no detected candidate explains, unclipped. NaN if the
        encoding is `boolean` or `set`, whose shares do not add up to 1.
    unallocated_std_error : its standard error.
    assumptions : one line about the devices behind the reports, on which all errors depend.
    remaining : shares of the detected rows after the first 10, 20, 50, 100 and 1000 rows together.
    diagnostics : findings about the counts, ready for JSON.
    collections : summary of each parameter set.
    error_control : the argument of `decode`. Its method is the one that was applied: "bh" if
        "adaptive" had too few reports.
    covariance : joint distribution of the rows, for `contrast`.
    contrasts : contrasts of several rows. `with_contrasts` adds to them.
    listed : strings that the metric's entry lists, normalised as on the devices. Each has a row.
    """

    _renderer: ClassVar[str] = "estimates"

    candidates: tuple[str, ...]
    share: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    p_value: Floats
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
        known = all(summary.repetition.source != "unknown" for summary in self.collections)
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
                devices_known=known,
                uneven_devices=n_devices if has_squares else math.inf,
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
        reach = compute_critical_value(self.error_control.confidence)
        return Contrast.from_variance("not in the list", 1 - total[0], total[1], reach)

    @property
    def has_sets(self) -> bool:
        """Whether a device may have several candidates: the reports are of sets."""
        return get_encoding(self.collections[0].params).supports_items

    @property
    def mean_listed_items(self) -> Contrast | None:
        """Mean number of listed items in the set of a device: the sum of their shares.

        None for other encodings than sets, and otherwise as `not_listed`.
        """
        if (total := self._sum_listed()) is None or not self.has_sets:
            return None
        reach = compute_critical_value(self.error_control.confidence)
        return Contrast.from_variance("listed items of a device", *total, reach)

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

        `detected_only` omits rows that are neither listed nor detected.
        """
        listed = self.is_listed
        others = ~listed & self.detected if detected_only else ~listed
        return np.concatenate([np.flatnonzero(listed), np.flatnonzero(others)])

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
        constant : number that is added.
        name : description of the contrast.
        detected : True if the rows were chosen because they are detected. The sum then uses
            posterior means, whose sum is not too large.

        Raises
        ------
        DecodeError
            A candidate has no row, the counts do not determine the contrast
            (`RowCovariance.contrasts`), weights or constant are not finite, or all weights are 0.
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
        reach = compute_critical_value(self.error_control.confidence)
        return Contrast.from_variance(name, constant + value, variance, reach, tested=True)

    def total(self, candidates: Iterable[str], *, name: str = "") -> Contrast:
        """Compute the share of the reports with one of some candidates.

        The candidates must have been chosen before their estimates were seen.

        Parameters
        ----------
        candidates : texts with a row.
        name : description of the contrast.
        """
        weights = dict.fromkeys(candidates, 1.0)
        if not weights:
            raise DecodeError("candidates must be at least 1, got 0")
        return self.contrast(weights, name=name)

    def total_like(self, pattern: str) -> Contrast:
        """Compute the share of the reports with a candidate that matches a regular expression.

        The expression may match anywhere in the candidate.

        Parameters
        ----------
        pattern : a regular expression of Python.

        Raises
        ------
        DecodeError
            No candidate matches, only the best candidates of a stream have rows, or `pattern` is
            not a regular expression.
        """
        # The other candidates of a stream have no row. A total without them would be too small
        # without an error.
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
            raise DecodeError(f"{pattern!r} must be found in a candidate, and is in none")
        return self.total(matches, name=f"{pattern} ({format_count(len(matches), 'candidate')})")

    def difference(self, first: str, second: str) -> Contrast:
        """Compute the share of one candidate minus the share of another, both chosen in advance."""
        if first == second:
            raise DecodeError(
                f"candidates must be two different ones, got {format_value(first)} twice"
            )
        return self.contrast({first: 1.0, second: -1.0}, name=f"{first} - {second}")

    def with_contrasts(self, contrasts: Iterable[Contrast]) -> Estimates:
        """Return a copy with further contrasts."""
        return dataclasses.replace(self, contrasts=(*self.contrasts, *contrasts))

    def indices_of(self, candidates: Iterable[str]) -> Integers:
        """Return the row index of each candidate.

        Raises DecodeError for a candidate without a row.
        """
        rows = {name: number for number, name in enumerate(self.candidates)}
        requested = list(candidates)
        # A missing row must not count as a share of 0: the string may be frequent but without a
        # row.
        if unknown := [name for name in requested if name not in rows]:
            raise DecodeError(
                f"candidates must have rows, got {len(unknown):,} without a row, such as "
                f"{format_value(unknown[0])}"
            )
        return np.array([rows[name] for name in requested], dtype=np.int64)

    def rows(self, *, detected_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, listed strings first.

        `detected_only` omits rows that are neither listed nor detected. The values of `count`,
        `std_error`, `forged_to_make` and `forged_to_hide` are in reports. A number that does not
        exist, such as an infinite error, is None. Only detected rows have the adjusted interval and
        the breakdown numbers, and only rows of a group have `group`. All rows have
        `posterior_share` and its error if they were requested.
        """
        for i in self.order(detected_only=detected_only).tolist():
            yield self.row(i)

    def row(self, i: int) -> dict[str, Any]:
        """Return one row, as `rows` yields it."""
        row: dict[str, Any] = {
            "candidate": self.candidates[i],
            "count": number_or_none(self.share[i] * self.reports),
            "std_error": number_or_none(self.std_error[i] * self.reports),
            "share": number_or_none(self.share[i]),
            "ci_low": number_or_none(self.ci_low[i]),
            "ci_high": number_or_none(self.ci_high[i]),
            "p_value": float(self.p_value[i]),
            "detected": bool(self.detected[i]),
        }
        if self.detected[i]:
            # Adjusted intervals and breakdown numbers of other rows are NaN, which JSON cannot
            # contain.
            row["ci_low_adjusted"] = number_or_none(self.ci_low_adjusted[i])
            row["ci_high_adjusted"] = number_or_none(self.ci_high_adjusted[i])
            row["forged_to_make"] = _integer_or_none(self.forged_to_make[i])
            row["forged_to_hide"] = _integer_or_none(self.forged_to_hide[i])
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

        A candidate that a spreadsheet would compute as a formula gets an apostrophe in front.
        """
        return save_text(csv_text(self._columns(), self.rows(detected_only=detected_only)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None, *, forged: bool = False) -> str:
        """Return the report as one HTML page, and write it to `path` if it is not None.

        The page needs no other file, no network and no script. README.md of `rappor.reporting`
        describes the page. `forged` adds the breakdown numbers of each row.
        """
        return save_text(str(call_renderer("page", "estimates_page", self, forged=forged)), path)

    def _table(self) -> dict[str, Any]:
        """Return the columns by name, for data frames."""
        columns = {
            "candidate": list(self.candidates),
            "count": self.share * self.reports,
            **{name: getattr(self, name) for name in self._columns()[3:] if name != "listed"},
            "listed": self.is_listed,
        }
        # The table shows counts, so the standard error is in reports, too.
        columns["std_error"] = self.std_error * self.reports
        return {name: columns[name] for name in self._columns()}

    def _columns(self) -> list[str]:
        """Return the names of the columns that this table has."""
        has_posterior = self.posterior_share is not None
        columns = [
            name for name in COLUMNS if has_posterior or not name.startswith("posterior_share")
        ]
        return [*columns, "listed"] if self.listed else columns

    def __str__(self) -> str:
        """Return the detected rows as text, like `rappor decode`."""
        return str(call_renderer("text", "estimates_text", self))


def adjusted_interval(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the adjusted interval of a detected row, with both ends at least 0.

    A share below 0 is impossible, so tables and charts show 0. The columns of `Estimates` are not
    clipped.
    """
    return max(row["ci_low_adjusted"], 0.0), max(row["ci_high_adjusted"], 0.0)


def _integer_or_none(value: float) -> int | None:
    """Return a JSON integer, or None for a number that is not finite."""
    return int(value) if math.isfinite(value) else None


def number_or_none(value: float) -> float | None:
    """Return a JSON number, or None for a number that is not finite."""
    return float(value) if math.isfinite(value) else None
