"""Keys for sending: which line is one, who is known by it, and until when."""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY
from rappor_server.ingest.upload_keys import UploadKeys

from rappor.base.errors import FileError

TOMORROW = TODAY + datetime.timedelta(days=1)


def test_each_key_is_taken_until_its_last_day() -> None:
    """A key that follows another is taken beside it; the old one ends by itself."""
    keys = UploadKeys.loads(f"# sending\nold sesame {TODAY}\nnew  simsim # later\n", path="keys")
    assert keys.find("Bearer sesame", today=TODAY) == "old"
    assert keys.find("Bearer sesame", today=TOMORROW) is None
    assert keys.find("Bearer simsim", today=TOMORROW) == "new"
    for other in ("", "sesame", "Bearer", "Bearer ", "Bearer sesame ", "bearer sesame", "Bearer é"):
        assert keys.find(other, today=TODAY) is None
    assert "sesame" not in repr(vars(keys))


def test_a_file_of_one_word_is_a_key() -> None:
    """Without a name and an end it is called key."""
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
def test_other_files_are_refused_without_showing_a_key(text: str, line: int | None) -> None:
    """An empty file must not let everyone send, and a doubtful line is named by its number."""
    with pytest.raises(FileError) as caught:
        UploadKeys.loads(text, path="keys")
    assert caught.value.line == line
