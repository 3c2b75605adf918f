"""`rappor-client show`: sent uploads, privacy loss, and waiting reports of a device.

`home` is a device whose clock begins on 2026-11-18. `build_metric()` is a metric named "page" that
reports once a day. Its profile `balanced` has 128 bits, epsilon_1 = 2 and epsilon_inf = 4, and it
has one cohort. `record_days` records one value a day, and then moves the clock to the next day. The
report of each day is then *waiting* (finished, to be sent). The report of an interval that has not
ended is *pending*: a later event may still replace it.
"""

from __future__ import annotations

import json
import math

import pytest
from days import record_days
from devices import Home, build_metric
from rappor_client.cli import main
from rappor_client.testing import peek

from rappor import Params
from rappor.protocol.wire import decode_base64url


def test_show_prints_what_left(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes, parameters, losses, waiting reports and counters, and no recorded value.

    The value of 2026-11-18 is sent on 2026-11-19. The second value is recorded on that day, and its
    report waits. The third value, of the metric "pending", is recorded last. Its day never ends, so
    its report is pending, and it is still in the events that `close` writes.
    """
    client = home.open(
        build_metric(), build_metric("pending", interval="day"), collector=home.transport
    )
    record_days(client, "page", ["telltale"])
    client.flush()
    record_days(client, "page", ["telltale"])
    client.record("pending", "telltale")
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
    # "recorded" counts finished reports, so the pending report is missing.
    assert "Counters: accepted 1, recorded 2" in printed
    # The first words of the second sentence of `PrivacySpent.__str__`, about the belief of an
    # observer.
    assert "Somebody who thought it" in printed
    assert "telltale" not in printed


def test_show_for_scripts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--json`, one JSON object has the sent upload, the losses and the queued report."""
    client = home.open(build_metric(), collector=home.transport)
    record_days(client, "page", ["x"])
    client.flush()
    nats = client.privacy_spent().nats
    record_days(client, "page", ["x"])
    client.close()
    assert main(["show", str(home.folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (upload,) = document["uploads"]
    assert upload["body"] == home.transport.bodies[0].decode()
    (report,) = upload["reports"]
    assert len(report["bits"]) == 128
    # The text begins with bit 0, and `int` expects the highest bit first. A report of 128 bits has
    # 16 bytes, and its first byte contains the bits 0 to 7.
    sent = int(report["bits"][::-1], 2).to_bytes(16, "little")
    assert sent == home.transport.reports[0].bits
    assert report["status"] == "accepted"
    assert report["fingerprint"] == home.transport.reports[0].params
    assert Params.from_json(json.dumps(report["params"])).fingerprint == report["fingerprint"]
    assert document["spent"]["nats"] == nats
    # A scope is one metric in one epoch. The epoch of this metric is the life of the device.
    assert document["spent"]["metrics"]["page"]["scopes"] == 1
    # "held" is the number of pending reports.
    assert (document["waiting"], document["held"]) == (1, 0)
    (entry,) = document["reports"]
    (queued,) = peek(home.folder).queued_reports
    assert decode_base64url("bits", entry.pop("bits")) == queued.bits
    assert entry == {"metric": "page", "params": queued.params, "cohort": queued.cohort}
    assert document["counters"] == {"accepted": 1, "recorded": 2}


def test_infinite_loss_is_null_for_scripts(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON cannot express infinity.

    With f = 0, p = 0 and q = 1 no bit is randomized, so a report reveals the value with certainty.
    """
    clear = Params(k=1, encoding="boolean", f=0.0, p=0.0, q=1.0, insecure=True)
    client = home.open(build_metric(params=clear))
    record_days(client, "page", [True])
    assert client.privacy_spent().nats == math.inf
    assert main(["show", str(home.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"]["nats"] is None
