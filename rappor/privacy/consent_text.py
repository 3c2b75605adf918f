"""Texts that ask a person for consent, short and long, in words without formulas."""

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
    """Return both texts for all metrics of a registry."""
    metrics = tuple(registry.values())
    return Document(
        title="Consent texts",
        sections=(
            Section(title="Short", texts=(_short(metrics),)),
            Section(title="Long", texts=tuple(_long(metrics))),
        ),
    )


def _short(metrics: tuple[Metric, ...]) -> str:
    topics = "; ".join(metric.description.rstrip(".") for metric in metrics)
    if any(math.isinf(scope_loss(metric)) for metric in metrics):
        return f"We record: {topics}. Some of it can be read back. You can stop at any time."
    return (
        f"We record: {topics}. It is scrambled on your device so that nobody can read it back with "
        "certainty. You can say no, and stop at any time."
    )


def _long(metrics: tuple[Metric, ...]) -> Iterator[str]:
    """Yield the sentences of the long text."""
    yield (
        "We would like to learn what is common among all devices, without learning what is on "
        "yours. So your device scrambles each answer at random before it sends it. We add up the "
        "answers of many devices, and the scrambling cancels out in the sum."
    )
    yield from map(_one, metrics)
    yield (
        "If your answer stays the same for years, or you have several devices, somebody who could "
        "link all of them would learn more than from one."
    )
    yield (
        "Who receives the answers can see that your device takes part, and its network address, "
        "like any website you visit. We keep sums, and no address."
    )
    yield (
        "Your device stores a secret number and what it has answered, for nothing but this. You "
        "can say no and nothing happens. If you agree and change your mind, your device erases all "
        "of it and sends nothing more. What is already in a sum cannot be taken out, because "
        "nothing in it says that it is yours."
    )


def _one(metric: Metric) -> str:
    """Return a paragraph about one metric, and about the largest belief that its report allows."""
    often = "each time" if metric.interval == "none" else f"at most once a {metric.pace}"
    until = f"until {metric.expires}, for {metric.owner}"
    text = f"{metric.description.rstrip('.')}: {often}, {until}."
    one, every = epsilon_1(metric.params), scope_loss(metric)
    if math.isinf(every):
        return f"{text} Your answers to this are not protected: they can be read back."
    sure = (format_belief(posterior_bound(each, 0.5)[1]) for each in (one, every))
    span = "ever" if metric.epoch == "life" else f"in a {metric.epoch}"
    first, last = sure
    beside = " Beside it we record without scrambling: " + ", ".join(
        each.name for each in metric.segments
    )
    return (
        f"{text} Somebody who was half sure what your answer is can be at most {first} sure after "
        f"one of them, and {last} after all that you send {span}."
        f"{beside + '.' if metric.segments else ''}"
    )
