"""`rappor datasheet`: one document on the terminal, or all documents in a folder."""

from __future__ import annotations

import json

import pytest
from shell import Shell, ok


@pytest.mark.slow
def test_a_paper_is_printed_with_its_version(shell: Shell) -> None:
    """The document is printed as Markdown, or as one line of JSON with the same version."""
    out = ok(shell("datasheet", "--registry", "metrics.toml"))
    assert out.startswith("# Data sheet")
    version = json.loads(shell("datasheet", "--registry", "metrics.toml", "--json")[1])["version"]
    assert f"Version `{version}`" in out
    for paper, title in (("dpia", "skeleton"), ("consent", "Consent texts")):
        assert title in shell("datasheet", "--registry", "metrics.toml", "--paper", paper)[1]


@pytest.mark.slow
def test_all_papers_go_into_a_folder(shell: Shell) -> None:
    """Each document is written as Markdown and as one HTML file."""
    ok(shell("datasheet", "--registry", "metrics.toml", "--out", str(shell.place / "papers")))
    names = {path.name for path in (shell.place / "papers").iterdir()}
    papers = ("datasheet", "dpia", "consent")
    assert names == {f"{paper}.{end}" for paper in papers for end in ("md", "html")}
    assert "<table" in (shell.place / "papers" / "dpia.html").read_text(encoding="utf-8")
