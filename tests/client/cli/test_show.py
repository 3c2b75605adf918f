"""`rappor-client show`: sent uploads, privacy loss, and waiting reports of a device."""

from __future__ import annotations

import json
import math

import pytest
from days import record_days
from devices import Home, metric_of
from rappor_client.cli import main
from rappor_client.testing import peek

from rappor import Params
from rappor.protocol.wire import decode_base64url


def test_show_prints_what_left(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes, parameters, losses, waiting reports and counters, and no recorded value."""
    client = home.open(metric_of(), metric_of("slow", interval="day"), collector=home.transport)
    record_days(client, "page", ["telltale"])
    client.flush()
    record_days(client, "page", ["telltale"])
    client.record("slow", "telltale")
    client.close()
    assert main(["show", str(home.folder)]) == 0
    printed = capsys.readouterr().out
    assert home.transport.bodies[0].decode() in printed
    assert "2026-11-19  Upload " in printed
    assert ", 1 attempt\n" in printed
    assert "page: accepted (epsilon_1 = 2.00, epsilon_inf = 4.00)." in printed
    assert "Cohort 0 of 1, 128 bits: " in printed
    assert '\nWaiting: {"metric": "page", "params": "' in printed
    assert "1 report waiting to be sent, 1 report pending in open intervals." in printed
    assert "Counters: accepted 1, recorded 2" in printed
    assert "Somebody who thought it" in printed
    assert "telltale" not in printed


def test_show_for_scripts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object has the same facts."""
    client = home.open(metric_of(), collector=home.transport)
    record_days(client, "page", "x")
    client.flush()
    nats = client.privacy_spent().nats
    record_days(client, "page", "x")
    client.close()
    assert main(["show", str(home.folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (upload,) = document["uploads"]
    assert upload["body"] == home.transport.bodies[0].decode()
    (report,) = upload["reports"]
    assert len(report["bits"]) == 128
    sent = int(report["bits"][::-1], 2).to_bytes(16, "little")
    assert sent == home.transport.reports[0].bits
    assert report["status"] == "accepted"
    assert report["fingerprint"] == home.transport.reports[0].params
    assert Params.from_json(json.dumps(report["params"])).fingerprint == report["fingerprint"]
    assert document["spent"]["nats"] == nats
    assert document["spent"]["metrics"]["page"]["scopes"] == 1
    assert (document["waiting"], document["held"]) == (1, 0)
    (waits,) = document["reports"]
    (waiting,) = peek(home.folder).queued_reports
    assert decode_base64url("bits", waits.pop("bits")) == waiting.bits
    assert waits == {"metric": "page", "params": waiting.params, "cohort": waiting.cohort}
    assert document["counters"] == {"accepted": 1, "recorded": 2}


def test_infinite_loss_is_null_for_scripts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON cannot express infinity."""
    clear = Params(k=1, encoding="boolean", f=0.0, p=0.0, q=1.0, insecure=True)
    client = home.open(metric_of(params=clear))
    record_days(client, "page", [True])
    assert client.privacy_spent().nats == math.inf
    assert main(["show", str(home.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"]["nats"] is None
