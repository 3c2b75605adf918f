"""`rappor audit`: statistical tests of the privacy promise of an encoder or a client.

The audit runs a program as a black box and tests its reports. An encoder turns a value into a
report. A client is the whole software of a device, which also stores noise over days.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from rappor.base.atomic_files import read_text
from rappor.base.errors import RapporError
from rappor.base.text_lines import split_lines
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json, print_parts
from rappor.cli.examined_params import ExaminedParams, examined_params_options
from rappor.cli.options import (
    chart_option,
    flag_field,
    json_option,
    option_field,
    option_group,
    refuse_options,
    save_chart,
    seed_option,
)
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.auditing.auditor import Audit
    from rappor.auditing.encoder_under_test import EncoderUnderTest


_ENCODER_DEVICES: Final = 100_000
"""Default number of devices of an audit of an encoder. More devices bound the loss more tightly and
take more time."""

_EXACT_VECTORS: Final = 500
"""Default number of reports that --exact compares with the protocol. One report with a wrong bit is
a fault, so few reports suffice."""


class FaultFoundError(RapporError):
    """The audit is complete, and a check found a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgramOptions:
    """Options that name the program under test. The default is the encoder of this package."""

    command: str | None = option_field(
        "COMMAND", "Audit this program instead of the encoder of this package."
    )
    secret_file_option: str | None = option_field(
        "OPTION",
        "Name of the option of --command that takes a file with the secret of a device (32 bytes), "
        "such as --secret-file. The audit can then request several reports of one device, and test "
        "whether its permanent noise stays the same.",
    )
    questions: bool = flag_field(
        "Send --command a line of JSON for each report, with secret, metric and value, instead of "
        "a line with the value only. One process can then serve many devices and metrics."
    )
    exact: bool = flag_field(
        "Also send --command the random numbers, and compare its reports with the protocol bit by "
        "bit. The program reads lines of JSON as with --questions."
    )
    client: str | None = option_field(
        "COMMAND",
        "Audit a client program, the whole software of a device: the noise that it stores over "
        "restarts, days and epochs.",
    )

    def check(self) -> None:
        """Raise a usage error for options that contradict each other, or that would be ignored."""
        if self.client is not None and self.command is not None:
            raise click.UsageError("give --client or --command, not both")
        has_file = self.secret_file_option is not None
        if self.command is None and (has_file or self.questions or self.exact):
            raise click.UsageError(
                "--secret-file-option, --questions and --exact go with --command"
            )
        if (self.questions or self.exact) and has_file:
            raise click.UsageError("a question names the secret: leave --secret-file-option out")

    def create_encoder(self, metric: Metric) -> EncoderUnderTest:
        """Return the encoder that the audit sends its requests to."""
        from rappor import auditing

        if self.command is None:
            return auditing.create_reference_encoder(metric)
        words = auditing.split_command(self.command)
        if self.questions:
            return auditing.JsonLines(metric.params, words)
        return auditing.Command(metric.params, words, secret_file_option=self.secret_file_option)


