"""Candidates: exact and distinct strings, equal whether in memory or streamed."""

from __future__ import annotations

import gzip
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.base.errors import DecodeError, FileError, ParamsError, ReportError
from rappor.base.text_lines import split_filled_lines, split_lines
from rappor.candidates import candidates as module
from rappor.candidates.candidate_lines import CandidateLines
from rappor.candidates.candidates import Candidates
from rappor.candidates.compiled_hashing import compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.protocol.params import Params

MARK = b"\xef\xbb\xbf"
LETTERS = [
    "a",
    "é b",
    " ",
    "",
    "\t",
    "\u3000",
    "x\x0by",
    "日本",
    "\x85",
    '"d",e',
    "\ufeffm",
    "xy\0",
    "a",
]


def read_strings(candidates: Candidates) -> list[str]:
    """Return all strings, read block by block."""
    return [text for block in candidates.read_blocks() for text in block.to_strings()]


def read_file(tmp_path: Path, data: bytes, normalize: str = "none") -> Candidates:
    """Return the candidates of a file with these bytes."""
    path = tmp_path / "candidates.txt"
    path.write_bytes(data)
    return Candidates.from_file(path, normalize=normalize)


def is_spaced(text: str) -> bool:
    """Return whether a text begins or ends with white space, ASCII or not."""
    return text[0].isspace() or text[-1].isspace()


@given(
    st.lists(st.tuples(st.sampled_from(LETTERS), st.sampled_from(["\n", "\r\n", "\r"]))),
    st.sampled_from(["", "last", "last\r", "\u00a0last"]),
    st.integers(1, 5),
)
def test_lines_end_as_in_a_text_file(lines: list[tuple[str, str]], last: str, cut: int) -> None:
    r"""Lines end at \n, \r\n and \r, wherever chunks are cut; suspicious lines are counted."""
    data = MARK + ("".join(text + end for text, end in lines) + last).encode()
    chunks = [data[:3], *(data[i : i + cut] for i in range(3, len(data), cut))]
    texts = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig").read().split("\n")
    texts = texts if texts[-1] else texts[:-1]
    assert split_lines(data.decode("utf-8-sig")) == texts
    filled = [text for text in texts if text.strip(" \t\x0b")]
    assert split_filled_lines(data.decode("utf-8-sig")) == filled
    read = CandidateLines(lambda: chunks, "words", "none")
    for _ in range(2):
        assert [text for block in read() for text in block.to_strings()] == filled
        assert read.n_blank == len(texts) - len(filled)
        assert read.n_spaced == sum(map(is_spaced, filled))
        assert read.n_marked == sum(text.startswith("\ufeff") for text in filled)
    in_memory = Candidates.from_lines(io.BytesIO(data).readlines() if texts else [])
    assert in_memory.strings == tuple(dict.fromkeys(filled))
    assert in_memory.n_duplicates == len(filled) - len(in_memory)
    names = ("n_blank", "n_spaced", "n_marked")
    assert [getattr(in_memory, name) for name in names] == [getattr(read, name) for name in names]


@pytest.mark.parametrize(("normalize", "n_spaced"), [("nfc", 2), ("casefold", 2), ("strip", 0)])
def test_white_space_that_normalizing_removes_is_not_counted(normalize: str, n_spaced: int) -> None:
    """Devices remove the white space as well, so the line is not suspicious."""
    candidates = Candidates.from_lines([" a", "b\u3000", "c"], normalize=normalize)
    assert candidates.n_spaced == n_spaced


def test_lines_may_be_text_or_bytes() -> None:
    """Lines of text and of bytes give equal candidates; a lone surrogate is refused."""
    assert Candidates.from_lines(["ä\n", "b\r\n"]).strings == ("ä", "b")
    assert Candidates.from_lines(iter(["ä\n".encode(), b"b"])).strings == ("ä", "b")
    with pytest.raises(FileError, match=r"standard input, line 2: .* lone surrogate"):
        Candidates.from_lines(["a", "\ud800"])


