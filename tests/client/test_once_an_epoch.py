"""Metrics with `interval = "epoch"`: a device sends one report in an epoch.

The secret of a device draws a day of the epoch. The device skips all events before this day, and
reports the first day with an event from then on. Without the draw, all devices would report in the
first days of an epoch. The report leaves on the next day, when its day is over.

The tests have quarters as epochs. The secret never draws one of the last eight days of an epoch:
the report needs one day until it leaves, and seven days are for retries.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from typing import Any

import pytest
import reference
from devices import (
    BOOLEAN,
    Home,
    build_metric,
    hold_folder_lock,
    open_device,
    peek,
    write_device,
    write_events,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rappor_client import Client, Outcome, SkipReason, TransportResponse, UploadError
from rappor_client.periods import DAY, HOUR
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric, MetricError, Params, Registry, ReportError, epsilon_1
from rappor.protocol.randomizer import derive_report_day

ONCE = Params.profile("once")
START = "2026-10-01T12:00:00"
"""The quarter of the tests begins on this day. All times of the tests are noons."""
DAYS = 92
"""The quarter has this number of days. They have the numbers 0 to 91."""


def once(params: Params = ONCE, **fields: Any) -> Metric:
    """Return a metric with one report in each quarter."""
    return build_metric(params=params, **{"epoch": "quarter", "interval": "epoch"} | fields)


def find_drawn_day(secret: bytes) -> int:
    """Return the day of the quarter that a secret draws, counted from 0."""
    return derive_report_day(secret, "page", "2026-Q4", ONCE, DAYS)


def find_secret(day: int) -> bytes:
    """Return the first of the secrets 0, 1, ... that draws a day."""
    secrets = (number.to_bytes(32, "big") for number in itertools.count())
    return next(secret for secret in secrets if find_drawn_day(secret) == day)


class Quarter:
    """A device in the last quarter of 2026, with a secret that draws the day `day`.

    The value of the drawn day is the attribute `drawn`.
    """

    def __init__(self, home: Home, day: int) -> None:
        write_device(home.folder, find_secret(day))
        self.home, self.clock, self.folder, self.drawn = home, home.clock, home.folder, day
        self.transport = home.transport
        self.clock.set(START)
        self.client = self.open(once())

    def open(self, *metrics: Metric) -> Client:
        """Open a client on the device."""
        return self.home.open(*metrics, collector=self.transport)

    def live(self, days: range) -> list[Outcome]:
        """Flush, and record one value, at noon of each of some days; return the outcomes."""
        outcomes = []
        for day in days:
            self.clock.set(START)
            self.clock.advance(days=day)
            self.client.flush()
            outcomes.append(self.client.record("page", f"value of day {day}"))
            write_events(self.client)
        return outcomes


@pytest.fixture
def quarter(request: pytest.FixtureRequest, home: Home) -> Quarter:
    """A device that draws day 40 (10 November), or the day that the test passes."""
    return Quarter(home, getattr(request, "param", 40))


# The first day that a secret can draw, a day in the middle, and the last day: 92 days without the
# last eight, counted from 0.
@pytest.mark.parametrize("quarter", [0, 40, DAYS - 9], indirect=True)
def test_one_report_from_the_drawn_day_on(quarter: Quarter) -> None:
    """Only the event of the drawn day is recorded, and its report leaves on the next day."""
    outcomes, day = quarter.live(range(DAYS)), quarter.drawn
    assert outcomes == [
        *[Outcome.SKIPPED] * day,
        Outcome.RECORDED,
        *[Outcome.SKIPPED] * (DAYS - 1 - day),
    ]
    quarter.clock.set("2027-01-03T12:00:00")
    quarter.client.flush()
    assert len(quarter.transport.reports) == 1
    assert quarter.client.privacy_spent().nats == pytest.approx(epsilon_1(ONCE), abs=1e-3)


def test_late_device_reports_the_first_day_with_an_event(quarter: Quarter) -> None:
    """A device without an event on the drawn day reports the next day with an event."""
    late = quarter.drawn + 1
    assert quarter.live(range(late, late + 3)) == [Outcome.RECORDED, *[Outcome.SKIPPED] * 2]


def test_one_event_of_the_day_is_chosen(quarter: Quarter) -> None:
    """The report is chosen among all events of the drawn day. An event of the next day is skipped.

    The outcome RECORDED says that an event takes part in the choice.
    """
    day = quarter.drawn
    assert quarter.live(range(day, day + 1)) == [Outcome.RECORDED]
    quarter.clock.advance(hours=3)
    assert quarter.client.record("page", "another") == Outcome.RECORDED
    quarter.clock.advance(days=1)
    quarter.client.flush()
    assert quarter.client.record("page", "later") == Outcome.SKIPPED


@pytest.mark.parametrize("n_of_drawn_day", [1, 2])
@pytest.mark.parametrize("n_of_next_day", [0, 1])
def test_late_write_belongs_to_the_day_of_its_event(
    n_of_drawn_day: int, n_of_next_day: int, quarter: Quarter
) -> None:
    """An event counts for the day on which it happened, also if it is written a day later.

    A program records events on the drawn day while another process has the lock of the folder. The
    events stay in memory until the program closes. A second program records an event on the next
    day. Only the drawn day gets the report of the epoch.
    """
    second_client = quarter.open(once())
    quarter.clock.set(START)
    quarter.clock.advance(days=quarter.drawn)
    with hold_folder_lock(quarter.folder):
        for _ in range(n_of_drawn_day):
            assert quarter.client.record("page", "own day") == Outcome.RECORDED
        quarter.clock.advance(days=1)
    quarter.client.close()
    (pending,) = peek(quarter.folder).pending_reports
    # The clock shows noon of the next day, so the drawn day ended at midnight, 12 hours ago.
    assert pending.interval_end == quarter.clock() - 12 * HOUR
    for _ in range(n_of_next_day):
        second_client.record("page", "next day")
    second_client.flush()
    assert second_client.record("page", "next day") == Outcome.SKIPPED
    quarter.clock.advance(days=2)
    second_client.flush()
    assert len(quarter.transport.reports) == 1


@pytest.mark.parametrize(("day", "n_reports"), [(DAYS - 2, 1), (DAYS - 1, 0)])
def test_event_of_the_last_day_is_skipped(day: int, n_reports: int, quarter: Quarter) -> None:
    """The report of the last day would leave in the next epoch, so the event is skipped.

    The report of the day before leaves on the last day.
    """
    (outcome,) = quarter.live(range(day, day + 1))
    assert outcome.reason is (None if n_reports else SkipReason.LATE)
    quarter.clock.set("2026-12-31T23:59:59")
    quarter.client.flush()
    assert len(quarter.transport.reports) == n_reports


@pytest.mark.parametrize("is_tried", [False, True])
def test_report_that_could_not_leave_in_its_epoch_is_given_up(
    *, is_tried: bool, quarter: Quarter
) -> None:
    """A report that could not leave in its epoch is deleted, and is counted as `given_up`.

    `is_tried` says whether the client tried to send the report before the epoch ended. The next
    epoch has a report of its own. A flush without a timeout makes one attempt: it would wait for
    the next one by a real clock.
    """
    failing = MemoryTransport([None] * 3)  # more failures than attempts
    quarter.client = quarter.home.open(once(), collector=failing)
    quarter.live(range(DAYS - 4, DAYS - 3))  # one event, on 28 December
    if is_tried:
        quarter.clock.set("2026-12-31T23:00:00")
        quarter.client.flush(timeout=0)
    quarter.clock.set("2027-01-01T00:00:00")
    quarter.client.flush(timeout=0)
    assert quarter.client.queued_count() == 0
    assert quarter.client.event_counts()["given_up"] == 1
    assert len(failing.bodies) == int(is_tried)
    outcomes = []
    for day in range(90):  # all days of the first quarter of 2027
        quarter.clock.set("2027-01-01T12:00:00")
        quarter.clock.advance(days=day)
        quarter.client.flush(timeout=0)
        outcomes.append(quarter.client.record("page", "a"))
    assert outcomes.count(Outcome.RECORDED) == 1


STEPS = st.lists(
    st.tuples(
        st.floats(0, 4 * DAY),
        st.sampled_from(["record", "flush", "fail", "open"]),
    ),
    min_size=4,
    max_size=16,
)
"""Steps of a device: seconds that pass before the step, and an action. Each step flushes. "fail"
flushes while the network fails, and "open" closes the client and opens it again before."""


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(first=st.integers(70, DAYS - 1), steps=STEPS)  # near the end of the quarter
def test_no_report_leaves_after_its_epoch(
    first: int, steps: list[tuple[float, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No report leaves after its epoch, for all sequences of events, failures and restarts."""
    clock = FixedClock(START)
    clock.advance(days=first)
    end = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC).timestamp()
    sending_times = list[float]()

    class Network(MemoryTransport):
        is_failing = False

        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            sending_times.append(clock())
            if self.is_failing:
                raise UploadError("the network failed")
            return super().send(body, timeout=timeout)

    folder, network = tmp_path_factory.mktemp("epoch") / "device", Network()
    client = open_device(folder, once(), clock=clock, collector=network)
    # After the last step, a report that was not sent has a chance to leave too late. Its retries
    # are less than eight days apart.
    for seconds, action in [*steps, (8.0 * 86_400, "flush")]:
        clock.advance(seconds=seconds)
        if action == "record" and clock() < end:
            client.record("page", "a")
        if action == "open":
            client.close()
            client = open_device(folder, once(), clock=clock, collector=network)
        network.is_failing = action == "fail"
        client.flush(timeout=0)
    client.close()
    assert all(time < end for time in sending_times)
    assert len(network.reports) <= 1


