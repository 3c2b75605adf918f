"""Words: one name for a thing, the field's, in source, help texts and documents."""

from __future__ import annotations

import ast
import re
from collections import Counter
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
    r"\b(?:told|tells?) from (?:noise|nothing|none)\b": "say significant, or detected",
    r"\btold bits\b": "say which bits",
    r"\btold alone\b": "say detected in this week",
    r"\bknows? as much\b": "say effective number",
    r"\b(?:days?|weeks?|months?) that waits?\b": "say not yet released",
    r"\b(?:which|that|who) (?:is|are) (?-i:none)\b": "say is not a ...",
    r"\baskers?\b": "say client",
    r"\blets? go\b": "say disconnected, or released",
    r"\b(?:told|tells?)(?: \w+)? apart\b": "say split by, or distinguished",
    r"\bas was said\b": "say as given",
    r"\bscatter(?:s|ed)?\b": "say variance",
    r"\bwhat is left\b": "say the rest, or what remains",
    r"[\w%)}\]] \.\. [\w(<{\[+-]": "say to",
    r"\beven odds\b": "say 50 %",
}
NAMES: Final = {"made", "Made", "facts", "chance", "law", "standing", "freedom", "cut"}
"""Identifiers that said too little; `cut` may name the part of a string."""

USERS_OF_CUT: Final = {
    *("parts.py", "bloom.py", "true_bits.py", "continuation.py", "part_by_part.py"),
    *("discovery.py", "needed.py"),  # of the benchmarks
}

FOLDERS: Final = ("rappor", "client", "server", "benchmarks")
SUFFIXES: Final = {
    *(".py", ".pyi", ".md", ".js", ".mjs", ".ts", ".css", ".html", ".toml"),
    *(".yml", ".conf", ".service", ".timer", ".sh"),
}
TEXTS: Final = sorted(
    path
    for path in [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "pyproject.toml")),
        *ROOT.glob(".github/**/*"),
        *ROOT.glob("tests/**/*.md"),
        *(found for folder in FOLDERS for found in (ROOT / folder).rglob("*")),
        ROOT / "client/javascript/package.json",
    ]
    if (path.suffix in SUFFIXES or path.name in ("package.json", "Dockerfile"))
    and not {".venv", "data", "node_modules"} & set(path.relative_to(ROOT).parts)
)
"""Every text that ships, and what contributors read."""
SOURCES: Final = [path for path in TEXTS if path.suffix == ".py"]


def told(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEXTS, ids=told)
def test_no_banned_word_is_written(path: Path) -> None:
    """In code, comments, messages, help, pages, scripts and documents."""
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
    """All packages, their documents, their pages and the scripts of pages."""
    kinds = Counter(path.suffix for path in TEXTS)
    assert kinds[".py"] > 300
    assert min(kinds[".md"], kinds[".js"]) > 25
    assert min(kinds[".html"], kinds[".toml"]) > 2
