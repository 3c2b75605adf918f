"""A local HTML page of a device: its stored state, sent uploads, and uploads that may follow.

The command `telemetry view` shows the page to the person whose device this is.
"""

from __future__ import annotations

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


def render_page(name: str, state: str, registry: Registry, folder: Path) -> str:
    """Return the HTML page of a folder's device.

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
    """
    body = "\n".join(
        f"<h2>{escape(title)}</h2>\n<pre>{escape(text)}</pre>"
        for title, text in _list_sections(registry, read_contents(folder))
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Telemetry of {escape(name)}"
        f"</title><style>{_STYLE}</style><h1>Telemetry of {escape(name)}</h1>\n"
        f"<p>{escape(state)}</p>\n{body}\n</html>\n"
    )


def _list_sections(registry: Registry, contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield title and text of each section.

    The section "Recorded" shows no values, because the device stores noisy bits only.
    """
    pending = [
        f"{report.metric}: one report, kept until its day is over"
        for report in contents.pending_reports
    ]
    # Every report of a metric in an epoch repeats this permanent response.
    permanent = [
        f"{scope.metric}: noisy response drawn for {scope.epoch or 'life'}"
        for scope in contents.scopes
    ]
    yield "Recorded", "\n".join([*pending, *permanent]) or "Nothing."
    sent = [f"{upload.day} {upload.body.decode()}" for upload in contents.sent_uploads]
    yield "Sent", "\n".join(sent) or "Nothing."
    would_send = payload.describe_payload(registry, contents.bodies, collector=None)
    yield "Would be sent", "\n".join(would_send)
    yield "Privacy loss", str(contents.spent)
    yield "What is collected", "\n\n".join(privacy_notice(metric) for metric in registry.values())
