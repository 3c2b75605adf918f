"""Requests for consent: a short text and a long text that a program shows to a person.

The texts contain no formulas. The largest beliefs (how sure an observer can become of the person's
value) are computed from the registry, so the texts cannot promise more than the parameters hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rappor.base.sentence_numbers import format_belief
from rappor.privacy.documents import Document, Section
from rappor.protocol.loss import epsilon_1, posterior_bound
from rappor.registry.budget import scope_loss
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
    topics = "; ".join(metric.description.rstrip(".") for metric in metrics)
    # Case: the loss of a metric has no limit, for example with f = 0 and an epoch that never ends.
    # The text must not promise that values are scrambled.
    if any(math.isinf(scope_loss(metric)) for metric in metrics):
        return f"We record: {topics}. Some of it can be read back. You can stop at any time."
    return (
        f"We record: {topics}. It is scrambled on your device so that nobody can read it back with "
        "certainty. You can say no, and stop at any time."
    )


def _write_long_text(metrics: tuple[Metric, ...]) -> Iterator[str]:
    """Yield the paragraphs of the long text."""
    yield (
        "We would like to learn what is common among all devices, without learning what is on "
        "yours. So your device scrambles each answer at random before it sends it. We add up the "
        "answers of many devices, and the scrambling cancels out in the sum."
    )
    yield from map(_describe_metric, metrics)
    yield (
        "If your answer stays the same for years, or if you have several devices, a person who "
        "links all your answers learns more than from one answer."
    )
    yield (
        "The receiver of the answers can see that your device takes part, and can see its network "
        "address, like any website that you visit. We keep sums, and no address."
    )
    yield (
        "Your device stores a secret number and the answers that it has given, for this purpose "
        "only. You can say no, and nothing happens. If you agree and later change your mind, your "
        "device erases all of it and sends nothing more. An answer that is already in a sum "
        "cannot be taken out, because nothing in the sum shows which answer is yours."
    )


def _describe_metric(metric: Metric) -> str:
    """Write a paragraph about one metric, with the largest belief that its reports allow."""
    until = f"until {metric.expires}, for {metric.owner}"
    text = f"{metric.description.rstrip('.')}: at most once a {metric.pace}, {until}."
    epsilon_report, epsilon_scope = epsilon_1(metric.params), scope_loss(metric)
    # Case: the loss has no limit. The largest belief would be 100 %, so the text says it plainly.
    if math.isinf(epsilon_scope):
        return f"{text} Your answers to this are not protected: they can be read back."
    belief_report, belief_scope = (
        format_belief(posterior_bound(epsilon, 0.5)[1])
        for epsilon in (epsilon_report, epsilon_scope)
    )
    span = "ever" if metric.epoch == "life" else f"in a {metric.epoch}"
    text += (
        f" Somebody who was half sure what your answer is can be at most {belief_report} sure "
        f"after one of your answers, and {belief_scope} after all answers that you send {span}."
    )
    if metric.segments:
        names = ", ".join(dimension.name for dimension in metric.segments)
        text += f" We also record without scrambling: {names}."
    return text
