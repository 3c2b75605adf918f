"""The reading path: at most 25 files that explain the system, from a value to an estimate."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from places import ROOT

MOST_FILES: Final = 25
"""Largest number of files. A newcomer reads all of them in one afternoon."""

MOST_STATEMENTS: Final = 3810
"""Largest number of statements in these files. It only falls. Docstrings and comments are free."""


def list_files() -> list[Path]:
    """Return the files of the reading path, in the order of rappor/README.md."""
    text = (ROOT / "rappor" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Reading path")[2].partition("\n## ")[0]
    return [ROOT / name for name in re.findall(r"^\d+\. \[(.*?)\]", section, re.MULTILINE)]


def count_statements(path: Path) -> int:
    """Return the number of statements of a module, without docstrings."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in nodes)


def test_path_has_few_files_that_exist() -> None:
    """The list has 21 to 25 files, all of them exist, and none is listed twice."""
    files = list_files()
    assert 20 < len(files) <= MOST_FILES
    assert len(set(files)) == len(files)
    assert all(path.is_file() for path in files)


def test_files_of_the_path_do_not_grow() -> None:
    """The files of the path have at most MOST_STATEMENTS statements. New code goes to others."""
    assert sum(map(count_statements, list_files())) <= MOST_STATEMENTS


def test_each_file_begins_with_an_explanation() -> None:
    """The docstring of each module has at least three lines, so it has more than a title."""
    for path in list_files():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(docstring.splitlines()) >= 3, path


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a constant, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
