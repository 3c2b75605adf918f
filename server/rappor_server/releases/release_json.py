"""A release as JSON: the answer of the counts endpoint."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from rappor import Counts
from rappor_server.releases.releases import DayReports, Release


class Devices(msgspec.Struct, frozen=True):
    """The most that the devices' squared reports can sum to."""

    squares: int


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of some days under one parameter set: reports (m) and ones (m, k) as lists."""

    fingerprint: str
    params: msgspec.Raw
    reports: list[int]
    ones: list[list[int]]
    devices: Devices
    first: datetime.date = msgspec.field(name="from")
    last: datetime.date = msgspec.field(name="to")


class CountsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object of a release."""

    metric: str
    first: datetime.date = msgspec.field(name="from")
    last: datetime.date = msgspec.field(name="to")
    reports: int
    collections: tuple[Collection, ...]
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]


def write_release(release: Release) -> bytes:
    """Write a release; `Counts.load` reads it too where it has one parameter set."""
    return write_releases(release.metric, [release], release.first, release.last)


def write_releases(
    metric: str, releases: Sequence[Release], first: datetime.date, last: datetime.date
) -> bytes:
    """Write what is released of the stretches of a range as one document."""
    document = CountsAnswer(
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
    )
    return msgspec.json.encode(document)


def _make_collection(release: Release, counts: Counts) -> Collection:
    """Return the JSON object of the counts under one parameter set."""
    squares = counts.sum_squared_reports
    assert squares is not None  # every interval limits the reports of a device
    return Collection(
        fingerprint=counts.params.fingerprint,
        params=msgspec.Raw(counts.params.to_json().encode()),
        reports=counts.cohort_reports.tolist(),
        ones=counts.bit_counts.tolist(),
        devices=Devices(squares),
        first=release.first,
        last=release.last,
    )
