"""Candidates that are read block by block, as often as a decode needs them, and never held."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rappor.candidates import product
from rappor.candidates.candidates import Candidates
from rappor.candidates.texts import Texts
from rappor.ground.errors import FileError, ParamsError, ReportError
from rappor.protocol.normalizers import normalize as normalize_text

_CHUNK: Final = 1 << 20
"""Bytes read from a file at a time."""

_BLOCK: Final = 1 << 16
"""Strings of an iterable that make a block."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_NEWLINE, _RETURN = 10, 13
_SPACES: Final = np.isin(
    np.arange(256), [chr(code).encode()[0] for code in range(0x3001) if chr(code).isspace()]
)
"""(256,) bool. Bytes with which white space begins; there is none beyond U+3000."""


class CandidateStream:
    """Strings in their order, to be read several times.

    `from_file`, `from_chunks`, `from_strings`, `product` and `chain` make one. Repeated strings are
    not noticed here: a decode keeps one of them, and counts each as a candidate.

    Attributes
    ----------
    name : where the strings come from, for messages.
    normalize : the normalizer's name.
    """

    __slots__ = ("_read", "name", "normalize")

    def __init__(self, read: Callable[[], Iterator[Texts]], *, name: str, normalize: str) -> None:
        """Take a function that starts reading from the beginning."""
        self._read = read
        self.name = name
        self.normalize = normalize

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, normalize: str = "none") -> CandidateStream:
        """Read a UTF-8 file of one candidate a line, also packed by gzip; see `from_chunks`.

        Raises
        ------
        FileError
            The file cannot be read: now, or later its rest.
        """
        name = os.fspath(path)
        for _ in _chunks(name):
            break
        return cls.from_chunks(lambda: _chunks(name), name=name, normalize=normalize)

    @classmethod
    def from_chunks(
        cls,
        read: Callable[[], Iterable[bytes]],
        *,
        name: str = "candidates",
        normalize: str = "none",
    ) -> CandidateStream:
        r"""Take lines in blocks of bytes, which may be cut anywhere.

        `read` is called for every pass. Lines are those of `Candidates.from_lines`: they end with
        \n, \r\n or nothing, blank ones are skipped, and spaces are part of a candidate.

        Raises
        ------
        FileError
            While it is read: a line is not UTF-8. The message has name and line.
        """
        return cls(lambda: _lines(read(), name, normalize), name=name, normalize=normalize)

    @classmethod
    def from_strings(
        cls,
        strings: Iterable[str] | Callable[[], Iterable[str]],
        *,
        name: str = "candidates",
        normalize: str = "none",
    ) -> CandidateStream:
        """Take strings one by one, from what can be read again: a list, or a function.

        Raises
        ------
        ParamsError
            It is one text, or can be read only once, as a generator.
        ReportError
            While it is read: a string is not a text, or has a lone surrogate.
        """
        if isinstance(strings, str | bytes):
            raise ParamsError(f"candidates must be strings, got one {type(strings).__name__}")
        if not callable(strings) and iter(strings) is strings:
            raise ParamsError(
                "candidates are read several times, got an iterator that ends: "
                "give a list, or a function that returns a new iterator"
            )
        read = strings if callable(strings) else lambda: strings
        return cls(lambda: _blocks(read(), normalize), name=name, normalize=normalize)

    @classmethod
    def product(
        cls,
        prefixes: Iterable[str],
        alphabet: str,
        least: int,
        most: int,
        *,
        name: str = "product",
        normalize: str = "none",
    ) -> CandidateStream:
        """Continue every prefix by `least` to `most` characters of an alphabet, in all ways.

        The shortest come first. Every string is taken as it is: the normalizer's name only says
        what the devices used.

        Raises
        ------
        ParamsError
            A character comes twice, `least` is negative or above `most`, or there are more strings
            than 1e9; the message has their number.

        Examples
        --------
        >>> stream = CandidateStream.product(["a", "b"], "xy", 0, 1)
        >>> [text for block in stream.blocks() for text in block.pick()]
        ['a', 'b', 'ax', 'ay', 'bx', 'by']
        """
        parts = product.Product.of(prefixes, alphabet, least, most)
        return cls(parts.blocks, name=name, normalize=normalize)

    @classmethod
    def chain(cls, *streams: CandidateStream) -> CandidateStream:
        """Read one stream after the other; all have one normalizer, or ParamsError is raised."""
        names = {stream.normalize for stream in streams}
        if len(names) != 1:
            raise ParamsError(f"streams must share one normalizer, got {sorted(names)}")
        return cls(
            lambda: itertools.chain.from_iterable(stream.blocks() for stream in streams),
            name=", ".join(stream.name for stream in streams),
            normalize=names.pop(),
        )

    def __repr__(self) -> str:
        return f"CandidateStream({self.name!r}, normalize={self.normalize!r})"

    def blocks(self) -> Iterator[Texts]:
        """Read from the beginning; raises as the method that made the stream says."""
        return self._read()

    def hold(self, most: int) -> Candidates | None:
        """Return all strings if there are at most `most`, else None after reading a few more."""
        strings: list[str] = []
        for block in self.blocks():
            if len(strings) + len(block) > most:
                return None
            strings += block.pick()
        # They are as the devices have them: a prefix of a normalised string may be no such string.
        distinct = tuple(dict.fromkeys(strings))
        return Candidates(
            distinct,
            normalize=self.normalize,
            n_blank=0,
            n_duplicates=len(strings) - len(distinct),
        )


def _chunks(path: str) -> Iterator[bytes]:
    """Read a file, unpacking it if it is packed."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := file.read(_CHUNK):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"it cannot be unpacked: {error}"
        raise FileError(path, reason) from None


def _lines(chunks: Iterable[bytes], name: str, normalize: str) -> Iterator[Texts]:
    """Cut blocks of bytes into lines."""
    rest, number = b"", 0
    for chunk in itertools.chain(chunks, [None]):
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
            yield _normalized(_split(whole, name, number), whole, name, number, normalize)
        number += whole.count(b"\n")


def _split(whole: bytes, name: str, number: int) -> Texts:
    """Return the lines of some bytes that are no blank ones; check that they are UTF-8."""
    try:
        whole.decode()
    except UnicodeDecodeError as error:
        line = number + whole.count(b"\n", 0, error.start) + 1
        raise FileError(name, "it is not UTF-8", line=line) from None
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


def _normalized(texts: Texts, whole: bytes, name: str, number: int, normalize: str) -> Texts:
    """Write every string as the devices do."""
    if normalize == "none":
        return texts
    normal = []
    for start, text in zip(texts.starts.tolist(), texts.pick(), strict=True):
        try:
            normal.append(normalize_text(normalize, text).encode())
        except ReportError as error:
            line = number + whole.count(b"\n", 0, start) + 1
            raise FileError(name, str(error), line=line) from None
    return Texts.of(normal)


def _blocks(strings: Iterable[str], normalize: str) -> Iterator[Texts]:
    texts = iter(strings)
    while block := list(itertools.islice(texts, _BLOCK)):
        yield Texts.of([normalize_text(normalize, text).encode() for text in block])
