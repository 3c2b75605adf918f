"""The wheel: its files, types, metadata and licences, tested without the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from places import ROOT

EXAMPLES = ROOT / "rappor" / "examples"
"""Folder of example programs. The wheel does not contain them."""

CONSUMER = """
import datetime

import rappor
import rappor_server
from rappor_client import Client, Outcome


def run() -> Outcome:
    metric = rappor.Metric(
        name="engine",
        params=rappor.Params.profile("strict"),
        epoch="quarter",
        expires=datetime.date(2100, 1, 1),
        description="Where a typed query goes",
        owner="search",
    )
    report: rappor.Report = rappor.encode_value(bytes(32), metric, "duckduckgo").report
    assert rappor_server.__name__ and report.cohort >= 0
    with Client.open("x", registry="m.toml", consent=True, collector="https://a.org") as client:
        return client.record("engine", "duckduckgo")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """List the files in the wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone in a fresh environment; return its interpreter."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, check=True)
    return python


@pytest.fixture(scope="module")
def shipped(installed: Path) -> Distribution:
    """Read the metadata of the installed wheel."""
    (packages,) = installed.parent.parent.glob("lib/python*/site-packages")
    (distribution,) = distributions(path=[str(packages)])
    return distribution


def check_types(python: Path, **programs: str) -> str:
    """Return the output of mypy --strict for programs, with the packages of an interpreter.

    mypy reads the packages once for all programs, which takes seconds.
    """
    for name, program in programs.items():
        (python.parent / f"{name}.py").write_text(program, encoding="utf-8")
    process = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)),
            *("--cache-dir", os.devnull, *(f"{name}.py" for name in programs)),
        ],
        cwd=python.parent,
        env={name: value for name, value in os.environ.items() if name != "MYPYPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout


@pytest.mark.slow
def test_wheel_has_exactly_three_top_level_names(names: set[str]) -> None:
    """A wheel contains rappor, rappor_client and rappor_server, and its own metadata."""
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "rappor",
        "rappor_client",
        "rappor_server",
    }


@pytest.mark.slow
def test_wheel_holds_every_source_file_and_the_words(names: set[str]) -> None:
    """The wheel contains every file of the packages, except the examples."""
    for folder in ("rappor", "client/rappor_client", "server/rappor_server"):
        base = (ROOT / folder).parent
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
                is_shipped = path.relative_to(base).as_posix() in names
                assert is_shipped is not path.is_relative_to(EXAMPLES), path
    assert "rappor/simulation/data/words_en.csv.gz" in names


@pytest.mark.slow
def test_wheel_is_typed(names: set[str]) -> None:
    """All three packages contain the marker py.typed, and every lazy package has its stub."""
    for package in ("rappor", "rappor_client", "rappor_server"):
        assert f"{package}/py.typed" in names
    assert {"rappor/__init__.pyi", "rappor/privacy/__init__.pyi"} <= names


@pytest.mark.slow
def test_consumers_of_the_wheel_are_type_checked(installed: Path) -> None:
    """A correct program passes mypy --strict, and a misspelt argument of the device is found."""
    misspelt = CONSUMER.replace("collector=", "colector=")
    output = check_types(installed, correct=CONSUMER, misspelt=misspelt)
    assert re.match(r'misspelt.py:\d+: error: Unexpected keyword argument "colector"', output)
    assert "Found 1 error in 1 file (checked 2 source files)" in output


@pytest.mark.slow
def test_metadata_names_licences_authors_and_python(shipped: Distribution) -> None:
    """The metadata contain the licences of code and word list, authors, and Python's version."""
    assert shipped.metadata["License-Expression"] == "Apache-2.0 AND CC-BY-SA-4.0"
    assert shipped.metadata["Author"] == "The rappor developers"
    assert shipped.metadata["Requires-Python"] == ">=3.11"
    classifiers = shipped.metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [line for line in classifiers if line.startswith("License ::")]


@pytest.mark.slow
def test_licence_files_are_in_the_wheel(shipped: Distribution) -> None:
    """The licence is complete, and the attribution of the word list names its sources."""
    assert shipped.metadata.get_all("License-File") == [
        "LICENSE",
        "rappor/simulation/data/ATTRIBUTION.md",
    ]
    licence = shipped.read_text("licenses/LICENSE") or ""
    assert re.findall(r"^   (\d)\. ", licence, flags=re.MULTILINE) == list("123456789")
    assert "Copyright 2026 The rappor developers" in licence
    attribution = shipped.read_text("licenses/rappor/simulation/data/ATTRIBUTION.md") or ""
    for name in ("Robyn Speer", "licenses/by-sa/4.0", "SUBTLEX", "OpenSubtitles", "Changes:"):
        assert name in attribution


@pytest.mark.slow
def test_a_device_needs_one_library(shipped: Distribution) -> None:
    """Without an extra, the wheel needs only mmh3, the hash function."""
    needed = [line for line in shipped.requires or [] if "extra ==" not in line]
    assert [re.split(r"\W", line)[0] for line in needed] == ["mmh3"]


@pytest.mark.slow
def test_version_is_the_newest_in_the_changelog(shipped: Distribution) -> None:
    """The first entry of the changelog has the version of the wheel, or its release candidate."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+) - ", changelog, flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == Version(shipped.version).base_version


@pytest.mark.slow
def test_every_place_names_the_same_version(shipped: Distribution) -> None:
    """The wheel, the citation and the JavaScript package are released together."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package = json.loads((ROOT / "client" / "javascript" / "package.json").read_text("utf-8"))
    assert citation["version"] == shipped.version
    assert Version(package["version"]) == Version(shipped.version)


@pytest.mark.slow
def test_constraints_pin_what_the_tests_install(shipped: Distribution) -> None:
    """Every direct dependency is pinned to one version within its range, without an address."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}
    assert lines == sorted(lines, key=str.casefold)
    for text in shipped.requires or []:
        requirement = Requirement(text)
        # pyspark-client and pyspark exclude each other: tests install the second one.
        if requirement.name not in ("rappor", "pyspark-client"):
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, text


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=str)
def test_workflows_name_files_that_exist(path: Path) -> None:
    """A file or folder in a command of a workflow is in the repository."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    names = re.findall(r"(?<![\w/.])(?:tests|\.ci|client|server)/[\w/.]+", " ".join(commands))
    assert commands
    for name in names:
        assert (ROOT / name).exists(), name


@pytest.mark.slow
def test_long_description_renders(shipped: Distribution) -> None:
    """The README is the description: Markdown with one title, in which all code blocks end."""
    assert shipped.metadata["Description-Content-Type"] == "text/markdown"
    description = shipped.metadata["Description"]
    assert description == (ROOT / "README.md").read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").enable("table").parse(description)
    assert [token.tag for token in tokens if token.type == "heading_open"].count("h1") == 1
    n_fences = sum(line.startswith("```") for line in description.splitlines())
    assert 2 * sum(token.type == "fence" for token in tokens) == n_fences


@pytest.mark.slow
def test_wheel_alone_decodes(wheel: Path, tmp_path: Path) -> None:
    """The unpacked wheel, outside the repository, simulates and decodes."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import rappor\n"
        f"assert rappor.__file__.startswith({str(tmp_path)!r}), rappor.__file__\n"
        "from rappor import Params, decode, simulate_counts\n"
        "from rappor.simulation import english_words\n"
        "counts = simulate_counts(english_words(), Params.profile('low-noise'), "
        "n_reports=1_000_000, seed=1)\n"
        "print(decode(counts, ['the', 'qzx']).candidates[0])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == "the\n"
