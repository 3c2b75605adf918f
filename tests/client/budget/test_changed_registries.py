"""No scope has more reports than its price counts on, whatever registries and clocks do."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

from devices import UNCAPPED, database, lose, metric_of, write_device
from hypothesis import given, settings
from hypothesis import strategies as st
from rappor_client import Client
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport
from registries import registry_of

from rappor import Metric, Params

DAY = 86_400
NOISY = Params(k=128, h=1, m=4, f=0.4, g=0.1, p=0.05, q=0.8)
"""Each report loses more: 2.5 nats by the first one, 5.1 by all."""
LOST = None
"""A step in which the database is lost."""

metrics = st.builds(
    lambda epoch, interval, q: metric_of(
        params=dataclasses.replace(NOISY, q=q), epoch=epoch, interval=interval
    ),
    st.sampled_from(["month", "quarter", "year"]),
    st.sampled_from(["epoch", "epoch", "epoch", "day", "week"]),
    st.sampled_from([0.8, 0.8, 0.7]),
)
jumps = st.sampled_from([0, 3600, 3600, DAY, DAY, 7 * DAY, 40 * DAY, -DAY, -40 * DAY])
events = st.tuples(
    st.integers(0, 2), jumps, st.sampled_from("ab"), st.sampled_from([False, False, True])
)
steps = st.lists(st.one_of(*[events] * 8, st.just(LOST)), min_size=5, max_size=25)


class Programs:
    """Programs on one device, each with a registry of its own."""

    def __init__(self, folder: Path, secret: bytes, registries: list[Metric]) -> None:
        write_device(folder, secret)
        self.folder, self.registries = folder, registries
        self.clock, self.transport = FixedClock("2026-12-29T12:00:00"), MemoryTransport()
        self.clients: list[Client] = []

    def open(self) -> None:
        """Start all programs."""
        chosen: dict[str, Any] = {"consent": True, "caps": UNCAPPED, "background": False}
        chosen |= {"clock": self.clock, "coins": FixedCoins(1), "transport": self.transport}
        self.clients = [
            Client.open(self.folder, registry=registry_of(each), **chosen)
            for each in self.registries
        ]

    def close(self) -> None:
        """End all programs."""
        for client in self.clients:
            client.close()

    def take(self, step: tuple[int, float, str, bool] | None) -> None:
        """Let one program record a value, and perhaps send; or lose the database."""
        if step is LOST:
            self.close()
            lose(self.folder)
            self.open()
            return
        number, seconds, value, sends = step
        self.clock.now += seconds
        client = self.clients[number % len(self.clients)]
        client.record("page", value)
        if sends:
            client.flush()

    def finish(self) -> None:
        """Let all that is held and waits leave."""
        for _ in range(2):
            self.clock.now += 400 * DAY
            self.clients[0].flush()


@settings(max_examples=60)
@given(
    secret=st.binary(min_size=32, max_size=32),
    registries=st.lists(
        metrics, min_size=2, max_size=3, unique_by=lambda metric: (metric.epoch, metric.interval)
    ),
    history=steps,
)
def test_no_scope_has_more_reports_than_its_price_counts_on(
    secret: bytes, registries: list[Metric], history: list[Any]
) -> None:
    """Registries take turns in one folder, clocks jump, databases are lost."""
    with tempfile.TemporaryDirectory() as place:
        programs = Programs(Path(place) / "device", secret, registries)
        programs.open()
        with contextlib.closing(programs):
            for step in history:
                programs.take(step)
            programs.finish()
            spent = programs.clients[0].spent()
        n_left = len(programs.transport.reports)
        assert LOST in history or n_left == sum(each.reports for each in spent.metrics.values())
        assert spent.nats <= sum(spent.reserved.values()) + 1e-9
        query = (
            "SELECT scope.epoch, most, price, SUM(reports), TOTAL(nats) FROM scope JOIN pattern "
            "USING (metric, epoch) GROUP BY scope.epoch"
        )
        with database(programs.folder) as db:
            scopes = db.execute(query).fetchall()
        counted_on = [math.inf if most is None else most for _, most, *_ in scopes]
        assert n_left <= sum(counted_on)
        for (epoch, _, price, n_reports, nats), most in zip(scopes, counted_on, strict=True):
            assert n_reports <= most, epoch
            assert nats <= price + 1e-9, epoch
