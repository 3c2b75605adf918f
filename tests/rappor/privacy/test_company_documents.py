"""Documents for a company: they contain the registry's data, and change only with the registry."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rappor_client.folder.spool import GIVE_UP_SECONDS
from rappor_client.settings import QueueLimits
from rappor_server.storage.day_tables import KEY_DAYS as KEPT_DAYS

from rappor import Registry
from rappor.privacy.consent_text import write_consent_texts
from rappor.privacy.documents import Document
from rappor.privacy.impact_assessment import write_impact_assessment
from rappor.privacy.notice import privacy_notice
from rappor.privacy.registry_datasheet import (
    LOGGED_UPLOADS,
    RETRY_DAYS,
    UPLOAD_KEY_DAYS,
    format_loss,
    write_datasheet,
)
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.reporting.papers import paper_markdown, paper_page

REGISTRY = """
[budget]
total = 40
[metrics.page]
description = "Home page | <b>"
owner = "o@example.org"
expires = 2099-12-31
encoding = "bloom"
profile = "balanced"
epoch = "quarter"
segments.system = ["mac", "linux"]
[metrics.editor]
description = "Editor"
owner = "o@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = ["vim", "emacs"]
profile = "once"
epoch = "quarter"
interval = "epoch"
min_cohort = 20
"""

MAKERS = (write_datasheet, write_impact_assessment, write_consent_texts)


def load_registry(text: str = REGISTRY) -> Registry:
    """Return the registry of a text."""
    return Registry.loads(text)


def join_text(paper: Document) -> str:
    """Return all words of a document."""
    return " ".join(paper_markdown(paper).split())


def test_the_data_sheet_has_the_data_of_the_registry() -> None:
    """The data sheet has owner, fields, recipients and all losses of every metric."""
    known = load_registry()
    text = join_text(write_datasheet(known))
    titles = [section.title for section in write_datasheet(known).sections]
    assert titles[:4] == [
        "Purpose and owner",
        "Unit of privacy",
        "Data fields on the wire",
        "Retention",
    ]
    for metric in known.values():
        assert metric.owner in text
        assert all(fingerprint in text for fingerprint in metric.accepted)
        assert f"one in {metric.min_cohort} of a cohort" in text
        stays = compute_unchanged_loss(metric)
        assert f"| {metric.name} | a year | {format_loss(stays.epsilon)} |" in text
        assert f"{100 * (stays.named or 0):.0f} % of {stays.candidates}" in text
    total = sum(reservation.total for reservation in known.reserved)
    assert f"at most {total:g} nats in a calendar year" in text
    assert "system (mac, linux" in text
    assert "| single noisy reports | not stored |" in join_text(write_datasheet(load_registry()))
    for word in ("GDPR", "5(3) of the ePrivacy", "pseudonymous data", "not legal advice"):
        assert word in text


def test_days_are_those_of_client_and_collector() -> None:
    """The three numbers that the registry does not have are those of client and collector."""
    assert RETRY_DAYS * 86_400 == GIVE_UP_SECONDS
    assert UPLOAD_KEY_DAYS == KEPT_DAYS
    assert QueueLimits().log == LOGGED_UPLOADS


def test_each_risk_has_a_likelihood_and_a_measure() -> None:
    """A likelihood is a number, or a cell for people. The severity is always a cell for people."""
    (risks,) = (
        section
        for section in write_impact_assessment(load_registry()).sections
        if section.title == "Risks"
    )
    assert len(risks.rows) > 8
    for _, likelihood, measure, severity in risks.rows:
        assert re.search(r"\d|certain|filled in", likelihood)
        assert measure
        assert severity == "[to be filled in]"


@pytest.mark.parametrize("interval", ["day", "epoch"])
@pytest.mark.parametrize("epoch", ["quarter", "life"])
def test_the_measure_for_unchanged_values_names_an_accepted_epoch(
    epoch: str, interval: str
) -> None:
    """The registry accepts the epoch that a measure names, for the interval of the metric."""
    if (epoch, interval) == ("life", "epoch"):
        return
    page = f"""
[budget]
total = 16

