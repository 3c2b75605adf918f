"""Candidates by the stream: the strings of a list, in blocks, hashed as on a device."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.candidates.candidates import Candidates
from rappor.candidates.hashing import bloom_cells, digest_strings
from rappor.candidates.murmur3 import add_rows
from rappor.candidates.sha256 import digest_texts
from rappor.candidates.stream import CandidateStream
from rappor.candidates.texts import Texts
from rappor.ground.errors import FileError, ParamsError, ReportError
from rappor.protocol.params import Params


def strings_of(stream: CandidateStream) -> list[str]:
    return [text for block in stream.blocks() for text in block.pick()]


@given(
    st.lists(st.sampled_from(["a", "é b", " ", "", "\r", "\t", "\u3000", "x\r", "日本", "\x85"])),
    st.integers(1, 5),
    st.sampled_from(["", "\n"]),
)
def test_lines_cut_anywhere_are_those_of_a_list(lines: list[str], cut: int, end: str) -> None:
    """Byte-order mark, line ends and blank lines mean the same in a stream and in a list."""
    data = b"\xef\xbb\xbf" + ("\n".join(lines) + end).encode()
    chunks = [data[:3], *(data[at : at + cut] for at in range(3, len(data), cut))]
    stream = CandidateStream.from_chunks(lambda: chunks)
    listed = Candidates.from_lines(data.split(b"\n"))
    assert tuple(dict.fromkeys(strings_of(stream))) == listed.strings


@pytest.mark.parametrize("name", ["words.txt", "words.txt.gz"])
def test_a_file_is_read_again_and_again(tmp_path: Path, name: str) -> None:
    """Packed or not, every pass begins at the first line."""
    data = "".join(f"word {i}\n" for i in range(200_000)).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    stream = CandidateStream.from_file(path)
    assert strings_of(stream) == strings_of(stream) == data.decode().split("\n")[:-1]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    """The error has the file and the line, also where an earlier block was good."""
    path = tmp_path / "words.txt"
    path.write_bytes(b"good\n" * 300_000 + b"\xff\n")
    with pytest.raises(FileError, match="line 300001: it is not UTF-8"):
        strings_of(CandidateStream.from_file(path))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    """What is missing of a packed file is no candidate less, but an error."""
    path = tmp_path / "words.gz"
    path.write_bytes(gzip.compress(b"word\n" * 1000)[:-12])
    with pytest.raises(FileError, match="cannot be unpacked"):
        strings_of(CandidateStream.from_file(path))
    with pytest.raises(FileError):
        CandidateStream.from_file(tmp_path / "none.txt")


def test_strings_are_normalised_as_on_the_devices(tmp_path: Path) -> None:
    """From a file as from a function."""
    path = tmp_path / "words.txt"
    path.write_text("Straße\nGRÜN\n", encoding="utf-8")
    stream = CandidateStream.from_file(path, normalize="casefold")
    again = CandidateStream.from_strings(lambda: iter(["Straße", "GRÜN"]), normalize="casefold")
    assert strings_of(stream) == strings_of(again) == ["strasse", "grün"]
    assert (stream.normalize, again.normalize) == ("casefold", "casefold")


def test_what_can_be_read_only_once_is_refused() -> None:
    """A decode needs several passes; a text is no list of strings."""
    with pytest.raises(ParamsError, match="read several times"):
        CandidateStream.from_strings(text for text in "ab")
    with pytest.raises(ParamsError, match="got one str"):
        CandidateStream.from_strings("ab")
    with pytest.raises(ReportError):
        strings_of(CandidateStream.from_strings(["\ud800"]))


def test_a_product_has_every_continuation_once() -> None:
    """Also of characters of several bytes, and across the blocks' borders."""
    letters = "abcdefghijklmnopqrstuvwxyzäß日𝄞"
    stream = CandidateStream.product(["", "é."], letters, 0, 3)
    found = strings_of(stream)
    expected = [
        head + tail
        for tails in (
            [""],
            list(letters),
            [a + b for a in letters for b in letters],
            [a + b + c for a in letters for b in letters for c in letters],
        )
        for head in ("", "é.")
        for tail in tails
    ]
    assert found == expected


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
    """Too many strings are refused with their number, before any is made."""
    with pytest.raises(ParamsError, match=message):
        CandidateStream.product(prefixes, alphabet, least, most)


def test_a_chain_reads_one_stream_after_the_other() -> None:
    """Streams under different normalizers do not go together."""
    one = CandidateStream.from_strings(["a"])
    two = CandidateStream.product(["b"], "xy", 1, 1)
    assert strings_of(CandidateStream.chain(one, two)) == ["a", "bx", "by"]
    with pytest.raises(ParamsError, match="one normalizer"):
        CandidateStream.chain(one, CandidateStream.from_strings(["a"], normalize="nfc"))


def test_only_a_short_stream_is_held() -> None:
    """A long one is given up after a few strings more."""
    stream = CandidateStream.from_strings([f"{i}" for i in range(100)])
    held = stream.hold(100)
    assert held is not None
    assert len(held) == 100
    assert stream.hold(99) is None


def test_compiled_sha256_is_that_of_the_standard_library() -> None:
    """Of every length up to some blocks, wherever it lies among others."""
    values = [bytes(range(n % 251)) * (1 + n // 251) for n in range(400)]
    expected = digest_strings(values)
    assert np.array_equal(digest_texts(Texts.of(values)).T, expected)
    some = np.array([399, 3, 55, 56, 57, 0])
    assert np.array_equal(digest_texts(Texts.of(values).take(some)).T, expected[some])


@pytest.mark.parametrize(("k", "h", "m"), [(2, 1, 1), (7, 3, 5), (128, 1, 128), (2040, 16, 2)])
def test_rows_are_added_up_as_the_bits_say(k: int, h: int, m: int) -> None:
    """A bit that two hashes of a cohort set counts once."""
    params = Params(k=k, h=h, m=m, f=0.2, p=0.3, q=0.6)
    values = [f"value {i}".encode() for i in range(700)]
    words = digest_strings(values)
    table = np.random.default_rng(1).integers(-1000, 1000, size=(m * k, 2)).astype(float)
    sums = np.zeros((len(values), 2))
    add_rows(np.ascontiguousarray(words.T), params, table, sums)
    padded = np.vstack([table, np.zeros((1, 2))])
    assert np.array_equal(sums, padded[bloom_cells(words, params)].sum(axis=1))
