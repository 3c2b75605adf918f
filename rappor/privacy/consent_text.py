"""Requests for consent: a short text and a long text that a program shows to a person.

The texts contain no formulas. The largest beliefs (how sure an observer can become of the person's
value) are computed from the registry, so the texts cannot promise more than the parameters hold.
They are the beliefs of the privacy notice (`rappor.privacy.notice`), also for a value that stays
the same for a year: a person must not agree to less than `rappor collects` says.

Both texts quote the descriptions of the metrics. So a description should be a phrase without a full
stop inside, such as "Light or dark appearance".
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rappor.base.sentence_numbers import format_count, format_mean, format_times_in_100
from rappor.privacy.documents import Document, Section
from rappor.privacy.named_items import CERTAINTY
from rappor.privacy.notice import describe_certainty, describe_recognition
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


def write_consent_texts(registry: Registry) -> Document:
    """Write a short and a long request for consent that cover all metrics of a registry.

    Parameters
    ----------
    registry : the metrics that a program collects.

    Returns
    -------
    A document with the sections "Short" and "Long".
    """
    metrics = tuple(registry.values())
    return Document(
        title="Consent texts",
        sections=(
            Section(title="Short", texts=(_write_short_text(metrics),)),
            Section(title="Long", texts=tuple(_write_long_text(metrics))),
        ),
    )


def _write_short_text(metrics: tuple[Metric, ...]) -> str:
    """Write the short text about all metrics, without numbers."""
    topics = "; ".join(map(_quote_description, metrics))
    # Case: the loss of a metric has no limit, for example with f = 0 and an epoch that never ends.
    # The text must not promise that values are scrambled.
    if any(math.isinf(scope_loss(metric)) for metric in metrics):
        return f"We record: {topics}. Some of it can be read back. You can stop at any time."
    # Case: one answer is protected, and the answers of a year together are not. "Nobody can read it
    # back" would be false for a person whose value stays the same.
    certainties = {describe_certainty(compute_unchanged_loss(metric).epsilon) for metric in metrics}
    year = ""
    if "become almost certain" in certainties:
        year = " Somebody who links your answers of a whole year can become almost certain."
    return (
        f"We record: {topics}. Your device scrambles each answer so that nobody can read it back "
        f"with certainty.{year} You can say no, and stop at any time."
    )


def _quote_description(metric: Metric) -> str:
    return f'"{metric.description.rstrip(".")}"'


def _write_long_text(metrics: tuple[Metric, ...]) -> Iterator[str]:
    """Yield the paragraphs of the long text."""
    yield (
        "We would like to learn what is common among all devices. Your device scrambles each "
        "answer at random before it sends it, which limits how much anybody can learn about you. "
        "We add up the answers of many devices, and the scrambling cancels out in the sum."
    )
    yield from map(_describe_metric, metrics)
    yield (
        "If you have several devices, somebody who links the answers of all of them learns more "
        "than from one device."
    )
    # Case: an observer does not need to know an answer to recognise the device that sends it.
    if any(most_reports(metric) != 1 and describe_recognition(metric) for metric in metrics):
        yield (
            "A part of the scrambling stays the same from one answer to the next. So somebody who "
            "has several of your answers may see that they come from the same device."
        )
    yield (
        "The receiver of the answers can see that your device takes part, and can see its network "
        "address, like any website that you visit. We keep sums, and no address."
    )
    yield (
        "Your device stores a secret number and the answers that it has sent, for this purpose "
        "only. You can say no, and nothing happens. If you agree and later change your mind, your "
        "device erases all of it and sends nothing more. It keeps one note, which says how much of "
        "its limit is used. An answer that is already in a sum cannot be taken out, because "
        "nothing in the sum shows which answer is yours."
    )


def _describe_metric(metric: Metric) -> str:
    """Write a paragraph about one metric, with the largest beliefs that its reports allow."""
    until = f"until {metric.expires}, for {metric.owner}"
    text = f"{_quote_description(metric)}: at most once a {metric.pace}, {until}."
    # A person who agrees should know that the fields of a tuple can be seen in one answer together.
    if fields := metric.params.field_names:
        text += f" One answer is about all of these together: {', '.join(fields)}."
    # A person who agrees should know that values are searched that nobody listed.
    if metric.parts:
        text += (
            " Some devices send only the beginning of the answer, so that we can find answers "
            "that are in no list."
        )
    epsilon_report, epsilon_scope = epsilon_1(metric.params), scope_loss(metric)
    if math.isinf(epsilon_scope):
        # Case: the loss has no limit. The largest belief would be 100 %, so the text says it
        # plainly.
        text += " Your answers to this are not protected: they can be read back."
    else:
        text += (
            " Somebody who was half sure what your answer is can "
            f"{describe_certainty(epsilon_report)} after one of your answers"
        )
        # With one report in an epoch, all answers of the epoch are the one answer above.
        if most_reports(metric) != 1:
            period = "ever" if metric.epoch == "life" else f"in a {metric.epoch}"
            text += (
                f", and {describe_certainty(epsilon_scope)} after all answers that you send "
                f"{period}"
            )
        text += f".{_describe_year(metric)}"
    if metric.segments:
        names = ", ".join(dimension.name for dimension in metric.segments)
        text += f" We also record without scrambling: {names}."
    return text


def _describe_year(metric: Metric) -> str:
    """Describe the belief after a year in which the value stays the same; empty without epochs.

    A metric for life repeats one response, so a year reveals no more than its other reports.
    """
    if metric.epoch == "life":
        return ""
    unchanged = compute_unchanged_loss(metric)
    text = (
        " If your answer stays the same for a year, somebody who links all your answers can "
        f"{describe_certainty(unchanged.epsilon)}"
    )
    if unchanged.named_items is not None:
        # The chance of an item depends on its popularity. The mean number says it in one figure.
        text += (
            f". Of the {format_count(metric.params.items, 'item')} of an answer they can name "
            f"{format_mean(unchanged.named_items)} on average, with more than "
            f"{100 * CERTAINTY:.0f} % certainty, if they know how popular each item is"
        )
    if unchanged.named is not None:
        text += (
            f". Of {unchanged.candidates:,} equally likely answers they can name yours "
            f"{format_times_in_100(unchanged.named)}"
        )
    return f"{text}."
