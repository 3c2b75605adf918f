"""Candidates from lists, lines, files, streams and products.

The strings must be exact, because another spelling has other bits. They are the same in memory and
streamed, except that only candidates in memory are distinct.
"""

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
from rappor.candidates.listed_candidates import add_to_list
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.protocol.params import Params
from rappor.simulation.population import Population

MARK = b"\xef\xbb\xbf"
"""The byte-order mark U+FEFF in UTF-8, which some editors write at the beginning of a file."""
LINES = [
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
"""Contents of lines: texts, blank lines, lines that begin or end with white space of ASCII or of
Unicode, a comma and quotation marks as in CSV, a byte-order mark, a NUL, and a repeated text."""


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
    st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(["\n", "\r\n", "\r"]))),
    st.sampled_from(["", "last", "last\r", "\u00a0last"]),
    st.integers(1, 5),
)
def test_lines_end_as_in_a_text_file(lines: list[tuple[str, str]], last: str, cut: int) -> None:
    r"""Lines end at \n, \r\n and \r as in Python's text files, and suspicious lines are counted.

    A file is read in chunks. Chunks of 1 to 5 bytes cut it inside a character and between \r and
    \n, which must not change a line. Blank lines are skipped. Lines with white space at an end, and
    lines that begin with a byte-order mark, are usually mistakes, so their numbers are counted for
    a warning. The counts start anew with every pass.
    """
    data = MARK + ("".join(text + end for text, end in lines) + last).encode()
    chunks = [data[:3], *(data[i : i + cut] for i in range(3, len(data), cut))]
    texts = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig").read().split("\n")
    texts = texts if texts[-1] else texts[:-1]
    assert split_lines(data.decode("utf-8-sig")) == texts
    nonblank = [text for text in texts if text.strip(" \t\x0b")]
    assert split_filled_lines(data.decode("utf-8-sig")) == nonblank
    read = CandidateLines(lambda: chunks, "words", "none")
    for _ in range(2):
        assert [text for block in read() for text in block.to_strings()] == nonblank
        assert read.n_blank == len(texts) - len(nonblank)
        assert read.n_spaced == sum(map(is_spaced, nonblank))
        assert read.n_marked == sum(text.startswith("\ufeff") for text in nonblank)
    in_memory = Candidates.from_lines(io.BytesIO(data).readlines() if texts else [])
    assert in_memory.strings == tuple(dict.fromkeys(nonblank))
    assert in_memory.n_duplicates == len(nonblank) - len(in_memory)
    names = ("n_blank", "n_spaced", "n_marked")
    assert [getattr(in_memory, name) for name in names] == [getattr(read, name) for name in names]


@pytest.mark.parametrize(("normalize", "n_spaced"), [("nfc", 2), ("casefold", 2), ("strip", 0)])
def test_white_space_that_normalizing_removes_is_not_counted(normalize: str, n_spaced: int) -> None:
    """A line with white space at an end is not suspicious if the normalizer removes white space.

    Devices remove the white space as well, so the candidate still has the bits of their values.
    """
    candidates = Candidates.from_lines([" a", "b\u3000", "c"], normalize=normalize)
    assert candidates.n_spaced == n_spaced


def test_lines_may_be_text_or_bytes() -> None:
    """Lines of text and of bytes give equal candidates.

    A lone surrogate is refused with its line, because it has no UTF-8 that could be hashed.
    """
    assert Candidates.from_lines(["ä\n", "b\r\n"]).strings == ("ä", "b")
    assert Candidates.from_lines(iter(["ä\n".encode(), b"b"])).strings == ("ä", "b")
    with pytest.raises(FileError, match=r"standard input, line 2: .* lone surrogate"):
        Candidates.from_lines(["a", "\ud800"])


