"""A folder of the version before is taken over: budget, answers, secret and waiting reports."""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from devices import metric_of, open_device, own, peek, response_of, state_of
from forks import is_killed
from rappor_client import Client, Outcome
from rappor_client.budget import remainder
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

from rappor import Params

BEFORE = Path(__file__).with_name("before.tar.xz")
"""What the last version of three files wrote: eight events of four metrics, six reports sent."""
NOISY = Params(k=128, h=2, m=4, f=0.4, g=0.1, p=0.05, q=0.8)
SHOWING = constant_coins(2**31)
METRICS = (
    metric_of("event", NOISY),
    metric_of("several", NOISY, epoch="quarter", patterns=2),
    metric_of("daily", NOISY, epoch="month", interval="day"),
    metric_of("once", NOISY, epoch="month", interval="epoch"),
    metric_of("silent", NOISY, epoch="year"),
)
RESERVED = {2026: pytest.approx(219.147)}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Lend a folder of the version before."""
    with tarfile.open(BEFORE) as archive:
        archive.extractall(tmp_path / "before", filter="data")
    return tmp_path / "before"


@pytest.fixture
def later() -> FixedClock:
    """Return a clock that stands at the noon after the last event."""
    return FixedClock("2026-11-30T12:00:00")


def take_over(folder: Path, clock: FixedClock, **chosen: Any) -> Client:
    """Open the folder with this version."""
    return open_device(folder, *METRICS, clock=clock, coins=SHOWING, **chosen)


def test_everything_is_taken_over(before: Path, later: FixedClock) -> None:
    """The same secret repeats the same answers, what waits leaves once, no budget is renewed."""
    secret = (before / "identity").read_bytes()[18:50]
    transport = MemoryTransport()
    client = take_over(before, later, collector=transport)
    assert state_of(before).sealed.bytes == secret
    assert client.spent().reserved == RESERVED
    assert client.waiting() == 2
    assert {scope.metric for scope in state_of(before).scopes.values()} == {
        *("event", "several", "daily", "once")
    }
    for name in ("event", "several", "several"):
        assert client.record(name, "z") == Outcome.KEPT
    assert client.record("once", "z") == Outcome.SILENT
    client.record("daily", "z")
    assert client.waiting() == 6  # with the held report of the day before
    for days in (2, 1):
        later.advance(days=days)
        client.flush()
    assert client.waiting() == 0
    shown = {(report.metric, report.bits) for report in transport.reports}
    assert shown == {
        ("event", response_of(secret, "a", name="event", params=NOISY)),
        ("several", response_of(secret, "b", name="several", epoch="2026-Q4", params=NOISY)),
        ("daily", response_of(secret, "a", name="daily", epoch="2026-11", params=NOISY)),
    }
    assert client.counters()["accepted"] == 6 + len(transport.reports)
    assert sorted(path.name for path in before.iterdir()) == ["budget", "device"]


@pytest.mark.parametrize(
    ("lost", "is_lost"),
    [
        (["telemetry.sqlite3"], False),
        (["budget"], False),
        (["identity"], True),
        (["telemetry.sqlite3", "budget"], True),
    ],
    ids=str,
)
def test_what_is_damaged_brings_no_budget(
    lost: list[str], is_lost: bool, before: Path, later: FixedClock
) -> None:
    """Either of database and copy will do; without both, or the secret, the year is silent."""
    for name in lost:
        (before / name).write_bytes(b"damaged")
    client = take_over(before, later)
    assert (client.spent().nats == float("inf")) is is_lost
    assert is_lost or client.spent().reserved == RESERVED
    assert (client.record("event", "z") == Outcome.SILENT) is is_lost
    later.set("2027-02-01T12:00:00")
    assert (client.record("event", "z") == Outcome.SILENT) is is_lost
    assert client.record("several", "z") == Outcome.KEPT


def test_withdrawal_of_a_folder_that_was_never_opened_keeps_its_line(
    before: Path, later: FixedClock
) -> None:
    """Nothing but the nats reserved by year is left."""
    secret = (before / "identity").read_bytes()[18:50]
    take_over(before, later, consent=False)
    assert [path.name for path in before.iterdir()] == ["budget"]
    assert secret not in (before / "budget").read_bytes()
    assert peek(before).spent.reserved == RESERVED
    assert take_over(before, later).spent().reserved == RESERVED


def test_what_the_version_before_writes_since_is_no_budget(
    before: Path, later: FixedClock, tmp_path: Path
) -> None:
    """It makes itself an identity, is silent, and writes the line anew under its own mark."""
    take_over(before, later).close()
    shutil.copy(before / "budget", tmp_path / "line")
    line = remainder.read_document(before)
    assert line is not None
    assert line["lost"] == [9999, 1, None]
    with tarfile.open(BEFORE) as archive:
        archive.extract("./identity", before, filter="data")
        archive.extract("./telemetry.sqlite3", before, filter="data")
    for consent in (True, False, True):
        client = take_over(before, later, consent=consent)
        assert client.disabled == ""
        assert not (before / "identity").exists()
    assert client.spent().reserved == RESERVED


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_killed_while_it_is_taken_over(before: Path, later: FixedClock, tmp_path: Path) -> None:
    """At each touch of the disk: the next start finishes it, or begins it again."""
    touching = {"write", "fsync", "replace", "rename", "unlink", "execute"}
    secret = (before / "identity").read_bytes()[18:50]
    for moment in itertools.count(step=3):
        folder = tmp_path / str(moment)
        shutil.copytree(before, folder)
        is_over = not is_killed(moment, touching, partial(take_over, folder, later))
        if own(folder).exists():
            assert remainder.is_ours(remainder.read_document(folder))
        with take_over(folder, later) as client:
            assert state_of(folder).sealed.bytes == secret
            assert client.spent().reserved == RESERVED
            assert client.waiting() == 2
        assert sorted(path.name for path in folder.iterdir()) == ["budget", "device"]
        if is_over:
            break
    assert moment > 30
