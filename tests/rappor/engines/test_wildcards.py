"""Wildcards in paths, with Hadoop's syntax: {a,b}, *, ?, [ab], [^a] and a backslash to escape."""

from __future__ import annotations

from pathlib import Path

import pytest

from rappor.base.errors import FileError
from rappor.engines.wildcards import find_matches, is_left_out, lies_in, spell_out


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        ("/a b/x.csv", ["/a b/x.csv"]),
        ("/{a,b/c}/*", ["/a/*", "/b/c/*"]),
        # The inner braces are expanded first, to {a1,b} and {a2,b}. Each of the two gives /b, and
        # the second /b is left out.
        ("/{a{1,2},b}", ["/a1", "/b", "/a2"]),
        # A backslash makes the next character literal. `glob` reads [*] as a literal star.
        (r"/\{a\}", ["/{a}"]),
        (r"/\{\*\}", ["/{[*]}"]),
        (r"/\[b\]", ["/[[]b]"]),
        (r"/\?", ["/[?]"]),
        (r"/\\a", [r"/\a"]),
        (r"/\x", ["/x"]),
        ("/[^ab][!c]", ["/[!ab][!c]"]),
        ("/a\\,b{,c}", ["/a,b", "/a,bc"]),
    ],
)
def test_braces_and_backslashes_are_spelt_out(path: str, spelt: list[str]) -> None:
    """Each alternative of braces becomes a path, whose wildcards have the syntax of `glob`.

    Characters after a backslash are literal.
    """
    assert spell_out(path) == spelt


def test_a_backslash_within_braces_is_refused() -> None:
    """A backslash within braces is an error, because Hadoop would read another path.

    If the braces contain a slash, Hadoop drops the backslash.
    """
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
        # The path is below no root, so no search finds or skips it.
        ("/_other/a.csv", ["/lake"], False),
    ],
)
def test_hidden_names_are_left_out_unless_spelt(path: str, roots: list[str], is_out: bool) -> None:
    """A file is skipped if a name below its root is hidden, or a wildcard matches a hidden name.

    A name is hidden if it begins with a dot or an underscore. A file is not skipped because of a
    hidden name that the root contains without a wildcard.
    """
    assert is_left_out(path, roots) == is_out


def test_wildcards_match_files_on_the_disk(tmp_path: Path) -> None:
    """Wildcards match files, folders and broken links, except hidden names.

    An escaped bracket matches a bracket in a name. A file lies in each folder that a path with
    wildcards matches, here the parent of its folder with a star for the folder.
    """
    for name in ("a.csv", "_b.csv", "c[1].csv"):
        (tmp_path / name).touch()
    (tmp_path / "dead").symlink_to("nothing")
    names = [Path(path).name for path in find_matches(f"{tmp_path}/{{*,_b.csv}}")]
    assert names == ["a.csv", "c[1].csv", "dead", "_b.csv"]
    assert list(find_matches(f"{tmp_path}/c\\[1\\].csv")) == [f"{tmp_path}/c[1].csv"]
    assert lies_in(f"{tmp_path}/a.csv", f"{tmp_path.parent}/*/")
