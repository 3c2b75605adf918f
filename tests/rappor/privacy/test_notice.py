"""Privacy notices: the sentences about losses, promise, linking and release.

A notice tells people without mathematics what a metric reveals about them. A wrong sentence is a
wrong promise, so the tests compare whole sentences.
"""

from __future__ import annotations

import datetime
import math
import re
from functools import partial
from typing import Any

import pytest
from registries import build_metric

from rappor import Registry
from rappor.base.sentence_numbers import format_belief, format_chance
from rappor.privacy.consent_text import write_consent_texts
from rappor.privacy.notice import describe_belief, privacy_notice
from rappor.privacy.registry_datasheet import write_datasheet
from rappor.privacy.report_linkage import linkability
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.protocol.tuples import combine_categories
from rappor.reporting.papers import paper_markdown

DAY = datetime.date(2026, 11, 30)
LAST_DAY = datetime.date(2026, 12, 31)
"""Last day of a quarter. A metric with epochs of a quarter that expires on this day ends together
with an epoch."""

make_metric = partial(build_metric, description="Home pages", owner="browser team", expires=DAY)
"""Makes a metric for life from parameters and other fields."""

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75, normalize="host")
"""Parameters of [EPK14] section 5.2: epsilon_1 is 1.07 nats, and epsilon_inf is 4.39 nats."""

RECOGNISED, RECOGNISED_AT_MOST = (
    row.probability for row in linkability(PAPER, reports=(2,)).recognised
)
"""Probability that two sets of two reports, and of any number, recognise a device of a million."""


def test_the_notice_of_a_metric_for_life() -> None:
    """The notice of a metric for life has exactly these sentences."""
    assert privacy_notice(make_metric(PAPER)).splitlines() == [
        "page: Home pages",
        "Collected by browser team until the end of 2026-11-30.",
        "Recorded at most once a day: a text (only the host of a web address), hashed to 2 of 128 "
        "bits. The device flips some of its bits at random before it sends a report.",
        "One report: somebody who was half sure what your answer is can be at most 74.6 % sure.",
        "All reports of one value: somebody who was half sure what your answer is can be at most "
        "98.8 % sure.",
        "Promise: in its whole life a device repeats the value of its first report, even if its "
        "value changes. The limit on the loss holds whatever values the device has over time. The "
        "condition is that the values do not affect when and how often the device reports.",
        "Linking: all reports of a device share its cohort (one of 16) and its permanent noise. "
        "Somebody who has 2 reports of a device, and 2 further reports of each of 1,000,000 "
        f"devices, finds those of the same device with {format_chance(RECOGNISED)} probability. "
        f"With any number in place of 2, the probability is {format_chance(RECOGNISED_AT_MOST)}. "
        "Apart from cohort and noise, only its network address or the time of sending can link "
        "reports.",
        "The collector keeps sums by day and cohort, not reports. It shows a sum of whole "
        "days only if the sum contains at least 100 reports, and if no device sent more than one "
        "in 10 of the reports of a cohort.",
    ]


