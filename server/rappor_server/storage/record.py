"""Records: the encoding of one batch of uploads in the inbox.

A record stores the keys of the uploads instead of ids and bodies, and the reports as columns of
numbers, grouped by the counters to which they belong. Keys are stored in their own order, which is
random, so a stolen inbox does not reveal the order in which uploads arrived. The first byte of a
record is the version of its format. `decode` accepts exactly what `encode` writes and raises
RecordError for anything else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import RapporError
from rappor.protocol.params import Params
from rappor.protocol.wire import METRIC_NAME
from rappor_server.ingest.retry_keys import KEY_BYTES
from rappor_server.ingest.validate import Submission

_VERSION: Final = b"\x01"
"""First byte of a record: the version of its format. `decode` refuses any other byte."""
_INTEGER: Final = np.dtype("<u4")
"""Format of the numbers in the columns of a record: 32 bits, unsigned, little-endian."""
_Metric = Annotated[str, msgspec.Meta(pattern=rf"^{METRIC_NAME.pattern}\Z")]
_MetricOrNone = Annotated[str, msgspec.Meta(pattern=rf"^({METRIC_NAME.pattern})?\Z")]
_Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Reason = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,32}\Z")]
_Number = Annotated[int, msgspec.Meta(gt=0, lt=2**32)]
"""Number of refusals. The limit leaves room for the sum of many records in a 64-bit counter."""

Refusals = Mapping[tuple[str, str], int]
"""Number of refused reports or uploads, by (metric, reason)."""


class RecordError(ValueError):
    """The bytes are not a record that this version can read."""


class Kind(NamedTuple):
    """Metric and parameters of a report. Kind, day and cohort determine the counter of a report."""

    metric: _Metric
    fingerprint: _Fingerprint


class _PackedReports(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reports of one kind, with each column of `Reports` as bytes."""

    kind: Kind
    owners: bytes
    positions: bytes
    cohorts: bytes
    bits: bytes


class _Body(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A record without its version byte."""

    keys: bytes
    is_whole: bytes
    reports: list[_PackedReports]
    refusals: list[tuple[_MetricOrNone, _Reason, _Number]]


class Reports(NamedTuple):
    """Reports of one kind as columns of n rows.

    Attributes
    ----------
    kind : metric and fingerprint
    params : parameters of the fingerprint
    owners : (n,) index in the record of the upload that contains the report
    positions : (n,) position of the report in its upload, from 1
    cohorts : (n,) cohort
    packed : (n, n_bytes) uint8, the bits, little-endian
    """

    kind: Kind
    params: Params
    owners: NDArray[np.uint32]
    positions: NDArray[np.uint32]
    cohorts: NDArray[np.uint32]
    packed: NDArray[np.uint8]


class Record(NamedTuple):
    """A decoded batch of uploads.

    Attributes
    ----------
    keys : key of each upload
    is_whole : for each upload, whether none of its reports was refused
    reports : accepted reports, by kind
    refusals : number of refusals, by metric and reason
    """

    keys: list[bytes]
    is_whole: list[bool]
    reports: list[Reports]
    refusals: Refusals


def encode(submissions: Iterable[Submission], refusals: Refusals) -> bytes:
    """Return the record of a batch.

    An upload without an accepted report adds to the refusals, and its key is not stored.

    Parameters
    ----------
    submissions : the uploads of the batch
    refusals : refusals of other uploads, which were not parsed
    """
    total_refusals = Counter(refusals)
    rows: dict[Kind, list[tuple[int, int, int, bytes]]] = defaultdict(list)
    owners: list[Submission] = []
    # In the order of the keys, which are random. A stolen inbox must not show the order of arrival.
    for submission in sorted(submissions, key=lambda submission: submission.key):
        if submission.refusals:  # `update` is slow, and few uploads have refusals
            total_refusals.update(submission.refusals)
        for report in submission.accepted:
            kind = Kind(report.metric, report.fingerprint)
            rows[kind].append((len(owners), report.position, report.cohort, report.bits))
        # The upload is appended after its reports: its index is the length of `owners` before that.
        if submission.accepted:
            owners.append(submission)
    body = _Body(
        keys=b"".join([submission.key for submission in owners]),
        is_whole=bytes([not submission.refusals for submission in owners]),
        reports=[_pack(kind, rows_of_kind) for kind, rows_of_kind in rows.items()],
        refusals=[(*key, number) for key, number in total_refusals.items()],
    )
    return _VERSION + msgspec.msgpack.encode(body)


def _pack(kind: Kind, rows: Sequence[tuple[int, int, int, bytes]]) -> _PackedReports:
    """Return the columns of some reports of one kind.

    `rows` has (index of the upload, position in the upload, cohort, bits) of each report.
    """
    *columns, bits = zip(*rows, strict=True)
    owners, positions, cohorts = (np.array(column, _INTEGER).tobytes() for column in columns)
    return _PackedReports(kind, owners, positions, cohorts, b"".join(bits))


def decode(data: bytes, find_params: Callable[[str], Params | None]) -> Record:
    """Return the batch of a record.

    Parameters
    ----------
    data : the record
    find_params : returns the parameters of a fingerprint, or None

    Raises
    ------
    RecordError
        The bytes are damaged or were written by a newer version.
    """
    if data[:1] != _VERSION:
        raise RecordError(f"a record must have version 1, got {data[:1].hex()}")
    try:
        body = msgspec.msgpack.decode(data[1:], type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordError(f"the bytes are not a record: {type(error).__name__}") from None
    # The bytes may be damaged, or written by another version. A wrong index would add a report to
    # another upload, so every column is checked.
    n_keys = len(body.is_whole)
    _require(len(body.keys) == n_keys * KEY_BYTES and max(body.is_whole, default=0) <= 1)
    return Record(
        keys=[body.keys[i : i + KEY_BYTES] for i in range(0, len(body.keys), KEY_BYTES)],
        is_whole=[bool(flag) for flag in body.is_whole],
        reports=[_unpack(packed, n_keys, find_params) for packed in body.reports],
        refusals={(metric, reason): number for metric, reason, number in body.refusals},
    )


def _unpack(
    packed: _PackedReports, n_keys: int, find_params: Callable[[str], Params | None]
) -> Reports:
    """Return the reports of one kind; raise RecordError if a column is damaged."""
    try:
        params = find_params(packed.kind.fingerprint)
    except RapporError:  # a newer version stored parameters that this version cannot read
        params = None
    if params is None:
        raise RecordError("a record must name parameters that are stored")
    columns = (packed.owners, packed.positions, packed.cohorts)
    n_reports = len(packed.owners) // _INTEGER.itemsize
    _require(n_reports > 0)
    _require(all(len(column) == n_reports * _INTEGER.itemsize for column in columns))
    _require(len(packed.bits) == n_reports * params.n_bytes)
    owners, positions, cohorts = (np.frombuffer(column, _INTEGER) for column in columns)
    _require(owners.max() < n_keys and positions.min() > 0 and cohorts.max() < params.m)
    bits = np.frombuffer(packed.bits, np.uint8).reshape(n_reports, params.n_bytes)
    return Reports(packed.kind, params, owners, positions, cohorts, bits)


def _require(is_consistent: bool) -> None:  # noqa: FBT001
    """Raise RecordError unless a condition on the columns of a record holds."""
    if not is_consistent:
        raise RecordError("the columns of a record must have matching lengths and valid numbers")
