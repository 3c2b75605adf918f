"""Documents for a company: data sheet, impact assessment and consent text.

Lawyers and users rely on these documents. They must contain the data of the registry, promise no
more than is true, and change only if the registry changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rappor_client.folder.spool import GIVE_UP_SECONDS
from rappor_client.settings import QueueLimits
from rappor_server.storage.day_tables import KEY_DAYS as KEPT_DAYS

from rappor import Registry
from rappor.base.sentence_numbers import format_chance
from rappor.privacy.consent_text import write_consent_texts
from rappor.privacy.documents import Document, Section
from rappor.privacy.impact_assessment import write_impact_assessment
from rappor.privacy.notice import privacy_notice, write_notice
from rappor.privacy.registry_datasheet import (
    LOGGED_UPLOADS,
    RETRY_DAYS,
    UPLOAD_KEY_DAYS,
    format_loss,
    write_datasheet,
)
from rappor.privacy.report_linkage import linkability
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

WRITERS = (write_datasheet, write_impact_assessment, write_consent_texts)
"""Functions that each write one kind of document."""


def load_registry(text: str = REGISTRY) -> Registry:
    """Return the registry of a text, by default a metric of strings and a metric of categories."""
    return Registry.loads(text)


def join_text(document: Document) -> str:
    """Return the Markdown of a document in one line, so that sentences are not broken."""
    return " ".join(paper_markdown(document).split())


def test_the_data_sheet_has_the_data_of_the_registry() -> None:
    """The data sheet has owner, fields, recipients and all losses of every metric."""
    registry = load_registry()
    text = join_text(write_datasheet(registry))
    titles = [section.title for section in write_datasheet(registry).sections]
    assert titles[:4] == [
        "Purpose and owner",
        "Unit of privacy",
        "Data fields on the wire",
        "Retention",
    ]
    for metric in registry.values():
        assert metric.owner in text
        assert all(fingerprint in text for fingerprint in metric.accepted)
        assert f"one in {metric.min_cohort} of a cohort" in text
        unchanged = compute_unchanged_loss(metric)
        assert f"| {metric.name} | a year | {format_loss(unchanged.epsilon)} |" in text
        assert f"{100 * (unchanged.named or 0):.0f} % of {unchanged.candidates}" in text
    total = sum(reservation.total for reservation in registry.reserved)
    assert f"at most {total:g} nats in a calendar year" in text
    assert "system (mac, linux" in text
    assert "| single noisy reports | until they are added up, as a rule within a minute |" in text
    for word in ("GDPR", "5(3) of the ePrivacy", "pseudonymous data", "not legal advice"):
        assert word in text


def test_a_metric_without_a_least_number_promises_no_largest_part() -> None:
    """With `min_reports` of 0 a released sum may be one report, and both documents say so.

    Both documents once promised that one device is at most one in 20 of a cohort's reports.
    """
    registry = load_registry(f"{REGISTRY}min_reports = 0\n")
    sheet, assessment = (
        join_text(write(registry)) for write in (write_datasheet, write_impact_assessment)
    )
    assert "| editor | none | not limited |" in sheet
    assert "one in 20" not in sheet
    assert "certain where one device has reported: editor (min_reports = 0)" in assessment
    assert "a cohort's reports is one device's" not in assessment


@pytest.mark.parametrize(
    ("text", "markdown", "page"),
    [
        ("`a < b | c`", "`a < b \\| c`", "<code>a &lt; b | c</code>"),
        ("<b> `[x]` *", r"\<b\> `[x]` \*", "&lt;b&gt; <code>[x]</code> *"),
        ("``a ` b``", "``a ` b``", "<code>a ` b</code>"),
        # One run of backticks without an end is no code, and neither is a text after the end.
        ("``<b>`", r"\`\`\<b\>\`", "``&lt;b&gt;`"),
        ("` `` ` <b> `", r"` `` ` \<b\> \`", "<code> `` </code> &lt;b&gt; `"),
        # Three backticks at the beginning of a line would make the rest of the document code.
        ("```", r"\`\`\`", "```"),
    ],
)
def test_code_in_a_text_is_shown_unchanged(text: str, markdown: str, page: str) -> None:
    """Markdown shows a backslash inside of code, so code is not escaped. Other text cannot be HTML.

    Code is what Markdown takes for code: otherwise a description could contain a tag.
    """
    section = Section(title="Notes", texts=(text,), columns=("note",), rows=((text,),))
    document = Document(title="Paper", sections=(section,))
    lines = paper_markdown(document).splitlines()
    assert markdown.replace("\\|", "|") in lines
    assert f"| {markdown} |" in lines
    assert f"<p>{page}</p>" in paper_page(document)


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("# Pages", r"\# Pages"),
        ("- pages", r"\- pages"),
        ("---", r"\---"),
        ("+ pages", r"\+ pages"),
        ("1. Which page?", r"1\. Which page?"),
        ("1.5 pages", "1.5 pages"),
        ("&lt; R & D", r"\&lt; R & D"),
        ("_all_ of min_reports", r"\_all\_ of min_reports"),
        ("~~old~~", r"\~\~old\~\~"),
    ],
)
def test_signs_of_markdown_are_shown_unchanged(text: str, markdown: str) -> None:
    """A description that looks like a list, a heading, an entity or emphasis is shown as it is.

    Without the backslash before "&lt;", for example, a reader would see "<".
    """
    document = Document(title="Paper", sections=(Section(title="Notes", texts=(text,)),))
    assert paper_markdown(document).splitlines()[-1] == markdown


def test_sums_have_an_end_only_with_a_retention() -> None:
    """The data sheet has the retention of each metric, and no other metric's.

    It once said "no end" beside the retentions, also of a registry in which every metric has one.
    """
    with_one = REGISTRY.replace("segments.system", 'retention = "1 year"\nsegments.system')
    with_both = f'{with_one}retention = "2 years"\n'
    sheet_of_one, sheet_of_both = (
        join_text(write_datasheet(load_registry(text))) for text in (with_one, with_both)
    )
    row = "| sums by metric, day and cohort |"
    assert f"{row} page: 1 year; editor: no end |" in sheet_of_one
    assert f"{row} page: 1 year; editor: 2 years |" in sheet_of_both


def test_the_data_sheet_names_all_that_links_reports() -> None:
    """Properties of a device and an unchanged value link reports, as the notice says.

    Properties are in a report without noise, so a rare combination of them recognises a device.
    """
    with_segments = join_text(write_datasheet(load_registry()))
    without = join_text(write_datasheet(load_registry(REGISTRY.replace("segments.system", "#"))))
    assert "page: the properties of the device, the cohort and the permanent noise" in with_segments
    assert "page: the cohort and the permanent noise, within one quarter" in without
    # The metric sends one report an epoch, under noise of its own.
    assert "editor: one report an epoch. Only a value that stays the same, address" in without


@pytest.mark.parametrize("segments", ["", '\nsegments.system = ["mac", "linux"]'])
@pytest.mark.parametrize("epoch", ["quarter", "life"])
@pytest.mark.parametrize("encoding", ["boolean", "bloom"])
def test_the_data_sheet_links_reports_by_noise_where_the_notice_does(
    encoding: str, epoch: str, segments: str
) -> None:
    """Data sheet and notice agree whether permanent noise links reports. They have equal numbers.

    The permanent response to a yes-or-no question is one bit, which many devices share. The data
    sheet once called this noise a link, and contained the sentence of the notice that only address
    and time link reports.
    """
    text = f"""
