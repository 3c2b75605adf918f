"""Tracebacks with local variables contain no value: after errors and after Ctrl-C.

Some tools print the local variables of every frame of a traceback. In the acceptance stage Ctrl-C
interrupts `record` once at each line of these packages (`rappor` and `rappor_client`).

Two parts of the client keep values out of tracebacks: `hide_frames` those of `record` and `open`,
and the folder's thread those of all other methods. A process at its limit of threads has no
folder's thread, so the caller's own frames write the reports. Only there a test of the other
methods sees what the client does with the frames of a job.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import rappor_client
from days import FallingCoins, record_days
from devices import Home, build_metric, find_spool, hold_folder_lock, read_secret
from rappor_client import Outcome
from rappor_client.budget.prepared_report import prepare_report
from rappor_client.folder import forking
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.forking import Shared, Turn
from rappor_client.testing import MemoryTransport

import rappor
from rappor import Metric, Params, RapporError
from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import (
    Secret,
    derive_cohort,
    derive_permanent_response,
    draw_system_coins,
)

PACKAGES = tuple(str(Path(str(package.__file__)).parent) for package in (rappor, rappor_client))
PARAMS = Params(k=256, h=16, m=8, f=0.3, p=0.2, q=0.7)
"""Parameters of a filter with many set bits, so no other bytes equal the bits of a value."""
METRIC = build_metric(params=PARAMS)
BUCKETS = build_metric(
    "buckets", Params(k=2, encoding="buckets", categories=("0",), f=0.5, p=0.25, q=0.75)
)
VALUE = "telltale value"
TURN = inspect.unwrap(Turn.acquire).__code__
"""The code that acquires and releases the lock of an object of the client."""


def list_frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of an exception, from the first frame of these packages on.

    Earlier frames belong to the host program, which knows its own value. Here the test is the host
    program. All frames of the causes follow.
    """
    frames: Iterator[FrameType] = itertools.dropwhile(
        lambda frame: not frame.f_code.co_filename.startswith(PACKAGES), walk_frames(error)
    )
    while error is not None:
        yield from frames
        error = error.__cause__ or error.__context__
        frames = walk_frames(error)


def walk_frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield all frames of the traceback of an exception, the outermost first."""
    if error is not None:
        yield from (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def print_frames(error: BaseException) -> str:
    """Return the text of a tool that prints the local variables of all frames of an error."""
    texts = [repr(error), *map(repr, error.args)]
    for cause in (error.__context__, error.__cause__):
        texts += [] if cause is None else [repr(cause), repr(vars(cause))]
    for frame in list_frames(error):
        texts += [f"{name} = {value!r}" for name, value in frame.f_locals.items()]
    return "\n".join(texts)


def spell_secrets(folder: Path) -> list[str]:
    """Return value, secret, true bits and permanent response of a device, in all printed forms.

    The value has one form. The others have the forms of `spell_bytes`, three each.
    """
    secret = read_secret(folder)
    cohort = derive_cohort(secret, METRIC.name, "", PARAMS)
    bits = get_encoder(PARAMS).encode(VALUE, cohort)
    permanent = derive_permanent_response(secret, METRIC.name, "", PARAMS, bits)
    return [VALUE, *(text for data in (secret, bits, permanent) for text in spell_bytes(data))]


def spell_bytes(data: bytes) -> list[str]:
    """Return bytes as Python prints them, in hexadecimal digits, and as a list of numbers."""
    return [repr(data)[2:-1], data.hex(), str(list(data))]


class Interrupter:
    """A trace function that raises KeyboardInterrupt once.

    It counts lines of these packages from the first call of a method on, and raises at line n.

    Lines of `Turn.acquire` do not count. Python runs the handler of a signal after a call, at the
    start of a function or at a jump backward, so never between the end of its block and the
    release of its lock. An exception there would leave the lock taken for ever.
    """

    def __init__(self, n: int, *, below: str) -> None:
        self.n_remaining = n
        self._below = below
        self._is_below = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Trace the frames of these packages, and count lines after the call of the method."""
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        self._is_below = self._is_below or frame.f_code.co_name == self._below
        if event == "line" and self._is_below and frame.f_code is not TURN:
            self.n_remaining -= 1
            if self.n_remaining == 0:
                raise KeyboardInterrupt
        return self


