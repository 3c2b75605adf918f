"""A client as a subject: what a device keeps over restarts, days and epochs, seen in its reports.

A command stands for the client. Each line of its standard input is an event on some device,
`{"folder":..., "registry":..., "metric":..., "value":..., "now":...}`: the value is recorded on the
folder's device at a moment in seconds since 1970. It is answered with a line,
`{"waiting":[{"params":..., "cohort":..., "bits":...}, ...], "spent":...}`: the finished reports of
the device that are not sent, the oldest first, and the nats that it counts, or null. The command
is started anew for each day, so that every day begins with a restart.

A device lives through two weeks with one value, one with another, and two in the next epoch. Then
its clock goes back into the first one, where it may repeat either response, but no third. The
interval of a day's report ends with the next day, so a report is seen a day later, unless the
metric reports every event.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rappor.auditing.auditor import Audit
from rappor.auditing.check import ALARM, Case, Check, binomial_check
from rappor.auditing.evidence import Bits, Integers, Matches
from rappor.auditing.pairs import Truth, choose_pairs, unpack
from rappor.auditing.subject import run_lines
from rappor.ground.errors import ParamsError, ReportError
from rappor.ground.progress import Progress, no_progress
from rappor.ground.ranges import read_count
from rappor.protocol.loss import epsilon_1
from rappor.protocol.params import Params
from rappor.protocol.wire import decode_base64url
from rappor.registry.budget import scope_price
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_EVENTS_A_DAY: Final = 2
"""Values that a device records in a day: an interval has one report all the same."""

_LEAST_DEVICES, _MOST_DEVICES = 20, 10_000
"""Fewer tell little; each takes files, and some milliseconds for each event."""

_BEFORE_THE_END: Final = datetime.timedelta(days=800)
"""Days before the metric ends: a year's epoch begins after them, and another one after that."""

_WEEK: Final = datetime.timedelta(days=7)

_NOT_EXAMINED: Final = (
    "Consent: withdrawal, opting out and what they erase.",
    "Delivery: uploads, retries, and what their times and addresses link.",
    "Accidents: a full or damaged disk, a process that is killed, a folder that was copied.",
    "Concurrency: two processes or threads on one device.",
    "Secrets: how a device draws its own.",
    "Rare faults: an audit without --client tests many more devices, and measures losses.",
)


class _Report(NamedTuple):
    """A finished report on a device."""

    params: str
    cohort: int
    bits: bytes


class _Held(NamedTuple):
    """What a device answers: its finished reports, and the nats that it counts."""

    waiting: tuple[_Report, ...]
    spent: float | None


class _Day(NamedTuple):
    """When devices record, and whether it is the other value of their pair."""

    day: datetime.date
    other: bool = False


class _Seen(NamedTuple):
    """The reports of one day: whose they are (n,), their cohorts (n,) and bits (n, k)."""

    devices: Integers
    cohorts: Integers
    bits: Bits


_FIRST, _RESTARTED, _OTHER, _NEXT_EPOCH, _BACK = 0, 1, 2, 3, 5
"""Places of the days whose reports are compared."""


