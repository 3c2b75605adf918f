"""`rappor audit`: what an encoder really promises, measured from outside."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from rappor.cli.console import NUMBER, Slow, json_option, output, print_json, seed_option
from rappor.cli.options import metric_options
from rappor.errors import RapporError
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.auditing.auditor import Audit
    from rappor.auditing.subject import Subject


@click.command()
@metric_options
@click.option("--command", help="Audit this command instead of the encoder that ships.")
@click.option("--secret-option", help="The command's option before a secret, 64 hex digits.")
@click.option("--second-command", help="The same for another metric of the same devices.")
@click.option(
    "--trials", type=NUMBER, default=100_000, show_default=True, help="Devices to be asked."
)
@click.option(
    "--reports", type=NUMBER, default=2, show_default=True, help="Reports of each, up to 100."
)
@click.option(
    "--timing", is_flag=True, help="Also time the encoder: is it the same for values of one length?"
)
@seed_option
@json_option
def audit(
    metric: Metric,
    command: str | None,
    secret_option: str | None,
    second_command: str | None,
    trials: int,
    reports: int,
    timing: bool,
    seed: int | None,
    as_json: bool,
) -> None:
    """Hold an encoder against what its parameters claim; exit code 1 if it has a fault.

    Lower bounds of the privacy loss at 99.99 %, and the chances of every bit, permanence,
    independence and coins, each wrong for a correct encoder once in 1e9. A --command reads
    values from standard input, one a line, each from a new device, and answers each with a line:
    k characters 0 and 1, bit 0 first, or a JSON object with such a text as "report", a "cohort",
    and a "permanent" response if it can be seen. `rappor encode METRIC - --json` is such a
    command, and --secret-hex its --secret-option.
    """
    from rappor import auditing
    from rappor.protocol.randomizer import system_coins

    if timing and command is not None:
        raise click.UsageError("--timing must be left out with --command: starting it takes longer")
    subject = _subject(metric, command, secret_option, second_command)
    with Slow() as slow:
        result = auditing.audit(
            subject, metric, trials=trials, n_reports=reports, seed=seed, progress=slow
        )
        if command is None:
            slow("testing coins", 0, None)
            result = result.with_checks(auditing.audit_coins(metric.params, system_coins))
        if timing:
            result = result.with_checks(auditing.audit_timing(metric, progress=slow))
    if as_json:
        print_json(_document(result))
    else:
        _print(result)
    if result.faults:
        raise FaultFoundError(f"{len(result.faults)} of {len(result.checks)} checks found a fault")


class FaultFoundError(RapporError):
    """The audit ended, and not well."""


def _subject(
    metric: Metric, command: str | None, secret_option: str | None, second: str | None
) -> Subject:
    from rappor import auditing

    if command is None:
        if secret_option is not None or second is not None:
            raise click.UsageError("--secret-option and --second-command go with --command")
        return auditing.shipped(metric)
    return auditing.Command(
        metric.params,
        auditing.split_command(command),
        secret_option=secret_option,
        second=None if second is None else auditing.split_command(second),
    )


def _document(result: Audit) -> dict[str, Any]:
    return {
        "metric": result.metric.name,
        "params": result.metric.fingerprint,
        "trials": result.trials,
        "reports": result.n_reports,
        "passed": result.passed,
        "checks": [dataclasses.asdict(check) for check in result.checks],
        "not_examined": result.not_examined,
    }


def _print(result: Audit) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("check", "verdict", "what was seen"):
        table.add_column(title)
    table.add_column("p", justify="right")
    for check in result.checks:
        style = {"fault": "bold red", "pass": "green"}.get(check.verdict, "yellow")
        p_value = "" if check.p_value is None else f"{check.p_value:.2g}"
        table.add_row(check.name, f"[{style}]{check.verdict}[/]", check.detail, p_value)
    output().print(table)
    click.echo("\nEpsilons are in nats. This audit did not look at:")
    for sentence in result.not_examined:
        click.echo(f"- {sentence}")
