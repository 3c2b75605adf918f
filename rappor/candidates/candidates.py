"""Candidates: the strings whose frequencies a decode estimates, as blocks of bytes."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import DecodeError, FileError, ParamsError
from rappor.candidates import google_hashing, product
from rappor.candidates.few import FEW, few_cells
from rappor.candidates.lines import Lines, read_chunks
from rappor.candidates.sha256 import digest_texts
from rappor.candidates.texts import Texts
from rappor.protocol.encodings.bloom import LAYOUT
from rappor.protocol.normalizers import normalize as normalize_text
from rappor.protocol.params import Params

_HELD: Final = 1 << 26
"""Bytes of a file up to which it is held: some five million strings, with as much for their hashes.
A longer one is read again for every pass."""

_BLOCK: Final = 1 << 14
"""Strings of a block."""


class Candidates:
    """Strings in their order, as the devices normalise them.

    `from_file`, `from_lines`, `from_list`, `from_stream`, `product` and `chain` make them. They are
    bytes and become texts of Python only where somebody looks at them. Lists, lines and files of up
    to 64 MB are held, each string once. All others are read again for every pass of a decode,
    repeated strings included. An empty list is allowed here; a decode refuses it.

    Attributes
    ----------
    name : where the strings come from, for messages.
    normalize : the normalizer's name.
    n_blank : lines of nothing but white space, which were skipped; 0 where they are not held.
    n_duplicates : repeated strings, which were skipped.
    n_spaced, n_marked : lines that begin or end with white space, or begin with a byte-order mark
        after the first line. They are strings as they are. 0 where they are not held.
    """

    __slots__ = (
        *("_read", "_texts", "_words", "name", "normalize"),
        *("n_blank", "n_duplicates", "n_marked", "n_spaced"),
    )

    def __init__(
        self,
        source: Texts | Callable[[], Iterator[Texts]],
        *,
        name: str = "candidates",
        normalize: str = "none",
        words: NDArray[np.uint32] | None = None,
    ) -> None:
        """Take distinct strings, perhaps with their digests, or what reads blocks of strings."""
        self._texts = source if isinstance(source, Texts) else None
        self._read = None if isinstance(source, Texts) else source
        self._words = words
        self.name, self.normalize = name, normalize
        self.n_blank = self.n_duplicates = self.n_spaced = self.n_marked = 0

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, normalize: str = "none") -> Candidates:
        """Read a UTF-8 file of one candidate a line, also packed by gzip; see `from_lines`.

        Raises FileError, with path and line, where the file or a line cannot be read; of a file
        that is not held a decode raises it.
        """
        name = os.fspath(path)
        lines = Lines(lambda: read_chunks(name), name, normalize)
        most = _HELD if Path(name).is_file() else sys.maxsize  # a pipe is read only once
        is_long = most == _HELD and Path(name).stat().st_size > most
        texts = None if is_long else _join(lines(), lambda block: len(block.data), most)
        if texts is None:
            return cls(lines, name=name, normalize=normalize)
        return cls._once(texts, name=name, normalize=normalize).with_notes_of(lines)

    @classmethod
    def from_lines(
        cls, lines: Iterable[str | bytes], *, name: str = "standard input", normalize: str = "none"
    ) -> Candidates:
        r"""Read one candidate a line, of any length, ending with \n, \r\n, \r or nothing.

        Spaces are part of a candidate unless the normalizer says otherwise. Lines that have
        nothing but the white space of ASCII are skipped. A byte-order mark is tolerated on the
        first line. `n_blank`, `n_spaced`, `n_marked` and `n_duplicates` of the result say how many
        lines were skipped, begin or end with white space, begin with a later mark, or came again.

        Raises FileError, with name and line, where a line is not UTF-8 or has a lone surrogate.
        """
        read = Lines(lambda: _encoded(lines, name), name, normalize)
        texts = Texts.join(list(read()))
        return cls._once(texts, name=name, normalize=normalize).with_notes_of(read)

    @classmethod
    def from_list(cls, strings: Iterable[str], *, normalize: str = "none") -> Candidates:
        """Take strings as they are, from a list, a column or any iterable.

        An empty string is a candidate, too. Raises ParamsError for one text in place of a list, and
        ReportError where a string is not a text, or has a lone surrogate.
        """
        texts = Texts.join(list(_blocks(strings, normalize)))
        return cls._once(texts, name="candidates", normalize=normalize)

    @classmethod
    def from_stream(
        cls, read: Callable[[], Iterable[str]], *, normalize: str = "none"
    ) -> Candidates:
        """Take strings from a function that returns a new iterator for every pass.

        While it is read, a decode raises the errors of `from_list`.
        """
        return cls(lambda: _blocks(read(), normalize), normalize=normalize)

    @classmethod
    def product(
        cls,
        prefixes: Iterable[str],
        alphabet: str,
        least: int,
        most: int,
        *,
        normalize: str = "none",
    ) -> Candidates:
        """Continue every prefix by `least` to `most` characters of an alphabet, in all ways.

        The shortest come first. Every string is taken as it is: the normalizer's name only says
        what the devices used. Raises ParamsError where a character comes twice, `least` is negative
        or above `most`, or there are more strings than 1e9.

        >>> found = Candidates.product(["a", "b"], "xy", 0, 1)
        >>> [text for block in found.blocks() for text in block.pick()]
        ['a', 'b', 'ax', 'ay', 'bx', 'by']
        """
        parts = product.Product.of(prefixes, alphabet, least, most)
        return cls(parts.blocks, name="product", normalize=normalize)

    @classmethod
    def chain(cls, *parts: Candidates) -> Candidates:
        """Read one after the other; all have one normalizer, or ParamsError is raised."""
        names = {part.normalize for part in parts}
        if len(names) != 1:
            raise ParamsError(f"candidates must share one normalizer, got {sorted(names)}")
        return cls(
            lambda: itertools.chain.from_iterable(part.blocks() for part in parts),
            name=", ".join(part.name for part in parts),
            normalize=names.pop(),
        )

    @classmethod
    def _once(cls, texts: Texts, *, name: str, normalize: str) -> Candidates:
        """Hold strings, each once, at the place of the first."""
        words = digest_texts(texts)
        heads = words.view(np.uint64)[:, 0]
        order = np.argsort(heads, kind="stable")
        heads = heads[order]
        again = np.flatnonzero(heads[1:] == heads[:-1]) + 1
        again = again[(words[order[again]] == words[order[again - 1]]).all(axis=1)]
        if len(again):
            kept = np.sort(np.delete(order, again))
            texts, words = texts.take(kept), words[kept]
        held = cls(texts, name=name, normalize=normalize, words=words)
        held.n_duplicates = len(again)
        return held

    def with_notes_of(self, read: Lines | Candidates) -> Candidates:
        """Take over what was counted while the lines were read; return the candidates."""
        self.n_blank, self.n_spaced, self.n_marked = read.n_blank, read.n_spaced, read.n_marked
        return self

    @property
    def is_held(self) -> bool:
        """Whether all strings are in memory, so that their number is known."""
        return self._texts is not None

    @property
    def strings(self) -> tuple[str, ...]:
        """All strings; DecodeError where they are not held."""
        return tuple(self._whole.pick())

    def __len__(self) -> int:
        return len(self._whole)

    def __repr__(self) -> str:
        number = f"n={len(self)}" if self.is_held else repr(self.name)
        return f"Candidates({number}, normalize={self.normalize!r})"

    def blocks(self) -> Iterator[Texts]:
        """Read from the beginning; raises as the method that made the candidates says."""
        if self._read is not None:
            return self._read()
        starts = range(0, len(self), _BLOCK)
        return (self._whole.take(slice(start, start + _BLOCK)) for start in starts)

    def digested(self) -> Iterator[tuple[Texts, NDArray[np.uint32] | None]]:
        """Read from the beginning, with the digests of each block, (b, 4), where they are held."""
        start = 0
        for texts in self.blocks():
            some = slice(start, start := start + len(texts))
            yield texts, self._known_words[some] if self.is_held else None

    def hold(self, most: int) -> Candidates | None:
        """Return all strings, each once, if there are at most `most`; else None, soon."""
        if self.is_held:
            return self if len(self) <= most else None
        if (texts := _join(self.blocks(), len, most)) is None:
            return None
        return self._once(texts, name=self.name, normalize=self.normalize)

    def subset(self, chosen: Sequence[int]) -> Candidates:
        """Return the chosen candidates, in the given order."""
        some = np.array(chosen, dtype=np.int64)
        return Candidates(
            self._whole.take(some), normalize=self.normalize, words=self._known_words[some]
        )

    def cells(self, params: Params, start: int, stop: int) -> NDArray[np.int32]:
        """Find the cells that the candidates start to stop - 1 set, in every cohort.

        Returns
        -------
        (stop - start, m * h) int32, as `rappor.candidates.murmur3.bloom_cells` writes them.

        Raises
        ------
        ParamsError
            The hash layout is unknown.
        """
        if params.layout == google_hashing.LAYOUT:
            values = self._whole.take(slice(start, stop)).raw()
            return google_hashing.google_cells(values, params)
        if params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT} or google, got {params.layout!r}")
        words = self._known_words[start:stop]
        if len(self) * params.m * params.h <= FEW:
            return few_cells(words, params)
        # Imported here: it loads the compiler.
        from rappor.candidates import murmur3  # noqa: PLC0415

        return murmur3.bloom_cells(words, params)

    @property
    def _whole(self) -> Texts:
        if self._texts is None:
            raise DecodeError(f"candidates must be held in memory, got a stream: {self.name}")
        return self._texts

    @property
    def _known_words(self) -> NDArray[np.uint32]:
        if self._words is None:
            self._words = digest_texts(self._whole)
        return self._words


def _join(blocks: Iterable[Texts], size: Callable[[Texts], int], most: int) -> Texts | None:
    """Join blocks whose sizes add up to at most `most`; None, soon, for more."""
    held, total = [], 0
    for block in blocks:
        total += size(block)
        if total > most:
            return None
        held.append(block)
    return Texts.join(held)


def _encoded(lines: Iterable[str | bytes], name: str) -> Iterator[bytes]:
    """Yield lines that all end."""
    for number, line in enumerate(lines, 1):
        try:
            value = line.encode() if isinstance(line, str) else line
        except UnicodeEncodeError:
            raise FileError(name, "it has a lone surrogate", line=number) from None
        yield value if value.endswith(b"\n") else value + b"\n"


def _blocks(strings: Iterable[str], normalize: str) -> Iterator[Texts]:
    """Write strings as the devices do, block by block."""
    if isinstance(strings, str | bytes):
        raise ParamsError(
            f"candidates must be a list of strings, got a {type(strings).__name__}; "
            "to read a file use Candidates.from_file(path)"
        )
    texts = iter(strings)
    while block := list(itertools.islice(texts, _BLOCK)):
        yield Texts.of([normalize_text(normalize, text).encode() for text in block])
