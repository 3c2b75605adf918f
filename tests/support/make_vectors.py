"""Write tests/vectors/*.json from the second implementation.

Run it as `python tests/support/make_vectors.py`.

Names that begin with bad_ hold what must be refused, each with the reason in words.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import reference
from places import VECTORS

FOLDER = VECTORS
VALUES = ("", "a", "duckduckgo", "https://example.org/a?b=c", "Zürich", "日本語", "🎈 ", "x" * 1000)
SECRETS = (bytes(range(32)), hashlib.sha256(b"another").digest())
SHAPES = (
    (8, 1, 1),
    (16, 2, 16),
    (32, 2, 64),
    (100, 3, 128),
    (128, 1, 128),
    (1024, 16, 64),
    (2040, 2, 65536),
)
NOISES = ((0.5, 0.5, 0.75), (0.0, 0.25, 1.0), (0.238406, 0.059601, 0.559601), (0.75, 0.0, 0.5))
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
"""k, h, m and f, g, p, q: forced bits become 1 and 0 with two probabilities."""
_THIRD = "f25a066c03d8cc6b190892c8f465aff1ab4263d2abae02d2f710bcc391e4178d"
EPOCHS = ("", "2026", "2026-Q4", "2026-11")
METRIC = "home.page"


def coins(seed: bytes, n: int) -> list[int]:
    """Make n fixed coins from a seed that a vector states."""
    return reference.integers(reference.expand(seed, b"coins", 4 * n))


def thresholds(noise: tuple[float, float, float]) -> dict[str, int]:
    """Return the thresholds of f/2, p and q under the fingerprint's names."""
    f, p, q = noise
    return {
        "f": reference.threshold(f / 2),
        "p": reference.threshold(p),
        "q": reference.threshold(q),
    }


def bloom_document(
    shape: tuple[int, int, int], noise: tuple[float, float, float]
) -> dict[str, Any]:
    """Return the fingerprint's document of a Bloom parameter set."""
    k, h, m = shape
    return {"v": 1, "encoding": "bloom", "k": k, "h": h, "m": m, **thresholds(noise)}


