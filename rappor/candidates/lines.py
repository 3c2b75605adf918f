"""The lines of a file of candidates, in blocks of bytes."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rappor.candidates.texts import Texts
from rappor.ground.errors import FileError, ReportError
from rappor.ground.files import is_wide, not_utf_8
from rappor.protocol.normalizers import normalize as normalize_text

_CHUNK: Final = 1 << 20
"""Bytes read from a file at a time."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_NEWLINE, _RETURN = 10, 13
_SPACES: Final = np.isin(
    np.arange(256), [chr(code).encode()[0] for code in range(0x3001) if chr(code).isspace()]
)
"""(256,) bool. Bytes with which white space begins; there is none beyond U+3000."""


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


class Lines:
    """Lines in blocks of bytes that may be cut anywhere; `n_blank` are the last pass's blank ones.

    `read` is called for every pass. FileError names the line that is not UTF-8.
    """

    def __init__(self, read: Callable[[], Iterable[bytes]], name: str, normalize: str) -> None:
        self._read = read
        self._name = name
        self._normalize = normalize
        self.n_blank = 0

    def __call__(self) -> Iterator[Texts]:
        """Read from the beginning."""
        self.n_blank = 0
        rest, number = b"", 0
        for chunk in itertools.chain(self._read(), [None]):
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
            raise self._bad(whole, number, error.start, not_utf_8(whole)) from None
        if is_wide(whole):
            raise self._bad(whole, number, 0, not_utf_8(whole))
        data = np.frombuffer(whole, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if data[-1] != _NEWLINE:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        filled = ends > starts
        returned = filled & (data[np.maximum(ends - 1, 0)] == _RETURN)
        ends = ends - returned
        filled = ends > starts
        maybe = np.flatnonzero(filled)
        maybe = maybe[_SPACES[data[starts[maybe]]]]
        for i in maybe.tolist():
            filled[i] = not whole[starts[i] : ends[i]].decode().isspace()
        return Texts(data=data, starts=starts[filled], ends=ends[filled])

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
