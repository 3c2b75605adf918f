"""`rappor audit`: what an encoder really promises, measured from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from rappor.base.atomic_files import read_text
from rappor.base.errors import RapporError
from rappor.cli.commands import command
from rappor.cli.console import Slow, escape, print_json, print_parts, table
from rappor.cli.options import (
    chart_option,
    flag_field,
    json_option,
    option_field,
    option_group,
    save_chart,
    seed_option,
)
from rappor.cli.subject import Subject, subject_options
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.auditing.auditor import Audit
    from rappor.auditing.encoder_under_test import EncoderUnderTest as Audited

_STYLES = {"fault": "bold red", "pass": "green"}


class FaultFoundError(RapporError):
    """The audit ended, and found a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The program under test; the encoder that ships if no command is named."""

    command: str | None = option_field(
        "COMMAND", "Audit this program instead of the encoder of this package."
    )
    secret_file_option: str | None = option_field(
        "OPTION", "The program's option that takes a file of a device's secret, 32 bytes."
    )
    questions: bool = flag_field(
        "The program answers questions in JSON, which name secret, metric and value."
    )
    exact: bool = flag_field(
        "Compare its answers to --trials questions with the protocol, bit by bit."
    )
    client: str | None = option_field(
        "COMMAND", "Audit what this client program keeps over restarts, days and epochs."
    )

    def check(self) -> None:
        """Refuse options that would be ignored."""
        if self.client is not None and self.command is not None:
            raise click.UsageError("give --client or --command, not both")
        has_file = self.secret_file_option is not None
        if self.command is None and (has_file or self.questions or self.exact):
            raise click.UsageError(
                "--secret-file-option, --questions and --exact go with --command"
            )
        if (self.questions or self.exact) and has_file:
            raise click.UsageError("a question names the secret: leave --secret-file-option out")

    def audited(self, metric: Metric) -> Audited:
        """Return what the auditor asks."""
        from rappor import auditing

        if self.command is None:
            return auditing.create_reference_encoder(metric)
        if self.questions:
            return auditing.JsonLines(metric.params, auditing.split_command(self.command))
        return auditing.Command(
            metric.params,
            auditing.split_command(self.command),
            secret_file_option=self.secret_file_option,
        )


@command(
    "rappor audit --profile balanced --trials 1000",
    "rappor audit --bits 8 --cohorts 1 -f .5 -p .25 -q .75 --trials 1e4",
    "rappor audit --registry metrics.toml --metric theme --trials 1000 \\\n"
    "  --command 'rappor encode theme - --registry metrics.toml --json' \\\n"
    "  --secret-file-option=--secret-file",
)
def audit(
    *,
    subject: Subject = subject_options(),
    program: _Program = option_group(_Program),
    values_path: str | None = option_field(
        "FILE", "Also test these values, one per line. Random values are always tested."
    ),
    trials: int | None = option_field(
        "N", "Number of devices.", show_default="100,000; --exact 500; --client 50 to 400"
    ),
    reports: int = option_field("N", "Reports of each device, up to 100.", default=2),
    seed: int | None = seed_option(),
    chart: str | None = chart_option(),
    as_json: bool = json_option(),
) -> None:
    """Test whether an encoder keeps its privacy promise.

    The audit treats the encoder as a black box. It prints lower bounds of the privacy loss at
    99.99 % confidence, and tests the probability of every bit, the permanent response, the
    independence of metrics, values and bits, and the coins. Each test fails a correct encoder once
    in 1e9 audits. The exit code is 1 if a test finds a fault.

    A --command reads values from standard input, one per line, each from a new device. It answers
    each with a line: k characters 0 and 1, bit 0 first, or a JSON object with such a text as
    "report", a "cohort", and the "permanent" response if it is known. `rappor encode METRIC -
    --json` is such a command, and --secret-file is its --secret-file-option.

    With --exact the audit gives the program secret and coins, so that only one answer is right.
    With --client the audit records values on devices in folders: the client of this package is
    `python -m rappor_client.audited`. The README of rappor/auditing shows the lines of both.
    """
    metric = subject.named
    program.check()
    if values_path is not None and (program.exact or program.client is not None):
        raise click.UsageError("--values must be omitted with --exact and --client")
    if program.exact:
        found = _exactly(program, metric, trials, seed)
    elif program.client is not None:
        found = _client(program.client, subject, trials, seed)
    else:
        values = [] if values_path is None else _read_values(values_path)
        found = _from_outside(program, metric, values, trials, reports, seed)
    save_chart(found, chart)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found.passed:
        raise FaultFoundError(f"{len(found.faults)} of {len(found.checks)} checks found a fault")


def _exactly(program: _Program, metric: Metric, trials: int | None, seed: int | None) -> Audit:
    from rappor import auditing

    command = auditing.split_command(str(program.command))
    questions = auditing.JsonLines(metric.params, command)
    return auditing.audit_exactly(
        questions, metric, vectors=500 if trials is None else trials, seed=seed
    )


def _client(command: str, subject: Subject, trials: int | None, seed: int | None) -> Audit:
    from rappor import auditing

    if subject.metric is None or subject.registry_path is None:
        raise click.UsageError("--client needs --registry and --metric: a device has a registry")
    with Slow() as slow:
        return auditing.audit_client(
            auditing.split_command(command),
            subject.metric,
            subject.registry_path,
            devices=trials,
            seed=seed,
            progress=slow,
        )


def _read_values(path: str) -> list[str]:
    lines = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    return [line for line in lines if line]


def _from_outside(
    program: _Program,
    metric: Metric,
    values: list[str],
    trials: int | None,
    reports: int,
    seed: int | None,
) -> Audit:
    from rappor import auditing
    from rappor.protocol.randomizer import system_coins

    audited = program.audited(metric)
    with Slow() as slow:
        found = auditing.audit(
            audited,
            metric,
            trials=100_000 if trials is None else trials,
            n_reports=reports,
            values=values,
            seed=seed,
            progress=slow,
        )
        if program.command is None:
            slow("testing coins", 0, None)
            coins = auditing.audit_coins(metric.params, system_coins)
            found = replace(found, checks=(*found.checks, *coins))
    return found


def _print(found: Audit) -> None:
    shown = table("check", "verdict", "finding", "p-value", left=3)
    for check in found.checks:
        style = _STYLES.get(check.verdict, "yellow")
        p_value = "" if check.p_value is None else f"{check.p_value:.2g}"
        shown.add_row(check.name, f"[{style}]{check.verdict}[/]", escape(check.detail), p_value)
    rest = (escape(f"- {sentence}") for sentence in found.not_examined)
    print_parts(shown, "\nEpsilons are in nats. This audit did not look at:", *rest)