def test_a_notice_names_the_fields_of_a_tuple() -> None:
    """A notice names each field of a tuple, how its text is normalized, and its categories."""
    pair = Params.profile("balanced", field_names=("site", "country"), normalize="host,none")
    assert (
        "Recorded at most once a day: site (only the host of a web address) and country together, "
        "hashed to 1 of 128 bits."
    ) in privacy_notice(make_metric(pair))
    lists = {"editor": ("vim", "code"), "system": ("linux", "mac")}
    choice = Params.profile(
        "balanced",
        encoding="onehot",
        categories=combine_categories(lists),
        field_names=tuple(lists),
        normalize="casefold,none",
    )
    assert (
        "Recorded at most once a day: one of 4 combinations of editor (vim, code; upper and lower "
        "case count as the same) and system (linux, mac)."
    ) in privacy_notice(make_metric(choice))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            (Part("prefix:1", 0.125), Part("whole")),
            "A device reports its first 1 character (12.5 % of the devices) or all of it (87.5 % "
            "of the devices), drawn once.",
        ),
        (
            (Part("prefix:3", 0.2), Part("prefix:6", 0.3), Part("whole")),
            "A device reports its first 3 characters (20 % of the devices), its first 6 characters "
            "(30 % of the devices) or all of it (50 % of the devices), drawn once.",
        ),
    ],
)
def test_a_notice_names_the_parts_of_a_string(parts: tuple[Part, ...], sentence: str) -> None:
    """A person learns that some devices report a prefix, by which unlisted values are found.

    Notice and data sheet have the same sentence, and the text for consent says it without numbers.
    """
    metric, plain = make_metric(PAPER, parts=parts), make_metric(PAPER)
    assert f"hashed to 2 of 128 bits. {sentence} The device flips" in privacy_notice(metric)
    assert "character" not in privacy_notice(plain)
    for entry, has_parts in ((metric, True), (plain, False)):
        registry = Registry([entry], total=math.inf)
        sheet, consent = (
            paper_markdown(write(registry)) for write in (write_datasheet, write_consent_texts)
        )
        assert (sentence in sheet) is has_parts
        assert ("Some devices send only the beginning of the answer" in consent) is has_parts


def test_epochs_are_named_in_the_promise() -> None:
    """With epochs, the notice describes the loss and the promise of one epoch.

    The notice also describes how well an observer can name a value that stays the same for a year.
    """
    text = privacy_notice(make_metric(PAPER, epoch="quarter"))
    assert "All reports of one value in one quarter: somebody" in text
    assert "Promise: in each quarter a device repeats the value of its first report" in text
    assert "whole life" not in text
    year = "pick its value out of 100 equally likely ones 77 times in 100."
    assert year in privacy_notice(make_metric(Params.profile("balanced"), epoch="quarter"))


@pytest.mark.parametrize(
    ("params", "bounds"),
    [
        (Params.profile("balanced"), "at most 88.1 %"),
        (Params(k=128, m=128, f=0.5, g=0, p=0.05, q=0.6), "at most 90.2 %"),
    ],
)
def test_one_report_an_epoch_repeats_and_links_nothing(params: Params, bounds: str) -> None:
    """With one report an epoch, the notice has one bound on the loss, and no noise that links.

    Each epoch has new noise, so the noise does not link the reports.
    """
    text = privacy_notice(make_metric(params, epoch="quarter", interval="epoch", expires=LAST_DAY))
    assert text.count("% sure.") == text.count(bounds) == 1
    assert "in each quarter a device sends one report at most." in text
    assert "draws its noise anew for each. Only a value that stays the same, its network" in text
    assert not re.search("WARNING|All reports|repeats|with .* probability", text)


def test_the_bound_of_all_reports_covers_the_longest_epoch() -> None:
    """The bound of all weekly reports is for six reports, because a month touches six weeks.

    With g = 0 the loss grows with the number of reports. For a metric for life this number has no
    bound, and the notice warns.
    """
    params = Params(k=128, m=128, f=0.5, g=0, p=0.05, q=0.6)
    weekly = privacy_notice(make_metric(params, epoch="month", interval="week"))
    bound = describe_belief(epsilon_n(params, 6))
    assert f"All reports of one value in one month: {bound}." in weekly.splitlines()
    assert "WARNING: many reports" in privacy_notice(make_metric(params, epoch="life"))


