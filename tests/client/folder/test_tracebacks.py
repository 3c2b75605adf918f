"""Nothing true in a traceback with local variables: on errors, on Ctrl-C, on a timeout's signal.

Ctrl-C is tried everywhere: under acceptance, each line of this package and of the method that
`record` runs is interrupted once.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import rappor_client
from days import FallingCoins, record_days
from devices import Home, find_spool, hold_folder_lock, metric_of, read_secret
from rappor_client import Outcome
from rappor_client.budget.prepared_report import prepare_report
from rappor_client.testing import MemoryTransport

import rappor
from rappor import Metric, Params, RapporError
from rappor.base.errors import ReportError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import (
    Secret,
    derive_cohort,
    derive_permanent_response,
    draw_system_coins,
)

PACKAGES = tuple(str(Path(str(package.__file__)).parent) for package in (rappor, rappor_client))
PARAMS = Params(k=256, h=16, m=8, f=0.3, p=0.2, q=0.7)
"""Many bits are set, so that no Bloom filter is met by accident."""
METRIC = metric_of(params=PARAMS)
BUCKETS = metric_of(
    "buckets", Params(k=2, encoding="buckets", categories=("0",), f=0.5, p=0.25, q=0.75)
)
VALUE = "telltale value"


def frames_of(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of these packages that an exception, or one behind it, has passed."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(PACKAGES):
                yield frame
        error = error.__cause__ or error.__context__


def shown(error: BaseException) -> str:
    """Return all that a tool which reads local variables would print of these packages."""
    told = [repr(error), *map(repr, error.args)]
    for each in (error.__context__, error.__cause__):
        told += [] if each is None else [repr(each), repr(vars(each))]
    for frame in frames_of(error):
        told += [f"{name} = {value!r}" for name, value in frame.f_locals.items()]
    return "\n".join(told)


def true_things(folder: Path) -> list[str]:
    """Return the value, the secret, the bits and the permanent response, as they are printed."""
    secret = read_secret(folder)
    own = derive_cohort(secret, METRIC.name, "", PARAMS)
    bits = get_encoder(PARAMS).encode(VALUE, own)
    memoised = derive_permanent_response(secret, METRIC.name, "", PARAMS, bits)
    return [VALUE, *(each for data in (secret, bits, memoised) for each in spelled(data))]


def spelled(data: bytes) -> list[str]:
    """Return bytes as Python and people write them."""
    return [repr(data)[2:-1], data.hex(), str(list(data))]


class Interrupting:
    """Raises KeyboardInterrupt at the n-th line of these packages below a method."""

    def __init__(self, n: int, *, below: str) -> None:
        self.left = n
        self._below = below
        self._is_below = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Trace the frames of these packages from the method on."""
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        self._is_below = self._is_below or frame.f_code.co_name == self._below
        if event == "line" and self._is_below:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(work: Callable[[], object], n: int, *, below: str) -> BaseException | None:
    """Return what the work raises when it is interrupted at its n-th line, None if it ends."""
    before = sys.gettrace()
    sys.settrace(Interrupting(n, below=below))
    try:
        work()
    except (KeyboardInterrupt, RapporError) as error:
        return error
    finally:
        sys.settrace(before)
    return None


def check_hides(error: BaseException | None, things: list[str]) -> None:
    """Check that an error, if there is one, shows no true thing."""
    text = "" if error is None else shown(error)
    assert not [thing for thing in things if thing in text], text


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.acceptance)])
def test_ctrl_c_in_record_shows_nothing_true(step: int, home: Home) -> None:
    """At every eleventh line, or at each: no secret, value, bits or permanent response."""
    client = home.open(METRIC, coins=FallingCoins())  # so that each event is drawn and written
    client.record("page", VALUE)
    things = true_things(home.folder)
    n, work = 1, lambda: client.record("page", VALUE)
    while (error := interrupted(work, n, below="record")) is not None:
        assert isinstance(error, KeyboardInterrupt), repr(error)
        check_hides(error, things)
        n += step
    assert n > 50  # the lines of a whole record