def interrupt(work: Callable[[], object], n: int, *, below: str) -> BaseException | None:
    """Interrupt a call at its n-th line; return the exception, or None if the call ends before."""
    trace_function = sys.gettrace()
    sys.settrace(Interrupter(n, below=below))
    try:
        work()
    except (KeyboardInterrupt, RapporError) as error:
        return error
    finally:
        sys.settrace(trace_function)
    return None


def assert_hidden(error: BaseException | None, secrets: list[str]) -> None:
    """Assert that the traceback of an error contains no secret text."""
    text = "" if error is None else print_frames(error)
    assert not [secret_text for secret_text in secrets if secret_text in text], text


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.acceptance)])
def test_ctrl_c_in_record_shows_no_secret(step: int, home: Home) -> None:
    """Ctrl-C at every eleventh line of `record` shows no value, bits, response or secret."""
    client = home.open(METRIC, coins=FallingCoins())  # so that each event is drawn and written
    client.record("page", VALUE)
    secrets = spell_secrets(home.folder)
    n, work = 1, lambda: client.record("page", VALUE)
    while (error := interrupt(work, n, below="record")) is not None:
        assert isinstance(error, KeyboardInterrupt), repr(error)
        assert_hidden(error, secrets)
        n += step
    assert n > 50  # the lines of a whole record


def test_ctrl_c_anywhere_in_a_first_record_shows_no_secret(home: Home) -> None:
    """Ctrl-C in the first `record` of a client, which reads the secret, shows nothing."""
    home.open(METRIC, folder="0").record("page", VALUE)
    secrets = spell_secrets(home.parent / "0")
    for n in range(1, 600, 20):
        client = home.open(METRIC, folder="0")
        error = interrupt(lambda: client.record("page", VALUE), n, below="record")  # noqa: B023
        client.close()
        assert_hidden(error, secrets)


@contextlib.contextmanager
def prevent_threads() -> Iterator[None]:
    """Let no thread start while the block runs, as in a process at its limit of threads.

    A new thread gets a stack of 2^46 bytes, for which no machine has the addresses.
    """
    stack_bytes = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(stack_bytes)


ARGUMENTS = {"opt_out": ["page"]}
"""Arguments of the methods that have any."""


@pytest.mark.filterwarnings("ignore:unclosed file")  # Ctrl-C just before `with` closes it
@pytest.mark.parametrize(
    ("has_threads", "step"), [(True, 23), (False, 61)], ids=["threads", "no_threads"]
)
@pytest.mark.parametrize(
    "method",
    [
        "open",
        "flush",
        "queued_count",
        "privacy_spent",
        "find_unaffordable_metrics",
        "find_next_reports",
        "sent_uploads",
        "event_counts",
        "opt_out",
        "withdraw",
        "close",
    ],
)
def test_ctrl_c_in_another_method_shows_no_secret(
    method: str, has_threads: bool, step: int, home: Home
) -> None:
    """Ctrl-C in another method shows no secret, also if the caller does the work of the thread.

    One report is in memory, and one is on the disk.
    """
    for n in itertools.count(1, step):
        folder = home.parent / str(n)
        client = home.open(METRIC, folder=folder.name, collector=MemoryTransport())
        record_days(client, "page", [VALUE])
        secrets = spell_secrets(folder)
        client.close()  # ends the folder's thread. The next call uses another thread, or none
        with contextlib.nullcontext() if has_threads else prevent_threads():
            with hold_folder_lock(folder):
                assert client.record("page", VALUE) == Outcome.RECORDED
            if method == "open":
                work: Callable[[], object] = functools.partial(
                    home.open, METRIC, folder=folder.name
                )
            else:
                work = functools.partial(getattr(client, method), *ARGUMENTS.get(method, []))
            error = interrupt(work, n, below=method)
        assert_hidden(error, secrets)
        if error is None:  # the method has no line n, so it ran to its end
            break
    assert n > 1


