"""Audits for tests: small metrics, and a rate of false alarms of 1e-9."""

from __future__ import annotations

from registries import build_metric

from rappor import Metric, Params
from rappor.auditing import Audit, Check, audit
from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.encoder_under_test import EncoderUnderTest
from rappor.protocol.encodings.buckets import format_edge


def build_audited_metric(**fields: object) -> Metric:
    """Return a metric with f = 1/2, p = 1/4 and q = 3/4. `fields` are other fields of `Params`."""
    defaults: dict[str, object] = {"k": 32, "f": 0.5, "p": 0.25, "q": 0.75}
    params = Params(**defaults | fields)  # type: ignore[arg-type]
    return build_metric(params, "audited", epoch="year")


SMALL_METRIC = build_audited_metric()
"""Metric of strings with 32 bits and one cohort, so that few trials find a fault of one bit."""

ENCODINGS = {
    "bloom": build_audited_metric(k=8, h=2),
    "cohorts": build_audited_metric(k=64, m=16),
    "onehot": build_audited_metric(k=5, encoding="onehot", categories=("a", "b", "c", "d", "e")),
    "pair": build_audited_metric(
        k=64, m=16, field_names=("site", "country"), normalize="host,none"
    ),
    "choice": build_audited_metric(
        k=4,
        encoding="onehot",
        field_names=("editor", "system"),
        categories=("vim\x1flinux", "vim\x1fmac", "code\x1flinux", "code\x1fmac"),
        normalize="none,casefold",
    ),
    "boolean": build_audited_metric(k=1, encoding="boolean"),
    "buckets": build_audited_metric(
        k=4, encoding="buckets", categories=tuple(map(format_edge, (0.5, 1, 2)))
    ),
}
"""Metrics of every encoding, and of tuples: "pair" hashes both fields, "choice" is one-hot."""


def run_audit(
    encoder: EncoderUnderTest, audited: Metric, trials: int = 1000, n_reports: int = 2
) -> Audit:
    """Audit an encoder at the false-alarm rate of the tests, 1e-9 a check."""
    return audit(encoder, audited, trials=trials, n_reports=n_reports, level=FALSE_ALARM_RATE)


def list_faulty_checks(result: Audit) -> set[str]:
    """Return the names of those checks of an audit that found a fault."""
    return {check.name for check in result.faults}


def map_checks_by_name(result: Audit) -> dict[str, Check]:
    """Return the checks of an audit by their names."""
    return {check.name: check for check in result.checks}