def hashing() -> list[dict[str, Any]]:
    """Return the bits of every value for every shape, in the first and the last cohort."""
    rows = []
    for k, h, m in SHAPES:
        for cohort in sorted({0, m // 2, m - 1}):
            for value in VALUES:
                bits = reference.pack(reference.bloom(value, cohort, k, h)).hex()
                rows.append(
                    {"value": value, "cohort": cohort, "k": k, "h": h, "m": m, "bits": bits}
                )
    return rows


def cohorts() -> list[dict[str, Any]]:
    """Return the cohort of each secret for some metrics, epochs and numbers of cohorts."""
    rows = []
    for secret in SECRETS:
        for number, metric in enumerate(("a", METRIC, "z" * 64)):
            for m in (1, 2, 16, 100, 128, 65536):
                document = bloom_document((64, 1, m), NOISES[0])
                epoch = EPOCHS[(number + m) % len(EPOCHS)]
                scope = reference.scope(metric, epoch, reference.permanent_fingerprint(document))
                rows.append(
                    {
                        "secret": secret.hex(),
                        "metric": metric,
                        "epoch": epoch,
                        "params": document,
                        "cohort": reference.cohort(secret, scope, m),
                    }
                )
    return rows


def samples() -> list[dict[str, Any]]:
    """Return whether many secrets take part in samples of several shares."""
    rows = []
    base = bloom_document((128, 1, 128), NOISES[2])
    scope_of = reference.permanent_fingerprint(base)
    for number in range(24):
        secret = hashlib.sha256(bytes([number])).digest()
        epoch = EPOCHS[number % len(EPOCHS)]
        scope = reference.scope(METRIC, epoch, scope_of)
        shares = (1e-9, 0.1, 0.5, 0.9, 1.0)
        rows.append(
            {
                "secret": secret.hex(),
                "metric": METRIC,
                "epoch": epoch,
                "params": base,
                "samples": [
                    [share, reference.takes_part(secret, scope, share)] for share in shares
                ],
            }
        )
    return rows


def parts() -> list[dict[str, Any]]:
    """Return the part of many secrets, and the fingerprints and bits of each part."""
    rows = []
    base = bloom_document((128, 1, 256), NOISES[2])
    scope_of = reference.permanent_fingerprint(base)
    named: list[tuple[str, float | None]] = [("prefix:2", 0.25), ("prefix:5", 0.5), ("whole", None)]
    for number in range(24):
        secret = hashlib.sha256(bytes([number])).digest()
        epoch = EPOCHS[number % len(EPOCHS)]
        value = VALUES[number % len(VALUES)]
        part = reference.part(secret, reference.scope(METRIC, epoch, scope_of), named)
        document = base | {"part": part}
        scope = reference.scope(METRIC, epoch, reference.permanent_fingerprint(document))
        cohort = reference.cohort(secret, scope, 256)
        text = value if part == "whole" else value[: int(part.split(":")[1])]
        rows.append(
            {
                "secret": secret.hex(),
                "metric": METRIC,
                "epoch": epoch,
                "params": base,
                "parts": named,
                "value": value,
                "part": part,
                "fingerprint": reference.fingerprint(document),
                "cohort": cohort,
                "bits": reference.pack(reference.bloom(text, cohort, 128, 1)).hex(),
            }
        )
    return rows


def responses() -> list[dict[str, Any]]:
    """Return permanent response and report of every value, shape, noise and epoch in turn."""
    rows = []
    for number, (k, h, m) in enumerate(SHAPES):
        for turn, value in enumerate(VALUES):
            secret = SECRETS[turn % 2]
            epoch = EPOCHS[(number + turn) % len(EPOCHS)]
            noise = NOISES[turn % len(NOISES)]
            scope = _scope(epoch, bloom_document((k, h, m), noise))
            cohort = reference.cohort(secret, scope, m)
            shape = {"encoding": "bloom", "value": value, "k": k, "h": h, "m": m, "cohort": cohort}
            bits = reference.bloom(value, cohort, k, h)
            rows.append(shape | _response(secret, epoch, noise, bits, scope))
    for bit in (0, 1):
        shape = {"encoding": "boolean", "value": bool(bit), "k": 1, "h": 1, "m": 1, "cohort": 0}
        document = bloom_document((1, 1, 1), NOISES[0]) | {"encoding": "boolean"}
        rows.append(shape | _response(SECRETS[0], "", NOISES[0], [bit], _scope("", document)))
    return rows


def asymmetric() -> list[dict[str, Any]]:
    """Return permanent responses that force bits to 1 and to 0 with two probabilities."""
    rows = []
    secrets = (SECRETS[0], b"\xff" * 32, bytes.fromhex(_THIRD))
    values = ("", "line\nbreak", "google.com", "a", "日本語", "naïve café", "x" * 300, "🙂🙃")
    for number, (shape, noise) in enumerate(ASYMMETRIC):
        k, h, m = shape
        f, g, p, q = noise
        t_1, t_0 = reference.threshold(f * g), reference.threshold(f * (1 - g))
        document = bloom_document(shape, (0, p, q)) | {"f": t_1, "f0": t_0}
        fingerprint = reference.permanent_fingerprint(document)
        for turn, epoch in enumerate(("", "2026-Q4")):
            secret, value = secrets[number % 3], values[(2 * number + turn) % len(values)]
            metric = f"asymmetric_{number}"
            scope = reference.scope(metric, epoch, fingerprint)
            cohort = reference.cohort(secret, scope, m)
            bits = reference.bloom(value, cohort, k, h)
            rows.append(
                {
                    "secret": secret.hex(),
                    "metric": metric,
                    "epoch": epoch,
                    "value": value,
                    **dict(zip("khmfgpq", (*shape, *noise), strict=True)),
                    "document": document,
                    "fingerprint": reference.fingerprint(document),
                    "permanent_fingerprint": fingerprint,
                    "cohort": cohort,
                    "bits": reference.pack(bits).hex(),
                    "permanent": reference.pack(
                        reference.permanent(secret, scope, t_1, t_0, bits)
                    ).hex(),
                }
            )
    return rows


def days() -> list[dict[str, Any]]:
    """Return the day of an epoch from which on a device reports once."""
    rows = []
    for row in asymmetric()[::2]:
        for epoch, length in (("2026-Q4", 92), ("2026", 365), ("2026-02", 28)):
            scope = reference.scope(row["metric"], epoch, row["permanent_fingerprint"])
            secret = bytes.fromhex(row["secret"])
            rows.append(
                {key: row[key] for key in ("secret", "metric", "document")}
                | {"epoch": epoch, "days": length}
                | {"day": reference.drawn_day(secret, scope, length)}
            )
    return rows


UPLOAD_IDS = (
    "327fbcafc916e187d1dd45414a6137ea",
    "cd3d4eb485fd695f47e562af6c692c12",
    "cb4aec889ac858d52812a44cc47d1c10",
    "3310c60fd7f1131271c4f8bd284d0161",
)


def keys() -> list[dict[str, Any]]:
    """Return the keys of uploads of one report and more, and those of their reports."""
    rows = []
    for n, text in enumerate(UPLOAD_IDS, 1):
        own = bytes.fromhex(text)
        name = base64.urlsafe_b64encode(own).rstrip(b"=").decode()
        report = {"metric": "m", "params": "0" * 16, "bits": "AA"}
        reports = [
            {key: (report | {"cohort": j})[key] for key in ("metric", "params", "cohort", "bits")}
            for j in range(n)
        ]
        body = json.dumps({"v": 1, "id": name, "reports": reports}, separators=(",", ":"))
        key = hmac.digest(own, body.encode(), "sha256")[:16]
        of_reports = [
            (int.from_bytes(key, "big") ^ place).to_bytes(16, "big").hex()
            for place in range(1, n + 1)
        ]
        rows.append({"id": text, "body": body, "key": key.hex(), "report_keys": of_reports})
    return rows


def _scope(epoch: str, document: dict[str, Any]) -> bytes:
    return reference.scope(METRIC, epoch, reference.permanent_fingerprint(document))


def _response(
    secret: bytes, epoch: str, noise: tuple[float, float, float], bits: list[int], scope: bytes
) -> dict[str, Any]:
    limits = thresholds(noise)
    permanent = reference.permanent(secret, scope, limits["f"], limits["f"], bits)
    seed = hashlib.sha256(secret + epoch.encode() + bytes(bits)).digest()
    fresh = coins(seed, len(bits))
    report = reference.instantaneous_response(permanent, limits["p"], limits["q"], fresh)
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


def fingerprints() -> list[dict[str, Any]]:
    """Return the fingerprint of sets of every encoding; f, p, q as typed, categories as named."""
    rows: list[dict[str, Any]] = []
    for number, shape in enumerate(SHAPES):
        noise = NOISES[number % len(NOISES)]
        rows += [{"document": bloom_document(shape, noise), "categories": None}]
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
        rows.append({"document": bloom_document(SHAPES[0], NOISES[0]) | extra, "categories": None})
    named = {
        "onehot": ["light", "dark", "日本語"],
        "buckets": ["0.5", "10", "1e+21"],
    }
    for encoding, categories in named.items():
        k = len(categories) + (encoding == "buckets")
        document = bloom_document((k, 1, 1), NOISES[0]) | {"encoding": encoding}
        rows.append({"document": document, "categories": categories})
    boolean = bloom_document((1, 1, 1), NOISES[0]) | {"encoding": "boolean"}
    rows.append({"document": boolean, "categories": None})
    for row in rows:
        document, categories = row["document"], row["categories"]
        row["fingerprint"] = reference.fingerprint(document, categories)
        row["permanent_fingerprint"] = reference.permanent_fingerprint(document, categories)
    return rows


def segments() -> list[dict[str, Any]]:
    """Return the fingerprints of sets that tell a segment: the permanent one is without it."""
    told: list[dict[str, str]] = [
        {"version": "2"},
        {"version": "2", "country": "de"},
        {"country": "other", "version": '1.0 \u00e4"\U0001f600'},
    ]
    rows = []
    for segment in told:
        document = bloom_document(SHAPES[0], NOISES[0]) | {"segment": segment}
        rows.append(
            {
                "document": document,
                "fingerprint": reference.fingerprint(document),
                "permanent_fingerprint": reference.permanent_fingerprint(document),
            }
        )
    return rows


def _report(fingerprint: str, k: int, number: int) -> dict[str, Any]:
    bits = [int(u < 2**31) for u in coins(bytes([number]) * 32, k)]
    return {
        "metric": METRIC,
        "params": fingerprint,
        "cohort": 0,
        "bits": reference.base64url(reference.pack(bits)),
    }


def uploads() -> list[dict[str, Any]]:
    """Return uploads of one and of several reports; `body` is the exact text."""
    rows = []
    for number, shapes in enumerate((SHAPES[:1], SHAPES[3:4], SHAPES)):
        documents = [bloom_document(shape, NOISES[0]) for shape in shapes]
        reports = [
            _report(reference.fingerprint(document), document["k"], i)
            for i, document in enumerate(documents)
        ]
        body = {"v": 1, "id": reference.base64url(bytes([number]) * 16), "reports": reports}
        rows.append({"params": documents, "body": json.dumps(body, separators=(",", ":"))})
    return rows


def encodings() -> list[dict[str, Any]]:
    """Return the bits of values of every encoding but Bloom, over the edge of a byte too."""
    names = [f"c{i}" for i in range(10)]
    sets: list[tuple[str, list[str], int, list[tuple[Any, list[int]]]]] = [
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
            "bits": reference.pack([int(i in ones) for i in range(k)]).hex(),
        }
        for encoding, categories, k, rows in sets
        for value, ones in rows
    ]


def hosts() -> list[dict[str, Any]]:
    """Return texts with their hosts; the empty text is the host of a text without one."""
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


def long_values() -> list[dict[str, Any]]:
    """Return the bits of long texts, a unit repeated; what no normalizer takes is empty."""
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
                reference.bloom(normal.get(unit, unit) * times if fits else "", 5, 128, 1)
            ).hex(),
        }
        for normalize, unit, times, fits in texts
    ]


