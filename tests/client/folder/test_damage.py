"""A damaged database, at any byte: nothing reaches the host, and the device goes on as it was."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices import BALANCED, DATABASE, database, metric_of, secret_of, write_device
from rappor_client import Answer, Client, Withdrawal
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport, peek
from registries import registry_of

from rappor import Params
from rappor.protocol.encodings import encoder
from rappor.protocol.parts import Part
from rappor.protocol.randomizer import cohort, permanent

CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself."""
METRICS = (
    metric_of(params=CLEAR, epoch="year"),
    metric_of("life", CLEAR, patterns=2),
    metric_of("daily", epoch="month", interval="day"),
    metric_of("cut", BALANCED, epoch="year", parts=(Part("prefix:2", 0.5), Part("whole"))),
)
REGISTRY = registry_of(*METRICS)
CELLS = (
    "UPDATE charge SET reports = -1",
    "UPDATE state SET value = 1 << 62 WHERE name = 'identity_mark'",
    "UPDATE upload SET reports = '{}'",
    'UPDATE upload SET reports = replace(reports, \'"nats": \', \'"nats": "x", "n": \')',
)
"""What no row holds that this library wrote, although each cell is of its column's type."""
DAMAGE: dict[str, Callable[[bytearray, random.Random], None]] = {
    "flip": lambda data, rng: flip(data, rng, 1),
    "flips": lambda data, rng: flip(data, rng, 40),
    "block": lambda data, rng: overwrite(data, rng, 4096),
    "hole": lambda data, rng: overwrite(data, rng, 60, b"\0"),
    "truncated": lambda data, rng: data.__delitem__(slice(rng.randrange(len(data)), None)),
    "emptied": lambda data, _: data.clear(),
    "header": lambda data, rng: data.__setitem__(rng.randrange(100), rng.randrange(256)),
    "schema": lambda data, rng: data.__setitem__(rng.randrange(100, 4096), rng.randrange(256)),
}


def flip(data: bytearray, rng: random.Random, n: int) -> None:
    """Turn single bits."""
    for _ in range(n):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random, n: int, by: bytes = b"") -> None:
    """Put something else in the place of a stretch."""
    start = rng.randrange(len(data))
    data[start : start + n] = by * n or rng.randbytes(n)


def device(folder: Path, clock: FixedClock, **chosen: Any) -> Client:
    """Open the device of this test."""
    settings: dict[str, Any] = {"clock": clock, "consent": True, "background": False} | chosen
    return Client.open(folder, registry=REGISTRY, **settings)


@pytest.fixture(scope="module")
def donors(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders with everything in them: closed well, and killed with its log unwritten.

    Secret and coins are fixed, so that a seed damages the same things in every run.
    """
    clock, folder = FixedClock("2026-11-16T12:00:00"), tmp_path_factory.mktemp("donor")
    closed, killed = folder / "closed", folder / "killed"
    write_device(closed, bytes(range(32)))
    transport, coins = MemoryTransport(), FixedCoins(seed=1)
    client = device(closed, clock, transport=transport, opted_out={"gone"}, coins=coins)
    for _ in range(4):
        for metric in METRICS:
            client.record(metric.name, "first")
        clock.advance(days=1)
    assert client.flush()
    transport.script = [None]
    for metric in METRICS:
        client.record(metric.name, "first")
    assert not client.flush(timeout=0.0)
    shutil.copytree(closed, killed)
    client.close()
    return [closed, killed]


def damaged(donor: Path, folder: Path, seed: str) -> None:
    """Copy a folder and damage the database, or its log, as the seed says."""
    rng = random.Random(seed)  # noqa: S311 - damage, not coins
    shutil.copytree(donor, folder)
    files = [path for path in folder.iterdir() if path.name.startswith(DATABASE)]
    path = rng.choice(sorted(path for path in files if path.stat().st_size))
    data = bytearray(path.read_bytes())
    DAMAGE[rng.choice(sorted(DAMAGE))](data, rng)
    path.write_bytes(data)


def response(folder: Path, name: str, epoch: str) -> bytes:
    """Return the permanent response that the device must keep to."""
    secret = secret_of(folder)
    truth = encoder(CLEAR).encode("first", cohort(secret, name, epoch, CLEAR))
    return permanent(secret, name, epoch, CLEAR, truth)


def live_through(folder: Path) -> None:
    """Use everything of a client on a damaged folder; its answers must be those of before.

    Damage in a finished report that waits leaves with it: its bits are noise like any other.
    """
    clock, transport = FixedClock("2026-11-21T12:00:00"), MemoryTransport()
    client = device(folder, clock, transport=transport, coins=FixedCoins(seed=2))
    for metric in METRICS:
        client.record(metric.name, "first" if metric.patterns > 1 else "other")
    for look in (client.waiting, client.spent, client.log, client.counters):
        look()
    client.opt_out("cut")
    client.close()
    client = device(folder, clock, transport=transport, coins=FixedCoins(seed=3))
    for _ in range(2):  # damage that is met while sending costs what waits, once
        assert client.record("page", "other")
        assert client.record("life", "first")
        client.flush()
    expected = {"page": response(folder, "page", "2026"), "life": response(folder, "life", "")}
    last_sent = {report.metric: report.bits for report in transport.reports}
    assert {name: last_sent[name] for name in expected} == expected
    assert set(client.spent().metrics) >= {"page", "life"}
    assert client.withdraw() == Withdrawal(secret_gone=True)
    assert [path.name for path in folder.iterdir()] == ["budget"]


def fuzz(donors: list[Path], tmp_path: Path, seeds: range) -> None:
    """Live through one damaged folder after the other."""
    for seed in seeds:
        folder = tmp_path / str(seed)
        damaged(donors[seed % 2], folder, str(seed))
        try:
            live_through(folder)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(folder)


@pytest.mark.parametrize("statement", CELLS)
def test_cell_that_cannot_be_is_damage(statement: str, tmp_path: Path) -> None:
    """The database is set apart, and the device goes on."""
    folder, clock = tmp_path / "device", FixedClock("2026-11-18T12:00:00")
    transport = MemoryTransport([Answer(status=503)])
    with device(folder, clock, transport=transport) as client:
        client.record("page", "a")
        assert not client.flush(timeout=0.0)
    with database(folder) as db:
        assert db.execute(statement).rowcount
    with device(folder, clock, transport=transport) as client:
        client.record("page", "a")
        client.log()
        assert client.record("page", "a")
        assert client.flush()
        assert client.log()
        assert peek(folder).has_secret
    assert (folder / "damaged.sqlite3").exists()


def test_damaged_database_reaches_nobody(donors: list[Path], tmp_path: Path) -> None:
    """Two dozen folders, damaged in eight ways."""
    fuzz(donors, tmp_path, range(24))


@pytest.mark.acceptance
def test_damaged_database_reaches_nobody_in_full(donors: list[Path], tmp_path: Path) -> None:
    """A thousand folders."""
    fuzz(donors, tmp_path, range(1000))
