"""PrivacyReport: every part equals the result of the function that computes it.

A privacy report collects losses, promise, linkability, shuffling, account and change of a metric.
The functions are tested elsewhere, so these tests compare its parts with their results.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from registries import build_metric

from rappor import Metric, Params, ParamsError, Registry
from rappor.privacy.accountant import compose_losses
from rappor.privacy.assessment import (
    ShuffledBatch,
    Shuffling,
    Usage,
    list_losses,
    privacy_report,
    privacy_report_of,
)
from rappor.privacy.notice import privacy_notice
from rappor.privacy.parameter_changes import compute_change_loss
from rappor.privacy.report_linkage import linkability
from rappor.privacy.shuffling import compute_shuffled_epsilon, compute_smallest_cohort
from rappor.protocol.loss import epsilon_inf, epsilon_n, posterior_bound
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension

pytestmark = pytest.mark.slow  # numerical work of seconds

BALANCED = Params.profile("balanced")


def make_metric(
    name: str = "page", *, params: Params = BALANCED, epoch: str = "life", **fields: Any
) -> Metric:
    """Return a metric, by default for life and with the profile "balanced"."""
    return build_metric(params, name, epoch=epoch, **fields)


def test_losses_are_listed_by_number_of_reports() -> None:
    """Each number of reports has its loss, and the bounds that this loss sets to four beliefs.

    The last row, whose number is None, is for any number of reports.
    """
    losses = list_losses(BALANCED)
    assert [loss.reports for loss in losses] == [1, 2, 3, 5, 10, 100, None]
    for loss in losses[:-1]:
        assert loss.reports is not None
        assert loss.epsilon == epsilon_n(BALANCED, loss.reports)
    assert losses[-1].epsilon == epsilon_inf(BALANCED)
    for loss in losses:
        for belief in loss.beliefs:
            assert (belief.least, belief.most) == posterior_bound(loss.epsilon, belief.prior)


def test_parameters_alone_have_no_metric() -> None:
    """Without a metric the fields about the metric are None, and all other fields are equal."""
    report = privacy_report_of(BALANCED)
    assert (report.metric, report.promise, report.account, report.change) == (None,) * 4
    of_metric = privacy_report(make_metric())
    # The parameters of a metric carry its interval and epoch; parameters alone have neither.
    assert of_metric.params == make_metric().params
    assert report == dataclasses.replace(of_metric, metric=None, promise=None, params=BALANCED)
    daily = privacy_report(make_metric(epoch="quarter"))
    assert daily.linkability == linkability(BALANCED, most_reports=92)
    assert of_metric.metric == "page"
    assert (report.epsilon_1, report.epsilon_inf) == (
        epsilon_n(BALANCED, 1),
        epsilon_inf(BALANCED),
    )
    assert report.linkability == linkability(BALANCED)


def test_parameters_without_instantaneous_noise_have_one_report_an_epoch() -> None:
    """The profile "once" has one report in each epoch, and no row for a life.

    Bad case: the report of the parameters once had a row for life and several reports of an epoch.
    A registry refuses both.
    """
    params = Params.profile("once")
    report = privacy_report_of(params)
    of_metric = privacy_report(make_metric(params=params, epoch="year", interval="epoch"))
    assert report == dataclasses.replace(of_metric, metric=None, promise=None, params=params)
    assert {row.epoch for row in report.staying} == {"year", "quarter", "month"}


def test_the_promise_names_the_epoch() -> None:
    """The promise of a metric with months says "in each month"."""
    by_month = privacy_report(make_metric(epoch="month"))
    assert by_month.promise is not None
    assert "in each month a device repeats the value of its first report" in by_month.promise


def assess_shuffling(params: Params, batch: ShuffledBatch) -> Shuffling:
    """Return the losses in a shuffled batch."""
    shuffling = privacy_report_of(params, batch=batch).shuffling
    assert shuffling is not None
    return shuffling


def test_a_batch_is_bounded_inside_its_smallest_cohort() -> None:
    """The losses in a shuffled batch are the losses in its smallest cohort.

    A report names its cohort, so it hides among the reports of its cohort only. If the sizes of the
    cohorts are unknown, the smallest size is random. Half of delta is then the probability that a
    cohort is smaller than assumed. If the sizes are counted, the whole delta is left for the loss.
    """
    likely = assess_shuffling(BALANCED, ShuffledBatch(devices=100_000, delta=1e-6))
    size = compute_smallest_cohort(100_000, 128, delta=5e-7)
    assert (likely.devices, likely.smallest_cohort, likely.counted) == (100_000, size, False)
    local = epsilon_n(BALANCED, 1)
    assert likely.losses[0].epsilon == compute_shuffled_epsilon(local, size, delta=5e-7)
    sizes = (5_000, 0, 4_000)
    counted = assess_shuffling(BALANCED, ShuffledBatch(delta=1e-6, cohorts=sizes))
    assert (counted.devices, counted.smallest_cohort, counted.counted) == (9_000, 4_000, True)
    assert counted.losses[0].epsilon == compute_shuffled_epsilon(local, 4_000, delta=1e-6)
    one_cohort = Params(k=8, m=1, f=0.5, p=0.25, q=0.75)
    only = assess_shuffling(one_cohort, ShuffledBatch(devices=10, delta=1e-6))
    assert only.losses[0].epsilon == compute_shuffled_epsilon(
        epsilon_n(one_cohort, 1), 10, delta=1e-6
    )
    assert only.smallest_cohort == 10


def test_an_empty_cohort_has_no_losses() -> None:
    """If the smallest cohort may be empty, the report has no losses of a shuffled batch."""
    for batch in (
        ShuffledBatch(devices=9),
        ShuffledBatch(cohorts=(0, 0)),
        ShuffledBatch(cohorts=()),
    ):
        shuffling = assess_shuffling(BALANCED, batch)
        assert (shuffling.smallest_cohort, shuffling.losses) == (0, ())


def test_properties_without_noise_are_described() -> None:
    """The report has the notice's sentence about segments, and None without segments."""
    version = Dimension("version", ("1", "2"))
    report = privacy_report(make_metric(segments=(version,)))
    assert report.without_noise in privacy_notice(make_metric(segments=(version,))).splitlines()
    assert privacy_report(make_metric()).without_noise is None
    assert report.promise is not None
    assert "affect neither its properties nor when" in report.promise


