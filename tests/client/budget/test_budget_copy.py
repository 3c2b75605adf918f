"""The budget beside the secret: what a lost, emptied or older database does not bring back."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from devices import DATABASE, Opener, database, lose, metric_of, secret_of
from rappor_client import Caps, Client, IdentityError, Outcome
from rappor_client.budget import budget_copy, ledger, reservation, reservoir
from rappor_client.budget.budget_copy import Copy
from rappor_client.folder import spool
from rappor_client.folder.store import in_memory
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins, peek

from rappor import Metric, Params, epsilon_inf
from rappor.protocol.encodings import encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.parts import Part
from rappor.protocol.randomizer import cohort, permanent
from rappor.protocol.wire import Report

CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself, of values that do not collide."""
YEARLY = metric_of(params=CLEAR, epoch="year")


def empty(folder: Path) -> None:
    """Truncate the database to nothing."""
    lose(folder)
    (folder / DATABASE).touch()


def document_of(folder: Path) -> Any:
    """Return what the copy holds."""
    return json.loads((folder / "budget").read_text().splitlines()[1])


def send(client: Client, transport: MemoryTransport, name: str, value: str) -> bytes:
    """Record and send a value; return the bits that arrived."""
    assert client.record(name, value)
    assert client.flush()
    return transport.reports[-1].bits


@pytest.mark.parametrize("losing", [lose, empty])
@pytest.mark.parametrize("epoch", ["life", "year"])
def test_lost_database_brings_back_no_latch_and_no_budget(
    losing: Callable[[Path], None], epoch: str, open_client: Opener, tmp_path: Path
) -> None:
    """The first value still answers, and it counts as if it had cost all that it can."""
    metric, transport = metric_of(params=CLEAR, epoch=epoch), MemoryTransport()
    client = open_client(metric, transport=transport, caps=Caps(total=epsilon_inf(CLEAR) + 0.01))
    first = send(client, transport, "page", "a")
    reserved = client.spent().reserved
    client.close()
    losing(tmp_path / "device")
    client = open_client(metric, transport=transport, caps=Caps(total=epsilon_inf(CLEAR) + 0.01))
    assert client.spent().reserved == reserved
    assert client.spent().nats >= epsilon_inf(CLEAR)
    assert send(client, transport, "page", "b") == first
    assert client.counters()["rebuilt"] == 1
    assert client.spent().nats <= epsilon_inf(CLEAR) + 0.001


