"""Analyst's client of a collector: metrics, released counts and estimates.

A collector receives reports of devices and adds them to counts. It releases counts in windows: days
that together have enough reports. An analyst reads released counts with a read token.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from rappor.base.errors import CollectorError, FileError, ParamsError
from rappor.base.ranges import check_choice
from rappor.counts.calendar_periods import PERIOD_KINDS
from rappor.counts.released_counts import ReleasedCounts
from rappor.remote.http_exchange import (
    Exchange,
    HttpExchange,
    HttpRequest,
    HttpResponse,
    read_problem,
)
from rappor.remote.token import check_token

_SECONDS: Final = 300.0
"""Time limit of one exchange, in seconds. A collector limits the computation of an estimate to a
minute, and a request may wait in the queue of the collector before."""

_OK: Final = 200
"""Status code of HTTP that a successful response has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayReports:
    """Number of released reports in the windows that are dated on a day.

    Attributes
    ----------
    day : the day (UTC).
    reports : number of reports.
    """

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMetric:
    """Metric of a collector, and its released reports.

    Attributes
    ----------
    name, description, owner, expires : as in the registry.
    fingerprints : fingerprints (short hashes) of the parameters under which devices report now.
    min_reports : smallest number of reports that the collector releases together.
    min_cohort : number of reports of a cohort that the collector needs for each interval before it
        releases the sum of the cohort. A device sends at most one report in an interval, so a
        device makes at most one in `min_cohort` reports of the sum.
    n_reports : number of released reports of all days.
    n_days : number of all days with released reports.
    days : numbers of released reports of the last of these days, at most 31.
    withheld : last days with reports that are not yet released, at most 31.
    n_withheld : number of all such days.
    """

    name: str
    description: str
    owner: str
    expires: datetime.date
    fingerprints: tuple[str, ...]
    min_reports: int
    min_cohort: int
    n_reports: int
    n_days: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    n_withheld: int


class CollectorClient:
    """Analyst's client of a collector. Every method sends one request.

    Every method raises CollectorError if the collector cannot be reached or refuses the request.

    Parameters
    ----------
    url : the collector's address for analysts: https, or http to the same machine.
    token : read token that `rappor-server token create` printed.
        `rappor.remote.token.read_token` reads it from a file or the environment.
    transport : function that sends a request; None for HTTPS by the standard library.

    Raises
    ------
    ParamsError
        The address or the token has a wrong form. No request is sent.

    Examples
    --------
    A function takes the place of the collector here:

    >>> from rappor.remote.http_exchange import HttpResponse
    >>> def transport(request):
    ...     return HttpResponse(status=200, headers={}, body=b'{"metrics": []}')
    >>> CollectorClient("https://collector.example", "token", transport=transport).metrics()
    ()
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: Exchange | None = None,
    ) -> None:
        """Check the address and the token."""
        self._token = check_token(token)
        self._transport = transport or HttpExchange(url)

    def __repr__(self) -> str:
        """Return a text with the transport, and without the token, which must not reach a log."""
        return f"CollectorClient({self._transport!r})"

    def metrics(self) -> tuple[RemoteMetric, ...]:
        """Return the metrics that the token may read."""
        document = _parse_document(self.send("GET", "/v1/metrics", _OK))
        try:
            return tuple(_parse_metric(entry) for entry in document["metrics"])
        except (KeyError, TypeError, ValueError, OverflowError):
            # Case: another server, which responds with JSON of another form under the same path.
            # Case OverflowError: Python reads the number Infinity, which is no integer.
            raise _make_wrong_server_error() from None

    def counts(
        self,
        metric: str,
        first: datetime.date | None = None,
        last: datetime.date | None = None,
        *,
        by: str | None = None,
        segments: bool = False,
    ) -> ReleasedCounts:
        """Return the released counts of a metric.

        Parameters
        ----------
        metric : name of the metric.
        first, last : first and last day (UTC), both included; None for all days.
        by : "day", "week" (from Monday on) or "month" for counts of each period; None for the sum
            of all days.
        segments : True for separate counts of each segment, a group of devices with the same public
            properties. The parameters of the counts contain the segment.

        Returns
        -------
        ReleasedCounts, with one period for each day, week or month, or one for the whole range.

        Raises
        ------
        ParamsError
            metric is not a name, or `by` is another text.
        CollectorError
            The collector cannot be reached, refuses, or its counts cannot be read.
        """
        if by is not None:
            check_choice("by", by, PERIOD_KINDS)
        query = _format_days(first, last) | ({} if by is None else {"by": by})
        query |= {"segments": "true"} if segments else {}
        response = self.send("GET", f"{_build_metric_path(metric)}/counts?{urlencode(query)}", _OK)
        try:
            return ReleasedCounts.from_json(response.body)
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
        """Let the collector estimate the share of each candidate, and wait for the result.

        An interrupted wait closes the connection, which cancels the computation.
        `decode(collector.counts(...).collections, ...)` computes the same estimates on this
        machine, as a record with charts and a page.

        Parameters
        ----------
        metric : name of the metric.
        candidates : strings to test; None for the candidates of the metric's entry.
        first, last : first and last day (UTC), both included; None for all days.
        options : further keys of the request, as in the collector's API: `level`, `correction`,
            `confidence`, `distribution` and `all`. `all` is True by default:
            the result contains all candidates, and not only the detected candidates.

        Returns
        -------
        The object that `rappor decode --json` prints.

        Raises
        ------
        ParamsError
            metric is not a name, or candidates is not a list of strings.
        CollectorError
            The collector cannot be reached or refuses.
        """
        body: dict[str, Any] = {"all": True} | _format_days(first, last) | options
        if candidates is not None:
            body["candidates"] = _check_strings(candidates)
        response = self.send(
            "POST",
            f"{_build_metric_path(metric)}/estimates",
            _OK,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return _parse_document(response)

    def send(
        self,
        method: str,
        path: str,
        expected: int = _OK,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request with the token.

        Parameters
        ----------
        method : such as "GET".
        path : path with the query, after the collector's address.
        expected : status of a successful response.
        body : the body in bytes.
        headers : further headers.

        Returns
        -------
        The response.

        Raises
        ------
        CollectorError
            The response has another status, or no response arrives.
        """
        authorization = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        response = self._transport(
            HttpRequest(
                method=method,
                path=path,
                headers=authorization | (headers or {}),
                body=body,
                seconds=_SECONDS,
            )
        )
        # A redirect is an error as well. Following it would send the token to another address.
        if response.status != expected:
            raise read_problem(response)
        return response


