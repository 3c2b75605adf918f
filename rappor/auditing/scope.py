"""Limits of a black-box audit: the list of faults that no check would find.

The list is part of every `Audit`, so that nobody takes a pass for a proof. Some limits are fixed
sentences, others are computed from the parameters and the number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from rappor.auditing.check import FALSE_ALARM_RATE, Check
from rappor.auditing.evidence import DEVICE_OFFSETS
from rappor.auditing.patterns import MAX_WHOLE_BITS
from rappor.protocol.params import Params


def list_not_examined(
    params: Params, checks: Sequence[Check], *, trials: int, n_values: int, n_reports: int
) -> tuple[str, ...]:
    """List the limits of an audit, one sentence each.

    The audit queried `trials` devices for `n_values` values, and no device for more than
    `n_reports` reports.
    """
    not_seen = [check.name for check in checks if check.verdict == "not seen"]
    sentences = [f"Values: {n_values} values were sent. Others may be treated differently."]
    if params.k > MAX_WHOLE_BITS:
        sentences.append(
            "Bits: all pairs were compared, and triples of neighbours and some other triples. "
            "Dependence among other bits may be missed."
        )
    smallest_change = _compute_smallest_change(params, trials)
    rarest = _format_rarest_fault(params, trials)
    lags = sorted({lag for _, lag in DEVICE_OFFSETS})
    sentences += [
        f"Devices: devices {', '.join(map(str, lags[:-1]))} or {lags[-1]} places apart in the "
        "order of the requests were compared. Others may share fresh coins.",
        f"Rare faults: missing noise in fewer than one report of {rarest} may be missed.",
        f"Small faults: a share of ones that deviates by less than {smallest_change:.2g} in all "
        "bits, for example by <= in place of <, may be missed. --exact finds it.",
    ]
    if n_reports > 1:
        sentences.append(
            f"Reports: a device may change its behaviour after {n_reports} reports, or with the "
            "date."
        )
    else:
        sentences.append(
            "Reports: a device may change its behaviour after one report, with the date, or after "
            "a restart."
        )
    sentences += [
        "Secrets: a client may store secrets badly or draw them from a predictable set. Secrets "
        "may have more random bits than this audit can test, but fewer than 256.",
        "Generators: a shift register is searched in an encoder's coins if p or q is one half. A "
        "congruential generator, coins of 16 or 24 bits, and a generator that is seeded by the "
        "time are not searched.",
        "Others: the time of a response, and other parameters, which may share coins with these.",
    ]
    if not_seen:
        sentences.append(f"Not seen: {', '.join(not_seen)}.")
    sentences.append(
        "Clients: epochs, consent, the ledger of losses and uploads are not part of an encoder."
    )
    return tuple(sentences)


def _compute_smallest_change(params: Params, trials: int) -> float:
    """Compute the smallest change of p* in all bits that half of all audits find.

    The check is of the count of all ones among N = trials * k bits. The change must be as large as
    the deviation at which a check of about 2 k counts raises an alarm: z standard errors, with
    P(Z > z) = FALSE_ALARM_RATE / (4 k) for a standard normal Z.
    """
    z = float(stats.norm.isf(FALSE_ALARM_RATE / 4 / params.k))
    return z * math.sqrt(params.p_star * (1 - params.p_star) / (trials * params.k))


def _format_rarest_fault(params: Params, trials: int) -> str:
    """Compute, as text, the largest N such that one noiseless report in N is found.

    Let c be the smallest number of copies (reports that equal their true bits) that is a fault. A
    correct encoder makes trials * P copies on average, where P is the probability of a copy. The
    audit finds one noiseless report in N if trials / N is at least twice the missing number
    c - trials * P. N is rounded down to one digit.
    """
    # The probability of a copy of one true 1 and k - 1 true 0, or of only zeros if that is larger.
    p_copy = (1 - params.p_star) ** (params.k - 1) * max(1 - params.p_star, params.q_star)
    # The check compares up to 100 counts, by value and number of ones.
    n_fault = float(stats.binom.isf(FALSE_ALARM_RATE / 100, trials, p_copy)) + 1
    reports = trials / (2 * (n_fault - trials * p_copy))
    rounding_unit = 10 ** max(0, math.floor(math.log10(reports)))
    return f"{max(1, math.floor(reports / rounding_unit) * rounding_unit):,}"
