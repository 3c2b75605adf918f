"""Log likelihood ratios of faults in the audit of a client.

For each fault the audit computes ln P(reports | fault) - ln P(reports | correct client). If the
client is correct, the expected value of exp(ratio) is 1, so exp(-ratio) is a p-value (Markov's
inequality). The tests enumerate all sequences of four reports of one bit, and simulate the power.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from registries import format_registry

from rappor import Params, Registry
from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.detectable_faults import AuditSizes, choose_sizes, list_missed_faults
from rappor.auditing.device_calendar import Calendar
from rappor.auditing.device_histories import choose_values
from rappor.auditing.likelihood_ratios import (
    OnesByBit,
    compute_common_response_ratio,
    compute_log_likelihood,
    compute_noiseless_ratio,
    compute_redrawn_ratio,
    compute_repeated_coins_ratio,
    compute_second_response_ratio,
    compute_shared_response_ratio,
    convert_to_p_value,
    sum_log_ratio,
)
from rappor.auditing.pairs import TrueBits
from rappor.counts.arrays import Floats

PARAMS = Params.profile("strict")
ONCE = Params(k=8, f=0.5, p=0.0, q=1.0)
TRUTHS = [np.array([[False]]), np.array([[True]])]
"""True bits of one device with one bit, by the value of the bit."""

SEQUENCES = np.array(list(product((0, 1), repeat=4)))
"""All sequences of four reports of one bit."""


def compute_ratio(
    fault: str, sequence: list[int], first: int, second: int, params: Params
) -> Floats:
    """Return the log ratio of a sequence of four reports of one bit.

    The true bit is `first` in the first two reports and `second` in the last two.
    """
    bits = np.array(sequence)[:, None, None]
    earlier, later = OnesByBit(bits[:2].sum(axis=0), 2), OnesByBit(bits[2:].sum(axis=0), 2)
    truths = TRUTHS[first], TRUTHS[second]
    match fault:
        case "second response":
            return compute_second_response_ratio(earlier, later, truths, params)
        case "shared response":
            return compute_shared_response_ratio(earlier, later, truths, params)
        case "noiseless":
            return compute_noiseless_ratio(earlier, later, truths[0], params)
        case "redrawn":
            return compute_redrawn_ratio(OnesByBit(bits.sum(axis=0), 4), truths[0], params)
        case _:
            pairs = bits[::2] + bits[1::2]
            both, neither = (pairs == 2).sum(axis=0), (pairs == 0).sum(axis=0)
            return compute_repeated_coins_ratio(both, neither, 2, truths[0], params)


@pytest.mark.parametrize("params", [PARAMS, ONCE], ids=["strict", "once"])
@pytest.mark.parametrize(
    "fault", ["second response", "shared response", "redrawn", "repeated coins", "noiseless"]
)
def test_the_expected_likelihood_ratio_of_a_correct_client_is_at_most_one(
    fault: str, params: Params
) -> None:
    """The sum over all sequences of P(sequence | correct) exp(log ratio) is 1.

    The sum is less than 1 if a correct client has the probability 0 for some sequence. This happens
    with p = 0 and q = 1, where reports repeat the permanent response.
    """
    for first, second in product((0, 1), repeat=2):
        total = 0.0
        for sequence in SEQUENCES.tolist():
            if fault == "shared response":
                # The sequence covers two epochs, which have independent permanent responses.
                earlier = OnesByBit(np.array([[sum(sequence[:2])]]), 2)
                later = OnesByBit(np.array([[sum(sequence[2:])]]), 2)
                correct = compute_log_likelihood(earlier, TRUTHS[first], params)
                correct = correct + compute_log_likelihood(later, TRUTHS[second], params)
            else:
                counts = OnesByBit(np.array([[sum(sequence)]]), 4)
                correct = compute_log_likelihood(counts, TRUTHS[first], params)
            if np.isneginf(correct).all():
                continue
            ratio = compute_ratio(fault, sequence, first, second, params)
            total += float(np.exp(correct + ratio).sum())
        assert total <= 1 + 1e-12
        assert total == pytest.approx(1) or params is ONCE


def test_the_expected_likelihood_ratio_of_a_group_of_devices_is_one() -> None:
    """For groups of devices of a correct client, the expected value of exp(log ratio) is 1.

    The fault is one permanent response for all devices of a group. All outcomes of three devices
    with two reports each are enumerated. Two devices are one group, and the third device is another
    group.
    """
    groups, total = np.array([0, 0, 1]), 0.0
    for bits in product((0, 1), repeat=6):
        devices = OnesByBit(np.array(bits).reshape(3, 2).sum(axis=1)[:, None], 2)
        truth = np.array([[True], [True], [False]])
        correct = compute_log_likelihood(devices, truth, PARAMS).sum()
        ratio = compute_common_response_ratio(devices, groups, truth, PARAMS)
        assert ratio.shape == (2, 1)
        assert ratio[1, 0] == pytest.approx(0)  # a group of one device shows nothing
        total += float(np.exp(correct + ratio.sum()))
    assert total == pytest.approx(1)


def test_the_likelihoods_of_all_sequences_sum_to_one() -> None:
    """The likelihoods of all sequences of four reports sum to 1.

    A log ratio r becomes the p-value exp(-r), and at most 1.
    """
    for truth in TRUTHS:
        groups = OnesByBit(SEQUENCES.sum(axis=1)[:, None], 4)
        logs = compute_log_likelihood(groups, truth, PARAMS)
        assert np.exp(logs).sum() == pytest.approx(1)
    assert sum_log_ratio("nothing", np.zeros((0, 3))).value == 0
    assert convert_to_p_value(-5.0) == 1
    assert convert_to_p_value(np.log(1000)) == pytest.approx(1e-3)


def test_predicted_power_is_the_share_of_simulated_audits() -> None:
    """The predicted power equals the share of 400 simulated audits that find a fault.

    The fault is a second permanent response for a second value. The metric has three categories and
    the profile strict, and 60 devices record both values.
    """
    metric = Registry.loads(
        format_registry(
            epoch='"month"', encoding='"onehot"', categories='["a", "b", "c"]', profile='"strict"'
        )
    ).metric("page")
    params, rng = metric.params, np.random.default_rng(8)
    truth = TrueBits(params, choose_values(metric, rng))
    n_later = len(Calendar.of(metric).first_epoch) - 2
    n_rejected, runs, devices = 0, 400, 60
    values = rng.integers(0, len(truth.values), size=(runs, devices))
    for row in values:
        cohorts = np.zeros(devices, dtype=np.int64)
        truths = truth.bits(row, cohorts), truth.bits(row ^ 1, cohorts)
        bit_counts = []
        for bits, n in zip(truths, (2, n_later), strict=True):
            permanent = rng.random(bits.shape) < np.where(bits, 1 - params.f0, params.f1)
            bit_counts.append(
                OnesByBit(rng.binomial(n, np.where(permanent, params.q, params.p)), n)
            )
        ratio = compute_second_response_ratio(bit_counts[0], bit_counts[1], truths, params).sum()
        # The check has 20 tests, so Bonferroni's method multiplies the p-value by 20.
        n_rejected += int(20 * convert_to_p_value(float(ratio)) < FALSE_ALARM_RATE)
    missed = list_missed_faults(metric, truth, AuditSizes(2 * devices, 900, 8))
    (sentence,) = [text for text in missed if text.startswith("a second permanent response")] or [
        "(100%)"
    ]
    predicted = float(sentence.rsplit("(", maxsplit=1)[1].rstrip("%)")) / 100
    # The share of 400 audits has a standard error of at most .025. The prediction assumes a normal
    # sum of ratios, which is approximate, so .1 is allowed.
    assert abs(n_rejected / runs - predicted) < 0.1


def test_few_bits_and_strong_noise_get_more_devices() -> None:
    """An audit of strings of 128 bits has the smallest numbers of devices.

    An audit of booleans with the profile strict has more.
    """
    strings = Registry.loads(format_registry(epoch='"month"')).metric("page")
    boolean = Registry.loads(
        format_registry(epoch='"month"', encoding='"boolean"', profile='"strict"')
    ).metric("page")
    rng = np.random.default_rng(1)
    small, large = (
        choose_sizes(metric, TrueBits(metric.params, choose_values(metric, rng)))
        for metric in (strings, boolean)
    )
    assert small == AuditSizes(50, 300, 8)
    assert all(a < b for a, b in zip(small[:3], large[:3], strict=True))
    assert small.copied == large.copied == 0


def test_reports_of_one_bucket_get_copied_devices() -> None:
    """The chosen numbers find every listed fault of sets of 8 items. 160 copied devices do not.

    Two faults of categories need many devices, because two reports often name one bucket by chance.
    """
    once = {"interval": '"epoch"', "profile": '"once"', "epoch": '"month"'}
    sets = {"encoding": '"set"', "items": "8"}
    themes = {"encoding": '"onehot"', "categories": '["light", "dark"]'}
    for entry, n_missed in ((sets, 4), (themes, 2)):
        metric = Registry.loads(format_registry(**once, **entry)).metric("page")
        truth = TrueBits(metric.params, choose_values(metric, np.random.default_rng(1)))
        sizes = choose_sizes(metric, truth)
        assert sizes.copied >= 800
        assert list_missed_faults(metric, truth, sizes) == []
        few = list_missed_faults(metric, truth, AuditSizes(20, 120, 0, 160))
        assert len(few) == n_missed, few
