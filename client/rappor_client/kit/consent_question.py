"""The consent question: shown on a terminal only, after the output of the program."""

from __future__ import annotations

import math
import os
import sys

from rappor.privacy.notice import describe_certainty
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.kit.consent_file import Consent, read_consent, write_consent


def write_question(name: str, what: str, uses: Metric, registry: Registry, destination: str) -> str:
    """Return the consent question of a program, without the choices.

    The question says what `telemetry on` says, in short: what is reported, how often, to whom, and
    how much an observer can learn in a year. A yes is stored for every metric of the registry, so
    the question names every metric.

    Parameters
    ----------
    name
        Name of the program.
    what
        Plural noun for the names that a run reports.
    uses
        Metric of these names.
    registry
        All metrics of the program, `uses` included.
    destination
        Address of the collector.
    """
    frequency = describe_frequency(uses)
    day = ", drawn from one random day," if uses.interval == "epoch" else ""
    sentences = [
        f"May {name} learn which of its {what} are used?",
        f"{frequency[0].upper()}{frequency[1:]} this device would send the name of one of them"
        f"{day} with random noise, to {destination}.",
    ]
    if others := describe_other_metrics(registry, uses.name):
        sentences.append(f"It would also send, with random noise: {others}.")
    sentences += [
        _describe_year(registry),
        f"`{name} telemetry preview` shows a report, and `{name} telemetry on` describes "
        "everything before it agrees.",
    ]
    return " ".join(sentences)


def describe_other_metrics(registry: Registry, uses: str) -> str:
    """Return description and frequency of all metrics but that of the uses, with semicolons.

    `uses` is the name of the metric of the uses.
    """
    return "; ".join(
        f"{metric.description.rstrip('.')} ({describe_frequency(metric)})"
        for name, metric in registry.items()
        if name != uses
    )


def describe_frequency(metric: Metric) -> str:
    """Return how often a device reports a metric, such as "at most once a day"."""
    if metric.interval == "epoch":
        return f"once a {metric.epoch}"
    return f"at most once a {metric.interval}"


def _describe_year(registry: Registry) -> str:
    """Return a sentence about the metric whose reports of a year reveal most."""
    # The bound of an observer who links all reports of a year, for a value that stays the same.
    loss = max(compute_unchanged_loss(metric).epsilon for metric in registry.values())
    # Case: a metric with `insecure = true`, whose reports have no sufficient noise.
    if math.isinf(loss):
        return "Some of it can be read back from the reports."
    return (
        "Somebody who links the reports of a year, and was half sure of a value that stays the "
        f"same, can {describe_certainty(loss)}."
    )


def is_answerable() -> bool:
    """Return whether a person can respond: a terminal, and this program in its foreground.

    A question to a script, a pipe or a job in the background would block it, or would be answered
    by data.
    """
    try:
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return False
        return not hasattr(os, "tcgetpgrp") or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # a stream is closed, or does not exist
        return False


def ask_consent(text: str, folder: str, today: int) -> bool | None:
    """Show the question and return the response; None without a response.

    The file is written with "asked" before the question appears. If a person ends the program at
    the question, the next start therefore does not show it again. If the file cannot be written,
    the question is not shown at all, because it would appear at every start.

    Parameters
    ----------
    text
        The question.
    folder
        Folder with the file of the consent.
    today
        Day, in days since 1970.
    """
    before = read_consent(folder)
    try:
        write_consent(folder, Consent("asked", (*before.days, today)))
    except OSError:
        return None
    try:
        sys.stderr.write(f"\n{text} [y/N] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
    except (KeyboardInterrupt, OSError, ValueError):
        line = ""
    if not line:  # end of the input, Ctrl-C or a closed terminal: the person has not responded
        sys.stderr.write("\n")
        return None
    return line.strip().lower() in ("y", "yes")
