"""The read token: from a file or the environment, and in no message."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor.base.errors import FileError, ParamsError
from rappor.remote.token import read_token

TELLTALE = "rappor.0123.Telltale-7q"


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """White space around the token is dropped. A file takes precedence."""
    path = tmp_path / "token"
    path.write_text(f"{TELLTALE}\n")
    assert read_token(path, environment={"RAPPOR_TOKEN": "other"}) == TELLTALE
    assert read_token(environment={"RAPPOR_TOKEN": f" {TELLTALE}"}) == TELLTALE


def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    """The token is missing, the file has two lines, or the file does not exist."""
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
