"""Secrecy: files, logs, exceptions and reprs contain no value, hash, bits or secret."""

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
    build_metric,
    find_spool,
    get_identity_folder,
    open_spool,
    peek,
    read_secret,
    refuse_new_rows,
)
from rappor_client import BudgetCap, ClientOptions
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
"""Sets many bits, so no other bytes equal the bits of a value by chance."""
# Metrics for life, a metric with epochs of a month, and a metric with a normalizer. All report
# daily.
METRICS = (
    build_metric("plain", WIDE),
    build_metric("daily", WIDE, interval="day"),
    build_metric("monthly", WIDE, epoch="month"),
    build_metric("normalized", Params(k=256, h=16, m=8, f=0.3, p=0.2, q=0.7, normalize="casefold")),
)


def spell_bytes(data: bytes) -> list[bytes]:
    """Return bytes in the forms in which programs write them: raw, hex and base64."""
    return [
        data,
        data.hex().encode(),
        data.hex().upper().encode(),
        base64.b64encode(data).rstrip(b"="),
        base64.urlsafe_b64encode(data).rstrip(b"="),
    ]


def spell_secrets(secret: bytes) -> list[bytes]:
    """Return the forms of values, their hashes, their true bits, and the secret."""
    secrets = [secret]
    for value in VALUES:
        for text in (value, value.casefold()):
            data = text.encode()
            digests = [hashlib.new(name, data).digest() for name in ("md5", "sha1", "sha256")]
            murmur = mmh3.mmh3_x64_128_digest(data)
            secrets += [data, *digests, murmur, murmur[:8], murmur[8:]]
            secrets += [mmh3.hash_bytes(data)]
        for metric in METRICS:
            cohort = derive_cohort(secret, metric.name, "", metric.params)
            secrets.append(get_encoder(metric.params).encode(value, cohort))
    return [form for data in secrets for form in spell_bytes(data)]


def read_files_but_state(folder: Path) -> bytes:
    """Return the bytes of all files but the state, which contains the secret."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("state.")
    ]
    assert any(path.suffix == ".sqlite3" for path in files)
    return b"\0".join(path.read_bytes() for path in files)


def use_client(open_client: Opener, clock: FixedClock, folder: Path) -> list[str]:
    """Use the client in all ways, and return the texts of exceptions and reprs.

    The client records, sends, fails, refuses values and restarts.
    """
    texts: list[str] = []
    transport = MemoryTransport([None])  # the first attempt fails
    # Under the second cap no metric has room, so every value is skipped.
    for cap in (UNCAPPED, BudgetCap(total=0.1)):
        client = open_client(*METRICS, collector=transport, budget_cap=cap)
        for value in VALUES:
            texts += [repr(client.record(metric.name, value)) for metric in METRICS]
            if cap != UNCAPPED:
                continue  # a skipped metric does not look at the value
            for wrong in (value.encode(), [value], {value: value}, value + "\ud800"):
                with pytest.raises(RapporError) as caught:
                    client.record("plain", wrong)
                texts += [str(caught.value), repr(caught.value)]
            finish_days(client)
        texts += [str(client.flush(timeout=0.0)), repr(peek(folder))]
        clock.advance(days=40)
        texts += [repr(client.flush())]
        texts += [
            repr(client),
            str(client.privacy_spent()),
            repr(client.privacy_spent()),
            repr(client.event_counts()),
        ]
        writer = client._writer
        assert writer is not None
        identity = writer.identity
        secret = read_secret(folder)
        texts += [
            repr(client.sent_uploads()),
            repr(identity),
            repr(identity.state),
            repr(peek(folder)),
        ]
        texts += [repr(identity.state.to_text()), repr(copies.read(identity.folder))]
        prepared = prepare_report(secret, METRICS[0], VALUES[0], epoch="", coins=draw_system_coins)
        texts += [repr(prepared), repr(prepared.report)]
        client.close()
    return texts


def test_no_secret_is_written_or_shown(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """No secret text is in a file, a message, a repr or a log line."""
    caplog.set_level(logging.DEBUG)
    texts = use_client(home.open, home.clock, home.folder)
    written = read_files_but_state(home.folder)
    spoken = "\n".join([*texts, caplog.text]).encode()
    for secret_bytes in spell_secrets(read_secret(home.folder)):
        assert secret_bytes not in written
        assert secret_bytes not in spoken


def test_options_do_not_show_the_upload_key() -> None:
    """The text of options omits the upload key, which is a secret of the program.

    A host program holds the options in a variable. Tools that report errors print the variables of
    all frames of a traceback.
    """
    options = ClientOptions(upload_key="telltale-key", segment={"version": "2"})
    assert "telltale-key" not in repr(options)
    assert "'version': '2'" in repr(options)


def test_search_finds_planted_secrets(home: Home) -> None:
    """The search finds the secret in its file, and bits that the test writes into the spool."""
    client = home.open(*METRICS)
    record_days(client, "plain", VALUES[:1])
    secret = read_secret(home.folder)
    assert client.queued_count() == 1
    assert secret.hex().encode() in (get_identity_folder(home.folder) / "state.1").read_bytes()
    cohort = derive_cohort(secret, "plain", "", WIDE)
    bits = get_encoder(WIDE).encode(VALUES[0], cohort)
    with open_spool(home.folder) as db:
        db.execute("INSERT INTO state VALUES ('planted', ?)", (bits.hex(),))
    written = read_files_but_state(home.folder)
    assert any(secret_bytes in written for secret_bytes in spell_secrets(secret))


def test_tracebacks_of_a_failing_disk_show_no_value(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback of a failing disk and its log lines contain no value and no secret."""
    client = home.open(*METRICS, collector=MemoryTransport())
    record_days(client, "plain", VALUES[:1])
    assert client.queued_count() == 1
    client.record("plain", VALUES[0])
    with refuse_new_rows(home.folder):
        home.clock.advance(days=1)
        assert not client.flush(timeout=1.0)
        report = Report(metric="plain", params="p", cohort=0, bits=b"")
        with (
            pytest.raises(sqlite3.Error) as caught,
            Store(find_spool(home.folder)).transaction() as db,
        ):
            add_report(db, report, "id", send_after=0.0, leaves_before=math.inf)
    printed = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert VALUES[0] not in printed
    assert read_secret(home.folder).hex() not in printed
