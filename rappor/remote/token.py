"""Read token of an analyst: reads the token from a file or from the environment.

A read token is the secret with which an analyst reads released counts. A command line never
contains a token, because other users of a machine see the arguments of every process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError, ParamsError

VARIABLE: Final = "RAPPOR_TOKEN"
"""Name of the environment variable that contains the token."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Matches a token. Its characters are safe in an HTTP header: no space and no line break."""


def read_token(
    path: str | os.PathLike[str] | None = None, *, environment: Mapping[str, str] = os.environ
) -> str:
    """Read the token from a file, or from the variable RAPPOR_TOKEN.

    Parameters
    ----------
    path : path of a file that contains only the token; None for the environment variable.
    environment : the environment variables by name.

    Returns
    -------
    The token.

    Raises
    ------
    FileError
        The file cannot be read, or contains more or less than one token.
    ParamsError
        The variable is not set, or is not a token.

    Examples
    --------
    >>> read_token(environment={"RAPPOR_TOKEN": "analyst.6f1c"})
    'analyst.6f1c'
    """
    if path is not None:
        # Editors end a file with a line break, which is no part of the token.
        text = read_text(path).strip()
        if not _TOKEN.fullmatch(text):
            raise FileError(path, "it must have one token and nothing else")
        return text
    if not (text := environment.get(VARIABLE, "").strip()):
        raise ParamsError(f"a token must be given: in a file, or in the variable {VARIABLE}")
    return check_token(text)


def check_token(token: str) -> str:
    """Return a token if an HTTP header can contain it.

    Raises
    ------
    ParamsError
        The token has other characters. The message does not contain the token.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ParamsError(
            "token must be letters, digits, dots, dashes and underscores, as it was printed"
        )
    return token
