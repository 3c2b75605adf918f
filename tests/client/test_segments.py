"""The device tells its segment in the clear: by the fingerprint, and once in an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import metric_of
from rappor_client.testing import Device
from registries import registry_of

from rappor.protocol.segments import Dimension

VERSIONS = (Dimension("version", ("1", "2")),)


def told(device: Device, version: str | None, *, epoch: str) -> dict[str, str]:
    """Record a value, send it, and return the segment that the newest report tells."""
    metric = metric_of(epoch=epoch, segments=VERSIONS)
    segment = None if version is None else {"version": version}
    client = device.open(registry_of(metric), segment=segment or {})
    client.record("page", "example.org")
    device.clock.advance(days=1)
    client.flush()
    client.close()
    return dict(metric.accepted[device.transport.reports[-1].params].segment)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with Device(tmp_path / "device") as found:
        yield found


@pytest.mark.parametrize(("version", "expected"), [("2", "2"), ("3", "other"), (None, "other")])
def test_a_report_tells_a_listed_value_or_other(
    device: Device, version: str | None, expected: str
) -> None:
    """In the fingerprint, which the collector accepts."""
    assert told(device, version, epoch="life") == {"version": expected}


def test_in_an_epoch_a_device_keeps_what_it_told_first(device: Device) -> None:
    """A later version is told from the next quarter on."""
    assert told(device, "1", epoch="quarter") == {"version": "1"}
    assert told(device, "2", epoch="quarter") == {"version": "1"}
    device.clock.advance(days=50)
    assert told(device, "2", epoch="quarter") == {"version": "2"}


def test_a_metric_for_life_tells_the_present_one(device: Device) -> None:
    """Its noise stays, its segment follows."""
    assert told(device, "1", epoch="life") == {"version": "1"}
    assert told(device, "2", epoch="life") == {"version": "2"}


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
def test_a_segment_that_is_listed_no_more_is_told_no_more(
    device: Device, later: tuple[Dimension, ...]
) -> None:
    """Within the epoch the device then tells none, which every collector accepts."""
    before = metric_of(epoch="year", segments=VERSIONS)
    after = metric_of(epoch="year", segments=later)
    for metric in (before, before, after, after):
        client = device.open(registry_of(metric), segment={"version": "1", "country": "de"})
        client.record("page", "example.org")
        device.clock.advance(days=1)
        client.flush()
        client.record("page", "example.org")
        device.clock.advance(days=1)
        client.flush()
        client.close()
    fingerprints = [report.params for report in device.transport.reports]
    assert dict(before.accepted[fingerprints[0]].segment) == {"version": "1"}
    assert fingerprints[-1] == after.params.fingerprint
    assert after.accepted[fingerprints[-1]].segment == ()
