"""The keystream: the coins of a seed, repeatable, with independent substreams."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from programs import run_python

from rappor.base.errors import ParamsError
from rappor.simulation.keystream import Keystream


def test_coins_are_the_keystream_of_the_cipher() -> None:
    """The first coins of seed 10 are AES-256-CTR of zeros under the documented key."""
    key = hashlib.sha256(b"rappor/1/keystream\0a").digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(400))
    assert Keystream(10).coins(100).tobytes() == stream


def test_the_same_seed_gives_the_same_coins() -> None:
    """Coins depend on the seed and on the path of substreams, and on nothing else."""
    streams = [Keystream(7), Keystream(8), Keystream(-7), Keystream(7).spawn(0)]
    streams += [Keystream(7).spawn(1), Keystream(8).spawn(0), Keystream(7).spawn(0).spawn(0)]
    draws = [stream.coins(8).tobytes() for stream in streams]
    assert len(set(draws)) == len(draws)
    assert Keystream(7).coins(8).tobytes() == draws[0]
    assert Keystream(7).spawn(1).coins(8).tobytes() == draws[4]


def test_a_substream_does_not_depend_on_earlier_draws() -> None:
    """A substream is the same before and after draws from its stream."""
    stream = Keystream(3)
    before = stream.spawn(2).coins(5)
    stream.coins(1000)
    assert np.array_equal(stream.spawn(2).coins(5), before)


@pytest.mark.parametrize("cut", [0, 1, 3, 65535, 65536, 65537, 130000])
def test_coins_do_not_depend_on_the_sizes_of_draws(cut: int) -> None:
    """Two consecutive draws have the coins of one draw of both sizes together.

    The stream encrypts pieces of 65,536 coins. Draws end within pieces and at their ends.
    """
    whole = Keystream(1).coins(131073)
    stream = Keystream(1)
    assert np.array_equal(np.concatenate([stream.coins(cut), stream.coins(131073 - cut)]), whole)


def test_coins_have_the_requested_shape_and_are_writable() -> None:
    """A draw is a writable array of 32-bit integers of the requested shape."""
    coins = Keystream(1).coins((3, 4, 5))
    assert coins.shape == (3, 4, 5)
    assert coins.dtype == np.uint32
    assert Keystream(1).coins((0, 7)).shape == (0, 7)
    coins[:] = 0


@pytest.mark.parametrize("seed", [1.5, "1", True, b"1"])
def test_a_seed_must_be_an_integer(seed: object) -> None:
    """Any other seed raises ParamsError."""
    with pytest.raises(ParamsError, match="seed must be an integer or None, got"):
        Keystream(seed)  # type: ignore[arg-type]


FORK = """
import os
from rappor.base.errors import RapporError
from rappor.simulation.keystream import Keystream

stream = Keystream(5)
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    stream.coins(1)
except RapporError:
    raise SystemExit(0 if stream.spawn(1).coins(4).size == 4 else 2)
raise SystemExit(1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_cannot_draw_the_coins_of_its_parent() -> None:
    """In a forked process, a draw from the parent's stream raises. A new substream works.

    Otherwise both processes would draw the same coins.
    """
    run_python("-c", FORK)
