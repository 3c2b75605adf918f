"""`rappor-client`: show, reset, send."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import Opener, metric_of
from rappor_client.cli import main
from rappor_client.testing import FixedClock, MemoryTransport
from sockets import serving

from rappor import Registry
from rappor.protocol.wire import Report, parse_upload

TOML = """
[metrics.page]
description = "a"
owner = "b"
expires = 2100-01-01
encoding = "bloom"
profile = "balanced"

[metrics.sound]
description = "a"
owner = "b"
expires = 2100-01-01
encoding = "boolean"
profile = "strict"
"""


class Accepting(http.server.ThreadingHTTPServer):
    """Reads uploads strictly and accepts what it knows."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), AcceptingHandler)
        self.reports: list[Report] = []


class AcceptingHandler(http.server.BaseHTTPRequestHandler):
    """One upload."""

    server: Accepting

    def do_POST(self) -> None:
        """Accept every report."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _, reports = parse_upload(body, Registry.loads(TOML).lookup)
        self.server.reports += [report for report in reports if isinstance(report, Report)]
        answer = json.dumps({"reports": [{"status": "accepted"} for _ in reports]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def collector() -> Iterator[Accepting]:
    """A collector on a port of its own."""
    server = Accepting()
    with serving(server):
        yield server


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry's file."""
    path = tmp_path / "metrics.toml"
    path.write_text(TOML)
    return path


def test_show_prints_what_left(
    open_client: Opener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The body as it left, parameters, loss, promise, what waits and what was counted."""
    transport = MemoryTransport()
    client = open_client(metric_of(), transport=transport)
    client.record("page", "telltale")
    client.flush()
    client.record("page", "telltale")
    client.close()
    assert main(["show", str(tmp_path / "device")]) == 0
    printed = capsys.readouterr().out
    assert transport.bodies[0].decode() in printed
    assert "2026-11-18  upload" in printed
    assert "page: accepted; cohort" in printed
    assert "2.000 nats added" in printed
    assert "1 reports wait to be sent." in printed
    assert "accepted 1, recorded 2" in printed
    assert "a suspicion of 50 % can become at most" in printed
    assert "telltale" not in printed


def test_show_for_scripts(
    open_client: Opener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as JSON."""
    transport = MemoryTransport()
    client = open_client(metric_of(), transport=transport)
    client.record("page", "x")
    client.flush()
    nats = client.spent().nats
    client.close()
    assert main(["show", str(tmp_path / "device"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (upload,) = document["uploads"]
    assert upload["body"] == transport.bodies[0].decode()
    (report,) = upload["reports"]
    assert len(report["bits"]) == 128
    shown = int(report["bits"][::-1], 2).to_bytes(16, "little")
    assert shown == transport.reports[0].bits
    assert report["status"] == "accepted"
    assert report["fingerprint"] == transport.reports[0].params
    assert document["spent"]["nats"] == report["nats"] == nats
    assert document["waiting"] == 0


def test_show_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without telemetry is named, and nothing is made in it."""
    assert main(["show", str(tmp_path / "absent")]) == 2
    assert "there is no telemetry in it" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_reset_asks_and_erases(
    open_client: Opener,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not without a yes; then only the nats stay."""
    client = open_client()
    client.record("page", "x")
    client.close()
    folder = tmp_path / "device"
    monkeypatch.setattr("builtins.input", lambda _: "")
    assert main(["reset", str(folder)]) == 1
    assert (folder / "identity").exists()
    assert main(["reset", str(folder), "--yes"]) == 0
    assert "2.000 nats stay on the account" in capsys.readouterr().out
    assert not (folder / "identity").exists()
    assert open_client().spent().carried == pytest.approx(2, abs=1e-4)


def test_send_tries_a_collector(
    collector: Accepting, registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each value as a device of its own."""
    url = f"http://127.0.0.1:{collector.server_address[1]}"
    code = main(
        ["send", "a", "a", "a", "--registry", str(registry), "--metric", "page", "--collector", url]
    )
    assert code == 0
    assert len(collector.reports) == 3
    assert len({report.bits for report in collector.reports}) == 3
    assert capsys.readouterr().out.count("page: accepted") == 3
    arguments = ["--registry", str(registry), "--metric", "sound", "--collector", url]
    assert main(["send", "yes", *arguments]) == 0
    assert main(["send", "maybe", *arguments]) == 2
    assert "maybe" not in capsys.readouterr().err


def test_send_says_what_is_wrong(
    registry: Path, capsys: pytest.CaptureFixture[str], clock: FixedClock
) -> None:
    """A metric that is unknown, an address that is no collector's, one that does not answer."""
    common = ["send", "a", "--registry", str(registry), "--timeout", "0.1"]
    assert main([*common, "--metric", "pgae", "--collector", "http://127.0.0.1:9"]) == 2
    assert "did you mean 'page'" in capsys.readouterr().err
    assert main([*common, "--metric", "page", "--collector", "http://example.org"]) == 2
    assert "https" in capsys.readouterr().err
    assert main([*common, "--metric", "page", "--collector", "http://127.0.0.1:9"]) == 1
    assert "did not take it" in capsys.readouterr().out
    assert clock() > 0


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names the commands; nonsense ends with 2."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("show", "reset", "send"))
    with pytest.raises(SystemExit) as ended:
        main(["frobnicate"])
    assert ended.value.code == 2
