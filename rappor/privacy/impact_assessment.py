"""A skeleton of a data protection impact assessment (Article 35 GDPR): risks with their numbers.

A likelihood is computed; how grave a harm would be, and what is decided, people write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.privacy.documents import Document, Section
from rappor.privacy.registry_datasheet import (
    LEGAL,
    format_largest_belief,
    format_loss,
    sum_reserved,
)
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_OPEN: Final = "[to be filled in]"
_EVEN: Final = "from 50 %"
_Risk = tuple[str, str, str, str]


def write_impact_assessment(registry: Registry) -> Document:
    """Return the skeleton for all metrics of a registry."""
    risks = [risk for metric in registry.values() for risk in _risks(metric)]
    return Document(
        title="Data protection impact assessment: skeleton",
        sections=(
            Section(
                title="Processing",
                texts=(
                    "Purpose, fields, recipients and retention are in the data sheet of the same "
                    "registry.",
                    f"Necessity and proportionality: {_OPEN}",
                    f"Data protection officer, consultation of persons concerned: {_OPEN}",
                ),
            ),
            Section(
                title="Risks",
                columns=("risk", "likelihood", "measure", "severity"),
                rows=(*risks, *_common(registry)),
            ),
            Section(title="Legal terms", texts=LEGAL),
            Section(title="Decision", texts=(f"Residual risk, decision, date, names: {_OPEN}",)),
        ),
    )


def _risks(metric: Metric) -> Iterator[_Risk]:
    """Yield what can happen to the person by one metric."""
    one, every, name = epsilon_1(metric.params), scope_loss(metric), metric.name
    noise = f"noise on the device, epsilon {format_loss(one)} a report"
    yield f"{name}: one report reveals the value", _said(one), noise, _OPEN
    if most_reports(metric) != 1:
        repeat = f"the permanent response is repeated, epsilon {format_loss(every)}"
        yield f"{name}: all reports of an epoch reveal it", _said(every), repeat, _OPEN
        linked = linkability(metric.params, reports=(2,))
        yield (
            f"{name}: a device is recognised among {linked.devices:,} by two sets of 2 reports",
            f"{100 * linked.recognised[0].probability:.0f} %",
            "one report an upload, own delays, sums instead of reports",
            _OPEN,
        )
    stays = compute_unchanged_loss(metric)
    if stays.named is not None:
        yield (
            f"{name}: linked epochs name a value that stays a year, of {stays.candidates:,}",
            f"{100 * stays.named:.0f} %",
            'another cohort and noise each epoch; epoch = "life" for values that stay',
            _OPEN,
        )
    if metric.segments:
        yield f"{name}: properties sent without noise single out a device", _OPEN, _OPEN, _OPEN


def _common(registry: Registry) -> Iterator[_Risk]:
    """Yield what does not depend on one metric."""
    yield (
        "all metrics together profile a person in a year",
        f"at most {format_loss(sum_reserved(registry))} nats for a device",
        "the registry's total, reserved before anything is sent",
        _OPEN,
    )
    yield (
        "somebody reads the device's folder and tries all values",
        "certain for who holds the folder",
        "only its user can read it; withdrawal erases the secret first",
        _OPEN,
    )
    least = min((metric.min_cohort for metric in registry.values()), default=0)
    yield (
        "a released sum shows one device",
        f"at most one in {least:,} of a cohort's reports is one device's",
        "blocks of whole days, least numbers of reports",
        _OPEN,
    )
    yield "addresses and times are logged before the collector", _OPEN, _OPEN, _OPEN


def _said(epsilon: float) -> str:
    return f"{format_largest_belief(epsilon)} at most, {_EVEN}"
