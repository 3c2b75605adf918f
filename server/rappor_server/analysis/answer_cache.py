"""Answers that were made before, so that the same question about the same counts is quick."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable


class AnswerCache:
    """The latest answers of one process, as many as fit into some bytes; for one thread."""

    def __init__(self, n_bytes: int) -> None:
        """Keep nothing yet, and at most this many bytes of answers."""
        self._most = n_bytes
        self._n_bytes = 0
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def find(self, key: bytes) -> bytes | None:
        """Return the answer that was kept under a key, None if there is none any more."""
        if (answer := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: bytes, answer: bytes) -> None:
        """Keep an answer and forget those that were looked for longest ago, as far as needed."""
        self._n_bytes += len(answer) - len(self._answers.pop(key, b""))
        self._answers[key] = answer
        while self._n_bytes > self._most:
            _, forgotten = self._answers.popitem(last=False)
            self._n_bytes -= len(forgotten)


def key_of(parts: Iterable[bytes]) -> bytes:
    """Return the key of an answer that follows from these bytes and nothing else."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
