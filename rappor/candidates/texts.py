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
        ends = np.cumsum(lengths)
        data = np.frombuffer(b"".join(strings), dtype=np.uint8)
        return cls(data=data, starts=ends - lengths, ends=ends)

    @classmethod
    def join(cls, blocks: Sequence[Texts]) -> Texts:
        """Lay blocks of strings end to end."""
        if len(blocks) == 1:
            return blocks[0]
        firsts = np.cumsum([0, *(len(block.data) for block in blocks)]).tolist()
        nothing = cls.of([])
        return cls(
            data=np.concatenate([nothing.data, *(block.data for block in blocks)]),
            starts=np.concatenate(
                [nothing.starts, *(b.starts + at for b, at in zip(blocks, firsts, strict=False))]
            ),
            ends=np.concatenate(
                [nothing.ends, *(b.ends + at for b, at in zip(blocks, firsts, strict=False))]
            ),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, chosen: NDArray[np.int64] | slice) -> Texts:
        """Return some of the strings; the bytes stay where they are."""
        return Texts(data=self.data, starts=self.starts[chosen], ends=self.ends[chosen])

    def raw(self) -> list[bytes]:
        """Return the bytes of each string."""
        view = self.data.data
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [bytes(view[start:end]) for start, end in places]

    def pick(self) -> list[str]:
        """Return the strings as texts of Python."""
        return [value.decode() for value in self.raw()]
