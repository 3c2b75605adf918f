"""The wire format: reports and uploads as JSON, and a strict parser of what a collector receives.

An upload is the body of POST /v1/reports. Example with one report:

    {"v":1,"id":"AAECAwQFBgcICQoLDA0ODw","reports":[
      {"metric":"home.page","params":"f17fbbc225b4229f","cohort":3,"bits":"AQ"}]}

`metric` and `params` (a fingerprint) name the parameter set, and `bits` contains the packed noisy
bits in base64url. The id is the same in all retries of an upload, so that a collector counts an
upload once.

The parser trusts nothing:

- If the upload itself is malformed, `parse_upload` raises ReportError and no report is accepted.
- If a single report is malformed, `parse_upload` returns its ReportError in place of the report,
  and the other reports are accepted.
- Two uploads are equal only if their bytes are equal, up to spellings of JSON: the order of keys,
  white space, escapes of characters in texts, and -0 for 0. Lenient parsers would accept other
  second spellings, such as base64 with spare bits.

An error message depends on the parameters and contains no received text, except the three names of
constants that Python reads and JSON lacks: NaN, Infinity and -Infinity. Messages therefore enter
logs safely, and a collector can count refusals by their messages.
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

ParamsLookup = Callable[[str, str], Params | None]
"""A function that returns the parameter set of a metric's name and a fingerprint, or None if the
collector does not know the combination."""

METRIC_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
"""Matches the name of a metric. A name contains no character that needs escapes in JSON, in TOML or
in an address."""

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
_ID_BYTES: Final = 16
_UPLOAD_KEYS: Final = ("v", "id", "reports")
_REPORT_KEYS: Final = ("metric", "params", "cohort", "bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    r"""A report: the noisy bits that one device sends for one metric.

    Attributes
    ----------
    metric : name of the metric.
    params : fingerprint of the parameter set, 16 hex digits.
    cohort : cohort of the device, in [0, m).
    bits : packed noisy bits, ceil(k/8) bytes. `repr` omits them, so that logs do not contain them.
        Each report adds new noise to the permanent response of its device. From a log of many
        reports of one device, a reader could average this noise away.

    Examples
    --------
    >>> Report(metric="theme", params="f7a3e0a85a6e7c4b", cohort=0, bits=b"\x05")
    Report(metric='theme', params='f7a3e0a85a6e7c4b', cohort=0)
    """

    metric: str
    params: str
    cohort: int
    bits: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    r"""An upload: the reports of one request.

    A device sends one report in each upload, because several reports in one upload would be known
    to come from one device. Tools that act for many devices may send more.

    Attributes
    ----------
    id : 16 random bytes in base64url. All retries of an upload have the same id.
    reports : at least one report.

    Examples
    --------
    >>> report = Report(metric="theme", params="f7a3e0a85a6e7c4b", cohort=0, bits=b"\x05")
    >>> Upload(id="AAECAwQFBgcICQoLDA0ODw", reports=(report,)).to_json()[:43]
    b'{"v":1,"id":"AAECAwQFBgcICQoLDA0ODw","repor'
    """

    id: str
    reports: tuple[Report, ...]

    @staticmethod
    def new_id() -> str:
        """Return the id of a new upload: 16 random bytes as 22 characters of base64url."""
        return encode_base64url(os.urandom(_ID_BYTES))

    def to_json(self) -> bytes:
        """Return the body of POST /v1/reports. Equal uploads give equal bytes."""
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


def parse_upload(data: bytes, lookup: ParamsLookup) -> tuple[str, list[Report | ReportError]]:
    r"""Parse the body of POST /v1/reports.

    Parameters
    ----------
    data : the received bytes, uncompressed. The collector has already undone gzip.
    lookup : returns the parameter set of a metric and a fingerprint, or None.

    Returns
    -------
    id : str
        The id of the upload.
    reports : list of Report or ReportError
        Each report in the order of the upload, or the reason for which it is refused.

    Raises
    ------
    ReportError
        The bytes are not an upload: they are not strict UTF-8 JSON, a key is repeated (at any
        level), missing or unknown, the version or the id is wrong, or there is no report.

    Examples
    --------
    >>> params = Params(k=8, f=0.5, p=0.25, q=0.75)
    >>> report = Report(metric="page", params=params.fingerprint, cohort=0, bits=b"\x05")
    >>> body = Upload(id=Upload.new_id(), reports=(report,)).to_json()
    >>> parse_upload(body, lambda metric, fingerprint: params)[1] == [report]
    True
    >>> _, (error,) = parse_upload(body, lambda metric, fingerprint: None)
    >>> error
    ReportError('metric and params must be known here')
    """
    upload_id, entries = parse_upload_entries(data)
    return upload_id, [_parse_report_or_return_error(entry, lookup) for entry in entries]


def parse_upload_entries(data: bytes) -> tuple[str, list[Any]]:
    """Parse an upload without its reports.

    Returns
    -------
    id : str
        The id of the upload.
    entries : list
        The entries of `reports`, unchecked. `parse_report` parses an entry.

    Raises
    ------
    ReportError
        The bytes are not an upload (`parse_upload`).
    """
    document = _load_strict_json(data)
    _check_keys("an upload", document, _UPLOAD_KEYS)
    # In Python, True == 1 and 1.0 == 1. Both would be second spellings of the version.
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
    """Read the single base64url spelling of bytes that `encode_base64url` writes.

    Parameters
    ----------
    name : name of the field, for the error message.

    Raises
    ------
    ReportError
        The text is any other spelling: padding, foreign characters, or spare bits that are not 0.
    """
    if isinstance(text, str):
        try:
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            data = b""
        # Python's decoder skips foreign characters and ignores spare bits, so encode again.
        if encode_base64url(data) == text:
            return data
    raise ReportError(f"{name} must be a text in base64url without padding or spare bits")


def _load_strict_json(data: bytes) -> Any:
    """Parse JSON in UTF-8 without byte-order mark, repeated keys, NaN, or text after the end."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant
        )
    except ReportError:
        raise
    except UnicodeDecodeError:
        raise ReportError("an upload must be UTF-8") from None
    except json.JSONDecodeError:
        raise ReportError("an upload must be JSON") from None
    # Python refuses integers of thousands of digits, and arrays of thousands of levels.
    except (ValueError, RecursionError):
        raise ReportError("an upload must be JSON of reasonable depth and numbers") from None


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs; raise ReportError if a key occurs twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ReportError("keys must be distinct in each JSON object")
    return entries