def test_cost_is_the_loss_of_one_report() -> None:
    """The cost of an epoch is the loss of one report, epsilon_1, for every epoch that ends.

    The profile "balanced" has epsilon_1 = 2 nats. The budget of a year is enough if it is at least
    2 nats for each epoch of the year. A hundredth of a nat less is refused.
    """
    balanced = Params.profile("balanced")
    for epoch, scopes in (("year", 1), ("quarter", 4), ("month", 12)):
        metric = once(balanced, epoch=epoch)
        Registry([metric], total=2.0 * scopes)
        with pytest.raises(MetricError, match="total must be at least"):
            Registry([metric], total=2.0 * scopes - 0.01)


def test_interval_epoch_needs_an_epoch_that_ends() -> None:
    """A metric for life is refused, because each device would report it only once, for ever."""
    with pytest.raises(MetricError, match="interval = 'epoch' needs an epoch that ends, got epoch"):
        once(BOOLEAN, epoch="life")


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("profile = 'once'", "profile = 'once'"),
        ("k = 128\nm = 128\nf = 0.5\ng = 0.1\np = 0\nq = 1", "p = 0 with q = 1"),
    ],
)
def test_parameters_without_instantaneous_noise_need_interval_epoch(
    noise: str, message: str
) -> None:
    """Parameters without instantaneous noise need `interval = "epoch"`.

    A daily metric would send the permanent response itself every day.
    """
    text = (
        "[budget]\ntotal = 100\n[metrics.page]\ndescription = 'a'\nowner = 'b'\n"
        f"expires = 2099-12-31\nepoch = 'month'\nencoding = 'bloom'\n{noise}\n"
    )
    with pytest.raises(MetricError, match=f"{message} needs interval = 'epoch'"):
        Registry.loads(text)
    for allowed in ("interval = 'epoch'\n", "insecure = true\n"):
        metric = Registry.loads(text + allowed, today=datetime.date(2026, 1, 1))["page"]
        assert not metric.params.has_instantaneous_noise