@command(
    "rappor audit --profile balanced --trials 1000",
    "rappor audit --bits 8 --cohorts 1 -f .5 -p .25 -q .75 --trials 1e4",
    "rappor audit theme --registry metrics.toml --trials 1000 \\\n"
    "  --command 'rappor encode theme - --registry metrics.toml --json' \\\n"
    "  --secret-file-option=--secret-file",
)
def audit(
    *,
    examined: ExaminedParams = examined_params_options(),
    program: _ProgramOptions = option_group(_ProgramOptions),
    values_path: str | None = option_field(
        "FILE", "Also test these values, one per line. Random values are always tested."
    ),
    trials: int | None = option_field(
        "N",
        "Number of simulated devices. With more devices the lower bounds come closer to the true "
        "losses, and smaller faults are found.",
        show_default="100,000; --exact 500; --client 50 to 400",
    ),
    reports: int = option_field("N", "Reports of each device, up to 100.", default=2),
    seed: int | None = seed_option(),
    chart: str | None = chart_option(),
    as_json: bool = json_option(),
) -> None:
    """Test whether an encoder keeps its privacy promise.

    The audit treats the encoder as a black box. It prints lower bounds of the privacy loss at
    99.99 % confidence, and tests the probability of every bit, the permanent response, and the
    independence of metrics, values and bits. For the encoder of this package it also tests the
    random numbers (coins). An audit finds a fault in a correct encoder at most once in 2,000
    audits: each lower bound at most once in 10,000, and each other test at most once in 1e9. The
    exit code is 1 if a test finds a fault.

    A --command reads values from standard input, one value per line, each from a new device. It
    writes a line for each value: the k bits of the report as characters 0 and 1, bit 0 first, or a
    JSON object. The object contains this text as "report", a "cohort", and optionally the
    "permanent" response. `rappor encode METRIC - --json` is such a command, and --secret-file is
    its --secret-file-option.

    With --exact the audit sends the secret and the random numbers to the program. They determine
    every bit of the report, so each difference from the protocol is a fault.

    With --client the audit runs a client program on simulated devices, each with a folder of its
    own. It requests that a device records values on several days, and examines the reports. For
    the client of this package the program is `python -m rappor_client.audited`.

    The README of rappor/auditing shows the lines that the programs for --exact and --client read
    and write.
    """
    metric = examined.metric_or_placeholder
    program.check()
    if program.exact:
        refuse_options("--exact", "values_path", "reports")
        result = _audit_exactly(program, metric, trials, seed)
    elif program.client is not None:
        refuse_options("--client", "values_path", "reports")
        result = _audit_client(program.client, examined, trials, seed)
    else:
        values = [] if values_path is None else _read_values(values_path)
        result = _audit_encoder(program, metric, values, trials, reports, seed)
    save_chart(result, chart)
    if as_json:
        print_json(result)
    else:
        _print_audit(result)
    if not result.passed:
        raise FaultFoundError(f"{len(result.faults)} of {len(result.checks)} checks found a fault")


def _audit_exactly(
    program: _ProgramOptions, metric: Metric, trials: int | None, seed: int | None
) -> Audit:
    """Compare reports of the program with the protocol, bit by bit.

    The audit passes secrets and coins to the program. They determine every bit of a report.
    """
    from rappor import auditing

    words = auditing.split_command(str(program.command))
    encoder = auditing.JsonLines(metric.params, words)
    n_vectors = _EXACT_VECTORS if trials is None else trials
    return auditing.audit_exactly(encoder, metric, vectors=n_vectors, seed=seed)


def _audit_client(
    command: str, examined: ExaminedParams, trials: int | None, seed: int | None
) -> Audit:
    """Audit the noise that a client program stores over restarts, days and epochs."""
    from rappor import auditing

    if examined.metric is None or examined.registry_path is None:
        raise click.UsageError("--client needs METRIC and --registry: a device has a registry")
    with ProgressDisplay() as progress:
        return auditing.audit_client(
            auditing.split_command(command),
            examined.metric,
            examined.registry_path,
            devices=trials,
            seed=seed,
            progress=progress,
        )


def _audit_encoder(
    program: _ProgramOptions,
    metric: Metric,
    values: list[str],
    trials: int | None,
    reports: int,
    seed: int | None,
) -> Audit:
    """Audit an encoder by its reports. The encoder of this package gets tests of its coins, too."""
    from rappor import auditing
    from rappor.protocol.randomizer import draw_system_coins

    with ProgressDisplay() as progress:
        result = auditing.audit(
            program.create_encoder(metric),
            metric,
            trials=_ENCODER_DEVICES if trials is None else trials,
            n_reports=reports,
            values=values,
            seed=seed,
            progress=progress,
        )
        if program.command is None:
            progress("testing coins", 0, None)
            coins = auditing.audit_coins(metric.params, draw_system_coins)
            result = replace(result, checks=(*result.checks, *coins))
    return result


def _read_values(path: str) -> list[str]:
    """Read one value from each line. Empty lines are skipped.

    Blanks at both ends of a line belong to the value.
    """
    return [line for line in split_lines(read_text(path)) if line]


def _print_audit(audit: Audit) -> None:
    """Print the checks, the properties that the audit did not examine, and the verdict."""
    from rappor.reporting.checks_table import checks_table, format_verdict

    print_parts(
        checks_table(audit.checks),
        "\nEpsilons are in nats. This audit did not look at:",
        *(f"- {sentence}" for sentence in audit.not_examined),
        # The table is long, so the verdict is the last line, where a reader ends.
        f"\n{format_verdict(audit.checks)}",
    )