def _refuse_constant(name: str) -> NoReturn:
    """Raise ReportError for NaN and infinity, which Python reads although JSON lacks them."""
    raise ReportError(f"numbers must be JSON's, got {name}")


def _check_keys(name: str, document: object, keys: tuple[str, ...]) -> None:
    """Raise ReportError unless a document is a JSON object with exactly these keys."""
    if not isinstance(document, dict) or document.keys() != set(keys):
        raise ReportError(f"{name} must be a JSON object with the keys {', '.join(keys)}")


def _parse_report_or_return_error(entry: object, lookup: ParamsLookup) -> Report | ReportError:
    """Parse one entry of an upload. Return the error of an invalid entry instead of raising it."""
    try:
        return parse_report(entry, lookup)
    except ReportError as error:
        # The traceback would keep every frame in memory, and the received entry with them.
        return error.with_traceback(None)


def parse_report(entry: Any, lookup: ParamsLookup) -> Report:
    """Parse one entry of an upload.

    Parameters
    ----------
    entry : an entry of `parse_upload_entries`.
    lookup : returns the parameter set of a metric and a fingerprint, or None.

    Raises
    ------
    ReportError
        The entry is not a report. `code` is the kind of fault: "malformed", "unknown" parameters,
        "cohort" outside [0, m), wrong "length" of the bits, non-zero "padding" after the last bit,
        or a "popcount" (number of ones) that no device sends under the parameters. Example: a
        report of generalized randomized response must have exactly one 1.
    """
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
    """Raise ReportError unless a device can send the packed bits under the parameters."""
    if len(bits) != params.n_bytes:
        raise ReportError(f"bits must be {params.n_bytes} bytes", code="length")
    packed = int.from_bytes(bits, "little")
    if packed >> params.k:
        raise ReportError("bits must be 0 past bit k - 1", code="padding")
    if fault := params.response.find_fault(packed):
        raise ReportError(fault, code="popcount")
