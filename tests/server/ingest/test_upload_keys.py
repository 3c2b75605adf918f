"""Upload keys: lines of the file, names, last days."""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY
from rappor_server.ingest.upload_keys import UploadKeys

from rappor.base.errors import FileError

TOMORROW = TODAY + datetime.timedelta(days=1)


def test_each_key_is_valid_until_its_last_day() -> None:
    """A new key is valid beside the old key, which expires."""
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


def test_a_file_of_one_word_is_a_key() -> None:
    """The name of the key is `key`, and it does not expire."""
    assert UploadKeys.loads("sesame\n", path="keys").find("Bearer sesame", today=TODAY) == "key"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("# nothing but this\n", None),
        ("a x\na y\n", 2),
        ("x\ny\n", 2),
        ("a x 2026-13-01\n", 1),
        ("a x 2026-W48-1\n", 1),
        ("a x 2026-11-30 more\n", 1),
        ("A x\n", 1),
    ],
)
def test_invalid_files_are_refused_without_showing_a_key(text: str, line: int | None) -> None:
    """An empty file must not let everybody upload. The error has the number of an invalid line."""
    with pytest.raises(FileError) as caught:
        UploadKeys.loads(text, path="keys")
    assert caught.value.line == line
