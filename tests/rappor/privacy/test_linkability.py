"""Linkability of reports: what links them, against enumerations and published figures.

Reports of a device share its cohort and its permanent noise, which an observer can recognise.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest

from rappor.base.errors import ParamsError
from rappor.privacy.report_linkage import cohort_bits, linkability, reports_to_recover
from rappor.protocol.params import Params
from rappor.protocol.thresholds import ONE

PAPER_52 = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)
BROWSER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
"""The first parameters stand in section 5.2 of the RAPPOR paper. The collection in Chrome has the
second parameters."""


def test_published_figures() -> None:
    """Numbers of reports that reveal the permanent response, and bits of information in a cohort.

    With 207 or 51 reports an observer knows all bits of the permanent response with probability
    0.99. A cohort distinguishes devices by log2 m bits.
    """
    assert reports_to_recover(PAPER_52) == 207
    assert reports_to_recover(BROWSER) == 51
    assert (cohort_bits(PAPER_52), cohort_bits(BROWSER)) == (4, 3)


@pytest.mark.parametrize(
    ("p", "q"), [(0.1, 0.9), (0.05, 0.8), (0.0, 0.5), (0.0, 0.7), (0.2, 1.0), (0.0, 1.0)]
)
def test_recovery_is_the_smallest_number(p: float, q: float) -> None:
    """`reports_to_recover` is the smallest number that reveals all k bits with probability 0.99.

    For each bit, the observer names the likelier of its two states. The probability that it is
    right is the sum over all sequences of reports of the bit.
    """
    params = Params(k=2, f=0.5, p=p, q=q)
    rate_of_one, rate_of_zero = Fraction(params.t_q, ONE), Fraction(params.t_p, ONE)

    def enumerate_recovery(n: int) -> Fraction:
        """Return the probability that all k states are right after n reports."""
        total = Fraction(0)
        for reports in itertools.product((0, 1), repeat=n):
            states = [
                math.prod((x if bit else 1 - x for bit in reports), start=Fraction(1))
                for x in (rate_of_zero, rate_of_one)
            ]
            total += max(states)
        return (total / 2) ** params.k

    expected = next(n for n in range(1, 20) if enumerate_recovery(n) >= Fraction(99, 100))
    assert expected < 14
    assert reports_to_recover(params) == expected


def test_faint_reports_recover_nothing_soon() -> None:
    """If 10,000 reports do not reveal the permanent response, the result is None."""
    assert reports_to_recover(Params(k=128, f=0.5, p=0.49, q=0.5)) is None


@pytest.mark.parametrize(
    ("noise", "entropy", "recognised"),
    [
        ((0.537883, 0.134471, 0.634471), 107, (0.20, 0.78, 1.0)),
        ((0.238406, 0.059601, 0.559601), 67, (0.10, 0.70, 1.0)),
        ((0.035972, 0.008993, 0.508993), 17, (0.05, 0.32, 0.70)),
    ],
)
def test_devices_among_a_million(
    noise: tuple[float, float, float], entropy: int, recognised: tuple[float, ...]
) -> None:
    """The probabilities agree with an independent simulation, within two of its standard errors.

    `noise` is f, p, q. `entropy` is the entropy of a permanent response in bits. `recognised` has
    the simulated shares of 40 devices that 1, 2 and 5 reports recognise.
    """
    f, p, q = noise
    result = linkability(Params(k=128, m=128, f=f, p=p, q=q), 1_000_000, (1, 2, 5))
    assert (result.devices, result.cohort_devices, result.cohort_bits) == (1_000_000, 7_812, 7)
    assert result.permanent_bits == pytest.approx(entropy, abs=0.6)
    assert [recognition.reports for recognition in result.recognised] == [1, 2, 5, None]
    for recognition, share in zip(result.recognised, recognised, strict=False):
        spread = math.sqrt(max(share * (1 - share), 0.05) / 40)
        assert recognition.probability == pytest.approx(share, abs=2 * spread)


def test_more_reports_and_fewer_devices_link_better() -> None:
    """The probability grows with the reports and falls with the devices.

    A device that is alone in its cohort is always recognised. One report recognises almost no
    device in a cohort of a million. 8,000,000 devices are a million in each of 8 cohorts.
    """
    probabilities = [
        [recognition.probability for recognition in linkability(BROWSER, devices).recognised]
        for devices in (8, 800, 8_000_000)
    ]
    assert probabilities[0] == pytest.approx([1.0] * 5)
    for row in probabilities:
        assert all(y >= x - 1e-9 for x, y in itertools.pairwise(row))
    for few, many in itertools.pairwise(probabilities):
        assert all(x >= y for x, y in zip(few, many, strict=True))
    assert probabilities[-1][0] < 0.02


@pytest.mark.parametrize(
    ("most_reports", "sizes", "is_recovered"),
    [
        (1, [], False),
        (2, [1], False),
        (6, [1, 2, 3], False),
        (14, [1, 2, 5, 7], False),
        (40, [1, 2, 5, 20], True),
        (92, [1, 2, 5, 20, 46], True),
        (None, [1, 2, 5, 20, None], True),
    ],
)
def test_two_sets_have_no_more_reports_than_a_scope(
    most_reports: int | None, sizes: list[int | None], is_recovered: bool
) -> None:
    """No probability is for more reports than a device sends in a scope.

    One report in a scope has no second one to link. 24 reports reveal the permanent response of the
    profile "balanced", so a scope of 14 reports does not reveal it.
    """
    balanced = Params.profile("balanced")
    result = linkability(balanced, most_reports=most_reports)
    assert [row.reports for row in result.recognised] == sizes
    assert result.reports_to_recover == (24 if is_recovered else None)
    unlimited = linkability(balanced, reports=[n for n in sizes if n]).recognised
    assert result.recognised == unlimited[: len(sizes)]


def test_several_metrics_of_one_upload_add_their_cohorts() -> None:
    """If one upload had reports of several metrics, the bits of their cohorts would add.

    A metric with one cohort adds nothing. This is why a device sends each report in an upload of
    its own.
    """
    flag = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    assert cohort_bits(PAPER_52, BROWSER, flag) == 7
    assert cohort_bits() == 0


def test_without_permanent_noise_only_values_link() -> None:
    """With f = 0 the permanent response is the value, so it distinguishes only different values.

    50 devices with one value are recognised with probability 1/50. Among strings, the observer
    names one of the devices with an equal string at random.
    """
    flag = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    result = linkability(flag, 50)
    assert result.permanent_bits == 0
    assert [recognition.probability for recognition in result.recognised] == pytest.approx(
        [1 / 50] * 5
    )
    # A string sets one of four bits, all equally likely. i of the other 49 devices set the same.
    word = Params(k=4, f=0.0, p=0.25, q=0.75)
    expected = sum(math.comb(49, i) * 0.25**i * 0.75 ** (49 - i) / (i + 1) for i in range(50))
    assert linkability(word, 50).recognised[-1].probability == pytest.approx(expected)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, 1001])
def test_numbers_outside_their_range_are_refused(bad: Any) -> None:
    """Numbers of devices and of reports outside their range raise ParamsError."""
    with pytest.raises(ParamsError, match=r"reports must be an integer in \[1, 1,000\], got"):
        linkability(BROWSER, 100, (1, bad))
    if bad != 1001:
        with pytest.raises(ParamsError, match="devices must be an integer of at least 1, got"):
            linkability(BROWSER, bad)


def test_a_report_of_one_bucket_distinguishes_k_groups_of_devices() -> None:
    """With generalized randomized response, an observer confuses devices that name one bucket.

    Each of the n devices of a cohort names one of k buckets, and repeats it in all reports. The
    observer names one of the devices with the same bucket at random. More reports do not help.
    """
    params = Params.profile("once", encoding="set", items=8)
    result = linkability(params, devices=1_000_000, reports=[1, 5])
    n, k = 1_000_000 // params.m, params.k
    expected = k / n * (1 - (1 - 1 / k) ** n)
    assert [row.probability for row in result.recognised] == pytest.approx([expected] * 3, rel=1e-3)
    own_buckets, other_buckets = 8 * params.q_star, (k - 8) * params.p_star
    assert own_buckets + other_buckets == pytest.approx(1)
    entropy = -own_buckets * math.log2(params.q_star) - other_buckets * math.log2(params.p_star)
    assert result.permanent_bits == pytest.approx(entropy)
