"""The token: from a file or the environment, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor.base.errors import FileError, ParamsError
from rappor.remote.token import read_token

TELLTALE = "rappor.0123.Telltale-7q"


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """White space around it is dropped; a file that is named goes first."""
    path = tmp_path / "token"
    path.write_text(f"{TELLTALE}\n")
    assert read_token(path, environment={"RAPPOR_TOKEN": "other"}) == TELLTALE
    assert read_token(environment={"RAPPOR_TOKEN": f" {TELLTALE}"}) == TELLTALE


def test_what_is_no_token_is_refused_without_being_shown(tmp_path: Path) -> None:
    """None, two lines, a missing file."""
    path = tmp_path / "token"
    path.write_text(f"{TELLTALE}\nmore of it")
    with pytest.raises(FileError, match="one token and nothing else") as caught:
        read_token(path)
    assert "Telltale" not in str(caught.value)
    with pytest.raises(FileError):
        read_token(tmp_path / "none")
    with pytest.raises(ParamsError, match="in the variable RAPPOR_TOKEN"):
        read_token(environment={})
    with pytest.raises(ParamsError) as refused:
        read_token(environment={"RAPPOR_TOKEN": f"{TELLTALE} {TELLTALE}"})
    assert "Telltale" not in str(refused.value)