def test_lost_database_is_noticed_while_the_client_runs(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """The next record rebuilds it, in a new year too."""
    transport = MemoryTransport()
    client = open_client(YEARLY, transport=transport)
    first = send(client, transport, "page", "a")
    lose(tmp_path / "device")
    assert client.waiting() == 0
    assert client.spent().nats >= epsilon_inf(CLEAR)
    assert send(client, transport, "page", "b") == first
    lose(tmp_path / "device")
    clock.advance(days=365)
    assert send(client, transport, "page", "b") != first
    client.withdraw()


def test_withdrawal_elsewhere_is_noticed_in_a_new_year(
    open_client: Opener, clock: FixedClock
) -> None:
    """Whatever has to be looked up again, the secret is looked for first."""
    running, other = open_client(YEARLY), open_client(YEARLY)
    other.withdraw()
    clock.advance(days=365)
    assert running.record("page", "a") is Outcome.NO_CONSENT
    assert running.counters() == {}


@pytest.mark.parametrize("is_closed", [False, True])
def test_database_emptied_in_place_is_noticed(
    is_closed: bool, open_client: Opener, tmp_path: Path
) -> None:
    """A file system gives the number of a removed file to the next one: nothing relies on it."""
    transport, folder = MemoryTransport(), tmp_path / "device"
    client = open_client(YEARLY, transport=transport)
    first = send(client, transport, "page", "a")
    if is_closed:
        client.close()
    for path in (folder / DATABASE, folder / f"{DATABASE}-wal"):
        if path.exists():
            os.truncate(path, 0)
    assert client.record("page", "b")
    client.flush()
    assert send(client, transport, "page", "b") == first
    assert {report.bits for report in transport.reports} == {first}
    assert b"page" in (folder / "budget").read_bytes()


def test_older_database_brings_back_no_latch(open_client: Opener, tmp_path: Path) -> None:
    """Neither an empty one, nor one whose reports were drawn from another value."""
    folder, transport = tmp_path / "device", MemoryTransport()
    client = open_client(YEARLY, transport=transport)
    client.record("page", "never sent")
    client.close()
    older = shutil.copy(folder / DATABASE, tmp_path / "older")
    lose(folder)
    client = open_client(YEARLY, transport=transport)
    first = send(client, transport, "page", "a")
    client.close()
    lose(folder)
    shutil.copy(older, folder / DATABASE)
    client = open_client(YEARLY, transport=transport)
    assert client.waiting() == 0
    assert client.counters()["dropped_old"] == 1
    assert send(client, transport, "page", "b") == first
    assert {report.bits for report in transport.reports} == {first}


@pytest.mark.parametrize("has_older", [True, False])
def test_closed_scope_stays_closed(*, has_older: bool, open_client: Opener, tmp_path: Path) -> None:
    """With the response of its last report, and what was admitted before it.

    Also beside a database of the moment before.
    """
    folder, transport = tmp_path / "device", MemoryTransport()
    metric = metric_of(params=CLEAR, epoch="year", patterns=2)
    client = open_client(metric, transport=transport)
    sent = [send(client, transport, "page", value) for value in "aba"]
    client.close()
    older = shutil.copy(folder / DATABASE, tmp_path / "older")
    client = open_client(metric, transport=transport)
    assert send(client, transport, "page", "c") == sent[2] == sent[0]
    client.close()
    lose(folder)
    if has_older:
        shutil.copy(older, folder / DATABASE)
    client = open_client(metric, transport=transport)
    assert [send(client, transport, "page", value) for value in "bcd"] == [sent[0]] * 3


def test_number_of_reports_that_a_price_counts_on_is_not_passed(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """With f = 0 only it bounds the loss; after the database is lost it counts as reached."""
    clear = Params(k=8, f=0.0, p=0.25, q=0.75)
    metric = metric_of(params=clear, epoch="month", interval="week")
    transport = MemoryTransport()
    clock.set("2026-11-01T00:00:00")
    for day in range(45):
        client = open_client(metric, transport=transport)
        client.record("page", "x")
        assert client.flush()
        client.close()
        if day == 12:
            lose(tmp_path / "device")
        clock.advance(days=1)
    spent = open_client(metric).spent()
    assert spent.nats <= sum(spent.reserved.values())
    sent_in = [scope.n_reports for scope in peek(tmp_path / "device").patterns]
    assert sent_in == [6, 2]  # at most six weeks touch a month: November's are taken as sent
    assert len(transport.reports) == 2 + 2


@pytest.mark.parametrize("epoch", ["quarter", "life"])
def test_database_that_is_only_older_by_a_report_is_noticed(
    epoch: str, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Whenever it was copied and whenever it is put back, and again after it was put back once."""
    folder, older = tmp_path / "device", tmp_path / "older"
    metric = metric_of(params=Params(k=8, f=0.1, p=0.45, q=0.55), epoch=epoch, interval="week")
    for copied, put_back in itertools.combinations(range(4), 2):
        clock.set("2026-10-05T00:00:00")
        transport = MemoryTransport()
        shutil.rmtree(folder, ignore_errors=True)
        for week in [0, 1, 2, 3, 4, 4]:
            client = open_client(metric, transport=transport)
            client.record("page", "x")
            clock.advance(days=7)
            client.flush()
            spent = client.spent()
            client.close()
            if week == copied:
                shutil.copy(folder / DATABASE, older)
            if week >= put_back:
                lose(folder)
                shutil.copy(older, folder / DATABASE)
        assert len(transport.reports) >= put_back
        assert spent.nats >= epsilon_n(metric.params, len(transport.reports))
        assert spent.nats <= sum(spent.reserved.values())
        if epoch == "quarter":
            assert len(transport.reports) <= put_back + 1


def test_part_stays(open_client: Opener, tmp_path: Path) -> None:
    """Over changed shares and a lost database, for values that are still admitted."""
    transport, folder = MemoryTransport(), tmp_path / "device"
    for epoch in ("life", "year"):
        name = f"page.{epoch}"
        parts = [(Part("prefix:2", share), Part("whole")) for share in (0.0001, 0.9999)]
        fields: dict[str, Any] = {"params": CLEAR, "epoch": epoch, "patterns": 2}
        before, after = (metric_of(name, parts=each, **fields) for each in parts)
        client = open_client(before, transport=transport)
        send(client, transport, name, "alpha")
        kept = transport.reports[-1].params
        client.close()
        for is_lost in (False, True):
            if is_lost:
                lose(folder)
            client = open_client(after, transport=transport)
            assert client.record(name, "beta") is Outcome.RECORDED
            assert client.flush()
            assert transport.reports[-1].params == kept
            client.close()


def test_copy_is_on_the_disk_before_a_report_leaves(open_client: Opener, tmp_path: Path) -> None:
    """Whatever the transport sees has its scope and its reservation in the file."""
    seen: list[dict[str, Any]] = []

    class Looking(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Any:
            seen.append(document_of(tmp_path / "device"))
            return super().send(body, timeout=timeout)

    client = open_client(metric_of("one"), metric_of("two", epoch="month"), transport=Looking())
    for name in ("one", "two"):
        client.record(name, "x")
        assert client.flush()
    assert [[scope[0] for scope in each["scopes"]] for each in seen] == [["one"], ["one", "two"]]
    assert [[row[1] for row in each["reserved"]] for each in seen] == [["one"], ["one", "two"]]


def test_nothing_leaves_where_the_copy_cannot_be_written(
    open_client: Opener, tmp_path: Path
) -> None:
    """A budget that is nowhere but in the database would be lost with it."""
    transport = MemoryTransport()
    client = open_client(metric_of("one"), metric_of("two"), transport=transport)
    client.record("one", "x")
    (tmp_path / "device" / "budget").unlink()
    (tmp_path / "device" / "budget").mkdir()
    assert not client.flush(timeout=0.0)
    assert transport.bodies == []
    (tmp_path / "device" / "budget").rmdir()
    assert client.flush()
    assert client.record("two", "x")


def test_copy_that_is_lost_or_damaged_is_written_anew(open_client: Opener, tmp_path: Path) -> None:
    """From the database, before the next report leaves."""
    budget, transport = tmp_path / "device" / "budget", MemoryTransport()
    client = open_client(YEARLY, transport=transport)
    first = send(client, transport, "page", "a")
    whole = budget.read_bytes()
    for data in (None, b"", whole[:-1], whole.replace(b"page", b"pige"), b"x" * 500):
        if data is None:
            budget.unlink()
        else:
            budget.write_bytes(data)
        assert send(client, transport, "page", "a") == first
        assert budget.read_bytes() == whole


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE scope SET interval = 'dax'",
        "UPDATE scope SET permanent = X'00'",
        "UPDATE scope SET admitted = X'0011', last = X'0011'",
        "UPDATE scope SET last_day = '2026-13-01'",
        "UPDATE scope SET metric = 5",
        "UPDATE params SET document = 'x'",
        "UPDATE params SET document = REPLACE(document, '64', '65')",
        "UPDATE reserved SET nats = 'many'",
        "DELETE FROM params",
        "DELETE FROM state",
    ],
)
def test_damage_of_the_database_never_spreads_to_the_copy(
    statement: str, open_client: Opener, tmp_path: Path
) -> None:
    """What cannot be right is not written, and what was right stays; it is rebuilt from."""
    transport, folder = MemoryTransport(), tmp_path / "device"
    client = open_client(YEARLY, transport=transport)
    first = send(client, transport, "page", "a")
    (kept,) = document_of(folder)["scopes"]
    with database(folder) as db:
        db.execute(statement)
    for _ in range(2):
        client.record("page", "a")
        client.flush()
    assert kept in document_of(folder)["scopes"]
    assert send(client, transport, "page", "a") == first
    assert {report.bits for report in transport.reports} == {first}


@pytest.mark.parametrize("damage", [b"", None])
def test_both_lost_is_silence_for_good_or_until_the_year_ends(
    damage: bytes | None, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Nothing tells what was spent, and that is told."""
    metrics, folder = (metric_of("life"), metric_of("year", epoch="year")), tmp_path / "device"
    client = open_client(*metrics)
    assert client.record("life", "x")
    client.close()
    lose(folder)
    (folder / "budget").unlink()
    if damage is not None:
        (folder / "budget").write_bytes(damage)
    for _ in range(2):
        client = open_client(*metrics)
        assert [client.record(metric.name, "x") for metric in metrics] == [Outcome.SILENT] * 2
        assert client.spent().nats == float("inf")
        assert "Reserved for 2026: unknown" in str(client.spent())
        client.close()
    clock.set("2025-06-01T00:00:00")  # nor does a clock that is set back bring anything
    client = open_client(*metrics)
    assert [client.record(metric.name, "x") for metric in metrics] == [Outcome.SILENT] * 2
    clock.set("2027-01-01T00:00:00")
    assert client.record("life", "x") is Outcome.SILENT
    assert client.record("year", "x") is Outcome.RECORDED


def test_damaged_copy_that_is_all_there_is_is_silence_until_the_year_ends(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """A device that begins does not know what an earlier one had reserved."""
    folder = tmp_path / "device"
    open_client().close()
    lose(folder)
    (folder / "identity").unlink()
    (folder / "budget").write_bytes(b"damaged")
    client = open_client()
    assert client.record("page", "a") is Outcome.SILENT
    clock.set("2027-01-01T00:00:00")
    assert client.record("page", "a") is Outcome.RECORDED


def test_loss_under_a_wrong_clock_is_a_loss_in_the_true_year(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """A clock that starts in 1970 ends no silence when it is set; the next year does."""
    metric, folder = metric_of(epoch="quarter"), tmp_path / "device"
    client = open_client(metric)
    assert client.record("page", "x")
    client.close()
    lose(folder)
    (folder / "budget").unlink()
    outcomes = []
    for moment in ("1970-01-01", "2026-11-01", "2026-12-31", "2027-01-01", "2029-06-01"):
        clock.set(f"{moment}T00:00:00")
        client = open_client(metric, transport=MemoryTransport())
        outcomes.append(client.record("page", "y"))
        client.flush()
        client.close()
    assert outcomes == [Outcome.SILENT] * 3 + [Outcome.RECORDED] * 2
    lose(folder)
    assert open_client(metric).record("page", "y")


def test_killed_while_being_created(open_client: Opener, tmp_path: Path) -> None:
    """Whatever of the three files is there, the device begins, and has lost nothing."""
    folder = tmp_path / "device"
    open_client().close()
    for kept in (["budget"], ["budget", "identity"], [DATABASE, "budget"]):
        partly = tmp_path / "-".join(kept)
        partly.mkdir(mode=0o700)
        for name in kept:
            shutil.copy(folder / name, partly)
        if kept == [DATABASE, "budget"]:  # the database's transaction had not ended
            with database(partly) as db:
                db.execute("DELETE FROM state")
        client = open_client(folder=partly.name)
        assert client.record("page", "x") is Outcome.RECORDED
        assert client.spent().reserved == {2026: pytest.approx(4, abs=0.001)}


def test_replaced_secret_after_the_database_keeps_what_was_reserved(
    open_client: Opener, tmp_path: Path
) -> None:
    """The copy tells it, where neither secret nor database are left."""
    caps, transport = Caps(total=epsilon_inf(CLEAR) + 0.01), MemoryTransport()
    client = open_client(YEARLY, caps=caps, transport=transport)
    send(client, transport, "page", "a")
    client.close()
    lose(tmp_path / "device")
    (tmp_path / "device" / "identity").unlink()
    with pytest.raises(IdentityError):
        open_client(YEARLY, caps=caps)
    client = open_client(YEARLY, caps=caps, on_bad_identity="reset")
    assert client.record("page", "b") is Outcome.SILENT


def test_client_that_is_open_is_silent_in_a_year_that_was_lost(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Secret and database come back under it; the budget beside them is another identity's."""
    folder, metric = tmp_path / "device", metric_of(params=CLEAR, epoch="year", interval="day")
    client = open_client(metric)
    client.record("page", "a")
    client.close()
    backup = {name: (folder / name).read_bytes() for name in ("identity", DATABASE)}
    client.withdraw()
    client = open_client(metric, transport=MemoryTransport())
    client.record("page", "a")
    clock.advance(days=1)
    assert client.flush()
    for path in folder.glob(f"{DATABASE}-*"):
        path.unlink()
    for name, data in backup.items():
        (folder / "restored").write_bytes(data)
        (folder / "restored").chmod(0o600)
        (folder / "restored").replace(folder / name)
    assert client.record("page", "b") is Outcome.SILENT
    assert client.record("page", "b") is Outcome.SILENT
    assert client.spent().reserved == {2026: math.inf}


@pytest.mark.parametrize("how", ["withdraw", "reset"])
def test_secret_and_database_from_a_backup_bring_back_no_budget(
    how: str, open_client: Opener, tmp_path: Path
) -> None:
    """Beside a newer copy, of nobody or of another identity: silence, and nothing is forgotten."""
    folder, transport = tmp_path / "device", MemoryTransport()
    client = open_client(YEARLY, transport=transport)
    send(client, transport, "page", "a")
    client.record("page", "a")  # it waits in the backup, too
    client.close()
    backup = {name: (folder / name).read_bytes() for name in ("identity", DATABASE)}
    client = open_client(YEARLY, transport=transport)
    client.record("page", "a")
    if how == "withdraw":
        client.withdraw()
    else:
        client.close()
        (folder / "identity").unlink()
        client = open_client(YEARLY, transport=transport, on_bad_identity="reset")
        send(client, transport, "page", "b")
    spent = client.spent() if how == "reset" else peek(folder).spent
    client.close()
    lose(folder)
    for name, data in backup.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    n_sent = len(transport.reports)
    for _ in range(2):
        client = open_client(YEARLY, transport=transport)
        assert client.record("page", "c") is Outcome.SILENT
        client.flush()
        assert len(transport.reports) == n_sent
        again = client.spent()
        assert again.carried >= spent.carried
        assert sum(again.reserved.values()) >= sum(spent.reserved.values())
        assert again.nats >= spent.nats
        client.close()


def test_what_another_identity_has_spent_is_added_to_what_the_own_one_carries() -> None:
    """Both have been spent by this device; and what waits or is held may have left."""
    with contextlib.closing(in_memory()) as own, contextlib.closing(in_memory()) as other:
        ledger.carry(own, 2.0)
        ledger.carry(other, 3.0)
        report = Report(metric="page", params=CLEAR.fingerprint, cohort=0, bits=bytes(16))
        spool.add(own, report, 1.0)
        own.execute(
            "INSERT INTO held (metric, epoch, ends, seconds, events, bits, pattern) "
            "VALUES ('slow', '', 1.0, 1.0, 1, X'00', X'00')"
        )
        reservation.add_earlier(own, {2026: 2.0})
        reservation.add_earlier(other, {2026: 3.0})
        budget_copy.absorb_other(own, Copy(budget_copy.dump(other)))
        assert ledger.carried(own) == 5.0
        assert spool.waiting(own) == 0
        assert reservoir.held(own) == []


def back_up(folder: Path) -> dict[str, bytes]:
    """Return the secret and the database of a device whose client is closed."""
    return {name: (folder / name).read_bytes() for name in ("identity", DATABASE)}


def restore(folder: Path, backup: dict[str, bytes], *names: str) -> None:
    """Put some files of a backup in the place of those that are there now."""
    for path in folder.glob(f"{DATABASE}-*"):
        path.unlink()
    for name in names:
        (folder / "restored").write_bytes(backup[name])
        (folder / "restored").chmod(0o600)
        (folder / "restored").replace(folder / name)


@pytest.mark.parametrize("way", ["of nobody", "of another", "emptied", "both lost"])
def test_withdrawal_forgets_nothing_beside_a_database_that_knows_less(
    way: str, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """An older one from a backup, beside the copy of nobody or of a later identity; or none."""
    folder, transport = tmp_path / "device", MemoryTransport()
    client = open_client(YEARLY, transport=transport)
    send(client, transport, "page", "a")
    client.close()
    backup = back_up(folder)
    clock.advance(days=365)
    client = open_client(YEARLY, transport=transport)
    send(client, transport, "page", "b")
    if way == "of nobody":
        client.withdraw()
    client.close()
    if way == "of another":
        (folder / "identity").unlink()
        client = open_client(YEARLY, transport=transport, on_bad_identity="reset")
        send(client, transport, "page", "c")
        client.close()
    spent = peek(folder).spent
    if way.startswith("of"):
        restore(folder, backup, *backup)
    else:
        empty(folder)
    if way == "both lost":
        (folder / "budget").unlink()
        spent = dataclasses.replace(spent, reserved={2027: math.inf})
    open_client(YEARLY, consent=False)
    kept = peek(folder).spent
    assert kept.nats >= spent.nats - 1e-9
    assert all(kept.reserved[year] >= nats for year, nats in spent.reserved.items())


def test_database_of_an_earlier_identity_says_no_less_and_sends_nothing_again(
    open_client: Opener, tmp_path: Path
) -> None:
    """Consent was withdrawn and given again, and then the old database came back alone."""
    folder, transport = tmp_path / "device", MemoryTransport()
    several = dataclasses.replace(YEARLY, patterns=2)
    client = open_client(several, transport=transport)
    client.record("page", "a")
    client.close()
    backup = back_up(folder)
    client = open_client(several, transport=transport)
    send(client, transport, "page", "b")
    client.withdraw()
    spent = peek(folder).spent
    client = open_client(several, transport=transport, caps=Caps(total=0.1))
    n_sent = len(transport.bodies)
    client.close()
    restore(folder, backup, DATABASE)
    client = open_client(several, transport=transport, caps=Caps(total=0.1))
    assert client.record("page", "c") is Outcome.SILENT
    client.flush()
    assert len(transport.bodies) == n_sent
    assert client.spent().nats >= spent.nats - 1e-9


@pytest.mark.parametrize("losing", ["emptied", "older"])
def test_what_was_spent_is_told_before_a_database_is_rebuilt(
    losing: str, open_client: Opener, tmp_path: Path
) -> None:
    """To the program that has the folder open, and to whoever looks into it."""
    folder, transport = tmp_path / "device", MemoryTransport()
    client = open_client(dataclasses.replace(YEARLY, patterns=2), transport=transport)
    send(client, transport, "page", "a")
    client.close()
    backup = back_up(folder) | ({DATABASE: b""} if losing == "emptied" else {})
    client = open_client(dataclasses.replace(YEARLY, patterns=2), transport=transport)
    send(client, transport, "page", "b")
    before = client.spent()
    restore(folder, backup, DATABASE)
    assert peek(folder).spent.nats >= before.nats
    assert client.spent().nats >= before.nats
    assert client.spent().reserved == before.reserved
    assert client.record("page", "a")
    assert client.spent().nats >= before.nats


# Every short history of values, epochs, restarts, changes and losses

EVENTS = ("nothing", "restart", "next epoch", "epoch back", "lose", "older", "more noise")
QUIETER = dataclasses.replace(CLEAR, p=2**-32)
"""Another p under the same permanent response; with the coins below, a 0 is shown as it is."""


class Life:
    """One device that is led through events, and the reports that left it."""

    def __init__(self, folder: Path, opener: Opener, epoch: str) -> None:
        self.folder, self.opener, self.epoch = folder, opener, epoch
        self.clock = FixedClock("2026-11-18T12:00:00")
        self.transport = MemoryTransport()
        self.params = CLEAR
        self.client = self.open()
        self.epochs: list[str] = []
        self.client.close()
        shutil.copy(folder / DATABASE, folder.with_suffix(".older"))
        self.client = self.open()

    def metric(self) -> Metric:
        """Return the metric as it is now."""
        return metric_of(params=self.params, epoch=self.epoch)

    def open(self) -> Client:
        """Open the device."""
        settings: dict[str, Any] = {"transport": self.transport, "clock": self.clock}
        settings["coins"] = constant_coins(2**31)
        return self.opener(self.metric(), folder=self.folder.name, **settings)

    def happen(self, event: str) -> None:
        """Let one thing happen between two values."""
        self.client.close()
        match event:
            case "next epoch":
                self.clock.advance(days=31)
            case "epoch back":
                self.clock.advance(days=-31)
            case "lose":
                lose(self.folder)
            case "older":
                lose(self.folder)
                shutil.copy(self.folder.with_suffix(".older"), self.folder / DATABASE)
            case "more noise":
                self.params = QUIETER
        self.client = self.open()

    def live(self, values: Sequence[str], events: Sequence[str]) -> list[bytes]:
        """Record and send each value after its event; return what arrived."""
        for value, event in zip(values, events, strict=True):
            self.happen(event)
            assert self.client.record("page", value)
            assert self.client.flush()
        self.client.close()
        return [report.bits for report in self.transport.reports]


def shape(shown: Sequence[bytes]) -> tuple[int, ...]:
    """Return which of the reports show the same permanent response."""
    return tuple(shown.index(each) for each in shown)


def live_all(n: int, tmp_path: Path, opener: Opener, epoch: str) -> None:
    """Lead devices through all histories of n values.

    One pattern a scope: which reports repeat each other does not depend on the values, and each
    response is that of a scope of its own. So the loss of a pair of histories is the sum of the
    responses' losses, epsilon_inf each where reports show them as they are, whatever the pair.
    """
    numbers = itertools.count()
    for events in itertools.product(EVENTS, repeat=n - 1):
        shapes = set()
        for values in itertools.product("ab", repeat=n):
            life = Life(tmp_path / f"{epoch}{next(numbers)}", opener, epoch)
            shown = life.live(values, ("nothing", *events))
            spent = peek(life.folder).spent
            shapes.add(shape(shown))
            loss = len(set(shown)) * epsilon_inf(CLEAR)
            assert loss <= spent.nats + 1e-6, (events, values)  # a p of 2^-32 costs 2e-9 less
            assert loss <= sum(spent.reserved.values()), (events, values)
            secret = secret_of(life.folder)
            assert set(shown) <= responses(secret, epoch), (events, values)
            shutil.rmtree(life.folder)
        assert len(shapes) == 1, events


def responses(secret: bytes, epoch: str) -> set[bytes]:
    """Return all permanent responses that a device may show, computed by the protocol alone."""
    epochs = [f"2026-{month:02}" for month in range(8, 13)] + ["2027-01", "2027-02"]
    return {
        permanent(secret, "page", name, CLEAR, encoder(CLEAR).encode(value, own))
        for name in (epochs if epoch == "month" else [""])
        for own in [cohort(secret, "page", name, CLEAR)]
        for value in "ab"
    }


@pytest.mark.parametrize("epoch", ["life", "month"])
def test_all_short_histories_lose_no_more_than_spent_says(
    epoch: str, open_client: Opener, tmp_path: Path
) -> None:
    """Two values, and everything that may happen between them."""
    live_all(2, tmp_path, open_client, epoch)


@pytest.mark.acceptance
@pytest.mark.parametrize("epoch", ["life", "month"])
def test_all_histories_of_three_values_lose_no_more_than_spent_says(
    epoch: str, open_client: Opener, tmp_path: Path
) -> None:
    """Three values, and every pair of things between them."""
    live_all(3, tmp_path, open_client, epoch)
