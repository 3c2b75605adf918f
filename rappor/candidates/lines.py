"""The lines of a file of candidates, in blocks of bytes."""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rappor.base.atomic_files import describe_wrong_encoding, is_utf_16
from rappor.base.errors import FileError, ReportError
from rappor.base.text_lines import WHITE_SPACE
from rappor.candidates.texts import Texts
from rappor.protocol.normalizers import normalize as normalize_text

_CHUNK: Final = 1 << 20
"""Bytes read from a file at a time."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_NEWLINE: Final = 10
_SPACES: Final = np.isin(np.arange(256), list(WHITE_SPACE.encode()))
"""(256,) bool. The bytes that are white space; others are part of a string at its ends, too."""

_WIDE_SPACE: Final = b"|".join(
    re.escape(chr(code).encode()) for code in range(128, 0x3001) if chr(code).isspace()
)
_WIDE_EDGES: Final = re.compile(b"(?m)^(?:%b)|(?:%b)$" % (_WIDE_SPACE, _WIDE_SPACE))
"""White space beyond ASCII, as U+00A0, with which a line begins or ends."""

_LATER_MARK: Final = re.compile(b"(?m)^" + _BYTE_ORDER_MARK)


def read_chunks(path: str) -> Iterator[bytes]:
    """Read a file, unpacking it if it is packed by gzip; FileError if it cannot be read."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := file.read(_CHUNK):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"it cannot be unpacked: {error}"
        raise FileError(path, reason) from None


def _end_with_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks whose lines all end at LF, also where CR LF or CR ended them."""
    is_returned = False  # whether a CR is withheld: the LF that belongs to it may be the next byte
    for chunk in chunks:
        data = b"\r" + chunk if is_returned else chunk
        is_returned = data.endswith(b"\r")
        data = data.removesuffix(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield data
    if is_returned:
        yield b"\n"


class Lines:
    """Lines in blocks of bytes that may be cut anywhere. They end at LF, CR LF or CR.

    `read` is called for every pass. FileError names the line that is not UTF-8. Of the last pass,
    `n_blank` lines had nothing but white space and were left out. `n_spaced` begin or end with
    white space, and `n_marked` after the first begin with a byte-order mark, as where two files
    were joined. Both kinds are strings as they are, which hardly any device reports.
    """

    def __init__(self, read: Callable[[], Iterable[bytes]], name: str, normalize: str) -> None:
        self._read = read
        self._name = name
        self._normalize = normalize
        self._keeps_space = normalize_text(normalize, " a") == " a"
        self.n_blank = self.n_spaced = self.n_marked = 0

    def __call__(self) -> Iterator[Texts]:
        """Read from the beginning."""
        self.n_blank = self.n_spaced = self.n_marked = 0
        rest, number = b"", 0
        for chunk in itertools.chain(_end_with_newlines(self._read()), [None]):
            if chunk is None:
                whole, rest = rest, b""
            else:
                head, newline, tail = chunk.rpartition(b"\n")
                if not newline:
                    rest += chunk
                    continue
                whole, rest = b"".join((rest, head, newline)), tail
            if number == 0:
                whole = whole.removeprefix(_BYTE_ORDER_MARK)
            if whole:
                texts = self._split(whole, number)
                n_lines = whole.count(b"\n") + (not whole.endswith(b"\n"))
                self.n_blank += n_lines - len(texts)
                number += n_lines
                yield self._normalized(texts, whole, number - n_lines)

    def _split(self, whole: bytes, number: int) -> Texts:
        """Return the lines of some bytes that are no blank ones; check that they are text."""
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            raise self._bad(whole, number, error.start, describe_wrong_encoding(whole)) from None
        if is_utf_16(whole):
            raise self._bad(whole, number, 0, describe_wrong_encoding(whole))
        data = np.frombuffer(whole, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if data[-1] != _NEWLINE:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        filled = ends > starts
        maybe = np.flatnonzero(filled)
        maybe = maybe[_SPACES[data[starts[maybe]]]]
        for i in maybe.tolist():
            filled[i] = not whole[starts[i] : ends[i]].isspace()
        starts, ends = starts[filled], ends[filled]
        spaced = _SPACES[data[starts]] | _SPACES[data[ends - 1]]
        if not whole.isascii():
            edges = [edge.start() for edge in _WIDE_EDGES.finditer(whole)]
            spaced[np.searchsorted(starts, edges, side="right") - 1] = True
            self.n_marked += len(_LATER_MARK.findall(whole))
        self.n_spaced += int(np.count_nonzero(spaced)) if self._keeps_space else 0
        return Texts(data=data, starts=starts, ends=ends)

    def _normalized(self, texts: Texts, whole: bytes, number: int) -> Texts:
        """Write every string as the devices do."""
        if self._normalize == "none":
            return texts
        normal = []
        for start, text in zip(texts.starts.tolist(), texts.pick(), strict=True):
            try:
                normal.append(normalize_text(self._normalize, text).encode())
            except ReportError as error:
                raise self._bad(whole, number, start, str(error)) from None
        return Texts.of(normal)

    def _bad(self, whole: bytes, number: int, at: int, reason: str) -> FileError:
        return FileError(self._name, reason, line=number + whole.count(b"\n", 0, at) + 1)
