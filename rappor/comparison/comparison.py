"""`Comparison`: samples by strings, with contrasts between the samples."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from rappor.base.display import Displayed, draw
from rappor.base.errors import DecodeError
from rappor.base.files import saved
from rappor.base.progress import Progress
from rappor.base.ranges import check_weights
from rappor.comparison.per_sample import Levels
from rappor.comparison.sample_contrasts import Asked, SampleContrast, conclude
from rappor.comparison.samples import Samples
from rappor.counts.arrays import Booleans, Integers
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import number_or_none
from rappor.decoding.spreadsheet_csv import csv_text
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params

FORMAT: Final = 1
"""Number of the JSON document's format."""

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

_SHARE: Final = ("std_error", "ci_low", "ci_high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample: its name, what it covers, and its reports.

    `devices` is the effective number of devices. Of a period `missing_days` have no reports; None
    where the counts do not keep days apart. On `withheld` of its days some reports wait at the
    collector. `segment` are the properties of its devices.
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
    def of(cls, name: str, merged: AddedCollections | None, **more: Any) -> Sample:
        """Describe collections, None without reports; `more` says what they cover."""
        counts = () if merged is None else merged.counts
        used = {each.params.fingerprint: each.params for each in counts}
        return cls(
            name=name,
            reports=sum(each.n_reports for each in counts),
            devices=0.0 if merged is None else merged.n_devices,
            params=tuple(params for _, params in sorted(used.items())),
            **more,
        )

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Those of its parameters."""
        return tuple(params.fingerprint for params in self.params)

    @property
    def label(self) -> str:
        """The values of its segment alone, else its name."""
        return ", ".join(self.segment.values()) or self.name

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON: days in ISO 8601, and null where nothing is known."""
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
class Comparison(Displayed):
    """Shares of c strings in t samples, and how samples differ.

    Attributes
    ----------
    by : what samples are: "sample", "day", "week", "month", "period" (of any length), "segment".
    samples : t of them in order, also periods without reports.
    candidates : c texts: those that changed by their largest change, then the others by their
        share of all reports; answers in their own order.
    group : (c,) int64. Candidates of the same number from 1 on are indistinguishable.
    per_sample : what each sample alone says, (t, c).
    window, smoothed : each sample together with the `window` - 1 before it; None if `window` is 1.
    detected_overall : (c,) bool. Whether all samples together or one of them shows the string.
    contrasts : what was asked about the samples. Those of the first one's kind are the question
        itself (`primary`), the others are beside it.
    device_correlation : what part of the devices' noise any two samples have in common, from 0 for
    other devices to 1 for the same ones; None where it is not known.
    assumptions : one line on the devices, on which all errors depend.
    warnings : where the answer is unsure, each with a code.
    error_control : how sure to be: the argument of the question.
    """

    _drawn_as: ClassVar[str] = "panel"

    metric: str
    by: str
    samples: tuple[Sample, ...]
    candidates: tuple[str, ...]
    group: Integers
    per_sample: Levels
    window: int = 1
    smoothed: Levels | None = None
    detected_overall: Booleans
    contrasts: tuple[SampleContrast, ...]
    device_correlation: float | None
    assumptions: str
    warnings: tuple[Caution, ...]
    error_control: ErrorControl
    _samples: Samples
    _order: Integers

    def __repr__(self) -> str:
        return (
            f"Panel({len(self.candidates)} candidates in {len(self.samples)} {self.by}s, "
            f"{self.reports} reports, {self.n_changed} changes)"
        )

    @property
    def reports(self) -> int:
        """Reports of all samples."""
        return sum(each.reports for each in self.samples)

    @property
    def missing(self) -> tuple[Sample, ...]:
        """Samples without reports."""
        return tuple(each for each in self.samples if not each.reports)

    @property
    def primary(self) -> tuple[SampleContrast, ...]:
        """The contrasts that answer the question."""
        return tuple(each for each in self.contrasts if each.kind == self.contrasts[0].kind)

    @property
    def n_changed(self) -> int:
        """Rows of the main contrasts that changed."""
        return sum(each.n_changed for each in self.primary)

    @property
    def changed(self) -> Booleans:
        """Return which candidates, (c,), changed in any main contrast."""
        none = np.zeros(len(self.candidates), dtype=bool)
        return np.asarray(np.any([none, *(each.changed for each in self.primary)], axis=0))

    @property
    def shown(self) -> Integers:
        """The rows that are shown unless all are: those that changed.

        Of periods and segments those that were found are shown too.
        """
        return np.flatnonzero(
            self.changed
            if self.by == "sample"
            else self.changed | self.detected_overall | (self._samples.candidates is None)
        )

    @property
    def params_changes(self) -> tuple[tuple[Sample, Sample], ...]:
        """Periods whose parameters are not those of the one before with reports, with that one."""
        known = [each for each in self.samples if each.reports and each.first]
        pairs = itertools.pairwise(known)
        return tuple((a, b) for a, b in pairs if a.fingerprints != b.fingerprints)

    def contrast(self, weights: Sequence[float], name: str = "contrast") -> SampleContrast:
        """Estimate a weighted sum of the samples' shares of every candidate.

        Each sample has one weight, 0 without reports. `changed` is decided over all candidates of
        this contrast. Raises DecodeError where weights are no finite numbers, do not sum to 0 or do
        not fit the samples.
        """
        check_weights("weights", weights, error=DecodeError)
        given = np.asarray(weights, dtype=float)
        # Bounds on noise are absolute, as that of a share: weights of 1e-9 would be below them.
        scale = float(np.abs(given).max())
        found = self._samples.changes(given / scale).scaled(scale)
        asked = Asked.of("own", name, given)
        back = np.argsort(self._order)
        shares, detected = self.per_sample.share[:, back], self.per_sample.detected[:, back]
        (one,) = conclude([(asked, found)], shares, detected, self.error_control)
        return one.ordered(self._order)

    def rows(self, *, include_all: bool = False) -> Iterator[dict[str, Any]]:
        """Yield shares and contrasts of each shown candidate as dictionaries, or of all candidates.

        `what` is "share", "smoothed" or the kind of a contrast, `name` that of the sample or the
        contrast. `estimate`, `before` and `after` are shares of all reports. A number that does not
        exist is None.
        """
        for i in range(len(self.candidates)) if include_all else self.shown.tolist():
            group = {"group": int(self.group[i])} if self.group[i] else {}
            for levels, what in ((self.per_sample, "share"), (self.smoothed, "smoothed")):
                for number in range(len(self.samples)) if levels is not None else ():
                    yield self.share_row(number, i, what) | group
            for contrast in self.contrasts:
                yield self.contrast_row(contrast, i) | group

    def share_row(self, number: int, i: int, what: str = "share") -> dict[str, Any]:
        """Return the row of the share of one candidate in one sample, alone or smoothed."""
        levels = self.per_sample if what == "share" else self.smoothed
        assert levels is not None
        found = [number_or_none(getattr(levels, name)[number, i]) for name in _SHARE]
        return {
            "candidate": self.candidates[i],
            "what": what,
            "name": self.samples[number].name,
            "estimate": number_or_none(levels.share[number, i]),
            **dict(zip(_SHARE, found, strict=True)),
            "detected": bool(levels.detected[number, i]),
        }

    def contrast_row(self, contrast: SampleContrast, i: int) -> dict[str, Any]:
        """Return the row of one candidate in one contrast."""
        names = {"candidate": self.candidates[i], "what": contrast.kind, "name": contrast.name}
        return names | contrast.row(i)

    def to_dict(self, *, include_all: bool = False) -> dict[str, Any]:
        """Return everything as the object that `rappor compare --json` and `trend --json` print."""
        left = zip(self.per_sample.unallocated, self.per_sample.unallocated_std_error, strict=True)
        return {
            "format": FORMAT,
            "metric": self.metric,
            "by": self.by,
            "samples": [
                each.to_dict()
                | {
                    "unallocated": number_or_none(share),
                    "unallocated_std_error": number_or_none(error),
                }
                for each, (share, error) in zip(self.samples, left, strict=True)
            ],
            "contrasts": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "weights": each.weights.tolist(),
                    "how": each.how,
                    "changed": each.n_changed,
                    "unchanged_p_value": each.unchanged_p_value,
                    "rows_p_value": each.rows_p_value,
                }
                for each in self.contrasts
            ],
            "rows": list(self.rows(include_all=include_all)),
            "candidates": len(self.candidates),
            "found": int(self.detected_overall.sum()),
            "window": self.window,
            "device_correlation": self.device_correlation,
            "assumptions": self.assumptions,
            "warnings": [dataclasses.asdict(each) for each in self.warnings],
        }

    def to_json(self, *, include_all: bool = False) -> str:
        """Write `to_dict` as JSON, one object."""
        return json.dumps(
            self.to_dict(include_all=include_all), ensure_ascii=False, allow_nan=False
        )

    def to_csv(
        self, path: str | os.PathLike[str] | None = None, *, include_all: bool = False
    ) -> str:
        """Return the rows as CSV with a header, and write them to `path` if there is one.

        Texts that a spreadsheet would compute as a formula have an apostrophe before them.
        """
        return saved(csv_text(COLUMNS, self.rows(include_all=include_all)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the panel as one HTML page, and write it to `path` if there is one.

        It needs no other file and no network.
        """
        return saved(str(draw("panel_page", "panel_page", self)), path)

    def _table(self) -> dict[str, Any]:
        rows = list(self.rows(include_all=True))
        return {name: [row.get(name) for row in rows] for name in COLUMNS}


def panel(
    decoded: Samples,
    described: Sequence[Sample],
    asked: Sequence[Asked],
    progress: Progress,
    **more: Any,
) -> Comparison:
    """Answer the contrasts that are asked for, and put everything in order."""
    apart = decoded.apart
    order = np.arange(len(apart.names))
    levels = apart.levels(order, apart.alone)
    pairs = [(each, decoded.changes(each.weights, progress)) for each in asked]
    contrasts: list[SampleContrast] = []
    for kind in dict.fromkeys(each.kind for each in asked):
        some = [pair for pair in pairs if pair[0].kind == kind]
        contrasts += conclude(some, levels.share, levels.detected, decoded.detection)
    if decoded.candidates is not None:
        order = _order(decoded, [each for each in contrasts if each.kind == contrasts[0].kind])
    names = [each.name for each in described]
    filled = [each.name for each, found in pairs if found.filled]
    return Comparison(
        samples=tuple(described),
        candidates=tuple(apart.names[i] for i in order),
        group=apart.whole.group[apart.whole.places(apart.names)][order],
        per_sample=apart.levels(order, apart.alone),
        detected_overall=apart.found[order],
        contrasts=tuple(each.ordered(order) for each in contrasts),
        device_correlation=decoded.overlap,
        warnings=(*decoded.cautions(names), *map(_filled, filled)),
        error_control=decoded.detection,
        _samples=decoded,
        _order=order,
        **more,
    )


def _order(decoded: Samples, main: Sequence[SampleContrast]) -> Integers:
    """Return candidates in the order of their changes, then of their shares of all reports."""
    by_share = decoded.apart.whole.places(decoded.apart.names)
    if not main:
        return np.argsort(by_share)
    sizes = [np.where(each.changed, np.abs(each.estimate), 0.0) for each in main]
    return np.lexsort((by_share, -np.max(sizes, axis=0)))


def _filled(name: str) -> Caution:
    return Caution(
        "many_changes",
        f"{name}: too many strings changed for this number of bits. Some may be missed, and "
        "intervals are too narrow. More cohorts would help.",
    )