def audit_client(
    command: Sequence[str],
    metric: Metric,
    registry: str | os.PathLike[str],
    *,
    devices: int = 50,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Audit:
    """Let devices live through restarts, days and epochs, and compare what they would send.

    `command` speaks for a client as this module says. It is given the path `registry`, which
    declares the metric.

    Raises ParamsError for a metric with several patterns, parts, `other` or one report in an epoch,
    and for devices outside their range, and ReportError for other answers.
    """
    devices = read_count("devices", devices, _LEAST_DEVICES, _MOST_DEVICES)
    if metric.patterns > 1 or metric.parts or metric.params.other or metric.interval == "epoch":
        raise ParamsError(
            "the metric must have one pattern, no parts, no other and an interval below an epoch "
            "to audit a client"
        )
    truth = Truth(metric.params, chain.from_iterable(choose_pairs(metric.params)))
    values = Keystream(seed).generator().integers(0, len(truth.values), size=devices)
    days, lives = _days(metric), []
    with tempfile.TemporaryDirectory() as place:
        for number, each in enumerate(days):
            progress("living through days", number, len(days))
            texts = [truth.values[value ^ each.other] for value in values.tolist()]
            declared = str(Path(registry).resolve())
            events = list(_events(Path(place), declared, metric, each, texts))
            lines = run_lines(command, events)[_EVENTS_A_DAY - 1 :: _EVENTS_A_DAY]
            lives.append([_read(line, metric.params) for line in lines])
        on_disk = [*_folder_checks(Path(place), truth.values, metric.params)]
    found = _Found(metric, lives, truth, values)
    return Audit(
        metric=metric,
        trials=devices,
        n_reports=len(days),
        level=ALARM,
        checks=(*found.checks(), *on_disk),
        not_examined=_NOT_EXAMINED,
    )


def _days(metric: Metric) -> list[_Day]:
    """Return the days that devices live through; a metric for life has no other epoch."""
    first = _epoch_after(metric, metric.expires - _BEFORE_THE_END)
    days = [_Day(first), _Day(first + _WEEK), _Day(first + 2 * _WEEK, other=True)]
    if metric.epoch == "life":
        return [*days, _Day(first + 3 * _WEEK)]
    second = _epoch_after(metric, first)
    return [
        *days,
        _Day(second + _WEEK, other=True),
        _Day(second + 2 * _WEEK, other=True),
        _Day(first + 3 * _WEEK),
        _Day(second),  # it only ends the interval before it
    ]


def _epoch_after(metric: Metric, day: datetime.date) -> datetime.date:
    """Return the first day of the next epoch; the day itself for a metric for life."""
    later = day
    while metric.epoch != "life" and metric.epoch_at(later) == metric.epoch_at(day):
        later += datetime.timedelta(days=1)
    return later


def _events(
    place: Path, registry: str, metric: Metric, day: _Day, texts: Sequence[str]
) -> Iterator[str]:
    """Yield the events of a day, some for each device."""
    noon = datetime.datetime.combine(day.day, datetime.time(12), datetime.UTC).timestamp()
    for number, text in enumerate(texts):
        for event in range(_EVENTS_A_DAY):
            yield json.dumps(
                {
                    "folder": str(place / str(number)),
                    "registry": registry,
                    "metric": metric.name,
                    "value": text,
                    "now": noon + 60 * event,
                }
            )


def _read(line: str, params: Params) -> _Held:
    try:
        document = json.loads(line)
        reports = tuple(_report(entry, params) for entry in document["waiting"])
        spent = document["spent"]
        return _Held(reports, None if spent is None else float(spent))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error) if isinstance(error, ReportError) else type(error).__name__
        raise ReportError(
            f"an answer must be JSON with the keys waiting and spent: {reason}"
        ) from None


def _report(entry: Any, params: Params) -> _Report:
    cohort, bits = entry["cohort"], decode_base64url("bits", entry["bits"])
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}] in an answer")
    if len(bits) != params.n_bytes or int.from_bytes(bits, "little") >> params.k:
        raise ReportError(f"a report must be {params.k} bits")
    return _Report(entry["params"], cohort, bits)