@pytest.mark.parametrize("name", ["words.txt", "words.gz"])
def test_a_long_file_is_read_for_every_pass(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long file is streamed with the strings of a file in memory; a pipe is never streamed."""
    data = b"".join(b"word %d\n" % i for i in range(40_000))
    path = tmp_path / name
    path.write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    in_memory = Candidates.from_file(path)
    monkeypatch.setattr(module, "_MAX_BYTES_IN_MEMORY", 1 << 18)
    streamed = Candidates.from_file(path)
    assert (in_memory.is_in_memory, streamed.is_in_memory) == (True, False)
    expected = data.decode().split("\n")[:-1]
    assert read_strings(in_memory) == read_strings(streamed) == read_strings(streamed) == expected
    with pytest.raises(DecodeError, match=f"held in memory, got a stream: .*{name}"):
        len(streamed)
    assert streamed.load_into_memory(39_999) is None
    again = streamed.load_into_memory(40_000)
    assert again is not None
    assert again.strings == in_memory.strings
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(path.read_bytes(),)).start()
    assert Candidates.from_file(tmp_path / "pipe").strings == in_memory.strings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb\nM\xfcller\n", "candidates.txt, line 3: it is not UTF-8"),
        ("a\nb".encode("utf-16"), "line 1: it is not UTF-8 but UTF-16, or binary: save"),
        ("a\nb\n".encode("utf-16-le"), "line 1: it is not UTF-8 but UTF-16"),
        (b"good\n" * 300_000 + b"\xff\n", "line 300001: it is not UTF-8"),
        (gzip.compress(b"word\n" * 1000, mtime=0)[:-12], "candidates.txt: it cannot be unpacked"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    """A wrong line is refused and not skipped, and the message has its number."""
    with pytest.raises(FileError, match=message):
        read_file(tmp_path, data)
    with pytest.raises(FileError, match="nothing: No such file"):
        Candidates.from_file(tmp_path / "nothing")
    with pytest.raises(FileError, match="Is a directory"):
        Candidates.from_file(tmp_path)


def test_a_list_is_used_as_it_is(tmp_path: Path) -> None:
    """An empty string of a list is a candidate; a lone surrogate or a number is refused."""
    candidates = Candidates.from_list(["b", "", "b", " "])
    assert (candidates.strings, candidates.n_duplicates) == (("b", "", " "), 1)
    assert repr(candidates) == "Candidates(n=3, normalize='none')"
    assert len(read_file(tmp_path, b"\n\n")) == len(Candidates.from_list([])) == 0
    assert read_file(tmp_path, b"x" * 2_000_001 + b"\ny").strings == ("x" * 2_000_001, "y")
    with pytest.raises(ReportError, match="valid Unicode"):
        Candidates.from_list(["\ud800"])
    with pytest.raises(ReportError, match="must be a text, got int"):
        Candidates.from_list([7])  # type: ignore[list-item]


@pytest.mark.parametrize("text", ["engines.txt", b"engines.txt"])
def test_a_single_text_is_refused(text: Any) -> None:
    """The letters of a text are not candidates; the message names the reader of files."""
    with pytest.raises(ParamsError, match=r"use Candidates.from_file\(path\)"):
        Candidates.from_list(text)
    with pytest.raises(ParamsError, match="got a"):
        read_strings(Candidates.from_stream(lambda: text))


def test_candidates_are_normalised_before_they_are_compared(tmp_path: Path) -> None:
    """Equal strings after normalizing are one candidate in memory, and two in a stream."""
    candidates = read_file(tmp_path, "Straße\nSTRASSE\nother\n".encode(), "casefold")
    assert (candidates.strings, candidates.n_duplicates, candidates.normalize) == (
        ("strasse", "other"),
        1,
        "casefold",
    )
    assert Candidates.from_list(["A", "a"], normalize="casefold").strings == ("a",)
    stream = Candidates.from_stream(lambda: iter(["A", "a"]), normalize="casefold")
    assert repr(stream) == "Candidates('candidates', normalize='casefold')"
    assert read_strings(stream) == ["a", "a"]


@given(st.integers(0, 3), st.integers(0, 3))
def test_a_product_has_every_continuation_once(least: int, more: int) -> None:
    """The shortest strings come first; characters may have several bytes."""
    letters = "abcß日𝄞"
    tails: list[list[str]] = [[""]]
    for _ in range(least + more):
        tails.append([head + letter for head in tails[-1] for letter in letters])
    product = Candidates.product(["", "é."], letters, least, least + more)
    assert read_strings(product) == [
        head + tail for group in tails[least:] for head in ("", "é.") for tail in group
    ]


def test_a_product_continues_over_the_borders_of_blocks() -> None:
    """The strings of several blocks are in order, and the last character changes first."""
    strings = read_strings(Candidates.product(["x", "yz"], "abcdefghijklmnopqrstuvwxyz", 4, 4))
    assert len(strings) == 2 * 26**4
    assert strings == sorted(strings)
    assert strings[26**4] == "yzaaaa"


@pytest.mark.parametrize(
    ("prefixes", "alphabet", "least", "most", "message"),
    [
        (["a"], "abcdefghij", 0, 9, "got 1,111,111,111"),
        (["a"], "ab", 0, 255, "got 1e77: use"),
        (["a"], "aa", 1, 1, "distinct"),
        (["a", "a"], "b", 1, 1, "distinct"),
        (["a"], "b", 2, 1, "most"),
        (["a"], "b", -1, 1, "least"),
        ("ab", "b", 1, 1, "got one str"),
    ],
)
def test_an_impossible_product_is_refused(
    prefixes: list[str], alphabet: str, least: int, most: int, message: str
) -> None:
    """Repeated parts, wrong lengths and too many strings are refused with the reason."""
    with pytest.raises(ParamsError, match=message):
        Candidates.product(prefixes, alphabet, least, most)


def test_a_chain_reads_one_after_the_other() -> None:
    """A chain has all strings in order; different normalizers are refused."""
    one, two = Candidates.from_list(["a"]), Candidates.product(["b"], "xy", 1, 1)
    assert read_strings(Candidates.chain(one, two)) == ["a", "bx", "by"]
    with pytest.raises(ParamsError, match="one normalizer"):
        Candidates.chain(one, Candidates.from_list(["a"], normalize="nfc"))


@given(st.lists(st.sampled_from(["a", "ä", "", "b", "c" * 70]), max_size=8), st.data())
def test_cells_equal_those_of_the_hashed_strings(strings: list[str], data: st.DataObject) -> None:
    """Candidates and selections of them have the cells of their strings, block by block."""
    params = Params(k=16, h=2, m=3, f=0.5, p=0.25, q=0.75)
    distinct = list(dict.fromkeys(strings))
    all_candidates = Candidates.from_list(strings)
    chosen = data.draw(st.permutations(range(len(distinct)))) if distinct else []
    for candidates, expected in [
        (all_candidates, distinct),
        (all_candidates.select(chosen), [distinct[i] for i in chosen]),
    ]:
        assert candidates.strings == tuple(expected)
        words = hash_texts(Texts.from_bytes([text.encode() for text in expected]))
        whole = compute_cells(words, params)
        parts = [
            candidates.compute_cells(params, 0, 2),
            candidates.compute_cells(params, 2, len(expected)),
        ]
        assert np.array_equal(np.concatenate(parts), whole)
