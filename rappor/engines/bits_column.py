"""Bits of stored reports as numpy arrays, from a column of bytes or of text in base64url.

A column of bytes is not copied. Text is decoded with numpy, all texts of one length together,
because Python's decoder would take a microsecond for each text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rappor.base.errors import ReportError

Rows = NDArray[np.bool_] | slice
"""Rows are selected by a mask, (n,) bool, or by the slice of all rows, which avoids a copy."""

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""base64url writes the numbers 0 to 63 as these characters, in this order."""

_FOREIGN: Final = 64
"""Value in `_DIGITS` of a byte that is not a character of base64url."""

_DIGITS: Final = np.full(256, _FOREIGN, dtype=np.uint8)
_DIGITS[np.frombuffer(_ALPHABET, dtype=np.uint8)] = np.arange(64, dtype=np.uint8)
"""(256,) uint8. The 6-bit value of each byte as a character of base64url. Every other byte has the
value `_FOREIGN`, so a text is valid if no digit is `_FOREIGN`."""

_MAX_CHARACTERS: Final = 340
"""Largest number of characters of a report: 255 bytes in base64url.

Longer text is not decoded, so that one row cannot fill the memory.
"""


@dataclass(frozen=True, slots=True)
class BitsColumn:
    """Column of n rows of bytes.

    Attributes
    ----------
    data : uint8. Row i is `data[offsets[i]:offsets[i + 1]]`.
    offsets : (n + 1,) int64.
    lengths : (n,) int64. Number of bytes of each row, or -1 if the row is null or no valid text.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def select_packed(self, rows: Rows, n_bytes: int) -> NDArray[np.uint8]:
        """Return rows that all have `n_bytes` bytes, as (n, n_bytes) uint8.

        The result for all rows is a view. The result for some rows is a copy.
        """
        if isinstance(rows, slice):
            return self.data[self.offsets[0] : self.offsets[-1]].reshape(-1, n_bytes)
        return np.asarray(self.data[self.offsets[:-1][rows][:, None] + np.arange(n_bytes)])


def read_bits(column: Any) -> BitsColumn:
    """Read a pyarrow array of bytes or text.

    Text must be base64url without padding characters, with unused bits 0, as in uploads. Any other
    text has the length -1.

    Raises
    ------
    ReportError
        The column has another type.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return read_bits(column.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return _decode(_view(column.cast(pa.large_string()).cast(pa.large_binary())))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind):
        return _view(column)
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return _view(column.cast(pa.large_binary()))
    raise ReportError(f"bits must be binary or text in base64url, got {kind}")


def _view(column: Any) -> BitsColumn:
    """View the buffers of a binary array without a copy."""
    n, start = len(column), column.offset
    buffers = column.buffers()
    data = np.frombuffer(buffers[-1] or b"", dtype=np.uint8)
    if pa.types.is_fixed_size_binary(column.type):
        offsets = np.arange(start, start + n + 1, dtype=np.int64) * column.type.byte_width
    elif n:
        width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
        offsets = np.frombuffer(buffers[1], dtype=width)[start : start + n + 1].astype(np.int64)
    else:
        # An empty array may have no buffer of offsets.
        offsets = np.zeros(1, dtype=np.int64)
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return BitsColumn(data, offsets, lengths)


def _decode(texts: BitsColumn) -> BitsColumn:
    """Decode base64url, all texts of one length together."""
    # base64url writes 3 bytes as 4 characters, 2 bytes as 3, and 1 byte as 2. So no text has a
    # length of 1 modulo 4.
    is_plausible = (
        (texts.lengths >= 0) & (texts.lengths <= _MAX_CHARACTERS) & (texts.lengths % 4 != 1)
    )
    lengths = np.where(is_plausible, texts.lengths * 6 // 8, -1)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    data = np.zeros(offsets[-1], dtype=np.uint8)
    for n_characters in np.unique(texts.lengths[is_plausible]).tolist():
        rows = np.flatnonzero(is_plausible & (texts.lengths == n_characters))
        characters = texts.data[texts.offsets[rows][:, None] + np.arange(n_characters)]
        decoded, is_valid = _decode_rows(characters)
        data[offsets[rows][:, None] + np.arange(decoded.shape[1])] = decoded
        lengths[rows[~is_valid]] = -1
    return BitsColumn(data, offsets, lengths)


def _decode_rows(
    characters: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Decode n base64url texts of L characters.

    Parameters
    ----------
    characters : (n, L) uint8, where L is not 1 modulo 4

    Returns
    -------
    The bytes, (n, L * 6 // 8) uint8, and (n,) bool, True for valid texts.
    """
    n, n_characters = characters.shape
    digits = _DIGITS[characters]
    is_valid = (digits != _FOREIGN).all(axis=1)
    # Four characters of 6 bits are three bytes. (n, quartets, 4), filled up with zeros. `& 63`
    # replaces the value of invalid characters by 0, so that it does not change other characters.
    padded = np.zeros((n, -(-n_characters // 4), 4), dtype=np.uint8)
    padded.reshape(n, -1)[:, :n_characters] = digits & 63
    first, second, third, fourth = (padded[:, :, i] for i in range(4))
    decoded = np.stack(
        [first << 2 | second >> 4, second << 4 | third >> 2, third << 6 | fourth], axis=2
    ).reshape(n, -1)
    n_bytes = n_characters * 6 // 8
    # The unused bits of the last character must be 0. Otherwise several texts would mean the same
    # bytes.
    is_valid &= ~decoded[:, n_bytes:].any(axis=1)
    return decoded[:, :n_bytes], is_valid
