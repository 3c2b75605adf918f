"""Pages run: a reader can paste all blocks of a page into a shell, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collectors import run_script
from places import ROOT
from readers import build_script, is_shown, read_blocks
from tools import need

ELSEWHERE = {
    "README.md": "installs the package; test_documents compares the outputs of its other blocks",
    "client/README.md": "a test compares its outputs",
    "client/HOSTS.md": "each program runs in its host program",
    "client/javascript/README.md": "a browser runs it",
    "client/examples/kit/README.md": "runs beside the files of its folder",
    "server/README.md": "a test compares its outputs",
    ".github/CONTRIBUTING.md": "installs the package",
    "tests/README.md": "its commands run tests, in the folder of the repository",
}
"""Pages that this file does not run, with the reason. Other tests run their blocks or compare their
outputs."""

SLOW = ("rappor/auditing/README.md", "rappor/engines/README.md")
"""Pages whose blocks take minutes. They run in the stage acceptance."""

PAGES = [
    pytest.param(path, marks=pytest.mark.acceptance if str(path) in SLOW else ())
    for path in sorted(
        path.relative_to(ROOT)
        for path in ROOT.glob("**/*.md")
        if ".venv" not in path.parts and str(path.relative_to(ROOT)) not in ELSEWHERE
    )
    if {block.language for block in read_blocks(ROOT / path)} & {"sh", "python", "toml"}
]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_runs_as_pasted(path: Path, tmp_path: Path) -> None:
    """The blocks of a page run in an empty folder, and print its outputs and draw its pictures."""
    page_blocks = read_blocks(ROOT / path)
    if any("--engine spark" in block.text for block in page_blocks):
        need("java")
    result = run_script(build_script(page_blocks), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    text = (ROOT / path).read_text(encoding="utf-8")
    for output in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        assert is_shown(output, result.stdout)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        published, drawn = (ROOT / path).parent / picture, tmp_path / Path(picture).name
        assert published.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")
