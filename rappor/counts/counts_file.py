"""File format of counts, and the JSON in which a collector returns counts.

`Counts.save` and `Counts.load` use this module. m is the number of cohorts and k the number of bits
of a report.

A counts file contains counts of one metric and one parameter set. It has three lines of text, then
integers:

    RAPPOR COUNTS 1
    {"devices":null|{"squares":...},"metric":...,"packing":"raw"|"zlib","params":{...},
     "shape":[m,k]}                                               in one line
    SHA-256, as hex digits, of everything else in the file
    cohort reports (m) and then bit counts (m, k), as little-endian integers of 64 bits

`squares` is the sum over all devices of the squared number of a device's reports, or an upper bound
of this sum. It is unknown if `devices` is null or absent. The integers are compressed if the file
becomes shorter. Any changed, missing or added byte is an error, and nothing is unpacked before the
digest matches.

The JSON of GET /v1/metrics/NAME/counts can be read as well. It has an entry for each parameter set,
and for each period if periods were requested:

    {"metric":..., "from":..., "to":..., "collections":[{"fingerprint":..., "params":{...},
    "reports":[m], "ones":[[k], ...], "devices":..., "from":..., "to":...}, ...], ...}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rappor.base.atomic_files import replace_file
from rappor.base.errors import FileError, ParamsError
from rappor.counts.counts_tables import is_table_of_counts
from rappor.protocol.params import Params

_FAMILY: Final = b"RAPPOR COUNTS "
"""A counts file of any version begins with these bytes."""

_MAGIC: Final = _FAMILY + b"1\n"
"""First line of a counts file of version 1. Another meaning of the bytes needs another version."""

# First bytes of files with which a counts file is confused.
_PARQUET: Final = b"PAR1"
_JSON: Final = b"{"
_GZIP: Final = b"\x1f\x8b"

_REGISTRY: Final = re.compile(rb"(?m)^\s*\[(budget|metrics\.)")
"""Matches the heading of a section of a registry, such as [metrics.page]."""

_NUMBERS: Final = re.compile(rb"\d+(,\d+)+\r?")
"""Matches a line of numbers without a header, as in the counts.csv of google/rappor."""

_EXAMINED_BYTES: Final = 4096
"""Number of bytes of a foreign file that are read to name its format in the error message. The
first heading of a registry usually stands in the first lines, so 4 KiB are enough. A larger number
recognises more files."""


class CountsFields(NamedTuple):
    """Arguments of `Counts` from a file, not yet checked against each other.

    Attributes
    ----------
    params : the parameter set.
    bit_counts : (m, k) integers. Number of ones at each bit of each cohort.
    cohort_reports : (m,) integers. Number of reports of each cohort.
    metric : name of the metric; empty for counts without a metric.
    squares : the sum of squared reports of devices; None if the sum is unknown.
    """

    params: Params
    bit_counts: NDArray[np.int64]
    cohort_reports: NDArray[np.int64]
    metric: str
    squares: int | None = None


def write_counts_file(path: str | os.PathLike[str], fields: CountsFields) -> None:
    """Write a counts file. After a crash, the file is either complete or absent."""
    integers = np.concatenate([fields.cohort_reports, fields.bit_counts.ravel()]).astype("<i8")
    raw = integers.tobytes()
    compressed = zlib.compress(raw, level=6)
    packing, payload = ("zlib", compressed) if len(compressed) < len(raw) else ("raw", raw)
    document = {
        "devices": None if fields.squares is None else {"squares": fields.squares},
        "metric": fields.metric,
        "packing": packing,
        "params": json.loads(fields.params.to_json()),
        "shape": list(fields.bit_counts.shape),
    }
    header = json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    with replace_file(path) as file:
        file.writelines([_MAGIC, header, _compute_digest_line(header, payload), payload])


def read_counts_file(path: str | os.PathLike[str]) -> CountsFields:
    """Read a file with counts of exactly one parameter set.

    Raises
    ------
    FileError
        The file contains several parameter sets or none, or one of the reasons for which
        `read_all_counts` refuses a file.
    """
    fields = read_all_counts(path)
    if len(fields) != 1:
        raise FileError(
            path,
            f"it must have counts under one parameter set, got {len(fields)}: "
            "ask the collector for one of them with params=FINGERPRINT",
        )
    return fields[0]


def read_all_counts(path: str | os.PathLike[str]) -> list[CountsFields]:
    """Read a counts file, or the JSON of a collector, which may contain several parameter sets.

    Raises
    ------
    FileError
        The file is missing, of another kind or version, truncated, extended or changed, or its
        header contradicts its integers.
    """
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(_MAGIC))
            if start.startswith(_JSON):
                return parse_collector_response(start + file.read())[1]
            if not start.startswith(_FAMILY):
                raise ValueError(_describe_other_file(start + file.read(_EXAMINED_BYTES)))
            if start != _MAGIC:
                raise ValueError("it is a counts file of another version than 1, or cut off")
            return [_parse_after_magic(file.read())]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(path, reason or type(error).__name__) from None


def _compute_digest_line(header: bytes, payload: bytes) -> bytes:
    """Return the third line of a counts file: the SHA-256 of everything else in the file."""
    return hashlib.sha256(_MAGIC + header + payload).hexdigest().encode() + b"\n"


def _describe_other_file(start: bytes) -> str:
    """Return an error message that names the kind of a foreign file, and how to read it."""
    if start.startswith(_PARQUET):
        return (
            "it is a Parquet file, not a counts file: read counts with Counts.from_parquet, "
            "add reports up with `rappor aggregate` or rappor.engines.aggregate_parquet"
        )
    first_line = start.partition(b"\n")[0]
    resemblance = ""
    if not start:
        resemblance = ": it is empty"
    elif start.startswith(_GZIP):
        resemblance = " but packed by gzip: unpack it first"
    elif start.startswith(b"[{"):
        resemblance = " but looks like an array of JSON"
    elif _REGISTRY.search(start):
        resemblance = " but looks like a registry, which --registry names"
    elif is_table_of_counts(first_line.decode(errors="replace")):
        resemblance = (
            " but looks like a table of counts in CSV: read it with Counts.from_csv, or give "
            "--registry and --metric"
        )
    elif _NUMBERS.fullmatch(first_line):
        resemblance = (
            " but looks like the counts of google/rappor: read it with `rappor decode --format "
            "google` or rappor.google.files.read_counts"
        )
    elif b"," in first_line and first_line.isascii():
        resemblance = " but looks like CSV: `rappor aggregate` adds reports up"
    return f"it is not a counts file{resemblance}"


def _parse_after_magic(data: bytes) -> CountsFields:
    """Parse a counts file after its first line; raise ValueError with the reason."""
    header, newline, body = data.partition(b"\n")
    # 64 hexadecimal digits and a newline.
    digest_line, payload = body[:65], body[65:]
    if digest_line != _compute_digest_line(header + newline, payload):
        raise ValueError("it is damaged: its SHA-256 does not match its contents")
    try:
        document = json.loads(header)
        params = Params.from_json(json.dumps(document["params"]))
        metric, packing, shape = (document[key] for key in ("metric", "packing", "shape"))
        squares = _read_squares(document)
    except (ParamsError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is wrong: {error}") from None
    if shape != [params.m, params.k]:
        raise ValueError(f"shape must be {[params.m, params.k]} as its parameters say, got {shape}")
    # m cohort reports and m k bit counts.
    integers = _unpack_integers(packing, payload, n=params.m * (params.k + 1))
    cohort_reports, bit_counts = np.split(integers, [params.m])
    bit_counts = bit_counts.reshape(params.m, params.k)
    return CountsFields(params, bit_counts, cohort_reports, metric, squares)


def parse_collector_response(data: bytes) -> tuple[dict[str, Any], list[CountsFields]]:
    """Parse the JSON in which a collector returns counts.

    Returns
    -------
    document : dict
        The whole document. Its days are not checked.
    fields : list of CountsFields
        Counts of each entry of `collections`.

    Raises
    ------
    ValueError
        The JSON does not contain the counts of a collector. The message is the reason.
    """
    try:
        document = json.loads(data)
        metric = document["metric"]
        return document, [_parse_entry(entry, metric) for entry in document["collections"]]
    except ParamsError as error:
        raise ValueError(f"its parameters are wrong: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        # Python's parser raises RecursionError for JSON with thousands of nested brackets.
        # Case: a file of uploads, whose lines are JSON as well. The error names the right command.
        first_line = data.partition(b"\n")[0]
        resemblance = ""
        if b'"id"' in first_line and b'"reports"' in first_line:
            resemblance = ", and looks like uploads: add them up with `rappor aggregate`"
        reason = f"it is neither a counts file nor the counts of a collector{resemblance}"
        raise ValueError(reason) from None


def _parse_entry(entry: Any, metric: Any) -> CountsFields:
    """Parse one entry of `collections`; raise ParamsError for a wrong fingerprint."""
    params = Params.from_json(json.dumps(entry["params"]))
    if entry["fingerprint"] != params.fingerprint:
        raise ParamsError(f"fingerprint must be {params.fingerprint}, got {entry['fingerprint']!r}")
    bit_counts, cohort_reports = (_read_integers(entry, key) for key in ("ones", "reports"))
    return CountsFields(params, bit_counts, cohort_reports, metric, _read_squares(entry))


def _read_integers(entry: Any, key: str) -> NDArray[Any]:
    """Return the numbers of a key. `Counts` checks their shape and range."""
    numbers = np.array(entry[key])
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{key} must be integers, got {numbers.dtype}")
    return numbers


def _read_squares(document: Any) -> Any:
    """Return the sum of squared reports, unchecked; None if the document has no devices."""
    devices = document.get("devices")
    return None if devices is None else devices["squares"]


def _unpack_integers(packing: Any, payload: bytes, *, n: int) -> NDArray[np.int64]:
    """Return exactly n integers; raise ValueError for any other payload."""
    if packing == "zlib":
        inflate = zlib.decompressobj()
        try:
            # Case: a small hostile file that unpacks to gigabytes. At most one byte more than
            # expected is unpacked, so that a longer payload is refused below.
            payload = inflate.decompress(payload, 8 * n + 1)
        except zlib.error:
            raise ValueError("its integers are not a zlib stream") from None
        if not inflate.eof or inflate.unused_data:
            raise ValueError("its zlib stream is cut off or too long")
    elif packing != "raw":
        raise ValueError(f"packing must be raw or zlib, got {packing!r}")
    if len(payload) != 8 * n:
        raise ValueError(f"it must hold {n} integers of 8 bytes, got {len(payload)} bytes")
    return np.frombuffer(payload, dtype="<i8").astype(np.int64)
