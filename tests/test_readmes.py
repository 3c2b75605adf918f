"""Every block of every page runs as a reader would paste it, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collectors import run_script
from places import ROOT
from readers import blocks, is_shown, script_of
from tools import need

ELSEWHERE = {
    "README.md": "installs the package; its other blocks are compared with what they print",
    "client/README.md": "what it prints is compared",
    "client/HOSTS.md": "each program runs in its host",
    "client/javascript/README.md": "a browser runs it",
    "client/examples/kit/README.md": "runs beside the files of its folder",
    "server/README.md": "what it prints is compared",
    ".github/CONTRIBUTING.md": "installs the package",
}
"""Pages that other tests follow, and why."""

SLOW = ("rappor/auditing/README.md", "rappor/engines/README.md")

PAGES = [
    pytest.param(path, marks=pytest.mark.acceptance if str(path) in SLOW else ())
    for path in sorted(
        path.relative_to(ROOT)
        for path in ROOT.glob("**/*.md")
        if ".venv" not in path.parts and str(path.relative_to(ROOT)) not in ELSEWHERE
    )
    if {each.language for each in blocks(ROOT / path)} & {"sh", "python", "toml"}
]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_runs_as_pasted(path: Path, tmp_path: Path) -> None:
    """In an empty folder, with what the page itself makes; it shows what is printed and drawn."""
    shown = blocks(ROOT / path)
    if any("--engine spark" in each.text for each in shown):
        need("java")
    answer = run_script(script_of(shown), tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    text = (ROOT / path).read_text(encoding="utf-8")
    for output in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        assert is_shown(output, answer.stdout)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        shown, drawn = (ROOT / path).parent / picture, tmp_path / Path(picture).name
        assert shown.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")
