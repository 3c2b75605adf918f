"""Report and Upload: what leaves the device, its wire form and the strict reading of it.

Reading trusts nothing. A fault of the upload itself sinks it whole; a fault of one report is
returned in that report's place. Messages depend on the parameters and never on what was
sent, so a collector can count refusals by them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from rappor.base.errors import ReportError
from rappor.protocol.params import Params

Lookup = Callable[[str, str], Params | None]
"""(metric, fingerprint) -> the parameters that reports of it carry, None if it is unknown."""

METRIC_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
_ID_BYTES: Final = 16
_UPLOAD_KEYS: Final = ("v", "id", "reports")
_REPORT_KEYS: Final = ("metric", "params", "cohort", "bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One device's noisy bits for one metric; `params` is the parameters' fingerprint."""

    metric: str
    params: str
    cohort: int
    bits: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Reports sent together; the id stays the same over all retries."""

    id: str
    reports: tuple[Report, ...]

    @staticmethod
    def new_id() -> str:
        """Return 16 fresh random bytes as 22 characters of base64url."""
        return encode_base64url(os.urandom(_ID_BYTES))

    def to_json(self) -> bytes:
        """Write the body of POST /v1/reports, the same bytes each time."""
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
    """Read an upload: its id and, in order, each report or what is wrong with it.

    Raises ReportError when the bytes are no upload: not strict UTF-8 JSON, a key that is
    doubled (at any level), missing or unknown, another version, a malformed id, or an empty
    or missing list of reports.
    """
    upload_id, entries = open_upload(data)
    return upload_id, [_report_or_error(entry, lookup) for entry in entries]


def open_upload(data: bytes) -> tuple[str, list[Any]]:
    """Read an upload's id, and its entries as they stand, none of which is judged yet.

    Raises ReportError as `parse_upload` does.
    """
    document = _load(data)
    _check_keys("an upload", document, _UPLOAD_KEYS)
    if type(document["v"]) is not int or document["v"] != 1:
        raise ReportError("v must be the integer 1")
    if len(decode_base64url("id", document["id"])) != _ID_BYTES:
        raise ReportError(f"id must be {_ID_BYTES} bytes in base64url")
    if not isinstance(document["reports"], list) or not document["reports"]:
        raise ReportError("reports must be a list of at least one report")
    return document["id"], document["reports"]


def encode_base64url(data: bytes) -> str:
    """Write bytes in base64url without padding (RFC 4648 section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(name: str, text: object) -> bytes:
    """Read the one spelling that `encode_base64url` writes; `name` is for the message."""
    if isinstance(text, str):
        try:
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            data = b""
        if encode_base64url(data) == text:  # base64 skips foreign characters and spare bits
            return data
    raise ReportError(f"{name} must be a text in base64url without padding or spare bits")


def _load(data: bytes) -> Any:
    """Read strict JSON: UTF-8 without a mark, no key twice, no NaN, nothing after the end."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_distinct_keys, parse_constant=_refuse_constant
        )
    except ReportError:
        raise
    except UnicodeDecodeError:
        raise ReportError("an upload must be UTF-8") from None
    except json.JSONDecodeError:
        raise ReportError("an upload must be JSON") from None
    except (ValueError, RecursionError):  # thousands of digits or of brackets
        raise ReportError("an upload must be JSON of reasonable depth and numbers") from None


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ReportError("keys must be distinct in each JSON object")
    return entries


def _refuse_constant(name: str) -> NoReturn:
    raise ReportError(f"numbers must be JSON's, got {name}")


def _check_keys(what: str, document: object, keys: tuple[str, ...]) -> None:
    if not isinstance(document, dict) or document.keys() != set(keys):
        raise ReportError(f"{what} must be a JSON object with the keys {', '.join(keys)}")


def _report_or_error(entry: object, lookup: Lookup) -> Report | ReportError:
    try:
        return parse_report(entry, lookup)
    except ReportError as error:
        return error.with_traceback(None)  # it would hold the entry, and every frame


def parse_report(entry: Any, lookup: Lookup) -> Report:
    """Read one entry of an upload; ReportError, with its code, for what is no report."""
    _check_keys("a report", entry, _REPORT_KEYS)
    metric, fingerprint, cohort = entry["metric"], entry["params"], entry["cohort"]
    if not isinstance(metric, str) or not METRIC_NAME.fullmatch(metric):
        raise ReportError("metric must be a metric's name")
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise ReportError("params must be a fingerprint of 16 hex digits")
    params = lookup(metric, fingerprint)
    if params is None:
        raise ReportError("metric and params must be known here", code="unknown")
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}]", code="cohort")
    bits = decode_base64url("bits", entry["bits"])
    _check_bits(bits, params)
    return Report(metric=metric, params=fingerprint, cohort=cohort, bits=bits)


def _check_bits(bits: bytes, params: Params) -> None:
    if len(bits) != params.n_bytes:
        raise ReportError(f"bits must be {params.n_bytes} bytes", code="length")
    if int.from_bytes(bits, "little") >> params.k:
        raise ReportError("bits must be 0 past bit k - 1", code="padding")