[budget]
total = 16
[metrics.theme]
description = "Dark appearance"
owner = "design@example.org"
expires = 2099-12-31
encoding = "{encoding}"
profile = "balanced"
epoch = "{epoch}"{segments}
"""
    registry = load_registry(text)
    notice = privacy_notice(registry["theme"])
    sections = {section.title: section.texts for section in write_datasheet(registry).sections}
    (link,) = sections["What links reports"]
    assert write_notice(registry["theme"]).linking in sections["Metric theme"]
    by_noise = "permanent noise" in notice
    assert ("permanent noise" in link) is by_noise is (encoding == "bloom")
    number_of_devices = r"each of ([\d,]+) devices"
    assert re.findall(number_of_devices, link) == re.findall(number_of_devices, notice)
    for number in (r"with ([^ ]* %) probability", r"With (.*?) in place of 2, .* is (.*?)\. A"):
        assert re.findall(number, link) == re.findall(number, notice)
    assert ("the properties of the device" in link) is bool(segments)
    assert "one life" not in link


def test_a_description_of_several_lines_moves_no_sentence() -> None:
    """The section of a metric has the same sentences, however many lines its description has.

    The section once left out a number of lines of the notice, so a description of two lines brought
    the sentence about the frequency into it.
    """
    two_lines = REGISTRY.replace('"Editor"', '"""Editor of\n  the text"""')
    sections = [write_datasheet(load_registry(text)).sections[-1] for text in (REGISTRY, two_lines)]
    assert sections[0] == sections[1]
    assert not [text for text in sections[0].texts if text.startswith("Recorded")]


def test_names_of_settings_are_code_on_the_page() -> None:
    """A text between backticks is the element `code` of the page, and no backtick is left."""
    page = paper_page(write_datasheet(load_registry()))
    assert "<code>min_reports</code>" in page
    assert "`" not in page


def test_days_are_those_of_client_and_collector() -> None:
    """The three durations and numbers of the documents equal the settings of client and collector.

    The library cannot import client and collector, so it has copies of these numbers.
    """
    assert RETRY_DAYS * 86_400 == GIVE_UP_SECONDS
    assert UPLOAD_KEY_DAYS == KEPT_DAYS
    assert QueueLimits().log == LOGGED_UPLOADS


def test_each_risk_has_a_likelihood_and_a_measure() -> None:
    """Each risk has a likelihood and a measure. The severity is left for people to fill in.

    A likelihood is a computed number, or "certain", or left for people as well.
    """
    (risks,) = (
        section
        for section in write_impact_assessment(load_registry()).sections
        if section.title == "Risks"
    )
    assert len(risks.rows) > 8
    assert any("backup" in risk for risk, *_ in risks.rows)
    for _, likelihood, measure, severity in risks.rows:
        assert re.search(r"\d|certain|filled in", likelihood)
        assert measure
        assert severity == "[to be filled in]"


@pytest.mark.parametrize(("interval", "largest"), [("day", 46), ("week", 7)])
def test_the_risk_of_recognition_has_the_reports_of_a_whole_epoch(
    interval: str, largest: int
) -> None:
    """The likelihood of recognition is shown for 2 reports, and for half of those of an epoch."""
    registry = load_registry(
        f"""
