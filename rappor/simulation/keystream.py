"""Uniform 32-bit coins for simulations, from AES-256 in counter mode.

A seed makes a simulation repeatable. Without a seed the key comes from the operating system.
Substreams have independent keys that are derived by index, so parallel workers share no coin:
worker i draws from `Keystream(seed).spawn(i)`.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from rappor.base.errors import ParamsError, RapporError

_ZEROS: Final = bytes(1 << 18)
"""Plain text that is encrypted at a time. 256 KiB stay in a core's cache."""


class Keystream:
    """A stream of uniform 32-bit integers. The same seed gives the same stream.

    A stream is not thread-safe and cannot be pickled. It belongs to the process that created it.

    Parameters
    ----------
    seed : an integer of any size; None for 32 bytes of the operating system.

    Raises
    ------
    ParamsError
        The seed is not an integer.

    Examples
    --------
    >>> bool((Keystream(1).coins(3) == Keystream(1).coins(3)).all())
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        """Start the stream."""
        if seed is None:
            self._start(os.urandom(32))
        elif isinstance(seed, int) and not isinstance(seed, bool):
            self._start(hashlib.sha256(f"rappor/1/keystream\0{seed:x}".encode()).digest())
        else:
            raise ParamsError(f"seed must be an integer or None, got {seed!r}")

    def _start(self, key: bytes) -> None:
        """Begin the stream of a key of 32 bytes."""
        self._key = key
        self._process = os.getpid()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def spawn(self, index: int) -> Keystream:
        """Return the substream of an index. It does not depend on the numbers drawn so far."""
        # The key is hashed, so a substream reveals neither its parent nor its siblings.
        child = object.__new__(Keystream)
        info = f"rappor/1/keystream/spawn\0{index:x}\0".encode()
        child._start(hashlib.sha256(info + self._key).digest())
        return child

    def coins(self, shape: int | tuple[int, ...]) -> NDArray[np.uint32]:
        """Draw the next uniform 32-bit integers.

        Parameters
        ----------
        shape : shape of the result.

        Returns
        -------
        (*shape) uint32. Drawing a and then b numbers gives the same numbers as drawing a + b.

        Raises
        ------
        RapporError
            Another process created the stream, before a fork.
        """
        size = math.prod(shape) if isinstance(shape, tuple) else shape
        coins = np.empty(size, dtype="<u4")
        self.fill(coins)
        return coins.astype(np.uint32, copy=False).reshape(shape)

    def fill(self, array: NDArray[Any]) -> None:
        """Overwrite a contiguous array with the next bytes of the stream.

        Raises RapporError if another process created the stream.
        """
        # After a fork, both processes would draw the same coins.
        if os.getpid() != self._process:
            raise RapporError(
                "a keystream must be used in the process that created it; after a fork use "
                "spawn(index)"
            )
        # `reshape` of another array returns a copy.
        assert array.flags.c_contiguous, "another array would be copied, and the copy filled"
        # Encrypting zeros in counter mode gives the keystream itself.
        stream = array.reshape(-1).view(np.uint8)
        for start in range(0, len(stream), len(_ZEROS)):
            piece = stream[start : start + len(_ZEROS)]
            self._cipher.update_into(memoryview(_ZEROS)[: len(piece)], piece.data)

    def generator(self) -> np.random.Generator:
        """Return numpy's generator, seeded with the next 256 bits of the stream.

        It draws binomials and other distributions. Its numbers are repeatable for one version of
        numpy only.
        """
        return np.random.default_rng(self.coins(8).tolist())
