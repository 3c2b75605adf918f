"""Records: the encoding of one batch of uploads in the inbox.

A receiver encodes the uploads of a batch (`batch_commit`), and a merge decodes them (`merge`). A
record contains for each upload its deduplication key (`ingest.retry_keys`), by which a merge
recognises retries, and no id and no body. It contains the accepted reports as columns of numbers,
by their kind, which is the pair of metric and fingerprint (hash of the parameters).

The bytes are a version byte, 1, and a MessagePack array. Example: upload A has two reports, of
which the first one was refused, and upload B has one report. All reports are of one kind:

    keys        key of A, key of B         16 bytes each, in increasing order of the keys
    is_whole    0, 1                       a byte for each upload: 1 if no report was refused
    reports     kind                       one element for each kind, with columns of bytes:
                owners      0, 1           index of the upload of each report in `keys`
                positions   2, 1           position of each report in its upload, from 1
                cohorts     71, 5
                bits        n_bytes each
    refusals    metric, reason, 1          one element for each metric and reason

Keys are random. Uploads in the order of their keys do not reveal the order of arrival, so a stolen
inbox does not reveal it. `decode` checks that the columns have matching lengths and valid numbers.
It raises RecordError for damaged bytes and for a record of a newer version.
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
"""The columns of a record contain unsigned 32-bit integers, little-endian."""
_Metric = Annotated[str, msgspec.Meta(pattern=rf"^{METRIC_NAME.pattern}\Z")]
_MetricOrEmpty = Annotated[str, msgspec.Meta(pattern=rf"^({METRIC_NAME.pattern})?\Z")]
"""Metric of a refusal. It is empty if the refused report names no metric of the registry."""
_Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Reason = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,32}\Z")]
_Number = Annotated[int, msgspec.Meta(gt=0, lt=2**32)]
"""Number of refusals. The limit leaves room for the sum of many records in a 64-bit counter."""

Refusals = Mapping[tuple[str, str], int]
"""Maps (metric, reason) to the number of refused reports or uploads."""


class RecordError(ValueError):
    """The bytes are not a record that this version can read."""


class Kind(NamedTuple):
    """Metric and parameters of a report. Kind, day and cohort determine the counter of a report."""

    metric: _Metric
    fingerprint: _Fingerprint


class _PackedReports(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reports of one kind, with each column of `Reports` as bytes.

    `owners`, `positions` and `cohorts` have 4 bytes for each report (`_INTEGER`). `bits` has
    `Params.n_bytes` bytes for each report.
    """

    kind: Kind
    owners: bytes
    positions: bytes
    cohorts: bytes
    bits: bytes


class _Body(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A record without its version byte.

    `keys` has `KEY_BYTES` bytes for each upload, and `is_whole` has one byte for each upload.
    """

    keys: bytes
    is_whole: bytes
    reports: list[_PackedReports]
    refusals: list[tuple[_MetricOrEmpty, _Reason, _Number]]


class Reports(NamedTuple):
    """Reports of one kind as columns of n rows.

    Attributes
    ----------
    kind : metric and fingerprint
    params : parameters of the fingerprint
    owners : (n,) index in `Record.keys` of the upload that contains the report
    positions : (n,) position of the report in its upload, from 1
    cohorts : (n,) cohort
    packed : (n, n_bytes) uint8, the bits. The first bit is the lowest bit of the first byte
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
    # The uploads are sorted by their keys, which are random. A stolen inbox must not reveal the
    # order of arrival.
    for submission in sorted(submissions, key=lambda submission: submission.key):
        if submission.refusals:  # `update` is slow, and few uploads have refusals
            total_refusals.update(submission.refusals)
        for report in submission.accepted:
            kind = Kind(report.metric, report.fingerprint)
            rows[kind].append((len(owners), report.position, report.cohort, report.bits))
        # The rows above contain the index that the upload gets in `owners` here.
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
    # The bytes may be damaged, or written by another version, so every column is checked. A report
    # with a wrong index in `owners` would count although its own upload is a retry.
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
