r"""Lines of a file of candidates, one candidate in each line, read in blocks of bytes.

A candidate is a string whose share an analyst estimates. The input is a file of any size, read in
chunks. The output is blocks of normalized strings (`Texts`): a normalizer maps different spellings
to one spelling, as devices do before they report.

Lines end at \n, \r\n or \r. Three kinds of lines are counted for a warning, because such a line is
usually a mistake in the file:

- A blank line contains only white space of ASCII, or nothing. It is skipped.
- A spaced line begins or ends with white space. It becomes a candidate with its white space, unless
  the normalizer removes white space.
- A marked line begins with a byte-order mark and is not the first line. It appears where two files
  were joined. It becomes a candidate with the mark, and hardly any device reports such a string.

A metric of tuples has fields. Each line then contains one text for each field. The texts are
separated by tabs, or by U+001F as in results. The candidate is the normalized texts, joined by
U+001F.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.atomic_files import describe_wrong_encoding, is_utf_16
from rappor.base.errors import FileError, ReportError
from rappor.base.text_lines import WHITE_SPACE
from rappor.candidates.texts import Texts
from rappor.protocol.normalizers import FIELD_SEPARATOR
from rappor.protocol.normalizers import normalize as normalize_text

_CHUNK_BYTES: Final = 1 << 20
"""Number of bytes that are read from a file at a time: 1 MiB. A larger number needs more memory,
and a smaller number more calls of numpy."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""U+FEFF in UTF-8. Some editors write the mark at the beginning of a file."""

_GZIP: Final = b"\x1f\x8b"
"""First two bytes of a file that is packed by gzip."""

_NEWLINE: Final = 10
"""The byte \\n as a number, for comparison with an array of bytes. `_convert_newlines` replaces all
other line ends by this byte, so no other byte separates lines."""

_TAB: Final = 9
"""Separates the fields of a tuple in files that people write."""

_UNIT_SEPARATOR: Final = ord(FIELD_SEPARATOR)
"""The byte U+001F separates the fields of a tuple in results."""

_IS_ASCII_SPACE: Final = np.isin(np.arange(256), list(WHITE_SPACE.encode()))
"""(256,) bool. True for the byte values that are white space of ASCII."""

_WIDE_SPACE: Final = b"|".join(
    re.escape(chr(code).encode()) for code in range(128, 0x3001) if chr(code).isspace()
)
_WIDE_EDGES: Final = re.compile(b"(?m)^(?:%b)|(?:%b)$" % (_WIDE_SPACE, _WIDE_SPACE))
"""Matches white space beyond ASCII, such as U+00A0, at the beginning or end of a line. Such a line
is counted as spaced, and never as blank."""

_LATER_MARK: Final = re.compile(b"(?m)^" + _BYTE_ORDER_MARK)