SETS = Params.profile("once", encoding="set", items=2)
KEEP_THRESHOLD = 2100421408
"""`keep` of SETS times 2^32: a report names an own bucket if a coin is below this threshold."""


@pytest.mark.slow
@given(
    st.integers(0, 2**32),
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=5), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=40)
def test_a_set_is_one_bucket_and_costs_epsilon_1(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sets: list[list[str]]
) -> None:
    """A device sends one report, of the set of its first day, and the report costs epsilon_1.

    `sets` has the set of each day, beginning with the drawn day. The report equals the report of
    the second implementation in `reference`, for the same coins.
    """
    secret = seed.to_bytes(32, "big")
    home = Home(tmp_path_factory.mktemp("home"))
    write_device(home.folder, secret)
    metric = once(SETS)
    start = derive_report_day(secret, "page", "2026-Q4", metric.params, DAYS)
    with home.open(metric, collector=home.transport) as client:
        for number, items in enumerate(sets):
            home.clock.set(START)
            home.clock.advance(days=start + number)
            client.flush()
            recorded = client.record("page", items)
            assert (recorded == Outcome.RECORDED) == (number == 0)
            write_events(client)
        home.clock.advance(days=2)
        client.flush()
        spent = client.privacy_spent()
        unfit = client.event_counts().get("unfit", 0)
    (report,) = home.transport.reports
    scope = reference.encode_scope("page", "2026-Q4", metric.params.permanent_fingerprint)
    cohort = reference.derive_cohort(secret, scope, SETS.m)
    own_buckets = reference.list_own_buckets(sets[0], cohort, SETS.k)
    coins = reference.derive_bucket_coins(secret, scope, own_buckets, SETS.k, 2)
    # The threshold of `keep` is a literal, because the reference must not use the tested code.
    bucket = reference.draw_bucket(own_buckets, SETS.k, 2, KEEP_THRESHOLD, coins)
    assert (report.cohort, report.bits) == (
        cohort,
        reference.pack([int(i == bucket) for i in range(SETS.k)]),
    )
    assert spent.nats == pytest.approx(epsilon_1(SETS), abs=1e-3)
    # The profile has two items. A larger set is cut, and counted as `unfit`, which the program and
    # the user of the device can read.
    assert unfit == (len(set(sets[0])) > 2)


