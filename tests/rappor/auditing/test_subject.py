"""Audits of encoders: Python functions, commands, and commands whose output is no report."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from audits import (
    SMALL_METRIC,
    build_audited_metric,
    list_faulty_checks,
    map_checks_by_name,
    run_audit,
)

from rappor import ReportError
from rappor.auditing import Command, Sampler, audit, split_command

UNSEEDED = """
import os, sys
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import derive_permanent_response, draw_instantaneous_response
params = Params.from_json(sys.argv[1])
for line in sys.stdin:
    bits = get_encoder(params).encode(line.strip(), 0)
    permanent = derive_permanent_response(os.urandom(32), "audited", "", params, bits)
    report = draw_instantaneous_response(permanent, params)
    print(*(report[0] >> i & 1 for i in range(8)), sep="")
"""


@pytest.mark.slow
def test_a_command_that_writes_bits_is_audited() -> None:
    """A command that writes a line of bits for each value is audited.

    Each line is the report of a new device, so checks of two reports of a device are "not seen".
    With 4,000 trials, a check of a share of ones would detect an error of .05: six standard
    deviations are 6 sqrt(.25 / 4,000) = .047.
    """
    audited = build_audited_metric(k=8)
    command = [sys.executable, "-c", UNSEEDED, audited.params.to_json()]
    result = run_audit(Command(audited.params, command), audited, trials=4000)
    assert result.passed, list_faulty_checks(result)
    checks = map_checks_by_name(result)
    for name in ("epsilon_1", "report: share of ones"):
        assert checks[name].verdict == "pass"
    for name in ("epsilon_2", "epsilon_inf", "permanent: same when asked again"):
        assert checks[name].verdict == "not seen"


@pytest.mark.slow
def test_a_plain_callable_is_audited() -> None:
    """A function from a value to a text of bits is audited.

    Randomized response that tells the truth with probability .75 passes, and fails with .85. In
    20,000 trials a share of ones has a standard deviation of .003, so .85 is far from .75.
    """
    audited = build_audited_metric(k=1, encoding="boolean", f=0.0)

    def survey(probability: float) -> Callable[[str], str]:
        rng = np.random.default_rng()
        probability_of_one = {"true": probability, "false": 1 - probability}
        return lambda value: str(int(rng.random() < probability_of_one[value]))

    right = Sampler(audited.params, lambda: survey(0.75))
    assert run_audit(right, audited, trials=20_000).passed
    wrong = Sampler(audited.params, lambda: survey(0.85))
    result = run_audit(wrong, audited, trials=20_000)
    assert {"epsilon_1", "report: share of ones"} <= list_faulty_checks(result)


SEEDED = """
import random, sys
coins = random.Random(7)
for line in sys.stdin:
    print(*(int(coins.random() < 0.5) for _ in range(8)), sep="")
"""


def test_a_command_with_a_constant_seed_repeats() -> None:
    """Two runs of a command with a constant seed print the same reports, which is a fault."""
    audited = build_audited_metric(k=8)
    command = Command(audited.params, [sys.executable, "-c", SEEDED])
    assert "restart: no repeated reports" in list_faulty_checks(run_audit(command, audited))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        # Too few bits, too few lines, an error of the command, and an output without an end.
        ("import sys; [print('1') for _ in sys.stdin]", "a report must be 8 bits"),
        ("[print('0' * 8) for _ in range(3)]", "got 3 lines for"),
        ("raise SystemExit('no such metric')", "got exit code 1: no such metric"),
        ("while True: print('0' * 65536, end='')", "got more lines for"),
        # JSON that is nested so deeply that a parser overflows, and bytes that are no UTF-8.
        ("import sys; [print('{\"a\":' * 5000) for _ in sys.stdin]", "must be JSON"),
        ("import os, sys; [os.write(1, b'\\xff\\n') for _ in sys.stdin]", "must be 8 bits"),
        # A cohort that the metric does not have.
        (
            'import sys; [print(\'{"report": "00000000", "cohort": 9}\') for _ in sys.stdin]',
            r"cohort must be an integer in \[0, 0\]",
        ),
    ],
)
def test_output_without_reports_is_refused(program: str, sentence: str) -> None:
    """Output that is not one report a line is refused. The error states the required form."""
    audited = build_audited_metric(k=8)
    with pytest.raises(ReportError, match=sentence):
        audit(Command(audited.params, [sys.executable, "-c", program]), audited, trials=1000)


def test_a_command_that_cannot_start_is_refused() -> None:
    """A command that does not exist, or cannot be split into words, is an error."""
    with pytest.raises(ReportError, match="must start"):
        audit(Command(SMALL_METRIC.params, ["/no/such/program"]), SMALL_METRIC, trials=1000)
    for text in ("", "'"):
        with pytest.raises(ReportError, match="a command must"):
            split_command(text)