[budget]
total = 16
[metrics.theme]
description = "Dark appearance"
owner = "design@example.org"
expires = 2099-12-31
encoding = "bloom"
profile = "balanced"
epoch = "quarter"
interval = "{interval}"
"""
    )
    text = join_text(write_impact_assessment(registry))
    linked = linkability(registry["theme"].params, reports=(2, largest))
    for n, row in zip((2, largest), linked.recognised, strict=False):
        assert (
            f"| theme: an observer who has {n} reports of a device recognises {n} other reports of "
            f"it among those of 1,000,000 devices | {format_chance(row.probability)} |"
        ) in text
    assert "almost certain at most" not in text


def test_a_registry_without_metrics_has_no_risk_of_a_released_sum() -> None:
    """Without metrics no sum is released. The document contains no share of its reports."""
    text = join_text(write_impact_assessment(Registry([], total=1)))
    assert "| a released sum shows one device |" not in text
    assert "| a released sum shows one device |" in join_text(
        write_impact_assessment(load_registry())
    )


def test_a_rare_naming_is_not_called_impossible() -> None:
    """A value of 1,000 categories is named with probability .4 %. No document says "never"."""
    names = ", ".join(f'"c{number}"' for number in range(1000))
    registry = load_registry(
        REGISTRY.partition("[metrics.page]")[0]
        + f"""[metrics.rare]
