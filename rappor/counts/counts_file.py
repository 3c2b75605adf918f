"""The file of one Counts: three lines of text, then integers.

    RAPPOR COUNTS 1
    {"devices":null|{"squares":...},"metric":...,"packing":"raw"|"zlib","params":{...},
     "shape":[m,k]}                                               in one line
    SHA-256, as hex digits, of everything else in the file
    reports (m) and then ones (m, k), as little-endian 64-bit integers

`squares` is the sum of a device's squared reports over all devices, or a bound above it; without
`devices`, or with null, nobody knows. The integers are compressed where that makes them shorter.
Any changed, missing or added byte is an error, and nothing is unpacked before the digest has
matched.

What a collector answers to GET /v1/metrics/NAME/counts is read too, an entry a parameter set:

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
from rappor.counts.tables import is_table_of_counts
from rappor.protocol.params import Params

_FAMILY: Final = b"RAPPOR COUNTS "
_MAGIC: Final = _FAMILY + b"1\n"
_PARQUET: Final = b"PAR1"
_JSON: Final = b"{"
_GZIP: Final = b"\x1f\x8b"
_REGISTRY: Final = re.compile(rb"(?m)^\s*\[(budget|metrics\.)")
_SHOWING: Final = 4096
"""Bytes of another file that are read to say what it looks like."""


class Contents(NamedTuple):
    """What a file contains: the arguments of Counts, read but not yet checked for consistency.

    `ones` is (m, k) int64, `reports` (m,) int64.
    """

    params: Params
    ones: NDArray[np.int64]
    reports: NDArray[np.int64]
    metric: str
    squares: int | None = None


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the file, whole or not at all."""
    integers = np.concatenate([contents.reports, contents.ones.ravel()]).astype("<i8").tobytes()
    packed = zlib.compress(integers, level=6)
    packing, payload = ("zlib", packed) if len(packed) < len(integers) else ("raw", integers)
    document = {
        "devices": None if contents.squares is None else {"squares": contents.squares},
        "metric": contents.metric,
        "packing": packing,
        "params": json.loads(contents.params.to_json()),
        "shape": list(contents.ones.shape),
    }
    header = json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    with replace_file(path) as file:
        file.writelines([_MAGIC, header, _digest(header, payload), payload])


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a file of one parameter set; FileError for several or none, and as `read_all`."""
    contents = read_all(path)
    if len(contents) != 1:
        raise FileError(
            path,
            f"it must have counts under one parameter set, got {len(contents)}: "
            "ask the collector for one of them with params=FINGERPRINT",
        )
    return contents[0]


def read_all(path: str | os.PathLike[str]) -> list[Contents]:
    """Read the file, or the JSON that a collector answers, which may hold several.

    Raises FileError where it is missing, foreign, of another version, truncated, extended, changed,
    or its header and its integers do not fit each other.
    """
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(_MAGIC))
            if start.startswith(_JSON):
                return parse_document(start + file.read())[1]
            if not start.startswith(_FAMILY):
                raise ValueError(_name_other_file(start + file.read(_SHOWING)))
            if start != _MAGIC:
                raise ValueError("it is a counts file of another version than 1, or cut off")
            return [_parse(file.read())]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(path, reason or type(error).__name__) from None


def _digest(header: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(_MAGIC + header + payload).hexdigest().encode() + b"\n"


def _name_other_file(start: bytes) -> str:
    """Say what a file looks like that is not a counts file, by how it begins."""
    if start.startswith(_PARQUET):
        return (
            "it is a Parquet file, not a counts file: read counts with Counts.from_parquet, "
            "add reports up with `rappor aggregate` or rappor.engines.aggregate_parquet"
        )
    first_line = start.partition(b"\n")[0]
    looks = ""
    if not start:
        looks = ": it is empty"
    elif start.startswith(_GZIP):
        looks = " but packed by gzip: unpack it first"
    elif start.startswith(b"[{"):
        looks = " but looks like an array of JSON"
    elif _REGISTRY.search(start):
        looks = " but looks like a registry, which --registry names"
    elif is_table_of_counts(first_line.decode(errors="replace")):
        looks = (
            " but looks like a table of counts in CSV: read it with Counts.from_csv, or give "
            "--registry and --metric"
        )
    elif b"," in first_line and first_line.isascii():
        looks = " but looks like CSV: `rappor aggregate` adds reports up"
    return f"it is not a counts file{looks}"


def _parse(data: bytes) -> Contents:
    header, newline, rest = data.partition(b"\n")
    digest, payload = rest[:65], rest[65:]
    if digest != _digest(header + newline, payload):
        raise ValueError("it is damaged: its SHA-256 does not match its contents")
    try:
        document = json.loads(header)
        params = Params.from_json(json.dumps(document["params"]))
        metric, packing, shape = (document[key] for key in ("metric", "packing", "shape"))
        squares = _squares(document)
    except (ParamsError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is wrong: {error}") from None
    if shape != [params.m, params.k]:
        raise ValueError(f"shape must be {[params.m, params.k]} as its parameters say, got {shape}")
    integers = _unpack(packing, payload, n=params.m * (params.k + 1))
    reports, ones = np.split(integers, [params.m])
    return Contents(params, ones.reshape(params.m, params.k), reports, metric, squares)


def parse_document(data: bytes) -> tuple[dict[str, Any], list[Contents]]:
    """Read the counts that a collector answers: the document, and what each entry contains.

    Raises ValueError with the reason; the days are not read here.
    """
    try:
        document = json.loads(data)
        metric = document["metric"]
        return document, [_parse_entry(entry, metric) for entry in document["collections"]]
    except ParamsError as error:
        raise ValueError(f"its parameters are wrong: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        first_line = data.partition(b"\n")[0]
        looks = ""
        if b'"id"' in first_line and b'"reports"' in first_line:
            looks = ", and looks like uploads: add them up with `rappor aggregate`"
        reason = f"it is neither a counts file nor the counts of a collector{looks}"
        raise ValueError(reason) from None


def _parse_entry(entry: Any, metric: Any) -> Contents:
    params = Params.from_json(json.dumps(entry["params"]))
    if entry["fingerprint"] != params.fingerprint:
        raise ParamsError(f"fingerprint must be {params.fingerprint}, got {entry['fingerprint']!r}")
    ones, reports = (_read_integers(entry, key) for key in ("ones", "reports"))
    return Contents(params, ones, reports, metric, _squares(entry))


def _read_integers(entry: Any, key: str) -> NDArray[Any]:
    """Return the numbers under this key; Counts checks their shape and size."""
    numbers = np.array(entry[key])
    if numbers.dtype.kind not in "iuf":
        raise ValueError(f"{key} must be integers, got {numbers.dtype}")
    return numbers


def _squares(document: Any) -> Any:
    """Return what is written of the devices, not yet checked; None where nothing is."""
    devices = document.get("devices")
    return None if devices is None else devices["squares"]


def _unpack(packing: Any, payload: bytes, *, n: int) -> NDArray[np.int64]:
    """Return exactly n integers; never unpack more than that."""
    if packing == "zlib":
        inflate = zlib.decompressobj()
        try:
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