class _Found:
    """All that devices answered, and what should be so."""

    def __init__(
        self, metric: Metric, lives: Sequence[Sequence[_Held]], truth: Truth, values: Integers
    ) -> None:
        self._metric, self._params = metric, metric.params
        self._lives, self._truth, self._values = lives, truth, values
        self._has_epochs = metric.epoch != "life"

    def checks(self) -> Iterator[Check]:
        """Yield every check of what devices answered."""
        yield _exact("client: reports carry the fingerprint", self._foreign())
        yield _exact("client: finished reports stay as they are", self._changed())
        yield self._intervals()
        yield _exact("client: one cohort in an epoch", self._moved())
        yield binomial_check("client: share of ones", self._ones())
        yield binomial_check("client: one permanent response in an epoch", self._again())
        yield binomial_check("client: another epoch is independent", self._unrelated())
        yield self._back()
        yield binomial_check("client: devices differ", self._devices())
        yield self._ledger()

    def _new(self, place: int) -> list[tuple[_Report, ...]]:
        """Return, by device, the reports that a day's answer has and the one before had not."""
        if place == 0:
            return [held.waiting for held in self._lives[0]]
        before = self._lives[place - 1]
        return [
            held.waiting[len(earlier.waiting) :]
            for held, earlier in zip(self._lives[place], before, strict=True)
        ]

    def _seen(self, place: int) -> _Seen:
        """Return the last report that each device made of a day's values."""
        late = self._metric.interval != "none"
        new = self._new(place + late) if place + late < len(self._lives) else []
        found = [(number, reports[-1]) for number, reports in enumerate(new) if reports]
        packed = b"".join(report.bits for _, report in found)
        return _Seen(
            np.array([number for number, _ in found], dtype=np.int64),
            np.array([report.cohort for _, report in found], dtype=np.int64),
            unpack(packed, self._params),
        )

    def _bits(self, seen: _Seen, *, other: bool = False) -> Bits:
        """Return the true bits of the devices' first values, or of their other ones."""
        return self._truth.bits(self._values[seen.devices] ^ other, seen.cohorts)

    def _pairs(self, first: int, second: int, *, other: bool = False) -> Matches:
        """Compare two days' reports of each device, the second one's truth as `other` says."""
        kept, a, b = Matches(), self._seen(first), self._seen(second)
        _, at_a, at_b = np.intersect1d(a.devices, b.devices, return_indices=True)
        truths = self._bits(a)[at_a], self._bits(b, other=other)[at_b]
        kept.add(a.bits[at_a], b.bits[at_b], truths)
        return kept

    def _foreign(self) -> tuple[int, int]:
        last = [report for held in self._lives[-1] for report in held.waiting]
        known = self._metric.accepted
        return sum(report.params not in known for report in last), len(last)

    def _changed(self) -> tuple[int, int]:
        """Count the days after which a device's earlier reports were not what they had been."""
        days = zip(self._lives[:-1], self._lives[1:], strict=True)
        kept = [
            now.waiting[: len(then.waiting)] == then.waiting
            for before, after in days
            for then, now in zip(before, after, strict=True)
        ]
        return kept.count(False), len(kept)

    def _intervals(self) -> Check:
        name = "client: one report an interval"
        if self._metric.interval == "none":
            return Check(name=name, verdict="not seen", detail="every event is reported")
        new = [len(reports) for place in range(len(self._lives)) for reports in self._new(place)]
        return _exact(name, (sum(n > 1 for n in new), len(new)))

    def _moved(self) -> tuple[int, int]:
        first = self._seen(_FIRST)
        own = dict(zip(first.devices.tolist(), first.cohorts.tolist(), strict=True))
        again = [
            own.get(device, cohort) == cohort
            for seen in map(self._seen, _SAME_EPOCH)
            for device, cohort in zip(seen.devices.tolist(), seen.cohorts.tolist(), strict=True)
        ]
        return again.count(False), len(again)

    def _ones(self) -> Iterator[Case]:
        seen = self._seen(_FIRST)
        truth = self._bits(seen)
        for value, probability in enumerate((self._params.p_star, self._params.q_star)):
            at = truth == value
            ones = int(seen.bits[at].sum())
            yield Case(f"all bits given true {value}", ones, int(at.sum()), probability)

    def _again(self) -> Iterator[Case]:
        """Yield pairs of reports with one permanent response: that of the first value."""
        for place, when in _SAME_EPOCH.items():
            yield from _repeated(self._pairs(_FIRST, place), self._params, when)

    def _unrelated(self) -> Iterator[Case]:
        """Yield pairs of reports of two epochs, and whether the cohort is another one."""
        if not self._has_epochs:
            return
        matches = self._pairs(_FIRST, _NEXT_EPOCH, other=True)
        yield from _independent(matches, self._params)
        first, second = self._seen(_FIRST), self._seen(_NEXT_EPOCH)
        _, at, there = np.intersect1d(first.devices, second.devices, return_indices=True)
        same = int((first.cohorts[at] == second.cohorts[there]).sum())
        yield Case("the same cohort in another epoch", same, len(at), 1 / self._params.m)

    def _back(self) -> Check:
        """Compare the reports of a clock that was set back with those of either epoch."""
        name = "client: a clock set back brings no third response"
        back = self._seen(_BACK) if self._has_epochs else None
        if back is None or not len(back.devices):
            return Check(name=name, verdict="not seen", detail="it brought no report")
        matches, known = Matches(), np.zeros(len(back.devices), dtype=np.bool_)
        for place, other in ((_FIRST, False), (_NEXT_EPOCH, True)):
            seen = self._seen(place)
            _, at, there = np.intersect1d(back.devices, seen.devices, return_indices=True)
            same = (back.cohorts[at] == seen.cohorts[there]) & ~known[at]
            at, there = at[same], there[same]
            known[at] = True
            truth = self._bits(seen, other=other)[there]
            if self._params.m > 1:  # with one cohort nothing tells which epoch it repeats
                matches.add(seen.bits[there], back.bits[at], (truth, truth))
        if not known.all():
            return _exact(name, (int((~known).sum()), len(known)))
        return binomial_check(name, _repeated(matches, self._params, "in its epoch"))

    def _devices(self) -> Iterator[Case]:
        """Yield pairs of devices with nothing in common, and their cohorts."""
        seen, kept = self._seen(_FIRST), Matches()
        half = len(seen.devices) // 2 * 2
        truth = self._bits(seen)
        truths = truth[:half:2], truth[1:half:2]
        kept.add(seen.bits[:half:2], seen.bits[1:half:2], truths)
        yield from _independent(kept, self._params)
        same = int((seen.cohorts[:half:2] == seen.cohorts[1:half:2]).sum())
        yield Case("two devices in one cohort", same, half // 2, 1 / self._params.m)

    def _ledger(self) -> Check:
        """Compare the nats that devices count with what their reports can and must cost."""
        name = "client: the ledger counts"
        last = [held.spent for held in self._lives[-1]]
        if None in last:
            return Check(name=name, verdict="not seen", detail="devices count no nats")
        scopes = 2 if self._has_epochs else 1
        least, most = epsilon_1(self._params), scopes * scope_price(self._metric)
        days = zip(self._lives[:-1], self._lives[1:], strict=True)
        pairs = (pair for before, after in days for pair in zip(before, after, strict=True))
        falling = sum((now.spent or 0) < (then.spent or 0) for then, now in pairs)
        counted = [nats for nats in last if nats is not None]
        outside = sum(not least - _TINY <= nats <= most + _TINY for nats in counted)
        return Check(
            name=name,
            verdict="fault" if falling or outside else "pass",
            detail=f"{falling:,} times the nats of a device fell, {outside:,} of {len(last):,} "
            f"devices count less than {least:.3f} or more than {most:.3f}",
        )


_SAME_EPOCH: Final = {_RESTARTED: "after a restart", _OTHER: "with another value"}
"""Days whose reports repeat the first one's permanent response, whatever the value is."""

_TINY: Final = 1e-6
"""Nats that are rounding."""


def _repeated(matches: Matches, params: Params, when: str) -> Iterator[Case]:
    """Yield pairs of reports with one permanent response."""
    for value, one in enumerate((params.f1, 1 - params.f0)):
        both, n = int(matches.both[value]), int(matches.n[value])
        expected = one * params.q**2 + (1 - one) * params.p**2
        yield Case(f"both bits one given true {value} {when}", both, n, expected)


def _independent(matches: Matches, params: Params) -> Iterator[Case]:
    for value, probability in enumerate((params.p_star, params.q_star)):
        both, n = int(matches.both[value]), int(matches.n[value])
        yield Case(f"both bits one given true {value}", both, n, probability**2)


def _exact(name: str, counted: tuple[int, int]) -> Check:
    """Return the check of what must always be so, from how often it was not, and of how many."""
    wrong, n = counted
    if not n:
        return Check(name=name, verdict="not seen", detail="no report was seen")
    detail = f"{wrong:,} of {n:,} were otherwise"
    return Check(name=name, verdict="fault" if wrong else "pass", detail=detail)


def _folder_checks(place: Path, texts: Sequence[str], params: Params) -> Iterator[Check]:
    """Look at what devices have left on the disk: for whom, and whether a value is in it.

    The list of all categories is no value: it is in the registry, and alike for every device.
    """
    files = [path for path in place.rglob("*") if path.is_file()]
    if os.name == "posix":
        others = stat.S_IRWXG | stat.S_IRWXO
        folders = [path for path in place.iterdir() if path.stat().st_mode & others]
        open_files = [path for path in files if path.parent in folders]
        readable = sum(bool(path.stat().st_mode & others) for path in open_files)
        yield _exact("folder: only its user can read it", (readable, len(files)))
    forms = [form for text in texts for form in _forms(text)]
    contents = (_without(path.read_bytes(), params.categories) for path in files)
    named = sum(any(form in content for form in forms) for content in contents)
    yield _exact("folder: no value is in it", (named, len(files)))


def _without(content: bytes, categories: Sequence[str]) -> bytes:
    """Return a file without the list of categories, as JSON or as a text in JSON."""
    for is_ascii in (True, False):
        listed = json.dumps(categories, separators=(",", ":"), ensure_ascii=is_ascii)
        for form in (json.dumps(listed, ensure_ascii=is_ascii)[1:-1], listed):
            content = content.replace(form.encode(), b"")
    return content


def _forms(text: str) -> Iterator[bytes]:
    """Yield how a file may hold a text; short ones occur by accident."""
    data = text.encode()
    if len(data) >= _TELLING:
        yield from (data, data.hex().encode(), base64.b64encode(data)[: len(data) // 3 * 4])


_TELLING: Final = 6
"""Bytes of a text that no file holds by accident: 48 bits in some kilobytes."""
