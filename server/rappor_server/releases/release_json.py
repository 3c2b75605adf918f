"""A release as JSON: the response of GET /v1/metrics/NAME/counts.

`rappor.Counts.load_all` and `rappor.counts.ReleasedCounts` read the same format:

    {"metric": "page", "from": "2026-11-01", "to": "2026-11-07", "reports": 1204,
     "collections": [{"fingerprint": ..., "params": {...}, "reports": [...], "ones": [[...], ...],
                      "devices": {"squares": 1310}, "from": ..., "to": ...}],
     "days": [{"day": "2026-11-03", "reports": 1204}], "withheld": ["2026-11-07"],
     "installations": {"metric": "page", ...}}

A collection contains the counts of one period under one parameter set. Without periods, the range
is the only period. A release consists of windows: groups of reports that are released together. A
window is dated by the last day of its blocks. Only the response of the metric that the registry
names in [installations] has the key `installations` (`rappor.counts.installations`).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

from rappor import Counts
from rappor.counts.installations import Installations
from rappor_server.releases.releases import DayReports, Release


class Devices(msgspec.Struct, frozen=True):
    """Upper bound on the repeated reports of devices, which standard errors need.

    Attributes
    ----------
    squares : largest possible value of the sum, over all devices, of the squared number of reports
        of the device
    """

    squares: int


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one period under one parameter set.

    Attributes
    ----------
    reports : (m,) number of reports of each cohort
    ones : (m, k) sums of bits
    devices : bound on the sum of the squared numbers of reports of the devices
    first, last : first and last day of the period. The keys are from and to
    """

    fingerprint: str
    params: msgspec.Raw
    reports: list[int]
    ones: list[list[int]]
    devices: Devices
    first: datetime.date = msgspec.field(name="from")
    last: datetime.date = msgspec.field(name="to")


class CountsResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole JSON object.

    Attributes
    ----------
    first, last : first and last day of the requested range. The keys are from and to
    reports : number of reports of all collections
    days : number of reports by the date of their window
    withheld : days with reports of the metric that are in no window yet
    installations : number of devices that reported. Absent for all metrics except the metric that
        the registry names in [installations]
    """

    metric: str
    first: datetime.date = msgspec.field(name="from")
    last: datetime.date = msgspec.field(name="to")
    reports: int
    collections: tuple[Collection, ...]
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    installations: dict[str, Any] | None = None


def write_release(release: Release, installations: Installations | None = None) -> bytes:
    """Return the JSON of one release, and of the number of devices that reported."""
    return write_releases(
        release.metric, [release], release.first, release.last, installations=installations
    )


def write_releases(
    metric: str,
    releases: Sequence[Release],
    first: datetime.date,
    last: datetime.date,
    *,
    installations: Installations | None = None,
) -> bytes:
    """Return the JSON of the releases of all periods of a range."""
    document = CountsResponse(
        metric=metric,
        first=first,
        last=last,
        reports=sum(release.n_reports for release in releases),
        collections=tuple(
            _make_collection(release, counts)
            for release in releases
            for counts in release.collections
        ),
        days=tuple(day for release in releases for day in release.days),
        withheld=tuple(day for release in releases for day in release.withheld),
        installations=None if installations is None else installations.to_dict(),
    )
    return msgspec.json.encode(document)


def _make_collection(release: Release, counts: Counts) -> Collection:
    """Return the collection of the counts of a release under one parameter set."""
    squares = counts.sum_squared_reports
    # Every release computes the bound from the intervals of its parameters, in each of which a
    # device reports at most once (`make_counts` in releases.py).
    assert squares is not None
    return Collection(
        fingerprint=counts.params.fingerprint,
        params=msgspec.Raw(counts.params.to_json().encode()),
        reports=counts.cohort_reports.tolist(),
        ones=counts.bit_counts.tolist(),
        devices=Devices(squares),
        first=release.first,
        last=release.last,
    )