def read_chunks(path: str) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if the file is packed by gzip.

    Raises
    ------
    FileError
        The file cannot be read or unpacked.
    """
    try:
        with Path(path).open("rb") as raw:
            is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            file = gzip.GzipFile(fileobj=raw) if is_packed else raw
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"it cannot be unpacked: {error}"
        raise FileError(path, reason) from None


def _convert_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield chunks in which every line ends at \n instead of \r\n or \r."""
    # A \r at the end of a chunk is withheld, because its \n may be the first byte of the next one.
    has_withheld_return = False
    for chunk in chunks:
        data = b"\r" + chunk if has_withheld_return else chunk
        has_withheld_return = data.endswith(b"\r")
        data = data.removesuffix(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield data
    if has_withheld_return:
        yield b"\n"


class CandidateLines:
    """Reader of lines from chunks of bytes. Each call of the object reads from the start.

    A chunk may end in the middle of a line or of a character.

    Parameters
    ----------
    read : returns the chunks. It is called for every pass.
    name : name of the file, for error messages.
    normalize : name of the normalizer.
    field_names : names of the fields of a metric of tuples; empty for other metrics.

    Attributes
    ----------
    n_blank, n_spaced, n_marked : numbers of blank, spaced and marked lines of the last pass, as the
        module defines them.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[bytes]],
        name: str,
        normalize: str,
        field_names: Sequence[str] = (),
    ) -> None:
        self._read = read
        self._name = name
        self._normalize = normalize
        self._field_names = field_names
        # If the normalizer removes white space, a spaced line is no mistake and is not counted.
        spaced = FIELD_SEPARATOR.join([" a"] * max(1, len(field_names)))
        self._keeps_space = normalize_text(normalize, spaced) == spaced
        self.n_blank = self.n_spaced = self.n_marked = 0

    def __call__(self) -> Iterator[Texts]:
        """Yield blocks of normalized candidates.

        Raises
        ------
        FileError
            A line is not UTF-8 or cannot be normalized. The error contains the line.
        """
        self.n_blank = self.n_spaced = self.n_marked = 0
        # `unfinished` is the beginning of a line whose end is in a later chunk. `n_lines_before` is
        # the number of lines before the block, for error messages.
        unfinished, n_lines_before = b"", 0
        for chunk in itertools.chain(_convert_newlines(self._read()), [None]):
            if chunk is None:
                # The end of the file. The last line may have no newline.
                block, unfinished = unfinished, b""
            else:
                head, newline, tail = chunk.rpartition(b"\n")
                # Case: a line that is longer than a chunk.
                if not newline:
                    unfinished += chunk
                    continue
                block, unfinished = b"".join((unfinished, head, newline)), tail
            if n_lines_before == 0:
                block = block.removeprefix(_BYTE_ORDER_MARK)
            if block:
                texts = self._split_lines(block, n_lines_before)
                n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
                self.n_blank += n_lines - len(texts)
                yield self._normalize_lines(texts, block, n_lines_before)
                n_lines_before += n_lines

    def _split_lines(self, block: bytes, n_lines_before: int) -> Texts:
        """Return the lines of a block without its blank lines; count spaced and marked lines.

        Raises
        ------
        FileError
            The block is not UTF-8, or looks like UTF-16.
        """
        try:
            block.decode()
        except UnicodeDecodeError as error:
            reason = describe_wrong_encoding(block)
            raise self._build_error(block, n_lines_before, error.start, reason) from None
        # Case: a file in UTF-16 with ASCII characters. It is valid UTF-8 with a zero byte beside
        # each character, so decoding raises no error.
        if is_utf_16(block):
            reason = describe_wrong_encoding(block)
            raise self._build_error(block, n_lines_before, 0, reason)
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if data[-1] != _NEWLINE:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        if self._field_names:
            data = _separate_fields(data, starts)
        is_filled = ends > starts
        # A line with bytes can be blank only if it begins with white space. Such lines are few, so
        # a Python loop checks them.
        suspects = np.flatnonzero(is_filled)
        # Tabs between fields are white space, too: a line of tabs alone is blank.
        raw = np.frombuffer(block, dtype=np.uint8)
        suspects = suspects[_IS_ASCII_SPACE[raw[starts[suspects]]]]
        for line in suspects.tolist():
            is_filled[line] = not block[starts[line] : ends[line]].isspace()
        starts, ends = starts[is_filled], ends[is_filled]
        is_spaced = _IS_ASCII_SPACE[data[starts]] | _IS_ASCII_SPACE[data[ends - 1]]
        if not block.isascii():
            # An edge belongs to the last line that starts at or before the edge.
            edges = [edge.start() for edge in _WIDE_EDGES.finditer(block)]
            is_spaced[np.searchsorted(starts, edges, side="right") - 1] = True
            self.n_marked += len(_LATER_MARK.findall(block))
        self.n_spaced += int(np.count_nonzero(is_spaced)) if self._keeps_space else 0
        return Texts(data=data, starts=starts, ends=ends)

    def _normalize_lines(self, texts: Texts, block: bytes, n_lines_before: int) -> Texts:
        """Normalize every line as devices normalize values."""
        if self._field_names:
            self._check_fields(texts, block, n_lines_before)
        if self._normalize == "none":
            return texts
        normal = []
        for start, text in zip(texts.starts.tolist(), texts.to_strings(), strict=True):
            try:
                normal.append(normalize_text(self._normalize, text).encode())
            except ReportError as error:
                raise self._build_error(block, n_lines_before, start, str(error)) from None
        return Texts.from_bytes(normal)

    def _check_fields(self, texts: Texts, block: bytes, n_lines_before: int) -> None:
        """Raise FileError unless every line has one text for each field."""
        # The number of separators before each byte of the block.
        before = np.concatenate([[0], np.cumsum(texts.data == _UNIT_SEPARATOR)])
        n_fields = before[texts.ends] - before[texts.starts] + 1
        wrong = np.flatnonzero(n_fields != len(self._field_names))
        if len(wrong):
            names = ", ".join(self._field_names)
            reason = (
                f"it must have {len(self._field_names)} fields separated by tabs ({names}), "
                f"got {n_fields[wrong[0]]}"
            )
            start = int(texts.starts[wrong[0]])
            raise self._build_error(block, n_lines_before, start, reason)

    def _build_error(
        self, block: bytes, n_lines_before: int, offset: int, reason: str
    ) -> FileError:
        """Return a FileError for the line of a block that contains the byte `offset`."""
        line = n_lines_before + block.count(b"\n", 0, offset) + 1
        return FileError(self._name, reason, line=line)


def _separate_fields(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a block whose fields are separated by U+001F instead of tabs.

    A line that contains U+001F comes from a result. A tab in it is part of a field.

    Parameters
    ----------
    data : (number of bytes,) bytes of the block.
    starts : (number of lines,) index of the first byte of each line.
    """
    tabs = np.flatnonzero(data == _TAB)
    separators = np.flatnonzero(data == _UNIT_SEPARATOR)
    has_separator = np.zeros(len(starts), dtype=np.bool_)
    has_separator[np.searchsorted(starts, separators, side="right") - 1] = True
    lines_of_tabs = np.searchsorted(starts, tabs, side="right") - 1
    separated = data.copy()
    separated[tabs[~has_separator[lines_of_tabs]]] = _UNIT_SEPARATOR
    return separated