[metrics.theme]
description = "Light or dark appearance"
owner = "design@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = ["light", "dark"]
profile = "strict"
epoch = "{epoch}"
interval = "{interval}"
"""
    text = join_text(write_impact_assessment(load_registry(page)))
    (row,) = re.findall(r"linked epochs name a value[^|]*\|[^|]*\|([^|]*)\|", text)
    assert "cohort" not in row
    if epoch == "life":
        assert row == " one permanent response for all years "
        return
    (advised,) = re.findall('epoch = "([a-z]*)"', row)
    assert load_registry(page.replace(f'epoch = "{epoch}"', f'epoch = "{advised}"'))


def test_consent_is_short_and_without_formulas() -> None:
    """The short text has four sentences at most, and neither text has an epsilon."""
    short, long = write_consent_texts(load_registry()).sections
    assert len(short.texts[0].split()) < 55
    assert "so that nobody can read it back with certainty" in short.texts[0]
    assert not re.search("epsilon|nats|bits|cohort", " ".join((*short.texts, *long.texts)))
    assert "erases all of it" in " ".join(long.texts)


def test_documents_say_that_fields_are_seen_together() -> None:
    """The consent text names the fields of one answer, the data sheet also their categories."""
    table = '{editor = ["vim", "emacs"], system = ["linux", "mac"]}'
    registry = load_registry(REGISTRY.replace('["vim", "emacs"]', table))
    _, long = write_consent_texts(registry).sections
    (paragraph,) = [text for text in long.texts if text.startswith('"Editor"')]
    assert "One answer is about all of these together: editor, system." in paragraph
    assert "together" not in " ".join(write_consent_texts(load_registry()).sections[1].texts)
    expected = "one of 4 combinations of editor (vim, emacs) and system (linux, mac)"
    assert expected in join_text(write_datasheet(registry))


def test_consent_promises_no_more_than_the_notice() -> None:
    """Where the notice calls an observer almost certain after a year, both texts do, too."""
    registry = load_registry()
    short, long = write_consent_texts(registry).sections
    assert "your answers of a whole year can become almost certain" in short.texts[0]
    for metric, paragraph in zip(registry.values(), long.texts[1:], strict=False):
        (in_notice,) = re.findall("stays the same for a year: (.*)", privacy_notice(metric))
        (in_consent,) = re.findall("stays the same for a year, (.*)", paragraph)
        assert re.findall(r"become .* certain|\d+ times", in_notice) == re.findall(
            r"become .* certain|\d+ times", in_consent
        )


def test_a_metric_for_life_has_no_sentence_about_a_year() -> None:
    """Its reports repeat one response, so a year reveals no more than they do."""
    page = REGISTRY.partition("[metrics.editor]")[0].replace('epoch = "quarter"', 'epoch = "life"')
    short, long = write_consent_texts(load_registry(page)).sections
    assert "year" not in " ".join((*short.texts, *long.texts))


def test_an_unprotected_answer_is_not_called_scrambled() -> None:
    """Without a limit on the loss the texts say that the answer can be read back."""
    bare = REGISTRY.replace("total = 40", "total = inf").replace(
        'profile = "balanced"', "k = 8\nm = 1\nf = 0.0\np = 0.0\nq = 1.0\ninsecure = true"
    )
    short, long = write_consent_texts(load_registry(bare)).sections
    assert "certainty" not in short.texts[0]
    assert "are not protected" in " ".join(long.texts)
    assert "no limit" in join_text(write_datasheet(load_registry(bare)))


@pytest.mark.parametrize("make", MAKERS)
def test_a_version_changes_with_the_registry_only(make: Callable[[Registry], Document]) -> None:
    """The same registry gives the same document, and another owner gives another version."""
    paper, other = (
        make(load_registry()),
        make(load_registry(REGISTRY.replace("o@example", "p@example"))),
    )
    assert make(load_registry()) == paper
    assert re.fullmatch("[0-9a-f]{16}", paper.version)
    assert make is write_impact_assessment or other.version != paper.version
    assert f"Version `{paper.version}`" in paper_markdown(paper)
    assert f"Version {paper.version}" in paper_page(paper)


@pytest.mark.parametrize("make", MAKERS)
def test_no_text_of_a_registry_is_markup(make: Callable[[Registry], Document]) -> None:
    """A bar or a tag in a description is escaped."""
    paper = make(load_registry())
    assert "<b>" not in paper_page(paper)
    rows = [line for line in paper_markdown(paper).splitlines() if line.startswith("|")]
    for row in rows:
        assert "<b>" not in row.replace("\\<b\\>", "")
