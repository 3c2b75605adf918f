"""A record: what the inbox keeps of one group of uploads until it is folded into sums.

The first byte is the version. What follows has the keys of the uploads, in the order of the keys,
so that nothing tells the order of arrival, and the reports by what they count for. A record that
is not exactly what `encode` writes is a RecordError.
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
_INTEGER: Final = np.dtype("<u4")
_Metric = Annotated[str, msgspec.Meta(pattern=rf"^{METRIC_NAME.pattern}\Z")]
_MetricOrNone = Annotated[str, msgspec.Meta(pattern=rf"^({METRIC_NAME.pattern})?\Z")]
_Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Reason = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,32}\Z")]
_Number = Annotated[int, msgspec.Meta(gt=0, lt=2**32)]
"""Of refusals, so that a counter of 64 bits has room for many."""

Refusals = Mapping[tuple[str, str], int]
"""(metric, reason) -> number."""


class RecordError(ValueError):
    """The bytes are not a record that this version can read."""


class Kind(NamedTuple):
    """What a report counts for, beside its day and its cohort."""

    metric: _Metric
    fingerprint: _Fingerprint


class _Packed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reports of one kind as columns of bytes; see `Reports`."""

    kind: Kind
    owners: bytes
    places: bytes
    cohorts: bytes
    bits: bytes


class _Body(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A record after its version."""

    keys: bytes
    is_whole: bytes
    reports: list[_Packed]
    refusals: list[tuple[_MetricOrNone, _Reason, _Number]]


class Reports(NamedTuple):
    """Reports of one kind, by rows.

    `owners` (n,) are the places of their uploads in the record, `places` (n,) their own places in
    the upload, from 1; `cohorts` (n,); `packed` (n, n_bytes) uint8 their bits.
    """

    kind: Kind
    params: Params
    owners: NDArray[np.uint32]
    places: NDArray[np.uint32]
    cohorts: NDArray[np.uint32]
    packed: NDArray[np.uint8]


class Record(NamedTuple):
    """A group of uploads; an upload is whole if none of its reports was refused."""

    keys: list[bytes]
    is_whole: list[bool]
    reports: list[Reports]
    refusals: Refusals


def encode(submissions: Iterable[Submission], refusals: Refusals) -> bytes:
    """Write a group; uploads without an accepted report leave refusals only."""
    added = Counter(refusals)
    rows: dict[Kind, list[tuple[int, int, int, bytes]]] = defaultdict(list)
    owners: list[Submission] = []
    for each in sorted(submissions, key=lambda each: each.key):
        if each.refusals:  # few have any, and an update costs
            added.update(each.refusals)
        for report in each.accepted:
            kind = Kind(report.metric, report.fingerprint)
            rows[kind].append((len(owners), report.place, report.cohort, report.bits))
        if each.accepted:
            owners.append(each)
    body = _Body(
        keys=b"".join([each.key for each in owners]),
        is_whole=bytes([not each.refusals for each in owners]),
        reports=[_pack(kind, own) for kind, own in rows.items()],
        refusals=[(*key, number) for key, number in added.items()],
    )
    return _VERSION + msgspec.msgpack.encode(body)


def _pack(kind: Kind, rows: Sequence[tuple[int, int, int, bytes]]) -> _Packed:
    *numbers, bits = zip(*rows, strict=True)
    owners, places, cohorts = (np.array(each, _INTEGER).tobytes() for each in numbers)
    return _Packed(kind, owners, places, cohorts, b"".join(bits))


def decode(data: bytes, find: Callable[[str], Params | None]) -> Record:
    """Read a record; `find` returns the parameters of a fingerprint. Raises RecordError."""
    if data[:1] != _VERSION:
        raise RecordError(f"a record must have version 1, got {data[:1].hex()}")
    try:
        body = msgspec.msgpack.decode(data[1:], type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordError(f"the bytes are not a record: {type(error).__name__}") from None
    n_keys = len(body.is_whole)
    _require(len(body.keys) == n_keys * KEY_BYTES and max(body.is_whole, default=0) <= 1)
    return Record(
        keys=[body.keys[i : i + KEY_BYTES] for i in range(0, len(body.keys), KEY_BYTES)],
        is_whole=[bool(each) for each in body.is_whole],
        reports=[_unpack(packed, n_keys, find) for packed in body.reports],
        refusals={(metric, reason): number for metric, reason, number in body.refusals},
    )


def _unpack(packed: _Packed, n_keys: int, find: Callable[[str], Params | None]) -> Reports:
    try:
        params = find(packed.kind.fingerprint)
    except RapporError:  # those of a newer version
        params = None
    if params is None:
        raise RecordError("a record must name parameters that are known")
    columns = (packed.owners, packed.places, packed.cohorts)
    n = len(packed.owners) // _INTEGER.itemsize
    _require(n > 0 and all(len(column) == n * _INTEGER.itemsize for column in columns))
    _require(len(packed.bits) == n * params.n_bytes)
    owners, places, cohorts = (np.frombuffer(column, _INTEGER) for column in columns)
    _require(owners.max() < n_keys and places.min() > 0 and cohorts.max() < params.m)
    bits = np.frombuffer(packed.bits, np.uint8).reshape(n, params.n_bytes)
    return Reports(packed.kind, params, owners, places, cohorts, bits)


def _require(is_met: bool) -> None:  # noqa: FBT001
    if not is_met:
        raise RecordError("the parts of a record must fit each other")
