"""Time to read uploads: the collector's fast parser, the strict parser, and hostile uploads.

Devices write an upload as JSON in one form, the canonical form: no white space, and the keys in a
fixed order. The collector has a fast parser for this form. Every other upload, and every report
that the fast parser does not accept, goes through the strict parser of the protocol, which finds
the reason of a refusal.

The first table shows how much faster the collector reads uploads in canonical form than the strict
parser does. The second table shows whether an attacker can send uploads that take much longer to
read than honest uploads of the same size.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Sequence

from benchmarks.tables import Table
from rappor.base.errors import ReportError
from rappor.counts.popcounts import compute_popcount_range
from rappor.protocol.params import Params
from rappor.protocol.wire import Report, Upload, parse_upload

_TOML = """
[budget]
total = inf
[metrics.page]
description = "a"
owner = "b"
expires = 2100-01-01
epoch = "life"
encoding = "bloom"
profile = "balanced"
"""
_PARAMS = dataclasses.replace(Params.profile("balanced"), interval="day", epoch="life")
"""Parameters of the metric, with its interval and epoch: the fingerprint contains both."""
_TODAY = datetime.date(2026, 11, 21)
"""Day on which the uploads are read."""
_HEAD = b'{"v":1,"id":"AAAAAAAAAAAAAAAAAAAAAA","reports":['


def reading(*, quick: bool) -> list[Table]:
    """Measure CPU seconds of reading in turn, and keep the fastest round of each kind."""
    rounds = 5 if quick else 25
    return [_compare_spellings(rounds), _compare_hostile_uploads(rounds)]


def _compare_spellings(rounds: int) -> Table:
    """Compare the collector's reader with the strict parser, for uploads in canonical form."""
    table = Table(
        title="reading: uploads of k = 128 as devices spell them, one core",
        columns=("reports an upload", "collector, us", "strict reader, us", "times as fast"),
        note="CPU time of the fastest round. The strict reader parses the upload (`parse_upload`) "
        "and checks the number of ones of each report. It checks nothing else, and writes no "
        "response.",
    )
    read = _make_reader()
    for n_reports in (1, 20, 200):
        bodies = [_make_upload(n_reports) for _ in range(100)]
        fast, strict = _time_fastest([read, _read_strictly], bodies, rounds)
        table.rows.append([n_reports, 1e6 * fast, 1e6 * strict, strict / fast])
    return table


def _compare_hostile_uploads(rounds: int) -> Table:
    """Compare uploads that take long to read with honest uploads of the same size.

    The last column is the time of an upload divided by the time of the honest upload.
    """
    table = Table(
        title="reading: hostile uploads beside honest ones of their size, one core",
        columns=("upload", "bytes", "CPU, us", "of an honest one"),
        note="CPU time of the fastest round, reading alone: HTTP and the commit are the same for "
        "all and cost an upload of one report some 300 us.",
    )
    read = _make_reader()
    for n_bytes in (2_000, 20_000, 200_000):
        # A report takes about 110 bytes. The collector accepts at most 1,000 reports.
        honest = _make_upload(min(1000, n_bytes // 110))
        rows = {"honest": honest} | _make_costly_uploads(n_bytes)
        seconds = {label: _time_fastest([read], [body], rounds)[0] for label, body in rows.items()}
        for label, body in rows.items():
            ratio = seconds[label] / seconds["honest"]
            table.rows.append([label, len(body), 1e6 * seconds[label], ratio])
    return table


def _make_costly_uploads(n_bytes: int) -> dict[str, bytes]:
    """Return uploads whose reading takes long."""
    # The report of an honest upload, without the surrounding JSON.
    good = _make_upload(1)[len(_HEAD) : -2]
    # Each upload repeats one entry that the fast parser does not accept. These entries take the
    # strict parser long:
    entries = {
        # - values that are not reports. They are so short that an upload has thousands of them, and
        #   each of them is refused;
        "numbers": b"1",
        "empty objects": b"{}",
        # - a report with one character too many in its bits. Both parsers read the whole report
        #   before they find the wrong length;
        "odd bits": good.replace(b'"bits":"', b'"bits":"A'),
        # - a valid report behind a space. The upload is not in canonical form, so only the strict
        #   parser reads it;
        "other spelling": b" " + good,
        # - an integer of 4,000 digits. The time of its conversion grows with the square of its
        #   length.
        "long integers": b"9" * 4000,
    }
    return {
        label: _HEAD + b",".join([entry] * max(1, n_bytes // (len(entry) + 1))) + b"]}"
        for label, entry in entries.items()
    }


def _make_upload(n_reports: int) -> bytes:
    """Return an upload with random bits, as a device writes it."""
    reports = (
        Report(metric="page", params=_PARAMS.fingerprint, cohort=i % 128, bits=os.urandom(16))
        for i in range(n_reports)
    )
    return Upload(id=Upload.new_id(), reports=tuple(reports)).to_json()


def _make_reader() -> Callable[[bytes], object]:
    """Return the collector's reader, which returns an error as an object."""
    from rappor_server.ingest.accepted_params import AcceptedParams  # noqa: PLC0415 - the extra
    from rappor_server.ingest.validate import Suspicious, read_upload  # noqa: PLC0415

    from rappor import Registry  # noqa: PLC0415

    accepted_params = AcceptedParams(Registry.loads(_TOML))

    def read(body: bytes) -> object:
        try:
            return read_upload(
                body, accepted_params, today=_TODAY, max_reports=1000, suspicious=Suspicious.REFUSE
            )
        except ReportError as error:
            return error.code

    return read


def _read_strictly(body: bytes) -> object:
    """Parse an upload by the protocol's parser, and check the number of ones of each report."""
    _, entries = parse_upload(body, lambda name, _: _PARAMS if name == "page" else None)
    least, most = compute_popcount_range(_PARAMS)
    ones = [
        int.from_bytes(entry.bits, "little").bit_count()
        for entry in entries
        if isinstance(entry, Report)
    ]
    return [not least <= n <= most for n in ones]


def _time_fastest(
    readers: Sequence[Callable[[bytes], object]], bodies: Sequence[bytes], rounds: int
) -> list[float]:
    """Return the CPU seconds of a body for each reader, in its fastest round.

    The readers take turns, so that other work of the machine delays all of them alike.
    """
    best = [float("inf")] * len(readers)
    for _ in range(rounds):
        for i, read in enumerate(readers):
            start = time.process_time()
            for body in bodies:
                read(body)
            best[i] = min(best[i], (time.process_time() - start) / len(bodies))
    return best
