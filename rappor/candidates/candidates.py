"""Candidates: the strings whose shares a decode estimates.

A device hashes its string into a Bloom filter of k bits, with h hash functions that depend on its
cohort (one of m groups of devices). Hashed bits cannot be read back. An analyst therefore lists
candidates, and this package hashes them as devices do, for all cohorts at once. There are two
kinds:

- In memory: lists, lines, and files of up to 64 MB. Repeated strings are removed, and the number of
  strings is known.
- Streamed: longer files, functions that return strings, and products. A decode reads them in one
  or more passes, and each pass starts from the beginning. A repeated string counts as two
  candidates. The number of strings is unknown.

Strings are stored as bytes in arrays (`Texts`), because a Python string needs 60 bytes more.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import DecodeError, FileError, ParamsError
from rappor.candidates import google_hashing, string_product
from rappor.candidates.candidate_lines import CandidateLines, read_chunks
from rappor.candidates.field_product import FieldProduct
from rappor.candidates.result_tables import (
    Origin,
    check_is_list,
    is_result_table,
    read_result_table,
)
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import (
    MAX_UNCOMPILED_CELLS,
    compute_cells_uncompiled,
    hash_texts,
)
from rappor.protocol.encodings.bloom import DEFAULT_LAYOUT
from rappor.protocol.normalizers import normalize as normalize_text
from rappor.protocol.params import Params
from rappor.protocol.tuples import check_field_names, join_line, join_normalizers

_MAX_BYTES_IN_MEMORY: Final = 1 << 26
"""Largest size of a file, in bytes, that is read into memory: 64 MiB, about five million strings.
Their hashes take as much memory again. A longer file is read again for every pass."""

_HEAD_LINES: Final = 10
"""Number of first lines that show whether lines are a result in place of a list. The titles of a
printed result are among them."""

_BLOCK_STRINGS: Final = 1 << 14
"""Number of strings in a block. It bounds the memory of a pass over streamed candidates. Smaller
blocks need more calls of numpy."""


class Candidates:
    """Strings in their order, normalized as devices normalize values.

    Build candidates with `from_file`, `from_lines`, `from_list`, `from_fields`, `from_stream`,
    `product` or `chain`. Candidates may be empty, but a decode raises an error for empty
    candidates.

    A candidate of a metric of tuples is the texts of its fields, joined by U+001F. Lines and lists
    have tabs, or U+001F, between the fields.

    Attributes
    ----------
    name : where the strings come from, for messages.
    normalize : name of the normalizer. For tuples, one name for each field, separated by commas.
    field_names : names of the fields of tuples, in their order; empty for other strings.
    n_blank : number of blank lines, which were skipped. This and the following numbers are 0 for
        streamed candidates.
    n_duplicates : number of repeated strings, which were skipped.
    n_spaced : number of lines that begin or end with white space. The white space is part of the
        candidate.
    n_marked : number of lines after the first line that begin with a byte-order mark. The mark is
        part of the candidate.
    origins : the reports whose result is the order of the strings. Empty unless the strings were
        read from a table of estimates.

    Examples
    --------
    >>> candidates = Candidates.from_list(["Cat", "dog", "cat"], normalize="casefold")
    >>> candidates.strings, candidates.n_duplicates
    (('cat', 'dog'), 1)
    """

    __slots__ = (
        *("_hash_words", "_read", "_texts", "field_names", "name", "normalize"),
        *("n_blank", "n_duplicates", "n_marked", "n_spaced", "origins"),
    )

    def __init__(
        self,
        source: Texts | Callable[[], Iterator[Texts]],
        *,
        name: str = "candidates",
        normalize: str = "none",
        field_names: Sequence[str] = (),
        hash_words: NDArray[np.uint32] | None = None,
    ) -> None:
        """Build candidates from normalized strings, without any check.

        Parameters
        ----------
        source : distinct strings in memory, or a function that yields blocks of strings.
        name : where the strings come from, for messages.
        normalize : name of the normalizer that was applied to the strings.
        field_names : names of the fields of tuples; empty for other strings.
        hash_words : (n, 4) uint32. Hash words of n strings in memory (`uncompiled_hashing`). None
            if they are not computed yet.
        """
        self._texts = source if isinstance(source, Texts) else None
        self._read = None if isinstance(source, Texts) else source
        self._hash_words = hash_words
        self.name, self.normalize = name, normalize
        self.field_names = tuple(field_names)
        self.n_blank = self.n_duplicates = self.n_spaced = self.n_marked = 0
        self.origins: frozenset[Origin] = frozenset()

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        normalize: str = "none",
        field_names: Sequence[str] = (),
    ) -> Candidates:
        r"""Read a UTF-8 file with one candidate in each line, also packed by gzip.

        Parameters
        ----------
        path : the file. Its lines are read as in `from_lines`. If the file is a table of estimates
            that `rappor decode --csv` wrote, the strings of its column `candidate` are read.
        normalize, field_names : normalizer and names of the fields of the metric.

        Raises
        ------
        FileError
            The file or a line cannot be read, or the file is a result in another form. A file of
            more than 64 MB is streamed, and the decode raises the errors of its lines. An error of
            a line contains its number.

        Examples
        --------
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "words.txt")
        >>> _ = path.write_text("cat\n\ndog\n")
        >>> candidates = Candidates.from_file(path)
        >>> candidates.strings, candidates.n_blank
        (('cat', 'dog'), 1)
        """
        name = os.fspath(path)
        is_regular = Path(name).is_file()
        # Case: a pipe such as /dev/stdin. It can be read only once, so it is read into memory also
        # if it is long.
        piped = None if is_regular else list(read_chunks(name))

        def read() -> Iterator[bytes]:
            return read_chunks(name) if piped is None else iter(piped)

        head = next(read(), b"")
        if is_result_table(head):
            return cls._from_result_table(
                b"".join(read()), name=name, normalize=normalize, field_names=field_names
            )
        check_is_list(head, name)
        lines = CandidateLines(read, name, normalize, field_names)
        most = _MAX_BYTES_IN_MEMORY if is_regular else sys.maxsize
        is_long = is_regular and Path(name).stat().st_size > most
        # Case: a small file packed by gzip that is long after unpacking. `texts` is None as well.
        texts = None if is_long else _join_blocks(lines(), lambda block: len(block.data), most)
        if texts is None:
            return cls(lines, name=name, normalize=normalize, field_names=field_names)
        candidates = cls._drop_duplicates(
            texts, name=name, normalize=normalize, field_names=field_names
        )
        return candidates.copy_line_counts(lines)

    @classmethod
    def _from_result_table(
        cls, data: bytes, *, name: str, normalize: str, field_names: Sequence[str]
    ) -> Candidates:
        """Build candidates from a table of estimates."""
        strings, origins = read_result_table(data, name)
        candidates = cls.from_list(strings, normalize=normalize, field_names=field_names)
        candidates.name, candidates.origins = name, origins
        return candidates

    @classmethod
    def from_lines(
        cls,
        lines: Iterable[str | bytes],
        *,
        name: str = "standard input",
        normalize: str = "none",
        field_names: Sequence[str] = (),
    ) -> Candidates:
        r"""Read one candidate from each line.

        Lines end with \n, \r\n, \r or nothing. Spaces are part of a candidate unless the normalizer
        removes them. Lines with nothing but the white space of ASCII are skipped. A byte-order mark
        before the first line is removed. The attributes `n_blank`, `n_spaced`, `n_marked` and
        `n_duplicates` count suspicious lines.

        Parameters
        ----------
        lines : for example an open file. They are read once, into memory.
        name : name of the source, for error messages.
        normalize, field_names : normalizer and names of the fields of the metric.

        Raises
        ------
        FileError
            A line is not UTF-8, has a lone surrogate, or has another number of fields than the
            metric. The error contains the line.

        Examples
        --------
        >>> candidates = Candidates.from_lines(["cat\n", "dog \n"])
        >>> candidates.strings, candidates.n_spaced
        (('cat', 'dog '), 1)
        """
        encoded = _encode_lines(lines, name)
        head = b"".join(itertools.islice(encoded, _HEAD_LINES))
        if is_result_table(head):
            return cls._from_result_table(
                head + b"".join(encoded), name=name, normalize=normalize, field_names=field_names
            )
        check_is_list(head, name)
        reader = CandidateLines(
            lambda: itertools.chain([head], encoded), name, normalize, field_names
        )
        texts = Texts.join(list(reader()))
        candidates = cls._drop_duplicates(
            texts, name=name, normalize=normalize, field_names=field_names
        )
        return candidates.copy_line_counts(reader)

    @classmethod
    def from_list(
        cls, strings: Iterable[str], *, normalize: str = "none", field_names: Sequence[str] = ()
    ) -> Candidates:
        """Build candidates from a list, a column or any iterable of strings.

        Parameters
        ----------
        strings : texts. The empty string is a candidate as well.
        normalize, field_names : normalizer and names of the fields of the metric.

        Raises
        ------
        ParamsError
            `strings` is a single text.
        ReportError
            A string is not a str, has a lone surrogate, or has another number of fields than the
            metric.

        Examples
        --------
        >>> len(Candidates.from_list(["cat", "dog", "cat"]))
        2
        """
        texts = Texts.join(list(_encode_blocks(strings, normalize, field_names)))
        return cls._drop_duplicates(
            texts, name="candidates", normalize=normalize, field_names=field_names
        )

    @classmethod
    def from_fields(
        cls,
        lists: Mapping[str, Iterable[str] | Candidates],
        *,
        normalize: Mapping[str, str] | None = None,
    ) -> Candidates:
        r"""Build all combinations of candidates of the fields of a metric of tuples.

        The last field varies fastest. Up to 64 MB of combinations are in memory, and longer
        products are streamed.

        Parameters
        ----------
        lists : candidates of each field, by the name of the field, in the order of the fields.
        normalize : normalizer of each field by its name. Other fields have the normalizer none.

        Raises
        ------
        ParamsError
            The names are not 2 to 8 distinct names of fields, a list is empty, streamed, or
            normalized by another normalizer, a candidate contains U+001F, or there are more than
            1e9 combinations.
        ReportError
            A candidate is not a str, or has a lone surrogate.

        Examples
        --------
        >>> candidates = Candidates.from_fields({"site": ["a.org", "b.org"], "country": ["de"]})
        >>> candidates.strings
        ('a.org\x1fde', 'b.org\x1fde')
        """
        check_field_names(tuple(lists))
        names = {field: (normalize or {}).get(field, "none") for field in lists}
        texts = [_list_field(field, lists[field], names[field]) for field in lists]
        product = FieldProduct(texts)
        product.check(tuple(lists))
        is_long = product.n_bytes > _MAX_BYTES_IN_MEMORY
        combinations = cls(
            product.read_blocks if is_long else Texts.join(list(product.read_blocks())),
            name="product of fields",
            normalize=join_normalizers(list(names.values())),
            field_names=tuple(lists),
        )
        tables = [values for values in lists.values() if isinstance(values, Candidates)]
        combinations.origins = frozenset().union(*(table.origins for table in tables))
        return combinations

    @classmethod
    def from_stream(
        cls,
        read: Callable[[], Iterable[str]],
        *,
        normalize: str = "none",
        field_names: Sequence[str] = (),
    ) -> Candidates:
        """Build candidates from a function that returns a new iterable for every pass.

        A decode raises the errors of `from_list` when it reads the strings.

        Parameters
        ----------
        read : returns the strings, the same in every pass.
        normalize, field_names : normalizer and names of the fields of the metric.

        Examples
        --------
        >>> candidates = Candidates.from_stream(lambda: (f"example.org/{i}" for i in range(3)))
        >>> [text for block in candidates.read_blocks() for text in block.to_strings()]
        ['example.org/0', 'example.org/1', 'example.org/2']
        """
        return cls(
            lambda: _encode_blocks(read(), normalize, field_names),
            normalize=normalize,
            field_names=field_names,
        )

    @classmethod
    def product(
        cls,
        prefixes: Iterable[str],
        alphabet: str,
        least: int,
        most: int,
        *,
        normalize: str = "none",
        field_names: Sequence[str] = (),
    ) -> Candidates:
        """Build all strings that consist of a prefix and `least` to `most` further characters.

        The shortest strings come first. Strings are not normalized: `normalize` is only the name of
        the normalizer that devices used.

        Parameters
        ----------
        prefixes : distinct beginnings of the strings.
        alphabet : distinct characters.
        least, most : smallest and largest number of characters after a prefix.
        normalize, field_names : normalizer and names of the fields of the metric.

        Raises
        ------
        ParamsError
            A prefix or a character is repeated, `least` is negative or above `most`, or there are
            more than 1e9 strings.

        Examples
        --------
        >>> candidates = Candidates.product(["a", "b"], "xy", 0, 1)
        >>> [text for block in candidates.read_blocks() for text in block.to_strings()]
        ['a', 'b', 'ax', 'ay', 'bx', 'by']
        """
        product = string_product.StringProduct.from_strings(prefixes, alphabet, least, most)
        return cls(
            product.read_blocks, name="product", normalize=normalize, field_names=field_names
        )

    @classmethod
    def chain(cls, *parts: Candidates) -> Candidates:
        """Build streamed candidates that read several candidates one after the other.

        Parameters
        ----------
        parts : candidates with one normalizer and the same fields.

        Raises
        ------
        ParamsError
            The normalizers or the fields differ.

        Examples
        --------
        >>> chain = Candidates.chain(Candidates.from_list(["cat"]), Candidates.from_list(["dog"]))
        >>> chain.load_into_memory(10).strings
        ('cat', 'dog')
        """
        normalizers = {part.normalize for part in parts}
        if len(normalizers) != 1:
            raise ParamsError(f"candidates must share one normalizer, got {sorted(normalizers)}")
        field_names = {part.field_names for part in parts}
        if len(field_names) != 1:
            raise ParamsError(f"candidates must have the same fields, got {sorted(field_names)}")
        chain = cls(
            lambda: itertools.chain.from_iterable(part.read_blocks() for part in parts),
            name=", ".join(part.name for part in parts),
            normalize=normalizers.pop(),
            field_names=field_names.pop(),
        )
        chain.origins = frozenset().union(*(part.origins for part in parts))
        return chain

    @classmethod
    def _drop_duplicates(
        cls, texts: Texts, *, name: str, normalize: str, field_names: Sequence[str]
    ) -> Candidates:
        """Build candidates in memory, each string once, at the position of its first occurrence."""
        hash_words = hash_texts(texts)
        # Two strings are equal if their hash words are equal: 128 bits of SHA-256 do not collide by
        # chance. The strings themselves need no comparison. A stable sort by the first two of the
        # four words puts equal strings side by side, the first occurrence first.
        heads = hash_words.view(np.uint64)[:, 0]
        order = np.argsort(heads, kind="stable")
        heads = heads[order]
        repeated = np.flatnonzero(heads[1:] == heads[:-1]) + 1
        is_equal = hash_words[order[repeated]] == hash_words[order[repeated - 1]]
        repeated = repeated[is_equal.all(axis=1)]
        if len(repeated):
            first_occurrences = np.sort(np.delete(order, repeated))
            texts, hash_words = texts.select(first_occurrences), hash_words[first_occurrences]
        candidates = cls(
            texts, name=name, normalize=normalize, field_names=field_names, hash_words=hash_words
        )
        candidates.n_duplicates = len(repeated)
        return candidates

    def copy_line_counts(self, source: CandidateLines | Candidates) -> Candidates:
        """Copy the numbers of blank, spaced and marked lines from a source; return self."""
        self.n_blank, self.n_spaced = source.n_blank, source.n_spaced
        self.n_marked = source.n_marked
        return self

    @property
    def is_in_memory(self) -> bool:
        """Whether all strings are in memory. If not, their number is unknown."""
        return self._texts is not None

    @property
    def strings(self) -> tuple[str, ...]:
        """All strings; raises DecodeError for streamed candidates."""
        return tuple(self._texts_in_memory.to_strings())

    def __len__(self) -> int:
        """Return the number of strings; raise DecodeError for streamed candidates."""
        return len(self._texts_in_memory)

    def __repr__(self) -> str:
        number = f"n={len(self)}" if self.is_in_memory else repr(self.name)
        return f"Candidates({number}, normalize={self.normalize!r})"

    def read_blocks(self) -> Iterator[Texts]:
        """Yield all strings in blocks, from the beginning.

        Raises
        ------
        FileError, ParamsError, ReportError
            Streamed strings cannot be read (`from_file`, `from_stream`).
        """
        if self._read is not None:
            return self._read()
        starts = range(0, len(self), _BLOCK_STRINGS)
        texts = self._texts_in_memory
        return (texts.select(slice(start, start + _BLOCK_STRINGS)) for start in starts)

    def read_blocks_with_hashes(self) -> Iterator[tuple[Texts, NDArray[np.uint32] | None]]:
        """Yield all strings in blocks, with their hash words.

        The hash words of a block of n strings are (n, 4) uint32. Streamed candidates have None in
        their place.
        """
        start = 0
        for texts in self.read_blocks():
            block = slice(start, start := start + len(texts))
            yield texts, self._hash_words_in_memory[block] if self.is_in_memory else None

    def load_into_memory(self, most: int) -> Candidates | None:
        """Return the candidates in memory, without repetitions; None for more than `most` strings.

        The strings are read until their number exceeds `most`, and no further.
        """
        if self.is_in_memory:
            return self if len(self) <= most else None
        if (texts := _join_blocks(self.read_blocks(), len, most)) is None:
            return None
        loaded = self._drop_duplicates(
            texts, name=self.name, normalize=self.normalize, field_names=self.field_names
        )
        loaded.origins = self.origins
        return loaded

    def select(self, chosen: Sequence[int]) -> Candidates:
        """Return the candidates at the given indices, in the order of the indices."""
        indices = np.array(chosen, dtype=np.int64)
        return Candidates(
            self._texts_in_memory.select(indices),
            normalize=self.normalize,
            field_names=self.field_names,
            hash_words=self._hash_words_in_memory[indices],
        )

    def compute_cells(self, params: Params, start: int, stop: int) -> NDArray[np.int32]:
        """Return the cells that the candidates `start` to `stop` - 1 set in all cohorts.

        A cell is one bit of one cohort. Bit i of cohort j has the number j k + i.

        Returns
        -------
        (stop - start, m h) int32
            Entry [s, j h + l] is the cell that hash function l sets in cohort j, for the candidate
            `start` + s. It is -1 if an earlier hash function of the cohort sets the same bit.

        Raises
        ------
        ParamsError
            The hash layout is unknown.
        """
        if params.layout == google_hashing.GOOGLE_LAYOUT:
            values = self._texts_in_memory.select(slice(start, stop)).to_bytes()
            return google_hashing.compute_google_cells(values, params)
        if params.layout != DEFAULT_LAYOUT:
            raise ParamsError(f"layout must be {DEFAULT_LAYOUT} or google, got {params.layout!r}")
        hash_words = self._hash_words_in_memory[start:stop]
        if len(self) * params.m * params.h <= MAX_UNCOMPILED_CELLS:
            return compute_cells_uncompiled(hash_words, params)
        # This import loads the compiler, which takes longer than hashing few strings.
        from rappor.candidates import compiled_hashing  # noqa: PLC0415

        return compiled_hashing.compute_cells(hash_words, params)

    @property
    def _texts_in_memory(self) -> Texts:
        """All strings; raises DecodeError for streamed candidates."""
        if self._texts is None:
            raise DecodeError(f"candidates must be in memory, got a stream: {self.name}")
        return self._texts

    @property
    def _hash_words_in_memory(self) -> NDArray[np.uint32]:
        """Hash words of all strings, (n, 4), computed once."""
        if self._hash_words is None:
            self._hash_words = hash_texts(self._texts_in_memory)
        return self._hash_words


def _join_blocks(blocks: Iterable[Texts], size: Callable[[Texts], int], most: int) -> Texts | None:
    """Join blocks; return None as soon as the sum of their sizes exceeds `most`.

    `size` returns the size of a block, in bytes or in strings.
    """
    joined, total = [], 0
    for block in blocks:
        total += size(block)
        if total > most:
            return None
        joined.append(block)
    return Texts.join(joined)


def _encode_lines(lines: Iterable[str | bytes], name: str) -> Iterator[bytes]:
    """Yield lines as bytes that end with a newline; raise FileError for a lone surrogate."""
    for number, line in enumerate(lines, 1):
        try:
            value = line.encode() if isinstance(line, str) else line
        except UnicodeEncodeError:
            raise FileError(name, "it has a lone surrogate", line=number) from None
        yield value if value.endswith(b"\n") else value + b"\n"


def _list_field(field: str, candidates: Iterable[str] | Candidates, normalize: str) -> list[bytes]:
    """Return the distinct normalized candidates of a field of a tuple."""
    if not isinstance(candidates, Candidates):
        candidates = Candidates.from_list(candidates, normalize=normalize)
    if candidates.normalize != normalize:
        raise ParamsError(
            f"candidates of field {field} must be normalised by {normalize!r}, "
            f"got {candidates.normalize!r}"
        )
    if not candidates.is_in_memory:
        raise ParamsError(
            f"candidates of field {field} must be in memory, at most 64 MB, got {candidates.name}"
        )
    return Texts.join(list(candidates.read_blocks())).to_bytes()


def _encode_blocks(
    strings: Iterable[str], normalize: str, field_names: Sequence[str]
) -> Iterator[Texts]:
    """Yield blocks of normalized strings. The fields of a tuple are joined by U+001F."""
    # Case: a caller passes a path or one string. A text is an iterable of its characters, and one
    # candidate for each character is never intended.
    if isinstance(strings, str | bytes):
        raise ParamsError(
            f"candidates must be a list of strings, got a {type(strings).__name__}; "
            "to read a file use Candidates.from_file(path)"
        )
    # Case: a researcher passes the simulated population in place of its values.
    if not isinstance(strings, Iterable):
        raise ParamsError(f"candidates must be a list of strings, got a {type(strings).__name__}")
    texts = iter(strings)
    while block := list(itertools.islice(texts, _BLOCK_STRINGS)):
        if field_names:
            block = [join_line(field_names, text) for text in block]
        yield Texts.from_bytes([normalize_text(normalize, text).encode() for text in block])