@pytest.mark.parametrize(
    ("expires", "share"),
    [
        (LAST_DAY, None),
        (datetime.date(2026, 12, 23), None),
        (datetime.date(2026, 12, 22), "1.19"),
        (datetime.date(2026, 11, 11), "50"),
        (datetime.date(2026, 10, 1), "98.8"),
        (datetime.date.max, None),
    ],
)
def test_devices_with_a_day_after_the_expiry_are_described(
    expires: datetime.date, share: str | None
) -> None:
    """If a metric expires inside a quarter, the notice has the share of devices that never report.

    With one report an epoch, each device draws the day of its report. It never draws one of the
    last eight days, so it draws one of the first 84 of the quarter's 92 days, until December 23.
    `share` is the percentage of these 84 days that come after the last day of the metric. A metric
    that reports daily has no such sentence.
    """
    fields: dict[str, Any] = {"epoch": "quarter", "expires": expires}
    assert "later day" not in privacy_notice(make_metric(PAPER, interval="day", **fields))
    text = privacy_notice(make_metric(PAPER, interval="epoch", **fields))
    sentence = (
        f"It expires on {expires}, before the quarter ends: the {share} % of the devices that draw "
        "a later day do not answer in that quarter."
    )
    assert (sentence in text.splitlines()) is ("later day" in text) is (share is not None)


@pytest.mark.parametrize(
    ("params", "phrase"),
    [
        (
            {"k": 3, "encoding": "onehot", "categories": tuple("abc")},
            "one of 3 .*: a, b, c",
        ),
        ({"k": 1, "encoding": "boolean"}, ": yes or no. The device flips"),
        ({"k": 3, "encoding": "buckets", "categories": ("0", "1.5")}, "3 ranges .* at 0, 1.5"),
    ],
)
def test_every_encoding_lists_its_values(params: dict[str, Any], phrase: str) -> None:
    """The notice lists categories and edges, which are public."""
    assert re.search(phrase, privacy_notice(make_metric(Params(**params, f=0.5, p=0.25, q=0.75))))


def test_an_expired_metric_is_called_expired() -> None:
    """From the day after its last day on, the notice of a metric states that it has expired.

    The notice depends on the present day only if the caller passes it.
    """
    metric = make_metric(PAPER)
    assert "expired" not in privacy_notice(metric)
    assert "expired" not in privacy_notice(metric, today=DAY)
    late = privacy_notice(metric, today=DAY + datetime.timedelta(days=1))
    assert "until 2026-11-30. It has expired: nothing is collected any more." in late


def test_no_bound_is_a_warning() -> None:
    """If a loss is infinite, the notice warns, once for many reports and once for one report."""
    notice = privacy_notice(make_metric(Params(k=8, f=0, p=0.25, q=0.75)))
    assert notice.count("WARNING") == 1
    assert "WARNING: many reports can reveal the value with certainty" in notice
    noiseless = privacy_notice(make_metric(Params(k=8, f=0, p=0, q=1, insecure=True)))
    assert noiseless.count("WARNING") == 2
    assert "flips" not in noiseless
    assert "WARNING: one report can reveal the value with certainty" in noiseless


def test_a_weak_bound_is_not_shown_as_a_percentage() -> None:
    """If a bound is near certainty, the notice has "almost certain" in place of a percentage.

    A reader would take the digits of "99.97 %" for a protection, and there is almost none.
    """
    text = privacy_notice(make_metric(Params.profile("low-noise")))
    assert "somebody who was half sure what your answer is can become almost certain" in text
    assert "100 %" not in text


def test_links_that_cannot_be_seen_are_not_listed() -> None:
    """If cohort and noise practically link no reports, the notice has no numbers about linking.

    One bit and one cohort cannot distinguish devices. 300 bits of permanent noise can.
    """
    few = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    assert (
        "In practice only its network address or the time of sending can link a device's reports."
        in privacy_notice(make_metric(few)).splitlines()
    )
    names = tuple(map(str, range(300)))
    many = Params(k=300, encoding="onehot", categories=names, f=0.5, p=0.25, q=0.75)
    text = privacy_notice(make_metric(many, epoch="month"))
    assert "Linking: the reports of a device in one month share its permanent noise. Some" in text
    assert "Apart from noise, only its network address" in text


