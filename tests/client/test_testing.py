"""Test tools of the client for programs that embed it."""

from __future__ import annotations

import doctest
import tomllib
from pathlib import Path

import pytest
import rappor_client.testing
from days import record_days
from devices import Home, build_metric
from places import ROOT
from programs import run_python
from rappor_client import FlushReason, TransportResponse, UploadError
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport, constant_coins, peek
from registries import format_registry

ACCEPTED = b'{"reports":[{"status":"accepted"}]}'


def test_transport_follows_its_script_and_then_accepts(home: Home) -> None:
    """The transport follows its script, then accepts, and counts a repeated id once."""
    transport = MemoryTransport([None, TransportResponse(status=503)])
    body = b'{"v":1,"id":"a","reports":[{"metric":"m","params":"p","cohort":1,"bits":"AA"}]}'
    with pytest.raises(UploadError):
        transport.send(body, timeout=1)
    assert transport.send(body, timeout=1).status == 503
    for _ in range(2):
        assert transport.send(body, timeout=1).status == 200
    assert len(transport.bodies) == 4
    assert len(transport.reports) == 1
    assert home.open().flush()


def test_fixed_coins_repeat_by_seed() -> None:
    """Equal seeds give equal coins in every grouping, other seeds give other coins."""
    first, second = FixedCoins(seed=1), FixedCoins(seed=1)
    assert [*first(3), *first(2)] == list(second(5))
    assert list(FixedCoins(seed=2)(5)) != list(FixedCoins(seed=1)(5))
    assert all(0 <= u < 2**32 for u in second(100))
    assert list(constant_coins(7)(3)) == [7, 7, 7]


def test_peek_returns_the_contents_of_a_folder(home: Home) -> None:
    """The contents have reports in all states, scopes, spent nats and counters.

    Of three reports of `page`, the first is accepted, the second is tried and the third is queued.
    The report of `slow` is pending.
    """
    metrics = (build_metric(epoch="month"), build_metric("slow"))
    transport = MemoryTransport([TransportResponse(status=200, body=ACCEPTED), None])
    client = home.open(*metrics, collector=transport, coins=constant_coins(2**32 - 1))
    record_days(client, "page", "xxx")
    assert client.flush(timeout=0.0).reason is FlushReason.TIMEOUT
    home.clock.advance(days=1)
    client.record("slow", "x")
    assert client.flush(timeout=0.0).reason is FlushReason.UNREACHABLE
    contents = peek(home.folder)
    assert contents.has_secret
    assert [report.metric for report in contents.queued_reports] == ["page", "page"]
    (tried,) = contents.tried_uploads
    assert tried.body == transport.bodies[1]
    # The first backoff is a random part of 5 seconds. With the largest coins it is all of them.
    assert tried.backoff_until == pytest.approx(home.clock() + 5)
    assert [report.metric for report in contents.pending_reports] == ["slow"]
    assert contents.pending_reports[0].interval_end == FixedClock("2026-11-23")()
    (scope,) = contents.scopes
    assert (scope.metric, scope.epoch) == ("page", "2026-11")
    assert contents.spent == client.privacy_spent()
    assert scope.cost == contents.spent.nats
    assert list(contents.sent_uploads) == client.sent_uploads()
    assert contents.counters == client.event_counts() == {"accepted": 1, "recorded": 3}


def test_peek_at_an_absent_folder_is_empty(tmp_path: Path) -> None:
    """A folder that does not exist has empty contents, and is not created."""
    contents = peek(tmp_path / "absent")
    assert not contents.has_secret
    assert not any(
        [contents.queued_reports, contents.scopes, contents.sent_uploads, contents.pending_reports]
    )
    assert contents.spent.nats == 0
    assert not (tmp_path / "absent").exists()


def test_examples_of_the_module_run() -> None:
    """The examples in the docstrings of the module print what they show."""
    result = doctest.testmod(rappor_client.testing)
    assert result.failed == 0
    assert result.attempted > 5


SUITE = """
from rappor import Registry

TOML = REGISTRY


def test_recording(rappor_device):
    client = rappor_device.open(Registry.loads(TOML))
    assert client.record("theme", "dark")
    assert len(rappor_device.contents.pending_reports) == 1
    rappor_device.clock.advance(days=1)
    assert client.flush().sent == 1
    assert [report.metric for report in rappor_device.transport.reports] == ["theme"]


def test_next_run(rappor_device):
    assert rappor_device.contents.queued_reports == ()
    rappor_device.open(Registry.loads(TOML)).record("theme", "dark")
    rappor_device.clock.advance(days=1)
    assert rappor_device.open(Registry.loads(TOML)).flush()
"""
"""Test module of a host program, which uses the fixture."""
LOADED = """
import sys
import pytest
assert "rappor_client.pytest_plugin" in sys.modules
loaded = {"rappor_client.client", "rappor.protocol", "mmh3", "sqlite3"} & set(sys.modules)
assert not loaded, loaded

def test_nothing(): pass
"""
"""Test module that checks which modules the plugin has imported."""


def run_suite(folder: Path, text: str) -> str:
    """Run the tests of a host program with the plugin of this package; return the output."""
    (folder / "test_host.py").write_text(text)
    words = ["-q", "-p", "rappor_client.pytest_plugin", "-p", "no:cacheprovider", "test_host.py"]
    return run_python(
        "-m", "pytest", *words, folder=folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    ).stdout


@pytest.mark.slow
def test_fixture_returns_a_device(tmp_path: Path) -> None:
    """The tests of a host record, look and send, and each test has a device of its own."""
    registry = format_registry("theme", epoch="'quarter'")
    assert "2 passed" in run_suite(tmp_path, SUITE.replace("REGISTRY", repr(registry)))


def test_plugin_loads_nothing_until_its_fixture_is_used(tmp_path: Path) -> None:
    """The plugin, which pytest loads in every run, imports neither client nor SQLite."""
    run_suite(tmp_path, LOADED)


def test_fixture_is_registered() -> None:
    """The fixture is registered as a plugin of pytest under the name of its module."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    registered = project["entry-points"]["pytest11"]
    assert registered == {"rappor_device": "rappor_client.pytest_plugin"}