def test_another_number_of_items_adds_no_report_to_an_epoch(home: Home) -> None:
    """A registry with another number of items begins a new scope, and the epoch has had its report.

    The new scope has coins of its own, so a second report would add its loss. It would show the
    same set with other noise. The next epoch has a report, and a loss, of the new scope.
    """
    changed = once(dataclasses.replace(Params.profile("once", encoding="set", items=3), m=SETS.m))
    secrets = (number.to_bytes(32, "big") for number in itertools.count())
    days = (
        (secret, [derive_report_day(secret, "page", quarter, metric.params, 90)
                  for metric, quarter in ((once(SETS), "2026-Q4"), (changed, "2026-Q4"),
                                          (changed, "2027-Q1"))])
        for secret in secrets
    )  # fmt: skip
    # The secret draws a day before the first event in all three scopes.
    write_device(home.folder, next(secret for secret, drawn in days if max(drawn) < 30))
    home.clock.set("2026-11-10T12:00:00")
    outcomes, spent = [], []
    steps = [(once(SETS), 0), (once(SETS), 2), (changed, 1), (changed, 90), (changed, 2)]
    for metric, n_days in steps:
        home.clock.advance(days=n_days)
        with home.open(metric, collector=home.transport) as client:
            client.flush()
            outcomes.append(client.record("page", ["git", "vim"]))
            write_events(client)
            spent.append(client.privacy_spent().nats)
    assert outcomes == [
        Outcome.RECORDED,
        Outcome.SKIPPED,
        Outcome.SKIPPED,
        Outcome.RECORDED,
        Outcome.SKIPPED,
    ]
    assert len(home.transport.reports) == 2
    first, later = epsilon_1(SETS), epsilon_1(changed.params)
    # A report costs its loss when its day is over.
    assert spent == pytest.approx([0, first, first, first, first + later], abs=2e-3)


@pytest.mark.parametrize("value", ["git", b"git", {"git": 1}, (x for x in "ab"), ["git", 7], None])
def test_a_set_of_the_wrong_kind_is_a_mistake_of_the_program(value: object, home: Home) -> None:
    """`record` raises ReportError, and the message contains no item of the value."""
    # The clock is at day 48 of the quarter. A secret with a drawn day before day 40 makes the
    # device read the value. Before its drawn day, the device skips an event without a look at it.
    secrets = (number.to_bytes(32, "big") for number in itertools.count())
    params = once(SETS).params
    write_device(
        home.folder,
        next(s for s in secrets if derive_report_day(s, "page", "2026-Q4", params, DAYS) < 40),
    )
    with home.open(once(SETS), collector=home.transport) as client:
        with pytest.raises(ReportError, match="a value must be a collection") as refusal:
            client.record("page", value)
        assert "git" not in str(refusal.value)