def test_added_parts_are_a_change_of_the_metric() -> None:
    """If a metric gets parts, devices draw new permanent responses, so the losses add."""
    parts = (Part("prefix:2", 0.5), Part("whole"))
    before = make_metric(params=BALANCED, epoch="life")
    change = privacy_report(before, changed=dataclasses.replace(before, parts=parts)).change
    assert change is not None
    assert (change.same, change.kept) == (False, False)
    assert change.epsilon_inf == 2 * epsilon_inf(BALANCED)


def test_an_account_adds_the_losses_of_a_registry() -> None:
    """The account of a report has the losses of every metric, of a person and of a group."""
    registry = Registry([make_metric("a"), make_metric("b", epoch="year")], total=math.inf)
    usage = Usage(values=3, reports=5, group=4)
    person = privacy_report(registry["a"], registry=registry, usage=usage).account
    assert person is not None
    some_metrics = compose_losses(registry.values(), values=3, reports=5)
    all_metrics = compose_losses(registry.values(), values=3)
    assert [(loss.metric, loss.epoch) for loss in person.metrics] == [("a", "life"), ("b", "year")]
    assert [loss.epsilon for loss in person.metrics] == [
        item.epsilon for item in some_metrics.items
    ]
    assert (person.epsilon, person.epsilon_inf) == (some_metrics.epsilon, all_metrics.epsilon)
    assert (person.group_epsilon, person.group_epsilon_inf) == (
        some_metrics.epsilon_of_group(4),
        all_metrics.epsilon_of_group(4),
    )


@pytest.mark.parametrize(
    ("old", "new", "is_same", "is_kept"),
    [
        (make_metric(), make_metric(), True, True),
        (make_metric(), make_metric(params=dataclasses.replace(BALANCED, p=0.1)), False, True),
        (make_metric(), make_metric(params=Params.profile("strict")), False, False),
        (make_metric(epoch="year"), make_metric(epoch="year"), True, False),
        (make_metric(), make_metric(epoch="year"), False, False),
        (make_metric(), make_metric(interval="week"), False, True),
        (make_metric(), make_metric(sampling_rate=0.5), False, True),
        (make_metric(epoch="year"), make_metric(epoch="year", interval="week"), False, False),
    ],
)
def test_a_change_of_the_entry_has_its_loss(
    old: Metric, new: Metric, *, is_same: bool, is_kept: bool
) -> None:
    """The report of a changed metric has the loss across the change.

    `is_kept` says whether devices keep their permanent response, as after a change of p and q of a
    metric for life. A metric with epochs takes up its change with the next epoch, and so a new
    response.
    """
    change = privacy_report(old, changed=new, usage=Usage(reports=7)).change
    assert change is not None
    assert (change.same, change.kept) == (is_same, is_kept)
    assert (change.params, change.old_epoch, change.new_epoch) == (
        new.fingerprint,
        old.epoch,
        new.epoch,
    )
    is_for_life = old.epoch == new.epoch == "life"
    cost = compute_change_loss(old.params, new.params, before=7, after=7, is_for_life=is_for_life)
    assert (change.epsilon, change.epsilon_inf) == (cost.epsilon, cost.epsilon_inf)


def test_numbers_outside_their_range_are_refused() -> None:
    """A number outside its range is refused, and the message has the name of the argument."""
    for bad in ({"devices": 0}, {"devices": 1.5}, {"delta": 0.0}, {"delta": float("nan")}):
        with pytest.raises(ParamsError, match=f"{next(iter(bad))} must be"):
            ShuffledBatch(**bad)
    with pytest.raises(ParamsError, match="cohorts must be"):
        ShuffledBatch(cohorts=(10, -5))
    for name in ("values", "reports", "group"):
        with pytest.raises(ParamsError, match=f"{name} must be"):
            Usage(**{name: 0})