description = "Rare"
owner = "o@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = [{names}]
profile = "strict"
epoch = "year"
"""
    )
    for document in (write_datasheet(registry), write_impact_assessment(registry)):
        assert "less than 1 %" in join_text(document)
        assert not re.search(r"\| 0 %", join_text(document))
    metric = registry["rare"]
    for text in (privacy_notice(metric), join_text(write_consent_texts(registry))):
        assert "less than once in 100" in text


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(16.000000000000004, "16"), (0.0101, "0.011"), (1234.5612, "1234.562"), (1e6, "1000000")],
)
def test_losses_are_rounded_up(epsilon: float, text: str) -> None:
    """A loss is rounded up to a thousandth, also if it has more than six digits."""
    assert format_loss(epsilon) == text


@pytest.mark.parametrize("interval", ["day", "epoch"])
@pytest.mark.parametrize("epoch", ["quarter", "life"])
def test_the_measure_for_unchanged_values_names_an_accepted_epoch(
    epoch: str, interval: str
) -> None:
    """A measure of the assessment may name a longer epoch. The registry accepts this epoch.

    The measure is against linking the reports of several epochs, from which an observer infers an
    unchanged value. A reader of the document copies the epoch into the registry.
    """
    # The registry refuses this pair: one report in an epoch needs an epoch that ends.
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
    assert "| 0 % |" not in text  # no risk has a likelihood of 0
    if epoch == "life":
        assert row == " one permanent response for all years "
        return
    (advised,) = re.findall('epoch = "([a-z]*)"', row)
    assert load_registry(page.replace(f'epoch = "{epoch}"', f'epoch = "{advised}"'))


def test_consent_is_short_and_without_formulas() -> None:
    """The short consent text has under 55 words, and neither text has a term of the theory."""
    short, long = write_consent_texts(load_registry()).sections
    assert len(short.texts[0].split()) < 55
    assert "so that nobody can read it back with certainty" in short.texts[0]
    assert not re.search("epsilon|nats|bits|cohort", " ".join((*short.texts, *long.texts)))
    assert "erases all of it" in " ".join(long.texts)
    assert "one note, which says how much of its limit is used" in " ".join(long.texts)


def test_documents_say_that_fields_are_seen_together() -> None:
    """The consent text states that fields of a tuple are seen together, and names the fields.

    The data sheet also lists the categories of the fields. Texts about other metrics do not contain
    this sentence.
    """
    table = '{editor = ["vim", "emacs"], system = ["linux", "mac"]}'
    registry = load_registry(REGISTRY.replace('["vim", "emacs"]', table))
    _, long = write_consent_texts(registry).sections
    (paragraph,) = [text for text in long.texts if text.startswith('"Editor"')]
    assert "One answer is about all of these together: editor, system." in paragraph
    assert "together" not in " ".join(write_consent_texts(load_registry()).sections[1].texts)
    expected = "one of 4 combinations of editor (vim, emacs) and system (linux, mac)"
    assert expected in join_text(write_datasheet(registry))


def test_consent_promises_no_more_than_the_notice() -> None:
    """If an observer can become almost certain by the notice, then also by the consent texts.

    Both describe a value that stays the same for a year.
    """
    registry = load_registry()
    short, long = write_consent_texts(registry).sections
    assert "your answers of a whole year can become almost certain" in short.texts[0]
    for metric, paragraph in zip(registry.values(), long.texts[1:], strict=False):
        (in_notice,) = re.findall("stays the same for a year: (.*)", privacy_notice(metric))
        (in_consent,) = re.findall("stays the same for a year, (.*)", paragraph)
        assert re.findall(r"become .* certain|\d+ times", in_notice) == re.findall(
            r"become .* certain|\d+ times", in_consent
        )


@pytest.mark.parametrize(
    ("encoding", "interval", "is_linked"),
    [("bloom", "day", True), ("bloom", "epoch", False), ("boolean", "day", False)],
)
def test_consent_says_when_answers_show_that_they_are_of_one_device(
    encoding: str, interval: str, is_linked: bool
) -> None:
    """The consent text says that permanent noise links answers if the privacy notice does.

    Neither text promises that nothing is learnt about a person. Bad case: the first sentence once
    was "We would like to learn what is common, without learning what is on yours", above a metric
    by which an observer can become almost certain.
    """
    registry = load_registry(
        f"""
