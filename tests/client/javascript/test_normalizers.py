"""Normalizers of JavaScript and Python return equal results for every character of both."""

from __future__ import annotations

import gzip
import random
import sys
import unicodedata
from pathlib import Path

import make_hosts
import pytest
from node import CLIENT, query_program
from publicsuffixlist import PSLFILE

from rappor.protocol.normalizers import NORMALIZERS, normalize

CHARACTERS = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
]
"""All characters of Python's version of Unicode. Unassigned code points (Cn), surrogates (Cs) and
private characters (Co) are left out."""
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
"""Texts whose characters interact: a final sigma, combining marks, ligatures, white space."""
SPELLINGS = (
    *("https://{}/x", "HTTP://user:pw@{}:443?q", "//{}#f", "{}", "{}:8080", " {}. ", "x:{}"),
    *("mailto:a@{}", "1http://{}", "https:\\\\{}", "https://{}:123456", "https://@{}@b.de/"),
    *("https://{}:/x", "{}:", "{}::", "https://{}:000443", "http://{}:0000000"),
)
"""Valid and invalid addresses of a host. A test inserts the host for the braces."""
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
"""Valid and invalid addresses of IPv6 and IPv4."""
PIECES = (
    *("a", "Ab", "xn--", "xn--bcher-kva", "-", "_", ".", "..", "。", "co", "uk", "ck", "www", "jp"),
    *("kobe", "city", "github", "io", "com", "ß", "ς", "é", "e\u0301", "\u00ad", "א", "\u0627"),
    *("\u2024", "\uff0e", "\u200d", "K", "İ", "x" * 63, "é" * 58, "𐐀", "\ua4d0", "\uff1a", "["),
    *("@", "1", "日"),
)
"""Labels, separators and odd characters, of which a test composes random hosts."""


def find_differences(name: str, texts: list[str]) -> list[tuple[str, str, str]]:
    """Return the texts whose results differ: text, result of JavaScript, result of Python."""
    (results,) = query_program("normalized.mjs", [[name, texts]])
    triples = (
        (text, result, normalize(name, text)) for text, result in zip(texts, results, strict=True)
    )
    return [(text, result, expected) for text, result, expected in triples if result != expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NORMALIZERS.keys() - {"domain"}))
def test_every_character_has_equal_results(name: str) -> None:
    """Results are equal for every character around a letter, and for special texts.

    Results are also equal for every character alone, except for the 130,000 characters of scripts
    without cases, such as Chinese (category Lo), which are no white space and no marks. `domain` is
    `host` followed by a search in the list of suffixes, which the tests below check.
    """
    alone = [character for character in CHARACTERS if unicodedata.category(character) != "Lo"]
    texts = [*alone, *(f"{character}a{character}" for character in CHARACTERS), *TEXTS]
    assert not find_differences(name, texts)[:5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "domain"])
def test_hosts_and_addresses_have_equal_results(name: str) -> None:
    """Results are equal for URLs with all of their parts, IP addresses, and random hosts."""
    rng = random.Random(1)  # noqa: S311  (a seed, no secret)
    hosts = ["".join(rng.choices(PIECES, k=rng.randint(1, 7))) for _ in range(5000)]
    dotted_hosts = [".".join(rng.choices(PIECES, k=rng.randint(1, 5))) for _ in range(5000)]
    random_texts = ["".join(rng.choices(CHARACTERS, k=3)) for _ in range(5000)]
    plain = ["a.b.co.uk", "EXAMPLE.com", *ADDRESSES]
    urls = [spelling.format(host) for host in [*plain, *hosts[:1000]] for spelling in SPELLINGS]
    assert not find_differences(name, [*plain, *hosts, *dotted_hosts, *random_texts, *urls])[:5]


@pytest.mark.slow
def test_every_public_suffix_has_equal_results() -> None:
    """Results are equal for every rule of the list of public suffixes, also after labels.

    The rules include wildcards and exceptions.
    """
    lines = Path(PSLFILE).read_text(encoding="utf-8").splitlines()
    rules = [line.split(" ")[0] for line in lines if line and not line.startswith("//")]
    hosts = [rule.lstrip("!").replace("*", "any") for rule in rules]
    texts = [labels + host for host in hosts for labels in ("", "a.", "b.a.")]
    assert not find_differences("domain", texts)[:5]


@pytest.mark.slow
def test_tables_are_up_to_date_and_small() -> None:
    """The files equal the output of `make_hosts.py`, and are below 50 kB compressed."""
    sizes = {}
    for name, make_text in make_hosts.FILES.items():
        path = CLIENT / "data" / name
        assert path.read_text(encoding="utf-8") == make_text(), name
        sizes[name] = len(gzip.compress(path.read_bytes(), 9))
    assert sum(sizes.values()) < 50_000, sizes
