"""`rappor privacy`: what exactly a metric promises, and what stays visible."""

from __future__ import annotations

from dataclasses import dataclass, replace

import click

from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.numbers import COUNT
from rappor.cli.options import asked, chart_option, grouped, json_option, option, save_chart
from rappor.cli.privacy_tables import Detectable, print_report
from rappor.cli.subject import Subject, metric_argument, subject_options
from rappor.ground.errors import ParamsError
from rappor.planning.changed_params import JointError, decode_together, joint_error
from rappor.planning.detection_limit import detection_limit, standard_error
from rappor.privacy.report import Batch, Usage, privacy_report, privacy_report_of
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """What the command line says about a shuffled batch."""

    shuffled: int | None = asked(
        COUNT, "Devices in a shuffled batch, if you have a shuffler. Shows what it would change."
    )
    counts_path: str | None = asked(
        "FILE", "Counts file whose actual cohorts take the place of --shuffled N."
    )
    delta: float = asked(
        "PROBABILITY", "Probability with which the bounds of shuffling may fail.", default=1e-9
    )

    def read(self, params: Params) -> Batch | None:
        """Return the batch, with the cohorts of the counts if a file of them is named."""
        if self.shuffled is None:
            if self.counts_path is not None:
                raise click.UsageError("--counts goes with --shuffled")
            return None
        batch = Batch(devices=self.shuffled, delta=self.delta)
        if self.counts_path is None:
            return batch
        from rappor.counts.counts import Counts

        counts = Counts.load(self.counts_path)
        if counts.params != params:
            raise ParamsError(
                f"counts must be of parameters {params.fingerprint}, "
                f"got {counts.params.fingerprint}"
            )
        return replace(batch, cohorts=tuple(counts.reports.tolist()))


@command(
    "rappor privacy search_engine --registry metrics.toml",
    "rappor privacy search_engine --registry metrics.toml --changed new.toml",
    "rappor privacy --profile strict --shuffled 1e7 --chart belief.svg",
    "rappor privacy --bits 128 --hashes 2 --cohorts 16 -f .5 -p .5 -q .75",
    elsewhere={
        "--epsilon": "choose parameters for an epsilon by "
        "`rappor plan --epsilon-1 NATS --epsilon-inf NATS`, or name a --profile"
    },
)
@metric_argument
@subject_options
@grouped(
    "usage",
    Usage,
    option(
        "--reports", COUNT, "Reports of each value, for the total loss of one person.", default=10
    ),
    option(
        "--values",
        COUNT,
        "Distinct values of each metric, or epochs, for the total loss of one person.",
        default=1,
    ),
    option("--group", COUNT, "People whose devices report the same, counted as one.", default=2),
)
@grouped("batch", _Batch)
@option(
    "--devices",
    COUNT,
    "Devices of a collection, for the detection limit.",
    default=1_000_000,
    show_default="1e6",
)
@option("--candidates", COUNT, "Candidate strings, for the detection limit.", default=1000)
@option("--changed", "FILE", "Registry with the changed metric. Shows what the change costs.")
@json_option
@chart_option
def privacy(
    *,
    subject: Subject,
    usage: Usage,
    batch: _Batch,
    devices: int,
    candidates: int,
    changed: str | None,
    as_json: bool,
    chart: str | None,
) -> None:
    """Report what a metric promises, shows and detects.

    Name a METRIC of a registry, a --profile, or the parameters one by one. A registry adds the
    total loss of one person over all its metrics. All numbers are computed from the effective
    probabilities of the 32-bit coins.
    """
    metric = subject.metric
    if changed is not None and metric is None:
        raise click.UsageError("--changed needs --registry and a METRIC")
    new = None
    if changed is not None and metric is not None:
        new = Registry.load(changed).metric(metric.name)
    shuffled = batch.read(subject.params)
    if metric is None:
        report = privacy_report_of(subject.params, batch=shuffled)
    else:
        report = privacy_report(
            metric, registry=subject.registry, usage=usage, batch=shuffled, changed=new
        )
    error = None if new is None else _joint_error(subject.params, new, devices)
    limit = Detectable(
        devices=devices,
        candidates=candidates,
        std_error=standard_error(subject.params, devices),
        detection_limit=detection_limit(subject.params, devices, n_candidates=candidates),
    )
    save_chart(report, chart)
    if as_json:
        print_json(report, joint_error=error, detection=limit)
    else:
        print_report(report, error, limit)


def _joint_error(old: Params, new: Metric, devices: int) -> JointError | None:
    """Return the errors of estimates around a change; None where counts cannot be joined."""
    if not decode_together(old, new.params):
        return None
    return joint_error(old, new.params, before=devices, after=devices)
