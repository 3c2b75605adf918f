"""`rappor privacy`: what exactly a metric promises, and what stays visible."""

from __future__ import annotations

from dataclasses import dataclass, replace

import click

from rappor.base.errors import ParamsError
from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.numbers import COUNT
from rappor.cli.options import (
    argument_field,
    chart_option,
    json_option,
    option_field,
    option_group,
    save_chart,
)
from rappor.cli.privacy_tables import Detectable, print_report
from rappor.cli.subject import Subject, subject_options
from rappor.planning.changed_params import can_decode_together, compute_joint_error
from rappor.planning.detection_limit import compute_detection_limit, compute_standard_error
from rappor.privacy.assessment import ShuffledBatch, Usage, privacy_report, privacy_report_of
from rappor.protocol.params import Params
from rappor.registry.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """What the command line says about a shuffled batch."""

    shuffled: int | None = option_field(
        COUNT, "Devices in a shuffled batch, if you have a shuffler. Shows what it would change."
    )
    counts_path: str | None = option_field(
        "FILE", "Counts file whose actual cohorts take the place of --shuffled N."
    )
    delta: float = option_field(
        "PROBABILITY", "Probability with which the bounds of shuffling may fail.", default=1e-9
    )

    def read(self, params: Params) -> ShuffledBatch | None:
        """Return the batch, with the cohorts of the counts if a file of them is named."""
        if self.shuffled is None:
            if self.counts_path is not None:
                raise click.UsageError("--counts goes with --shuffled")
            return None
        batch = ShuffledBatch(devices=self.shuffled, delta=self.delta)
        if self.counts_path is None:
            return batch
        from rappor.counts.counts import Counts

        counts = Counts.load(self.counts_path)
        if counts.params != params:
            raise ParamsError(
                f"counts must be of parameters {params.fingerprint}, "
                f"got {counts.params.fingerprint}"
            )
        return replace(batch, cohorts=tuple(counts.cohort_reports.tolist()))


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
def privacy(
    *,
    subject: Subject = subject_options(
        metric_argument=argument_field(required=False, metavar="[METRIC]")
    ),
    usage: Usage = option_group(
        Usage,
        reports=option_field(
            COUNT, "Reports of each value, for the total loss of one person.", default=10
        ),
        values=option_field(
            COUNT,
            "Distinct values of each metric, or epochs, for the total loss of one person.",
            default=1,
        ),
        group=option_field(
            COUNT, "People whose devices report the same, counted as one.", default=2
        ),
    ),
    batch: _Batch = option_group(_Batch),
    devices: int = option_field(
        COUNT,
        "Devices of a collection, for the detection limit.",
        default=1_000_000,
        show_default="1,000,000",
    ),
    candidates: int = option_field(
        COUNT, "Candidate strings, for the detection limit.", default=1000
    ),
    changed: str | None = option_field(
        "FILE", "Registry with the changed metric. Shows what the change costs."
    ),
    as_json: bool = json_option(),
    chart: str | None = chart_option(),
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
    error = None
    if new is not None and can_decode_together(subject.params, new.params):
        error = compute_joint_error(subject.params, new.params, before=devices, after=devices)
    limit = Detectable(
        devices=devices,
        candidates=candidates,
        std_error=compute_standard_error(subject.params, devices),
        detection_limit=compute_detection_limit(subject.params, devices, n_candidates=candidates),
    )
    save_chart(report, chart)
    if as_json:
        print_json(report, joint_error=error, detection=limit)
    else:
        print_report(report, error, limit)
