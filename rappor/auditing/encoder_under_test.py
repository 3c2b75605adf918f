"""Encoders under test: four adapters through which an audit reaches an encoder.

An encoder turns a value into a report. An audit sees only requests (a device's secret, a metric, a
value) and responses (cohort, report and, if revealed, the permanent response). The adapters differ
in the inputs of the encoder:

    adapter     encoder                                   devices
    Function    callable (secret, metric, value)          equal secrets are one device
    Sampler     callable (value)                          each call is a new device
    Command     command, one value a line                 each line is new, or one secret for a run
    JsonLines   command, one JSON request a line          equal secrets are one device

The reference encoder is a `Function`.

Output of a `Command`: one line for each value, in order. The line contains the k characters 0 and 1
of the report, bit 0 first. Or the line is a JSON object with this text as `report`, an integer
`cohort` if there are several cohorts, and optionally the text `permanent` of the permanent
response. Other keys are ignored, so the output of `rappor encode METRIC - --json` is valid.
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

from rappor.auditing.reference_encoder import (
    DeviceInputs,
    DeviceOutputs,
    Respond,
    Response,
    create_reference_function,
    format_inputs,
)
from rappor.base.errors import ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_MAX_LINE_BYTES: Final = 1 << 16
"""Largest number of bytes of a line of output.

Two patterns of 2,040 characters, the largest valid line, take a sixteenth of it. A larger limit
would let a faulty command fill the memory with one line.
"""


class Request(NamedTuple):
    """One query to a device: the device's secret, the name of the metric, and the value as text."""

    secret: bytes
    metric: str
    value: str


class EncoderUnderTest(Protocol):
    """Interface of an encoder under test."""

    @property
    def supports_secrets(self) -> bool:
        """Whether equal secrets mean the same device.

        If False, every request meets a new device.
        """

    @property
    def supports_cheap_repeats(self) -> bool:
        """Whether a second request to a device costs no more than a request to a new device."""

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Return the response to every request, in order.

        An empty secret means a new device. Raises ReportError if a response is not a report.
        """

    def restart(self) -> EncoderUnderTest:
        """Return the same encoder as after a restart of its process."""


class Function:
    """An encoder that is a callable with the signature of `Respond`.

    Parameters
    ----------
    start : callable
        Returns the encoder; called once now and once for each restart.
    restarted : EncoderUnderTest, optional
        The encoder after a restart. By default `start` is called again.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric, Params
    >>> from rappor.auditing import Function, create_reference_function
    >>> metric = Metric(
    ...     name="page",
    ...     params=Params.profile("balanced"),
    ...     description="Home page",
    ...     owner="a@example.org",
    ...     expires=datetime.date(2030, 1, 1),
    ...     epoch="year",
    ... )
    >>> encoder = Function(lambda: create_reference_function(metric))
    >>> encoder.supports_secrets
    True
    """

    supports_secrets = supports_cheap_repeats = True

    def __init__(
        self, start: Callable[[], Respond], restarted: EncoderUnderTest | None = None
    ) -> None:
        self._start, self._restarted = start, restarted
        self._respond = start()

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Call the callable for each request, and return its responses in order."""
        return [self._respond(*request) for request in requests]

    def restart(self) -> EncoderUnderTest:
        """Return the encoder after a restart: `restarted`, or a new call of `start`."""
        return self._restarted or Function(self._start)


