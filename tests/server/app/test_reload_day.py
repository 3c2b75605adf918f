"""The day of a reload: the registry is checked on the day of the collector's own clock."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rappor_server.app.input_files import InputFiles
from rappor_server.app.serving import Server

DAY = datetime.date(2020, 2, 29)


def test_a_reload_reads_the_files_on_the_day_of_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reload passes the collector's day to the reader and the check of files, and adopts them.

    A collector may have another clock than the machine, such as the demo's. Stubs take the place of
    the application and the files, because a real server would need a process.
    """
    days: list[datetime.date] = []
    adopted: list[Any] = []

    def check_candidate_files(_: Any, *, today: datetime.date) -> None:
        days.append(today)

    inputs = SimpleNamespace(check_candidate_files=check_candidate_files)

    def read(settings: Any, *, today: datetime.date) -> Any:
        assert settings == "settings"
        days.append(today)
        return inputs

    monkeypatch.setattr(InputFiles, "read", read)
    server = object.__new__(Server)
    collector = SimpleNamespace(today=lambda: DAY, adopt=adopted.append)
    server._app = SimpleNamespace(state=SimpleNamespace(collector=collector))  # type: ignore[assignment]
    server._settings = "settings"  # type: ignore[assignment]
    server._tls = None
    server._reload_files()
    assert (days, adopted) == ([DAY, DAY], [inputs])
