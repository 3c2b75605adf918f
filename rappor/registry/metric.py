"""Metric: one thing that is collected, by whom, until when and under which parameters."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rappor.base.errors import MetricError, ParamsError
from rappor.base.ranges import check_choice, format_value
from rappor.protocol.encodings import encoder, encoding_of
from rappor.protocol.encodings.encoding import check_name
from rappor.protocol.normalizers import normalize
from rappor.protocol.params import EPOCHS, INTERVALS, Params, threshold
from rappor.protocol.parts import Part, check_parts
from rappor.protocol.segments import (
    Dimension,
    check_dimensions,
    choose_segment,
    is_listed,
    segments_of,
)
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.toml_file import metric_error

_EPOCH_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    "life": ("empty, for life", r""),
    "year": ("a year as 2026", r"[0-9]{4}"),
    "quarter": ("a quarter as 2026-Q4", r"[0-9]{4}-Q[1-4]"),
    "month": ("a month as 2026-11", r"[0-9]{4}-(0[1-9]|1[0-2])"),
}
MIN_COHORT: Final = 10
"""Reports of a cohort below which a collector shows no sum of it, unless a metric says so."""
MOST_LISTED: Final = 10_000
"""Candidates that an entry lists at most. Every device that reads the registry normalises all of
them, which takes some tenths of a second at this number. A file is read only where reports are
decoded."""
_REMOVED_INTERVALS: Final[Mapping[str, str]] = {
    "hour": 'write interval = "day", the shortest interval',
}
"""The replacement of each interval that a metric must not have any more."""

_LARGEST: Final = 2**53 - 1
"""The largest integer that every reader of JSON and every database takes exactly."""


def name_epochs(day: datetime.date) -> dict[str, str]:
    """Return the names of the epochs that a day (UTC) belongs to, by their lengths."""
    year = f"{day.year:04}"
    quarter, month = f"{year}-Q{(day.month + 2) // 3}", f"{year}-{day.month:02}"
    return {"life": "", "year": year, "quarter": quarter, "month": month}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One thing that is collected.

    `params` are the parameters of all its reports. The metric adds its interval and its epoch to
    them, because both are part of the fingerprint. `expires` is the last day of collection. `epoch`
    is how long one permanent response lasts: "life", "year", "quarter" or "month". `interval` is
    the time in which a device reports at most once: "day" or "week", or "none" for a report of
    every event; "epoch" is one report in each epoch, of a day that the device's secret draws.
    `parts` divide a string metric's devices.
    `sampling_rate` is the share of devices that take part in an epoch, each by its own secret.
    `segments` are the public properties that devices tell in the clear. `candidates` are the
    strings to look for: a list, or the path of a file, relative to the registry's file. Devices
    ignore them. The collector shows nothing below `min_reports`, and no sum of fewer than
    `min_cohort` reports of a cohort; without a `min_reports` it shows everything.
    `complete` says that every value is in one of the categories or buckets.
    A device records a `durable` metric on its disk before the program goes on.

    Raises MetricError, one sentence, for whatever is not as it should be, and MissingExtraError
    where the normalizer needs what is not installed: a metric that exists can be recorded.
    """

    name: str
    params: Params
    description: str
    owner: str
    expires: datetime.date
    epoch: str
    interval: str = "day"
    parts: tuple[Part, ...] = ()
    sampling_rate: float = 1.0
    segments: tuple[Dimension, ...] = ()
    candidates: str | tuple[str, ...] | None = None
    min_reports: int = 100
    min_cohort: int = MIN_COHORT
    complete: bool = False
    durable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not METRIC_NAME.fullmatch(self.name):
            raise MetricError(
                f"a metric's name must match {METRIC_NAME.pattern}, got {format_value(self.name)}"
            )
        if not isinstance(self.params, Params):
            raise metric_error(self.name, "params", "Params", self.params)
        self._check_text("description", self.description)
        self._check_text("owner", self.owner)
        if not _is_date(self.expires):
            raise metric_error(self.name, "expires", "a date as 2026-11-30", self.expires)
        this = f"metric {self.name!r}"
        check_choice(f"{this}: epoch", self.epoch, EPOCHS, error=MetricError)
        if isinstance(self.interval, str) and self.interval in _REMOVED_INTERVALS:
            raise MetricError(
                f"{this}: interval must not be {self.interval!r}: "
                f"{_REMOVED_INTERVALS[self.interval]}"
            )
        check_choice(f"{this}: interval", self.interval, INTERVALS, error=MetricError)
        self._check_once()
        own = dataclasses.replace(
            self.params, interval=self.interval, epoch=self.epoch, insecure=True
        )
        object.__setattr__(self, "params", own)
        try:
            self._check_parts()
            self._check_sample()
            self._check_segments()
            encoder(self.params)  # it refuses parameters under which recording would fail
            self._check_candidates()
        except ParamsError as error:
            raise MetricError(f"{this}: {error}") from None
        self._check_whole("min_reports", self.min_reports, 0)
        self._check_whole("min_cohort", self.min_cohort, 1)
        self._check_flag("durable", self.durable)
        self._check_complete()

    def __hash__(self) -> int:
        """Hash the name, in which the metrics of a registry differ."""
        return hash(self.name)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the parameters, which every report of a metric without parts has."""
        return self.params.fingerprint

    @property
    def part_sets(self) -> tuple[Params, ...]:
        """The parameters of each part; those of the metric itself where it has none."""
        return tuple(self.part_params(part.name) for part in self.parts) or (self.params,)

    @property
    def smallest_part(self) -> float:
        """The share of devices that report the rarest part; 1 without parts."""
        shares = [part.share for part in self.parts if part.share is not None]
        return min([*shares, 1 - math.fsum(shares)])

    @property
    def accepted(self) -> Mapping[str, Params]:
        """The parameters that reports may carry, by fingerprint.

        One set, or one for each part, and each of them for every segment too.
        """
        return _accepted(self.part_sets, self.segments)

    @property
    def n_segments(self) -> int:
        """How many segments devices may tell, 1 where they tell none."""
        return math.prod(len(each.labels) for each in self.segments)

    def in_segment(self, own: Mapping[str, str]) -> Metric:
        """Return the metric of a device with these public properties: it tells one segment."""
        if not self.segments:
            return self
        params = self.params.in_segment(choose_segment(self.segments, own))
        return dataclasses.replace(self, params=params)

    def part_params(self, part: str) -> Params:
        """Return the parameters of one part; those of the metric itself for an empty name."""
        return dataclasses.replace(self.params, part=part, insecure=True) if part else self.params

    @property
    def listed(self) -> tuple[str, ...]:
        """The candidates that stand in the entry; empty where it names a file, or none."""
        return self.candidates if isinstance(self.candidates, tuple) else ()

    @property
    def pace(self) -> str:
        """The time in which a device reports at most once: an interval, or a whole epoch."""
        return self.params.pace

    def check_active(self, today: datetime.date) -> None:
        """Raise MetricError once the last day of collection is over."""
        if today > self.expires:
            raise MetricError(f"metric {self.name!r} expired on {self.expires}")

    def epoch_at(self, day: datetime.date) -> str:
        """Return the epoch that a day (UTC) belongs to; empty for life."""
        return name_epochs(day)[self.epoch]

    def check_epoch(self, text: str) -> None:
        """Raise MetricError unless the text is written as this metric's epochs are."""
        form, pattern = _EPOCH_FORMS[self.epoch]
        if not re.fullmatch(pattern, text):
            raise metric_error(self.name, "epoch", form, text)

    def _check_text(self, key: str, text: object) -> None:
        if not isinstance(text, str) or not text.strip():
            raise metric_error(self.name, key, "a non-empty text", text)

    def _check_candidates(self) -> None:
        """Refuse candidates that no string of the metric can be, and equal ones."""
        if self.candidates is None:
            return
        if not encoding_of(self.params).hashed:
            raise MetricError(
                f"metric {self.name!r}: candidates must be absent for encoding "
                f"{self.params.encoding}, whose values are all known"
            )
        if not isinstance(self.candidates, tuple):
            self._check_text("candidates", self.candidates)
        else:
            self._check_listed(self.candidates)

    def _check_listed(self, candidates: tuple[object, ...]) -> None:
        """Refuse an empty or long list, and strings that normalising makes equal or empty."""
        n, normalizer = len(candidates), self.params.normalize
        if n == 0:
            raise MetricError(
                f"metric {self.name!r}: candidates must list at least 1 string, got none: leave "
                "the key out if there is no list"
            )
        if n > MOST_LISTED:
            raise MetricError(
                f"metric {self.name!r}: candidates must list at most {MOST_LISTED:,} strings, got "
                f"{n:,}: write them into a file, one a line, and name the file"
            )
        normalized = set()
        for candidate in candidates:
            if not isinstance(candidate, str):
                raise metric_error(self.name, "candidates", "a list of texts", candidate)
            check_name(candidate, "candidates")
            text = normalize(normalizer, candidate)
            # Two spellings of one value would be one row of the result. An empty text is what
            # devices report of every value of which the normalizer leaves nothing.
            if not text:
                required = f"non-empty after normalising by {normalizer}"
                raise metric_error(self.name, "candidates", required, candidate)
            if text in normalized:
                required = f"distinct after normalising by {normalizer}"
                raise metric_error(self.name, "candidates", required, candidate)
            normalized.add(text)

    def _check_flag(self, key: str, value: object) -> None:
        if not isinstance(value, bool):
            raise metric_error(self.name, key, "true or false", value)

    def _check_whole(self, key: str, value: object, least: int) -> None:
        if type(value) is not int or value < least:
            raise metric_error(self.name, key, f"an integer of at least {least}", value)
        if value > _LARGEST:
            raise metric_error(self.name, key, f"an integer of at most {_LARGEST}", value)

    def _check_once(self) -> None:
        if self.interval == "epoch" and self.epoch == "life":
            raise MetricError(
                f"metric {self.name!r}: interval = 'epoch' needs an epoch that ends, got epoch = "
                f"{self.epoch!r}"
            )

    def _check_sample(self) -> None:
        """Refuse a share that no device, or none that can be told, falls into."""
        share = self.sampling_rate
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 < share <= 1 or threshold(share) == 0:
            raise metric_error(self.name, "sampling_rate", "a share of devices in (0, 1]", share)

    def _check_complete(self) -> None:
        self._check_flag("complete", self.complete)
        encoding = encoding_of(self.params)
        if self.complete and (encoding.hashed or not encoding.exclusive):
            raise MetricError(
                f"metric {self.name!r}: complete must be false unless each value is in one of its "
                "categories or buckets"
            )

    def _check_segments(self) -> None:
        check_dimensions(self.segments)
        if self.segments and not is_listed(self.params.segment, self.segments):
            raise MetricError(f"metric {self.name!r}: params must name a segment of its segments")

    def _check_parts(self) -> None:
        if not self.parts:
            return
        check_parts(self.parts)
        self.part_params(self.parts[0].name)
        if self.params.part:
            raise MetricError(f"metric {self.name!r}: params must name no part beside parts")


@functools.lru_cache(maxsize=256)
def _accepted(
    part_sets: tuple[Params, ...], segments: tuple[Dimension, ...]
) -> Mapping[str, Params]:
    """Return what `Metric.accepted` does; whoever reads uploads asks for each report."""
    sets = [params.unsegmented for params in part_sets] if segments else list(part_sets)
    for segment in segments_of(segments):
        sets += [params.in_segment(segment) for params in part_sets]
    return MappingProxyType({params.fingerprint: params for params in sets})


def _is_date(value: object) -> bool:
    """Return whether this is a date and no moment, which is a date to Python."""
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
