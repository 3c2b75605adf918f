"""Errors of a registry contain the path of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor import Registry
from rappor.base.errors import FileError, MetricError

TEXT = """[budget]
total = 16

[metrics.engine]
description = "d"
owner = "o"
expires = 2099-12-31
encoding = "bloom"
profile = "balanced"
epoch = "quarter"
"""


# Pairs of a text and its replacement. Each makes the registry wrong in another place: an unknown
# key, an unknown encoding, a small budget, a wrong date, and an unknown epoch.
@pytest.mark.parametrize(
    "change",
    [
        ('owner = "', 'ownr = "'),
        ('encoding = "', 'encoding = "x'),
        ("total = ", "total = 1e-9\n#"),
        ("expires = ", "expires = 1\n#"),
        ('epoch = "quarter"', 'epoch = "moon"'),
    ],
)
def test_an_error_names_the_file_once(tmp_path: Path, change: tuple[str, str]) -> None:
    """Every error of a registry begins with the path of its file, which appears once.

    A command may read two registries, and its user must see which of them is wrong.
    """
    path = tmp_path / "old.toml"
    path.write_text(TEXT)
    assert list(Registry.load(path)) == ["engine"]
    path.write_text(TEXT.replace(*change))
    with pytest.raises((MetricError, FileError)) as caught:
        Registry.load(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).count(str(path)) == 1