@pytest.mark.parametrize("n_categories", [3, 16, 24, 100])
@pytest.mark.parametrize(
    ("epoch", "interval", "largest"),
    [("month", "week", 3), ("quarter", "day", 46), ("year", "week", 27), ("life", "day", None)],
)
def test_only_an_epoch_without_links_is_called_unlinkable(
    n_categories: int, epoch: str, interval: str, largest: int | None
) -> None:
    """A notice denies links by noise only if even half of the reports of an epoch show none.

    Bad case: the notice once judged by two reports. It called reports of 24 categories under the
    profile "strict" unlinkable, although 46 daily reports recognise 13 % of a million devices.
    """
    names = tuple(map(str, range(n_categories)))
    params = Params.profile("strict", encoding="onehot", categories=names)
    text = privacy_notice(make_metric(params, epoch=epoch, interval=interval))
    sizes = (2,) if largest is None else (2, largest)
    few, *_, most = linkability(params, reports=sizes).recognised[: len(sizes) + (not largest)]
    chance = format_chance(most.probability)
    assert ("In practice only" in text) is (chance == "less than 1 %")
    if "In practice only" not in text:
        number = "any number" if largest is None else str(largest)
        assert f"device with {format_chance(few.probability)} probability. " in text
        assert f"With {number} in place of 2, the probability is {chance}." in text


def test_smallest_released_sums_are_described() -> None:
    """The notice has the smallest number of reports in a released sum, as the registry sets it."""
    text = privacy_notice(make_metric(PAPER, min_reports=500))
    assert (
        "The collector keeps sums by day and cohort, not reports. It shows a sum of whole days "
        "only if the sum contains at least 500 reports, and if no device sent more than one in 10 "
        "of the reports of a cohort."
    ) in text
    assert "90 %" not in text
    assert "It shows every sum at once" in privacy_notice(make_metric(PAPER, min_reports=0))
    boolean = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    sentence = (
        "only if the sum contains at least 100 reports, and if no device sent more than one in 10 "
        "of these reports."
    )
    assert sentence in privacy_notice(make_metric(boolean))


@pytest.mark.parametrize(
    ("belief", "text"),
    [
        (0.5, "50 %"),
        (0.73106, "73.2 %"),
        (0.88080, "88.1 %"),
        (0.999665, "99.967 %"),
        (1.0, "100 %"),
    ],
)
def test_beliefs_are_rounded_up(belief: float, text: str) -> None:
    """A printed bound is never below the true bound."""
    assert format_belief(belief) == text


def test_segments_are_listed_with_what_they_reveal() -> None:
    """The notice lists every property that is sent without noise, and what it reveals.

    The sentences about promise, linking and release state that they do not cover the properties.
    """
    dimensions = (Dimension("version", ("1", "2")), Dimension("country", ("de",)))
    lines = privacy_notice(make_metric(PAPER, segments=dimensions, epoch="quarter")).splitlines()
    assert lines[3] == (
        "Every report shows these properties of the device, without noise: version (1, 2, other); "
        "country (de, other), as they are at the first report of a quarter. Everybody who sees a "
        "report knows which of 6 groups its device is in. The limits below are for the value. They "
        "do not cover what these properties reveal about it."
    )
    assert "as they are" not in privacy_notice(make_metric(PAPER, segments=dimensions))
    _, _, _, *plain = privacy_notice(make_metric(PAPER, epoch="quarter")).splitlines()
    differing = [
        line for line, plain_line in zip(lines[4:], plain, strict=True) if line != plain_line
    ]
    promise, linking, showing = differing
    assert "affect neither its properties nor when and how often the device reports." in promise
    assert "share its properties, its cohort" in linking
    assert "of each of 1,000,000 devices with the same properties, finds" in linking
    assert "only its properties, its network address or the time of sending" in linking
    assert "at least 100 reports of one group, and if no device sent more than one in" in showing
