"""Frozen ranges: what was published can be read again."""

from __future__ import annotations

import datetime

from collectors import ACCEPTED, TODAY, commit, report_of, upload_of
from rappor_server.analysis import freezes, releases
from rappor_server.storage.store import Store


def test_frozen_range_stays(store: Store) -> None:
    """Later reports do not change a frozen range, and only its own metric shows it."""
    bodies = [upload_of(report_of("small", bits=i, cohort=i % 4)) for i in range(26)]
    commit(store, *bodies[:6])
    yesterday = TODAY - datetime.timedelta(days=1)
    release = releases.release(store, ACCEPTED.registry["small"], yesterday, TODAY)
    name = freezes.freeze(store, release, today=TODAY)
    commit(store, *bodies[6:])
    assert freezes.frozen(store, "small", name) == release
    assert release.n_reports == 6
    assert freezes.frozen(store, "page", name) is None
    assert freezes.frozen(store, "small", "0" * 16) is None
