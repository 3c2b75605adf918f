"""Upload keys: lines of the file, names, last days.

An upload key is a secret that a program sends with each upload. A line of the file has the name of
a key, the key, and perhaps its last day: `old sesame 2026-11-21`. A # begins a comment.
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
    keys = UploadKeys.loads(f"# sending\nold sesame {TODAY}\nnew  simsim # later\n", path="keys")
    assert keys.find("Bearer sesame", today=TODAY) == "old"
    assert keys.find("Bearer sesame", today=TOMORROW) is None
    assert keys.find("Bearer simsim", today=TOMORROW) == "new"
    for header in (
        "",
        "sesame",
        "Bearer",
        "Bearer ",
        "Bearer sesame ",
        "bearer sesame",
        "Bearer é",
    ):
        assert keys.find(header, today=TODAY) is None
    assert "sesame" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("# nothing but this\n", None),
        ("a sesame\na simsim\n", 2),  # one name twice
        ("sesame\n", 1),  # a key without a name, or a name without a key
        ("a simsim\nsesame # new\n", 2),
        ("a sesame 2026-13-01\n", 1),
        ("a sesame 2026-W48-1\n", 1),
        ("a sesame 2026-11-30 more\n", 1),
        ("A sesame\n", 1),  # a name has no capital letters
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
