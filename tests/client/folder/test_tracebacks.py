"""Tracebacks with local variables contain no value: on errors, on Ctrl-C and on signals.

In the acceptance stage each line of these packages below `record` is interrupted once.
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
"""Sets many bits, so no other bytes equal the bits of a value by chance."""
METRIC = metric_of(params=PARAMS)
BUCKETS = metric_of(
    "buckets", Params(k=2, encoding="buckets", categories=("0",), f=0.5, p=0.25, q=0.75)
)
VALUE = "telltale value"


def frames_of(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of these packages in the tracebacks of an exception and its causes."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(PACKAGES):
                yield frame
        error = error.__cause__ or error.__context__


def print_frames(error: BaseException) -> str:
    """Return the text that a tool prints that reads all local variables of these packages."""
    texts = [repr(error), *map(repr, error.args)]
    for cause in (error.__context__, error.__cause__):
        texts += [] if cause is None else [repr(cause), repr(vars(cause))]
    for frame in frames_of(error):
        texts += [f"{name} = {value!r}" for name, value in frame.f_locals.items()]
    return "\n".join(texts)


def spell_secrets(folder: Path) -> list[str]:
    """Return value, secret, true bits and permanent response in all printed forms."""
    secret = read_secret(folder)
    cohort = derive_cohort(secret, METRIC.name, "", PARAMS)
    bits = get_encoder(PARAMS).encode(VALUE, cohort)
    permanent = derive_permanent_response(secret, METRIC.name, "", PARAMS, bits)
    return [VALUE, *(text for data in (secret, bits, permanent) for text in spell_bytes(data))]


def spell_bytes(data: bytes) -> list[str]:
    """Return the forms in which Python and people print bytes."""
    return [repr(data)[2:-1], data.hex(), str(list(data))]


class Interrupter:
    """A trace function that raises KeyboardInterrupt once.

    It counts the lines of these packages below a method, and raises at the n-th line.
    """

    def __init__(self, n: int, *, below: str) -> None:
        self.left = n
        self._below = below
        self._is_below = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Trace the frames of these packages, and count lines below the method."""
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        self._is_below = self._is_below or frame.f_code.co_name == self._below
        if event == "line" and self._is_below:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupt(work: Callable[[], object], n: int, *, below: str) -> BaseException | None:
    """Return the exception of a call that is interrupted at its n-th line.

    None if the call ends before this line.
    """
    before = sys.gettrace()
    sys.settrace(Interrupter(n, below=below))
    try:
        work()
    except (KeyboardInterrupt, RapporError) as error:
        return error
    finally:
        sys.settrace(before)
    return None


def check_hides(error: BaseException | None, secrets: list[str]) -> None:
    """Assert that the traceback of an error shows no secret text."""
    text = "" if error is None else print_frames(error)
    assert not [secret_text for secret_text in secrets if secret_text in text], text


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.acceptance)])
def test_ctrl_c_in_record_shows_no_secret(step: int, home: Home) -> None:
    """Ctrl-C at every eleventh line of `record` shows no value, bits or response, and no secret."""
    client = home.open(METRIC, coins=FallingCoins())  # so that each event is drawn and written
    client.record("page", VALUE)
    secrets = spell_secrets(home.folder)
    n, work = 1, lambda: client.record("page", VALUE)
    while (error := interrupt(work, n, below="record")) is not None:
        assert isinstance(error, KeyboardInterrupt), repr(error)
        check_hides(error, secrets)
        n += step
    assert n > 50  # the lines of a whole record


def test_ctrl_c_anywhere_in_a_first_record_shows_no_secret(home: Home) -> None:
    """Ctrl-C in the first `record` of a client shows nothing, also while the secret is read."""
    home.open(METRIC, folder="0").record("page", VALUE)
    secrets = spell_secrets(home.place / "0")
    for n in range(1, 600, 20):
        client = home.open(METRIC, folder="0")
        error = interrupt(lambda: client.record("page", VALUE), n, below="record")  # noqa: B023
        client.close()
        check_hides(error, secrets)


@pytest.mark.filterwarnings("ignore:unclosed file")  # Ctrl-C just before `with` closes it
@pytest.mark.parametrize(
    "method", ["flush", "close", "privacy_spent", "sent_uploads", "event_counts", "queued_count"]
)
def test_ctrl_c_in_another_method_shows_no_secret(method: str, home: Home) -> None:
    """Ctrl-C in another method shows no secret.

    One report is in memory, one is on the disk, and the spool may be damaged.
    """
    record_days(home.open(METRIC), "page", [VALUE])
    secrets = spell_secrets(home.folder)
    for n in range(1, 400, 23):
        client = home.open(METRIC, collector=MemoryTransport())
        with hold_folder_lock(home.folder):
            assert client.record("page", VALUE) == Outcome.RECORDED
        if method == "privacy_spent":
            client.close()
            find_spool(home.folder).write_bytes(b"no database" * 100)
        error = interrupt(getattr(client, method), n, below=method)
        client.close()
        check_hides(error, secrets)


@pytest.mark.slow
def test_search_finds_the_secrets_of_unguarded_frames(home: Home) -> None:
    """The search of this module is able to find secrets: without the guard it finds all of them."""
    client = home.open(METRIC)
    client.record("page", VALUE)
    secret = read_secret(home.folder)
    secrets = spell_secrets(home.folder)
    visible: set[str] = set()
    for n in range(1, 2000, 4):
        error = interrupt(
            lambda: prepare_report(secret, METRIC, VALUE, epoch="", coins=draw_system_coins),
            n,
            below="prepare_report",
        )
        if error is None:
            break
        visible.update(secret_text for secret_text in secrets if secret_text in print_frames(error))
    value, raw_secret, _, _, bits, _, _, permanent, _, _ = secrets
    assert {value, raw_secret, bits, permanent} <= visible


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
def test_wrong_value_shows_no_secret(metric: Metric, value: object, home: Home) -> None:
    """The error of a wrong value shows nothing, neither in its frames nor in its causes."""
    client = home.open(METRIC, BUCKETS)
    with pytest.raises(ReportError) as caught:
        client.record(metric.name, value)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    text = print_frames(error)
    assert VALUE not in text
    assert not [
        secret_text for secret_text in spell_bytes(read_secret(home.folder)) if secret_text in text
    ]
    assert len(list(frames_of(error))) == 1


def test_value_is_checked_before_the_secret_is_used(home: Home) -> None:
    """A value of the wrong kind reaches no function that has the secret, and is not counted."""
    client = home.open(METRIC, BUCKETS)
    with pytest.raises(ReportError) as caught:
        client.record("buckets", VALUE)
    assert not [
        secret_text
        for secret_text in spell_bytes(read_secret(home.folder))
        if secret_text in print_frames(caught.value)
    ]
    assert client.event_counts() == {}


def test_secret_is_hidden_and_not_pickled() -> None:
    """A secret is hidden in repr, str and format, and cannot be pickled."""
    secret = Secret(bytes(range(32)))
    texts = repr(secret) + str(secret) + f"{secret}" + repr(secret._inner) + repr(secret._outer)
    assert not [
        secret_text for secret_text in spell_bytes(bytes(range(32))) if secret_text in texts
    ]
    with pytest.raises(TypeError, match="a secret is not copied"):
        pickle.dumps(secret)
