"""Hostile uploads: valid uploads with random faults, and uploads that are expensive to read."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator

from collectors import BOOLEAN, PARAMS, build_report, build_upload

_TOKENS = (
    *(bytes([byte]) for byte in b'{}[],:" \n\\\0\xff'),
    b"\xed\xa0\x80",
    *(b"null", b"true", b"-0", b"1.0", b"1e0", b"NaN", b"-Infinity", b"9" * 30, b"9" * 5000),
    *(b"1e400", b'""', b'"v":1,', b'"cohort":0,', b'"\\u0000"', b'"\\ud800"', b"\\u00e9"),
    *("é".encode(), "\U0001f600".encode(), b"\xef\xbb\xbf", b"=", b"-", b"_", b"+", b"/"),
)
"""Bytes that a fault inserts into an upload: punctuation of JSON, bytes that are not UTF-8, numbers
that parsers read differently, fragments of the format, and the alphabets of base64."""

_HEAD = b'{"v":1,"id":"' + b"A" * 22 + b'","reports":['
"""An upload begins with these bytes, up to its first report."""


def make_generator(seed: int) -> random.Random:
    """Return a generator that draws the same random numbers on every machine."""
    return random.Random(seed)  # noqa: S311 - nothing secret is drawn


def generate_mutated_uploads(rng: random.Random, n: int) -> Iterator[bytes]:
    """Yield n uploads of one to five reports, each with zero to four random faults of `_FAULTS`."""
    for _ in range(n):
        metrics = [rng.choice(("page", "sound", "small", "old")) for _ in range(rng.randint(1, 5))]
        body = build_upload(
            *(
                build_report(name, bits=rng.getrandbits(16), cohort=rng.randrange(4))
                for name in metrics
            )
        )
        for _ in range(rng.randint(0, 4)):
            body = rng.choice(_FAULTS)(rng, body)
        yield body


def make_gzip_bomb(byte: bytes, n_mebibytes: int) -> bytes:
    """Return a gzip bomb: a small stream that unpacks to many mebibytes of one byte.

    Only two mebibytes are compressed, because compressing all would take seconds. A full flush
    makes the compressed bytes independent of the bytes before, so they can be repeated.
    """
    packer = zlib.compressobj(9, wbits=31)
    first, next_mebibyte = (
        packer.compress(byte * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    return first + next_mebibyte * (n_mebibytes - 1) + packer.flush()


def _insert(rng: random.Random, body: bytes) -> bytes:
    """Insert a token at a random position."""
    index = rng.randrange(len(body) + 1)
    return body[:index] + rng.choice(_TOKENS) + body[index:]


def _replace(rng: random.Random, body: bytes) -> bytes:
    """Replace up to twelve bytes at a random position by a token."""
    start = rng.randrange(len(body) + 1)
    return body[:start] + rng.choice(_TOKENS) + body[start + rng.randint(0, 12) :]


def _repeat(rng: random.Random, body: bytes) -> bytes:
    """Repeat up to 90 bytes, which may be a key or a whole report."""
    start = rng.randrange(len(body) + 1)
    return body[:start] + body[start : start + rng.randint(1, 90)] + body[start:]


def _cut(rng: random.Random, body: bytes) -> bytes:
    """Remove up to 40 bytes."""
    start = rng.randrange(len(body) + 1)
    return body[:start] + body[start + rng.randint(1, 40) :]


def _change(rng: random.Random, body: bytes) -> bytes:
    """Replace one byte by a random byte."""
    index = rng.randrange(len(body) + 1)
    return body[:index] + bytes([rng.randrange(256)]) + body[index + 1 :]


def _replace_names(rng: random.Random, body: bytes) -> bytes:
    """Replace a name or a separator in up to three places."""
    old, new = rng.choice(
        (
            (b"page", b"nothing"),
            (PARAMS.fingerprint.encode(), BOOLEAN.fingerprint.encode()),
            (b'"metric"', b'"device"'),
            (b'"cohort":', b'"cohort":-'),
            (b'","cohort"', b'X","cohort"'),
            (b'"}', b'A"}'),
            (b":", b": "),
        )
    )
    return body.replace(old, new, rng.randint(1, 3))


_FAULTS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _insert,
    _replace,
    _repeat,
    _cut,
    _change,
    _replace_names,
)
"""Faults of `generate_mutated_uploads`. All faults are equally likely."""


def build_costly_uploads(n_bytes: int) -> dict[str, bytes]:
    """Return uploads of about `n_bytes` bytes that cost a parser much time or memory, by name.

    Examples are many small objects, deep nesting, long numbers, and texts of wide characters.
    """
    report = json.dumps(json.loads(build_upload())["reports"][0], separators=(",", ":")).encode()
    empty = b'{"metric":"","params":"","cohort":0,"bits":""}'
    almost = report.replace(b'"bits":"', b'"bits":"A')
    emoji = "\U0001f600".encode()
    return {
        "ones": _build_list(b"1", n_bytes),
        "empty lists": _build_list(b"[]", n_bytes),
        "empty objects": _build_list(b"{}", n_bytes),
        "objects of one key": _build_list(b'{"":0}', n_bytes),
        "empty reports": _build_list(empty, n_bytes),
        "almost good reports": _build_list(almost, n_bytes),
        "reports with a space": _build_list(b" " + report, n_bytes),
        "reports with doubled keys": _build_list(report[:-1] + b',"bits":""}', n_bytes),
        "long integers": _build_list(b"9" * 4000, n_bytes),
        "long fractions": _build_list(b"0." + b"1" * 4000, n_bytes),
        "a long fraction": _build_list(b"0." + b"1" * n_bytes, n_bytes),
        "a long exponent": _build_list(b"1e" + b"1" * n_bytes, n_bytes),
        "long texts": _build_list(report.replace(b"page", b"a" * 5000), n_bytes),
        "long bits": _build_list(report.replace(b'"bits":"', b'"bits":"' + b"A" * 5000), n_bytes),
        "a text of wide characters": _build_list(b'"' + emoji + b"a" * n_bytes + b'"', n_bytes),
        "escapes": _build_list(b'"' + b"\\u00e9" * (n_bytes // 6) + b'"', n_bytes),
        "wide escapes": _build_list(b'"' + b"\\ud83d\\ude00" * (n_bytes // 12) + b'"', n_bytes),
        "deep lists": b"[" * n_bytes,
        "deep objects": b'{"a":' * (n_bytes // 5),
        "deep in a report": _HEAD + b'{"metric":' + b"[" * n_bytes,
        "many keys": b"{" + b",".join(b'"%d":0' % i for i in range(n_bytes // 9)) + b"}",
        "commas": b"," * n_bytes,
        "spaces": b" " * n_bytes,
        "zeros": bytes(n_bytes),
        "a long id": b'{"v":1,"id":"' + b"A" * n_bytes + b'","reports":[1]}',
    }


def _build_list(entry: bytes, n_bytes: int) -> bytes:
    """Return an upload of about `n_bytes` bytes that repeats one entry."""
    n = max(1, (n_bytes - len(_HEAD) - 2) // (len(entry) + 1))
    return _HEAD + b",".join([entry] * n) + b"]}"
