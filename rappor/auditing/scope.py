"""Limits of an audit: the list of faults that no check would find."""

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
    sentences = [f"Values: {n_values} were asked about; others may be treated differently."]
    if params.k > MAX_WHOLE_BITS:
        sentences.append(
            "Bits: any two were compared, neighbours and some others by threes; more may depend."
        )
    smallest, rarest = (
        _compute_smallest_change(params, trials),
        _format_rarest_fault(params, trials),
    )
    lags = sorted({distance for _, distance in DEVICE_OFFSETS})
    sentences += [
        f"Devices: those asked {', '.join(map(str, lags[:-1]))} or {lags[-1]} places after each "
        "other were compared; others may share fresh coins.",
        f"Rare faults: noise that is left out in fewer than one report of {rarest} may be missed.",
        f"Small faults: a share of ones that is off by less than {smallest:.2g} in"
        " all bits, as by a <= for <, may be missed; --exact finds it.",
        f"Reports: a device may change after its first {n_reports}, or with the date."
        if n_reports > 1
        else "Reports: a device may change after its first, with the date, or after a restart.",
        "Secrets: a client may store them badly or draw them from a foreseeable set. They may have "
        "more random bits than this audit can test, but fewer than 256.",
        "Generators: a shift register is sought in a encoder's coins if p or q is one half; a "
        "congruential generator, coins of 16 or 24 bits, and one seeded by the time are not.",
        "Others: how long an answer takes; other parameters, which may share these coins.",
    ]
    if not_seen:
        sentences.append(f"Not seen: {', '.join(not_seen)}.")
    sentences.append("Clients: epochs, consent, the ledger and uploads are no part of an encoder.")
    return tuple(sentences)


def _compute_smallest_change(params: Params, trials: int) -> float:
    """Compute the change of p* that the count of all ones shows in half of all audits."""
    z = float(stats.norm.isf(FALSE_ALARM_RATE / 4 / params.k))
    return z * math.sqrt(params.p_star * (1 - params.p_star) / (trials * params.k))


def _format_rarest_fault(params: Params, trials: int) -> str:
    """Compute, as text, the largest N such that one noiseless report in N is found.

    The number of reports that equal their true bits must be twice the number that a correct encoder
    exceeds with probability FALSE_ALARM_RATE.
    """
    usual = (1 - params.p_star) ** (params.k - 1) * max(1 - params.p_star, params.q_star)
    enough = float(stats.binom.isf(FALSE_ALARM_RATE / 100, trials, usual)) + 1
    reports = trials / (2 * (enough - trials * usual))
    rounding_unit = 10 ** max(0, math.floor(math.log10(reports)))
    return f"{max(1, math.floor(reports / rounding_unit) * rounding_unit):,}"
