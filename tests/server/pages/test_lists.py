"""Lists of candidates: kept, used, read again, deleted, and refused."""

from __future__ import annotations

import datetime

import httpx
import pytest
from collectors import beside
from dashboards import NAMES, Visitor, form_token
from rappor_server.analysis import candidate_lists
from rappor_server.errors import LimitError
from sqlalchemy import Engine

from rappor.ground.errors import ParamsError

TODAY = datetime.date(2026, 11, 22)
PAGE = "/pages/metrics/home_page"
ASK = f"{PAGE}/ask"


def keep(reader: Visitor, name: str, *, text: str = "", file: bytes = b"") -> httpx.Response:
    """Send the form that keeps a list."""
    fields = {"form": form_token(reader.get(ASK).text), "name": name, "text": text}
    return reader.http.post(f"{PAGE}/lists", data=fields, files={"file": ("l.txt", file)})


def test_a_list_is_uploaded_used_and_deleted(reader: Visitor) -> None:
    """The ranking is of its candidates, and the text comes back as it was sent."""
    own = "".join(f"{name}\r\n" for name in [*NAMES[:3], "", "nobody's"]).encode()
    assert keep(reader, "first three", file=own).headers["location"] == f"{ASK}#lists"
    assert "first three" in reader.get(ASK).text
    assert reader.get(f"{PAGE}/lists").status_code == 404
    text = reader.http.get(f"{PAGE}/lists", params={"list": "first three"})
    assert text.text.splitlines() == [*NAMES[:3], "nobody's"]
    assert text.headers["content-type"].startswith("text/plain")
    answer = reader.answer(f"{PAGE}/ranking", list="first three")
    assert "3 of 4 candidates detected" in answer.text
    gone = reader.post(f"{PAGE}/lists/delete", at=ASK, list="first three")
    assert gone.status_code == 303
    assert "first three" not in reader.get(ASK).text
    assert reader.post(f"{PAGE}/lists/delete", at=ASK, list="first three").status_code == 404


@pytest.mark.parametrize(
    ("name", "text", "file", "sentence"),
    [
        ("", "a", b"", "The name must have 1 to 60 visible characters"),
        ("\u202e", "a", b"", "The name must have 1 to 60 visible characters"),
        ("n" * 61, "a", b"", "The name must have 1 to 60 visible characters"),
        ("empty", " \n", b"", "A list must have 1 to"),
        ("bytes", "", b"\xff", "A list must be UTF-8"),
        ("long", "", b"a" * 5_000_001, "A list must have at most 5,000,000 bytes"),
    ],
)
def test_what_is_no_list_is_refused(
    reader: Visitor, name: str, text: str, file: bytes, sentence: str
) -> None:
    """With the reason, and nothing is kept."""
    answer = keep(reader, name, text=text, file=file)
    assert answer.status_code == 422
    assert sentence in answer.text


def test_a_hostile_name_is_a_name(reader: Visitor) -> None:
    """It is shown as it is, is found again, and is no markup."""
    name = '"><script>alert(1)</script>&list=x'
    assert keep(reader, name, text="a").status_code == 303
    assert "<script>alert" not in reader.get(ASK).text
    assert reader.http.get(f"{PAGE}/lists", params={"list": name}).text == "a\n"
    assert reader.post(f"{PAGE}/lists/delete", at=ASK, list=name).status_code == 303


def test_lists_are_bounded_and_have_names_of_their_own(engine: Engine) -> None:
    """Twenty of a metric, each under a free name; another metric has its own."""
    for number in range(candidate_lists.MOST_LISTS):
        _keep(engine, f"list {number}")
    with pytest.raises(ParamsError, match="the name must be new"):
        _keep(engine, "list 0")
    with pytest.raises(LimitError, match="at most 20 lists"):
        _keep(engine, "one more")
    with pytest.raises(ParamsError, match="1 to 2 candidates, got 3"):
        candidate_lists.keep(engine, "sound", "a", b"a\nb\nc", most=2, today=TODAY)
    candidate_lists.keep(engine, "sound", "list 0", b"\xef\xbb\xbfa\nb", most=2, today=TODAY)
    (kept,) = candidate_lists.list_all(engine, "sound")
    assert (kept.name, kept.candidates, kept.created) == ("list 0", 2, TODAY)
    assert candidate_lists.find(engine, "sound", "list 0") == b"a\nb\n"
    for name in ("", "\x00", "n" * 61):
        assert candidate_lists.find(engine, "sound", name) is None
        assert not candidate_lists.delete(engine, "sound", name)


def _keep(engine: Engine, name: str) -> None:
    candidate_lists.keep(engine, "page", name, b"a", most=10, today=TODAY)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
def test_of_two_lists_of_one_name_the_second_is_refused(engine: Engine) -> None:
    """Two who keep a list at once have one list, and the other is told that its name is taken."""
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(ParamsError, match="the name must be new"):
            _keep(engine, "own")
        told.append("taken")

    other = beside(engine, "INSERT INTO candidate_list", ask)
    _keep(engine, "own")
    other.join()
    assert told == ["taken"]
    assert [each.name for each in candidate_lists.list_all(engine, "page")] == ["own"]
