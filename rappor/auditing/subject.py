"""What is audited: anything that turns values into reports, looked at from outside only.

There are four kinds: a callable that takes the device's secret, the metric and the value (the
shipped encoder has this form), a callable that takes the value alone and is a new device at each
call, a command that reads values from standard input, and one that reads questions in JSON.

A command reads one value a line and answers each, in order, with one line. The line holds the k
characters 0 and 1 of the report, bit 0 first; or a JSON object with such a text as `report`, an
integer `cohort` if there are several, and, if it can be seen, the `permanent` response. Other keys
are ignored, so `rappor encode METRIC - --json` prints such answers.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import IO, Final, NamedTuple, Protocol

from rappor.auditing.shipped_encoder import (
    DeviceInputs,
    DeviceOutputs,
    Respond,
    Response,
    question_line,
    shipped_respond,
)
from rappor.base.errors import ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_LONGEST: Final = 1 << 16
"""Bytes of one line that are read at a time: 16 times what two patterns of 2,040 bits need."""


class Request(NamedTuple):
    """What a device is asked: its secret, which metric and which value (as text)."""

    secret: bytes
    metric: str
    value: str


class Subject(Protocol):
    """Something under audit."""

    @property
    def remembers(self) -> bool:
        """Whether the same secret means the same device; if not, every request is to a new one."""

    @property
    def quick(self) -> bool:
        """Whether asking one device twice, about any metric, costs no more than asking two."""

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Answer every request, in order."""

    def restart(self) -> Subject:
        """Return the same subject as it is after a new start."""


class Function:
    """A callable with the signature of `Respond`; calling `start` starts one.

    `restarted` is what it is after a restart, if that is not the callable, started again.
    """

    remembers = quick = True

    def __init__(self, start: Callable[[], Respond], restarted: Subject | None = None) -> None:
        self._start, self._restarted = start, restarted
        self._respond = start()

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Call the callable for each request."""
        return [self._respond(*request) for request in requests]

    def restart(self) -> Subject:
        """Start the callable again."""
        return self._restarted or Function(self._start)


class Sampler:
    """A callable from a value to the bits of a report, a new device at each call.

    Bits come packed, or as k characters or integers 0 and 1, bit 0 first. There is one cohort.
    """

    remembers, quick = False, True

    def __init__(self, params: Params, start: Callable[[], Callable[[str], object]]) -> None:
        self._params, self._start = params, start
        self._sample = start()

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Call the callable for each value."""
        return [Response(0, _packed(self._sample(each.value), self._params)) for each in requests]

    def restart(self) -> Subject:
        """Start the callable again."""
        return Sampler(self._params, self._start)


class Command:
    """A command that reads values and writes reports, each line a new device.

    `secret_file_option` is the command's option for a file of a secret of 32 bytes. With it all
    lines of one run are the same device.
    """

    quick = False  # each device that is asked twice needs a process of its own

    def __init__(
        self, params: Params, command: Sequence[str], *, secret_file_option: str | None = None
    ) -> None:
        """Keep the command, already split into words; nothing is started yet."""
        self._params = params
        self._command = list(command)
        self._secret_file_option = secret_file_option

    @property
    def remembers(self) -> bool:
        """Whether the command takes a secret."""
        return self._secret_file_option is not None

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Run the command once for all new devices, and once for each device with a secret."""
        responses: list[Response] = []
        for secret, group in groupby(requests, key=lambda each: each.secret):
            with self._naming(secret) as words:
                lines = run_lines([*self._command, *words], [request.value for request in group])
            responses += [_read_line(line, self._params) for line in lines]
        return responses

    @contextlib.contextmanager
    def _naming(self, secret: bytes) -> Iterator[list[str]]:
        """Return the words that name a device's secret; none for a device without one."""
        if not secret or self._secret_file_option is None:
            yield []
        else:
            with tempfile.NamedTemporaryFile() as file:
                file.write(secret)
                file.flush()
                yield [self._secret_file_option, file.name]

    def restart(self) -> Subject:
        """Return the same command: every run is a new process."""
        return self


