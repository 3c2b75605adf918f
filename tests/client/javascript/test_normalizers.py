"""Normalizers of JavaScript and Python agree on every character that both know."""

from __future__ import annotations

import gzip
import random
import sys
import unicodedata
from pathlib import Path

import make_hosts
import pytest
from node import CLIENT, answers
from publicsuffixlist import PSLFILE

from rappor.protocol.normalizers import NORMALIZERS, normalize

KNOWN = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
]
TEXTS = [
    "",
    "ΑΣ",
    "ΑΣ ΑΣ",
    "ǰ\u0323",
    "İI\u0307",
    "ﬃ",
    "Ꭰꭰ",
    "\ufeffa\u0085",
    "\x1c a \u3000",
    "a\u200b",
]
SPELLINGS = (
    *("https://{}/x", "HTTP://user:pw@{}:443?q", "//{}#f", "{}", "{}:8080", " {}. ", "x:{}"),
    *("mailto:a@{}", "1http://{}", "https:\\\\{}", "https://{}:123456", "https://@{}@b.de/"),
    *("https://{}:/x", "{}:", "{}::", "https://{}:000443", "http://{}:0000000"),
)
ADDRESSES = (
    *("[::1]", "[::]", "[:::]", "[1::2::3]", "[::1%eth0]", "[1:2:3:4:5:6:7:8]", "[::1", "[]"),
    *("[1:2:3:4:5:6:7::]", "[::2:3:4:5:6:7:8]", "[1:2:3:4:5:6:7:8:9]", "[::ffff:1.2.3.4]"),
    *(
        "[::FFff]",
        "[1::2:3:4:5:6:7:8]",
        "[::1.2.3.04]",
        "[::1.2.3]",
        "[::256.1.1.1]",
        "[12345::]",
        "[:1::2]",
    ),
    *("[1:2:3:4:5:6:1.2.3.4]", "[1:2:3:4:5:6:7:1.2.3.4]", "1.2.3.4", "1.2.3.4.5", "a.256"),
)
PIECES = (
    *("a", "Ab", "xn--", "xn--bcher-kva", "-", "_", ".", "..", "。", "co", "uk", "ck", "www", "jp"),
    *("kobe", "city", "github", "io", "com", "ß", "ς", "é", "e\u0301", "\u00ad", "א", "\u0627"),
    *("\u2024", "\uff0e", "\u200d", "K", "İ", "x" * 63, "é" * 58, "𐐀", "\ua4d0", "\uff1a", "["),
    *("@", "1", "日"),
)


def differences(name: str, texts: list[str]) -> list[tuple[str, str, str]]:
    """Return the texts whose results differ: text, result of JavaScript, result of Python."""
    (results,) = answers("normalized.mjs", [[name, texts]])
    both = ((text, got, normalize(name, text)) for text, got in zip(texts, results, strict=True))
    return [(text, got, expected) for text, got, expected in both if got != expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_character_normalizes_alike(name: str) -> None:
    """Alone and around a letter; and texts whose characters interact."""
    texts = [*KNOWN, *(f"{character}a{character}" for character in KNOWN), *TEXTS]
    assert not differences(name, texts)[:5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "domain"])
def test_every_spelling_of_hosts_and_addresses_is_read_alike(name: str) -> None:
    """URLs with all of their parts, IP addresses, and random hosts."""
    rng = random.Random(1)  # noqa: S311  (a seed, no secret)
    hosts = ["".join(rng.choices(PIECES, k=rng.randint(1, 7))) for _ in range(5000)]
    dotted = [".".join(rng.choices(PIECES, k=rng.randint(1, 5))) for _ in range(5000)]
    strange = ["".join(rng.choices(KNOWN, k=3)) for _ in range(5000)]
    plain = ["a.b.co.uk", "EXAMPLE.com", *ADDRESSES]
    spelt = [way.format(host) for host in [*plain, *hosts[:1000]] for way in SPELLINGS]
    assert not differences(name, [*plain, *hosts, *dotted, *strange, *spelt])[:5]


@pytest.mark.slow
def test_every_public_suffix_is_known() -> None:
    """Alone and after one or two labels, also wildcards and exceptions."""
    lines = Path(PSLFILE).read_text(encoding="utf-8").splitlines()
    rules = [line.split(" ")[0] for line in lines if line and not line.startswith("//")]
    hosts = [rule.lstrip("!").replace("*", "any") for rule in rules]
    texts = [before + host for host in hosts for before in ("", "a.", "b.a.")]
    assert not differences("domain", texts)[:5]


@pytest.mark.slow
def test_the_tables_are_pythons_and_small() -> None:
    """The files equal the output of `make_hosts.py`, and are below 50 kB compressed."""
    sizes = {}
    for name, written in make_hosts.FILES.items():
        path = CLIENT / "data" / name
        assert path.read_text(encoding="utf-8") == written(), name
        sizes[name] = len(gzip.compress(path.read_bytes(), 9))
    assert sum(sizes.values()) < 50_000, sizes
