"""Segments of a device: a report contains them without noise, and an epoch keeps the first ones.

A segment is one value of each dimension, such as version 2. The registry lists the values of a
dimension. The fingerprint of the parameters in a report contains the segment. The clock of a
`Device` begins on 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import build_metric
from rappor_client.testing import Device
from registries import build_registry

from rappor.protocol.segments import Dimension

VERSIONS = (Dimension("version", ("1", "2")),)


def send_segment(device: Device, version: str | None, *, epoch: str) -> dict[str, str]:
    """Record a value, send it, and return the segment of the newest report."""
    metric = build_metric(epoch=epoch, segments=VERSIONS)
    segment = None if version is None else {"version": version}
    client = device.open(build_registry(metric), segment=segment or {})
    client.record("page", "example.org")
    device.clock.advance(days=1)
    client.flush()
    client.close()
    return dict(metric.accepted[device.transport.reports[-1].params].segment)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """A device without network and randomness."""
    with Device(tmp_path / "device") as opened:
        yield opened


@pytest.mark.parametrize(("version", "expected"), [("2", "2"), ("3", "other"), (None, "other")])
def test_report_contains_a_listed_value_or_other(
    device: Device, version: str | None, expected: str
) -> None:
    """A report contains a listed value, or "other", in a fingerprint that the collector accepts."""
    assert send_segment(device, version, epoch="life") == {"version": expected}


def test_epoch_keeps_its_first_segment(device: Device) -> None:
    """The segment of the first report stays until the quarter ends."""
    assert send_segment(device, "1", epoch="quarter") == {"version": "1"}
    assert send_segment(device, "2", epoch="quarter") == {"version": "1"}
    device.clock.advance(days=50)  # until January of the next quarter
    assert send_segment(device, "2", epoch="quarter") == {"version": "2"}


def test_metric_for_life_reports_the_present_segment(device: Device) -> None:
    """A metric for life reports the present segment at once, under the same permanent response."""
    assert send_segment(device, "1", epoch="life") == {"version": "1"}
    assert send_segment(device, "2", epoch="life") == {"version": "2"}


@pytest.mark.parametrize(
    "later",
    [
        (),
        (Dimension("version", ("2",)),),
        (Dimension("release", ("1", "2")),),
        (*VERSIONS, Dimension("country", ("de",))),
    ],
    ids=["removed", "value removed", "renamed", "another beside it"],
)
def test_segment_that_is_no_longer_listed_is_left_out(
    device: Device, later: tuple[Dimension, ...]
) -> None:
    """A segment that a later registry does not list is left out until the epoch ends.

    Every collector accepts a report without a segment.
    """
    before = build_metric(epoch="year", segments=VERSIONS)
    after = build_metric(epoch="year", segments=later)
    for metric in (before, before, after, after):
        client = device.open(build_registry(metric), segment={"version": "1", "country": "de"})
        client.record("page", "example.org")
        device.clock.advance(days=1)
        client.flush()
        client.record("page", "example.org")
        device.clock.advance(days=1)
        client.flush()
        client.close()
    # The first report is of the first registry, the last report of the changed registry.
    fingerprints = [report.params for report in device.transport.reports]
    assert dict(before.accepted[fingerprints[0]].segment) == {"version": "1"}
    assert fingerprints[-1] == after.params.fingerprint
    assert after.accepted[fingerprints[-1]].segment == ()