class Sampler:
    """An encoder that is a callable from a value to bits: a new device at each call.

    The callable returns packed bytes, or k characters or integers 0 and 1, bit 0 first. There is
    one cohort, 0.

    Parameters
    ----------
    params : Params
        The parameters that the encoder claims to have.
    start : callable
        Returns the callable from value to bits; called once now and once for each restart.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import Sampler
    >>> params = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    >>> sampler = Sampler(params, lambda: lambda value: "1")
    >>> sampler.supports_secrets
    False
    """

    supports_secrets, supports_cheap_repeats = False, True

    def __init__(self, params: Params, start: Callable[[], Callable[[str], object]]) -> None:
        self._params, self._start = params, start
        self._sample = start()

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Call the callable for each value, and return its responses in order."""
        return [
            Response(0, _pack_bits(self._sample(request.value), self._params))
            for request in requests
        ]

    def restart(self) -> EncoderUnderTest:
        """Call `start` again, as after a restart of the process."""
        return Sampler(self._params, self._start)


class Command:
    """An encoder that is a command: it reads one value a line and writes one report a line.

    Each line is a new device, unless the command takes a secret. With a secret, all lines of one
    run are the same device.

    Parameters
    ----------
    params : Params
        The parameters that the encoder claims to have.
    command : sequence of str
        The command, already split into words.
    secret_file_option : str, optional
        Option of the command for the path of a file that contains a secret of 32 bytes.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import Command
    >>> command = Command(Params.profile("balanced"), ["my-encoder", "--balanced"])
    >>> command.supports_secrets
    False
    """

    # All lines of a run share one secret, so each device that is queried twice needs a process of
    # its own.
    supports_cheap_repeats = False

    def __init__(
        self, params: Params, command: Sequence[str], *, secret_file_option: str | None = None
    ) -> None:
        """Store the command. The command is not started yet."""
        self._params = params
        self._command = list(command)
        self._secret_file_option = secret_file_option

    @property
    def supports_secrets(self) -> bool:
        """Whether the command takes a secret."""
        return self._secret_file_option is not None

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Run the command once for all new devices, and once for each device with a secret."""
        responses: list[Response] = []
        # Consecutive requests with one secret are one run. All new devices have the empty secret.
        for secret, same_device in groupby(requests, key=lambda request: request.secret):
            with self._write_secret(secret) as option:
                values = [request.value for request in same_device]
                lines = run_command([*self._command, *option], values)
            responses += [_parse_response(line, self._params) for line in lines]
        return responses

    @contextlib.contextmanager
    def _write_secret(self, secret: bytes) -> Iterator[list[str]]:
        """Write the secret into a temporary file, and yield the command's option for the file.

        Yields no option for a new device, or if the command takes no secret.
        """
        if not secret or self._secret_file_option is None:
            yield []
        else:
            with tempfile.NamedTemporaryFile() as file:
                file.write(secret)
                file.flush()
                yield [self._secret_file_option, file.name]

    def restart(self) -> EncoderUnderTest:
        """Return the same command, because every run is a new process."""
        return self


class JsonLines:
    """An encoder that is a command: it reads requests as JSON lines and writes JSON lines.

    One process serves many devices. The requests are those of `audit_exactly`, without coins: the
    command draws its own coins.

    Parameters
    ----------
    params : Params
        The parameters that the encoder claims to have.
    command : sequence of str
        The command, already split into words.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import JsonLines
    >>> encoder = JsonLines(Params.profile("balanced"), ["my-encoder"])  # not started yet
    >>> encoder.supports_secrets
    True
    """

    supports_secrets = supports_cheap_repeats = True

    def __init__(self, params: Params, command: Sequence[str]) -> None:
        """Store the command. The command is not started yet."""
        self._params, self._command = params, list(command)

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Send all requests to one run of the command, and return its responses in order."""
        outputs = self.compute_outputs(
            [
                DeviceInputs(secret, metric, "", value, self._params)
                for secret, metric, value in requests
            ]
        )
        return [Response(output.cohort, output.report, output.permanent) for output in outputs]

    def compute_outputs(self, inputs: Sequence[DeviceInputs]) -> list[DeviceOutputs]:
        """Return the outputs for all inputs, in order, from one run of the command."""
        lines = run_command(self._command, [format_inputs(device) for device in inputs])
        return [
            _parse_outputs(line, device.params) for line, device in zip(lines, inputs, strict=True)
        ]

    def restart(self) -> EncoderUnderTest:
        """Return the same command, because every run is a new process."""
        return self


def run_command(
    command: Sequence[str], inputs: Sequence[str], *, max_bytes: int = _MAX_LINE_BYTES
) -> list[str]:
    """Run a command, write the lines to its standard input, and return one line of output for each.

    `max_bytes` is the largest length of a line of output. A longer line is split, so that the
    command seems to write too many lines. Raises ReportError if the command cannot be started,
    fails or writes another number of lines.
    """
    # Files instead of pipes: a command that writes before it has read all its input, or that fills
    # its error output, would block on a full pipe.
    with tempfile.TemporaryFile() as input_file, tempfile.TemporaryFile() as error_file:
        input_file.write("".join(f"{line}\n" for line in inputs).encode())
        input_file.seek(0)
        lines, code = _run_process(command, input_file, error_file, len(inputs) + 1, max_bytes)
        error_file.seek(0)
        messages = error_file.read().decode(errors="replace").strip().splitlines()
    if code:
        last = (messages or ["no message"])[-1]
        raise ReportError(f"the command must succeed, got exit code {code}: {last}")
    if len(lines) != len(inputs):
        n_lines = f"{len(lines):,}" if len(lines) < len(inputs) else "more"
        raise ReportError(
            "the command must write one line for each value, got "
            f"{n_lines} lines for {len(inputs):,} values"
        )
    return lines


def _run_process(
    command: Sequence[str], inputs: IO[bytes], error_file: IO[bytes], max_lines: int, max_bytes: int
) -> tuple[list[str], int | None]:
    """Run a command; return its lines of output and its exit code.

    A command that writes `max_lines` lines is stopped, because it may never end. Its exit
    code is then None.
    """
    try:
        process = subprocess.Popen(  # noqa: S603  (the user's own command)
            command, stdin=inputs, stdout=subprocess.PIPE, stderr=error_file
        )
    except OSError as error:
        raise ReportError(f"the command must start, got: {command[0]}: {error.strerror}") from None
    assert process.stdout is not None
    code = None
    with process.stdout as output:
        try:
            lines = list(islice(iter(lambda: output.readline(max_bytes), b""), max_lines))
            if len(lines) < max_lines:
                # Fewer lines than the limit: the output is complete, so the command ends by itself.
                code = process.wait()
        finally:
            # Kill without a test: the call has no effect on a process that has ended.
            process.kill()
            process.wait()
    return [line.decode(errors="replace").rstrip("\r\n") for line in lines], code


def create_reference_encoder(metric: Metric) -> EncoderUnderTest:
    """Return the project's own encoder. After a restart it runs in a new process.

    Parameters
    ----------
    metric : Metric
        The metric whose parameters the encoder uses.

    Returns
    -------
    EncoderUnderTest

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric, Params
    >>> from rappor.auditing import create_reference_encoder
    >>> metric = Metric(
    ...     name="page",
    ...     params=Params.profile("balanced"),
    ...     description="Home page",
    ...     owner="a@example.org",
    ...     expires=datetime.date(2030, 1, 1),
    ...     epoch="year",
    ... )
    >>> create_reference_encoder(metric).supports_cheap_repeats
    True
    """
    # A restart must start a new process: in the same process the state of a generator would stay.
    module = [sys.executable, "-m", "rappor.auditing.reference_encoder"]
    return Function(lambda: create_reference_function(metric), JsonLines(metric.params, module))


def split_command(text: str) -> list[str]:
    """Split a command into words as a shell does. No shell runs the command.

    Parameters
    ----------
    text : str
        The command, with shell quoting.

    Returns
    -------
    list of str

    Raises
    ------
    ReportError
        If a quotation is not closed, or there is no word.

    Examples
    --------
    >>> from rappor.auditing import split_command
    >>> split_command("python 'my encoder.py'")
    ['python', 'my encoder.py']
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ReportError(f"a command must be words as a shell splits them: {error}") from None
    if not words:
        raise ReportError("a command must have at least one word, got none")
    return words


