"""Reports and uploads: the wire form, written canonically and read strictly.

Whatever is not exactly what protocol version 1 says is refused: a parser that guesses would
count what nobody sent. A fault of the upload itself refuses it whole; a fault of one report
leaves the others standing.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rappor.errors import ReportError
from rappor.params import Params

Lookup = Callable[[str, str], Params | None]
"""Given a metric's name and a fingerprint, returns the parameter set, or None if unknown."""

METRIC_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_REPORT_KEYS = {"metric", "params", "cohort", "bits"}
_UPLOAD_KEYS = {"v", "id", "reports"}
_ID_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """One report: a metric's name, a fingerprint, a cohort and ceil(k/8) bytes of bits."""

    metric: str
    params: str
    cohort: int
    bits: bytes

    def __repr__(self) -> str:
        return f"Report(metric={self.metric!r}, params={self.params!r}, {len(self.bits)} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Reports that travel together under one id, which stays the same over retries."""

    id: str
    reports: tuple[Report, ...]

    @staticmethod
    def new_id() -> str:
        """Draw a fresh id: 22 characters of base64url."""
        return encode_base64url(os.urandom(_ID_BYTES))

    def to_json(self) -> bytes:
        """Write the body of a POST, compact, keys in the protocol's order."""
        reports = [
            {
                "metric": report.metric,
                "params": report.params,
                "cohort": report.cohort,
                "bits": encode_base64url(report.bits),
            }
            for report in self.reports
        ]
        document = {"v": 1, "id": self.id, "reports": reports}
        return json.dumps(document, separators=(",", ":")).encode()


def parse_upload(data: bytes, lookup: Lookup) -> tuple[str, list[Report | ReportError]]:
    """Read an upload strictly.

    Returns
    -------
    The id, and for each report itself or the error that refuses it.

    Raises
    ------
    ReportError: the upload as a whole is refused.
    """
    document = _load(data)
    _check_keys("upload", document, _UPLOAD_KEYS)
    if type(document["v"]) is not int or document["v"] != 1:
        raise ReportError("v must be the integer 1")
    _check_id(document["id"])
    entries = document["reports"]
    if not isinstance(entries, list) or not entries:
        raise ReportError("reports must be a list of at least 1 report")
    return document["id"], [_try_report(entry, lookup) for entry in entries]


def encode_base64url(data: bytes) -> str:
    """Write bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Read base64url without padding, in its one canonical form.

    Raises ReportError for padding, white space, other alphabets or non-zero trailing bits.
    """
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise ReportError("base64url is malformed") from None
    if encode_base64url(data) != text:
        raise ReportError("base64url must be canonical: no padding, no trailing bits")
    return data


def _load(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(
            data.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise ReportError("an upload must be UTF-8") from None
    except ReportError:
        raise
    except (ValueError, RecursionError):
        raise ReportError("an upload must be JSON") from None
    if not isinstance(document, dict):
        raise ReportError(f"an upload must be a JSON object, got {type(document).__name__}")
    return document


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ReportError("an upload must not name a JSON key twice")
    return document


def _refuse_constant(name: str) -> None:
    raise ReportError(f"an upload must be JSON, got {name}")


def _check_keys(noun: str, document: dict[str, Any], wanted: set[str]) -> None:
    if set(document) != wanted:
        names = ", ".join(sorted(wanted))
        raise ReportError(f"{noun} must have exactly the keys {names}")


def _check_id(text: object) -> None:
    if not isinstance(text, str) or len(text) != 22 or len(_try_base64url(text)) != _ID_BYTES:
        raise ReportError("id must be 22 characters of canonical base64url")


def _try_base64url(text: str) -> bytes:
    try:
        return decode_base64url(text)
    except ReportError:
        return b""


def _try_report(entry: object, lookup: Lookup) -> Report | ReportError:
    try:
        return _parse_report(entry, lookup)
    except ReportError as error:
        return error


def _parse_report(entry: object, lookup: Lookup) -> Report:
    if not isinstance(entry, dict):
        raise ReportError(f"a report must be a JSON object, got {type(entry).__name__}")
    _check_keys("report", entry, _REPORT_KEYS)
    metric, fingerprint, cohort, bits = (
        entry[key] for key in ("metric", "params", "cohort", "bits")
    )
    if not isinstance(metric, str) or not METRIC_NAME.fullmatch(metric):
        raise ReportError("metric must be a metric's name")
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise ReportError("params must be a fingerprint of 16 hex digits")
    params = lookup(metric, fingerprint)
    if params is None:
        raise ReportError("metric and params must be known here")
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}]")
    if not isinstance(bits, str):
        raise ReportError(f"bits must be base64url text, got {type(bits).__name__}")
    data = decode_base64url(bits)
    check_bits(data, params)
    return Report(metric=metric, params=fingerprint, cohort=cohort, bits=data)


def check_bits(bits: bytes, params: Params) -> None:
    """Raise ReportError unless the bits have the right length and unused ones are 0."""
    if len(bits) != params.n_bytes:
        raise ReportError(f"bits must be {params.n_bytes} bytes, got {len(bits)}")
    if params.k % 8 and bits[-1] >> params.k % 8:
        raise ReportError("bits must be 0 past bit k - 1")
