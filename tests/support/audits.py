"""Audits for tests: small metrics, and a rate of false alarms of 1e-9."""

from __future__ import annotations

from registries import metric_of

from rappor import Metric, Params
from rappor.auditing import Audit, Check, audit
from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.encoder_under_test import EncoderUnderTest
from rappor.protocol.encodings.buckets import format_edge


def metric(**fields: object) -> Metric:
    """Return a metric with medium noise. `fields` are fields of `Params`."""
    chosen: dict[str, object] = {"k": 32, "f": 0.5, "p": 0.25, "q": 0.75, **fields}
    params = Params(**chosen)  # type: ignore[arg-type]
    return metric_of(params, "audited", epoch="year")


SMALL = metric()

ENCODINGS = {
    "bloom": metric(k=8, h=2),
    "cohorts": metric(k=64, m=16),
    "onehot": metric(k=5, encoding="onehot", categories=("a", "b", "c", "d", "e")),
    "pair": metric(k=64, m=16, field_names=("site", "country"), normalize="host,none"),
    "choice": metric(
        k=4,
        encoding="onehot",
        field_names=("editor", "system"),
        categories=("vim\x1flinux", "vim\x1fmac", "code\x1flinux", "code\x1fmac"),
        normalize="none,casefold",
    ),
    "boolean": metric(k=1, encoding="boolean"),
    "buckets": metric(k=4, encoding="buckets", categories=tuple(map(format_edge, (0.5, 1, 2)))),
}


def run_audit(
    subject: EncoderUnderTest, audited: Metric, trials: int = 1000, n_reports: int = 2
) -> Audit:
    """Audit an encoder at the false-alarm rate of the tests."""
    return audit(subject, audited, trials=trials, n_reports=n_reports, level=FALSE_ALARM_RATE)


def faults_of(result: Audit) -> set[str]:
    """Return the names of the checks that found a fault."""
    return {check.name for check in result.faults}


def checks_of(result: Audit) -> dict[str, Check]:
    """Return the checks by their names."""
    return {check.name: check for check in result.checks}
