"""What no check of an audit looks at, so that nobody takes a pass for more than it is."""

from __future__ import annotations

from rappor.protocol.params import Params


def not_examined(params: Params, *, n_values: int, n_reports: int) -> tuple[str, ...]:
    """Return, a sentence each, what an audit leaves open.

    It has asked about `n_values` values, and any one device for `n_reports` reports at most.
    """
    pairs, compared = params.k * (params.k - 1) // 2, params.k // 2
    sentences = [
        f"Values: {n_values} were asked about; others may be treated differently.",
        f"Reports: a device may change after its first {n_reports}."
        if n_reports > 1
        else "Reports: a device may change after its first.",
        "Rare faults: 100,000 trials miss noise that is left out in one report of a thousand.",
        "Restarts: a device may draw a new permanent response in a new process.",
        "Secrets: a client may draw too few different ones, or store them badly.",
        "Clients: epochs, consent, the ledger and uploads are no part of an encoder.",
    ]
    if pairs > compared:
        sentences.insert(
            1, f"Bits: {compared:,} of {pairs:,} pairs were compared: 0 and 1, 2 and 3, and so on."
        )
    return tuple(sentences)
