"""Tuples: values of several fields, sent as one report with the whole budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import reference
from devices import CLEAR, Home, build_metric, read_secret, write_device
from rappor_client import Client, Outcome

from rappor import Params, ReportError, encode_value, epsilon_1
from rappor.protocol.tuples import combine_categories

LISTS = {"editor": ("vim", "code"), "system": ("linux", "mac")}
# Four combinations of listed texts and one bucket for all other values: five buckets.
CHOICE = Params.profile(
    "once",
    encoding="onehot",
    categories=combine_categories(LISTS),
    field_names=tuple(LISTS),
    normalize="casefold,none",
)
PAIR = dataclasses.replace(CLEAR, field_names=("site", "country"), normalize="host,none")
"""Parameters of a tuple of two fields that are hashed. They have the noise of `CLEAR`: no
instantaneous noise, so that a report equals its permanent response."""
SITE = "https://Secret-Site.example/path"


def send_next_day(home: Home, client: Client) -> Any:
    """Flush on the next day, and return the only report."""
    home.clock.advance(days=1)
    client.flush()
    (report,) = home.transport.reports
    return report


@pytest.mark.parametrize(
    ("value", "texts", "is_unfit"),
    [
        ({"site": SITE, "country": "de"}, ("secret-site.example", "de"), False),
        ({"country": "de", "site": SITE}, ("secret-site.example", "de"), False),
        ({"site": SITE, "country": ""}, ("secret-site.example", ""), False),
        ({"site": "no host", "country": "de"}, ("", "de"), True),
        ({"site": SITE, "country": "d\x1fe"}, ("secret-site.example", ""), True),
    ],
)
def test_the_fields_of_a_tuple_are_hashed_together(
    home: Home, value: dict[str, str], texts: tuple[str, str], is_unfit: bool
) -> None:
    """The report has the permanent response of the joined texts of the fields.

    A field counts as empty if its text fits nowhere: it has no host, or contains the separator of
    fields. The device counts such a tuple in its counter `unfit`. No file of the device contains a
    text.
    """
    metric = build_metric(params=PAIR)
    with home.open(metric, collector=home.transport) as client:
        assert client.record("page", value) == Outcome.RECORDED
        report = send_next_day(home, client)
        assert client.event_counts().get("unfit", 0) == is_unfit
    encoded = encode_value(read_secret(home.folder), metric, value)
    joined = "\x1f".join(texts)  # the separator of fields, which no field may contain
    bits = reference.compute_bloom_filter(joined, report.cohort, PAIR.k, PAIR.h)
    assert reference.pack(bits) == encoded.bits
    assert report.bits == encoded.permanent
    for path in Path(home.folder).rglob("*"):
        if path.is_file():
            assert b"secret-site" not in path.read_bytes().lower()


@pytest.mark.parametrize(
    ("value", "bucket"),
    [
        ({"editor": "VIM", "system": "mac"}, 1),
        ({"system": "linux", "editor": "code"}, 2),
        ({"editor": "vim", "system": "Mac"}, 4),
        ({"editor": "kate", "system": "linux"}, 4),
        ({"editor": "", "system": ""}, 4),
    ],
)
def test_a_combination_is_one_bucket_and_costs_epsilon_1(
    home: Home, value: dict[str, str], bucket: int
) -> None:
    """A tuple is one bucket of five: of its combination of texts, or of all unlisted values.

    The buckets are 0 vim linux, 1 vim mac, 2 code linux, 3 code mac, and 4 for all other values.
    Texts of `editor` are compared in lower case, texts of `system` as they are.
    """
    secret = bytes(range(32))
    write_device(home.folder, secret)
    metric = build_metric(params=CHOICE, epoch="quarter", interval="epoch")
    # The secret draws a day of the quarter, and the device reports on this day or later. The last
    # eight days are never drawn, so the drawn day has passed.
    home.clock.set("2026-12-28T12:00:00")
    with home.open(metric, collector=home.transport) as client:
        assert client.record("page", value) == Outcome.RECORDED
        assert client.record("page", {"editor": "code", "system": "mac"}) == Outcome.RECORDED
        report = send_next_day(home, client)
        assert client.privacy_spent().nats == pytest.approx(epsilon_1(CHOICE), abs=1e-3)
    scope = reference.encode_scope("page", "2026-Q4", metric.params.permanent_fingerprint)

    def draw(true_bucket: int) -> bytes:
        """Return the bits of the report of a value with this bucket: one of k = 5 buckets."""
        coins = reference.derive_bucket_coins(secret, scope, own=[true_bucket], k=5, n=1)
        keep = CHOICE.response.canonical_keys["keep"]
        named = reference.draw_bucket(own=[true_bucket], k=5, n=1, t=keep, u=coins)
        return reference.pack([int(i == named) for i in range(5)])

    # The device chooses one of the two events of the day at random: the value, or code mac.
    assert report.bits in {draw(bucket), draw(3)}


class Unreadable(Mapping[str, str]):
    """A mapping that raises while it is read. Its error contains the value."""

    def __getitem__(self, key: str) -> str:
        raise ValueError("secret-site.example")

    def __iter__(self) -> Iterator[str]:
        raise ValueError("secret-site.example")

    def __len__(self) -> int:
        return 2


class UnreadableKey(str):
    """A name of a field that raises when it is compared. Its error contains the value."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("secret-site.example")