def _build_metric_path(metric: str) -> str:
    """Return the path of a metric."""
    if not isinstance(metric, str) or not metric:
        raise ParamsError("metric must be the name of a metric")
    # `safe=""` also encodes a slash, which would otherwise begin another part of the path.
    return f"/v1/metrics/{quote(metric, safe='')}"


def _format_days(first: datetime.date | None, last: datetime.date | None) -> dict[str, str]:
    """Return the parameters of a request for a range of days. An open end has no parameter."""
    bounds = {"from": first, "to": last}
    return {name: day.isoformat() for name, day in bounds.items() if day is not None}


def _check_strings(candidates: Iterable[str]) -> list[str]:
    """Return the candidates as a list, or raise ParamsError."""
    listed = [candidates] if isinstance(candidates, str) else list(candidates)
    # Case: a single string in place of a list. Its letters would become candidates.
    if isinstance(candidates, str) or not all(isinstance(string, str) for string in listed):
        raise ParamsError("candidates must be a list of strings")
    return listed


def _parse_document(response: HttpResponse) -> dict[str, Any]:
    """Parse the JSON object of a response, or raise CollectorError."""
    # Case: the login page of a proxy, a response with status 200 that is not JSON.
    try:
        document = json.loads(response.body)
    except (ValueError, RecursionError):
        raise _make_wrong_server_error() from None
    if not isinstance(document, dict):
        raise _make_wrong_server_error()
    return document


def _parse_metric(entry: Any) -> RemoteMetric:
    """Parse a metric of the collector's list.

    A wrong form raises KeyError, TypeError, ValueError or OverflowError.
    """
    return RemoteMetric(
        name=str(entry["name"]),
        description=str(entry["description"]),
        owner=str(entry["owner"]),
        expires=datetime.date.fromisoformat(entry["expires"]),
        fingerprints=tuple(map(str, entry["fingerprints"])),
        min_reports=int(entry["min_reports"]),
        min_cohort=int(entry["min_cohort"]),
        n_reports=int(entry["reports"]),
        n_days=int(entry["n_days"]),
        days=tuple(
            DayReports(day=datetime.date.fromisoformat(row["day"]), reports=int(row["reports"]))
            for row in entry["days"]
        ),
        withheld=tuple(map(datetime.date.fromisoformat, entry["withheld"])),
        n_withheld=int(entry["n_withheld"]),
    )


def _make_wrong_server_error() -> CollectorError:
    """Return the error for a response that no collector sends."""
    return CollectorError("the response is not from a collector: is the address right?")
