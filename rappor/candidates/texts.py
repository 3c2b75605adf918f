"""Strings end to end in one array of bytes: what candidates are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Strings in UTF-8; bytes that belong to none of them may lie between.

    Attributes
    ----------
    data : (b,) uint8.
    starts, ends : (n,) int64. String i is data[starts[i] : ends[i]].
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Texts:
        """Lay strings end to end."""
        lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
        return cls._dense(np.frombuffer(b"".join(strings), dtype=np.uint8), [lengths])

    @classmethod
    def _dense(cls, data: NDArray[np.uint8], lengths: Sequence[NDArray[np.int64]]) -> Texts:
        """Take strings with nothing between them: one array has all places."""
        places = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]))
        return cls(data=data, starts=places[:-1], ends=places[1:])

    @classmethod
    def join(cls, blocks: Sequence[Texts]) -> Texts:
        """Lay blocks of strings end to end."""
        data = [block._bytes for block in blocks]
        whole = np.concatenate([np.zeros(0, dtype=np.uint8), *data])
        return cls._dense(whole, [block.ends - block.starts for block in blocks])

    @property
    def _bytes(self) -> NDArray[np.uint8]:
        """The bytes of the strings, which follow each other in the data, without any between."""
        inside = np.zeros(len(self.data) + 1, dtype=np.int8)
        np.add.at(inside, self.starts, 1)
        np.subtract.at(inside, self.ends, 1)
        return self.data[np.cumsum(inside[:-1], dtype=np.int8).view(np.bool_)]

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, chosen: NDArray[np.int64] | slice) -> Texts:
        """Return some of the strings; the bytes stay where they are."""
        return Texts(data=self.data, starts=self.starts[chosen], ends=self.ends[chosen])

    def raw(self) -> list[bytes]:
        """Return the bytes of each string."""
        first, last = int(self.starts.min(initial=len(self.data))), int(self.ends.max(initial=0))
        data = self.data[first:last].tobytes()
        places = zip((self.starts - first).tolist(), (self.ends - first).tolist(), strict=True)
        return [data[start:end] for start, end in places]

    def pick(self) -> list[str]:
        """Return the strings as texts of Python."""
        return [value.decode() for value in self.raw()]
