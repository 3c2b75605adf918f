"""A scope never sends more reports than its cost assumes, whatever registries and clocks do.

A scope is one permanent response: of one metric in one epoch, under one parameter set. Its cost in
nats assumes a largest number of reports: one for each interval of the epoch. Random histories of
programs with different registries in one folder try to exceed this number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from devices import build_metric, close_device, open_device, peek, remove_spool, write_device
from hypothesis import given, settings
from hypothesis import strategies as st
from rappor_client import Client
from rappor_client.budget.scopes import Scope
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport

from rappor import Metric, Params

DAY = 86_400
NOISY = Params(k=128, h=1, m=4, f=0.4, g=0.1, p=0.05, q=0.8)
"""Parameters whose cost depends on the number of reports: epsilon_1 = 2.56 nats for one report, and
epsilon_inf = 3.75 nats for any number of reports. With m = 4 cohorts, several scopes of a history
may have the same cohort."""
LOST = None
"""Stands for a step in which the spool is lost."""

# The lists below repeat the common cases, so that hypothesis draws them more often.
metrics = st.builds(
    lambda epoch, interval, q: build_metric(
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
    """Several programs with one folder, each with a registry and a client of its own."""

    def __init__(self, folder: Path, secret: bytes, registries: list[Metric]) -> None:
        write_device(folder, secret)
        self.folder, self.registries = folder, registries
        self.clock, self.transport = FixedClock("2026-12-29T12:00:00"), MemoryTransport()
        self.clients: list[Client] = []

    def open(self) -> None:
        """Open the clients of all programs."""
        settings_of_client: dict[str, Any] = {"clock": self.clock, "coins": FixedCoins(1)}
        settings_of_client["collector"] = self.transport
        self.clients = [
            open_device(self.folder, registry, **settings_of_client) for registry in self.registries
        ]

    def close(self) -> None:
        """Close the clients of all programs."""
        for client in self.clients:
            close_device(client)

    def take(self, step: tuple[int, float, str, bool] | None) -> None:
        """Take a step: a program records a value and perhaps flushes, or the spool is lost.

        A step is (number of the program, seconds by which the clock moves, value, whether to
        flush).
        """
        if step is LOST:
            self.close()
            remove_spool(self.folder)
            self.open()
            return
        number, seconds, value, sends = step
        self.clock.now += seconds
        client = self.clients[number % len(self.clients)]
        client.record("page", value)
        if sends:
            client.flush()

    def finish(self) -> None:
        """Move the clock by two years, so that all pending and queued reports leave."""
        # The first flush queues the pending reports, and gives each a random time of sending. The
        # second flush comes after all these times.
        for _ in range(2):
            self.clock.now += 400 * DAY
            self.clients[0].flush()


@pytest.mark.slow
@settings(max_examples=60)
@given(
    secret=st.binary(min_size=32, max_size=32),
    registries=st.lists(
        metrics, min_size=2, max_size=3, unique_by=lambda metric: (metric.epoch, metric.interval)
    ),
    history=steps,
)
def test_no_scope_sends_more_reports_than_its_cost_assumes(
    secret: bytes, registries: list[Metric], history: list[Any]
) -> None:
    """Programs take turns in one folder, clocks jump, and spools are lost.

    No scope sends more reports than its cost assumes, and the spent nats stay below the
    reservation.
    """
    with tempfile.TemporaryDirectory() as parent:
        programs = Programs(Path(parent) / "device", secret, registries)
        programs.open()
        with contextlib.closing(programs):
            for step in history:
                programs.take(step)
            programs.finish()
            spent = programs.clients[0].privacy_spent()
        assert spent.nats <= sum(spent.reserved.values()) + 1e-9
        cohorts_by_params: dict[str, list[int]] = {}
        for report in programs.transport.reports:
            cohorts_by_params.setdefault(report.params, []).append(report.cohort)
        scopes = peek(programs.folder).scopes
        assert len(programs.transport.reports) <= sum(map(count_allowed_reports, scopes))
        for scope in scopes:
            n_sent = cohorts_by_params.get(scope.params.fingerprint, []).count(scope.cohort)
            # A report does not name its scope, so scopes with equal reports count together.
            equal_scopes = [equal for equal in scopes if has_same_reports(equal, scope)]
            assert n_sent <= sum(map(count_allowed_reports, equal_scopes)), scope.epoch


def count_allowed_reports(scope: Scope) -> int:
    """Return the largest number of reports that the cost of a scope assumes."""
    days = {"": 1, "month": 31, "quarter": 92, "year": 366}[find_epoch_length(scope.epoch)]
    # Weeks begin on Monday. n days touch at most 1 + ceil((n - 1) / 7) weeks: the first day may be
    # a Sunday. The two minus signs round the quotient up.
    return {"epoch": 1, "day": days, "week": 1 + -(-(days - 1) // 7)}[scope.interval]


def find_epoch_length(epoch: str) -> str:
    """Return the length of an epoch, as its name shows it: month, quarter or year."""
    return "quarter" if "Q" in epoch else "month" if "-" in epoch else "year"


def has_same_reports(first: Scope, second: Scope) -> bool:
    """Return whether a collector cannot distinguish the reports of two scopes."""
    return (first.params.fingerprint, first.cohort) == (second.params.fingerprint, second.cohort)
