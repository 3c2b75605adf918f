"""Candidates: the strings whose frequencies a decode estimates, as devices hash them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates import google_hashing
from rappor.candidates.hashing import bloom_cells, digest_strings
from rappor.errors import FileError, ParamsError, ReportError
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

    __slots__ = ("_digests", "n_blank", "n_duplicates", "normalize", "strings")

    def __init__(
        self, strings: tuple[str, ...], *, normalize: str, n_blank: int, n_duplicates: int
    ) -> None:
        """Keep strings that one of the class methods has checked."""
        self.strings = strings
        self.normalize = normalize
        self.n_blank = n_blank
        self.n_duplicates = n_duplicates
        self._digests: NDArray[np.uint64] | None = None

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

    def subset(self, chosen: Sequence[int]) -> Candidates:
        """Return the chosen candidates, in the given order."""
        strings = tuple(self.strings[i] for i in chosen)
        some = Candidates(strings, normalize=self.normalize, n_blank=0, n_duplicates=0)
        if self._digests is not None:
            some._digests = self._digests[list(chosen)]
        return some

    def __len__(self) -> int:
        return len(self.strings)

    def __repr__(self) -> str:
        return f"Candidates(n={len(self)}, normalize={self.normalize!r})"

    @property
    def digests(self) -> NDArray[np.uint64]:
        """(n, 2) uint64, from `hashing.digest_strings`; computed at the first use."""
        if self._digests is None:
            self._digests = digest_strings(text.encode() for text in self.strings)
        return self._digests

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
        return bloom_cells(self.digests[start:stop], params)


def _line_text(line: str | bytes, *, first: bool) -> str:
    """Return a line without its ending; raise UnicodeError unless its bytes are UTF-8."""
    text = line.decode() if isinstance(line, bytes) else line
    if first:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    return text.removesuffix("\n").removesuffix("\r")
