"""Nothing true leaves, and nothing true is written: files, logs, exceptions, representations."""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import sqlite3
import traceback
from pathlib import Path

import mmh3
import pytest
from days import finish_days, record_days
from devices import (
    UNCAPPED,
    Home,
    Opener,
    find_spool,
    metric_of,
    open_spool,
    peek,
    read_secret,
    refusing_disk,
)
from devices import identity_path as own_folder
from rappor_client import BudgetCap
from rappor_client.budget.prepared_report import prepare_report
from rappor_client.folder import copies
from rappor_client.folder.spool import add_report
from rappor_client.folder.store import Store
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Params, RapporError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import derive_cohort, draw_system_coins
from rappor.protocol.wire import Report

VALUES = ("telltale-value-one", "Telltale Ünicode Zwei", "x" * 5 + "telltale-three")
WIDE = Params(k=256, h=16, m=8, f=0.3, p=0.2, q=0.7)
"""Many bits are set, so that no Bloom filter is met by accident."""
METRICS = (
    metric_of("plain", WIDE),
    metric_of("held", WIDE, interval="day"),
    metric_of("latched", WIDE, epoch="month"),
    metric_of("folded", Params(k=256, h=16, m=8, f=0.3, p=0.2, q=0.7, normalize="casefold")),
)


def spellings(data: bytes) -> list[bytes]:
    """Return the ways in which bytes are commonly written."""
    return [
        data,
        data.hex().encode(),
        data.hex().upper().encode(),
        base64.b64encode(data).rstrip(b"="),
        base64.urlsafe_b64encode(data).rstrip(b"="),
    ]


def true_things(secret: bytes) -> list[bytes]:
    """Return the values, their unkeyed hashes, their Bloom filters and the secret, spelled out."""
    things = [secret]
    for value in VALUES:
        for text in (value, value.casefold()):
            data = text.encode()
            digests = [hashlib.new(name, data).digest() for name in ("md5", "sha1", "sha256")]
            murmur = mmh3.mmh3_x64_128_digest(data)
            things += [data, *digests, murmur, murmur[:8], murmur[8:]]
            things += [mmh3.hash_bytes(data)]
        for metric in METRICS:
            identity_path = derive_cohort(secret, metric.name, "", metric.params)
            things.append(get_encoder(metric.params).encode(value, identity_path))
    return [spelled for thing in things for spelled in spellings(thing)]


def everything_written(folder: Path) -> bytes:
    """Return all bytes of all files but the state, which has the secret."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("state.")
    ]
    assert any(path.suffix == ".sqlite3" for path in files)
    return b"\0".join(path.read_bytes() for path in files)


def lead_through_everything(open_client: Opener, clock: FixedClock, folder: Path) -> list[str]:
    """Record, send, fail, refuse, restart; return what exceptions and representations said."""
    said: list[str] = []
    transport = MemoryTransport([None])
    for caps in (UNCAPPED, BudgetCap(total=0.1)):
        client = open_client(*METRICS, collector=transport, budget_cap=caps)
        for value in VALUES:
            said += [repr(client.record(metric.name, value)) for metric in METRICS]
            if caps != UNCAPPED:
                continue  # silent metrics look at no value
            for wrong in (value.encode(), [value], {value: value}, value + "\ud800"):
                with pytest.raises(RapporError) as caught:
                    client.record("plain", wrong)
                said += [str(caught.value), repr(caught.value)]
            finish_days(client)
        said += [str(client.flush(timeout=0.0)), repr(peek(folder))]
        clock.advance(days=40)
        said += [repr(client.flush())]
        said += [
            repr(client),
            str(client.privacy_spent()),
            repr(client.privacy_spent()),
            repr(client.event_counts()),
        ]
        writer = client._writer
        assert writer is not None
        identity = writer.identity
        secret = read_secret(folder)
        said += [
            repr(client.sent_uploads()),
            repr(identity),
            repr(identity.state),
            repr(peek(folder)),
        ]
        said += [repr(identity.state.to_text()), repr(copies.read(identity.folder))]
        prepared = prepare_report(secret, METRICS[0], VALUES[0], epoch="", coins=draw_system_coins)
        said += [repr(prepared), repr(prepared.report)]
        client.close()
    return said


def test_nothing_true_is_written_or_said(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the database, its log, a message, a representation or a log line."""
    caplog.set_level(logging.DEBUG)
    said = lead_through_everything(home.open, home.clock, home.folder)
    written = everything_written(home.folder)
    spoken = "\n".join([*said, caplog.text]).encode()
    for thing in true_things(read_secret(home.folder)):
        assert thing not in written
        assert thing not in spoken


def test_the_search_finds_what_is_there(home: Home) -> None:
    """The secret in its own file and a value put into the database by hand are found."""
    client = home.open(*METRICS)
    record_days(client, "plain", VALUES[:1])
    secret = read_secret(home.folder)
    assert client.queued_count() == 1
    assert secret.hex().encode() in (own_folder(home.folder) / "state.1").read_bytes()
    identity_path = derive_cohort(secret, "plain", "", WIDE)
    bits = get_encoder(WIDE).encode(VALUES[0], identity_path)
    with open_spool(home.folder) as db:
        db.execute("INSERT INTO state VALUES ('planted', ?)", (bits.hex(),))
    written = everything_written(home.folder)
    assert any(thing in written for thing in true_things(secret))


def test_tracebacks_of_a_failing_disk_show_no_value(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do the errors that are caught inside."""
    client = home.open(*METRICS, collector=MemoryTransport())
    record_days(client, "plain", VALUES[:1])
    assert client.queued_count() == 1
    client.record("plain", VALUES[0])
    with refusing_disk(home.folder):
        home.clock.advance(days=1)
        assert not client.flush(timeout=1.0)
        report = Report(metric="plain", params="p", cohort=0, bits=b"")
        with (
            pytest.raises(sqlite3.Error) as caught,
            Store(find_spool(home.folder)).transaction() as db,
        ):
            add_report(db, report, "id", send_after=0.0, leaves_before=math.inf)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert VALUES[0] not in shown
    assert read_secret(home.folder).hex() not in shown
