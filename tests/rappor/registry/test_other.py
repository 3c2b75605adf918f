"""An entry with `other = "discover"`: two metrics that a device answers together."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from registries import entry_of, metric_of, registry_of

from rappor import Metric, MetricError, Params, ParamsError, Registry
from rappor.protocol.encodings.catalogue import encoder
from rappor.protocol.params import NOISE
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.other import with_other

ENTRY = "[budget]\ntotal = 100\n" + entry_of(
    "editor",
    encoding='"onehot"',
    categories='["vscode", "vim"]',
    epoch='"quarter"',
    other='"discover"',
)

PLAIN = Params(k=2, encoding="onehot", categories=("vscode", "vim"), f=0.25, p=0.1, q=0.6)


def with_lines(*lines: str) -> str:
    """Return the entry with lines more, in place of those of the same key."""
    keys = {line.split(" =")[0] for line in lines}
    kept = [line for line in ENTRY.splitlines() if line.split(" =")[0] not in keys]
    return "\n".join([*kept, *lines])


def pair() -> list[Metric]:
    """Return both metrics of an entry."""
    first, second = with_other(PLAIN)
    return [metric_of(first, "editor"), metric_of(second, "editor.other")]


def test_an_entry_is_two_metrics() -> None:
    """The categories with other, and what is in none of them, each with its price."""
    registry = Registry.loads(ENTRY)
    assert list(registry) == ["editor", "editor.other"]
    editor, texts = registry.values()
    assert editor.params.categories == ("vscode", "vim", "other")
    assert texts.params == dataclasses.replace(
        Params.profile("balanced"), categories=("vscode", "vim"), other=True
    )
    assert texts.parts == (Part("prefix:3", 0.2), Part("whole"))
    assert not editor.parts
    assert [each.total for each in registry.reserved] == [16.0, 16.0]
    assert (editor.epoch, editor.expires) == (texts.epoch, texts.expires)


def test_both_names_are_answered_together() -> None:
    """What programs record comes first, by either name; other metrics are alone."""
    registry = Registry.loads(ENTRY)
    assert registry.together("editor") == ("editor", "editor.other")
    assert registry.together("editor.other") == ("editor", "editor.other")
    assert registry.together("page") == ("page",)
    assert registry.in_segment({}).together("editor") == ("editor", "editor.other")


def test_a_refusal_is_of_all_that_was_ever_answered_together() -> None:
    """Also where this version has one of both or none; metrics that are no pair stay apart."""
    both = {"editor", "editor.other"}
    paired = Registry.loads(ENTRY)
    plain = Registry.loads(ENTRY.replace('other = "discover"', ""))
    for registry in (paired, plain):
        assert both <= registry.refused_with("editor")
        assert both <= registry.refused_with("editor.other")
        assert registry.refused_with("page") == {"page", "page.other"}
    first, second = pair()
    plain_first, plain_second = (dataclasses.replace(each, params=PLAIN) for each in pair())
    for metrics in ((plain_first, plain_second), (first, plain_second), (plain_first, second)):
        strangers = registry_of(*metrics)
        assert strangers.together("editor.other") == ("editor.other",)
        assert "editor.other" not in strangers.refused_with("editor")
        assert "editor" not in strangers.refused_with("editor.other")


def test_noise_that_must_be_called_insecure_is_so_in_both() -> None:
    """The entry says it once."""
    noise = "f = 0\np = 0\nq = 0.75\ninsecure = true"
    text = ENTRY.replace('profile = "balanced"', noise).replace("total = 100", "total = inf")
    assert [each.params.t_1 for each in Registry.loads(text).values()] == [0, 0]
    with pytest.raises(MetricError, match="say insecure"):
        Registry.loads(text.replace("insecure = true", ""))


@pytest.mark.parametrize(
    "params",
    [
        Params(k=1, encoding="boolean", f=0.25, p=0.1, q=0.6),
        Params(k=2, encoding="buckets", categories=("1",), f=0.25, p=0.1, q=0.6),
        Params(k=1, encoding="flags", categories=("a",), f=0.25, p=0.1, q=0.6),
        Params(k=8, f=0.25, p=0.1, q=0.6),
    ],
)
def test_only_categories_have_an_other(params: Params) -> None:
    """The encoding is told."""
    with pytest.raises(ParamsError, match=f"other must be absent for encoding {params.encoding}"):
        with_other(params)


def test_parts_and_candidates_are_of_the_texts() -> None:
    """Noise, limits and segments are of both; an entry may say that there are no parts."""
    text = with_lines(
        'parts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]',
        'candidates = "editors.txt"',
        "min_reports = 7",
        'segments = {version = ["1"]}',
    )
    editor, texts = Registry.loads(text).values()
    assert texts.parts == (Part("prefix:2", 0.5), Part("whole"))
    assert (editor.candidates, texts.candidates) == (None, "editors.txt")
    assert (editor.min_reports, texts.min_reports) == (7, 7)
    assert editor.segments == texts.segments
    assert Registry.loads(with_lines("parts = []"))["editor.other"].parts == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['other = "name"'], "other must be 'discover', got 'name'"),
        (["other = true"], "other must be 'discover', got True"),
        (["other = false"], "other must be 'discover', got False"),
        (['other = ""'], "other must be 'discover', got ''"),
        (['categories = ["vim", "other"]'], "categories must not name 'other'"),
        (['categories = ["Other", "vim"]', 'normalize = "casefold"'], "must be distinct after"),
        (['encoding = "flags"'], "other must be absent for encoding flags"),
        (["parts = 3"], "parts must be a list"),
        (['[metrics."editor.other"]', 'description = "x"'], "metric 'editor.other' must be absent"),
    ],
)
def test_what_cannot_be_is_refused(lines: list[str], message: str) -> None:
    """With one sentence that names the entry."""
    with pytest.raises(MetricError, match=message):
        Registry.loads(with_lines(*lines))


def test_the_budget_is_for_both() -> None:
    """A total that covers one is refused, and one that is missing is told for both."""
    with pytest.raises(MetricError, match="total must be at least 32 nats"):
        Registry.loads(ENTRY.replace("total = 100", "total = 31"))
    with pytest.raises(MetricError, match="total = 32 or more"):
        Registry.loads(ENTRY.replace("[budget]\ntotal = 100\n", ""))


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": "month"},
        {"interval": "week"},
        {"sample": 0.5},
        {"expires": datetime.date(2031, 1, 1)},
        {"owner": "another"},
        {"segments": (Dimension("version", ("1",)),)},
        {"params": dataclasses.replace(with_other(PLAIN)[1], categories=("vscode",))},
        {"params": dataclasses.replace(with_other(PLAIN)[1], normalize="casefold")},
    ],
)
def test_two_metrics_that_are_no_pair_cannot_have_its_names(changed: dict[str, Any]) -> None:
    """Devices could not answer both at the same times, or not of the same values."""
    first, second = pair()
    with pytest.raises(MetricError, match="whose other it names"):
        registry_of(first, dataclasses.replace(second, **changed))


def test_each_value_has_one_answer_in_both() -> None:
    """The text is told if and only if the category is other; nothing is told of an empty value."""
    first, second = map(encoder, with_other(PLAIN))
    answers = {value: first.bits(value, 0) for value in ("vscode", "vim", "helix", "other", "")}
    assert answers == {"vscode": [0], "vim": [1], "helix": [2], "other": [2], "": []}
    for value, bits in answers.items():
        told = value if bits == [2] else ""
        for cohort in range(8):
            plain = encoder(Params.profile("balanced")).bits(told, cohort)
            assert second.bits(value, cohort) == plain


@pytest.mark.parametrize(
    ("normalizer", "value", "bits", "told"),
    [
        ("casefold", "vim", [0], ""),
        ("casefold", "HELIX", [2], "helix"),
        ("casefold", "STRASSE", [1], ""),
        ("casefold", "OTHER", [2], "other"),
        ("strip", " Vim\n", [0], ""),
        ("strip", "vim", [2], "vim"),
        ("strip", " \t", [], ""),
        ("host", "https://VIM:80/x", [0], ""),
        ("host", "a b", [], ""),
        ("nfc", "x" * 8193, [], ""),
        ("none", "x" * 8193, [2], "x" * 8193),
        ("none", "vim\0", [2], "vim\0"),
    ],
)
def test_both_answers_are_of_the_normalised_value(
    normalizer: str, value: str, bits: list[int], told: str
) -> None:
    """Categories are normalised too; whatever normalizing leaves empty is in no category."""
    named = dataclasses.replace(PLAIN, categories=("Vim", "straße"), normalize=normalizer)
    first, second = with_other(named)
    assert encoder(first).bits(value, 0) == bits
    noise = {letter: getattr(PLAIN, letter) for letter in NOISE}
    plain = dataclasses.replace(Params.profile("balanced"), **noise)
    assert encoder(second).bits(value, 0) == encoder(plain).bits(told, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding": "boolean", "k": 1},
        {"encoding": "flags", "k": 2, "categories": ("a", "b")},
        {"k": 8},
        {"k": 8, "categories": ("a", "a")},
        {"k": 8, "categories": ("",)},
    ],
)
def test_other_goes_with_categories_and_strings(fields: dict[str, Any]) -> None:
    """Strings name the categories that another metric tells, each once."""
    with pytest.raises(ParamsError):
        Params(f=0.25, p=0.1, q=0.6, other=True, **fields)
    with pytest.raises(ParamsError, match="other must be True or False"):
        Params(k=8, f=0.25, p=0.1, q=0.6, other=1)  # type: ignore[arg-type]
