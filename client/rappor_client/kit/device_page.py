"""A local HTML page about a device: what its folder stores, what it has sent and would send.

The command `telemetry view` shows the page to the person whose device this is.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from rappor.privacy.notice import privacy_notice
from rappor.registry.registry import Registry
from rappor_client.kit import payload
from rappor_client.person.contents import Contents, read_contents

# Inline, because the page must open without a server and without the network.
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85em}"
)


def render_page(
    name: str, state: str, registry: Registry, folder: Path, *, today: datetime.date
) -> str:
    """Return the HTML page about the device of a folder.

    Parameters
    ----------
    name
        Name of the program, for the title.
    state
        Sentence that says whether telemetry is on.
    registry
        Registry of the program.
    folder
        Folder of the device.
    today
        Present day (UTC).
    """
    body = "\n".join(
        f"<h2>{escape(title)}</h2>\n<pre>{escape(text)}</pre>"
        for title, text in _list_sections(registry, read_contents(folder), today)
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Telemetry of {escape(name)}"
        f"</title><style>{_STYLE}</style><h1>Telemetry of {escape(name)}</h1>\n"
        f"<p>{escape(state)}</p>\n{body}\n</html>\n"
    )


def _list_sections(
    registry: Registry, contents: Contents, today: datetime.date
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
    # The folder does not contain the address of the collector, so the text names no collector.
    would_send = payload.describe_payload(registry, contents.bodies, collector=None, today=today)
    yield "Would be sent", "\n".join(would_send)
    # A sentence with the privacy loss of each metric so far, as an epsilon.
    yield "Privacy loss", str(contents.spent)
    yield "What is collected", "\n\n".join(privacy_notice(metric) for metric in registry.values())
