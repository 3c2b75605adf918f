"""Strings end to end in one array of bytes: what a stream of candidates is made of."""

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
        ends = np.cumsum(lengths)
        data = np.frombuffer(b"".join(strings), dtype=np.uint8)
        return cls(data=data, starts=ends - lengths, ends=ends)

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, chosen: NDArray[np.int64]) -> Texts:
        """Return some of the strings; the bytes stay where they are."""
        return Texts(data=self.data, starts=self.starts[chosen], ends=self.ends[chosen])

    def pick(self) -> list[str]:
        """Return the strings as texts of Python."""
        view = self.data.data
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [str(view[start:end], "utf-8") for start, end in places]
