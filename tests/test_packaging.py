"""What is shipped: the wheel, and nothing that only an editable install would find."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import ROOT


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


def test_wheel_has_exactly_three_top_level_names(wheel: Path) -> None:
    """A wheel holds rappor, rappor_client and rappor_server, and its own metadata."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "rappor",
        "rappor_client",
        "rappor_server",
    }


def test_wheel_holds_every_source_file_and_the_words(wheel: Path) -> None:
    """Nothing that lies in the packages is left out of the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("rappor", "client/rappor_client", "server/rappor_server"):
        base = (ROOT / folder).parent
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
                assert path.relative_to(base).as_posix() in names
    assert "rappor/simulation/data/words_en.csv.gz" in names
    assert "rappor/py.typed" in names


def test_wheel_alone_decodes(wheel: Path, tmp_path: Path) -> None:
    """The unpacked wheel, away from the repository, simulates and decodes."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import rappor\n"
        f"assert rappor.__file__.startswith({str(tmp_path)!r}), rappor.__file__\n"
        "from rappor import Params, decode, english_words, simulate_counts\n"
        "counts = simulate_counts(english_words(), Params.profile('accurate'), "
        "n_reports=1_000_000, seed=1)\n"
        "print(decode(counts, ['the', 'qzx']).candidates[0])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "the\n"
