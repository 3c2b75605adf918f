"""`CollectorClient`: its requests, its records and its errors, without a network."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable
from urllib.parse import parse_qs, urlsplit

import pytest
from decodings import build_released_counts

from rappor import CollectorClient, Counts, Params, ParamsError
from rappor.base.errors import CollectorError
from rappor.remote.http_exchange import HttpRequest, HttpResponse

TELLTALE = "rappor.0123.Telltale-7q"
"""A read token. It must not appear in any message or representation."""
PARAMS = Params(k=2, m=2, f=0.5, p=0.25, q=0.75)
DAY = datetime.date(2026, 11, 1)
NEXT = datetime.date(2026, 11, 2)
COUNTS = Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page", 7)
RELEASED = build_released_counts(
    {DAY: COUNTS, NEXT: Counts.zero(PARAMS, "page")}, "page", withheld=(NEXT,)
)
METRIC = {
    "name": "page",
    "description": "Home page",
    "owner": "a@example.org",
    "expires": "2100-01-01",
    "fingerprints": ["0" * 16],
    "min_reports": 100,
    "min_cohort": 10,
    "reports": 70,
    "n_days": 40,
    "days": [{"day": "2026-11-01", "reports": 6}],
    "withheld": ["2026-11-02"],
    "n_withheld": 33,
    "overfull_cohorts": [],
}
"""A collector describes a metric by this JSON."""


def json_response(status: int, document: object, **headers: str) -> HttpResponse:
    """Return a response with a JSON body."""
    return HttpResponse(status=status, headers=headers, body=json.dumps(document).encode())


class RecordingTransport:
    """A transport that returns prepared responses in order, and stores the requests."""

    def __init__(self, responses: Iterable[HttpResponse]) -> None:
        self.responses = list(responses)
        self.requests: list[HttpRequest] = []

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Store the request, and return the next response."""
        self.requests.append(request)
        return self.responses.pop(0)


def make_collector(*responses: HttpResponse) -> tuple[CollectorClient, RecordingTransport]:
    """Return a client with prepared responses, and its transport."""
    transport = RecordingTransport(responses)
    return CollectorClient("https://example.org", TELLTALE, transport=transport), transport


def test_counts_are_requested_and_read() -> None:
    """`counts` requests the days and periods in the query, and returns the record of the response.

    The token is in a header, because addresses are logged. The name of a metric is escaped, so that
    a "/" in it does not lead to another endpoint.
    """
    collector, transport = make_collector(
        HttpResponse(status=200, headers={}, body=RELEASED.to_json()),
        HttpResponse(status=200, headers={}, body=RELEASED.to_json()),
    )
    assert collector.counts("page", DAY, NEXT, by="day") == RELEASED
    assert collector.counts("pa/ge ü", segments=True) == RELEASED
    first, second = transport.requests
    parts = urlsplit(first.path)
    assert (first.method, parts.path) == ("GET", "/v1/metrics/page/counts")
    assert parse_qs(parts.query) == {"from": ["2026-11-01"], "to": ["2026-11-02"], "by": ["day"]}
    assert first.headers["Authorization"] == f"Bearer {TELLTALE}"
    assert urlsplit(second.path).path == "/v1/metrics/pa%2Fge%20%C3%BC/counts"
    assert urlsplit(second.path).query == "segments=true"


def test_metrics_are_records() -> None:
    """`metrics` returns records whose days are dates and whose numbers are integers."""
    collector, _ = make_collector(json_response(200, {"metrics": [METRIC], "refusals": []}))
    (metric,) = collector.metrics()
    assert (metric.name, metric.n_reports, metric.n_days) == ("page", 70, 40)
    assert [(row.day, row.reports) for row in metric.days] == [(DAY, 6)]
    assert (metric.withheld, metric.n_withheld, metric.expires.year) == ((NEXT,), 33, 2100)


def test_estimates_are_requested_and_read() -> None:
    """`estimates` sends its arguments as a JSON body, and returns the object of the response."""
    collector, transport = make_collector(json_response(200, {"estimates": []}))
    estimates = collector.estimates("page", ["a"], DAY, level=0.01)
    assert estimates == {"estimates": []}
    body = transport.requests[0].body
    expected = {"all": True, "from": "2026-11-01", "level": 0.01, "candidates": ["a"]}
    assert json.loads(body or b"") == expected


def test_a_refusal_is_one_sentence_with_its_status() -> None:
    """A refusal raises an error with the sentence of the problem document and its status.

    The sentence is printed on a terminal, so control characters and marks of direction are removed:
    another server may have written it.
    """
    collector, _ = make_collector(
        json_response(403, {"detail": "the token does\n not\x1b[31m allow \u202ethis metric"})
    )
    with pytest.raises(CollectorError) as caught:
        collector.counts("page")
    assert caught.value.status == 403
    assert str(caught.value) == (
        "the collector responded 403: the token does not [31m allow this metric"
    )


@pytest.mark.parametrize(
    "document",
    ["x", [], {}, {"metrics": [{}]}, {"metrics": 3}, {"metrics": [METRIC | {"reports": math.inf}]}],
    ids=str,
)
def test_responses_of_another_server_are_errors(document: object) -> None:
    """JSON of another form raises CollectorError instead of KeyError, TypeError or OverflowError.

    A wrong address often leads to a server that responds to everything. Python also reads the
    number Infinity, which JSON does not have.
    """
    collector, _ = make_collector(*[json_response(200, document)] * 2)
    with pytest.raises(CollectorError, match="not from a collector"):
        collector.metrics()
    with pytest.raises(CollectorError, match="counts cannot be read"):
        collector.counts("page")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "ftp://example.org",
        "example.org",
        "https://",
        "https://user@example.org",
        "https://example.org/?a=b",
        "https://exa mple.org",
        "https://[::1",
        "https://example.org:99999",
    ],
)
def test_addresses_that_cannot_be_right_are_refused(url: str) -> None:
    """An address to which the token must not be sent is refused before any request.

    Cases: no TLS, another scheme, no scheme or host, a user name, a query, and invalid hosts.
    """
    with pytest.raises(ParamsError, match="url must"):
        CollectorClient(url, TELLTALE)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü", "x" * 201])
def test_tokens_with_other_characters_are_refused(token: str) -> None:
    """A token with other characters is refused, and the message does not contain the token."""
    with pytest.raises(ParamsError, match="token must be letters") as caught:
        CollectorClient("https://example.org", token)
    assert not token or token not in str(caught.value)


def test_nothing_shows_the_token() -> None:
    """The representations of client and request do not contain the token."""
    collector, transport = make_collector(json_response(200, {}))
    collector.estimates("page")
    assert TELLTALE not in repr(collector)
    assert TELLTALE not in repr(transport.requests[0])


def test_wrong_arguments_are_refused() -> None:
    """A text instead of a list, another period, and an empty name raise ParamsError."""
    collector, _ = make_collector()
    with pytest.raises(ParamsError, match="candidates must be a list"):
        collector.estimates("page", "cat")
    with pytest.raises(ParamsError, match="by must be one of day, week, month"):
        collector.counts("page", by="hour")
    with pytest.raises(ParamsError, match="metric must be"):
        collector.counts("")