class UnreadableText(str):
    """A text whose methods raise. Their error contains the value."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        """Raise an error in place of returning the bytes."""
        raise ValueError("secret-site.example")

    def __contains__(self, part: object) -> bool:
        raise ValueError("secret-site.example")


@pytest.mark.parametrize(
    "value",
    [
        "secret-site.example\x1fde",
        ["secret-site.example", "de"],
        {"site": "secret-site.example"},
        {"site": "secret-site.example", "secret-site": "de"},
        {"site": "secret-site.example", "country": "de", "city": "secret-site"},
        {"site": "secret-site.example", "country": 49},
        {"site": "secret-site.example", "country": b"de"},
        {"site": "secret-site.example", "country": None},
        {"site": "secret-site.example", "country": "secret-site\ud800"},
        Unreadable(),
        {UnreadableKey("site"): "secret-site.example", "country": "de"},
        None,
        7,
    ],
)
def test_a_tuple_of_the_wrong_kind_is_a_mistake_of_the_program(value: object, home: Home) -> None:
    """A value that is no mapping of the fields to texts raises, and nothing is recorded.

    The message and the cause of the error contain no text of the value.
    """
    with home.open(build_metric(params=PAIR), collector=home.transport) as client:
        with pytest.raises(ReportError) as refusal:
            client.record("page", value)
        assert "secret-site" not in str(refusal.value)
        assert refusal.value.__cause__ is None
        assert client.queued_count() == 0
        home.clock.advance(days=1)
        client.flush()
    assert home.transport.reports == []


class ReadableOnce(dict[str, str]):
    """A mapping that is gone after its first reading."""

    def items(self) -> Any:
        """Return the items, and forget them."""
        items = list(super().items())
        self.clear()
        return items


def test_a_mapping_is_read_once(home: Home) -> None:
    """A view of a row that is gone after the first reading is recorded like its copy."""
    with home.open(build_metric(params=PAIR), collector=home.transport) as client:
        value = ReadableOnce(site="a.example", country="de")
        assert client.record("page", value) == Outcome.RECORDED
        assert send_next_day(home, client)
        assert "failures" not in client.event_counts()


def test_methods_of_a_text_are_not_called(home: Home) -> None:
    """A text of a subclass of str is recorded, and no method of the subclass is called.

    The methods of `UnreadableText` raise. The device would count such an error as a failure of its
    disk, and the error contains the value.
    """
    texts = {"site": UnreadableText("a.example"), "country": UnreadableText("de")}
    with home.open(build_metric(params=PAIR), collector=home.transport) as client:
        assert client.record("page", texts) == Outcome.RECORDED
