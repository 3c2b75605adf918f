"""`rappor privacy`: the privacy losses of a metric, and the smallest share that its reports detect.

The command prints the privacy losses, the promise of the privacy notice, how well reports of one
device can be linked, and the smallest share that the reports detect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import click

from rappor.base.errors import MetricError, ParamsError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import print_json, print_parts, print_section, print_table
from rappor.cli.examined_params import ExaminedParams, examined_params_options
from rappor.cli.option_values import COUNT
from rappor.cli.options import (
    chart_option,
    json_option,
    option_field,
    option_group,
    refuse_options_without,
    save_chart,
)
from rappor.planning.changed_params import (
    JointError,
    can_decode_together,
    compute_joint_error,
)
from rappor.planning.detection_limit import compute_detection_limit, compute_standard_error
from rappor.privacy.assessment import (
    PrivacyReport,
    ShuffledBatch,
    Usage,
    privacy_report,
    privacy_report_of,
)
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.registry.registry import Registry
from rappor.reporting.numbers import format_percent

_SHUFFLER: Final = (
    "This holds if a shuffler that neither you nor the collector runs removes addresses, times and "
    "order. Nothing in this project shuffles: today the collector sees every report alone."
)
"""The command prints this sentence below the losses after shuffling."""


_CANDIDATES: Final = 1000
"""Default number of candidate strings. More candidates make a detection harder. A convention: the
length of a list of popular strings. `rappor plan` has the same default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detectable:
    """The detection limit of one report from each device.

    Attributes
    ----------
    devices : number of devices of a collection.
    candidates : number of candidates that are tested.
    std_error : standard error of a rare string's count, in reports.
    detection_limit : smallest share that is detected with 80 % probability.
    """

    devices: int
    candidates: int
    std_error: float
    detection_limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchOptions:
    """Options for a shuffled batch."""

    shuffled: int | None = option_field(
        COUNT,
        "Devices in a shuffled batch. Also shows the smaller losses if a shuffler mixes the "
        "reports of so many devices before anybody sees them.",
    )
    counts_path: str | None = option_field(
        "FILE",
        "Counts file. The bounds of --shuffled then use the numbers of reports in its cohorts, and "
        "not the number of devices.",
    )
    delta: float = option_field(
        "PROBABILITY", "Delta of the (epsilon, delta)-privacy of --shuffled.", default=1e-9
    )

    def read(self, params: Params) -> ShuffledBatch | None:
        """Return the batch, with the cohorts of the counts if the command line names a file."""
        if self.shuffled is None:
            refuse_options_without("--shuffled", "counts_path", "delta")
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
    hints={
        "--epsilon": "choose parameters for an epsilon by "
        "`rappor plan --epsilon-1 NATS --epsilon-inf NATS`, or name a --profile"
    },
)
def privacy(
    *,
    examined: ExaminedParams = examined_params_options(),
    usage: Usage = option_group(
        Usage,
        reports=option_field(
            COUNT,
            "Reports of each value, for the total loss of one person and for --changed.",
            default=10,
        ),
        values=option_field(
            COUNT,
            "Different values that a device reports for each metric over time, for the total loss "
            "of one person. Each new value adds its loss again.",
            default=1,
        ),
        group=option_field(
            COUNT,
            "People whose devices report the same values, such as a family. The last row of the "
            "total loss is for all N people together.",
            default=2,
        ),
    ),
    batch_options: _BatchOptions = option_group(_BatchOptions),
    devices: int = option_field(
        COUNT,
        "Devices that send one report each, for the smallest share that is detected.",
        default=1_000_000,
        show_default="1,000,000",
    ),
    candidates: int | None = option_field(
        COUNT,
        "Candidate strings that are tested, for the smallest share that is detected.",
        show_default="1,000; for categories, all categories",
    ),
    changed: str | None = option_field(
        "FILE",
        "Registry with a changed entry of METRIC. The command also shows the privacy loss of a "
        "device that reports before and after the change.",
    ),
    as_json: bool = json_option(),
    chart: str | None = chart_option(),
) -> None:
    """Report what a metric promises, shows and detects.

    Name a METRIC of a registry, a --profile, or the parameters one by one. The report shows how
    sure an observer of reports can become of a value, how well reports of one device can be
    linked, and which share of the devices is detected. A registry adds the total loss of one
    person over all its metrics. Losses are in nats.
    """
    metric, params = examined.metric, examined.params
    if changed is not None and metric is None:
        raise click.UsageError("--changed needs METRIC and --registry")
    if metric is None:
        # Only a registry has the total loss of one person, which these options are for.
        refuse_options_without("METRIC and --registry", "reports", "values", "group")
    # The metric after the change of its entry.
    new = None
    if changed is not None and metric is not None:
        other = Registry.load(changed)
        if metric.name not in other:
            # Without the name of the file, the message could be about the file of --registry.
            raise MetricError(f"{changed}: there is no metric {metric.name!r} in it")
        new = other.metric(metric.name)
    batch = batch_options.read(params)
    if metric is None:
        report = privacy_report_of(params, batch=batch)
    else:
        report = privacy_report(
            metric, registry=examined.registry, usage=usage, batch=batch, changed=new
        )
    # Counts before and after the change have a joint error only if one decode can use both.
    error = None
    if new is not None and can_decode_together(params, new.params):
        error = compute_joint_error(params, new.params, before=devices, after=devices)
    n_candidates = _count_candidates(params, candidates)
    limit = _Detectable(
        devices=devices,
        candidates=n_candidates,
        std_error=compute_standard_error(params, devices),
        detection_limit=compute_detection_limit(params, devices, n_candidates=n_candidates),
    )
    save_chart(report, chart)
    if as_json:
        print_json(report, joint_error=error, detection=limit)
    else:
        _print_report(report, error, limit)


