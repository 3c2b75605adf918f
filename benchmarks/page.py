"""The cost of the JavaScript client for its page: time of record(), compared with IndexedDB alone.

Each run opens a fresh profile of the system's Chromium, loads the client from a local server, and
times calls in the page. IndexedDB is the browser's database, in which the client stores its state.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import http.server
import json
import math
import shutil
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.tables import Table
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor.registry.sealed_json import format_sealed_json

_CLIENT = Path(__file__).resolve().parents[1] / "client" / "javascript"
"""Folder of the JavaScript client, which the local server serves to Chromium."""
_WARM_UP_CALLS = 20
"""Number of calls of each kind before the measured calls. The first calls in a page take longer,
because the browser has not compiled the code yet."""
_CALLS_A_TIMING = 50
"""Number of calls in a timing of the row "later". One call is too short for the clock."""
_MEASURE = """async ([registry, n, nWarmUp, nCallsATiming]) => {
  const { Client } = await import("/index.js");
  const client = await Client.open({ registry, consent: true, background: false });
  const timed = async (action, nCalls = 1) => {
    const times = [];
    for (let i = 0; i < nWarmUp + n; i++) {
      const start = performance.now();
      for (let j = 0; j < nCalls; j++) await action(i);
      times.push((performance.now() - start) / nCalls);
      // record() returns before its event is stored, and queuedCount() resolves afterwards. So no
      // timing contains the writes of earlier calls.
      await client.queuedCount();
    }
    return times.slice(nWarmUp);
  };
  const recordAndStore = (i) => {
    client.record(`n${i}`, "duckduckgo");
    return client.queuedCount(); // resolves when the event is in the store
  };
  const database = await new Promise((resolve) => {
    const request = indexedDB.open("bare", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("documents");
    request.onsuccess = () => resolve(request.result);
  });
  const bare = (i) => new Promise((resolve) => {
    const options = { durability: "relaxed" };
    const transaction = database.transaction("documents", "readwrite", options);
    transaction.objectStore("documents").put({ i, text: "x".repeat(500) }, "document");
    transaction.oncomplete = resolve;
  });
  return {
    first: await timed((i) => client.record(`m${i}`, "duckduckgo")),
    later: await timed(() => client.record("m0", "duckduckgo"), nCallsATiming),
    stored: await timed(recordAndStore),
    bare: await timed(bare),
  };
}"""
"""JavaScript function that the page runs. It returns a list of milliseconds for each kind of call.
Each timing of "later" is the mean of 50 calls."""
_SITUATIONS = (
    ("bare", "IndexedDB alone: one write of 500 characters"),
    ("later", "record(): a later event of the day"),
    ("first", "record(): the first event of a day"),
    ("stored", "the first event of a day, until it is in the store"),
)
"""Key of the result of `_MEASURE`, and description, of each row. The row "bare" measures the store
of the browser without the library, for comparison with the row "stored"."""


def page(*, quick: bool) -> list[Table]:
    """Measure record() with k = 128 in fresh profiles of the system's Chromium."""
    runs = [_time_in_profile(100 if quick else 500) for _ in range(1 if quick else 5)]
    table = Table(
        title="page: record() in Chromium, k = 128, milliseconds",
        columns=("what", "median", "99 %"),
        note="Median over fresh profiles. Each timing of a later event is the mean of "
        f"{_CALLS_A_TIMING} calls.",
    )
    for key, label in _SITUATIONS:
        # Median and 99th percentile of each profile, then the median over the profiles.
        medians = [statistics.median(run[key]) for run in runs]
        slow = [statistics.quantiles(run[key], n=100)[-1] for run in runs]
        table.rows.append([label, statistics.median(medians), statistics.median(slow)])
    return [table]


def _time_in_profile(n: int) -> dict[str, list[float]]:
    """Time n calls of each kind in a fresh profile of Chromium, and return milliseconds by kind."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (the extra dev has it)

    with _serve_folder() as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = chromium.new_page()
        # `_MEASURE` imports the client by its path and uses IndexedDB. A page of the server can do
        # both, and an empty page can do neither. This file of the folder runs no code of its own.
        tab.goto(f"{url}/package.json")
        registry = _make_registry(_WARM_UP_CALLS + n)
        timings: dict[str, list[float]] = tab.evaluate(
            _MEASURE, [registry, n, _WARM_UP_CALLS, _CALLS_A_TIMING]
        )
        chromium.close()
    return timings


def _make_registry(n: int) -> Any:
    """Return a registry of 2 n metrics as a page reads it.

    A metric has only one first event in a day, so each timed first event needs its own metric.
    """
    metrics = [
        Metric(
            name=name,
            params=Params.profile("balanced"),
            description="-",
            owner="-",
            expires=datetime.date(2100, 1, 1),
            epoch="quarter",
        )
        for name in (f"{letter}{i}" for letter in "mn" for i in range(n))
    ]
    registry = Registry(metrics, total=math.inf)
    # A page shows the notices to people. Nobody reads these.
    notices = dict.fromkeys(registry, "-")
    return json.loads(format_sealed_json(registry, notices))


@contextlib.contextmanager
def _serve_folder() -> Iterator[str]:
    """Serve the client's folder while the block runs. Yields the address."""
    handler = functools.partial(_SilentHandler, directory=str(_CLIENT))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _SilentHandler(http.server.SimpleHTTPRequestHandler):
    """A handler that serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""