@pytest.mark.parametrize("name", ["words.txt", "words.gz"])
def test_a_long_file_is_read_for_every_pass(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beyond the limit of memory is read again for every pass, with the same strings.

    The limit is lowered for the test. The number of strings of a streamed file is unknown, so `len`
    is refused, and `load_into_memory` returns None if the file has more strings than allowed. A
    pipe can be read only once, so it is loaded into memory whatever its size is.
    """
    data = b"".join(b"word %d\n" % i for i in range(40_000))
    path = tmp_path / name
    path.write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    in_memory = Candidates.from_file(path)
    monkeypatch.setattr(module, "_MAX_BYTES_IN_MEMORY", 1 << 18)
    streamed = Candidates.from_file(path)
    assert (in_memory.is_in_memory, streamed.is_in_memory) == (True, False)
    expected = data.decode().split("\n")[:-1]
    assert read_strings(in_memory) == read_strings(streamed) == read_strings(streamed) == expected
    with pytest.raises(DecodeError, match=f"must be in memory, got a stream: .*{name}"):
        len(streamed)
    assert streamed.load_into_memory(39_999) is None
    loaded = streamed.load_into_memory(40_000)
    assert loaded is not None
    assert loaded.strings == in_memory.strings
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
    """A file with a wrong line is refused, and the message has the number of the line.

    A line that was skipped would be a string without an estimate, and without any sign of its
    absence. Line 300,001 lies beyond the first chunk of the file.
    """
    with pytest.raises(FileError, match=message):
        read_file(tmp_path, data)
    with pytest.raises(FileError, match="nothing: No such file"):
        Candidates.from_file(tmp_path / "nothing")
    with pytest.raises(FileError, match="Is a directory"):
        Candidates.from_file(tmp_path)


def test_a_list_is_used_as_it_is(tmp_path: Path) -> None:
    """Strings of a list become candidates exactly as they are, while blank lines of a file do not.

    A device can report an empty string or a blank, and in a list such a string is meant. Repeated
    strings are counted once. A lone surrogate or a number is no string that a device can report.
    """
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
    """A single text in place of a list is refused, because Python would iterate over its letters.

    The usual mistake is the name of a file, so the message names `Candidates.from_file`.
    """
    with pytest.raises(ParamsError, match=r"use Candidates.from_file\(path\)"):
        Candidates.from_list(text)
    with pytest.raises(ParamsError, match="got a"):
        read_strings(Candidates.from_stream(lambda: text))


def test_an_object_that_is_no_list_is_refused() -> None:
    """The message names the argument and the type, for example of a population of a simulation."""
    with pytest.raises(ParamsError, match="candidates must be a list of strings, got a Population"):
        Candidates.from_list(Population(["a"], [1]))  # type: ignore[arg-type]


def test_candidates_are_normalised_before_they_are_compared(tmp_path: Path) -> None:
    """Candidates are normalized as devices do, before repeated strings are removed.

    Candidates in memory are distinct. A stream would have to store all strings to be distinct, so a
    repeated string counts as two candidates.
    """
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
    """A product has every prefix with every continuation of `least` to `least + more` characters.

    A discovery tests such continuations of the prefixes that it has kept. The shortest strings come
    first. Characters have one to four bytes in UTF-8.
    """
    letters = "abcß日𝄞"
    continuations_by_length: list[list[str]] = [[""]]
    for _ in range(least + more):
        shorter = continuations_by_length[-1]
        continuations_by_length.append([text + letter for text in shorter for letter in letters])
    product = Candidates.product(["", "é."], letters, least, least + more)
    assert read_strings(product) == [
        prefix + continuation
        for continuations in continuations_by_length[least:]
        for prefix in ("", "é.")
        for continuation in continuations
    ]


def test_a_product_continues_over_the_borders_of_blocks() -> None:
    """A product of 2 * 26^4 strings is complete and in order, although it has many blocks.

    A block is computed from the number of its first string, so an error would repeat or lose
    strings where two blocks meet. The last character changes fastest.
    """
    strings = read_strings(Candidates.product(["x", "yz"], "abcdefghijklmnopqrstuvwxyz", 4, 4))
    assert len(strings) == 2 * 26**4
    assert strings == sorted(strings)
    assert strings[26**4] == "yzaaaa"


@pytest.mark.parametrize(
    ("prefixes", "alphabet", "least", "most", "message"),
    [
        (["a"], "abcdefghij", 0, 9, "got 1,111,111,111"),
        (["a"], "ab", 0, 255, "got 1e77: use"),
        (["a"], "abcdefghijklmnopqrstuvwxyz", 0, 20_000, "got 1e28299: use"),
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


def test_empty_lists_are_joined_in_memory() -> None:
    """An empty list and an empty file stay in memory, so their number is known to be 0."""
    params = Params(k=8, m=2, f=0.5, p=0.25, q=0.75)
    joined = add_to_list([], Candidates.from_list([]), params)
    assert joined.is_in_memory
    assert len(joined) == 0


@given(st.lists(st.text(max_size=3), min_size=1, max_size=5), st.data())
def test_selected_strings_are_joined_in_the_order_of_the_selection(
    strings: list[str], data: st.DataObject
) -> None:
    """A join has selected strings in the order of their indices, also if one is repeated."""
    chosen = data.draw(st.lists(st.sampled_from(range(len(strings))), max_size=5))
    texts = Texts.from_bytes([string.encode() for string in strings])
    selected = texts.select(np.array(chosen, dtype=np.int64))
    assert Texts.join([selected, texts]).to_strings() == [*(strings[i] for i in chosen), *strings]


def test_selected_candidates_of_a_field_stay_whole() -> None:
    """A selection in another order has the same strings as a field of tuples."""
    editors = Candidates.from_list(["ed", "emacs"]).select([1, 0])
    tuples = Candidates.from_fields({"editor": editors, "system": ["mac"]})
    assert tuples.strings == ("emacs\x1fmac", "ed\x1fmac")


def test_a_chain_reads_one_after_the_other() -> None:
    """A chain has the strings of its candidates one after the other, under one normalizer."""
    first, second = Candidates.from_list(["a"]), Candidates.product(["b"], "xy", 1, 1)
    assert read_strings(Candidates.chain(first, second)) == ["a", "bx", "by"]
    with pytest.raises(ParamsError, match="one normalizer"):
        Candidates.chain(first, Candidates.from_list(["a"], normalize="nfc"))


@given(st.lists(st.sampled_from(["a", "ä", "", "b", "c" * 70]), max_size=8), st.data())
def test_cells_equal_those_of_the_hashed_strings(strings: list[str], data: st.DataObject) -> None:
    """A range and a selection of candidates have the cells of their strings.

    A cell is the number of a bit of a cohort. A decode computes the cells of ranges of candidates,
    and of the candidates that the screening has selected, in any order.
    """
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
        all_cells = compute_cells(words, params)
        cells_of_ranges = [
            candidates.compute_cells(params, 0, 2),
            candidates.compute_cells(params, 2, len(expected)),
        ]
        assert np.array_equal(np.concatenate(cells_of_ranges), all_cells)
