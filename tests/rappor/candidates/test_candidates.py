"""Candidate strings: read exactly, distinct, hashed as on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rappor.candidates.candidates import Candidates
from rappor.candidates.hashing import bloom_cells, digest_strings
from rappor.ground.errors import FileError, ParamsError, ReportError
from rappor.protocol.params import Params


def from_bytes(tmp_path: Path, data: bytes, normalize: str = "none") -> Candidates:
    path = tmp_path / "candidates.txt"
    path.write_bytes(data)
    return Candidates.from_file(path, normalize=normalize)


def test_a_file_gives_its_lines_in_order(tmp_path: Path) -> None:
    """A byte-order mark, carriage returns and a missing last newline carry no meaning."""
    candidates = from_bytes(tmp_path, "\ufeffb\r\na\nc".encode())
    assert candidates.strings == ("b", "a", "c")
    assert (len(candidates), candidates.n_blank, candidates.n_duplicates) == (3, 0, 0)


def test_blank_lines_and_duplicates_are_skipped_and_counted(tmp_path: Path) -> None:
    """The first of equal strings keeps its place."""
    candidates = from_bytes(tmp_path, b"\nb\n \t\na\r\nb\na\n\r\nb\n")
    assert candidates.strings == ("b", "a")
    assert (candidates.n_blank, candidates.n_duplicates) == (3, 3)


def test_only_line_ends_end_lines(tmp_path: Path) -> None:
    """Other separators, quotes, commas, spaces and later marks are part of a candidate."""
    odd = [
        " a ",
        "b,c",
        '"d"',
        "e\x0bf",
        "g\u2028h",
        "i\x85j",
        "k\rl",
        "NA",
        "007",
        "\ufeffm",
        "\0",
    ]
    assert from_bytes(tmp_path, "\n".join(odd).encode()).strings == tuple(odd)


def test_a_file_without_strings_is_empty(tmp_path: Path) -> None:
    """Nothing to ask about is allowed here."""
    for data in (b"", b"\n\n", b"\xef\xbb\xbf"):
        candidates = from_bytes(tmp_path, data)
        assert len(candidates) == 0


def test_a_very_long_line_is_a_candidate(tmp_path: Path) -> None:
    """A million characters are read like one."""
    assert from_bytes(tmp_path, b"x" * 1_000_001 + b"\ny").strings == ("x" * 1_000_001, "y")


def test_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    """Latin-1 and UTF-16 are named as what they are not, with path and line."""
    with pytest.raises(FileError, match=r"candidates.txt, line 3: it is not UTF-8"):
        from_bytes(tmp_path, b"a\nb\nM\xfcller\n")
    with pytest.raises(FileError, match="line 1: it is not UTF-8"):
        from_bytes(tmp_path, "a\nb".encode("utf-16"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The path and the system's reason are told."""
    with pytest.raises(FileError, match="nothing: No such file"):
        Candidates.from_file(tmp_path / "nothing")


def test_lines_may_be_text_or_bytes() -> None:
    """Standard input gives either."""
    assert Candidates.from_lines(["ä\n", "b\r\n"]).strings == ("ä", "b")
    assert Candidates.from_lines(iter(["ä\n".encode(), b"b"])).strings == ("ä", "b")
    with pytest.raises(FileError, match=r"standard input, line 2: .* lone surrogate"):
        Candidates.from_lines(["a", "\ud800"])
    with pytest.raises(FileError, match="stdin, line 1: it is not UTF-8"):
        Candidates.from_lines([b"\xff"], name="stdin")


def test_a_list_is_taken_as_it_is() -> None:
    """An empty string in a list is meant; a lone surrogate or a number is a mistake."""
    candidates = Candidates.from_list(["b", "", "b", " "])
    assert (candidates.strings, candidates.n_duplicates) == (("b", "", " "), 1)
    with pytest.raises(ReportError, match="valid Unicode"):
        Candidates.from_list(["\ud800"])
    with pytest.raises(ReportError, match="must be a text, got int"):
        Candidates.from_list([7])  # type: ignore[list-item]


@pytest.mark.parametrize("text", ["engines.txt", b"engines.txt"])
def test_a_text_is_no_list(text: Any) -> None:
    """Its letters are not meant; what reads a file is named."""
    with pytest.raises(ParamsError, match=r"use Candidates.from_file\(path\)"):
        Candidates.from_list(text)


def test_candidates_are_normalised_before_they_are_compared(tmp_path: Path) -> None:
    """What a device would send alike is one candidate."""
    candidates = from_bytes(tmp_path, "Straße\nSTRASSE\nother\n".encode(), "casefold")
    assert candidates.strings == ("strasse", "other")
    assert (candidates.n_duplicates, candidates.normalize) == (1, "casefold")
    assert Candidates.from_list(["A", "a"], normalize="casefold").strings == ("a",)


def test_cells_are_those_of_the_hashed_strings() -> None:
    """Blocks of cells join to the whole, in any order, and those of a subset are its own."""
    params = Params(k=16, h=2, m=3, f=0.5, p=0.25, q=0.75)
    candidates = Candidates.from_list(["a", "ä", "", "b"])
    expected = digest_strings([b"a", "ä".encode(), b"", b"b"])
    blocks = [candidates.cells(params, 0, 3), candidates.cells(params, 3, 4)]
    assert np.array_equal(np.concatenate(blocks), bloom_cells(expected, params))
    assert np.array_equal(candidates.cells(params, 1, 2), blocks[0][1:2])
    for whole in (candidates, Candidates.from_list(candidates.strings)):
        some = whole.subset([3, 1]).cells(params, 0, 2)
        assert np.array_equal(some, bloom_cells(expected[[3, 1]], params))


def test_the_repr_is_short() -> None:
    """A million candidates do not fill the screen."""
    assert repr(Candidates.from_list(["a", "b"])) == "Candidates(n=2, normalize='none')"
