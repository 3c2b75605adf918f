"""What embedding programs test with."""

from __future__ import annotations

import doctest

import pytest
import rappor_client.testing
from devices import Opener
from rappor_client import Answer, UploadError
from rappor_client.testing import FixedCoins, MemoryTransport, constant_coins


def test_transport_follows_its_script_and_then_accepts(open_client: Opener) -> None:
    """None fails, an Answer answers, and a repeated id is counted once."""
    transport = MemoryTransport([None, Answer(status=503)])
    body = b'{"v":1,"id":"a","reports":[{"metric":"m","params":"p","cohort":1,"bits":"AA"}]}'
    with pytest.raises(UploadError):
        transport.send(body, timeout=1)
    assert transport.send(body, timeout=1).status == 503
    for _ in range(2):
        assert transport.send(body, timeout=1).status == 200
    assert len(transport.bodies) == 4
    assert len(transport.reports) == 1
    assert transport.registry(timeout=1).status == 404
    assert open_client().flush()


def test_fixed_coins_repeat_by_seed() -> None:
    """However they are drawn; another seed gives others."""
    one, other = FixedCoins(seed=1), FixedCoins(seed=1)
    assert [*one(3), *one(2)] == list(other(5))
    assert list(FixedCoins(seed=2)(5)) != list(FixedCoins(seed=1)(5))
    assert all(0 <= u < 2**32 for u in other(100))
    assert list(constant_coins(7)(3)) == [7, 7, 7]


def test_examples_run() -> None:
    """Docstrings of the device print what they say."""
    assert doctest.testmod(rappor_client.testing).failed == 0