def bad_reports() -> dict[str, Any]:
    """Return reports that are refused while the upload stands, for one parameter set of k = 12."""
    document = bloom_document((12, 1, 4), NOISES[0])
    good = _report(reference.fingerprint(document), 12, 0) | {"bits": "AAA"}
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
        ("bit 12 is set", good | {"bits": reference.base64url(bytes([0, 0x10]))}),
        ("bit 15 is set", good | {"bits": reference.base64url(bytes([0, 0x80]))}),
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


def bad_uploads() -> list[dict[str, Any]]:
    """Return bodies that are refused whole, as hex, around one good report."""
    document = bloom_document((12, 1, 4), NOISES[0])
    good = {
        "v": 1,
        "id": reference.base64url(bytes(16)),
        "reports": [_report(reference.fingerprint(document), 12, 0) | {"bits": "AAA"}],
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
    # A run of one byte is written as the byte and its number: brackets would fill the file.
    for row in rows:
        if len(set(row["body"])) <= 2 and len(row["body"]) > 1000:
            row["repeat"], row["body"] = str(len(row["body"]) // 2), row["body"][:2]
    return rows


def render() -> dict[str, str]:
    """Return the text of every vector file."""
    documents = {
        "hashing": hashing(),
        "cohort": cohorts(),
        "part": parts(),
        "sample": samples(),
        "encoding": encodings(),
        "host": hosts(),
        "long_value": long_values(),
        "response": responses(),
        "asymmetric": asymmetric(),
        "day": days(),
        "fingerprint": fingerprints(),
        "segment": segments(),
        "upload": uploads(),
        "key": keys(),
        "bad_report": bad_reports(),
        "bad_upload": bad_uploads(),
    }
    return {
        f"{name}.json": json.dumps(document, indent=0, ensure_ascii=True) + "\n"
        for name, document in documents.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in render().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
