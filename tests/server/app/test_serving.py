"""A running server: addresses, reloads, TLS, headers, log, a late database, several units.

Most tests start `rappor-server serve` as a process, and use it over HTTP and by signals.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import sqlite3
import ssl
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import httpx
import plain_http
import pytest
from collectors import (
    REGISTRY,
    Running,
    build_command,
    build_report,
    build_upload,
    call_command,
    commit,
    find_free_port,
    launch,
    make_token,
    run_collector,
    run_command,
    run_file_collector,
    wait_until_ready,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from programs import run_python, wait_until
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.base.errors import StoreError
from rappor_server.http.application import create_application
from rappor_server.storage import visits
from rappor_server.storage.database import open_database, sqlite_url
from sockets import write_certificate

OTHER_REGISTRY = REGISTRY.replace("[metrics.old]", "[metrics.new]")
"""A valid registry that differs from the registry of the tests, to which a reload changes."""
OPERATORS = ("/metrics", "/readyz", "/v1/metrics", "/v1/metrics/page/counts")
"""Paths that only the admin address serves, if there is one."""


def reload(running: Running) -> None:
    """Make a collector read its files again, and wait for the result in its log."""

    def count_reloads() -> int:
        names = ("registry in force", "reload refused")
        return sum(len(running.events(name)) for name in names)

    before = count_reloads()
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: count_reloads() > before)


@pytest.mark.slow
def test_sighup_during_the_start_ends_nothing(tmp_path: Path) -> None:
    """A collector that is starting ignores SIGHUP, and serves when it has started.

    SIGHUP is the signal for a reload. An operator or a timer may send it at any time.
    """
    running = launch(tmp_path, f"sqlite:///{tmp_path}/counts.sqlite3")
    try:
        # From the first line of the command on, the kernel ignores SIGHUP, which is signal 1. It is
        # bit 0 of the mask of ignored signals, 16 hexadecimal digits. So the last digit is odd.
        status = Path(f"/proc/{running.process.pid}/status")
        ignored = re.compile(r"^SigIgn:\t[0-9a-f]{15}[13579bdf]$", re.MULTILINE)
        wait_until(lambda: ignored.search(status.read_text()) is not None)
        for _ in range(20):
            running.process.send_signal(signal.SIGHUP)
            time.sleep(0.02)
        wait_until_ready(running)
    finally:
        running.kill()


@pytest.mark.slow
def test_admin_address_serves_operators_and_analysts(tmp_path: Path) -> None:
    """With an admin address, the public address serves only paths that devices need.

    The public address has no path of `OPERATORS`, even with a valid token. `running.get` with a
    token requests the admin address.
    """
    with run_file_collector(tmp_path, admin=find_free_port()) as running:
        token = make_token(running.database)
        headers = {"Authorization": f"Bearer {token}"}
        assert running.post(build_upload()).status_code == 200
        for path in ("/", "/healthz", "/openapi.json", "/v1/registry"):
            assert running.get(path).status_code == 200
        for path in OPERATORS:
            response = plain_http.get(f"{running.url}{path}", headers=headers)
            assert response.status_code == 404
            assert response.headers["content-type"] == "application/problem+json"
            assert "are at the operators' address" in response.json()["detail"]
            assert running.get(path, token).status_code == 200


@pytest.mark.slow
def test_reload_reads_keys_stops_and_registry(tmp_path: Path) -> None:
    """A new key is valid beside the old key, and a stop is sent. Invalid files change nothing."""
    old, new = "open-sesame-open", "open-simsim-open"
    keys, stops = tmp_path / "keys", tmp_path / "stops.toml"
    keys.write_text(f"old {old}\n")
    stops.write_text("")
    flags = ("--upload-key-file", str(keys), "--stop-file", str(stops), "--suspicious", "accept")
    with run_file_collector(tmp_path, *flags) as running:

        def send(key: str) -> httpx.Response:
            return running.post(build_upload(build_report("sound")), Authorization=f"Bearer {key}")

        assert [send(key).status_code for key in (old, new)] == [200, 401]
        assert running.post(build_upload()).status_code == 401
        keys.write_text(f"old {old}\nnew {new}\n")
        last = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 5 * 86400))
        stops.write_text(f"page = {last}\n")
        reload(running)
        assert [send(key).status_code for key in (old, new)] == [200, 200]
        assert send(new).json()["stop"] == {"page": last}
        (stop,) = running.events("stop in force")
        assert (stop["metric"], stop["until"]) == ("page", last)
        stopped = running.post(build_upload(), Authorization=f"Bearer {new}").json()["reports"]
        assert stopped == [{"status": "refused", "reason": "stopped"}]
        # Invalid files: without a key, with one word in a line, and with one name twice. Both keys
        # stay valid.
        for wrong in ("", "new\n", f"old {old}\nold {new}\n"):
            keys.write_text(wrong)
            reload(running)
            assert [send(key).status_code for key in (old, new)] == [200, 200]
        figures = running.get("/metrics").text
        assert 'rappor_key_uploads_total{key="new"}' in figures
        assert len(running.events("reload refused")) == 3
        assert running.events("old parameters refused") == []
        keys.write_text(f"old {old}\nnew {new}\n")
        (tmp_path / "metrics.toml").write_text(REGISTRY.replace("m = 4", "m = 8"))
        reload(running)
        narrowed = running.events("old parameters refused")
        assert ("warning", "page") in [(event["level"], event["metric"]) for event in narrowed]
        # The secret is in no message of a refusal and in no label of Prometheus.
        assert "sesame" not in running.log.read_text() + figures


@pytest.mark.slow
def test_reload_command_refuses_a_missing_file_of_candidates(tmp_path: Path) -> None:
    """`rappor-server reload` fails with one sentence, and the registry before stays in force.

    SIGHUP without the command changes nothing either. With the file, the command succeeds.
    """
    registry, candidates = tmp_path / "metrics.toml", tmp_path / "pages.txt"
    with run_file_collector(tmp_path) as running:
        words = ("reload", f"{running.process.pid}", "--registry", str(registry))
        before = read_registry_digest(running)
        registry.write_text(OTHER_REGISTRY)
        candidates.unlink()
        result = call_command(*words)
        fault = "metric 'page': candidates must be a file that can be read, got pages.txt: "
        sentence = f"{registry}: {fault}No such file or directory"
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"rappor-server: {sentence}\n"
        assert not running.events("reload refused")
        reload(running)
        (refusal,) = running.events("reload refused")
        assert refusal["reason"] == sentence
        assert read_registry_digest(running) == before
        # `check` names the same file.
        assert (
            "its candidates file pages.txt cannot be used"
            in call_command("check", str(registry)).stdout
        )
        candidates.write_text("a\n")
        assert call_command(*words).returncode == 0
        wait_until(lambda: read_registry_digest(running) != before)
        assert call_command(*words[:1], "999999999", *words[2:]).returncode == 2


@pytest.mark.slow
def test_reload_refuses_a_registry_that_breaks_a_promise(tmp_path: Path) -> None:
    """A registry that lowers `min_cohort` breaks a promise of an older registry and is refused.

    The previous registry stays in force, and the log names the metric and the reason. A registry
    that raises `min_cohort` is adopted.
    """
    older = tmp_path / "older.toml"
    older.write_text(REGISTRY)
    with run_file_collector(tmp_path, "--older", str(older)) as running:
        before = read_registry_digest(running)
        lower = REGISTRY.replace("min_cohort = 2", "min_cohort = 1")
        (tmp_path / "metrics.toml").write_text(lower)
        reload(running)
        assert read_registry_digest(running) == before
        (refused,) = running.events("reload refused")
        assert "small: min_cohort must not fall from 2 to 1" in refused["reason"]
        (tmp_path / "metrics.toml").write_text(REGISTRY.replace("min_cohort = 2", "min_cohort = 3"))
        reload(running)
        assert read_registry_digest(running) != before


def fetch_certificate(port: int, authority: Path) -> bytes:
    """Return the certificate that a server shows, as DER bytes."""
    # The certificate is compared and not trusted: a test may have replaced it.
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        context.wrap_socket(plain) as secure,
    ):
        der = secure.getpeercert(binary_form=True)
        assert der
        return der


@pytest.mark.slow
def test_reload_reads_a_renewed_certificate(tmp_path: Path) -> None:
    """New connections get the renewed certificate. A certificate without its key is ignored."""
    cert, key = write_certificate(tmp_path)
    (tmp_path / "renewed").mkdir()
    new_cert, new_key = write_certificate(tmp_path / "renewed")
    flags = ("--tls-certificate", str(cert), "--tls-key", str(key))
    with run_file_collector(tmp_path, *flags, admin=find_free_port()) as running:
        tls_context = ssl.create_default_context(cafile=str(cert))
        secure = httpx.get(
            f"https://127.0.0.1:{running.port}/healthz", verify=tls_context, timeout=30
        )
        assert secure.text == "alive\n"
        first = fetch_certificate(running.port, cert)
        cert.write_bytes(new_cert.read_bytes())
        reload(running)  # the key file still has the old key
        assert fetch_certificate(running.port, cert) == first
        key.write_bytes(new_key.read_bytes())
        reload(running)
        assert fetch_certificate(running.port, cert) != first
        assert plain_http.get(f"{running.admin_url}/healthz").text == "alive\n"
        # A client without TLS breaks the handshake. The log contains nothing that it has sent.
        with socket.create_connection(("127.0.0.1", running.port), 30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: telltale\r\n\r\n")
            stranger.recv(1000)
        assert "telltale" not in running.log.read_text()


@pytest.mark.slow
def test_a_key_with_a_passphrase_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command does not ask the terminal, because a reload would wait and not serve."""
    cert, key = write_certificate(tmp_path)
    encryption = serialization.BestAvailableEncryption(b"sesame")
    private_key = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    (tmp_path / "metrics.toml").write_text(REGISTRY)
    flags = ("--tls-certificate", str(cert), "--tls-key", str(key))
    refused = run_command("serve", str(tmp_path / "metrics.toml"), *flags)
    assert refused.returncode == 2
    assert "the key without a passphrase" in refused.stderr
    assert "phrase:" not in refused.stderr + capfd.readouterr().err


