"""Upload keys: lines of the file, names, last days.

An upload key is a secret that a program sends with each upload. A line of the file has the name of
a key, the key, and perhaps its last day: `old open-sesame-open 2026-11-21`. A # begins a comment.
"""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY
from rappor_server.ingest.upload_keys import UploadKeys

from rappor.base.errors import FileError

TOMORROW = TODAY + datetime.timedelta(days=1)


def test_each_key_is_valid_until_its_last_day() -> None:
    """A new key is valid beside the old key, which expires.

    Only the exact header `Bearer KEY` has the key. The repr contains no key.
    """
    keys = UploadKeys.loads(
        f"# sending\nold open-sesame-open {TODAY}\nnew  open-simsim-open # later\n",
        path="keys",
    )
    assert keys.find("Bearer open-sesame-open", today=TODAY) == "old"
    assert keys.find("Bearer open-sesame-open", today=TOMORROW) is None
    assert keys.find("Bearer open-simsim-open", today=TOMORROW) == "new"
    for header in (
        "",
        "open-sesame-open",
        "Bearer",
        "Bearer ",
        "Bearer open-sesame-open ",
        "bearer open-sesame-open",
        "Bearer é",
    ):
        assert keys.find(header, today=TODAY) is None
    assert "sesame" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("# nothing but this\n", None),
        ("a open-sesame-open\na open-simsim-open\n", 2),  # one name twice
        ("open-sesame-open\n", 1),  # a key without a name, or a name without a key
        ("a open-simsim-open\nsesame # new\n", 2),
        ("a open-sesame-open 2026-13-01\n", 1),
        ("a open-sesame-open 2026-W48-1\n", 1),
        ("a open-sesame-open 2026-11-30 more\n", 1),
        ("A open-sesame-open\n", 1),  # a name has no capital letters
    ],
)
def test_invalid_files_are_refused_without_showing_a_key(text: str, line: int | None) -> None:
    """A file without a key or with an invalid line is refused. The error has the line's number.

    The error contains no key. An empty file must not let everybody upload.
    """
    with pytest.raises(FileError) as caught:
        UploadKeys.loads(text, path="keys")
    assert caught.value.line == line
    if line is not None:
        expected = f"keys, line {line}: a line must be NAME KEY or NAME KEY LAST-DAY"
        assert str(caught.value).startswith(expected)
    for key in ("sesame", "simsim"):
        assert key not in str(caught.value)


def test_short_keys_are_refused() -> None:
    """A key of 15 characters is refused, and of 16 accepted. The error shows no key."""
    UploadKeys.loads("a 0123456789abcdef\n", path="keys")
    with pytest.raises(FileError) as caught:
        UploadKeys.loads("a 0123456789abcdef\nb 0123456789abcde\n", path="keys")
    assert str(caught.value).startswith("keys, line 2: a key must have at least 16 characters")
    assert "0123" not in str(caught.value)
