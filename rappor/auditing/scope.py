"""What no check of an audit looks at, so that nobody takes a pass for more than it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from rappor.auditing.check import ALARM, Check
from rappor.auditing.evidence import DISTANCES
from rappor.auditing.patterns import WHOLE
from rappor.protocol.params import Params


def not_examined(
    params: Params, checks: Sequence[Check], *, trials: int, n_values: int, n_reports: int
) -> tuple[str, ...]:
    """Return, a sentence each, what an audit leaves open.

    It has asked `trials` devices, about `n_values` values, and any one device for `n_reports`
    reports at most.
    """
    unseen = [check.name for check in checks if check.verdict == "not seen"]
    sentences = [f"Values: {n_values} were asked about; others may be treated differently."]
    if params.k > WHOLE:
        sentences.append(
            "Bits: any two were compared, neighbours and some others by threes; more may depend."
        )
    apart = sorted({distance for _, distance in DISTANCES})
    sentences += [
        f"Devices: those asked {', '.join(map(str, apart[:-1]))} or {apart[-1]} places after each "
        "other were compared; others may share fresh coins.",
        f"Rare faults: noise that is left out in fewer than one report of {_rarest(params, trials)}"
        " may be missed.",
        f"Small faults: a share of ones that is off by less than {_smallest(params, trials):.2g} in"
        " all bits, as by a <= for <, may be missed; --exact finds it.",
        f"Reports: a device may change after its first {n_reports}, or with the date."
        if n_reports > 1
        else "Reports: a device may change after its first, with the date, or after a restart.",
        "Secrets: a client may store them badly or draw them from a foreseeable set. They may have "
        "more random bits than this audit can test, but fewer than 256.",
        "Generators: a shift register is sought in a subject's coins if p or q is one half; a "
        "congruential generator, coins of 16 or 24 bits, and one seeded by the time are not.",
        "Others: how long an answer takes; other parameters, which may share these coins.",
    ]
    if unseen:
        sentences.append(f"Not seen: {', '.join(unseen)}.")
    sentences.append("Clients: epochs, consent, the ledger and uploads are no part of an encoder.")
    return tuple(sentences)


def _smallest(params: Params, trials: int) -> float:
    """Return the change of a probability that the count of all ones shows half of the time."""
    z = float(stats.norm.isf(ALARM / 4 / params.k))
    return z * math.sqrt(params.p_star * (1 - params.p_star) / (trials * params.k))


def _rarest(params: Params, trials: int) -> str:
    """Return about how many reports there may be for one without noise that is found.

    Reports that equal their true bits have to be twice as many as a correct encoder's exceed with
    probability ALARM.
    """
    usual = (1 - params.p_star) ** (params.k - 1) * max(1 - params.p_star, params.q_star)
    enough = float(stats.binom.isf(ALARM / 100, trials, usual)) + 1
    reports = trials / (2 * (enough - trials * usual))
    digit = 10 ** max(0, math.floor(math.log10(reports)))
    return f"{max(1, math.floor(reports / digit) * digit):,}"
