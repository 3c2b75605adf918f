"""The rate at which audits report a fault in correct code, compared with the stated rate.

An audit runs an encoder or a client many times, and tests whether its reports lose more privacy
than the parameters promise (`rappor.auditing`). It states an upper bound on the probability that it
reports a fault in correct code (`Audit.false_alarms`). For an encoder the bound is about .0004: an
audit has at most four lower bounds of a loss, and each is wrong with probability .0001 at most. So
the 36 audits of encoders should find no fault. They find one by chance in at most 1.4 % of the
runs.

Encoders are audited under random parameters of at most 64 bits, and the client under metrics of
several encodings and intervals.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.tables import Table
from rappor.auditing import Audit, Function, audit, audit_client, create_reference_function
from rappor.auditing.exact import draw_random_params
from rappor.registry.registry import Registry

ENCODERS, CLIENTS = 36, 6
"""Numbers of audits of encoders and of the client. The audit of a client takes longer."""

_REGISTRY: Final = """
[budget]
total = inf
[metrics.page]
description = "Which page"
owner = "-"
expires = 2030-12-31
epoch = "quarter"
"""
"""Beginning of a registry with one metric. A text of `_KINDS` completes the metric."""
_KINDS: Final = (
    'profile = "balanced"\nencoding = "bloom"',
    'profile = "balanced"\nencoding = "bloom"\ninterval = "epoch"',
    'profile = "once"\nencoding = "set"\ninterval = "epoch"',
    'profile = "balanced"\nencoding = "bloom"\n'
    'parts = [{name = "prefix:3", share = 0.3}, {name = "whole"}]',
    'profile = "once"\nencoding = "onehot"\ncategories = ["yes", "no"]\ninterval = "epoch"',
    'profile = "balanced"\nencoding = "onehot"\ncategories = ["quite long", "short"]\n'
    'interval = "week"',
)
"""Ends of the entry of the metric. Each audit of a client uses the next end.

The ends have the encodings `bloom`, `set` and `onehot`, and intervals of a day (the default), a
week and an epoch. One metric has parts, the prefixes of its strings. Under the profile `once` a
report names one bucket (generalized randomized response). Other checks apply to such reports."""


def audit_encoders(n: int) -> Iterator[Audit]:
    """Audit the encoder of this package under n random parameter sets.

    Seeds come from the operating system, so that every run audits other sets. Sets of more than 64
    bits are skipped, because their audits take minutes.
    """
    rng, n_audited = np.random.default_rng(), 0
    base = Registry.loads(_REGISTRY + _KINDS[0]).metric("page")
    while n_audited < n:
        params = draw_random_params(rng)
        if params.k <= 64:
            metric = dataclasses.replace(base, params=params)
            yield audit(Function(partial(create_reference_function, metric)), metric, trials=1000)
            n_audited += 1


def audit_clients(n: int) -> Iterator[Audit]:
    """Audit the client of this project, with 20 devices in each audit."""
    command = [sys.executable, "-m", "rappor_client.audited"]
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(islice(cycle(_KINDS), n)):
            path = Path(folder) / f"{number}.toml"
            path.write_text(_REGISTRY + kind, encoding="utf-8")
            yield audit_client(command, Registry.load(path).metric("page"), path, devices=20)


def audits(*, quick: bool) -> list[Table]:
    """Audit correct code many times, and count the audits that report a fault."""
    # A quick run has a quarter of the audits.
    divisor = 4 if quick else 1
    table = Table(
        title="audits of correct code",
        columns=("subject", "audits", "checks", "found a fault", "stated: at most"),
        note="Stated: the mean over these audits of the probability that one finds a fault.",
    )
    for name, audits_of_code in (
        ("encoder", audit_encoders(ENCODERS // divisor)),
        ("client", audit_clients(CLIENTS // divisor)),
    ):
        results = list(audits_of_code)
        table.rows.append(
            [
                name,
                len(results),
                # A check is "not seen" if no response allowed its comparison. Such a check cannot
                # find a fault, so it does not count.
                sum(check.verdict != "not seen" for result in results for check in result.checks),
                sum(not result.passed for result in results),
                float(np.mean([result.false_alarms for result in results])),
            ]
        )
    return [table]
