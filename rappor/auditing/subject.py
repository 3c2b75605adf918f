"""What is audited: anything that turns values into reports, looked at from outside only.

Three kinds: a callable that takes the device's secret, the metric and the value (what ships has
this form), a callable that takes the value alone and is another device at each call, and a
command that reads values from standard input.

A command reads one value a line and answers each, in order, with one line: the k characters 0 and
1 of the report, bit 0 first; or a JSON object with such a text as `report`, an integer `cohort`
if there are several, and, if it can be seen, the `permanent` response. Other keys are ignored, so
what `rappor encode METRIC - --json` prints is such an answer.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import IO, Final, NamedTuple, Protocol

from rappor.auditing.shipped_encoder import SECOND_METRIC, Show, Shown, shipped_show
from rappor.errors import ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_LONGEST: Final = 1 << 16
"""Bytes of one line of an answer."""


class Ask(NamedTuple):
    """A question to a device: its secret, which metric and which value (as text)."""

    secret: bytes
    metric: str
    value: str


class Subject(Protocol):
    """Something under audit."""

    @property
    def remembers(self) -> bool:
        """Whether the same secret means the same device; if not, every ask is a new one."""

    @property
    def second_metric(self) -> bool:
        """Whether it can be asked about SECOND_METRIC."""

    @property
    def quick(self) -> bool:
        """Whether asking one device twice costs no more than asking two."""

    def show(self, asks: Sequence[Ask]) -> list[Shown]:
        """Answer every question, in order."""

    def restart(self) -> Subject:
        """Return the same thing as it is after it has been started anew."""


class Function:
    """A callable with the signature of `Show`; `make` starts it."""

    remembers = second_metric = quick = True

    def __init__(self, make: Callable[[], Show]) -> None:
        """Start it once."""
        self._make = make
        self._show = make()

    def show(self, asks: Sequence[Ask]) -> list[Shown]:
        """Call it for each question."""
        return [self._show(*ask) for ask in asks]

    def restart(self) -> Subject:
        """Start it again."""
        return Function(self._make)


class Sampler:
    """A callable from a value to the bits of a report, a new device at each call.

    Bits come packed, or as k characters or integers 0 and 1, bit 0 first. There is one cohort.
    """

    remembers = second_metric = False
    quick = True

    def __init__(self, params: Params, make: Callable[[], Callable[[str], object]]) -> None:
        """Start it once."""
        self._params, self._make = params, make
        self._sample = make()

    def show(self, asks: Sequence[Ask]) -> list[Shown]:
        """Call it for each value."""
        return [Shown(0, _packed(self._sample(ask.value), self._params)) for ask in asks]

    def restart(self) -> Subject:
        """Start it again."""
        return Sampler(self._params, self._make)


class Command:
    """A command that reads values and writes reports, each line a new device.

    `secret_option`, if it has one, is what is put before the secret's 64 hex digits to make all
    lines of one run the same device; `second` is the command for SECOND_METRIC.
    """

    quick = False  # every device that is to be asked twice is a process

    def __init__(
        self,
        params: Params,
        command: Sequence[str],
        *,
        secret_option: str | None = None,
        second: Sequence[str] | None = None,
    ) -> None:
        """Keep the command, already split into words; nothing is started yet."""
        self._params = params
        self._command = list(command)
        self._secret_option = secret_option
        self._second = None if second is None else list(second)

    @property
    def remembers(self) -> bool:
        """Whether it takes a secret."""
        return self._secret_option is not None

    @property
    def second_metric(self) -> bool:
        """Whether it has a command for another metric, of the same device."""
        return self._second is not None and self.remembers

    def show(self, asks: Sequence[Ask]) -> list[Shown]:
        """Run the command once for all new devices, and once for each device with a secret."""
        shown: list[Shown] = []
        for (secret, metric), group in groupby(asks, key=lambda ask: (ask.secret, ask.metric)):
            command = self._command
            if metric == SECOND_METRIC and self._second is not None:
                command = self._second
            if secret and self._secret_option is not None:
                command = [*command, self._secret_option, secret.hex()]
            shown += self._run(command, [ask.value for ask in group])
        return shown

    def restart(self) -> Subject:
        """Return itself: every run is a new process."""
        return self

    def _run(self, command: Sequence[str], values: Sequence[str]) -> list[Shown]:
        with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as complaints:
            questions.write("".join(f"{value}\n" for value in values).encode())
            questions.seek(0)
            lines, code = _answers(command, questions, complaints, most=len(values) + 1)
            complaints.seek(0)
            told = complaints.read().decode(errors="replace").strip().splitlines()
        if code:
            last = (told or ["no message"])[-1]
            raise ReportError(f"the command must succeed, got exit code {code}: {last}")
        if len(lines) != len(values):
            n_lines = f"{len(lines):,}" if len(lines) < len(values) else "more"
            raise ReportError(
                "the command must answer each value with one line, got "
                f"{n_lines} lines for {len(values):,} values"
            )
        return [_read_line(line, self._params) for line in lines]


def _answers(
    command: Sequence[str], questions: IO[bytes], complaints: IO[bytes], *, most: int
) -> tuple[list[str], int | None]:
    """Run a command and return its lines and its exit code.

    One that answers with `most` lines is stopped, since it may never end, and has no code.
    """
    try:
        process = subprocess.Popen(  # noqa: S603  (the user's own command)
            command, stdin=questions, stdout=subprocess.PIPE, stderr=complaints
        )
    except OSError as error:
        raise ReportError(f"the command must start, got: {command[0]}: {error.strerror}") from None
    assert process.stdout is not None
    code = None
    with process.stdout as answer:
        try:
            lines = list(islice(iter(lambda: answer.readline(_LONGEST), b""), most))
            if len(lines) < most:
                code = process.wait()
        finally:
            process.kill()  # nothing happens to one that has ended
            process.wait()
    return [line.decode(errors="replace").rstrip("\r\n") for line in lines], code


def shipped(metric: Metric) -> Subject:
    """Return the project's own encoder; started anew it is a new process."""
    return _Shipped(metric)