class JsonLines:
    """A command that answers questions, a line of JSON each: many devices in one process.

    The questions are those of `audit_exactly`, without coins: it draws its own.
    """

    remembers = quick = True

    def __init__(self, params: Params, command: Sequence[str]) -> None:
        """Keep the command, already split into words; nothing is started yet."""
        self._params, self._command = params, list(command)

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Ask all of it in one run of the command."""
        answers = self.answer(
            [
                DeviceInputs(secret, metric, "", value, self._params)
                for secret, metric, value in requests
            ]
        )
        return [Response(each.cohort, each.report, each.permanent) for each in answers]

    def answer(self, questions: Sequence[DeviceInputs]) -> list[DeviceOutputs]:
        """Return the answer to every question, in order, from one run of the command."""
        lines = run_lines(self._command, [question_line(each) for each in questions])
        return [
            _read_answer(line, each.params) for line, each in zip(lines, questions, strict=True)
        ]

    def restart(self) -> Subject:
        """Return the same command: every run is a new process."""
        return self


def run_lines(
    command: Sequence[str], questions: Sequence[str], *, longest: int = _LONGEST
) -> list[str]:
    """Return a command's answers, a line for each line of standard input."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as complaints:
        asked.write("".join(f"{question}\n" for question in questions).encode())
        asked.seek(0)
        lines, code = _answers(command, asked, complaints, len(questions) + 1, longest)
        complaints.seek(0)
        messages = complaints.read().decode(errors="replace").strip().splitlines()
    if code:
        last = (messages or ["no message"])[-1]
        raise ReportError(f"the command must succeed, got exit code {code}: {last}")
    if len(lines) != len(questions):
        n_lines = f"{len(lines):,}" if len(lines) < len(questions) else "more"
        raise ReportError(
            "the command must answer each value with one line, got "
            f"{n_lines} lines for {len(questions):,} values"
        )
    return lines


def _answers(
    command: Sequence[str], questions: IO[bytes], complaints: IO[bytes], most: int, longest: int
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
            lines = list(islice(iter(lambda: answer.readline(longest), b""), most))
            if len(lines) < most:
                code = process.wait()
        finally:
            process.kill()  # nothing happens to one that has ended
            process.wait()
    return [line.decode(errors="replace").rstrip("\r\n") for line in lines], code


def shipped(metric: Metric) -> Subject:
    """Return the project's own encoder; after a restart it runs in a new process."""
    module = [sys.executable, "-m", "rappor.auditing.shipped_encoder"]
    return Function(lambda: shipped_respond(metric), JsonLines(metric.params, module))


def split_command(text: str) -> list[str]:
    """Split a command into words as a shell does; no shell runs it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ReportError(f"a command must be words as a shell splits them: {error}") from None
    if not words:
        raise ReportError("a command must have at least one word, got none")
    return words


def _read_line(line: str, params: Params) -> Response:
    if not line.startswith("{"):
        return Response(0, _packed(line.strip(), params))
    document, permanent = _read_json(line), None
    if document.get("permanent") is not None:
        permanent = _packed(document["permanent"], params)
    report = _packed(document.get("report"), params)
    return Response(_cohort(document, params), report, permanent)


def _read_answer(line: str, params: Params) -> DeviceOutputs:
    document = _read_json(line)
    patterns = (_packed(document.get(key), params) for key in DeviceOutputs._fields[1:])
    return DeviceOutputs(_cohort(document, params), *patterns)


def _read_json(line: str) -> dict[str, object]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ReportError("an answer that starts with { must be JSON")
    return document


def _cohort(document: dict[str, object], params: Params) -> int:
    cohort = document.get("cohort", 0)
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}] in an answer")
    return cohort


def _packed(answer: object, params: Params) -> bytes:
    """Return the packed bits of an answer; bytes are packed already."""
    if isinstance(answer, bytes):
        if len(answer) == params.n_bytes and not int.from_bytes(answer, "little") >> params.k:
            return answer
    elif isinstance(answer, str | Sequence) and len(answer) == params.k:
        digits = [str(digit) for digit in answer]
        if set(digits) <= {"0", "1"}:
            return int("".join(reversed(digits)), 2).to_bytes(params.n_bytes, "little")
    raise ReportError(f"a report must be {params.k} bits, each 0 or 1")