[budget]
total = 16
[metrics.theme]
description = "Dark appearance"
owner = "design@example.org"
expires = 2099-12-31
encoding = "{encoding}"
profile = "balanced"
epoch = "quarter"
interval = "{interval}"
"""
    )
    text = join_text(write_consent_texts(registry))
    assert ("may see that they come from the same device" in text) is is_linked
    assert ("permanent noise" in privacy_notice(registry["theme"])) is is_linked
    assert "without learning" not in text


def test_a_metric_for_life_has_no_sentence_about_a_year() -> None:
    """The reports of a metric for life repeat one permanent response, so a year reveals no more."""
    page = REGISTRY.partition("[metrics.editor]")[0].replace('epoch = "quarter"', 'epoch = "life"')
    short, long = write_consent_texts(load_registry(page)).sections
    assert "year" not in " ".join((*short.texts, *long.texts))


def test_an_unprotected_answer_is_not_called_scrambled() -> None:
    """If the loss has no limit, the consent texts state that the answers are not protected.

    They promise nothing about certainty, and the data sheet has the words "no limit".
    """
    unprotected = REGISTRY.replace("total = 40", "total = inf").replace(
        'profile = "balanced"', "k = 8\nm = 1\nf = 0.0\np = 0.0\nq = 1.0\ninsecure = true"
    )
    short, long = write_consent_texts(load_registry(unprotected)).sections
    assert "certainty" not in short.texts[0]
    assert "are not protected" in " ".join(long.texts)
    # Properties are recorded beside an unprotected answer, too.
    (page,) = [text for text in long.texts if text.startswith('"Home page')]
    assert page.endswith("We also record without scrambling: system.")
    assert "no limit" in join_text(write_datasheet(load_registry(unprotected)))


@pytest.mark.parametrize("write", WRITERS)
def test_a_version_changes_with_the_registry_only(write: Callable[[Registry], Document]) -> None:
    """The same registry gives the same document and version, and another owner another version.

    The version is a hash of the content, so people can see whether they have read a document. The
    impact assessment does not name the owner.
    """
    document, other_document = (
        write(load_registry()),
        write(load_registry(REGISTRY.replace("o@example", "p@example"))),
    )
    assert write(load_registry()) == document
    assert re.fullmatch("[0-9a-f]{16}", document.version)
    assert write is write_impact_assessment or other_document.version != document.version
    assert f"Version `{document.version}`" in paper_markdown(document)
    assert f"Version {document.version}" in paper_page(document)


@pytest.mark.parametrize("write", [write_datasheet, write_consent_texts])
def test_a_description_of_several_lines_is_shown_in_one_line(
    write: Callable[[Registry], Document],
) -> None:
    """Each line break of a description becomes a space, in Markdown and in HTML.

    A line break would end a row of a table in Markdown, and a picture of the control character
    would disturb the readers of a consent text.
    """
    two_lines = REGISTRY.replace('"Editor"', '"""Editor of\n  the text"""')
    document = write(load_registry(two_lines))
    for text in (paper_markdown(document), paper_page(document)):
        assert "Editor of the text" in text
        assert "\N{SYMBOL FOR LINE FEED}" not in text


@pytest.mark.parametrize("write", WRITERS)
def test_no_text_of_a_registry_is_markup(write: Callable[[Registry], Document]) -> None:
    """A tag in a description is escaped in HTML and in Markdown."""
    document = write(load_registry())
    assert "<b>" not in paper_page(document)
    rows = [line for line in paper_markdown(document).splitlines() if line.startswith("|")]
    for row in rows:
        assert "<b>" not in row.replace("\\<b\\>", "")
