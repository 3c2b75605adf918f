"""A local HTML page about a device: what its folder stores, what it has sent and would send.

The command `telemetry view` shows the page to the person whose device this is.
"""

from __future__ import annotations

import datetime
import glob
import re
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from rappor.privacy.notice import privacy_notice
from rappor.registry.registry import Registry
from rappor_client.kit import payload
from rappor_client.kit.consent_file import is_owned_by_user
from rappor_client.person.contents import Contents, read_contents

# Inline, because the page must open without a server and without the network.
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85em}"
)

_PAGE_FILE: Final = "telemetry.html"
"""A page has this name in its folder."""


def render_page(
    name: str,
    state: str,
    registry: Registry,
    folder: Path,
    *,
    collector: object,
    today: datetime.date,
) -> str:
    """Return the HTML page about the device of a folder.

    Parameters
    ----------
    name
        Name of the program, for the title.
    state
        Sentences that say whether telemetry is on, and when something may be sent.
    registry
        Registry of the program.
    folder
        Folder of the device.
    collector
        Address of the collector, or a transport.
    today
        Present day (UTC).
    """
    body = "\n".join(
        f"<h2>{escape(title)}</h2>\n<pre>{escape(text)}</pre>"
        for title, text in _list_sections(registry, read_contents(folder), collector, today)
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Telemetry of {escape(name)}"
        f"</title><style>{_STYLE}</style><h1>Telemetry of {escape(name)}</h1>\n"
        f"<p>{escape(state)}</p>\n{body}\n</html>\n"
    )


def write_page(name: str, page: str) -> Path:
    """Write a page into a new folder that only the user can read; return the path of the page."""
    path = Path(tempfile.mkdtemp(prefix=_name_prefix(name)), _PAGE_FILE)
    path.write_text(page, encoding="utf-8")
    return path


def erase_pages(name: str) -> list[str]:
    """Erase the pages that `write_page` has written for a program; return what could not be erased.

    The pages contain the sent uploads, so an erasure of the device that left them would not be one.
    A page is not found if the folder for temporary files has changed since.
    """
    remaining = []
    for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(_name_prefix(name))}*"):
        # Folders of this name that belong to other users are pages of theirs.
        if folder.is_symlink() or not folder.is_dir() or not is_owned_by_user(str(folder)):
            continue
        try:
            (folder / _PAGE_FILE).unlink(missing_ok=True)
            folder.rmdir()
        except OSError:
            remaining.append(str(folder))
    return remaining


def _name_prefix(name: str) -> str:
    """Return the first characters of the names of a program's folders of pages."""
    # The name of a program has no "=" here. With "-" in its place, the program `a` would erase the
    # pages of the program `a-b`.
    return f"telemetry-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}="


def _list_sections(
    registry: Registry, contents: Contents, collector: object, today: datetime.date
) -> Iterator[tuple[str, str]]:
    """Yield title and text of each section.

    The section "Recorded" names metrics, and the epochs of their noisy responses. It cannot show
    true values, because the folder contains none. It does not show the noisy bits, because they
    mean nothing to a person.
    """
    # A metric of the kit reports about single days (`interval = "epoch"`).
    pending = [
        f"{report.metric}: one report, kept until its day is over"
        for report in contents.pending_reports
    ]
    # A permanent response is a row of noisy bits. A device draws it once in an epoch of a metric,
    # such as a month, and draws every report of the epoch from it. The epoch is empty if the metric
    # has `epoch = "life"`.
    permanent = [
        f"{scope.metric}: noisy response drawn for {scope.epoch or 'life'}"
        for scope in contents.scopes
    ]
    yield "Recorded", "\n".join([*pending, *permanent]) or "Nothing."
    sent = [f"{upload.day} {upload.body.decode()}" for upload in contents.sent_uploads]
    yield "Sent", "\n".join(sent) or "This device has no record of anything sent."
    would_send = payload.describe_payload(registry, contents.bodies, collector, today=today)
    yield "Would be sent", "\n".join(would_send)
    # A sentence with the privacy loss of each metric so far, as an epsilon.
    yield "Privacy loss", str(contents.spent)
    yield "What is collected", "\n\n".join(privacy_notice(metric) for metric in registry.values())