def _parse_response(line: str, params: Params) -> Response:
    """Parse a line of a `Command`: the bits of the report, or a JSON object."""
    if not line.startswith("{"):
        return Response(0, _pack_bits(line.strip(), params))
    document, permanent = _parse_json(line), None
    if document.get("permanent") is not None:
        permanent = _pack_bits(document["permanent"], params)
    report = _pack_bits(document.get("report"), params)
    return Response(_parse_cohort(document, params), report, permanent)


def _parse_outputs(line: str, params: Params) -> DeviceOutputs:
    """Parse a line of a `JsonLines`: a JSON object with all fields of `DeviceOutputs`."""
    document = _parse_json(line)
    patterns = (_pack_bits(document.get(key), params) for key in DeviceOutputs._fields[1:])
    return DeviceOutputs(_parse_cohort(document, params), *patterns)


def _parse_json(line: str) -> dict[str, object]:
    """Parse a JSON object. Raise ReportError if the line is no object or nested too deeply."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ReportError("a line that starts with { must be JSON")
    return document


def _parse_cohort(document: dict[str, object], params: Params) -> int:
    """Return the cohort of a JSON object: 0 if the key is absent."""
    cohort = document.get("cohort", 0)
    # `type`, because a bool is an int for isinstance.
    if type(cohort) is not int or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}] in a response")
    return cohort


def _pack_bits(output: object, params: Params) -> bytes:
    """Return the packed bits of a pattern that an encoder returned.

    Accepted are packed bytes whose bits from k on are 0, a text of k characters 0 and 1, or a
    sequence of k integers 0 and 1. Raises ReportError for anything else.
    """
    if isinstance(output, bytes):
        if len(output) == params.n_bytes and not int.from_bytes(output, "little") >> params.k:
            return output
    elif isinstance(output, str | Sequence) and len(output) == params.k:
        digits = [str(digit) for digit in output]
        if set(digits) <= {"0", "1"}:
            return int("".join(reversed(digits)), 2).to_bytes(params.n_bytes, "little")
    raise ReportError(f"a report must be {params.k} bits, each 0 or 1")
