"""The read token: from a file or the environment, and in no message."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor.base.errors import FileError, ParamsError
from rappor.remote.token import read_token

TELLTALE = "rappor.0123.Telltale-7q"
"""A read token. It must not appear in any message."""


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """A token is read from a file, or else from the environment.

    White space around the token is removed, because editors end a file with a line break.
    """
    path = tmp_path / "token"
    path.write_text(f"{TELLTALE}\n")
    assert read_token(path, environment={"RAPPOR_TOKEN": "other"}) == TELLTALE
    assert read_token(environment={"RAPPOR_TOKEN": f" {TELLTALE}"}) == TELLTALE


def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    """A missing token, or two of them, are refused, and the message does not contain the token.

    Cases: a file with two lines, a file that does not exist, no variable, and a variable with two
    words.
    """
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
