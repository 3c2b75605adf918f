"""The pace of a collection: reports of each device, and epochs with a permanent response each."""

from __future__ import annotations

import pytest
from registries import format_registry

from rappor import ParamsError, Registry
from rappor.planning.collection_pace import CollectionPace, choose_pace

METRIC = Registry.loads(format_registry("page", epoch='"month"', interval='"week"'))["page"]
"""Metric of a registry in which devices report weekly and draw a new response each month."""


def test_default_pace_is_daily_reports_in_a_quarter() -> None:
    """Without a metric and options, the pace is daily, with quarters as epochs.

    No number of days is known, so a plan assumes one report of each device (`mean_reports`).
    """
    assert choose_pace(None, has_instantaneous_noise=True) == CollectionPace(
        interval="day", epoch="quarter"
    )


def test_a_metric_has_its_own_pace_and_options_replace_it() -> None:
    """A plan for a metric has the pace of its entry, except for the options that a person passes.

    60 days have 60 daily reports, and overlap with two months.
    """
    assert choose_pace(METRIC, has_instantaneous_noise=True).interval == "week"
    pace = choose_pace(METRIC, has_instantaneous_noise=True, interval="day", days=60)
    assert (pace.epoch, pace.mean_reports, pace.epochs) == ("month", 60, 2)


def test_after_a_third_of_an_epoch_a_third_of_the_devices_has_reported() -> None:
    """After d days, a device that reports once in an epoch has reported with probability d / n.

    The secret of a device draws the day of its report uniformly from the first n days of the epoch,
    all but its last eight. A quarter has 91.3125 days in the mean. A device that has reported sent
    one report.
    """
    pace = choose_pace(None, has_instantaneous_noise=False, epoch="quarter", days=30)
    assert pace.has_one_report_per_epoch
    assert pace.share_of_devices == pytest.approx(30 / (91.3125 - 8))
    assert pace.reports_per_device == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"has_instantaneous_noise": False, "interval": "day"},
            "interval must be epoch if epsilon_1 equals epsilon_inf",
        ),
        (
            {"has_instantaneous_noise": False, "epoch": "life"},
            "epoch must be year, quarter or month",
        ),
        (
            {"has_instantaneous_noise": False, "reports_per_device": 2},
            "reports_per_device must be 1",
        ),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], reason: str) -> None:
    """An error of contradicting options names the option to change."""
    with pytest.raises(ParamsError, match=reason):
        choose_pace(None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("days", "reports"), [(None, None), (None, 30), (30, None)])
def test_a_whole_number_of_reports_is_an_integer(days: int | None, reports: int | None) -> None:
    """JSON has 30 and not 30.0."""
    pace = choose_pace(None, has_instantaneous_noise=True, days=days, reports_per_device=reports)
    assert isinstance(pace.reports_per_device, int)
