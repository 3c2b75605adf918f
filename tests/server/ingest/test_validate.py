"""Parser of uploads: it accepts the same reports as the strict parser of the protocol."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

import numpy as np
import pytest
from collectors import ACCEPTED, BOOLEAN, PARAMS, TODAY, build_metric, build_report, build_upload
from places import VECTORS
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.retry_keys import key_of_report
from rappor_server.ingest.validate import Submission, Suspicious, read_upload
from registries import build_registry
from scipy import stats

from rappor import Params
from rappor.base.errors import ReportError
from rappor.counts.popcounts import FALSE_ALARM, compute_popcount_range
from rappor.protocol.parts import Part
from rappor.protocol.wire import Report


def parse(body: bytes, **options: Any) -> Submission:
    """Parse an upload with default settings."""
    settings: dict[str, Any] = {
        "today": TODAY,
        "max_reports": 100,
        "suspicious": Suspicious.REFUSE,
    }
    accepted_params = options.pop("accepted_params", ACCEPTED)
    return read_upload(body, accepted_params, **(settings | options))


def list_statuses(submission: Submission) -> list[str]:
    """Return the reason of each refused report, or `accepted`."""
    entries = json.loads(submission.response)["reports"]
    return [entry.get("reason", entry["status"]) for entry in entries]


def make_report(**changes: object) -> dict[str, object]:
    """Return the JSON object of a valid report of `page` with some fields replaced.

    `page` has 4 cohorts and 16 bits, so the cohorts are 0 to 3, and "bits" has two bytes.
    """
    (entry,) = json.loads(build_upload())["reports"]
    return dict(entry) | changes


SPELLINGS = {"fast": (",", ":"), "strict": (", ", ": ")}
"""Separators of JSON, by the parser that reads an upload with them. The fast parser accepts only
JSON without spaces, and the strict parser reads every other upload. Both parsers must return the
same verdicts."""


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make_report(), "accepted"),
        (make_report(metric="nothing"), "unknown-metric"),
        (make_report(params="0" * 16), "unknown-params"),
        (make_report(cohort=4), "cohort"),
        (make_report(cohort=-1), "cohort"),
        (make_report(cohort=1.0), "cohort"),
        (make_report(cohort=True), "cohort"),
        (make_report(bits="AA"), "length"),
        (make_report(bits="AA=="), "malformed"),
        (make_report(bits=None), "malformed"),
        (make_report(metric="No Name"), "malformed"),
        (make_report(device=7), "malformed"),
        (7, "malformed"),
        (make_report(metric="old", params=BOOLEAN.fingerprint, cohort=0, bits="AQ"), "expired"),
        # "Ag" is the byte 2: its second bit is set, and a report of `sound` has one bit.
        (make_report(metric="sound", params=BOOLEAN.fingerprint, cohort=0, bits="Ag"), "padding"),
    ],
)
def test_reason_of_each_invalid_report(entry: object, reason: str, spelling: str) -> None:
    """Both parsers give the same reason, and accept a valid report in the same upload."""
    document = json.loads(build_upload()) | {"reports": [entry, make_report()]}
    submission = parse(json.dumps(document, separators=SPELLINGS[spelling]).encode())
    assert list_statuses(submission) == [reason, "accepted"]
    assert len(submission.accepted) == 1 + (reason == "accepted")
    refused = {key[1]: n for key, n in submission.refusals.items()}
    assert refused == ({} if reason == "accepted" else {reason: 1})


@pytest.mark.parametrize("suspicious", Suspicious)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("bits", "reason"),
    # The bytes 04 00, 00 08, 00 00 and 03 00: one bit of twelve, one, none and two.
    [("BAA", "accepted"), ("AAg", "accepted"), ("AAA", "popcount"), ("AwA", "popcount")],
)
def test_a_report_of_one_bucket_has_exactly_one_1(
    bits: str, reason: str, spelling: str, suspicious: Suspicious
) -> None:
    """A report of a set names one bucket, so it has one 1. All other reports are refused.

    They are refused under both settings about suspicious reports, because no device sends them.
    """
    params = Params(k=12, m=4, items=2, keep=0.5, encoding="set")
    metric = build_metric("plugins", params, epoch="quarter", interval="epoch")
    entry = {"metric": "plugins", "params": metric.fingerprint, "cohort": 0, "bits": bits}
    document = json.loads(build_upload()) | {"reports": [entry]}
    body = json.dumps(document, separators=SPELLINGS[spelling]).encode()
    accepted = AcceptedParams(build_registry(metric))
    submission = parse(body, accepted_params=accepted, suspicious=suspicious)
    assert list_statuses(submission) == [reason]


def test_too_many_reports_refuse_the_upload() -> None:
    """An upload with more reports than the limit is refused as a whole."""
    body = build_upload(*[build_report()] * 3)
    assert len(parse(body, max_reports=3).accepted) == 3
    with pytest.raises(ReportError, match="at most 2") as caught:
        parse(body, max_reports=2)
    assert caught.value.code == "too-many"


@pytest.mark.parametrize("row", json.loads((VECTORS / "key.json").read_text()))
def test_keys_equal_the_vectors(row: dict[str, Any]) -> None:
    """The key of an upload depends on its bytes.

    The key of a report is that key XOR its position.
    """
    submission = parse(row["body"].encode())
    assert submission.key.hex() == row["key"]
    positions = range(1, len(row["report_keys"]) + 1)
    keys = [key_of_report(submission.key, position).hex() for position in positions]
    assert keys == row["report_keys"]


def test_reports_of_older_registries_are_accepted() -> None:
    """Reports under earlier parameters are accepted while the metric exists and has not expired.

    `old` is an earlier registry with other parameters of `page`, and with the metric `gone`. Each
    case has the present registry, the earlier registries, and the status of the report of `page`.
    """
    before = Params(k=16, m=4, f=0.5, p=0.3, q=0.7)
    page, gone = build_metric(params=before), build_metric("gone", before)
    old = build_registry(page, gone)
    body = build_upload(
        build_report(params=page.params),
        Report(metric="gone", params=gone.fingerprint, cohort=0, bits=b"\x0f\x0f"),
    )
    yesterday = TODAY - datetime.timedelta(days=1)
    for new, older, reason in (
        (build_metric(), [], "unknown-params"),
        (build_metric(), [old], "accepted"),
        (build_metric(expires=TODAY), [old], "accepted"),
        (build_metric(expires=yesterday), [old], "expired"),
    ):
        accepted_params = AcceptedParams(build_registry(new), older)
        reasons = list_statuses(parse(body, accepted_params=accepted_params))
        assert reasons == [reason, "unknown-metric"]


@pytest.mark.parametrize(
    "params",
    [
        Params.profile("balanced"),
        Params(k=128, h=4, m=1, f=0.5, p=0.5, q=0.75),
        Params(k=3, encoding="onehot", categories=("a", "b", "c"), f=0.5, p=0.25, q=0.75),
        Params(k=40, encoding="onehot", categories=tuple(map(str, range(40))), f=0.1, p=0.1, q=0.9),
        Params(k=1, encoding="boolean", f=0.1, p=0.1, q=0.9),
        Params(k=2040, h=16, m=1, f=0.2, p=0.01, q=0.6),
    ],
    ids=range(6),
)
def test_range_of_popcounts_is_exact(params: Params) -> None:
    """Each tail has at most half of the false-alarm rate. One more popcount would exceed it.

    The number of ones of a report is the sum of two binomial numbers: of its true bits, with
    probability q*, and of all other bits, with probability p*. The smallest popcount belongs to the
    fewest true bits that a value may have, and the largest popcount to the most.
    """
    smallest, largest = compute_popcount_range(params)
    fewest_true, most_true = {
        "bloom": (1, params.h),
        "onehot": (1, 1),
        "boolean": (0, 1),
    }[params.encoding]

    def distribution(n_true: int) -> Any:
        true_ones = stats.binom.pmf(np.arange(n_true + 1), n_true, params.q_star)
        zeros = stats.binom.pmf(np.arange(params.k - n_true + 1), params.k - n_true, params.p_star)
        return np.convolve(true_ones, zeros)

    low, high = distribution(fewest_true), distribution(most_true)
    assert low[:smallest].sum() <= FALSE_ALARM / 2 < low[: smallest + 1].sum()
    assert high[largest + 1 :].sum() <= FALSE_ALARM / 2 < high[largest:].sum()


@pytest.mark.parametrize(
    ("suspicious", "status"),
    [
        (Suspicious.REFUSE, "popcount"),
        (Suspicious.ACCEPT, "accepted"),
    ],
)
def test_suspicious_popcounts_follow_the_setting(suspicious: Suspicious, status: str) -> None:
    """A report of 128 ones is refused or accepted, depending on the setting."""
    metric = build_metric(params=Params.profile("balanced"))
    params, accepted_params = metric.params, AcceptedParams(build_registry(metric))
    report = Report(metric="page", params=params.fingerprint, cohort=0, bits=b"\xff" * 16)
    assert compute_popcount_range(params)[1] < 128
    submission = parse(build_upload(report), accepted_params=accepted_params, suspicious=suspicious)
    assert list_statuses(submission) == [status]
    is_refused = suspicious is Suspicious.REFUSE
    assert submission.refusals == ({("page", "popcount"): 1} if is_refused else {})
    assert len(submission.accepted) == (not is_refused)


def test_short_reports_are_never_suspicious() -> None:
    """A report of one bit may be 0 or 1."""
    assert compute_popcount_range(BOOLEAN) == (0, 1)


def test_each_part_has_its_own_parameters() -> None:
    """A report has the fingerprint of its part. The fingerprint without a part is refused."""
    metric = build_metric(parts=(Part("prefix:3", 0.5), Part("whole")))
    accepted_params = AcceptedParams(build_registry(metric))
    prefix = metric.part_params("prefix:3")
    body = build_upload(build_report(params=prefix), build_report(params=metric.params))
    submission = parse(body, accepted_params=accepted_params)
    assert list_statuses(submission) == ["accepted", "unknown-params"]
    assert submission.accepted[0].params == prefix
    accepted = accepted_params.find(("page", prefix.fingerprint))
    assert accepted is not None
    assert (accepted.metric, accepted.params) == (metric, prefix)


def test_metrics_with_lost_parameter_sets_are_listed() -> None:
    """Metrics that lost a parameter set are listed, unless they left the registry.

    With the earlier registry in `older`, no metric has lost a parameter set.
    """
    earlier = build_registry(
        build_metric("page"), build_metric("same"), build_metric("gone"), build_metric("edited")
    )
    changed = dataclasses.replace(PARAMS, m=2 * PARAMS.m)
    later = build_registry(
        build_metric("page", changed), build_metric("same"), build_metric("edited", owner="other")
    )
    before = AcceptedParams(earlier)
    assert AcceptedParams(later).list_metrics_with_lost_params(before) == ["page"]
    assert AcceptedParams(later, [earlier]).list_metrics_with_lost_params(before) == []
    # A reload that drops the earlier registry from `older` ends the time of the old devices.
    both = AcceptedParams(later, [earlier])
    assert AcceptedParams(later).list_metrics_with_lost_params(both) == ["page"]
