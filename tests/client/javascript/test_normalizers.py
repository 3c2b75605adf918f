"""Normalizers do the same in both languages, to every character that both know."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from node import answers

from rappor.protocol.normalizers import normalize

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


@pytest.mark.parametrize("name", ["none", "nfc", "casefold", "strip"])
def test_every_character_normalizes_alike(name: str) -> None:
    """Alone, and between two others; texts where characters meet."""
    texts = [*KNOWN, *(f"{each}a{each}" for each in KNOWN), *TEXTS]
    (found,) = answers("normalized.mjs", [[name, texts]])
    different = [
        (text, got, normalize(name, text))
        for text, got in zip(texts, found, strict=True)
        if got != normalize(name, text)
    ]
    assert not different, different[:5]
