"""Stages of the tests: the fast stage has the tests of three folders, and reads no other folder."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT
from programs import run_python
from stages import TESTS, may_have_slow_test
from tools import PACKAGES

FAST = {"tests/rappor/protocol", "tests/rappor/registry", "tests/rappor/privacy"}

LEFT_OUT = [path for path in TESTS.rglob("test_*.py") if not may_have_slow_test(path)]
"""Files that `pytest -m slow` does not import."""

LIST_TESTS = """
import json, sys
import pytest

class Listing:
    def pytest_collection_finish(self, session):
        for item in session.items:
            marks = [mark.name for mark in item.iter_markers()]
            print(json.dumps([str(item.path.parent.relative_to(session.config.rootpath)), marks]))

options = ["--collect-only", "-qqq", "-p", "no:cacheprovider", "-m", "fast"]
sys.exit(pytest.main(options, plugins=[Listing()]))
"""
"""Program that prints the folder and the markers of each test of the fast stage, as JSON lines."""


@pytest.mark.slow
def test_fast_stage_is_three_folders() -> None:
    """`pytest -m fast` runs tests of each of the three folders, and of no other folder.

    Tests of these folders with the marker `slow` or `acceptance` do not run.
    """
    output = run_python("-c", LIST_TESTS, folder=ROOT).stdout
    tests = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    assert {folder for folder, _ in tests} == FAST
    assert not [marks for _, marks in tests if {"slow", "acceptance"} & set(marks)]
    # The folders have such tests, so the stage leaves them out.
    texts = [path.read_text("utf-8") for folder in FAST for path in (ROOT / folder).glob("*.py")]
    assert any("@pytest.mark.slow\n" in text for text in texts)
    assert any("pytest.mark.acceptance" in text for text in texts)


@pytest.mark.slow
def test_slow_stage_has_every_slow_test() -> None:
    """The stage of slow tests is the same set of tests with and without the files that it skips.

    A test gets the marker from an attribute `slow` or from a text "slow" in its file, in the
    fixtures of a folder above it, in a helper, or in a plugin. The skipped files and the files that
    they depend on contain neither. They do not contain the decorator of `databases.py`, either.
    """
    assert len(LEFT_OUT) > 50
    folders = {folder for path in LEFT_OUT for folder in path.parents if TESTS in folder.parents}
    fixtures = [path for folder in folders if (path := folder / "conftest.py").exists()]
    helpers = (TESTS / "support").glob("*.py")
    plugin = ROOT / "client" / "rappor_client" / "pytest_plugin.py"
    sources = (*LEFT_OUT, *fixtures, *helpers, plugin)
    assert [str(path) for path in sources if names_slow(path)] == []
    assert names_slow(Path(__file__))


def names_slow(path: Path) -> bool:
    """Return whether a file has an attribute `slow`, a text that is "slow", or `ON_BOTH_DATABASES`.

    `stages.py` compares the value of the option `-m` with the text, and marks no test.
    `databases.py` marks only the tests with its decorator.
    """
    text = path.read_text(encoding="utf-8")
    if path.name in ("stages.py", "databases.py"):
        return False
    if not ("slow" in text or "ON_BOTH_DATABASES" in text):
        return False
    return any(
        (isinstance(node, ast.Name) and node.id == "ON_BOTH_DATABASES")
        or (isinstance(node, ast.Attribute) and node.attr == "slow")
        or (isinstance(node, ast.Constant) and node.value == "slow")
        for node in ast.walk(ast.parse(text))
    )


def test_stage_without_a_slow_file() -> None:
    """A file is skipped unless its text or a fixture of a folder above it has the marker."""
    assert ROOT / "tests" / "client" / "test_periods.py" in LEFT_OUT
    assert Path(__file__) not in LEFT_OUT
    # Only the decorator `ON_BOTH_DATABASES` marks tests of this file.
    assert ROOT / "tests" / "server" / "storage" / "test_tokens.py" not in LEFT_OUT


def test_every_helper_is_explained() -> None:
    """The table of tests/README.md contains each file of tests/support."""
    explained = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "tests" / "support").glob("*.py"):
        assert f"`{path.name}`" in explained, path.name


def test_files_that_need_the_extra_dev_are_slow() -> None:
    """The first stage, whose environment lacks their packages, has no test of these files."""
    for name in PACKAGES:
        text = (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert "\npytestmark = pytest.mark.slow" in text, name


@pytest.mark.slow
def test_packages_of_the_extra_dev_are_installed_in_the_second_stage() -> None:
    """No test of the second stage is skipped because a package of the extra is missing."""
    installed = {canonicalize_name(item.name) for item in importlib.metadata.distributions()}
    assert list_packages("dev") - installed == set()


def list_packages(extra: str) -> set[str]:
    """Return the names of the packages of an extra of pyproject.toml, and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = set[str]()
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.name == "rappor":
            packages.update(*(list_packages(name) for name in requirement.extras))
        else:
            packages.add(canonicalize_name(requirement.name))
    return packages