@pytest.mark.slow
def test_an_empty_certificate_is_refused(tmp_path: Path) -> None:
    """A collector with an empty certificate does not start, and does not serve HTTP without TLS."""
    cert, key = write_certificate(tmp_path)
    cert.write_bytes(b"")
    (tmp_path / "metrics.toml").write_text(REGISTRY)
    flags = ("--tls-certificate", str(cert), "--tls-key", str(key), "--port", "0")
    refused = run_command("serve", str(tmp_path / "metrics.toml"), *flags)
    assert refused.returncode == 2
    assert "must be PEM files that belong together" in refused.stderr


@pytest.mark.slow
def test_a_full_disk_is_a_reason_for_the_operator(tmp_path: Path) -> None:
    """If the certificate cannot be copied, the command ends with one sentence and status 2."""
    cert, key = write_certificate(tmp_path)
    (tmp_path / "metrics.toml").write_text(REGISTRY)
    command = build_command(
        "serve",
        str(tmp_path / "metrics.toml"),
        "--tls-certificate",
        str(cert),
        "--tls-key",
        str(key),
    )
    # With this limit of the shell, no file can have a byte.
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *command]
    refused = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode == 2
    assert "must be copied into a temporary folder" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["max_connections", "max_source_connections"])
def test_stalled_handshakes_are_limited(tmp_path: Path, bound: str) -> None:
    """A handshake counts as a connection and ends after `body_seconds`; others can connect then."""
    cert, key = write_certificate(tmp_path)
    files = ("--tls-certificate", str(cert), "--tls-key", str(key))
    limits = (f"--{bound.replace('_', '-')}", "20", "--body-seconds", "1.5")
    with run_file_collector(tmp_path, *files, *limits, admin=find_free_port()) as running:
        target = ("127.0.0.1", running.port)
        # A single source never gets all connections, so the limit of all needs many sources.
        is_one_source = bound == "max_source_connections"
        sources = [(f"127.0.0.{2 if is_one_source else 2 + i}", 0) for i in range(21)]
        stalled = [socket.create_connection(target, 30, source) for source in sources[:20]]
        # The connection beyond the limit is closed at once, without a response.
        with socket.create_connection(target, 30, sources[20]) as surplus:
            assert surplus.recv(100) == b""
        # The limit of one source leaves room for other sources; the limit of all does not.
        if is_one_source:
            assert fetch_certificate(running.port, cert)
        for connection in stalled:  # each ends after 1.5 seconds
            assert connection.recv(100) == b""
            connection.close()
        with socket.create_connection(("127.0.0.1", running.port), 30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                stranger.recv(100)
        assert fetch_certificate(running.port, cert)
        counters = plain_http.get(f"{running.admin_url}/metrics", timeout=30).text
        assert f'\nrappor_refused_connections_total{{bound="{bound}"}} 1.0\n' in counters
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(60)
        assert '"level": "error"' not in running.log.read_text()


@pytest.mark.slow
def test_no_http_feature_writes_addresses_or_queries_to_the_log(tmp_path: Path) -> None:
    """Upgrades, CONNECT, invalid requests and invalid lengths leave no address and no query.

    uvicorn and its parser would log some of these requests with their text.
    """
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    heads = (
        b"GET /v1/reports?q=telltale HTTP/1.1\r\n" + upgrade,
        b"GET /telltale?q=telltale HTTP/1.1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"CONNECT telltale.example:443 HTTP/1.1\r\n",
        b"TELLTALE /?q=telltale HTTP/1.1\r\n",
        b"POST /v1/reports?q=telltale HTTP/1.1\r\nContent-Length: -7\r\n",
        b"POST /telltale HTTP/1.1\r\nTransfer-Encoding: telltale\r\n",
        b"GET http://telltale.example/?q=telltale HTTP/1.1\r\n",
        b"GET /?q=telltale HTTP/9.9\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM telltale\r\n",
    )
    with run_file_collector(tmp_path) as running:
        for head in heads:
            with socket.create_connection(("127.0.0.1", running.port), 30) as sender:
                sender.sendall(head + b"Host: x\r\nX-Forwarded-For: 203.0.113.77\r\n\r\n")
                sender.settimeout(0.5)
                with contextlib.suppress(OSError):
                    sender.recv(65536)
        assert running.post(build_upload()).status_code == 200
        log = running.log.read_text()
        for secret in ("telltale", "203.0.113.77", "websocket", "WebSocket"):
            assert secret not in log
        for line in log.splitlines():
            fields = json.loads(line)
            fields.pop("address", None)  # the collector's own address
            assert "127.0.0.1" not in json.dumps(fields)


@pytest.mark.slow
def test_security_headers_etag_and_cors(tmp_path: Path) -> None:
    """Each response has security headers, also to bytes that are no HTTP.

    A client that has the registry gets 304. Pages of the allowed origin may upload and read the
    registry; pages of other origins may not.
    """
    flags = ("--origins", "https://app.example.org")
    with run_file_collector(tmp_path, *flags) as running:
        responses = [running.get(path) for path in ("/", "/nothing", "/v1/metrics", "/v1/registry")]
        responses += [running.post(build_upload()), running.post(b"{")]
        for response in responses:
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["cache-control"] in ("no-store", "no-cache")
        with socket.create_connection(("127.0.0.1", running.port), 30) as stranger:
            stranger.sendall(b"nonsense\r\n\r\n")
            received = b"".join(iter(lambda: stranger.recv(65536), b""))
        for line in (b"x-content-type-options: nosniff", b"cache-control: no-store"):
            assert line in received.split(b"\r\n")
        secure = "strict-transport-security"
        assert secure not in responses[0].headers
        assert secure in running.get("/", **{"X-Forwarded-Proto": "https"}).headers
        tag = responses[3].headers["etag"]
        assert responses[3].headers["cache-control"] == "no-cache"
        for condition in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            unchanged = plain_http.get(
                f"{running.url}/v1/registry", headers={"If-None-Match": condition}
            )
            assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert running.get("/v1/registry", **{"If-None-Match": '"other"'}).text == REGISTRY
        (tmp_path / "metrics.toml").write_text(OTHER_REGISTRY)
        reload(running)
        assert running.get("/v1/registry", **{"If-None-Match": tag}).text == OTHER_REGISTRY
        page = {"Origin": "https://app.example.org"}
        allowed = "access-control-allow-origin"
        for origin, status in ((page, 200), ({"Origin": "https://evil.example"}, 400)):
            headers = {"Access-Control-Request-Method": "POST"} | origin
            preflight = plain_http.options(f"{running.url}/v1/reports", headers=headers)
            assert preflight.status_code == status
        assert running.post(build_upload(), **page).headers[allowed] == page["Origin"]
        assert allowed in running.get("/v1/registry", **page).headers
        assert allowed not in running.get("/v1/metrics", **page).headers


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_unusual_text_never_reaches_the_database(tmp_path: Path, database: str) -> None:
    """Unusual characters in paths, queries and tokens get a status 4xx.

    PostgreSQL raises an error for NUL, which would be a status 5xx. The texts are NUL, a control
    character, a letter outside ASCII, half of a surrogate pair, and a long text. Days in
    other forms of ISO 8601, or with a digit outside ASCII, are refused, too.
    """
    with run_collector(tmp_path, database) as running:
        token = make_token(database)
        counts = "/v1/metrics/page/counts"
        for text in ("%00", "%1F", "%C3%A9", "%ED%A0%80", "a" * 100):
            assert running.get(f"{counts}?params={text}", token).status_code in (404, 422)
            assert running.get(f"{counts}?from={text}", token).status_code == 422
            assert running.get(f"/v1/metrics/{text}/counts", token).status_code == 404
            assert running.get(counts, f"rappor.{text}.x").status_code == 401
        for text in ("2026-W48-1", "20261130", "2026-11-3\u0660"):
            assert running.get(f"{counts}?from={text}", token).status_code == 422


@pytest.mark.slow
def test_start_waits_for_a_late_database(tmp_path: Path) -> None:
    """A collector waits for a locked database, and says so in its log.

    When the lock ends, the collector serves.
    """
    lock = sqlite3.connect(tmp_path / "counts.sqlite3", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    running = launch(tmp_path, f"sqlite:///{tmp_path / 'counts.sqlite3'}")
    try:
        wait_until(lambda: bool(running.events("waiting for the database")))
        assert running.process.poll() is None
        lock.execute("ROLLBACK")
        wait_until(lambda: bool(running.events("collector listening")))
        assert running.post(build_upload()).status_code == 200
        # The file had no tables.
        (created,) = running.events("database created")
        assert created["file"] == str(tmp_path / "counts.sqlite3")
    finally:
        lock.close()
        running.kill()


@pytest.mark.slow
def test_sigterm_ends_a_start_that_waits(tmp_path: Path) -> None:
    """SIGTERM ends a collector that waits for its locked inbox, although the lock never ends."""
    lock = sqlite3.connect(tmp_path / "counts.sqlite3-inbox", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    flags = ("--database-seconds", "100000")
    running = launch(tmp_path, f"sqlite:///{tmp_path / 'counts.sqlite3'}", *flags)
    try:
        wait_until(lambda: bool(running.events("registry in force")))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == -signal.SIGTERM
        assert not running.events("collector started")
    finally:
        lock.close()
        running.kill()


@pytest.mark.slow
def test_start_with_a_lost_inbox_fails_at_once(tmp_path: Path) -> None:
    """A collector whose inbox was deleted does not wait for it. The log has one error, the reason.

    The registry names `pages.txt`, which is missing. The log has a warning, and no `database
    created`, because the database exists.
    """
    registry, database = tmp_path / "metrics.toml", tmp_path / "metrics.sqlite3"
    registry.write_text(REGISTRY)
    assert call_command("migrate", "--registry", str(registry)).returncode == 0
    with open_database(sqlite_url(database)) as engine:
        commit(engine, build_upload())
    for file in tmp_path.glob("metrics.sqlite3-inbox*"):
        file.unlink()
    result = run_command("serve", str(registry), "--port", "0")
    assert result.returncode == 3
    events = [json.loads(line) for line in result.stderr.splitlines()]
    kinds = ["candidates missing", "registry in force", "start failed"]
    assert [event["event"] for event in events] == kinds
    assert (events[0]["metric"], events[0]["file"]) == ("page", "pages.txt")
    assert "metrics.sqlite3-inbox must be the inbox of this database" in events[2]["reason"]


@pytest.mark.slow
def test_start_fails_with_one_sentence(tmp_path: Path) -> None:
    """A missing registry, a missing database or a used port ends with exit code 2."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    result = run_command("serve")
    assert result.returncode == 2
    assert "given as the argument REGISTRY, in RAPPOR_SERVER_REGISTRY" in result.stderr
    missing_database = f"postgresql://nobody@127.0.0.1:{find_free_port()}/nothing"
    result = run_command(
        "serve", str(registry), "--database", missing_database, "--database-seconds", "1"
    )
    assert result.returncode == 2
    assert "waiting for the database" in result.stderr
    assert "the database cannot answer" in result.stderr.splitlines()[-1]
    # A folder that does not exist does not appear by waiting.
    lost = tmp_path / "nowhere" / "counts.sqlite3"
    result = run_command("serve", str(registry), "--database", f"sqlite:///{lost}")
    assert result.returncode == 2
    reason = f"the database {lost} cannot be opened: No such file or directory"
    assert result.stderr.splitlines()[-1] == f"rappor-server: {reason}"
    assert "waiting for the database" not in result.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = run_command("serve", str(registry), "--port", str(port))
    assert result.returncode == 2
    assert "host and port must be an address that is free" in result.stderr
    assert "Traceback" not in result.stderr


# Starts the server without the checks that the command makes before it, on an empty database.
STARTED = """
import sys
from rappor_server.base import logs
from rappor_server.cli.serve import run_server
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.storage.database import utc_today

settings = Settings(registry=sys.argv[1], port=0)
logs.configure()
run_server(settings, InputFiles.read(settings, today=utc_today()))
"""


@pytest.mark.slow
def test_late_failure_of_a_start_is_logged(tmp_path: Path) -> None:
    """If the schema changes after the first check, the exit code is 3, and the log says why."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    result = run_python("-c", STARTED, str(registry), code=3)
    events = [json.loads(line) for line in result.stderr.splitlines()]
    (failed,) = [event for event in events if event["event"] == "start failed"]
    assert "run rappor-server migrate" in failed["reason"]
    assert not [event for event in events if event["event"] == "collector listening"]


# Starts an application whose collector raises an error that no code expects.
BROKEN = """
import asyncio
from rappor_server.app.settings import Settings
from rappor_server.base import logs
from rappor_server.http.application import create_application

def open_collector(settings):
    raise KeyError("a message that may contain uploaded bytes")

async def start():
    app = create_application(Settings(registry="metrics.toml"), open_collector=open_collector)
    async with app.router.lifespan_context(app):
        pass

logs.configure()
asyncio.run(start())
"""


@pytest.mark.slow
def test_unexpected_failure_of_a_start_is_logged() -> None:
    """An operator reads the class of an error that no code expects, and the line that raised it."""
    result = run_python("-c", BROKEN, code=1)
    (event,) = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert event["event"] == "unexpected error"
    assert event["error"] == "KeyError"
    assert any("open_collector" in frame for frame in event["trace"])
    assert "uploaded bytes" not in json.dumps(event)


@pytest.mark.anyio
async def test_database_that_fails_during_a_start_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the database fails after the collector is open, the log says why, and it is closed.

    The pages then read the key of their cookies. uvicorn itself writes no reason.
    """

    def fail(_: object) -> str:
        raise StoreError("database failed: disk is full")

    monkeypatch.setattr(visits, "cookie_key", fail)
    collector = Mock(spec=Collector, engine=None)
    settings = Settings(registry="metrics.toml", pages=True, admin="127.0.0.1:0")
    app = create_application(settings, open_collector=lambda _: collector)
    with pytest.raises(StoreError):
        async with app.router.lifespan_context(app):
            pass
    failed, *_ = caplog.records
    assert failed.getMessage() == "start failed"
    assert failed.__dict__["fields"] == {"reason": "database failed: disk is full"}
    collector.close.assert_awaited_once()


def read_registry_digest(running: Running) -> str:
    """Return the digest of the registry in force."""
    lines = running.get("/metrics").text.splitlines()
    (line,) = [
        line for line in lines if line.startswith("rappor_registry_info{") and line.endswith(" 1.0")
    ]
    return line.split('"')[1]


@pytest.mark.slow
def test_several_units_on_one_database(tmp_path: Path, database: str) -> None:
    """Each unit reloads its own registry. An invalid registry stops no unit.

    A killed unit loses no upload of the others. A retry that reaches another unit counts once.
    """
    with contextlib.ExitStack() as stack:
        units = []
        for name in ("one", "two"):
            (folder := tmp_path / name).mkdir()
            flags = ("--suspicious", "accept")
            units.append(stack.enter_context(run_collector(folder, database, *flags)))
        # Both units get all uploads. Each upload counts once.
        bodies = [build_upload() for _ in range(20)]
        for unit in units:
            assert {unit.post(body).status_code for body in bodies} == {200}
        (old,) = {read_registry_digest(unit) for unit in units}
        for unit in units:
            (unit.folder / "metrics.toml").write_text(OTHER_REGISTRY)
            reload(unit)
        (new,) = {read_registry_digest(unit) for unit in units}
        assert new != old
        for unit in units:
            (unit.folder / "metrics.toml").write_text("nonsense [")
            reload(unit)
            assert read_registry_digest(unit) == new
        units[0].kill()
        assert units[1].post(build_upload()).status_code == 200
        counts = units[1].get("/v1/metrics/page/counts", make_token(database)).json()
        assert counts["reports"] == len(bodies) + 1
