"""`Metric`: one question to all devices, with its parameters, rules, owner and last day.

Three calendars meet in a metric (all in UTC):

- The epoch: month, quarter, year or life. A device draws its permanent response anew in each epoch,
  and each epoch costs privacy loss again.
- The interval: day, week or epoch. A device sends at most one report in each interval.
- The last day, `expires`. Devices record nothing after it.

With `epoch = "quarter"` and `interval = "day"`, a device that has events on every day sends 92
reports in the fourth quarter, and all of them repeat one permanent response.

Interval and epoch are also written into the parameters, hence into the fingerprint. If a newer
registry has a longer interval, the reports of a device with the older registry have another
fingerprint, and the collector judges them by the older interval.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rappor.base.errors import MetricError, ParamsError
from rappor.base.ranges import check_choice, format_value
from rappor.protocol.encodings import get_encoder, get_encoding
from rappor.protocol.encodings.encoding import check_category_name
from rappor.protocol.normalizers import FIELD_SEPARATOR, normalize
from rappor.protocol.params import EPOCHS, INTERVALS, Params
from rappor.protocol.parts import Part, check_parts
from rappor.protocol.segments import (
    Dimension,
    check_dimensions,
    choose_segment,
    is_listed,
    list_segments,
)
from rappor.protocol.thresholds import compute_threshold
from rappor.protocol.tuples import list_normalizers
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.toml_file import metric_error

_EPOCH_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    "life": ("empty, for life", r""),
    "year": ("a year as 2026", r"[0-9]{4}"),
    "quarter": ("a quarter as 2026-Q4", r"[0-9]{4}-Q[1-4]"),
    "month": ("a month as 2026-11", r"[0-9]{4}-(0[1-9]|1[0-2])"),
}
"""Form of an epoch's name in words and as a regular expression, by the length of an epoch.
`Metric.check_epoch` compares a name with the regular expression, and has the words in its error
message."""

MIN_COHORT: Final = 10
"""Default number of reports of a cohort below which a collector releases no sum of the cohort. A
larger number hides a device among more devices and delays the release."""

MOST_LISTED: Final = 10_000
"""Largest number of candidates in an entry. Every device that reads the registry normalizes all of
them, which takes some tenths of a second at this number. Only decoders read a file of
candidates."""

_REMOVED_INTERVALS: Final[Mapping[str, str]] = {
    "hour": 'write interval = "day", the shortest interval',
    "none": 'write interval = "day", which reports one event of each day',
}
"""Advice for each interval that older registries have and that a metric must not have any more."""

_RETENTION: Final = re.compile(r"([1-9][0-9]{0,3}) (day|week|month|year)s?")
"""Pattern of a retention such as "90 days". Group 1 is the number, from 1 to 9999. Group 2 is the
unit without the s of a plural."""
_DAYS_OF_UNIT: Final[Mapping[str, int]] = {"day": 1, "week": 7, "month": 31, "year": 366}
"""A unit of a retention has at most this number of days."""
_LONGEST_EPOCH_DAYS: Final[Mapping[str, int]] = {"month": 31, "quarter": 92, "year": 366}
"""An epoch of this kind has at most this number of days. An epoch "life" never ends."""
_MIN_RETENTION_DAYS: Final = 14
"""Smallest retention, in days. A device retries an upload for 7 days, and the collector keeps the
deduplication keys of uploads for 14 days. A smaller value would delete a day whose reports still
arrive."""

_MAX_INTEGER: Final = 2**53 - 1
"""Largest integer that every reader of JSON and every database stores exactly."""


def name_epochs(day: datetime.date) -> dict[str, str]:
    """Return the names of the epochs that contain a day (UTC), by the length of an epoch.

    Examples
    --------
    >>> name_epochs(datetime.date(2026, 11, 29))["quarter"]
    '2026-Q4'
    """
    year = f"{day.year:04}"
    quarter, month = f"{year}-Q{(day.month + 2) // 3}", f"{year}-{day.month:02}"
    return {"life": "", "year": year, "quarter": quarter, "month": month}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One question to all devices: what is collected, by whom, until when, with how much noise.

    Parameters
    ----------
    name : name of the metric, a lower-case letter and then lower-case letters, digits, dots,
        hyphens and underscores, at most 64 characters.
    params : parameters of all reports. The metric writes its interval and its epoch into them,
        because both are part of the fingerprint.
    description : what is collected, a sentence for the people concerned.
    owner : person or team that is responsible.
    expires : last day of collection (UTC).
    epoch : time for which a device repeats one permanent response: "life", "year", "quarter" or
        "month".
    interval : time in which a device reports at most once: "day", "week", or "epoch" for one report
        in each epoch, on a day that the device's secret draws.
    parts : parts of a string, each reported by a share of the devices.
    sampling_rate : share of the devices that take part in an epoch. The secret of a device decides.
    segments : public properties that devices send without noise.
    candidates : strings to look for: a tuple, or the path of a file relative to the registry's
        file. For a metric with fields: a mapping from each field to a tuple or a path, of which all
        combinations are candidates, or the path of a file with tabs between the fields. Devices
        ignore candidates.
    ranked : whether the order of `candidates` says how likely they are, the most likely first. The
        order must not come from reports of this metric, of any epoch. The combinations of a table
        have no such order.
    min_reports : number of reports below which the collector releases no sum. With 0 the collector
        releases every sum at once.
    min_cohort : number of reports of a cohort below which the collector releases no sum of the
        cohort.
    retention : time for which the collector keeps counters and blocks, such as "2 years": a number
        of days, weeks, months or years, at least 14 days and at least an epoch. None keeps them as
        long as the metric exists.
    complete : whether every value is in one of the categories or buckets.
    durable : whether a device writes a report to its disk before `record` returns.

    Raises
    ------
    MetricError
        A field is outside its range, or two fields contradict each other. The message is one
        sentence with the name of the metric.
    MissingExtraError
        The normalizer needs a library that is not installed. Without this check, `record` of the
        metric would raise the error later.

    Examples
    --------
    >>> metric = Metric(
    ...     name="page", params=Params.profile("balanced"), description="Home page",
    ...     owner="web@example.org", expires=datetime.date(2030, 12, 31), epoch="quarter",
    ... )
    >>> metric.pace, metric.epoch_at(datetime.date(2026, 11, 29))
    ('day', '2026-Q4')
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
    candidates: str | tuple[str, ...] | Mapping[str, str | tuple[str, ...]] | None = None
    ranked: bool = False
    min_reports: int = 100
    min_cohort: int = MIN_COHORT
    retention: str | None = None
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
        self._check_calendar()
        # The parameters were checked when they were created. `insecure` suppresses a second check.
        params = dataclasses.replace(
            self.params, interval=self.interval, epoch=self.epoch, insecure=True
        )
        object.__setattr__(self, "params", params)
        try:
            self._check_parts()
            self._check_sampling_rate()
            self._check_segments()
            # Creating an encoder refuses parameters under which recording would fail, such as a
            # normalizer whose library is missing.
            get_encoder(self.params)
            self._check_candidates()
        except ParamsError as error:
            raise MetricError(f"metric {self.name!r}: {error}") from None
        self._check_whole("min_reports", self.min_reports, 0)
        self._check_whole("min_cohort", self.min_cohort, 1)
        self._check_retention()
        self._check_flag("durable", self.durable)
        self._check_complete()

    def __hash__(self) -> int:
        """Hash the name. The names of a registry are distinct, and hashing all fields is slow."""
        return hash(self.name)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the parameters. Every report of a metric without parts has it."""
        return self.params.fingerprint

    @property
    def retention_days(self) -> int | None:
        """Number of days of the retention, or None without one.

        A month counts as 31 days and a year as 366, so nothing is deleted too early.
        """
        match = _RETENTION.fullmatch(self.retention) if isinstance(self.retention, str) else None
        return None if match is None else int(match[1]) * _DAYS_OF_UNIT[match[2]]

    @property
    def part_sets(self) -> tuple[Params, ...]:
        """Parameters of each part. Without parts, the parameters of the metric."""
        return tuple(self.part_params(part.name) for part in self.parts) or (self.params,)

    @property
    def smallest_part(self) -> float:
        """Share of the devices that report the rarest part. Without parts, 1."""
        shares = [part.share for part in self.parts if part.share is not None]
        return min([*shares, 1 - math.fsum(shares)])

    @property
    def accepted(self) -> Mapping[str, Params]:
        """Parameters that reports may have, by fingerprint.

        The mapping contains the parameters of the metric or of each part, and all of them for every
        segment.
        """
        return _list_accepted_params(self.part_sets, self.segments)

    @property
    def n_segments(self) -> int:
        """Number of segments. Without dimensions, 1."""
        return math.prod(len(dimension.labels) for dimension in self.segments)

    def in_segment(self, properties: Mapping[str, str]) -> Metric:
        """Return the metric of a device with public properties: its parameters name one segment.

        Parameters
        ----------
        properties : the device's public properties, by the name of the dimension. A property that
            the metric does not list becomes "other".
        """
        if not self.segments:
            return self
        params = self.params.with_segment(choose_segment(self.segments, properties))
        return dataclasses.replace(self, params=params)

    def part_params(self, part: str) -> Params:
        """Return the parameters of a part. For an empty name, the parameters of the metric."""
        return _select_part(self.params, part) if part else self.params

    @property
    def listed(self) -> tuple[str, ...]:
        """Candidates in the entry. Empty if the entry has no candidates or names a file.

        Lists of the fields of a tuple give all combinations, joined by U+001F, up to 10,000. More
        combinations are candidates like those of a file, so the property is empty.
        """
        if isinstance(self.candidates, Mapping):
            return self._list_combinations(self.candidates)
        return self.candidates if isinstance(self.candidates, tuple) else ()

    def _list_combinations(self, table: Mapping[str, str | tuple[str, ...]]) -> tuple[str, ...]:
        """Return all combinations of the lists of fields.

        The result is empty if a field names a file, or if there are too many combinations.
        """
        lists = [table[field] for field in self.params.field_names]
        is_in_entry = all(isinstance(values, tuple) for values in lists)
        if not is_in_entry or math.prod(map(len, lists)) > MOST_LISTED:
            return ()
        return tuple(map(FIELD_SEPARATOR.join, itertools.product(*lists)))

    @property
    def pace(self) -> str:
        """Time in which a device reports at most once: the interval, or the epoch for "epoch"."""
        return self.params.pace

    def check_active(self, today: datetime.date) -> None:
        """Raise MetricError if the last day of collection is before `today` (UTC)."""
        if today > self.expires:
            raise MetricError(f"metric {self.name!r} expired on {self.expires}")

    def epoch_at(self, day: datetime.date) -> str:
        """Return the name of the epoch that contains a day (UTC). For life the name is empty."""
        return name_epochs(day)[self.epoch]

    def check_epoch(self, text: str) -> None:
        """Raise MetricError unless a text has the form of this metric's epochs."""
        form, pattern = _EPOCH_FORMS[self.epoch]
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            raise metric_error(self.name, "epoch", form, text)

    def _check_text(self, key: str, text: object) -> None:
        if not isinstance(text, str) or not text.strip():
            raise metric_error(self.name, key, "a non-empty text", text)

    def _check_calendar(self) -> None:
        """Check epoch and interval."""
        prefix = f"metric {self.name!r}"
        check_choice(f"{prefix}: epoch", self.epoch, EPOCHS, error=MetricError)
        if isinstance(self.interval, str) and self.interval in _REMOVED_INTERVALS:
            raise MetricError(
                f"{prefix}: interval must not be {self.interval!r}: "
                f"{_REMOVED_INTERVALS[self.interval]}"
            )
        check_choice(f"{prefix}: interval", self.interval, INTERVALS, error=MetricError)
        # Reports of one bucket have no noise of their own: a second report adds nothing but links
        # the two with certainty.
        if self.params.response.needs_interval_epoch and self.interval != "epoch":
            raise MetricError(
                f"{prefix}: keep needs interval = 'epoch', got interval = {self.interval!r}"
            )
        # One report in a whole life: no day could be drawn from an epoch without an end.
        if self.interval == "epoch" and self.epoch == "life":
            raise MetricError(
                f"{prefix}: interval = 'epoch' needs an epoch that ends, got epoch = {self.epoch!r}"
            )

    def _check_retention(self) -> None:
        """Check that the retention is a duration that is long enough."""
        if self.retention is None:
            return
        days = self.retention_days
        if days is None:
            raise metric_error(
                self.name, "retention", 'a duration such as "2 years" or "90 days"', self.retention
            )
        # A block of interval = "epoch" may grow until the end of its epoch. A shorter retention
        # would delete it before it is closed, and nothing of the metric would ever be released.
        least = max(_MIN_RETENTION_DAYS, _LONGEST_EPOCH_DAYS.get(self.epoch, 0))
        if days < least:
            raise metric_error(
                self.name,
                "retention",
                f"at least {least} days with epoch = {self.epoch!r}",
                self.retention,
            )

    def _check_candidates(self) -> None:
        """Check that candidates are strings that the metric can report."""
        self._check_flag("ranked", self.ranked)
        if self.candidates is None:
            if self.ranked:
                raise MetricError(
                    f"metric {self.name!r}: ranked must be false without candidates, whose order "
                    "it describes"
                )
            return
        if not get_encoding(self.params).is_hashed:
            raise MetricError(
                f"metric {self.name!r}: candidates must be absent for encoding "
                f"{self.params.encoding}, whose values are all known"
            )
        field_names = self.params.field_names
        if isinstance(self.candidates, Mapping) and self.ranked:
            raise MetricError(
                f"metric {self.name!r}: ranked must be false for a table of candidates, whose "
                "combinations have no order: name a file of combinations"
            )
        if isinstance(self.candidates, Mapping) and field_names:
            self._check_field_table(self.candidates)
        # A path is checked when the file is read: a device may not have the file.
        elif isinstance(self.candidates, tuple) and not field_names:
            self._check_listed("candidates", self.candidates, self.params.normalize)
        elif isinstance(self.candidates, Mapping | tuple):
            required = "a list or a file, because the metric has no fields"
            if field_names:
                required = "a table with a list or a file for each field, or a file"
            raise metric_error(self.name, "candidates", required, self.candidates)
        else:
            self._check_text("candidates", self.candidates)

    def _check_field_table(self, table: Mapping[str, object]) -> None:
        """Check that a table has a list or the path of a file for each field."""
        field_names = self.params.field_names
        if set(table) != set(field_names):
            required = f"a table with exactly the fields {', '.join(field_names)}"
            raise metric_error(self.name, "candidates", required, ", ".join(map(str, table)))
        normalizers = list_normalizers(self.params.normalize, len(field_names))
        for field, normalizer in zip(field_names, normalizers, strict=True):
            key, value = f"candidates of field {field}", table[field]
            if isinstance(value, tuple):
                self._check_listed(key, value, normalizer)
            else:
                self._check_text(key, value)

    def _check_listed(self, key: str, candidates: tuple[object, ...], normalizer: str) -> None:
        """Check the length of a list, and that normalized candidates are distinct and not empty.

        Parameters
        ----------
        key : name of the list in messages.
        """
        n = len(candidates)
        if n == 0:
            raise MetricError(
                f"metric {self.name!r}: {key} must list at least 1 string, got none: leave "
                "the key out if there is no list"
            )
        if n > MOST_LISTED:
            raise MetricError(
                f"metric {self.name!r}: {key} must list at most {MOST_LISTED:,} strings, got "
                f"{n:,}: write them into a file, one a line, and name the file"
            )
        normalized = set()
        for candidate in candidates:
            if not isinstance(candidate, str):
                raise metric_error(self.name, key, "a list of texts", candidate)
            check_category_name(candidate, key)
            text = normalize(normalizer, candidate)
            # Devices report an empty text for every value of which the normalizer leaves nothing,
            # so an empty candidate would count all these values.
            if not text:
                required = f"non-empty after normalising by {normalizer}"
                raise metric_error(self.name, key, required, candidate)
            # Two spellings of one value would be two rows of a result with one share.
            if text in normalized:
                required = f"distinct after normalising by {normalizer}"
                raise metric_error(self.name, key, required, candidate)
            normalized.add(text)

    def _check_flag(self, key: str, value: object) -> None:
        if not isinstance(value, bool):
            raise metric_error(self.name, key, "true or false", value)

    def _check_whole(self, key: str, value: object, least: int) -> None:
        """Raise MetricError unless a value is a whole number in [least, `_MAX_INTEGER`]."""
        # `type` instead of isinstance: True is an int to Python.
        if type(value) is not int or value < least:
            raise metric_error(self.name, key, f"an integer of at least {least}", value)
        if value > _MAX_INTEGER:
            raise metric_error(self.name, key, f"an integer of at most {_MAX_INTEGER}", value)

    def _check_sampling_rate(self) -> None:
        """Raise MetricError unless the sampling rate is a share that some devices have."""
        share = self.sampling_rate
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        # A share whose threshold is 0 would be below every coin: no device would take part.
        if not is_number or not 0 < share <= 1 or compute_threshold(share) == 0:
            raise metric_error(self.name, "sampling_rate", "a share of devices in (0, 1]", share)

    def _check_complete(self) -> None:
        """Raise MetricError if a complete metric has values outside its categories or buckets."""
        self._check_flag("complete", self.complete)
        encoding = get_encoding(self.params)
        if self.complete and (encoding.is_hashed or not encoding.is_exclusive):
            raise MetricError(
                f"metric {self.name!r}: complete must be false unless each value is in one of its "
                "categories or buckets"
            )

    def _check_segments(self) -> None:
        """Raise an error unless the dimensions are valid and contain the parameters' segment."""
        if not _is_tuple_of(self.segments, Dimension):
            raise metric_error(self.name, "segments", "a tuple of Dimension", self.segments)
        check_dimensions(self.segments)
        if self.segments and not is_listed(self.params.segment, self.segments):
            raise MetricError(f"metric {self.name!r}: params must name a segment of its segments")

    def _check_parts(self) -> None:
        """Raise an error unless the parts are valid and the encoding supports parts."""
        if not _is_tuple_of(self.parts, Part):
            raise metric_error(self.name, "parts", "a tuple of Part", self.parts)
        if not self.parts:
            return
        check_parts(self.parts)
        # Parameters of an encoding without parts raise here.
        self.part_params(self.parts[0].name)
        if self.params.part:
            raise MetricError(f"metric {self.name!r}: params must name no part beside parts")


@functools.lru_cache(maxsize=256)
def _select_part(params: Params, part: str) -> Params:
    """Return the parameters of a part. A device and a collector need them for each report."""
    # `Params` checks all its fields each time it is created.
    return dataclasses.replace(params, part=part, insecure=True)


@functools.lru_cache(maxsize=256)
def _list_accepted_params(
    part_sets: tuple[Params, ...], segments: tuple[Dimension, ...]
) -> Mapping[str, Params]:
    """Return the parameters that reports may have, by fingerprint.

    The result is cached, because a collector looks up the fingerprint of every report.
    """
    # With segments, devices with an older registry still report without a segment.
    sets = [params.without_segment for params in part_sets] if segments else list(part_sets)
    for segment in list_segments(segments):
        sets += [params.with_segment(segment) for params in part_sets]
    return MappingProxyType({params.fingerprint: params for params in sets})


def _is_tuple_of(value: object, kind: type) -> bool:
    """Return whether a value is a tuple of objects of one class. A list could not be hashed."""
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _is_date(value: object) -> bool:
    """Return whether a value is a date without a time of day.

    Python's datetime is a subclass of date, but comparing the two raises TypeError.
    """
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
