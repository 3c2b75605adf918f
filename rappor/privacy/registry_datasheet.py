"""The data sheet of a registry: what is collected, what it costs a person, and what stays open.

All that the registry knows is taken from it; the three numbers of client and collector are
compared with theirs by a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_count
from rappor.privacy.documents import Document, Section
from rappor.privacy.notice import describe_promise, describe_segments, privacy_notice
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import list_unchanged_losses
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, posterior_bound
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

RETRY_DAYS: Final = 7
"""Days after which a device gives up an upload."""

UPLOAD_KEY_DAYS: Final = 14
"""Days for which the collector keeps the key of an upload."""

LOGGED_UPLOADS: Final = 1000
"""Uploads that a device's log of what was sent holds at most."""

_NEAR_CERTAINTY: Final = 0.999

LIMITS: Final = (
    "It does not hide that a device takes part, when it reports, or its network address, from who "
    "receives its reports.",
    "Losses add up over metrics, over epochs that somebody links, and over the devices of one "
    "person.",
    "The promise holds as long as when and how often a device reports does not depend on its "
    "values. `rappor audit --client` tests that.",
    "A folder that is restored as a whole, as from a disk image, forgets what it has answered "
    "since: each restore can cost another epsilon.",
    "The total is for a calendar year: a year that begins in the middle of one can cost twice it.",
    "A collector that is restored from a backup may count a retried upload twice; no device loses "
    "more by it.",
    "Who holds the device's folder can try all possible values.",
    "Forged reports move the estimates. They do not reveal anybody's value.",
    "Rare values stay below the noise and are not estimated.",
)

LEGAL: Final = (
    "Reports of one epoch can be linked to one device by its permanent noise. Until they are added "
    "up they are pseudonymous data in the sense of Article 4(5) GDPR, and personal data (EDPB "
    "Guidelines 01/2025). Sums that are released hold no report of their own.",
    "The client stores a secret and its state on the person's device. Article 5(3) of the ePrivacy "
    "Directive asks for consent to that unless it is strictly necessary. The client does nothing "
    "without consent.",
    "Network addresses reach who receives uploads. The collector does not log them; a proxy before "
    "it may.",
    "This is not legal advice. Legal basis, controller and processor: [to be filled in].",
)


def write_datasheet(registry: Registry) -> Document:
    """Return the data sheet of all metrics of a registry."""
    metrics = tuple(registry.values())
    return Document(
        title="Data sheet of what is collected",
        sections=(
            _purpose(metrics),
            _unit(registry),
            _wire(metrics),
            _retention(),
            _recipients(metrics),
            *_losses(metrics),
            Section(title="What links reports", texts=tuple(map(_linking, metrics))),
            _withdrawal(),
            Section(title="Known limits", texts=LIMITS),
            Section(title="Legal terms", texts=LEGAL),
            *(_described(metric) for metric in metrics),
        ),
    )


def sum_reserved(registry: Registry) -> float:
    """Return what all metrics reserve of a calendar year, in nats."""
    return math.fsum(each.total for each in registry.reserved)


def format_loss(epsilon: float) -> str:
    """Write a loss: no digit more than its price has, rounded up."""
    return "no limit" if math.isinf(epsilon) else f"{math.ceil(round(1000 * epsilon, 6)) / 1000:g}"


def _purpose(metrics: Iterable[Metric]) -> Section:
    return Section(
        title="Purpose and owner",
        columns=("metric", "purpose", "owner", "until", "reports", "share of devices"),
        rows=tuple(
            (
                metric.name,
                metric.description,
                metric.owner,
                str(metric.expires),
                _pace(metric),
                f"{100 * metric.sampling_rate:.3g} %",
            )
            for metric in metrics
        ),
    )


def _pace(metric: Metric) -> str:
    if metric.interval == "none":
        return "every event"
    return f"at most one a {metric.pace}"


def _unit(registry: Registry) -> Section:
    return Section(
        title="Unit of privacy",
        texts=(
            "The unit is one metric on one device in one epoch (NIST SP 800-226). Noise is added "
            "on the device; nobody has to be trusted with values, and there is no delta.",
            "The adversary sees every report of the device and may be the collector.",
            f"All metrics together cost a device at most "
            f"{format_loss(sum_reserved(registry))} nats in a "
            "calendar year. The devices of one person add up.",
        ),
    )


def _wire(metrics: Iterable[Metric]) -> Section:
    return Section(
        title="Data fields on the wire",
        texts=(
            "An upload is a JSON document: the version of the protocol, 16 random bytes as its id, "
            "and one report. There is no account, no identifier of the device, and no time.",
        ),
        columns=("metric", "parameters", "cohort, one of", "noisy bits", "sent without noise"),
        rows=tuple(
            (
                metric.name,
                ", ".join(metric.accepted),
                f"{metric.params.m:,}",
                f"{metric.params.k:,}",
                "; ".join(f"{each.name} ({', '.join(each.labels)})" for each in metric.segments)
                or "nothing",
            )
            for metric in metrics
        ),
    )


