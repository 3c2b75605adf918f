"""Words: one name for a thing, the field's, in source, help texts and documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from places import ROOT

BANNED: Final = {
    r"\bfor ever\b": "say epsilon_inf, or any number of reports",
    r"\blifetime\b": "say epsilon_inf, or total",
    r"\bsuspicions?\b": "say belief",
    r"\bstanding\b": "say z score",
    r"(?<!Zipf's )\blaws?\b": "say distribution",
    r"\bchances?\b": "say probability, or rng",
    r"\bcrowds?\b": "say frequencies",
    r"\bshall\b": "say must, or will",
    r"\bFACTS\b": "name the source",
    r"\bso many\b": "say how many",
}
NAMES: Final = {"made", "Made", "facts", "chance", "law", "standing", "freedom", "cut"}
"""Identifiers that said too little; `cut` may name the part of a string."""

USERS_OF_CUT: Final = {"parts.py", "bloom.py", "true_bits.py", "continuation.py", "unfinished.py"}

FOLDERS: Final = ("rappor", "client", "server")
SOURCES: Final = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if "migrations" not in path.parts  # they speak of what was
)
DOCUMENTS: Final = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob(".github/**/*.md"), *ROOT.glob("*/**/*.md")]
    if not {".venv", "data"} & set(path.relative_to(ROOT).parts)
)


def told(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *DOCUMENTS], ids=told)
def test_no_banned_word_is_written(path: Path) -> None:
    """In code, comments, messages, help and pages."""
    text = path.read_text(encoding="utf-8")
    found = [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}: {advice}"
        for word, advice in BANNED.items()
        for match in re.finditer(word, text, re.IGNORECASE if word.islower() else 0)
    ]
    assert not found, found


@pytest.mark.parametrize("path", SOURCES, ids=told)
def test_no_identifier_says_too_little(path: Path) -> None:
    """Variables, arguments, attributes, functions, classes and modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    allowed = {"cut"} if path.name in USERS_OF_CUT else set()
    assert not (used | {path.stem}) & NAMES - allowed


def test_there_is_something_to_read() -> None:
    """All three packages and their documents."""
    assert len(SOURCES) > 150
    assert len(DOCUMENTS) > 15
