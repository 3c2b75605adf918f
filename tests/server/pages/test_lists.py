"""Lists of candidates on pages: upload, use by digest, download and deletion.

The digest of a list is the SHA-256 hash of its lines.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from collectors import (
    UNBOUNDED,
    build_metric,
    build_report,
    build_upload,
    find_free_port,
    format_entry,
    make_token,
    require_found,
    run_file_collector,
)
from dashboards import NAMES, Visitor, find_form_token
from rappor_server.queries import candidate_lists
from rappor_server.queries.candidate_lists import CandidateLists
from rappor_server.queries.candidate_sources import UploadedList, find_candidates

from rappor.base.errors import ParamsError

PAGE = "/pages/metrics/home_page"
ASK = f"{PAGE}/ask"
DAY_SECONDS = 86_400.0
"""Converts days to seconds."""


def upload(reader: Visitor, *, text: str = "", file: bytes = b"") -> httpx.Response:
    """Send the form that uploads a list."""
    fields = {"form": find_form_token(reader.get(ASK).text), "text": text}
    return reader.http.post(f"{PAGE}/lists", data=fields, files={"file": ("l.txt", file)})


def compute_digest(text: str) -> str:
    """Return the digest of a list."""
    return hashlib.sha256(text.encode()).hexdigest()


def test_uploaded_list_is_used_by_its_digest(reader: Visitor) -> None:
    """A ranking with the digest of a list tests the candidates of the list.

    The download returns the lines without empty ones.
    """
    file = "".join(f"{name}\r\n" for name in [*NAMES[:3], "", "nobody's"]).encode()
    assert upload(reader, file=file).headers["location"] == f"{ASK}#lists"
    digest = compute_digest("".join(f"{name}\n" for name in [*NAMES[:3], "nobody's"]))
    assert digest[:12] in reader.get(ASK).text
    assert reader.get(f"{PAGE}/lists").status_code == 404
    text = reader.http.get(f"{PAGE}/lists", params={"list": digest})
    assert text.text.splitlines() == [*NAMES[:3], "nobody's"]
    assert text.headers["content-type"].startswith("text/plain")
    response = reader.request_result(f"{PAGE}/ranking", list=digest)
    assert "3 of 4 candidates detected" in response.text


def test_odd_lines_of_a_list_are_counted_on_the_page(reader: Visitor) -> None:
    """Lines with white space at an end, or with a byte-order mark, are counted on the page.

    Such characters are part of the candidate, and hardly any device reports such a string.
    """
    upload(reader, file="\ufeffbing \n qwant\n\ufeffduckduckgo\nstartpage\n".encode())
    page = reader.get(ASK).text
    assert "lines that begin or end with white space, which is part of the candidates: 2" in page
    assert "lines that begin with a byte-order mark, which is part of the candidates: 1" in page


@pytest.mark.slow
def test_the_url_of_a_result_has_the_digest_of_its_list(tmp_path: Path) -> None:
    """A metric without candidates in the registry uses the newest list.

    The URL of a result contains the digest of its list, so a newer list does not change the result.
    """
    (tmp_path / "metrics.toml").write_text(UNBOUNDED + format_entry("page", k=16, m=4))
    flags = ("--pages", "--suspicious", "accept")
    with run_file_collector(tmp_path, *flags, admin=find_free_port()) as running:
        reports = [build_report(cohort=i % 4, bits=i * 77) for i in range(200)]
        assert running.post(build_upload(*reports)).status_code == 200
        running.merge_uploads()
        visitor = Visitor(running)
        with visitor.http:
            visitor.sign_in(make_token(running.database))
            page = "/pages/metrics/page"
            fields = {"form": find_form_token(visitor.get(f"{page}/ask").text)}
            text_of_address = {}
            for text in ("one\n", "two\n"):
                sent = visitor.http.post(
                    f"{page}/lists", data=fields | {"text": text}, files={"file": ("l.txt", b"")}
                )
                assert sent.status_code == 303
                response = visitor.request_result(f"{page}/ranking", all="yes")
                assert f"list={compute_digest(text)}" in str(response.url)
                text_of_address[str(response.url)] = response.text
            assert len(text_of_address) == 2
            # The results stay when their lists have been deleted.
            (folder,) = tmp_path.glob("*-analysis/lists/page")
            for path in folder.iterdir():
                path.unlink()
            for address, text in text_of_address.items():
                assert visitor.http.get(address).text == text


@pytest.mark.parametrize(
    ("text", "file", "sentence"),
    [
        (" \n", b"", "A list must have 1 to"),
        ("", b"\xff", "A list must be UTF-8"),
        ("", b"a" * 5_000_001, "A list must have at most 5,000,000 bytes"),
        (
            '{"estimates": []}',
            b"",
            "The list is not valid: it must be a list of strings",
        ),
    ],
)
def test_invalid_lists_are_refused(reader: Visitor, text: str, file: bytes, sentence: str) -> None:
    """A list is refused if it is empty, not UTF-8, too large, or JSON that is no list of strings.

    The page states the reason.
    """
    response = upload(reader, text=text, file=file)
    assert response.status_code == 422
    assert sentence in response.text


def test_hostile_candidates_of_a_list_are_escaped(reader: Visitor) -> None:
    """The page shows the first candidates of a list, and escapes them. A download does not."""
    candidate = '"><script>alert(1)</script>&list=x'
    assert upload(reader, text=candidate).status_code == 303
    assert "<script>alert" not in reader.get(ASK).text
    text = reader.http.get(f"{PAGE}/lists", params={"list": compute_digest(f"{candidate}\n")})
    assert text.text == f"{candidate}\n"


def test_lists_of_tuples_have_every_field(tmp_path: Path) -> None:
    """Tabs separate the fields of a line. A line with a missing field is refused by its number."""
    lists, fields = CandidateLists(tmp_path / "lists", days=90), ("site", "country")
    digest = lists.save("page", b"a.org\tde\nb.org\t\n", max_candidates=9, field_names=fields)
    assert lists.read("page", digest) == b"a.org\tde\nb.org\t\n"
    with pytest.raises(ParamsError, match=r"candidate 2 is not valid: it must have 2 fields"):
        lists.save("page", b"a.org\tde\nb.org\n", max_candidates=9, field_names=fields)
    assert len(lists.list_all("page")) == 1


def test_lists_are_files_named_by_their_digest(tmp_path: Path) -> None:
    """A list is a file of the metric's folder that only its user can read.

    A text that is saved again is the same list, and becomes the newest. Texts that are no digest
    find no file.
    """
    lists = CandidateLists(tmp_path / "lists", days=90)
    assert (lists.find_newest("page"), lists.list_all("page")) == (None, [])
    first = lists.save("page", b"\xef\xbb\xbfa\r\n\nb", max_candidates=2, now=0.0)
    second = lists.save("page", b"c", max_candidates=2, now=1.0)
    assert [first, second] == [compute_digest("a\nb\n"), compute_digest("c\n")]
    assert lists.find_newest("page") == second
    assert lists.save("page", b"a\nb", max_candidates=2, now=2.0) == first
    newest, _ = lists.list_all("page")
    assert (newest.digest, newest.candidates, newest.first) == (first, 2, ("a", "b"))
    assert newest.uploaded == datetime.date(1970, 1, 1)
    assert lists.read("page", first) == b"a\nb\n"
    assert lists.find("sound", first) is None
    for invalid_digest in ("", "..", "*", first[:-1], first.upper(), f"{first}\n"):
        assert lists.find("page", invalid_digest) is None
    with pytest.raises(ParamsError, match="1 to 2 candidates, got 3"):
        lists.save("page", b"a\nb\nc", max_candidates=2)
    path = require_found(lists.find("page", first))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert re.fullmatch(rf"{first}\.2\.2\.0\.0\.txt", path.name)


@pytest.mark.parametrize("seconds", [(0.0, 1.0, 2.0), (2.0, 1.0, 0.0)])
def test_a_list_that_is_saved_again_is_always_found(
    tmp_path: Path, seconds: tuple[float, ...]
) -> None:
    """A list has a file at each moment, and is listed once, also if the clock was set back.

    Another thread looks for the list all the time, while it is saved again and again.
    """
    lists = CandidateLists(tmp_path, days=10**6)
    digest = lists.save("page", b"a", max_candidates=1, now=seconds[0])
    has_ended = threading.Event()

    def count_failed_searches() -> int:
        n_failed = 0
        while not has_ended.is_set():
            n_failed += lists.find("page", digest) is None
        return n_failed

    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(count_failed_searches)
        for round_number in range(50):
            for second in seconds:
                lists.save("page", b"a", max_candidates=1, now=10 * round_number + second)
        has_ended.set()
        assert search.result() == 0
    (only,) = lists.list_all("page")
    assert only.digest == digest
    assert lists.find_newest("page") == digest


def test_a_query_finds_its_list_after_another_upload(tmp_path: Path) -> None:
    """A query reads its list although a colleague has saved the same text since it was requested.

    The name of the file contains the time of the upload, so the list has another file now.
    """
    lists = CandidateLists(tmp_path, days=10**6)
    digest = lists.save("page", b"a", max_candidates=1, now=0.0)
    source = find_candidates(build_metric("page"), digest, registry="metrics.toml", lists=lists)
    lists.save("page", b"a", max_candidates=1, now=1.0)
    assert isinstance(source, UploadedList)
    assert not require_found(source.path).exists()
    assert len(source.read(build_metric("page").params)) == 1


def test_lists_are_deleted_after_their_last_use(tmp_path: Path) -> None:
    """A list is deleted two days after its last use.

    If a metric has more than MAX_LISTS lists, the list that was not used for the longest time is
    deleted. Files of interrupted uploads are deleted, too.
    """
    lists = CandidateLists(tmp_path, days=2)
    names = [lists.save("page", f"{i}".encode(), max_candidates=1, now=0.0) for i in range(2)]
    (tmp_path / ".DS_Store").touch()  # a file where a folder for each metric is expected
    (tmp_path / "page" / "left.part").touch()
    os.utime(tmp_path / "page" / "left.part", (0, 0))
    last_use = require_found(lists.find("page", names[0])).stat().st_mtime
    lists.delete_unused(now=last_use + 1.9 * DAY_SECONDS)
    assert [row.digest for row in lists.list_all("page")] == [names[0]]
    assert len(list((tmp_path / "page").iterdir())) == 1
    lists.delete_unused(now=last_use + 2.1 * DAY_SECONDS)
    assert lists.list_all("page") == []
    for i in range(candidate_lists.MAX_LISTS + 1):
        lists.save("page", f"{i}".encode(), max_candidates=1, now=float(i))
    digests = {row.digest for row in lists.list_all("page")}
    assert len(digests) == candidate_lists.MAX_LISTS
    assert compute_digest("0\n") not in digests