def test_ctrl_c_anywhere_in_a_first_record_shows_nothing_true(home: Home) -> None:
    """Also while the secret is read again, in every twentieth line: each needs a new client."""
    home.open(METRIC, folder="0").record("page", VALUE)
    things = true_things(home.place / "0")
    for n in range(1, 600, 20):
        client = home.open(METRIC, folder="0")
        error = interrupted(lambda: client.record("page", VALUE), n, below="record")  # noqa: B023
        client.close()
        check_hides(error, things)


@pytest.mark.filterwarnings("ignore:unclosed file")  # Ctrl-C just before `with` closes it
@pytest.mark.parametrize(
    "method", ["flush", "close", "privacy_spent", "sent_uploads", "event_counts", "queued_count"]
)
def test_ctrl_c_in_another_method_shows_nothing_true(method: str, home: Home) -> None:
    """With a report on the disk, one in memory, and a database that is read, or not any more."""
    record_days(home.open(METRIC), "page", [VALUE])
    things = true_things(home.folder)
    for n in range(1, 400, 23):
        client = home.open(METRIC, collector=MemoryTransport())
        with hold_folder_lock(home.folder):
            assert client.record("page", VALUE) == Outcome.RECORDED
        if method == "privacy_spent":
            client.close()
            find_spool(home.folder).write_bytes(b"no database" * 100)
        error = interrupted(getattr(client, method), n, below=method)
        client.close()
        check_hides(error, things)


def test_the_search_finds_what_a_frame_shows(home: Home) -> None:
    """Without the guard, an interrupted encoder shows value, bits and permanent response."""
    client = home.open(METRIC)
    client.record("page", VALUE)
    secret = read_secret(home.folder)
    things = true_things(home.folder)
    found: set[str] = set()
    for n in range(1, 2000, 4):
        error = interrupted(
            lambda: prepare_report(secret, METRIC, VALUE, epoch="", coins=draw_system_coins),
            n,
            below="prepare_report",
        )
        if error is None:
            break
        found.update(thing for thing in things if thing in shown(error))
    value, raw_secret, _, _, bits, _, _, memoised, _, _ = things
    assert {value, raw_secret, bits, memoised} <= found


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (METRIC, VALUE.encode()),
        (METRIC, VALUE + "\ud800"),
        (METRIC, [VALUE]),
        (BUCKETS, VALUE),
        (BUCKETS, [VALUE]),
    ],
    ids=range(5),
)
def test_wrong_value_shows_nothing_true(metric: Metric, value: object, home: Home) -> None:
    """Neither in a local variable nor in an exception behind the error."""
    client = home.open(METRIC, BUCKETS)
    with pytest.raises(ReportError) as caught:
        client.record(metric.name, value)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    text = shown(error)
    assert VALUE not in text
    assert not [thing for thing in spelled(read_secret(home.folder)) if thing in text]
    assert len(list(frames_of(error))) == 1


def test_value_is_checked_before_the_secret_is_touched(home: Home) -> None:
    """A value of the wrong kind reaches no function that has the secret, and counts as nothing."""
    client = home.open(METRIC, BUCKETS)
    with pytest.raises(ReportError) as caught:
        client.record("buckets", VALUE)
    assert not [
        thing for thing in spelled(read_secret(home.folder)) if thing in shown(caught.value)
    ]
    assert client.event_counts() == {}


def test_secret_shows_nothing_of_itself() -> None:
    """Not printed, not in an attribute's representation, not copied into a pickle."""
    secret = Secret(bytes(range(32)))
    told = repr(secret) + str(secret) + f"{secret}" + repr(secret._inner) + repr(secret._outer)
    assert not [thing for thing in spelled(bytes(range(32))) if thing in told]
    with pytest.raises(TypeError, match="a secret is not copied"):
        pickle.dumps(secret)
