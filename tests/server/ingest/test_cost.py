"""Cost of the parsing of hostile uploads, in function calls and bytes of memory.

A body of four kilobytes once stopped the collector for minutes. The tests therefore compare the
cost of each hostile upload with the cost of an honest upload of the same size, and search for more
expensive uploads by hill climbing. Calls and bytes are the same on every machine. The benchmark
`reading` measures seconds.
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
from collectors import ACCEPTED, TODAY, build_report, build_upload
from hostile_uploads import build_costly_uploads, generate_mutated_uploads, make_generator
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.canonical import read_canonical, unpack
from rappor_server.ingest.retry_keys import key_of_upload
from rappor_server.ingest.validate import Submission, Suspicious, count_values, read_upload

from rappor.base.errors import ReportError
from rappor.protocol.wire import Report, decode_base64url, parse_upload

MAX_REPORTS: Final = 1000
"""Limits the reports of an upload, as by default."""
MAX_RATIO: Final = 20
"""Limits the ratio of the calls for a hostile upload to the calls for an honest upload of its size,
where both calls include `OTHER_CALLS` for the honest upload. A larger value accepts slower
parsing."""
OTHER_CALLS: Final = 500
"""Calls that the collector makes for an honest upload in addition to the parsing: a cautious number
for HTTP and the commit, which make more calls. With a larger value, a small hostile upload may make
more calls."""
SIZES: Final = (200, 2_000, 20_000, 200_000, 1_000_000)
"""Sizes of the hostile uploads, in bytes. The largest one is the largest body by default."""


def parse(body: bytes) -> Submission | str:
    """Parse an upload as a collector does; return the code of the error of a refused upload."""
    try:
        return read_upload(
            body, ACCEPTED, today=TODAY, max_reports=MAX_REPORTS, suspicious=Suspicious.REFUSE
        )
    except ReportError as error:
        return error.code


def count_calls(body: bytes) -> int:
    """Return the number of function calls of the parsing of a body, including C functions."""
    n = 0

    # Python calls the profile function at each call, return and exception.
    def count(_: Any, event: str, __: Any) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        parse(body)
    finally:
        sys.setprofile(None)
    return n


def measure_peak(body: bytes) -> int:
    """Return the largest number of bytes that the parsing of a body allocates."""
    tracemalloc.start()
    try:
        parse(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def make_honest_upload(n_bytes: int) -> bytes:
    """Return an honest upload of at most `n_bytes` bytes, with at least one report."""
    # An upload without reports has 50 bytes. So `n_one` is the bytes of a report and 9 bytes more,
    # of which one is the comma. An upload of n reports has 49 + n * (n_one - 8) bytes, which is at
    # most 41 + n * n_one.
    n_one = len(build_upload()) - 41
    return build_upload(*[build_report()] * max(1, min(MAX_REPORTS, (n_bytes - 41) // n_one)))


def compute_max_calls(n_bytes: int) -> int:
    """Return the largest number of calls that the parsing of an upload of a size may make.

    An honest upload costs its parsing and `OTHER_CALLS`. The limit is `MAX_RATIO` times this cost.
    """
    return MAX_RATIO * (OTHER_CALLS + count_calls(make_honest_upload(n_bytes)))


@pytest.mark.parametrize("n_bytes", SIZES)
def test_hostile_uploads_have_limited_calls(n_bytes: int) -> None:
    """The parsing of a hostile upload costs at most twenty times an honest upload of its size.

    The cost of the honest upload includes 500 calls for HTTP and the commit.
    """
    calls = {name: count_calls(body) for name, body in build_costly_uploads(n_bytes).items()}
    bound = compute_max_calls(n_bytes)
    assert {name: n for name, n in calls.items() if n > bound} == {}


@pytest.mark.parametrize("n_bytes", [20, 2_000, 20_000])
def test_compressed_uploads_have_limited_calls(n_bytes: int) -> None:
    """The limit for a compressed upload is the limit of an honest upload of its compressed size.

    An upload may unpack to ten times its size.
    """
    calls = {name: count_calls(body) for name, body in build_costly_uploads(10 * n_bytes).items()}
    bound = compute_max_calls(n_bytes)
    assert {name: n for name, n in calls.items() if n > bound} == {}


@pytest.mark.slow
def test_memory_of_an_upload_is_limited() -> None:
    """The largest decompressed body in each hostile form allocates at most 50 MB."""
    peaks = {
        name: len(body) + measure_peak(body)
        for name, body in build_costly_uploads(4_000_000).items()
    }
    assert {name: peak for name, peak in peaks.items() if peak > 50_000_000} == {}


def test_million_entries_are_refused_by_their_number() -> None:
    """An upload of a million entries is refused by few calls, and no entry is stored."""
    body = build_costly_uploads(2_000_000)["ones"]
    assert parse(body) == "too-many"
    assert count_calls(body) < 50
    assert measure_peak(body) < 10_000


def search_costly_entry(
    rng: random.Random, n_bytes: int, n_steps: int, *, cost: Callable[[bytes], int] = count_calls
) -> bytes:
    """Return the entry whose repetition is the most expensive body that a hill climb finds.

    Each step changes the best entry at up to four places, or begins anew in one of five steps.
    """
    # Pieces of reports, of other JSON values, of escapes, and of long texts.
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
            best, (cost(repeat_entry(b"".join(entry), n_bytes)), entry), key=operator.itemgetter(0)
        )
    return b"".join(best[1])


def repeat_entry(entry: bytes, n_bytes: int) -> bytes:
    """Return an upload of about `n_bytes` bytes that repeats one entry."""
    head = b'{"v":1,"id":"' + b"A" * 22 + b'","reports":['
    n = max(1, (n_bytes - len(head) - 2) // (len(entry) + 1))
    return head + b",".join([entry] * n) + b"]}"


def mark_acceptance(*arguments: int) -> Any:
    """Return a parameter set that only the acceptance stage runs."""
    return pytest.param(*arguments, marks=pytest.mark.acceptance)


@pytest.mark.parametrize(
    ("n_bytes", "n_seeds", "n_steps"),
    [
        *(
            (300, 1, 300),
            (3_000, 1, 300),
            mark_acceptance(300, 5, 2_000),
            mark_acceptance(3_000, 5, 2_000),
        ),
        *(mark_acceptance(30_000, 5, 200), mark_acceptance(300_000, 5, 200)),
    ],
)
def test_search_for_expensive_uploads_finds_none(n_bytes: int, n_seeds: int, n_steps: int) -> None:
    """A hill climb of hundreds of steps towards more calls stays in the limit."""
    for seed in range(n_seeds):
        costliest = search_costly_entry(make_generator(seed), n_bytes, n_steps)
        assert count_calls(repeat_entry(costliest, n_bytes)) <= compute_max_calls(n_bytes)


@pytest.mark.parametrize(
    ("n_bytes", "n_seeds", "n_steps"), [(400_000, 1, 100), mark_acceptance(4_000_000, 3, 200)]
)
def test_search_for_large_uploads_finds_none(n_bytes: int, n_seeds: int, n_steps: int) -> None:
    """A hill climb towards more memory stays in the limit, for two sizes."""
    for seed in range(n_seeds):
        largest = search_costly_entry(make_generator(seed), n_bytes, n_steps, cost=measure_peak)
        # 50 MB for the largest decompressed body of 4 MB, as in the test of memory above.
        assert n_bytes + measure_peak(repeat_entry(largest, n_bytes)) < 12.5 * n_bytes


@pytest.mark.acceptance
def test_mutated_uploads_have_limited_calls() -> None:
    """Twenty thousand mutated uploads stay in the limit for their size."""
    bound = functools.cache(compute_max_calls)
    for body in generate_mutated_uploads(make_generator(4), 20_000):
        assert count_calls(body) <= bound(len(body) // 100 * 100), body


# The fast reading of the common spelling


def parse_strictly(
    body: bytes, accepted_params: AcceptedParams
) -> tuple[bytes, list[tuple[str, object]]] | str:
    """Parse an upload by the strict parser of the protocol alone."""
    try:
        upload_id, entries = parse_upload(body, accepted_params.lookup)
    except ReportError as error:
        return error.code
    read: list[tuple[str, object]] = [
        (entry.metric, (entry.cohort, entry.bits))
        if isinstance(entry, Report)
        else ("", entry.code)
        for entry in entries
    ]
    return decode_base64url("id", upload_id), read


def check_agreement(body: bytes) -> bool:
    """Check that both parsers agree on a body; return whether the fast parser accepted it."""
    expected = parse_strictly(body, ACCEPTED)
    submission = parse(body)
    if isinstance(expected, str) or isinstance(submission, str):
        assert submission == expected
        return False
    upload_id, entries = expected
    statuses = json.loads(submission.response)["reports"]
    assert submission.key == key_of_upload(upload_id, body)
    assert len(statuses) == len(entries)
    accepted = list(submission.accepted)
    for (metric, fields), status in zip(entries, statuses, strict=True):
        if not metric:
            reason = "unknown" if status["reason"].startswith("unknown-") else status["reason"]
            assert reason == fields
        elif status["status"] == "accepted":
            report = accepted.pop(0)
            assert (report.metric, (report.cohort, report.bits)) == (metric, fields)
        else:
            assert status["reason"] in ("expired", "popcount")
    assert not accepted
    return read_canonical(body) is not None


@pytest.mark.parametrize("n", [4_000, mark_acceptance(100_000)])
def test_both_parsers_agree_on_mutated_uploads(n: int) -> None:
    """Both parsers accept and refuse the same reports. The fast parser accepts many bodies."""
    assert sum(map(check_agreement, generate_mutated_uploads(make_generator(1), n))) > n // 8
    for body in build_costly_uploads(2_000).values():
        check_agreement(body)


def test_non_canonical_upload_gets_the_same_response() -> None:
    """White space, another order of keys and escapes only change which parser reads the upload."""
    body = build_upload(build_report(), build_report("sound"), build_report("old"))
    document = json.loads(body)
    spellings = (
        body + b"\n",
        json.dumps(document).encode(),
        json.dumps(dict(reversed(document.items()))).encode(),
        body.replace(b"page", b"\\u0070age"),
    )
    usual = parse(body)
    assert isinstance(usual, Submission)
    assert read_canonical(body) is not None
    for spelled in spellings:
        assert read_canonical(spelled) is None
        submission = parse(spelled)
        assert isinstance(submission, Submission)
        assert (submission.response, submission.accepted) == (usual.response, usual.accepted)


def test_base64url_equals_that_of_the_protocol() -> None:
    """Both decoders agree on every text of up to three characters, and on some unusual texts."""
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


def test_count_values_is_an_upper_bound() -> None:
    """The count of a JSON text is at least the number of its values, and at least its depth."""

    def values(document: Any) -> int:
        inner = list(document.values()) if isinstance(document, dict) else document
        return 1 + sum(map(values, inner)) if isinstance(document, list | dict) else 1

    documents: list[Any] = [1, [], {}, [1, 2, [3, {"a": [4]}]], {"a": {"b": []}}, ["a,b", "{["]]
    for document in documents:
        assert count_values(json.dumps(document).encode()) >= values(document)
