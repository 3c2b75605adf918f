"""The protocol's test vectors through the whole client, from the secret to the upload."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import make_vectors
import pytest
from days import finish_days
from devices import build_metric, open_device, write_device
from places import VECTORS
from rappor_client import Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Params

ROWS = json.loads((VECTORS / "response.json").read_text())


def find_epoch(epoch: str) -> tuple[str, str]:
    """Return the length of an epoch, and a day in it."""
    if not epoch:
        return "life", "2026-11-18"
    year, _, part = epoch.partition("-")
    if not part:
        return "year", f"{year}-06-01"
    if part.startswith("Q"):
        return "quarter", f"{year}-{3 * int(part[1:]):02}-01"
    return "month", f"{epoch}-15"


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_client_sends_the_reports_of_the_vectors(number: int, tmp_path: Path) -> None:
    """A client with the secret and the coins of a vector sends the report of the vector.

    Each row has a secret, a metric, an epoch, a value, and the seed of the coins.
    """
    row: dict[str, Any] = ROWS[number]
    letters = {key: row[key] for key in ("k", "h", "m", "f", "p", "q")}
    params = Params(**letters, encoding=row["encoding"], insecure=True)
    epoch, day = find_epoch(row["epoch"])
    metric = build_metric(row["metric"], params, epoch=epoch)
    write_device(tmp_path / "device", bytes.fromhex(row["secret"]))
    transport = MemoryTransport()
    with open_device(
        tmp_path / "device",
        metric,
        collector=transport,
        clock=FixedClock(day),
        coins=partial(make_vectors.make_coins, bytes.fromhex(row["coins_seed"])),
    ) as client:
        assert client.record(row["metric"], row["value"]) == Outcome.RECORDED
        finish_days(client)
        assert client.flush()
    (report,) = transport.reports
    assert report.cohort == row["cohort"]
    assert report.params == metric.fingerprint
    assert report.bits.hex() == row["report"]


def test_vectors_reach_every_kind_of_epoch() -> None:
    """The vectors contain metrics for life and with epochs, so the test above is not empty."""
    assert {find_epoch(row["epoch"])[0] for row in ROWS} >= {"life", "quarter"}
    assert len(ROWS) >= 10
