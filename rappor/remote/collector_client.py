"""`CollectorClient`: metrics, counts and estimates of a collector, as records of this library."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from rappor.base.errors import CollectorError, FileError, ParamsError
from rappor.base.ranges import check_choice
from rappor.counts.calendar import STRETCHES
from rappor.counts.released import Released
from rappor.remote.http_exchange import (
    Exchange,
    HttpExchange,
    HttpRequest,
    HttpResponse,
    read_problem,
)
from rappor.remote.token import check_token

_SECONDS: Final = 300.0
"""How long one exchange may take. A collector limits an estimate to a minute, beside its queue."""

_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DayReports:
    """How many reports are released of the blocks that end on a day."""

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMetric:
    """What a collector has of a metric.

    `fingerprints` are the parameters that devices use now, `days` the released reports, `withheld`
    days with reports that wait.
    """

    name: str
    description: str
    owner: str
    expires: datetime.date
    fingerprints: tuple[str, ...]
    min_reports: int
    min_cohort: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]

    @property
    def n_reports(self) -> int:
        """Released reports of all days."""
        return sum(day.reports for day in self.days)


class CollectorClient:
    """A collector that an analyst reads from.

    `url` is its address for analysts, https or http to this very machine; `token` is what
    `rappor-server token create` printed, and `rappor.remote.token.read_token` reads; without a
    `transport` the standard library sends the requests. Raises ParamsError if the address or the
    token cannot be right; every method raises CollectorError where the collector is not reached or
    refuses.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: Exchange | None = None,
    ) -> None:
        """Check the address and the token; nothing is sent yet."""
        self._token = check_token(token)
        self._transport = transport or HttpExchange(url)

    def __repr__(self) -> str:
        """Name the transport; the token is never shown."""
        return f"Collector({self._transport!r})"

    def metrics(self) -> tuple[RemoteMetric, ...]:
        """Return the metrics that the token may read."""
        document = _document(self.ask("GET", "/v1/metrics", _OK))
        try:
            return tuple(_metric(entry) for entry in document["metrics"])
        except (KeyError, TypeError, ValueError):
            raise _foreign() from None

    def counts(
        self,
        metric: str,
        first: datetime.date | None = None,
        last: datetime.date | None = None,
        *,
        by: str | None = None,
        segments: bool = False,
    ) -> Released:
        """Return the released counts of a metric on the days from first to last, both included.

        `by` is "day", "week" (from Monday on) or "month" for counts of each; one sum if omitted.
        With `segments` each segment has counts of its own, whose parameters name it.
        """
        if by is not None:
            check_choice("by", by, STRETCHES)
        query = _days(first, last) | ({} if by is None else {"by": by})
        query |= {"segments": "true"} if segments else {}
        answer = self.ask("GET", f"{_path(metric)}/counts?{urlencode(query)}", _OK)
        try:
            return Released.from_json(answer.body)
        except FileError as error:
            raise CollectorError(f"the collector's counts cannot be read: {error.reason}") from None

    def estimates(
        self,
        metric: str,
        candidates: Iterable[str] | None = None,
        first: datetime.date | None = None,
        last: datetime.date | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Let the collector estimate how many reports contain each candidate, and wait for it.

        An interrupted wait closes the connection, which cancels the computation.

        Candidates are the metric's own if omitted; `options` are level, correction, confidence,
        distribution and all. Returns the object that `rappor decode --json` prints.
        `decode(collector.counts(...).collections, ...)` makes the same estimates here, as a record
        with charts and a page.
        """
        body: dict[str, Any] = {"all": True} | _days(first, last) | options
        if candidates is not None:
            body["candidates"] = _strings(candidates)
        answer = self.ask(
            "POST",
            f"{_path(metric)}/estimates",
            _OK,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return _document(answer)

    def ask(
        self,
        method: str,
        path: str,
        expected: int = _OK,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request; CollectorError unless the answer has the expected status."""
        named = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        answer = self._transport(
            HttpRequest(
                method=method,
                path=path,
                headers=named | (headers or {}),
                body=body,
                seconds=_SECONDS,
            )
        )
        if answer.status != expected:
            raise read_problem(answer)
        return answer


def _path(metric: str) -> str:
    if not isinstance(metric, str) or not metric:
        raise ParamsError("metric must be the name of a metric")
    return f"/v1/metrics/{quote(metric, safe='')}"


def _days(first: datetime.date | None, last: datetime.date | None) -> dict[str, str]:
    named = {"from": first, "to": last}
    return {name: day.isoformat() for name, day in named.items() if day is not None}


def _strings(candidates: Iterable[str]) -> list[str]:
    listed = [candidates] if isinstance(candidates, str) else list(candidates)
    if isinstance(candidates, str) or not all(isinstance(each, str) for each in listed):
        raise ParamsError("candidates must be a list of strings")
    return listed


def _document(answer: HttpResponse) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _foreign() from None
    if not isinstance(document, dict):
        raise _foreign()
    return document


def _metric(entry: Any) -> RemoteMetric:
    return RemoteMetric(
        name=str(entry["name"]),
        description=str(entry["description"]),
        owner=str(entry["owner"]),
        expires=datetime.date.fromisoformat(entry["expires"]),
        fingerprints=tuple(map(str, entry["fingerprints"])),
        min_reports=int(entry["min_reports"]),
        min_cohort=int(entry["min_cohort"]),
        days=tuple(
            DayReports(day=datetime.date.fromisoformat(each["day"]), reports=int(each["reports"]))
            for each in entry["days"]
        ),
        withheld=tuple(map(datetime.date.fromisoformat, entry["withheld"])),
    )


def _foreign() -> CollectorError:
    return CollectorError("the answer is not that of a collector: is the address right?")