class _Shipped(Function):
    """The encoder in this process, and after a restart in a new one."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(lambda: shipped_show(metric))
        self._metric = metric

    def restart(self) -> Subject:
        """Ask through the command that the encoder is in a new process."""
        module = [sys.executable, "-m", "rappor.auditing.shipped_encoder"]
        params = self._metric.params
        return Command(
            params,
            [*module, self._metric.name, params.to_json()],
            secret_option="--device",  # noqa: S106  (an option's name)
        )


def split_command(text: str) -> list[str]:
    """Split a command into words as a shell does; no shell runs it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ReportError(f"a command must be words as a shell splits them: {error}") from None
    if not words:
        raise ReportError("a command must have at least one word, got none")
    return words


def _read_line(line: str, params: Params) -> Shown:
    if not line.startswith("{"):
        return Shown(0, _packed(line.strip(), params))
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ReportError("an answer that starts with { must be JSON") from None
    cohort, permanent = document.get("cohort", 0), document.get("permanent")
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}] in an answer")
    return Shown(
        cohort,
        _packed(document.get("report"), params),
        None if permanent is None else _packed(permanent, params),
    )


def _packed(answer: object, params: Params) -> bytes:
    """Pack the bits of an answer; bytes are packed already."""
    if isinstance(answer, bytes):
        if len(answer) == params.n_bytes and not int.from_bytes(answer, "little") >> params.k:
            return answer
    elif isinstance(answer, str | Sequence) and len(answer) == params.k:
        digits = [str(digit) for digit in answer]
        if set(digits) <= {"0", "1"}:
            return int("".join(reversed(digits)), 2).to_bytes(params.n_bytes, "little")
    raise ReportError(f"a report must be {params.k} bits, each 0 or 1")
