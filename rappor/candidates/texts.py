"""Texts: many strings, stored end to end in one array of bytes.

A Python string takes about 60 bytes beside its characters. A hundred million candidates fit into
memory only without Python strings, and compiled loops need arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Strings in UTF-8. The array may contain other bytes between the strings, such as newlines.

    Attributes
    ----------
    data : (number of bytes,) uint8. The bytes of all strings.
    starts, ends : (n,) int64. Indices in `data`: string i is data[starts[i] : ends[i]]. They
        increase, unless `select` has changed the order of the strings or has repeated a string.

    Examples
    --------
    >>> texts = Texts.from_bytes([b"cat", b"dog"])
    >>> texts.ends.tolist(), texts.select(slice(1, None)).to_strings()
    ([3, 6], ['dog'])
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, strings: Sequence[bytes]) -> Texts:
        """Join strings in UTF-8."""
        lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
        return cls._from_lengths(np.frombuffer(b"".join(strings), dtype=np.uint8), [lengths])

    @classmethod
    def _from_lengths(cls, data: NDArray[np.uint8], lengths: Sequence[NDArray[np.int64]]) -> Texts:
        """Build texts without bytes between the strings, from the length of each string in bytes.

        The end of a string is the start of the next string, so one array contains all edges.
        """
        edges = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]))
        return cls(data=data, starts=edges[:-1], ends=edges[1:])

    @classmethod
    def join(cls, blocks: Sequence[Texts]) -> Texts:
        """Join blocks of strings in their order."""
        data = [block._bytes_of_strings for block in blocks]
        joined = np.concatenate([np.zeros(0, dtype=np.uint8), *data])
        return cls._from_lengths(joined, [block.ends - block.starts for block in blocks])

    @property
    def _bytes_of_strings(self) -> NDArray[np.uint8]:
        """The bytes of all strings in the order of the strings, without bytes between them."""
        # Case: `select` returned the strings in another order than `data` has their bytes. The
        # difference array below would return the bytes in the order of `data`.
        if np.any(self.starts[1:] < self.ends[:-1]):
            return np.frombuffer(b"".join(self.to_bytes()), dtype=np.uint8)
        # A difference array: +1 at each start and -1 at each end. Its running sum is 1 inside
        # strings and 0 between strings. An empty string adds +1 and -1 at one index, which is 0.
        is_inside = np.zeros(len(self.data) + 1, dtype=np.int8)
        np.add.at(is_inside, self.starts, 1)
        np.subtract.at(is_inside, self.ends, 1)
        return self.data[np.cumsum(is_inside[:-1], dtype=np.int8).view(np.bool_)]

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: NDArray[np.int64] | slice) -> Texts:
        """Return some of the strings in the given order, as a view of the same bytes."""
        return Texts(data=self.data, starts=self.starts[chosen], ends=self.ends[chosen])

    def to_bytes(self) -> list[bytes]:
        """Return each string as bytes."""
        first, last = int(self.starts.min(initial=len(self.data))), int(self.ends.max(initial=0))
        data = self.data[first:last].tobytes()
        edges = zip((self.starts - first).tolist(), (self.ends - first).tolist(), strict=True)
        return [data[start:end] for start, end in edges]

    def to_strings(self) -> list[str]:
        """Return each string as a str."""
        return [value.decode() for value in self.to_bytes()]
