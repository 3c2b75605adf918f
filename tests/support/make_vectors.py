"""Write the test vectors, tests/vectors/*.json, from the reference implementation.

Run this script as `python tests/support/make_vectors.py`.

A test vector is a known answer: the inputs of one step of the protocol and its result. Every
implementation of the protocol must compute the same result, in Python, in JavaScript or in another
language. Each function `build_...` returns the rows of one file. A file whose name begins with bad_
contains reports, values or uploads that must be refused, each with the reason in words.

The letters are those of the parameters: k bits, h hash functions, m cohorts, f, g, p and q.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

import reference
from places import VECTORS

FOLDER = VECTORS
VALUES = ("", "a", "duckduckgo", "https://example.org/a?b=c", "Zürich", "日本語", "🎈 ", "x" * 1000)
"""Values of strings. Some implementations count bytes, UTF-16 units or letters in place of code
points, or cut long texts. So the values have characters of one to four bytes of UTF-8, a character
beyond the first 65,536, the empty text, and a long text."""

SECRETS = (bytes(range(32)), hashlib.sha256(b"another").digest())
"""Secrets of two devices. The functions alternate between them."""

SHAPES = (
    (8, 1, 1),
    (16, 2, 16),
    (32, 2, 64),
    (100, 3, 128),
    (128, 1, 128),
    (1024, 16, 64),
    (2040, 2, 65536),
)
"""Triples k, h, m. They contain the largest k, h and m of the protocol, one cohort alone, and a k
that is no multiple of 8, so that the last byte of a report has unused bits."""

NOISES = ((0.5, 0.5, 0.75), (0.0, 0.25, 1.0), (0.238406, 0.059601, 0.559601), (0.75, 0.0, 0.5))
"""Triples f, p, q. They contain f = 0, p = 0 and q = 1, where a threshold is 0 or 2^32. The third
triple has no short binary fractions, so that its thresholds are rounded."""

ASYMMETRIC = (
    ((128, 1, 128), (0.591933, 0.239779, 0.188576, 0.754802)),
    ((128, 1, 128), (0.426739, 0.062659, 0.101442, 0.765705)),
    ((128, 1, 128), (0.201341, 0.006661, 0.017177, 0.620705)),
    ((128, 1, 128), (0.517987, 0.034725, 0, 1)),
    ((64, 2, 16), (0.5, 0, 0.25, 0.75)),
    ((64, 2, 16), (0.5, 1, 0.25, 0.75)),
    ((2040, 1, 1), (0.75, 0.9, 0.4, 0.6)),
    ((24, 1, 4), (2 * 2**-32, 1, 0.25, 0.75)),
)
"""Tuples k, h, m and f, g, p, q with g different from 1/2: the permanent response forces ones and
zeros with different probabilities, f g and f (1 - g). The first four are close to the noise of
the profiles. Most of the others have g, f or a difference of thresholds at a limit of its range."""

_THIRD = "f25a066c03d8cc6b190892c8f465aff1ab4263d2abae02d2f710bcc391e4178d"
"""Secret of a third device, for asymmetric responses and report days, in hexadecimal."""

EPOCHS = ("", "2026", "2026-Q4", "2026-11")
"""Names of epochs of every kind. The epoch of the whole life of a device has the empty name."""

METRIC = "home.page"
"""Most vectors belong to the metric of this name."""


def make_coins(seed: bytes, n: int) -> list[int]:
    """Return n coins that are derived from the seed of a vector."""
    return reference.read_integers(reference.expand(seed, b"coins", 4 * n))


def compute_thresholds(noise: tuple[float, float, float]) -> dict[str, int]:
    """Return the thresholds of f, p and q under their keys in the canonical JSON.

    The key "f" has the threshold of f/2, the probability of a forced one if g = 1/2.
    """
    f, p, q = noise
    return {
        "f": reference.compute_threshold(f / 2),
        "p": reference.compute_threshold(p),
        "q": reference.compute_threshold(q),
    }


def build_bloom_document(
    shape: tuple[int, int, int], noise: tuple[float, float, float]
) -> dict[str, Any]:
    """Return the canonical object of a parameter set of strings.

    The fingerprint is a hash of the object's JSON.
    """
    k, h, m = shape
    return {"v": 1, "encoding": "bloom", "k": k, "h": h, "m": m, **compute_thresholds(noise)}


def build_hashing() -> list[dict[str, Any]]:
    """Return the bits of every value for every shape, in the first and the last cohort."""
    rows = []
    for k, h, m in SHAPES:
        for cohort in sorted({0, m // 2, m - 1}):
            for value in VALUES:
                bits = reference.pack(reference.compute_bloom_filter(value, cohort, k, h)).hex()
                rows.append(
                    {"value": value, "cohort": cohort, "k": k, "h": h, "m": m, "bits": bits}
                )
    return rows


def build_cohorts() -> list[dict[str, Any]]:
    """Return the cohort of each secret for some metrics, epochs and numbers of cohorts."""
    rows = []
    for secret in SECRETS:
        for number, metric in enumerate(("a", METRIC, "z" * 64)):
            for m in (1, 2, 16, 100, 128, 65536):
                document = build_bloom_document((64, 1, m), NOISES[0])
                epoch = EPOCHS[(number + m) % len(EPOCHS)]
                scope = reference.encode_scope(
                    metric, epoch, reference.compute_permanent_fingerprint(document)
                )
                rows.append(
                    {
                        "secret": secret.hex(),
                        "metric": metric,
                        "epoch": epoch,
                        "params": document,
                        "cohort": reference.derive_cohort(secret, scope, m),
                    }
                )
    return rows


def build_samples() -> list[dict[str, Any]]:
    """Return whether each of 24 devices takes part in a metric, at several sampling rates."""
    rows = []
    base = build_bloom_document((128, 1, 128), NOISES[2])
    base_fingerprint = reference.compute_permanent_fingerprint(base)
    for number in range(24):
        secret = hashlib.sha256(bytes([number])).digest()
        epoch = EPOCHS[number % len(EPOCHS)]
        scope = reference.encode_scope(METRIC, epoch, base_fingerprint)
        rates = (1e-9, 0.1, 0.5, 0.9, 1.0)
        rows.append(
            {
                "secret": secret.hex(),
                "metric": METRIC,
                "epoch": epoch,
                "params": base,
                "samples": [[rate, reference.is_sampled(secret, scope, rate)] for rate in rates],
            }
        )
    return rows


def build_parts() -> list[dict[str, Any]]:
    """Return the part that each of 24 devices reports, with its fingerprint and its bits.

    The 24 secrets draw every part at least once.
    """
    rows = []
    base = build_bloom_document((128, 1, 256), NOISES[2])
    base_fingerprint = reference.compute_permanent_fingerprint(base)
    shares: list[tuple[str, float | None]] = [
        ("prefix:2", 0.25),
        ("prefix:5", 0.5),
        ("whole", None),
    ]
    for number in range(24):
        secret = hashlib.sha256(bytes([number])).digest()
        epoch = EPOCHS[number % len(EPOCHS)]
        value = VALUES[number % len(VALUES)]
        part = reference.derive_part(
            secret, reference.encode_scope(METRIC, epoch, base_fingerprint), shares
        )
        document = base | {"part": part}
        scope = reference.encode_scope(
            METRIC, epoch, reference.compute_permanent_fingerprint(document)
        )
        cohort = reference.derive_cohort(secret, scope, 256)
        text = value if part == "whole" else value[: int(part.split(":")[1])]
        rows.append(
            {
                "secret": secret.hex(),
                "metric": METRIC,
                "epoch": epoch,
                "params": base,
                "parts": shares,
                "value": value,
                "part": part,
                "fingerprint": reference.compute_fingerprint(document),
                "cohort": cohort,
                "bits": reference.pack(reference.compute_bloom_filter(text, cohort, 128, 1)).hex(),
            }
        )
    return rows


def build_responses() -> list[dict[str, Any]]:
    """Return permanent responses and reports of strings and booleans.

    Each shape is combined with each value. Secrets, noise and epochs alternate from row to row,
    because all combinations would fill the file. A report depends on fresh coins, so a row contains
    the seed of its coins (`make_coins`).
    """
    rows = []
    for number, (k, h, m) in enumerate(SHAPES):
        for turn, value in enumerate(VALUES):
            secret = SECRETS[turn % 2]
            epoch = EPOCHS[(number + turn) % len(EPOCHS)]
            noise = NOISES[turn % len(NOISES)]
            scope = _encode_scope(epoch, build_bloom_document((k, h, m), noise))
            cohort = reference.derive_cohort(secret, scope, m)
            shape = {"encoding": "bloom", "value": value, "k": k, "h": h, "m": m, "cohort": cohort}
            bits = reference.compute_bloom_filter(value, cohort, k, h)
            rows.append(shape | _build_response(secret, epoch, noise, bits, scope))
    for bit in (0, 1):
        shape = {"encoding": "boolean", "value": bool(bit), "k": 1, "h": 1, "m": 1, "cohort": 0}
        document = build_bloom_document((1, 1, 1), NOISES[0]) | {"encoding": "boolean"}
        rows.append(
            shape | _build_response(SECRETS[0], "", NOISES[0], [bit], _encode_scope("", document))
        )
    return rows


def build_asymmetric() -> list[dict[str, Any]]:
    """Return permanent responses with different probabilities of forced ones and zeros."""
    rows = []
    secrets = (SECRETS[0], b"\xff" * 32, bytes.fromhex(_THIRD))
    values = ("", "line\nbreak", "google.com", "a", "日本語", "naïve café", "x" * 300, "🙂🙃")
    for number, (shape, noise) in enumerate(ASYMMETRIC):
        k, h, m = shape
        f, g, p, q = noise
        t_1, t_0 = reference.compute_threshold(f * g), reference.compute_threshold(f * (1 - g))
        document = build_bloom_document(shape, (0, p, q)) | {"f": t_1, "f0": t_0}
        fingerprint = reference.compute_permanent_fingerprint(document)
        for turn, epoch in enumerate(("", "2026-Q4")):
            secret, value = secrets[number % 3], values[(2 * number + turn) % len(values)]
            metric = f"asymmetric_{number}"
            scope = reference.encode_scope(metric, epoch, fingerprint)
            cohort = reference.derive_cohort(secret, scope, m)
            bits = reference.compute_bloom_filter(value, cohort, k, h)
            rows.append(
                {
                    "secret": secret.hex(),
                    "metric": metric,
                    "epoch": epoch,
                    "value": value,
                    **dict(zip("khmfgpq", (*shape, *noise), strict=True)),
                    "document": document,
                    "fingerprint": reference.compute_fingerprint(document),
                    "permanent_fingerprint": fingerprint,
                    "cohort": cohort,
                    "bits": reference.pack(bits).hex(),
                    "permanent": reference.pack(
                        reference.derive_permanent_response(secret, scope, t_1, t_0, bits)
                    ).hex(),
                }
            )
    return rows


def build_buckets() -> list[dict[str, Any]]:
    """Return reports of generalized randomized response, of sets, categories and numbers."""
    rows = []
    plugins = [f"plugin-{i}" for i in range(70)]
    # Pairs n, k of the profile `once`: a set is padded or cut to n of k buckets.
    sizes = ((1, 56), (2, 112), (8, 464), (32, 1840), (64, 2040))
    for number, (n, k) in enumerate(sizes):
        # The empty set and one plugin are padded, n plugins fit, and n + 2 plugins are cut.
        values: list[list[str]] = [[], plugins[:1], plugins[:n], plugins[: n + 2]]
        values += [["b", "a", "b", ""], ["na\u00efve caf\u00e9", "\u65e5\u672c\u8a9e"]]
        for turn, value in enumerate(values):
            m = (16, 128)[turn % 2]
            document = _build_bucket_document("set", k, m, n)
            rows.append(_build_bucket_row(number + turn, document, value, None))
    categories = ["light", "dark", "\u65e5\u672c\u8a9e"]
    for number, name in enumerate([*categories, "other"]):
        document = _build_bucket_document("onehot", 4, 1, 1)
        own = [categories.index(name) if name in categories else 3]
        rows.append(_build_bucket_row(number, document, name, own, categories))
    edges = ["0.5", "1", "2", "5"]
    # JSON cannot express NaN, so the text "NaN" stands for it. NaN has a bucket of its own.
    for number, (size, bucket) in enumerate([(0.4, 0), (0.5, 1), (5, 4), ("NaN", 5)]):
        document = _build_bucket_document("buckets", 6, 1, 1)
        rows.append(_build_bucket_row(number, document, size, [bucket], edges))
    return rows


def _build_bucket_document(encoding: str, k: int, m: int, n: int) -> dict[str, Any]:
    """Return the canonical object of a parameter set whose loss is 4 nats, as under `once`."""
    keep = compute_keep_threshold(k, n)
    document = {"v": 1, "encoding": encoding, "k": k, "m": m, "items": n, "keep": keep}
    return document | {"interval": "epoch", "epoch": "quarter"}


def compute_keep_threshold(k: int, n: int) -> int:
    """Return the largest threshold of `keep` with a privacy loss of at most 4 nats, by bisection.

    The loss is the logarithm of the largest ratio of two probabilities of a bucket: of a bucket
    that is always one of the n own buckets, and of a bucket that never is. With threshold t, a
    random bucket has at least (2^32 - t) floor(2^32 / k) of the 2^64 pairs of coins. An own bucket
    has t ceil(2^32 / n) pairs more.
    """
    low, high = 0, 2**32
    while high - low > 1:
        t = (low + high) // 2
        ratio = 1 + t * -(-(2**32) // n) / ((2**32 - t) * (2**32 // k))
        low, high = (t, high) if math.log(ratio) <= 4 else (low, t)
    return low


def _build_bucket_row(
    number: int,
    document: dict[str, Any],
    value: Any,
    own: list[int] | None,
    categories: list[str] | None = None,
) -> dict[str, Any]:
    """Return a row of a report of generalized randomized response.

    Parameters
    ----------
    own : own buckets of the value before padding and cutting. None computes the buckets of a set.
    categories : categories, or edges of buckets of numbers, of which the fingerprint depends.
    """
    secret, metric, epoch = SECRETS[number % 2], f"buckets.{number}", "2026-Q4"
    fingerprint = reference.compute_permanent_fingerprint(document, categories)
    scope = reference.encode_scope(metric, epoch, fingerprint)
    k, n, cohort = document["k"], document["items"], 0
    if own is None:
        cohort = reference.derive_cohort(secret, scope, document["m"])
        own = reference.list_own_buckets(value, cohort, k)
    coins = reference.derive_bucket_coins(secret, scope, own, k, n)
    bucket = reference.draw_bucket(own, k, n, document["keep"], coins)
    return {
        "secret": secret.hex(),
        "metric": metric,
        "epoch": epoch,
        "value": value,
        "document": document,
        "categories": categories,
        "fingerprint": reference.compute_fingerprint(document, categories),
        "permanent_fingerprint": fingerprint,
        "cohort": cohort,
        "own": own,
        "chosen": reference.choose_own_buckets(own, k, n, coins),
        "bucket": bucket,
        "report": reference.pack([int(i == bucket) for i in range(k)]).hex(),
    }


def build_bad_bucket_reports() -> dict[str, Any]:
    """Return reports of generalized randomized response that are refused, for k = 12.

    A good report has exactly one bit. Twelve bits are two bytes, so four bits must be zero.
    """
    document = _build_bucket_document("set", 12, 4, 2)
    fingerprint = reference.compute_fingerprint(document)
    good: dict[str, Any] = {"metric": METRIC, "params": fingerprint, "cohort": 0, "bits": "BAA"}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("no bit", {"bits": "AAA"}),
        ("two bits", {"bits": "AwA"}),
        ("two bits of different bytes", {"bits": "AQE"}),
        ("all bits", {"bits": "_w8"}),
        ("a bit past bit k - 1", {"bits": "ABA"}),
        ("one bit too many, past bit k - 1", {"bits": "ARA"}),
        ("a byte too few", {"bits": "BA"}),
        ("a byte too many", {"bits": "BAAA"}),
        ("a cohort too many", {"cohort": 4}),
    ]
    bad = [{"reason": reason, "report": good | change} for reason, change in changes]
    return {"params": document, "good": good, "bad": bad}


def build_tuples() -> list[dict[str, Any]]:
    """Return fingerprints and bits of tuples, of hashed strings and of one-hot combinations.

    `fits` says whether a value can be reported as it is. A value that does not fit is reported,
    too: a string as the empty text, and a combination without a bit or as "other".
    """
    rows = []
    fields = ["site", "country"]
    values: list[tuple[str, dict[str, str], list[str], bool]] = [
        ("none", {"site": "example.org", "country": "de"}, ["example.org", "de"], True),
        # The order of the keys in a recorded value does not matter.
        ("none", {"country": "de", "site": "example.org"}, ["example.org", "de"], True),
        ("none", {"site": "de", "country": "example.org"}, ["de", "example.org"], True),
        ("none", {"site": "", "country": ""}, ["", ""], True),
        (
            "none",
            {"site": "a,b", "country": "\t\u65e5\U0001f388"},
            ["a,b", "\t\u65e5\U0001f388"],
            True,
        ),
        # A field with U+001F counts as empty. A line feed is part of the text.
        ("none", {"site": "a\x1fb", "country": "de"}, ["", "de"], False),
        ("none", {"site": "a", "country": "\x1f"}, ["a", ""], False),
        ("none", {"site": "a\n", "country": "b"}, ["a\n", "b"], True),
        ("casefold,none", {"site": "VIM", "country": "DE"}, ["vim", "DE"], True),
        ("none,strip", {"site": " a", "country": " de "}, [" a", "de"], True),
        # `strip` removes U+001F before the text is searched for U+001F.
        ("none,strip", {"site": "a", "country": "\x1fde\x1f"}, ["a", "de"], True),
        ("none,strip", {"site": "a", "country": " "}, ["a", ""], False),
        ("nfc,strip", {"site": "e\u0301", "country": "x" * 8193}, ["\u00e9", ""], False),
    ]
    for number, (normalizer, value, texts, fits) in enumerate(values):
        document = build_bloom_document((128, 1, 128), NOISES[2]) | {"fields": fields}
        document |= {"interval": "day", "epoch": "quarter", "normalize": normalizer}
        rows.append(_build_tuple_row(number, document, {"value": value, "fits": fits}, texts))
    pairs = [f"{editor}\x1f{system}" for editor in ("vim", "Code") for system in ("linux", "mac")]
    choices: list[tuple[str, dict[str, str], int]] = [
        ("none", {"editor": "vim", "system": "linux"}, 0),
        ("none", {"editor": "Code", "system": "linux"}, 2),
        ("none", {"system": "mac", "editor": "Code"}, 3),
        ("none", {"editor": "code", "system": "linux"}, -1),
        ("none", {"editor": "vim", "system": "other"}, -1),
        ("none", {"editor": "linux", "system": "vim"}, -1),
        ("none", {"editor": "vim\x1flinux", "system": ""}, -1),
        ("casefold,none", {"editor": "CODE", "system": "mac"}, 3),
        ("casefold,none", {"editor": "CODE", "system": "MAC"}, -1),
    ]
    for number, (normalizer, value, bit) in enumerate(choices):
        row = {"value": value, "fits": bit >= 0, "categories": pairs}
        names = {"fields": ["editor", "system"], "normalize": normalizer}
        document = build_bloom_document((4, 1, 1), NOISES[0]) | {"encoding": "onehot"} | names
        rows.append(_build_tuple_row(number, document, row, [bit] if bit >= 0 else []))
        document = _build_bucket_document("onehot", 5, 1, 1) | names
        # Under generalized randomized response, an unlisted combination has bit 4, the last one.
        rows.append(_build_tuple_row(number, document, row, [bit % 5]))
    eight = {f"field_{i}": str(i) for i in range(8)}
    document = build_bloom_document((2040, 2, 1), NOISES[1]) | {"fields": list(eight)}
    rows.append(_build_tuple_row(0, document, {"value": eight, "fits": True}, list(eight.values())))
    return rows


def _build_tuple_row(
    number: int, document: dict[str, Any], row: dict[str, Any], own: list[str] | list[int]
) -> dict[str, Any]:
    """Return a row of a tuple, with its fingerprints, its cohort and its bits.

    Parameters
    ----------
    document : canonical object, with the names of the fields instead of their hash.
    row : value, fits and, for one-hot, the categories.
    own : normalized texts of the fields, or for one-hot the bits of the value.
    """
    # The canonical object leaves out the default.
    if document.get("normalize") == "none":
        del document["normalize"]
    categories = row.setdefault("categories", None)
    names = "\n".join(document["fields"]).encode()
    hashed = document | {"fields": hashlib.sha256(names).hexdigest()}
    secret, metric, epoch = SECRETS[number % 2], f"tuple.{number}", "2026-Q4"
    fingerprint = reference.compute_permanent_fingerprint(hashed, categories)
    scope = reference.encode_scope(metric, epoch, fingerprint)
    cohort = reference.derive_cohort(secret, scope, document["m"])
    k = document["k"]
    if categories is None:
        joined = "\x1f".join(map(str, own))
        bits = reference.compute_bloom_filter(joined, cohort, k, document["h"])
    else:
        bits = [int(i in own) for i in range(k)]
    return {
        "secret": secret.hex(),
        "metric": metric,
        "epoch": epoch,
        "document": document,
        **row,
        "fingerprint": reference.compute_fingerprint(hashed, categories),
        "permanent_fingerprint": fingerprint,
        "cohort": cohort,
        "bits": reference.pack(bits).hex(),
    }


def build_bad_tuples() -> dict[str, Any]:
    """Return values of tuples that are of the wrong kind, so that no report is made."""
    good = {"site": "example.org", "country": "de"}
    values: list[tuple[str, Any]] = [
        ("a field is missing", {"site": "example.org"}),
        ("all fields are missing", {}),
        ("a key is unknown", good | {"city": "Bonn"}),
        ("an unknown key in place of a field", {"site": "example.org", "land": "de"}),
        ("both fields in one key", {"site,country": "de"}),
        ("the key has another case", {"site": "example.org", "Country": "de"}),
        ("a field is a number", good | {"site": 7}),
        ("a field is true", good | {"site": True}),
        ("a field is null", good | {"country": None}),
        ("a field is a list", good | {"country": ["de"]}),
        ("a field is a mapping", good | {"country": {"de": "de"}}),
        ("a field has a lone surrogate", good | {"country": "\ud800"}),
        ("a text", "example.org\x1fde"),
        ("a list", ["example.org", "de"]),
        ("a list of pairs", [["site", "example.org"], ["country", "de"]]),
        ("a number", 7),
        ("true", True),
        ("null", None),
    ]
    document = build_bloom_document((128, 1, 128), NOISES[2]) | {"fields": ["site", "country"]}
    bad = [{"reason": reason, "value": value} for reason, value in values]
    return {"document": document, "good": good, "bad": bad}


def build_days() -> list[dict[str, Any]]:
    """Return the first day of an epoch on which a device may send its only report of the epoch.

    Days are counted from 0. The day depends on the length of the epoch in days.
    """
    rows = []
    for row in build_asymmetric()[::2]:
        for epoch, length in (("2026-Q4", 92), ("2026", 365), ("2026-02", 28)):
            scope = reference.encode_scope(row["metric"], epoch, row["permanent_fingerprint"])
            secret = bytes.fromhex(row["secret"])
            rows.append(
                {key: row[key] for key in ("secret", "metric", "document")}
                | {"epoch": epoch, "days": length}
                | {"day": reference.derive_report_day(secret, scope, length)}
            )
    return rows


UPLOAD_IDS = (
    "327fbcafc916e187d1dd45414a6137ea",
    "cd3d4eb485fd695f47e562af6c692c12",
    "cb4aec889ac858d52812a44cc47d1c10",
    "3310c60fd7f1131271c4f8bd284d0161",
)
"""Ids of four uploads in hexadecimal, 16 arbitrary bytes each."""


def build_upload_keys() -> list[dict[str, Any]]:
    """Return the deduplication keys of uploads of one to four reports, and of all their reports.

    The key of an upload is the first half of HMAC-SHA256 with the id as its key and the body as its
    message. The key of report number i, from 1, is the key of the upload XOR i.
    """
    rows = []
    for n, text in enumerate(UPLOAD_IDS, 1):
        upload_id = bytes.fromhex(text)
        name = base64.urlsafe_b64encode(upload_id).rstrip(b"=").decode()
        report = {"metric": "m", "params": "0" * 16, "bits": "AA"}
        reports = [
            {key: (report | {"cohort": j})[key] for key in ("metric", "params", "cohort", "bits")}
            for j in range(n)
        ]
        body = json.dumps({"v": 1, "id": name, "reports": reports}, separators=(",", ":"))
        key = hmac.digest(upload_id, body.encode(), "sha256")[:16]
        report_keys = [
            (int.from_bytes(key, "big") ^ position).to_bytes(16, "big").hex()
            for position in range(1, n + 1)
        ]
        rows.append({"id": text, "body": body, "key": key.hex(), "report_keys": report_keys})
    return rows


def _encode_scope(epoch: str, document: dict[str, Any]) -> bytes:
    """Return the bytes of a scope of `METRIC`."""
    return reference.encode_scope(METRIC, epoch, reference.compute_permanent_fingerprint(document))


def _build_response(
    secret: bytes, epoch: str, noise: tuple[float, float, float], bits: list[int], scope: bytes
) -> dict[str, Any]:
    """Return the fields of a row that depend on noise: both responses, and the seed of coins."""
    thresholds = compute_thresholds(noise)
    t_1 = t_0 = thresholds["f"]
    permanent = reference.derive_permanent_response(secret, scope, t_1, t_0, bits)
    seed = hashlib.sha256(secret + epoch.encode() + bytes(bits)).digest()
    fresh = make_coins(seed, len(bits))
    report = reference.draw_instantaneous_response(
        permanent, thresholds["p"], thresholds["q"], fresh
    )
    return {
        "secret": secret.hex(),
        "metric": METRIC,
        "epoch": epoch,
        **dict(zip("fpq", noise, strict=True)),
        "bits": reference.pack(bits).hex(),
        "permanent": reference.pack(permanent).hex(),
        "coins_seed": seed.hex(),
        "report": reference.pack(report).hex(),
    }


def build_fingerprints() -> list[dict[str, Any]]:
    """Return the fingerprints of parameter sets of every encoding, and with every optional key."""
    rows: list[dict[str, Any]] = []
    for number, shape in enumerate(SHAPES):
        noise = NOISES[number % len(NOISES)]
        rows += [{"document": build_bloom_document(shape, noise), "categories": None}]
    for extra in (
        {"normalize": "nfc"},
        {"normalize": "domain"},
        {"layout": "google"},
        {"layout": "ä"},
        {"part": "prefix:3"},
        {"part": "whole"},
        *(
            {"interval": interval, "epoch": epoch}
            for interval, epoch in (
                ("day", "life"),
                ("week", "month"),
                ("day", "quarter"),
                ("epoch", "year"),
            )
        ),
    ):
        rows.append(
            {"document": build_bloom_document(SHAPES[0], NOISES[0]) | extra, "categories": None}
        )
    categories_of = {
        "onehot": ["light", "dark", "日本語"],
        "buckets": ["0.5", "10", "1e+21"],
    }
    for encoding, categories in categories_of.items():
        k = len(categories) + (encoding == "buckets")
        document = build_bloom_document((k, 1, 1), NOISES[0]) | {"encoding": encoding}
        rows.append({"document": document, "categories": categories})
    boolean = build_bloom_document((1, 1, 1), NOISES[0]) | {"encoding": "boolean"}
    rows.append({"document": boolean, "categories": None})
    for row in rows:
        document, categories = row["document"], row["categories"]
        row["fingerprint"] = reference.compute_fingerprint(document, categories)
        row["permanent_fingerprint"] = reference.compute_permanent_fingerprint(document, categories)
    return rows


def build_segments() -> list[dict[str, Any]]:
    """Return the fingerprints of parameter sets with a segment."""
    examples: list[dict[str, str]] = [
        {"version": "2"},
        {"version": "2", "country": "de"},
        {"country": "other", "version": '1.0 \u00e4"\U0001f600'},
    ]
    rows = []
    for segment in examples:
        document = build_bloom_document(SHAPES[0], NOISES[0]) | {"segment": segment}
        rows.append(
            {
                "document": document,
                "fingerprint": reference.compute_fingerprint(document),
                "permanent_fingerprint": reference.compute_permanent_fingerprint(document),
            }
        )
    return rows


def _build_report(fingerprint: str, k: int, number: int) -> dict[str, Any]:
    """Return a report of cohort 0 with random bits, whose seed is the number."""
    bits = [int(u < 2**31) for u in make_coins(bytes([number]) * 32, k)]
    return {
        "metric": METRIC,
        "params": fingerprint,
        "cohort": 0,
        "bits": reference.encode_base64url(reference.pack(bits)),
    }


def build_uploads() -> list[dict[str, Any]]:
    """Return uploads of one and of several reports.

    `body` is the exact text, because the deduplication key of an upload hashes its bytes.
    """
    rows = []
    for number, shapes in enumerate((SHAPES[:1], SHAPES[3:4], SHAPES)):
        documents = [build_bloom_document(shape, NOISES[0]) for shape in shapes]
        reports = [
            _build_report(reference.compute_fingerprint(document), document["k"], i)
            for i, document in enumerate(documents)
        ]
        body = {"v": 1, "id": reference.encode_base64url(bytes([number]) * 16), "reports": reports}
        rows.append({"params": documents, "body": json.dumps(body, separators=(",", ":"))})
    return rows


def build_encodings() -> list[dict[str, Any]]:
    """Return the bits of booleans, categories and numbers.

    Ten categories need two bytes, so a vector shows the order of the bytes.
    """
    names = [f"c{i}" for i in range(10)]
    # Encoding, categories or edges, k, and pairs of a value and its bits.
    encodings: list[tuple[str, list[str], int, list[tuple[Any, list[int]]]]] = [
        ("boolean", [], 1, [(False, []), (True, [0])]),
        ("onehot", names, 10, [("c10", []), *((name, [i]) for i, name in enumerate(names))]),
        (
            "buckets",
            ["-1", "0", "0.5", "10", "1e+21"],
            6,
            [(-2, [0]), (-1, [1]), (0, [2]), (0.49, [2]), (0.5, [3]), (10, [4]), (1e22, [5])],
        ),
    ]
    return [
        {
            "encoding": encoding,
            "categories": categories,
            "k": k,
            "value": value,
            "bits": reference.pack([int(i in bits) for i in range(k)]).hex(),
        }
        for encoding, categories, k, rows in encodings
        for value, bits in rows
    ]


def build_hosts() -> list[dict[str, Any]]:
    """Return texts with the results of the normalizer `host`, empty for a text without a host."""
    texts = [
        ("http://example.org/x", "example.org"),
        ("http://example.org:80/", "example.org"),
        # RFC 3986 section 3.2.3: a port has any number of digits, also none
        ("http://example.org:/x", "example.org"),
        ("example.org:", "example.org"),
        ("https://example.org:000443/", "example.org"),
        ("https://example.org:0000000000/", "example.org"),
        ("http://[2001:db8::1]:/", "[2001:db8::1]"),
        ("http://[2001:DB8::1]:000443/", "[2001:db8::1]"),
        ("http://user@example.org.:/", "example.org"),
        ("http://example.org:x/", ""),
        ("http://example.org::/", ""),
        ("http://example.org:123456/", ""),  # above every port
        ("http://c:/", "c"),
        ("c://example.org:/x", "example.org"),
        ("C:\\Users", ""),  # a path of Windows
        ("c:/users", ""),
        ("C:", ""),
        ("http://:/", ""),
        ("http://[2001:db8::1:/", ""),
        ("http://[2001:db8::1]::/", ""),
    ]
    return [{"text": text, "host": host} for text, host in texts]


def build_long_values() -> list[dict[str, Any]]:
    """Return the bits of texts near the largest length that a normalizer accepts, 8,192 bytes.

    A text that is longer before or after normalizing has the bits of the empty text. The normalizer
    `none` has no limit. A text is a unit that is repeated, so that the file stays small.
    """
    texts = [
        ("none", "a", 8193, True),
        ("strip", "a", 8192, True),
        ("strip", "a", 8193, False),
        ("nfc", "\u00e9", 4096, True),
        ("nfc", "\u00e9", 4097, False),
        ("nfc", "e\u0301", 2730, True),
        ("nfc", "e\u0301", 2731, False),
        ("casefold", "\u00df", 4096, True),
        ("casefold", "\u0149", 4096, False),
        ("host", "http://a.org/", 631, False),
        ("domain", "http://a.org/", 631, False),
    ]
    # Normal forms of the units that fit and change.
    normal = {"e\u0301": "\u00e9", "\u00df": "ss"}
    return [
        {
            "normalize": normalize,
            "unit": unit,
            "times": times,
            "fits": fits,
            "k": 128,
            "h": 1,
            "m": 128,
            "cohort": 5,
            "bits": reference.pack(
                reference.compute_bloom_filter(
                    normal.get(unit, unit) * times if fits else "", 5, 128, 1
                )
            ).hex(),
        }
        for normalize, unit, times, fits in texts
    ]


def build_bad_reports() -> dict[str, Any]:
    """Return reports that are refused, for k = 12 and m = 4.

    A collector refuses each of them alone, and accepts the other reports of the same upload.
    """
    document = build_bloom_document((12, 1, 4), NOISES[0])
    good = _build_report(reference.compute_fingerprint(document), 12, 0) | {"bits": "AAA"}
    faults: list[tuple[str, Any]] = [
        ("not an object", 3),
        ("a list", []),
        ("a key is missing", {key: good[key] for key in ("metric", "params", "cohort")}),
        ("a key is unknown", good | {"device": 7}),
        ("the metric is unknown", good | {"metric": "other"}),
        ("the metric is no name", good | {"metric": "Home Page"}),
        ("the metric is a number", good | {"metric": 5}),
        ("the parameters are unknown", good | {"params": "0" * 16}),
        ("the fingerprint is upper case", good | {"params": good["params"].upper()}),
        ("the fingerprint is short", good | {"params": good["params"][:15]}),
        ("the fingerprint is null", good | {"params": None}),
        ("the fingerprint ends in a line feed", good | {"params": good["params"] + "\n"}),
        ("the metric ends in a line feed", good | {"metric": METRIC + "\n"}),
        ("the metric is empty", good | {"metric": ""}),
        ("the cohort is m", good | {"cohort": 4}),
        ("the cohort is negative", good | {"cohort": -1}),
        ("the cohort is a fraction", good | {"cohort": 1.0}),
        ("the cohort is true", good | {"cohort": True}),
        ("the cohort is text", good | {"cohort": "0"}),
        ("the cohort is null", good | {"cohort": None}),
        ("the cohort is huge", good | {"cohort": 10**30}),
        ("the bits are a byte short", good | {"bits": "AA"}),
        ("the bits are a byte long", good | {"bits": "AAAA"}),
        ("the bits are empty", good | {"bits": ""}),
        ("bit 12 is set", good | {"bits": reference.encode_base64url(bytes([0, 0x10]))}),
        ("bit 15 is set", good | {"bits": reference.encode_base64url(bytes([0, 0x80]))}),
        ("the bits are padded", good | {"bits": "AAA="}),
        ("trailing bits of base64url are set", good | {"bits": "AAB"}),
        ("the bits end in a line feed", good | {"bits": "AAA\n"}),
        ("the bits begin with a blank", good | {"bits": " AAA"}),
        ("the bits are standard base64", good | {"bits": "+/A"}),
        ("the bits are not ASCII", good | {"bits": "AAÄ"}),
        ("the bits are a list", good | {"bits": [0, 0]}),
        ("the bits are null", good | {"bits": None}),
    ]
    return {
        "params": document,
        "good": good,
        "bad": [{"reason": reason, "report": report} for reason, report in faults],
    }


def build_bad_uploads() -> list[dict[str, Any]]:
    """Return bodies of uploads, in hexadecimal, that are refused with all their reports.

    Each body is a good upload with one change.
    """
    document = build_bloom_document((12, 1, 4), NOISES[0])
    good = {
        "v": 1,
        "id": reference.encode_base64url(bytes(16)),
        "reports": [
            _build_report(reference.compute_fingerprint(document), 12, 0) | {"bits": "AAA"}
        ],
    }
    text = json.dumps(good, separators=(",", ":"))
    texts = [
        ("empty", ""),
        ("not JSON", "nothing"),
        ("a number", "1"),
        ("a list", "[]"),
        ("null", "null"),
        ("an empty object", "{}"),
        ("cut short", text[:-1]),
        ("trailing data", text + "{}"),
        ("a byte-order mark", "\ufeff" + text),
        ("the version is missing", text.replace('"v":1,', "")),
        ("the version is 2", text.replace('"v":1', '"v":2')),
        ("the version is true", text.replace('"v":1', '"v":true')),
        ("the version is a fraction", text.replace('"v":1', '"v":1.0')),
        ("the version is text", text.replace('"v":1', '"v":"1"')),
        ("the version is given twice", text.replace('"v":1', '"v":1,"v":1')),
        ("a key is unknown", text.replace('"v":1', '"v":1,"device":3')),
        ("the id is missing", text.replace('"id":"AAAAAAAAAAAAAAAAAAAAAA",', "")),
        ("the id is short", text.replace("AAAAAAAAAAAAAAAAAAAAAA", "A" * 21)),
        ("the id is long", text.replace("AAAAAAAAAAAAAAAAAAAAAA", "A" * 23)),
        ("the id has trailing bits", text.replace("AAAAAAAAAAAAAAAAAAAAAA", "A" * 21 + "B")),
        ("the id is padded", text.replace("AAAAAAAAAAAAAAAAAAAAAA", "A" * 22 + "==")),
        ("the id is a number", text.replace('"AAAAAAAAAAAAAAAAAAAAAA"', "7")),
        ("the reports are missing", text.split(',"reports"')[0] + "}"),
        ("the reports are no list", text.split('"reports"')[0] + '"reports":{}}'),
        ("there are no reports", text.split('"reports"')[0] + '"reports":[]}'),
        ("a cohort is NaN", text.replace('"cohort":0', '"cohort":NaN')),
        ("a cohort is infinite", text.replace('"cohort":0', '"cohort":-Infinity')),
        ("a report names a key twice", text.replace('"cohort":0', '"cohort":0,"cohort":1')),
        ("a number of ten thousand digits", text.replace('"cohort":0', '"cohort":' + "9" * 10000)),
        ("brackets without end", "[" * 100_000),
        ("single quotes", text.replace('"', "'")),
        ("a comment", text + "//"),
    ]
    rows = [{"reason": reason, "body": body.encode().hex()} for reason, body in texts]
    rows.append({"reason": "not UTF-8", "body": text.encode().replace(b"AAA", b"A\xffA").hex()})
    rows.append({"reason": "UTF-16", "body": text.encode("utf-16").hex()})
    # The 100,000 brackets would fill the file, so a body of one repeated byte is stored as the byte
    # and the number of its repetitions.
    for row in rows:
        if len(set(row["body"])) <= 2 and len(row["body"]) > 1000:
            row["repeat"], row["body"] = str(len(row["body"]) // 2), row["body"][:2]
    return rows


def render() -> dict[str, str]:
    """Return the text of every vector file."""
    documents = {
        "hashing": build_hashing(),
        "cohort": build_cohorts(),
        "part": build_parts(),
        "sample": build_samples(),
        "encoding": build_encodings(),
        "host": build_hosts(),
        "long_value": build_long_values(),
        "response": build_responses(),
        "asymmetric": build_asymmetric(),
        "day": build_days(),
        "bucket": build_buckets(),
        "tuple": build_tuples(),
        "fingerprint": build_fingerprints(),
        "segment": build_segments(),
        "upload": build_uploads(),
        "key": build_upload_keys(),
        "bad_report": build_bad_reports(),
        "bad_bucket_report": build_bad_bucket_reports(),
        "bad_tuple": build_bad_tuples(),
        "bad_upload": build_bad_uploads(),
    }
    return {
        f"{name}.json": json.dumps(document, indent=0, ensure_ascii=True) + "\n"
        for name, document in documents.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in render().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