def _retention() -> Section:
    return Section(
        title="Retention",
        columns=("where", "what", "how long"),
        rows=(
            ("device", "secret and state", "until consent is withdrawn"),
            ("device", "reports that wait", f"{RETRY_DAYS} days after the first attempt"),
            ("device", "a log of what was sent", f"the last {LOGGED_UPLOADS:,} uploads"),
            ("collector", "a key of each upload, not its id", f"{UPLOAD_KEY_DAYS} days"),
            ("collector", "sums by metric, day and cohort", "no end: they hold no report"),
            ("collector", "single noisy reports", "not stored"),
        ),
    )


def _recipients(metrics: Iterable[Metric]) -> Section:
    return Section(
        title="Recipients",
        texts=(
            "The operator of the collector receives each noisy report, with its address and time. "
            "Whoever has a token to read sees released sums:",
        ),
        columns=("metric", "least reports", "one device is at most"),
        rows=tuple(
            (
                metric.name,
                f"{metric.min_reports:,}" if metric.min_reports else "none",
                f"one in {metric.min_cohort:,} of a cohort's reports"
                if metric.pace != "none"
                else f"not limited; at least {format_count(metric.min_cohort, 'report')} "
                f"of a cohort",
            )
            for metric in metrics
        ),
    )


def _losses(metrics: Iterable[Metric]) -> Iterable[Section]:
    """Yield the losses of each metric, and those of a value that stays."""
    rows, stays = [], []
    for metric in metrics:
        one, every = epsilon_1(metric.params), scope_loss(metric)
        both = (
            format_loss(one),
            format_largest_belief(one),
            metric.epoch,
            format_loss(every),
            format_largest_belief(every),
        )
        rows.append((metric.name, *both))
        for year in (
            row for row in list_unchanged_losses(metric.params, metric) if row.epoch == metric.epoch
        ):
            share = "" if year.named is None else f"{100 * year.named:.0f} % of {year.candidates:,}"
            years = "a year" if year.years == 1 else f"{year.years} years"
            stays.append(
                (
                    metric.name,
                    years,
                    format_loss(year.epsilon),
                    format_largest_belief(year.epsilon),
                    share,
                )
            )
    yield Section(
        title="Privacy losses",
        texts=("In nats; a belief of 50 % becomes at most the one beside it.",),
        columns=("metric", "a report", "belief", "epoch", "all reports of an epoch", "belief"),
        rows=tuple(rows),
    )
    yield Section(
        title="A value that stays",
        texts=(
            "If somebody links the epochs, by address, account or because the person has one "
            "device, their losses add up. 'Named' is how many of equally likely values that "
            "observer names.",
        ),
        columns=("metric", "it stays for", "nats", "belief", "named"),
        rows=tuple(stays),
    )


def format_largest_belief(epsilon: float) -> str:
    """Write the most that a belief of 50 % becomes."""
    high = posterior_bound(epsilon, 0.5)[1]
    return format_belief(high) if high <= _NEAR_CERTAINTY else "almost certain"


def _linking(metric: Metric) -> str:
    if most_reports(metric) == 1:
        return f"{metric.name}: one report an epoch; only address and time link two."
    linked = linkability(metric.params, reports=(2,))
    found = f"{100 * linked.recognised[0].probability:.0f} %"
    cohort = "the cohort and " if metric.params.m > 1 else ""
    return (
        f"{metric.name}: {cohort}the permanent noise, within one "
        f"{'life' if metric.epoch == 'life' else metric.epoch}. Two sets of 2 reports identify a "
        f"device among {linked.devices:,} with {found} probability. Beside that, address and time."
    )


def _withdrawal() -> Section:
    return Section(
        title="Withdrawal",
        texts=(
            "It erases on the device: the secret first, then waiting reports, state and log. "
            "Nothing is sent afterwards. What was reserved of the year's total stays as one line, "
            "so that agreeing again does not renew it.",
            "It cannot erase what was sent: a report that was added to a sum cannot be found in it "
            "again, since nothing in it names the device.",
        ),
    )


def _described(metric: Metric) -> Section:
    lines = [
        line for line in privacy_notice(metric).splitlines() if line != describe_promise(metric)
    ]
    kept = [line for line in lines[1:] if line not in set(describe_segments(metric))]
    what = encoding_of(metric.params).described
    return Section(
        title=f"Metric {metric.name}",
        texts=(f"Answer: {what}.", describe_promise(metric), *describe_segments(metric), *kept[2:]),
    )
