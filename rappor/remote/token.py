"""The token that lets an analyst read: from a file or from the environment, never a command line.

Other users of a machine see the arguments of every process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError, ParamsError

VARIABLE: Final = "RAPPOR_TOKEN"

_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def read_token(
    path: str | os.PathLike[str] | None = None, *, environment: Mapping[str, str] = os.environ
) -> str:
    """Return the token in a file, or without a path that in the variable RAPPOR_TOKEN.

    Raises FileError or ParamsError if there is none, or what is there cannot be a token.
    """
    if path is not None:
        text = read_text(path).strip()
        if not _TOKEN.fullmatch(text):
            raise FileError(path, "it must have one token and nothing else")
        return text
    if not (text := environment.get(VARIABLE, "").strip()):
        raise ParamsError(f"a token must be given: in a file, or in the variable {VARIABLE}")
    return check_token(text)


def check_token(token: str) -> str:
    """Return a token that a header can hold; ParamsError, which does not show it, for others."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ParamsError("token must be letters, digits, dots and dashes, as it was printed")
    return token
