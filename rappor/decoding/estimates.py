"""Estimates: a small table in which every number has its error."""

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

from rappor.base.display import Displayed, draw
from rappor.base.errors import DecodeError
from rappor.base.files import saved
from rappor.base.plurals import counted
from rappor.base.ranges import check_number, check_weights, shown
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.decoding.collection_summary import Collected
from rappor.decoding.contrasts import Contrast, Related, normal_reach
from rappor.decoding.diagnostics import Caution, cautions
from rappor.decoding.spreadsheet_csv import csv_text
from rappor.estimator.error_control import ErrorControl

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What the detected rows after the first `after` hold together, as a share of all reports.

    `rows` says how many they are. A group counts once, with the first of its rows.
    """

    after: int
    rows: int
    share: float
    std_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Estimates(Displayed):
    """What a decode found, one row a candidate.

    Strings are sorted by count, largest first; categories and buckets keep the order in
    which the parameters declare them. `rows` and everything that is made of it begin with the
    strings that the metric's entry lists.

    Attributes
    ----------
    candidates : c texts.
    share : (c,) float64. Shares of all reports, unclipped: noise makes some negative. Times
        `reports` it is the count, in reports, not in devices.
    std_error : (c,) float64. Standard error of the proportion, as a share; infinite where the
        counts say nothing about a candidate.
    ci_low, ci_high : (c,) float64. Two-sided interval at the confidence, for each candidate
        on its own.
    p_value : (c,) float64. One-sided: how often an absent candidate has such a score.
    detected : (c,) bool. At the error rate of `error_control`, over all c candidates.
    ci_low_adjusted, ci_high_adjusted : (c,) float64. For the detected, widened so that the
        detected ones together keep their confidence (Benjamini and Yekutieli 2005); NaN for
        the others.
    forged_to_make, forged_to_hide : (c,) float64. How many of the reports, if forged, would make
        a detected row of a string that nobody has; how many forged reports more would hide it.
        Infinite where no number hides it, NaN for rows that are not detected.
    posterior_share, share_std_error : (c,) float64 or None. The estimated distribution, if it was
    asked for, and its standard error: the root of the mean squared error, infinite where the counts
        say nothing about a candidate.
    group : (c,) int64. Candidates of the same number from 1 on are indistinguishable: each
        shows the total of its group; 0 for all others.
    n_candidates : candidates that were asked about. Of many only the best have rows.
    p_value_counts : (b,) int64. How many p-values of all candidates are in each bin of
        `rappor.estimator.p_values.EDGES`; candidates of one group count once.
    reports : number of reports behind the table.
    unallocated : share of reports that no detected candidate explains, unclipped; NaN for yes or
        no, whose share leaves nothing to explain.
    unallocated_std_error : its standard error.
    assumptions : one line on the devices behind the reports, on which all errors depend.
    remaining : what the detected rows after the first 10, 20, 50, 100 and 1000 hold together.
    diagnostics : findings about the counts, ready for JSON.
    collections : what the counts say of each parameter set.
    error_control : the argument of `decode`; its correction is the one that was applied, "bh" where
        "adaptive" had too few reports.
    covariance : how the rows belong together, for `contrast`.
    contrasts : what was asked of several rows at once; `with_contrasts` adds to it.
    listed : the strings that the metric's entry lists, as devices normalise them. Each has a row.
    """

    _drawn_as: ClassVar[str] = "estimates"

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
    remaining: tuple[Rest, ...]
    diagnostics: dict[str, Any]
    collections: tuple[Collected, ...]
    error_control: ErrorControl
    covariance: Related
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
        """What honest reports of these candidates would hardly give, and what few cannot."""
        known = all(each.repetition.source != "unknown" for each in self.collections)
        return tuple(cautions(self.diagnostics, self.reports, devices_known=known))

    @property
    def distinct(self) -> Booleans:
        """Which rows, (c,), are in no group or the first of theirs."""
        first = np.zeros(len(self), dtype=bool)
        first[np.unique(self.group, return_index=True)[1]] = True
        return np.asarray((self.group == 0) | first)

    @property
    def detected_candidates(self) -> list[str]:
        """The candidates that are detected, in the order of their rows."""
        return [self.candidates[i] for i in np.flatnonzero(self.detected)]

    @property
    def is_listed(self) -> Booleans:
        """Which rows, (c,), are of strings that the metric's entry lists."""
        return np.array([name in self.listed for name in self.candidates], dtype=bool)

    @property
    def not_listed(self) -> Contrast | None:
        """The share of reports of strings that the metric's entry does not list.

        The list was chosen before the counts were seen, so the sum of its estimates is unbiased. A
        string that cannot be distinguished from a listed one counts as listed. None where the entry
        has no list, or the counts say nothing about one of its strings.
        """
        if not self.listed:
            return None
        entries = np.unique(self.covariance.entry[self.is_listed])
        rows = np.flatnonzero(np.isin(self.covariance.entry, entries))
        if not np.isfinite(self.std_error[rows]).all():
            return None
        (value,), ((variance,),) = self.covariance.contrasts(rows, -np.ones((1, len(rows))))
        reach = normal_reach(self.error_control.confidence)
        return Contrast.around("not in the list", 1 + value, variance, reach)

    def order(self, *, detected_only: bool = False) -> Integers:
        """Return the numbers of the rows as people read them: listed strings first.

        With `detected_only` the others are those that are detected; listed strings stay.
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
        """Return a constant and the weighted sum of the shares of these candidates, with its error.

        Parameters
        ----------
        weights : by candidate. They must not have been chosen by their estimates: a sum of rows
            that came out high is too large.
        detected : the rows were chosen because they are detected. Their shares are posterior means
            then, which add up to what is true.

        Raises
        ------
        DecodeError
            A candidate has no row, the counts do not say it (`Related.contrasts`), or weights or
            constant are no finite numbers, or all weights are 0.
        """
        check_weights("weights", weights.values(), error=DecodeError)
        check_number("constant", constant, "[-1e100, 1e100]", error=DecodeError)
        values = np.array(list(weights.values()), dtype=float)
        rows = self.places(weights)
        if detected:
            value, variance = self.covariance.detected_contrast(rows, values)
        else:
            (value,), ((variance,),) = self.covariance.contrasts(rows, values[None])
        reach = normal_reach(self.error_control.confidence)
        return Contrast.around(name, constant + value, variance, reach, tested=True)

    def total(self, candidates: Iterable[str], *, name: str = "") -> Contrast:
        """Return the share of reports with one of these candidates, chosen in advance."""
        weights = dict.fromkeys(candidates, 1.0)
        if not weights:
            raise DecodeError("candidates must be at least 1, got 0")
        return self.contrast(weights, name=name)

    def total_like(self, pattern: str) -> Contrast:
        """Return the share of reports with a candidate in which a regular expression is found.

        Raises
        ------
        DecodeError
            No candidate is like that, only the best of a stream have rows, or it is no regular
            expression.
        """
        if self.n_candidates > len(self):
            raise DecodeError(
                f"{pattern!r} must be searched in all candidates, and only the best of "
                f"{self.n_candidates:,} have rows: give fewer candidates"
            )
        try:
            found = [each for each in self.candidates if re.search(pattern, each)]
        except re.error as error:
            raise DecodeError(f"{pattern!r} must be a regular expression: {error}") from None
        if not found:
            raise DecodeError(f"{pattern!r} must be found in a candidate, and is in none")
        return self.total(found, name=f"{pattern} ({counted(len(found), 'candidate')})")

    def difference(self, first: str, second: str) -> Contrast:
        """Return the share of one candidate less that of another, both chosen in advance."""
        if first == second:
            raise DecodeError(f"candidates must be two different ones, got {shown(first)} twice")
        return self.contrast({first: 1.0, second: -1.0}, name=f"{first} - {second}")

    def with_contrasts(self, contrasts: Iterable[Contrast]) -> Estimates:
        """Return these estimates with more contrasts to show."""
        return dataclasses.replace(self, contrasts=(*self.contrasts, *contrasts))

    def places(self, candidates: Iterable[str]) -> Integers:
        """Return the number of each candidate's row; DecodeError for one that has none."""
        rows = {name: number for number, name in enumerate(self.candidates)}
        asked = list(candidates)
        if unknown := [name for name in asked if name not in rows]:
            raise DecodeError(
                f"candidates must have rows, got {len(unknown):,} that have none, such as "
                f"{shown(unknown[0])}"
            )
        return np.array([rows[name] for name in asked], dtype=np.int64)

    def rows(self, *, detected_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, those of listed strings first.

        With `detected_only`, other strings must be detected; listed ones are always there.
        `count`, `std_error`, `forged_to_make` and `forged_to_hide` are in reports, all else is
        named as the columns above. A number that does not exist (an infinite error) is None.
        Detected rows have the adjusted interval and the breakdown numbers, rows of a group have
        `group`, and all have `posterior_share` and its error if it was asked for.
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
            row["ci_low_adjusted"] = number_or_none(self.ci_low_adjusted[i])
            row["ci_high_adjusted"] = number_or_none(self.ci_high_adjusted[i])
            row["forged_to_make"] = _whole(self.forged_to_make[i])
            row["forged_to_hide"] = _whole(self.forged_to_hide[i])
        if self.posterior_share is not None and self.posterior_share_std_error is not None:
            row["posterior_share"] = float(self.posterior_share[i])
            row["posterior_share_std_error"] = number_or_none(self.posterior_share_std_error[i])
        if self.group[i]:
            row["group"] = int(self.group[i])
        if self.listed:
            row["listed"] = self.candidates[i] in self.listed
        return row

    def to_dict(self, *, detected_only: bool = False) -> dict[str, Any]:
        """Return everything as the object that `rappor decode --json` prints."""
        return {
            "estimates": list(self.rows(detected_only=detected_only)),
            **({"candidates": self.n_candidates} if self.n_candidates > len(self) else {}),
            "reports": self.reports,
            "unallocated": number_or_none(self.unallocated),
            "unallocated_std_error": number_or_none(self.unallocated_std_error),
            **({} if self.not_listed is None else {"not_listed": self.not_listed.to_dict()}),
            **(
                {"contrasts": [each.to_dict() for each in self.contrasts]} if self.contrasts else {}
            ),
            "assumptions": self.assumptions,
            "warnings": [dataclasses.asdict(each) for each in self.warnings],
            "diagnostics": self.diagnostics,
        }

    def to_json(self, *, detected_only: bool = False) -> str:
        """Write `to_dict` as JSON, one object."""
        document = self.to_dict(detected_only=detected_only)
        return json.dumps(document, ensure_ascii=False, allow_nan=False)

    def to_csv(
        self, path: str | os.PathLike[str] | None = None, *, detected_only: bool = False
    ) -> str:
        """Return the rows as CSV with a header, and write them to `path` if there is one.

        A candidate that a spreadsheet would compute as a formula has an apostrophe before it.
        """
        return saved(csv_text(self._columns(), self.rows(detected_only=detected_only)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None, *, forged: bool = False) -> str:
        """Return the report as one HTML page, and write it to `path` if there is one.

        It needs no other file, no network and no script; README.md of `rappor.reporting` says
        what is on it. With `forged` the table says what forged reports could do.
        """
        return saved(str(draw("page", "estimates_page", self, forged=forged)), path)

    def _table(self) -> dict[str, Any]:
        everything = {
            "candidate": list(self.candidates),
            "count": self.share * self.reports,
            **{name: getattr(self, name) for name in self._columns()[3:] if name != "listed"},
            "listed": self.is_listed,
        }
        everything["std_error"] = self.std_error * self.reports
        return {name: everything[name] for name in self._columns()}

    def _columns(self) -> list[str]:
        asked = self.posterior_share is not None
        columns = [name for name in COLUMNS if asked or not name.startswith("posterior_share")]
        return [*columns, "listed"] if self.listed else columns

    def __str__(self) -> str:
        """Print the detected rows for people, as `rappor decode` does."""
        return str(draw("text", "estimates_text", self))


def adjusted_interval(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the interval of a detected row as people read it: no share is below 0.

    The columns of the table have it whole.
    """
    return max(row["ci_low_adjusted"], 0.0), max(row["ci_high_adjusted"], 0.0)


def _whole(value: float) -> int | None:
    """Return a JSON integer, or None for what is not one."""
    return int(value) if math.isfinite(value) else None


def number_or_none(value: float) -> float | None:
    """Return a JSON number, or None for what is not one."""
    return float(value) if math.isfinite(value) else None