def test_ctrl_c_with_a_damaged_spool_shows_no_secret(home: Home) -> None:
    """Ctrl-C in `privacy_spent` shows no secret while the client removes a damaged spool."""
    record_days(home.open(METRIC), "page", [VALUE])
    secrets = spell_secrets(home.folder)
    for n in range(1, 400, 7):
        client = home.open(METRIC)
        client.close()
        find_spool(home.folder).write_bytes(b"no database" * 100)
        error = interrupt(client.privacy_spent, n, below="privacy_spent")
        client.close()
        assert_hidden(error, secrets)
        if error is None:
            break
    assert error is None


@pytest.mark.parametrize("has_threads", [True, False], ids=["threads", "no_threads"])
def test_exception_of_a_job_shows_no_frame_of_the_job(has_threads: bool) -> None:
    """The exception of a job in the folder's thread has no frames, context or cause.

    A write fails on a failing disk, and then the rollback fails, too. The first exception has the
    frame with the value, and Python keeps it as the context and the cause of the second one.
    """

    def write(value: str) -> None:
        raise OSError(len(value))

    def roll_back_after(value: str) -> None:
        try:
            write(value)
        except OSError as error:
            raise ConnectionError from error

    thread = FolderThread(lambda _: None)
    with contextlib.nullcontext() if has_threads else prevent_threads():
        with pytest.raises(ConnectionError) as caught:
            thread.run_within(lambda: roll_back_after(VALUE), seconds=10.0)
        thread.end(1.0)
    assert_hidden(caught.value, [VALUE])
    assert {frame.f_code.co_name for frame in list_frames(caught.value)} == {"run_within"}


def test_wrong_address_shows_no_upload_key(home: Home) -> None:
    """The error of a wrong address shows no upload key, and has one frame of the packages."""
    key = "telltale-key"
    with pytest.raises(ParamsError) as caught:
        home.open(METRIC, collector="http://telemetry.example.org", upload_key=key)
    assert_hidden(caught.value, [key])
    assert len(list(list_frames(caught.value))) == 1


@pytest.mark.parametrize("has_threads", [True, False], ids=["threads", "no_threads"])
def test_ctrl_c_in_an_exchange_shows_no_upload_key(has_threads: bool, home: Home) -> None:
    """Ctrl-C during an exchange, or while its failure is recorded, shows no upload key.

    It leaves no lock taken either. Without threads the exchange runs in the frames of the caller.
    Nothing listens at the address.
    """
    key = "telltale-key"
    client = home.open(METRIC, collector="http://127.0.0.1:9", upload_key=key)
    record_days(client, "page", [VALUE])
    for n in itertools.count(1, 11):
        home.clock.advance(seconds=3)  # the claim of an interrupted exchange ends after 2 s
        client.close()  # ends the folder's thread. The next call uses another thread, or none
        with contextlib.nullcontext() if has_threads else prevent_threads():
            error = interrupt(lambda: client.flush(timeout=0.0), n, below="send")
        assert_hidden(error, [key])
        shared_objects = [one for one in forking._ALL.values() if isinstance(one, Shared)]
        assert shared_objects
        assert not [one for one in shared_objects if one._turn.is_taken]
        if error is None:
            break
    assert n > 20


def test_arguments_of_a_log_line_contain_no_value(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """The arguments of a log line are texts. An exception has frames, which contain the value."""
    client = home.open(METRIC, raise_errors=False)
    client.record("page", [VALUE])
    client.record(VALUE, "page")
    assert [set(map(type, record.args or ())) for record in caplog.records] == [{str}, {str}]


@pytest.mark.slow
def test_search_finds_the_secrets_of_unguarded_frames(home: Home) -> None:
    """The search of this module finds secrets in the frames of a function without `hide_frames`.

    Otherwise the tests above would pass without finding anything.
    """
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
    """The error of a wrong value shows nothing, and has no cause and one frame of the packages."""
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
    assert len(list(list_frames(error))) == 1


def test_value_is_checked_before_the_secret_is_used(home: Home) -> None:
    """A value of the wrong kind reaches no function with the secret, and no event is counted."""
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
