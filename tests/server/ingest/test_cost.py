"""What reading an upload costs, counted in calls and bytes, whatever was sent.

Calls and bytes are the same on every machine. The benchmark `reading` measures seconds.
"""

from __future__ import annotations

import functools
import json
import operator
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import pytest
from collectors import ACCEPTED, TODAY, report_of, upload_of
from hostile_uploads import costly, mutated, seeded
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.canonical import read_canonical, unpack
from rappor_server.ingest.retry_keys import key_of_upload
from rappor_server.ingest.validate import Submission, Suspicious, count_values, read_upload

from rappor.base.errors import ReportError
from rappor.protocol.wire import Report, decode_base64url, parse_upload

MAX_REPORTS: Final = 1000
TIMES: Final = 20
"""A hostile upload costs at most this many honest ones of its size."""
REST: Final = 500
"""Calls of an upload beside its reading: fewer than HTTP and a commit make."""
SIZES: Final = (200, 2_000, 20_000, 200_000, 1_000_000)


def read(body: bytes) -> Submission | str:
    """Read an upload as a collector does; the code of its error if it is refused whole."""
    try:
        return read_upload(
            body, ACCEPTED, today=TODAY, max_reports=MAX_REPORTS, suspicious=Suspicious.REFUSE
        )
    except ReportError as error:
        return error.code


def calls_of(body: bytes) -> int:
    """Return how many functions the reading of a body calls, those in C too."""
    n = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read(body)
    finally:
        sys.setprofile(None)
    return n