def _count_candidates(params: Params, candidates: int | None) -> int:
    """Return the number of tested candidates: strings, or all categories of a closed list."""
    encoding = get_encoding(params)
    if encoding.is_hashed:
        return _CANDIDATES if candidates is None else candidates
    if candidates is not None:
        raise click.UsageError("--candidates must be omitted: only strings have candidates")
    return encoding.n_categories


def _print_report(report: PrivacyReport, error: JointError | None, limit: _Detectable) -> None:
    """Print the sections of a report.

    Parameters
    ----------
    report : the report.
    error : standard errors of estimates before and after a change of the entry, or None.
    limit : the detection limit.
    """
    from rappor.reporting import privacy_tables as tables

    print_parts(tables.format_params(report.params))
    print_table(
        tables.beliefs_table(report.losses),
        "Each cell has the least and the most that the belief above it can become.",
    )
    print_table(
        tables.unchanged_values_table(report.staying),
        tables.choose_note_on_unchanged_values(report.staying, report.params),
    )
    if report.promise is not None:
        print_section("What is promised", report.promise)
    if report.without_noise is not None:
        same = "The sections below count only devices with the same properties."
        print_section("What is sent without noise", report.without_noise, same)
    # Case: a reader compares this share with the share of `rappor plan`, which is another number.
    # Strings share bits. Categories do not.
    is_hashed = get_encoding(report.params).is_hashed
    collisions = " and counts collisions of strings, too" if is_hashed else ""
    comparison = (
        "The condition is that with 95 % probability no detected candidate is false. `rappor plan` "
        "prints another share: it limits the false discovery rate to 5 % (Benjamini-Hochberg), a "
        f"weaker condition,{collisions}. This command counts the noise alone."
    )
    print_section(
        "Detection",
        f"A report from each of {format_count(limit.devices, 'device')} detects a share of "
        f"{format_percent(limit.detection_limit, 3)} with 80 % probability, among "
        f"{format_count(limit.candidates, 'candidate')} (Bonferroni 5 %). The standard error of a "
        f"count is {limit.std_error:,.0f} reports. {comparison}",
    )
    if report.shuffling is not None:
        batch = tables.shuffling_table(report.shuffling)
        nothing = "A cohort may have one device only: shuffling promises nothing."
        print_section(batch.title, batch if batch.rows else nothing, _SHUFFLER)
    has_properties = report.without_noise is not None
    links = tables.list_links(report.linkability, has_properties=has_properties)
    print_section("What links the reports of one device", *links)
    if report.account is not None:
        reserved = tables.describe_reserved_loss(report.account)
        print_table(tables.account_table(report.account), reserved)
    if report.change is not None:
        costs = tables.list_costs_of_change(report.change, error, limit.devices)
        print_section("If the entry changes", *costs)
