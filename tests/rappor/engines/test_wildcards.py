"""Wildcards of paths, as Hadoop reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor.base.errors import FileError
from rappor.engines.wildcards import is_left_out, lies_in, matches, spell_out


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        ("/a b/x.csv", ["/a b/x.csv"]),
        ("/{a,b/c}/*", ["/a/*", "/b/c/*"]),
        ("/{a{1,2},b}", ["/a1", "/b", "/a2"]),
        ("/\\{\\*\\[b\\]\\?\\\\\\x\\}", ["/{[*][[]b][?]\\x}"]),
        ("/[^ab][!c]", ["/[!ab][!c]"]),
        ("/a\\,b{,c}", ["/a,b", "/a,bc"]),
    ],
)
def test_braces_and_backslashes_are_spelt_out(path: str, spelt: list[str]) -> None:
    """Braces become single paths, with wildcards in the syntax of `glob`."""
    assert spell_out(path) == spelt


def test_a_backslash_within_braces_is_refused() -> None:
    """Hadoop drops the backslash if the braces contain a slash, and reads another path."""
    with pytest.raises(FileError, match="a backslash within braces"):
        spell_out("/{a/b,\\[c]}")


@pytest.mark.parametrize(
    ("path", "roots", "is_out"),
    [
        ("/lake/a.csv", ["/lake"], False),
        ("/lake/_a.csv", ["/lake"], True),
        ("/lake/_a.csv", ["/lake", "/lake/_a.csv"], False),
        ("/lake/_old/a.csv", ["/*"], True),
        ("/lake/_old/a.csv", ["/*/_old"], False),
        ("/lake/_old/a.csv", ["/lake/[_]old"], True),
        ("/.cache/lake/a.csv", ["/.cache"], False),
        ("/.cache/lake/a.csv", ["/"], True),
        ("/_other/a.csv", ["/lake"], False),
    ],
)
def test_hidden_names_are_left_out_unless_spelt(path: str, roots: list[str], is_out: bool) -> None:
    """Hidden names below a folder or a wildcard are skipped. Paths elsewhere are not affected."""
    assert is_left_out(path, roots) == is_out


def test_a_machine_finds_what_a_path_means(tmp_path: Path) -> None:
    """Files, folders and broken links are found, except hidden ones."""
    for name in ("a.csv", "_b.csv", "c[1].csv"):
        (tmp_path / name).touch()
    (tmp_path / "dead").symlink_to("nothing")
    names = [Path(path).name for path in matches(f"{tmp_path}/{{*,_b.csv}}")]
    assert names == ["a.csv", "c[1].csv", "dead", "_b.csv"]
    assert list(matches(f"{tmp_path}/c\\[1\\].csv")) == [f"{tmp_path}/c[1].csv"]
    assert lies_in(f"{tmp_path}/a.csv", f"{tmp_path.parent}/*/")