def peak_of(body: bytes) -> int:
    """Return the most bytes that the reading of a body holds."""
    tracemalloc.start()
    try:
        read(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def honest(n_bytes: int) -> bytes:
    """Return an honest upload of at most a size, of one report at least."""
    n_one = len(upload_of()) - 41
    return upload_of(*[report_of()] * max(1, min(MAX_REPORTS, (n_bytes - 41) // n_one)))


def most_calls(n_bytes: int) -> int:
    """Return the calls that an upload of a size may cost."""
    return TIMES * (REST + calls_of(honest(n_bytes)))


@pytest.mark.parametrize("n_bytes", SIZES)
def test_no_upload_costs_much_more_than_an_honest_one_of_its_size(n_bytes: int) -> None:
    """Each of the costly ones is within twenty times the calls of an honest one."""
    calls = {name: calls_of(body) for name, body in costly(n_bytes).items()}
    bound = most_calls(n_bytes)
    assert {name: n for name, n in calls.items() if n > bound} == {}


@pytest.mark.parametrize("n_bytes", [20, 2_000, 20_000])
def test_no_unpacked_upload_costs_much_more_than_an_honest_one(n_bytes: int) -> None:
    """Ten bytes for each one that was sent are within the bound of what was sent."""
    calls = {name: calls_of(body) for name, body in costly(10 * n_bytes).items()}
    bound = most_calls(n_bytes)
    assert {name: n for name, n in calls.items() if n > bound} == {}


def test_no_upload_takes_more_than_fifty_megabytes() -> None:
    """The largest body that is unpacked, in each of its costly forms."""
    peaks = {name: len(body) + peak_of(body) for name, body in costly(4_000_000).items()}
    assert {name: peak for name, peak in peaks.items() if peak > 50_000_000} == {}


def test_a_million_entries_are_counted_before_any_is_judged() -> None:
    """They are refused by a handful of calls, and nothing of them is kept."""
    body = costly(2_000_000)["ones"]
    assert read(body) == "too-many"
    assert calls_of(body) < 50
    assert peak_of(body) < 10_000


def searched(
    rng: random.Random, n_bytes: int, n_steps: int, *, cost: Callable[[bytes], int] = calls_of
) -> bytes:
    """Return the entry whose repetition a climb over mutations finds to be the costliest body."""
    parts = [
        b'{"metric":"page"',
        b',"params":"' + b"0" * 16,
        b'",',
        b'"cohort":0',
        b"}",
        b"[",
        b"]",
    ]
    parts += [b",", b"{}", b'""', b"0", b'"bits":"', b"A", b"\\u0000", b":", b'"a":1', b"1.5", b" "]
    parts += [b"A" * 1000, b"\\u0100" * 1000, "\U0001f600".encode()]
    best: tuple[int, list[bytes]] = (0, [b'{"a":1', b',"metric":"a"', b"}"])
    for _ in range(n_steps):
        entry = list(best[1]) if rng.random() < 0.8 else []
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(entry) + 1)
            entry[at : at + rng.randrange(2)] = rng.choices(parts, k=rng.randrange(4))
        best = max(
            best, (cost(filled(b"".join(entry), n_bytes)), entry), key=operator.itemgetter(0)
        )
    return b"".join(best[1])


def filled(entry: bytes, n_bytes: int) -> bytes:
    """Return an upload of about a size in which one entry stands again and again."""
    head = b'{"v":1,"id":"' + b"A" * 22 + b'","reports":['
    n = max(1, (n_bytes - len(head) - 2) // (len(entry) + 1))
    return head + b",".join([entry] * n) + b"]}"


def long(*arguments: int) -> Any:
    """Return arguments of a test that takes long."""
    return pytest.param(*arguments, marks=pytest.mark.acceptance)


@pytest.mark.parametrize(
    ("n_bytes", "n_seeds", "n_steps"),
    [
        *((300, 1, 300), (3_000, 1, 300), long(300, 5, 2_000), long(3_000, 5, 2_000)),
        *(long(30_000, 5, 200), long(300_000, 5, 200)),
    ],
)
def test_a_search_for_costly_uploads_stays_within_the_bound(
    n_bytes: int, n_seeds: int, n_steps: int
) -> None:
    """Hundreds of steps that climb towards more calls, or thousands."""
    for seed in range(n_seeds):
        found = searched(seeded(seed), n_bytes, n_steps)
        assert calls_of(filled(found, n_bytes)) <= most_calls(n_bytes)


@pytest.mark.parametrize(
    ("n_bytes", "n_seeds", "n_steps"), [(400_000, 1, 100), long(4_000_000, 3, 200)]
)
def test_a_search_for_uploads_that_take_memory_stays_within_the_bound(
    n_bytes: int, n_seeds: int, n_steps: int
) -> None:
    """Of the largest that is unpacked and of a tenth of it: the same for each byte."""
    for seed in range(n_seeds):
        found = searched(seeded(seed), n_bytes, n_steps, cost=peak_of)
        assert n_bytes + peak_of(filled(found, n_bytes)) < 12.5 * n_bytes


@pytest.mark.acceptance
def test_very_many_mutated_uploads_stay_within_the_bound() -> None:
    """Twenty thousand of them, each beside an honest one of its size."""
    bound = functools.cache(most_calls)
    for body in mutated(seeded(4), 20_000):
        assert calls_of(body) <= bound(len(body) // 100 * 100), body


# The fast reading of the common spelling


def slow(body: bytes, known: AcceptedParams) -> tuple[bytes, list[tuple[str, object]]] | str:
    """Read an upload by the protocol's strict reader alone."""
    try:
        upload_id, entries = parse_upload(body, known.lookup)
    except ReportError as error:
        return error.code
    read: list[tuple[str, object]] = [
        (entry.metric, (entry.cohort, entry.bits))
        if isinstance(entry, Report)
        else ("", entry.code)
        for entry in entries
    ]
    return decode_base64url("id", upload_id), read


def agree(body: bytes) -> bool:
    """Check a body against the strict reader; tell whether it was read fast."""
    expected = slow(body, ACCEPTED)
    submission = read(body)
    if isinstance(expected, str) or isinstance(submission, str):
        assert submission == expected
        return False
    upload_id, entries = expected
    statuses = json.loads(submission.response)["reports"]
    assert submission.key == key_of_upload(upload_id, body)
    assert len(statuses) == len(entries)
    accepted = list(submission.accepted)
    for (metric, found), status in zip(entries, statuses, strict=True):
        if not metric:
            reason = "unknown" if status["reason"].startswith("unknown-") else status["reason"]
            assert reason == found
        elif status["status"] == "accepted":
            report = accepted.pop(0)
            assert (report.metric, (report.cohort, report.bits)) == (metric, found)
        else:
            assert status["reason"] in ("expired", "popcount")
    assert not accepted
    return read_canonical(body) is not None


@pytest.mark.parametrize("n", [4_000, long(100_000)])
def test_every_mutated_upload_is_read_as_the_strict_reader_does(n: int) -> None:
    """Whatever is sent is accepted and refused alike, and much of it takes the fast way."""
    assert sum(map(agree, mutated(seeded(1), n))) > n // 8
    for body in costly(2_000).values():
        agree(body)


def test_an_upload_in_another_spelling_has_the_same_answer() -> None:
    """White space, another order of the keys and escapes change nothing but the way of reading."""
    body = upload_of(report_of(), report_of("sound"), report_of("old"))
    document = json.loads(body)
    spellings = (
        body + b"\n",
        json.dumps(document).encode(),
        json.dumps(dict(reversed(document.items()))).encode(),
        body.replace(b"page", b"\\u0070age"),
    )
    usual = read(body)
    assert isinstance(usual, Submission)
    assert read_canonical(body) is not None
    for spelled in spellings:
        assert read_canonical(spelled) is None
        found = read(spelled)
        assert isinstance(found, Submission)
        assert (found.response, found.accepted) == (usual.response, usual.accepted)


def test_base64url_is_read_as_the_protocol_reads_it() -> None:
    """Every text of up to three characters of the alphabets, and some odd ones."""
    alphabet = "AQBgwEz019-_+/= \n\0é"
    texts = [""]
    for _ in range(3):
        texts += [text + letter for text in texts for letter in alphabet]
    for text in {*texts, "AAAA" + "-" * 5, "AAAAA", "AAAA\n", "AAAA====", "\ud800"}:
        try:
            expected = decode_base64url("bits", text)
        except (ReportError, UnicodeEncodeError):
            expected = None
        assert unpack(text) == expected, text


def test_values_are_never_counted_too_low() -> None:
    """The count of any JSON text is at least its values, and its depth."""

    def values(document: Any) -> int:
        inner = list(document.values()) if isinstance(document, dict) else document
        return 1 + sum(map(values, inner)) if isinstance(document, list | dict) else 1

    documents: list[Any] = [1, [], {}, [1, 2, [3, {"a": [4]}]], {"a": {"b": []}}, ["a,b", "{["]]
    for document in documents:
        assert count_values(json.dumps(document).encode()) >= values(document)
