"""The bits of stored reports: a column of bytes, or of text in base64url, seen through numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rappor.base.errors import ReportError

Rows = NDArray[np.bool_] | slice
"""Which rows: a mask, or all of them."""

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_FOREIGN: Final = 64
_DIGITS: Final = np.full(256, _FOREIGN, dtype=np.uint8)
_DIGITS[np.frombuffer(_ALPHABET, dtype=np.uint8)] = np.arange(64, dtype=np.uint8)

_LONGEST: Final = 340
"""Characters of 255 bytes, the most that a report has."""


@dataclass(frozen=True, slots=True)
class BitsColumn:
    """Row i is data[offsets[i]:offsets[i + 1]]; its length is -1 where it is null or no bits."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def packed(self, rows: Rows, n_bytes: int) -> NDArray[np.uint8]:
        """Return rows that all have n_bytes, (n, n_bytes) uint8; all rows are a view."""
        if isinstance(rows, slice):
            return self.data[self.offsets[0] : self.offsets[-1]].reshape(-1, n_bytes)
        return np.asarray(self.data[self.offsets[:-1][rows][:, None] + np.arange(n_bytes)])


def read_bits(column: Any) -> BitsColumn:
    """Read a pyarrow array; bytes are not copied.

    Text must be spelt as in uploads: base64url without padding, spare bits 0. Other text has the
    length -1. Raises ReportError for a column of another type.
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
    n, start = len(column), column.offset
    buffers = column.buffers()
    data = np.frombuffer(buffers[-1] or b"", dtype=np.uint8)
    if pa.types.is_fixed_size_binary(column.type):
        offsets = np.arange(start, start + n + 1, dtype=np.int64) * column.type.byte_width
    elif n:
        width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
        offsets = np.frombuffer(buffers[1], dtype=width)[start : start + n + 1].astype(np.int64)
    else:
        offsets = np.zeros(1, dtype=np.int64)
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return BitsColumn(data, offsets, lengths)


def _decode(texts: BitsColumn) -> BitsColumn:
    """Decode all texts of one length at a time."""
    is_plausible = (texts.lengths >= 0) & (texts.lengths <= _LONGEST) & (texts.lengths % 4 != 1)
    lengths = np.where(is_plausible, texts.lengths * 6 // 8, -1)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    data = np.zeros(offsets[-1], dtype=np.uint8)
    for n_characters in np.unique(texts.lengths[is_plausible]).tolist():
        rows = np.flatnonzero(is_plausible & (texts.lengths == n_characters))
        characters = texts.data[texts.offsets[rows][:, None] + np.arange(n_characters)]
        decoded, is_right = _decode_rows(characters)
        data[offsets[rows][:, None] + np.arange(decoded.shape[1])] = decoded
        lengths[rows[~is_right]] = -1
    return BitsColumn(data, offsets, lengths)


def _decode_rows(
    characters: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the bytes of base64url texts, (n, L * 6 // 8) uint8, and which are spelt rightly.

    Parameters
    ----------
    characters : (n, L) uint8, L not 1 modulo 4.
    """
    n, n_characters = characters.shape
    digits = _DIGITS[characters]
    is_right = (digits != _FOREIGN).all(axis=1)
    padded = np.zeros((n, -(-n_characters // 4), 4), dtype=np.uint8)
    padded.reshape(n, -1)[:, :n_characters] = digits & 63
    a, b, c, d = (padded[:, :, i] for i in range(4))
    decoded = np.stack([a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d], axis=2).reshape(n, -1)
    n_bytes = n_characters * 6 // 8
    is_right &= ~decoded[:, n_bytes:].any(axis=1)
    return decoded[:, :n_bytes], is_right
