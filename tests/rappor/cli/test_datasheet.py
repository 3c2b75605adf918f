"""`rappor datasheet`: one document on the terminal, or all documents in a folder."""

from __future__ import annotations

import json

import pytest
from shell import Shell, expect_success


@pytest.mark.slow
def test_a_document_is_printed_with_its_version(shell: Shell) -> None:
    """The document is printed as Markdown, or as one line of JSON with the same version."""
    out = expect_success(shell("datasheet", "--registry", "metrics.toml"))
    assert out.startswith("# Data sheet")
    version = json.loads(shell("datasheet", "--registry", "metrics.toml", "--json")[1])["version"]
    assert f"Version `{version}`" in out
    for paper, title in (("dpia", "skeleton"), ("consent", "Consent texts")):
        assert title in shell("datasheet", "--registry", "metrics.toml", "--paper", paper)[1]


@pytest.mark.slow
def test_all_documents_are_written_to_a_folder(shell: Shell) -> None:
    """Each of the three documents is written as Markdown and as one HTML file."""
    expect_success(
        shell("datasheet", "--registry", "metrics.toml", "--out", str(shell.folder / "papers"))
    )
    names = {path.name for path in (shell.folder / "papers").iterdir()}
    papers = ("datasheet", "dpia", "consent")
    assert names == {f"{paper}.{end}" for paper in papers for end in ("md", "html")}
    assert "<table" in (shell.folder / "papers" / "dpia.html").read_text(encoding="utf-8")
