"""Candidates: the strings whose frequencies a decode estimates, as devices hash them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates import google_hashing
from rappor.candidates.hashing import COMPILED_FROM, bloom_cells, digest_strings
from rappor.ground.errors import FileError, ParamsError, ReportError
from rappor.protocol.encodings.bloom import LAYOUT
from rappor.protocol.normalizers import normalize as normalize_text
from rappor.protocol.params import Params

_BYTE_ORDER_MARK: Final = "\ufeff"


class Candidates:
    """Strings in their order, distinct after normalisation.

    `from_file`, `from_lines` and `from_list` read them. An empty list is allowed here; a decode
    refuses it.

    Attributes
    ----------
    strings : tuple of str, normalised.
    normalize : the normalizer's name.
    n_blank : lines of nothing but white space, which were skipped.
    n_duplicates : repeated strings, which were skipped.
    """

    __slots__ = ("_digests", "_n_digested", "n_blank", "n_duplicates", "normalize", "strings")

    def __init__(
        self, strings: tuple[str, ...], *, normalize: str, n_blank: int, n_duplicates: int
    ) -> None:
        """Keep strings that one of the class methods has checked."""
        self.strings = strings
        self.normalize = normalize
        self.n_blank = n_blank
        self.n_duplicates = n_duplicates
        self._digests: NDArray[np.uint32] | None = None
        self._n_digested = 0

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, normalize: str = "none") -> Candidates:
        """Read a UTF-8 file of one candidate a line; see `from_lines`.

        Raises
        ------
        FileError
            The file, or one of its lines, cannot be read; the message has path and line.
        """
        try:
            with Path(path).open("rb") as lines:
                return cls.from_lines(lines, name=os.fspath(path), normalize=normalize)
        except OSError as error:
            raise FileError(path, error.strerror or "unreadable") from None

    @classmethod
    def from_lines(
        cls,
        lines: Iterable[str | bytes],
        *,
        name: str = "standard input",
        normalize: str = "none",
    ) -> Candidates:
        r"""Read one candidate a line, of any length, ending with \n, \r\n or nothing.

        Spaces are part of a candidate unless the normalizer says otherwise; lines of nothing
        else are skipped. A byte-order mark is tolerated on the first line.

        Raises
        ------
        FileError
            A line is not UTF-8, or has a lone surrogate; the message has name and line.
        """
        strings: dict[str, None] = {}
        number = n_blank = 0
        for number, line in enumerate(lines, 1):
            try:
                text = _line_text(line, first=number == 1)
                if text and not text.isspace():
                    strings[normalize_text(normalize, text)] = None
                else:
                    n_blank += 1
            except UnicodeError:
                raise FileError(name, "it is not UTF-8", line=number) from None
            except ReportError as error:
                raise FileError(name, str(error), line=number) from None
        return cls(
            tuple(strings),
            normalize=normalize,
            n_blank=n_blank,
            n_duplicates=number - n_blank - len(strings),
        )

    @classmethod
    def from_list(cls, strings: Iterable[str], *, normalize: str = "none") -> Candidates:
        """Take strings as they are, from a list, a column or any iterable.

        An empty string is a candidate, too.

        Raises
        ------
        ParamsError
            `strings` is one text, not a list of them.
        ReportError
            A string is not a text, or has a lone surrogate.
        """
        if isinstance(strings, str | bytes):
            raise ParamsError(
                f"candidates must be a list of strings, got a {type(strings).__name__}; "
                "to read a file use Candidates.from_file(path)"
            )
        # str(): a column may have a subclass of its own, as numpy's.
        texts = [str(normalize_text(normalize, text)) for text in strings]
        distinct = tuple(dict.fromkeys(texts))
        return cls(
            distinct, normalize=normalize, n_blank=0, n_duplicates=len(texts) - len(distinct)
        )

    def with_empty(self) -> Candidates:
        """Return the same with the empty string among them, before all others if it is new."""
        if "" in self.strings:
            return self
        return Candidates(
            ("", *self.strings),
            normalize=self.normalize,
            n_blank=self.n_blank,
            n_duplicates=self.n_duplicates,
        )

    def subset(self, chosen: Sequence[int]) -> Candidates:
        """Return the chosen candidates, in the given order."""
        strings = tuple(self.strings[i] for i in chosen)
        some = Candidates(strings, normalize=self.normalize, n_blank=0, n_duplicates=0)
        if self._digests is not None and self._n_digested == len(self):
            some._digests, some._n_digested = self._digests[list(chosen)], len(chosen)
        return some

    def __len__(self) -> int:
        return len(self.strings)

    def __repr__(self) -> str:
        return f"Candidates(n={len(self)}, normalize={self.normalize!r})"

    def cells(self, params: Params, start: int, stop: int) -> NDArray[np.int32]:
        """Find the cells that the candidates start to stop - 1 set, in every cohort.

        Returns
        -------
        (stop - start, m * h) int32, as `rappor.candidates.hashing.bloom_cells` writes them.

        Raises
        ------
        ParamsError
            The hash layout is unknown.
        """
        if params.layout == google_hashing.LAYOUT:
            values = [text.encode() for text in self.strings[start:stop]]
            return google_hashing.google_cells(values, params)
        if params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT} or google, got {params.layout!r}")
        return self._kernel(params)(self._digested(start, min(stop, len(self))), params)

    def _kernel(self, params: Params) -> Callable[[NDArray[np.uint32], Params], NDArray[np.int32]]:
        """Return the hash for a list of this length: the compiled one where it is worth it."""
        if len(self) * params.m * params.h < COMPILED_FROM:
            return bloom_cells
        from rappor.candidates import murmur3  # noqa: PLC0415  # loads the compiler

        return murmur3.bloom_cells

    def _digested(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Return the digests of the strings start to stop - 1; each is computed once."""
        if self._digests is None:
            self._digests = np.empty((len(self), 4), dtype=np.uint32)
        if stop > self._n_digested:
            fresh = slice(self._n_digested, stop)
            self._digests[fresh] = digest_strings(text.encode() for text in self.strings[fresh])
            self._n_digested = stop
        return self._digests[start:stop]


def _line_text(line: str | bytes, *, first: bool) -> str:
    """Return a line without its ending; raise UnicodeError unless its bytes are UTF-8."""
    text = line.decode() if isinstance(line, bytes) else line
    if first:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    return text.removesuffix("\n").removesuffix("\r")
