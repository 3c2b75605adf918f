"""The client in a real browser, on the site of the README and with a real collector."""

from __future__ import annotations

import datetime
import itertools
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsers import PATIENCE, run_browser
from collectors import merge_now
from node import CLIENT
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route
from rappor_server.storage.database import open_database
from tools import need
from websites import Site, run_readme_site

from rappor import Metric, Params, Registry
from rappor.registry.sealed_json import format_sealed_json

pytestmark = pytest.mark.slow  # starts a browser and a collector

# The functions in JavaScript below run in a page.

OPEN = """async (options) => {
  const { Client } = await import("/rappor-client/index.js");
  const registry = await (await fetch("/registry.json")).json();
  // The tabs of a profile share their day: a report is finished on the day after its event.
  const days = () => Number(localStorage.getItem("days"));
  globalThis.passDays = (n) => localStorage.setItem("days", days() + n);
  // 1 October 2026 is the first day of a quarter, so the epoch of a test of 90 days does not end.
  const noon = Date.UTC(2026, 9, 1, 12) / 1000;
  const clock = () => noon + 86_400 * days() + performance.now() / 1000;
  // Reports leave at three o'clock, and the first event of a day is chosen; the bits are random.
  const fixed = (n) => [[2 ** 29], [0, 0]][n - 1] ?? crypto.getRandomValues(new Uint32Array(n));
  const coins = options.isNoisy ? undefined : fixed;
  const defaults = { registry, consent: true, collector: "/telemetry", background: false };
  globalThis.client = await Client.open({ ...defaults, clock, coins, ...options });
}"""
"""Opens a client as `client`, with the registry of the site and more options. `passDays` moves the
clock of the client."""
RECORD = """async (words) => {
  const outcomes = [];
  for (const word of words) {
    globalThis.passDays?.(1);
    const { outcome, reason } = client.record("search_engine", word);
    outcomes.push(reason || outcome);
    await client.queuedCount(); // stores what is in memory first
  }
  return outcomes;
}"""
"""Records each word on the next day, and returns the outcomes, or the reasons why a value was
skipped."""
FLUSH = "() => { passDays(1); return client.flush({ timeout: 50 }); }"
"""Flushes on the next day, and returns the result."""
SHOW_PANEL = """async () => {
  const { RapporPanel } = await import("/rappor-client/panel.js");
  globalThis.panel = new RapporPanel();
  panel.client = client;
  document.body.replaceChildren(panel);
}"""
"""Creates the panel of the client, as `panel`, which replaces the content of the page."""
PLAIN_PAGE = "/registry.json"
"""Path of a file of the site, which a browser shows as a page without a script."""
WORDS_TOML = """
[budget]
total = inf
[metrics.search_engine]
description = "A word, for this test only: the noise protects nobody"
owner = "tests"
expires = 2100-01-01
epoch = "life"
interval = "day"
encoding = "bloom"
k = 64
m = 2
f = 0.0
p = 0.02
q = 0.98
insecure = true
candidates = "words.txt"
min_reports = 0
min_cohort = 1
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the Chromium of this machine."""
    with run_browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run the site of the README, with its collector."""
    with run_readme_site(tmp_path_factory.mktemp("site")) as running_site:
        yield running_site


@pytest.fixture
def profile(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    """Create a fresh profile of the browser. The client of a profile is a device of its own."""
    context = browser.new_context(base_url=site.url)
    yield context
    context.close()


def open_tab(profile: BrowserContext, **options: Any) -> Page:
    """Open a page of the site with a client that has consent.

    By default the client has no background sender.
    """
    page = profile.new_page()
    page.goto(PLAIN_PAGE)
    page.evaluate(OPEN, options)
    return page


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_page_of_the_readme_works_for_a_visitor(profile: BrowserContext, site: Site) -> None:
    """The page of the README works: question, recording, sending, panel and withdrawal.

    Without consent the client stores nothing. After a yes a value leaves in a report, which the
    panel shows. After a withdrawal only the record of reserved nats is stored.
    """
    before = site.n_received()
    page = profile.new_page()
    bodies: list[str | None] = []
    page.on("request", lambda request: bodies.append(request.post_data))
    page.goto("/")
    page.wait_for_selector("rappor-panel section:has-text('Reports are off: there is no consent.')")
    assert not page.is_visible("rappor-panel button")
    page.click("#no")
    page.wait_for_selector("#no", state="hidden")
    assert page.evaluate(RECORD, ["qwant"]) == ["no consent"]
    assert page.evaluate("indexedDB.databases()") == []
    page.click("#yes")
    page.wait_for_selector("#question", state="hidden")
    page.wait_for_selector("rappor-panel button")
    assert "Reports are on." in page.inner_text("rappor-panel section")
    # The question asks for the other metric only.
    assert page.evaluate("client.record('theme', 'dark').reason") == "opted out"
    page.fill("#engine", "Qwant")
    page.press("#engine", "Enter")
    page.wait_for_function("document.querySelector('#outcome').value === 'recorded'")
    # The report of a day is pending until the day is over, and the panel says that it exists.
    waiting = "1 report is recorded, and may change until the day or week is over. 0 reports are"
    page.wait_for_selector(f"rappor-panel section:has-text('{waiting}')")
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    page.clock.set_system_time(tomorrow)
    assert page.evaluate("client.flush({ timeout: 50 })")["done"]
    assert site.n_received() == before + 1
    page.evaluate("document.querySelector('rappor-panel').refresh()")
    page.wait_for_selector("rappor-panel td pre")
    (body,) = [text for text in bodies if text]
    assert page.inner_text("rappor-panel td pre") == body
    assert set(json.loads(body)["reports"][0]) == {"metric", "params", "cohort", "bits"}
    text = page.inner_text("rappor-panel section")
    assert "at most 88.1 % sure" in text
    assert "may change" not in text
    page.click("rappor-panel button")
    page.wait_for_function("localStorage.getItem('telemetry') === 'no'")
    page.wait_for_selector("rappor-panel [role=status]:has-text('Stopped.')")
    assert page.is_visible("#yes")
    assert "also those before an erasure" in page.inner_text("rappor-panel section")
    documents = page.evaluate(READ_DOCUMENTS)
    assert set(documents) == {"device"}
    assert [documents["device"][key] for key in ("scopes", "params")] == [[], {}]
    assert page.evaluate(RECORD, ["qwant"]) == ["no consent"]


def test_the_relay_takes_no_more_than_an_upload(site: Site) -> None:
    """The relay, the part of the site that passes uploads on to the collector, refuses long bodies.

    No upload is as long as 20,000 bytes.
    """
    before = site.n_received()
    response = httpx.post(f"{site.url}/telemetry/v1/reports", content=b"x" * 20_000, timeout=60)
    assert response.status_code == 413
    assert site.n_received() == before


READ_DOCUMENTS = """() => new Promise((resolve, reject) => {
  const request = indexedDB.open("rappor telemetry");
  request.onerror = () => reject(request.error);
  request.onsuccess = () => {
    const table = request.result.transaction("documents").objectStore("documents");
    const documents = {};
    table.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) { request.result.close(); resolve(documents); return; }
      documents[cursor.key] = cursor.value;
      cursor.continue();
    };
  };
})"""
"""Returns the documents of the client's store by name, read without the client."""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_panel_is_accessible(profile: BrowserContext, width: int) -> None:
    """The parts of the panel have names and roles for screen readers, and its button has a key.

    The page does not scroll sideways, and most of the width of a phone is for the sent bytes.
    """
    page = open_tab(profile)
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate(RECORD, ["qwant"])
    page.evaluate(FLUSH)
    page.evaluate(SHOW_PANEL)
    panel = page.get_by_role("region", name="What this browser reports")
    panel.get_by_role("columnheader", name="Bytes sent").wait_for()
    assert panel.get_by_role("rowheader", name="search_engine").count() == 1
    assert panel.get_by_role("cell", name="accepted").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = panel.locator("td pre").bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert panel.get_by_role("heading", name="What was sent").count() == 1
    panel.get_by_role("button", name="Stop and erase").press("Enter")
    panel.get_by_role("status").filter(has_text="erased").wait_for()


def test_the_panel_is_styled_under_a_strict_policy(profile: BrowserContext) -> None:
    """The content security policy `style-src 'self'` allows the style sheet of the panel.

    The style sheet is no element of the page.
    """
    page = profile.new_page()

    def add_policy(route: Route) -> None:
        response = route.fetch()
        headers = response.headers | {"content-security-policy": "style-src 'self'"}
        route.fulfill(response=response, headers=headers)

    page.route(f"**{PLAIN_PAGE}", add_policy)
    page.goto(PLAIN_PAGE)
    page.evaluate(OPEN, {})
    page.evaluate(SHOW_PANEL)
    padding = "getComputedStyle(panel.shadowRoot.querySelector('button')).padding"
    page.get_by_role("button", name="Stop and erase").wait_for()
    assert page.evaluate(padding) == "8px 16px"


def test_the_panel_keeps_focus_and_follows_its_client(profile: BrowserContext) -> None:
    """A refresh of the panel keeps focus and open notices, and a new client can be stopped, too."""
    page = open_tab(profile)
    page.evaluate(SHOW_PANEL)
    panel = page.locator("rappor-panel")
    panel.locator("summary").first.click()
    panel.locator("button").focus()
    page.evaluate(RECORD, ["qwant"])
    page.evaluate("panel.refresh()")
    assert page.evaluate("panel.shadowRoot.activeElement.textContent") == "Stop and erase"
    assert panel.locator("details[open]").count() == 1
    open_tab(profile).evaluate(FLUSH)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    panel.get_by_role("rowheader", name="search_engine").wait_for()
    for _ in range(2):
        panel.locator("button").click()
        panel.get_by_role("status").filter(has_text="erased").wait_for()
        assert not panel.locator("button").is_visible()
        page.evaluate(OPEN, {})
        page.evaluate("panel.client = client")
        assert panel.get_by_role("status").text_content() == ""


def test_the_panel_of_a_client_without_a_store_states_the_reason(profile: BrowserContext) -> None:
    """The panel says why the client does not work, and states no loss and no number of reports.

    Once its text was "at most 100 % sure after all reports sent so far (epsilon = Infinity)".
    """
    page = profile.new_page()
    page.goto(PLAIN_PAGE)
    block = "IDBFactory.prototype.open = () => { throw new Error('blocked'); }"
    page.evaluate(f"() => {{ {block}; }}")
    page.evaluate(OPEN, {})
    reason = page.evaluate("client.disabledReason")
    assert reason
    page.evaluate(SHOW_PANEL)
    panel = page.locator("rappor-panel")
    panel.get_by_text(f"Reports are off, because the client does not work: {reason}.").wait_for()
    text = panel.locator("section").inner_text()
    assert "No limit of the privacy loss so far is known." in text
    assert "The record of sent uploads cannot be read." in text
    assert not any(part in text for part in ("Infinity", "100 %", "0 reports"))


def test_a_panel_may_get_its_client_before_it_is_defined(profile: BrowserContext) -> None:
    """A page may set the client before the module of the panel is loaded."""
    page = open_tab(profile)
    page.evaluate("document.body.append(document.createElement('rappor-panel'))")
    page.evaluate("document.querySelector('rappor-panel').client = client")
    page.evaluate("import('/rappor-client/panel.js')")
    page.get_by_role("button", name="Stop and erase").wait_for()


def test_the_secret_is_a_key_that_no_script_can_read(profile: BrowserContext) -> None:
    """The secret in the store is a key that WebCrypto refuses to export."""
    page = open_tab(profile)
    export = "async (key) => crypto.subtle.exportKey('raw', key).catch((error) => error.name)"
    names = page.evaluate(
        f"async () => {{ const {{ identity }} = await ({READ_DOCUMENTS})();"
        f"return [identity.secret.constructor.name, await ({export})(identity.secret)]; }}"
    )
    assert names == ["CryptoKey", "InvalidAccessError"]


RECORD_AND_LEAVE = """(options) => void (async () => {
  const { Client } = await import("/rappor-client/index.js");
  const registry = await (await fetch("/registry.json")).json();
  const days = Number(localStorage.getItem("days")) + 1;
  localStorage.setItem("days", days);
  const clock = () => Date.UTC(2026, 9, 1, 12) / 1000 + 86_400 * days + performance.now() / 1000;
  const defaults = { registry, consent: true, background: false, clock };
  const client = await Client.open({ ...defaults, ...options });
  // On a machine with a high load the store may answer too late. The client then opens it later.
  while (client.disabledReason) await new Promise((resolve) => setTimeout(resolve, 50));
  const link = document.createElement("a");
  link.href = "/next";
  link.textContent = "next";
  link.onclick = () => client.record("search_engine", "qwant");
  document.body.replaceChildren(link);
  link.click();
})()"""
"""A click on a link to the page `/next` records a value, and is the end of the page."""


def check_clicks(profile: BrowserContext, n: int) -> None:
    """Record in n clicks on links, and check that the next page has stored each event once.

    Each event is of another day, and each page ends with its click.
    """
    page = profile.new_page()
    page.route("**/next", lambda route: route.fulfill(body="<title>next</title>"))
    limits = {"queueLimits": {"reports": 10_000, "bytes": 10_000_000}}
    for _ in range(n):
        page.goto(PLAIN_PAGE)
        with page.expect_navigation(url="**/next"):
            page.evaluate(RECORD_AND_LEAVE, limits)
    last = open_tab(profile, **limits)
    # An event of the next day ends the interval of the last click.
    assert last.evaluate(RECORD, ["qwant"]) == ["recorded"]
    assert last.evaluate("client.queuedCount()") == n
    assert last.evaluate("client.eventCounts()") == {"recorded": n}
    assert last.evaluate("Object.keys(localStorage)") == ["days"]


def test_events_of_clicks_on_links_are_stored(profile: BrowserContext) -> None:
    """Of ten events of clicks none is lost, stored twice or left in localStorage."""
    check_clicks(profile, 10)


@pytest.mark.acceptance
def test_events_of_two_hundred_clicks_are_stored(profile: BrowserContext) -> None:
    """The test above with two hundred events."""
    check_clicks(profile, 200)


def check_two_tabs(profile: BrowserContext, site: Site, n: int) -> None:
    """Record and flush in two tabs at once on n days, and check that one report a day arrives."""
    before = site.n_received()
    pages = [open_tab(profile), open_tab(profile)]
    record = """() => {
      const { outcome } = client.record("search_engine", "qwant");
      globalThis.done = client.queuedCount().then(() => outcome);
    }"""
    flush = "() => { globalThis.flushed = client.flush({ timeout: 50 }); }"
    for day in range(n):
        for page in pages:
            page.evaluate(record)
        assert {page.evaluate("done") for page in pages} == {"recorded"}
        pages[day % 2].evaluate("passDays(1)")
        for page in pages:
            page.evaluate(flush)
        assert all(page.evaluate("flushed")["done"] for page in pages)
        assert site.n_received() == before + day + 1
    device = pages[0].evaluate(READ_DOCUMENTS)["device"]
    # The scopes are the quarters in which the days are. Each has one cohort and one response.
    reports = [list(scope["reports"].values()) for scope in device["scopes"]]
    assert {len(reports_by_params) for reports_by_params in reports} == {1}
    assert sum(itertools.chain.from_iterable(reports)) == n
    assert len({scope["epoch"] for scope in device["scopes"]}) == len(device["scopes"])
    spent = pages[0].evaluate("client.privacySpent()")["nats"]
    assert spent <= sum(row[3] for row in device["reserved"])
    assert device["counters"]["accepted"] == n


def test_two_tabs_are_one_device(profile: BrowserContext, site: Site) -> None:
    """Two tabs have one secret, one scope in each epoch, one budget, and one report a day."""
    check_two_tabs(profile, site, 6)


@pytest.mark.acceptance
def test_two_tabs_are_one_device_for_long(profile: BrowserContext, site: Site) -> None:
    """The test above on forty days."""
    check_two_tabs(profile, site, 40)


def test_a_withdrawal_reaches_the_other_tab(profile: BrowserContext) -> None:
    """After a withdrawal in one tab, the other tab records and sends nothing more."""
    first, second = open_tab(profile), open_tab(profile)
    assert second.evaluate(RECORD, ["qwant"]) == ["recorded"]
    assert first.evaluate("client.withdraw()") == {"done": True, "secretGone": True, "left": []}
    assert second.evaluate(RECORD, ["qwant"]) == ["no consent"]
    assert second.evaluate(FLUSH)["reason"] == "nothing queued"


HANG_WITH_LOCK = """() => new Promise((resolve) => {
  navigator.locks.request("rappor telemetry", () => { resolve(); return new Promise(() => {}); });
})"""
"""Takes the lock of uploads, and never releases it."""


def test_a_withdrawal_does_not_wait_for_a_tab_that_hangs(profile: BrowserContext) -> None:
    """A withdrawal waits two seconds for the lock of an upload, and then erases without the lock.

    It returns that an upload may be under way.
    """
    first, second = open_tab(profile), open_tab(profile)
    assert first.evaluate(RECORD, ["qwant"]) == ["recorded"]
    first.evaluate(HANG_WITH_LOCK)
    limit = "new Promise((resolve) => setTimeout(resolve, 20_000, 'it waits on'))"
    withdrawal = second.evaluate(f"Promise.race([client.withdraw(), {limit}])")
    assert withdrawal == {"done": False, "secretGone": True, "left": ["an upload under way"]}
    assert set(second.evaluate(READ_DOCUMENTS)) == {"device"}


BLOCK_STORE = """() => new Promise((resolve) => {
  const block = () => {
    const { buffer } = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });
    const request = indexedDB.open("rappor telemetry");
    request.onsuccess = () => {
      const table = request.result.transaction("documents", "readwrite").objectStore("documents");
      const again = () => {
        Atomics.wait(new Int32Array(buffer), 0, 0, 50);
        table.get("device").onsuccess = again;
      };
      table.get("device").onsuccess = () => { postMessage("blocked"); again(); };
    };
  };
  const source = new Blob([`(${block})()`], { type: "text/javascript" });
  globalThis.blocker = new Worker(URL.createObjectURL(source));
  blocker.onmessage = resolve;
})"""
"""Keeps a transaction on the store open until `blocker` is terminated.

A transaction ends when it has no request, so a worker makes one request after the other. It sleeps
50 ms in between: without the sleep, the requests took all the time of a processor.
"""


def test_a_tab_that_blocks_the_store_does_not_delay_other_tabs(profile: BrowserContext) -> None:
    """Opening, sending and withdrawing return in time, and use the store when it is free again."""
    first, second = open_tab(profile), profile.new_page()
    first.evaluate(BLOCK_STORE)
    second.goto(PLAIN_PAGE)
    second.evaluate(OPEN, {})
    assert second.evaluate("client.disabledReason") == "it cannot be opened: TimeoutError"
    assert second.evaluate("client.flush({ timeout: 0.5 })")["reason"] == "failed"
    first.evaluate("blocker.terminate()")
    second.wait_for_function("!client.disabledReason")
    assert second.evaluate(RECORD, ["qwant"]) == ["recorded"]
    first.evaluate(BLOCK_STORE)
    assert not second.evaluate("client.withdraw()")["done"]
    first.evaluate("blocker.terminate()")
    wait_until(lambda: set(first.evaluate(READ_DOCUMENTS)) == {"device"})


def test_a_withdrawal_works_without_abort_signal_timeout(profile: BrowserContext) -> None:
    """A withdrawal works in a browser that has Web Locks and no `AbortSignal.timeout`."""
    profile.add_init_script("delete AbortSignal.timeout")
    page = open_tab(profile)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    assert page.evaluate("client.withdraw()") == {"done": True, "secretGone": True, "left": []}
    assert set(page.evaluate(READ_DOCUMENTS)) == {"device"}


def test_offline_and_back(profile: BrowserContext, site: Site) -> None:
    """A report that was tried offline arrives once, under the id of the first attempt."""
    before = site.n_received()
    page = open_tab(profile)
    profile.set_offline(True)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    page.evaluate("passDays(1)")
    # The next attempt would come later than the timeout, so the flush returns after the first one.
    assert page.evaluate("client.flush({ timeout: 5 })")["reason"] == "unreachable"
    (tried_upload,) = page.evaluate("client.sentUploads()")
    profile.set_offline(False)
    assert page.evaluate("client.flush({ timeout: 50 })")["reason"] == "sent"
    (sent_upload,) = page.evaluate("client.sentUploads()")
    assert [sent_upload[key] for key in ("id", "body")] == [
        tried_upload[key] for key in ("id", "body")
    ]
    assert site.n_received() == before + 1


def test_a_page_that_ends_sends_once(profile: BrowserContext, site: Site) -> None:
    """A report leaves with its page, and its repetition at the next visit is not counted.

    The page ends before the response, so the next page sends the upload again.
    """
    before = site.n_received()
    page = open_tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2  # the first report is finished
    page.goto("about:blank")
    wait_until(lambda: site.n_received() == before + 1)
    again = open_tab(profile)
    assert again.evaluate("client.flush({ timeout: 50 })")["done"]
    assert again.evaluate("client.eventCounts()")["accepted"] == 1
    assert site.n_received() == before + 1


def test_a_report_that_left_with_its_page_is_not_sent_after_the_collector_forgot_it(
    profile: BrowserContext, site: Site
) -> None:
    """An upload without a response is given up after three weeks, and is in the log all along.

    The collector knows the id of an upload for some days only. It would count a later repetition.
    """
    before = site.n_received()
    page = open_tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    assert page.evaluate("client.sentUploads()") == []
    page.goto("about:blank")
    wait_until(lambda: site.n_received() == before + 1)
    again = open_tab(profile)
    again.evaluate("passDays(21)")
    (unanswered,) = again.evaluate("client.sentUploads()")
    assert unanswered["status"] == "unanswered"
    addresses: list[str] = []
    again.on("request", lambda request: addresses.append(request.url))
    assert again.evaluate(FLUSH)["reason"] == "sent"  # the report of the second day
    assert again.evaluate("client.eventCounts()") == {"recorded": 2, "given_up": 1, "accepted": 1}
    given_up, accepted = again.evaluate("client.sentUploads()")
    assert (given_up["body"], given_up["status"]) == (unanswered["body"], "given_up")
    assert len([url for url in addresses if "telemetry" in url]) == 1
    assert accepted["status"] == "accepted"


def test_a_stopped_metric_does_not_leave_with_its_page(profile: BrowserContext, site: Site) -> None:
    """While the collector stops a metric, no upload leaves at the end of a page.

    New values are skipped.
    """
    before = site.n_received()
    page = open_tab(profile, background=True, maxDelay=3600)
    body = {"reports": [{"status": "accepted"}], "stop": {"search_engine": "2999-01-01"}}
    page.route("**/telemetry/**", lambda route: route.fulfill(json=body))
    assert page.evaluate(RECORD, ["qwant", "qwant"]) == ["recorded"] * 2
    result = page.evaluate(FLUSH)
    assert [result["reason"], result["queued"]] == ["asked to wait", 1]
    page.unroute("**/telemetry/**")
    assert page.evaluate(RECORD, ["qwant"]) == ["stopped"]
    page.goto("about:blank")
    assert open_tab(profile).evaluate(FLUSH)["reason"] == "asked to wait"
    assert site.n_received() == before


def test_a_long_delay_is_waited_for(profile: BrowserContext, site: Site) -> None:
    """A delay of 10,000 seconds passes, although the sender wakes every hour to read its clock.

    The coin 2^31 draws half of `maxDelay`.
    """
    before = site.n_received()
    page = profile.new_page()
    page.clock.install()
    page.goto(PLAIN_PAGE)
    coins = "(n) => n === 1 ? [2 ** 31] : crypto.getRandomValues(new Uint32Array(n))"
    page.evaluate(f"({OPEN})({{ background: true, maxDelay: 20_000, coins: {coins} }})")
    assert page.evaluate(RECORD, ["qwant"])[0] == "recorded"
    page.evaluate("passDays(1)")
    page.clock.run_for(9_000_000)  # milliseconds
    assert page.evaluate("client.sentUploads()") == []
    page.clock.run_for(1_001_000)
    # The upload leaves the queue before it is sent: an empty queue is no sign of its arrival.
    wait_until(lambda: site.n_received() == before + 1)
    wait_until(lambda: page.evaluate("client.queuedCount()") == 0)


def test_a_page_that_ends_respects_a_collector_that_asked_to_wait(
    profile: BrowserContext, site: Site
) -> None:
    """After a Retry-After no upload leaves with the page, and the report stays in the queue."""
    before = site.n_received()
    page = open_tab(profile, background=True, maxDelay=3600)
    page.route(
        "**/telemetry/**",
        lambda route: route.fulfill(status=503, headers={"Retry-After": "86000"}),
    )
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    page.evaluate("passDays(1)")
    assert page.evaluate("client.flush({ timeout: 0.5 })")["reason"] == "collector error"
    page.unroute("**/telemetry/**")
    record = "client.record('search_engine', 'qwant').outcome"
    assert page.evaluate(record) == "recorded"
    page.goto("about:blank")
    again = open_tab(profile)
    assert again.evaluate("client.flush({ timeout: 50 })")["reason"] == "asked to wait"
    assert again.evaluate("client.queuedCount()") == 1
    assert site.n_received() == before


def test_a_closed_client_sends_nothing_with_its_page(profile: BrowserContext, site: Site) -> None:
    """After `close` the upload for the end of the page stays in the store."""
    before = site.n_received()
    page = open_tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.evaluate("client.close()")
    page.goto("about:blank")
    assert open_tab(profile).evaluate("client.queuedCount()") == 1
    assert [url for url in addresses if "telemetry" in url] == []
    assert site.n_received() == before


def test_opting_out_reaches_the_other_tab(profile: BrowserContext, site: Site) -> None:
    """After an opting out in one tab, another tab sends nothing at its end and skips values."""
    before = site.n_received()
    first = open_tab(profile, background=True, maxDelay=3600)
    second = open_tab(profile)
    assert first.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    second.evaluate("client.optOut('search_engine')")
    wait_until(lambda: first.evaluate(RECORD, ["qwant"]) == ["opted out"])
    first.goto("about:blank")
    assert open_tab(profile).evaluate("client.queuedCount()") == 0
    assert site.n_received() == before


def test_a_page_without_a_secure_context_disables_the_client(profile: BrowserContext) -> None:
    """Without https a page has no WebCrypto, so the client is disabled and raises nothing."""
    page = profile.new_page()
    page.route("http://shop.test/", lambda route: route.fulfill(body="<title>-</title>"))
    page.route(
        "http://shop.test/*/**",
        lambda route: route.fulfill(
            path=CLIENT / route.request.url.partition("/rappor-client/")[2],
            content_type="text/javascript",
        ),
    )
    page.goto("http://shop.test/")
    opening = """async (consent) => {
      const { Client } = await import("/rappor-client/index.js");
      const client = await Client.open({ registry: {}, consent });
      return [client.disabledReason, client.record("page", "a").reason];
    }"""
    for consent in (True, False):
        reasons = page.evaluate(opening, consent)
        assert reasons == ["a page must be of https or of localhost", "disabled"]


def test_tables_of_hosts_are_loaded_for_a_metric_of_domains(profile: BrowserContext) -> None:
    """Only a page with a metric of domains loads the tables of hosts.

    A client that needs a table and cannot load it is disabled.
    """
    params = Params.profile("balanced", normalize="domain")
    expires = datetime.date(2100, 1, 1)
    fields: dict[str, Any] = {"description": "d", "owner": "o", "epoch": "quarter"}
    metric = Metric(name="search_engine", params=params, expires=expires, **fields)
    document = json.loads(
        format_sealed_json(Registry([metric], total=24.0), {"search_engine": "-"})
    )
    files: list[str] = []
    profile.on("request", lambda request: files.append(request.url.rpartition("/")[2]))
    open_tab(profile)
    assert "client.js" in files
    assert "hosts.js" not in files
    page = open_tab(profile, registry=document)
    assert page.evaluate(RECORD, ["https://www.example.co.uk/x"]) == ["recorded"]
    assert {"hosts.js", "suffixes.js"} <= set(files)
    page.evaluate("client.withdraw()")
    profile.route("**/suffixes.js", lambda route: route.abort())
    page = open_tab(profile, registry=document)
    assert page.evaluate("client.disabledReason") == "it cannot be opened: TypeError"
    assert page.evaluate(RECORD, ["example.co.uk"]) == ["disabled"]


def test_storage_that_is_cleared_under_a_page(profile: BrowserContext) -> None:
    """After the browser has cleared the storage, an open page records nothing.

    The next page is a new device. While the browser closes the database, a `record` may fail.
    """
    page = open_tab(profile)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    session = profile.new_cdp_session(page)
    origin = page.evaluate("location.origin")
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    page.evaluate("passDays(9)")  # the days in localStorage have been cleared, too
    page.evaluate(RECORD, ["qwant"])  # reads the store, which has no identity any more
    assert page.evaluate(RECORD, ["qwant"]) in (["no consent"], ["disabled"])
    assert open_tab(profile).evaluate(RECORD, ["ecosia"]) == ["recorded"]


def test_blocked_storage_disables_the_client(profile: BrowserContext) -> None:
    """In a frame without an origin there is no storage: the client is disabled and raises nothing.

    The warning does not contain the value.
    """
    script = subprocess.run(
        [str(need("esbuild")), "--bundle", "--format=iife", "--global-name=rappor", "index.js"],
        cwd=CLIENT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    page = profile.new_page()
    page.goto("/")
    registry = page.evaluate("async () => (await fetch('/registry.json')).json()")
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.evaluate(
        """(srcdoc) => new Promise((resolve) => {
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts";
          frame.srcdoc = srcdoc;
          frame.onload = resolve;
          document.body.append(frame);
        })""",
        f"<script>{script}</script>",
    )
    results = page.frames[1].evaluate(
        """async (registry) => {
          globalThis.BroadcastChannel = class { // as Firefox has it where storage is blocked
            constructor() { throw new DOMException("The operation is insecure.", "SecurityError"); }
          };
          const collector = "http://localhost:1";
          const client = await rappor.Client.open({ registry, consent: true, collector });
          const { reason } = client.record("search_engine", "qwant");
          const withdrawal = await client.withdraw();
          return [reason, client.disabledReason, withdrawal.done];
        }""",
        registry,
    )
    assert results == ["disabled", "it cannot be opened: SecurityError", False]
    assert any("disabled: it cannot be opened: SecurityError" in text for text in messages)
    assert not any("qwant" in text for text in messages)


def check_reloads(profile: BrowserContext, site: Site, n: int, seed: int) -> None:
    """Reload a page n times while it records and sends, and check the counts in the end.

    Each event that the page has confirmed as stored is counted. Each counted event, which is of
    another day, has one report, which has arrived or was given up. No report arrived twice.
    """
    rng = random.Random(seed)  # noqa: S311  (times of the reloads, no secret)
    before = site.n_received()
    stored_events: list[str] = []
    page = profile.new_page()

    def store_message(message: ConsoleMessage) -> None:
        if message.text == "recorded":
            stored_events.append(message.text)

    page.on("console", store_message)
    loop = """async () => {
      for (;;) {
        passDays(1);
        const { outcome } = client.record("search_engine", "qwant");
        await client.queuedCount(); // until it is in the store
        console.log(outcome);
        await client.flush({ timeout: 5 });
      }
    }"""
    options = json.dumps({"background": True, "maxDelay": 0.01})
    start = f"({OPEN})({options}).then({loop}).catch(() => {{}});"
    page.add_init_script(f"if (location.pathname === '{PLAIN_PAGE}') {start}")
    for _ in range(n):
        page.goto(PLAIN_PAGE, wait_until="commit")
        page.wait_for_timeout(rng.random() * 400)
    end = time.monotonic() + PATIENCE
    while not stored_events:
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    page.goto("about:blank")
    last = open_tab(profile)
    wait_until(lambda: bool(last.evaluate(FLUSH)["done"]))  # one report a day
    device = last.evaluate(READ_DOCUMENTS)["device"]
    scopes = [scope for scope in device["scopes"] if scope["metric"] == "search_engine"]
    recorded = device["counters"]["recorded"]
    given_up = device["counters"].get("given_up", 0)
    assert recorded >= len(stored_events)
    assert recorded == sum(sum(scope["reports"].values()) for scope in scopes)
    assert device["counters"]["accepted"] == recorded - given_up
    # A page may end between the arrival of its upload and the response. If the upload is then a
    # week late before the next attempt, it counts as given up although it has arrived.
    assert before + recorded - given_up <= site.n_received() <= before + recorded


def test_reloads_neither_lose_nor_repeat_a_report(profile: BrowserContext, site: Site) -> None:
    """Eight reloads at random times neither lose nor repeat a report."""
    check_reloads(profile, site, 8, seed=1)


@pytest.mark.acceptance
def test_a_hundred_reloads_neither_lose_nor_repeat_a_report(
    profile: BrowserContext, site: Site
) -> None:
    """The test above with a hundred reloads."""
    check_reloads(profile, site, 100, seed=2)


def send_from_fresh_profiles(browser: Browser, site: Site, words: list[str]) -> None:
    """Record and send each word in a profile of its own."""
    for word in words:
        context = browser.new_context(base_url=site.url)
        page = open_tab(context, isNoisy=True)
        assert page.evaluate(RECORD, [word]) == ["recorded"]
        assert page.evaluate(FLUSH)["done"]
        context.close()


def test_fresh_profiles_are_devices_of_their_own(browser: Browser, site: Site) -> None:
    """Three profiles send three reports."""
    before = site.n_received()
    send_from_fresh_profiles(browser, site, ["duckduckgo", "qwant", "ecosia"])
    assert site.n_received() == before + 3


@pytest.mark.acceptance
def test_words_of_two_hundred_fresh_profiles_are_found(browser: Browser, tmp_path: Path) -> None:
    """The confidence intervals contain the true shares, and the commonest word is detected.

    The false-alarm rate of all intervals together is 1e-9.
    """
    words = ["duckduckgo"] * 120 + ["qwant"] * 60 + ["ecosia"] * 20
    candidates = ["bing", "duckduckgo", "ecosia", "google", "qwant"]
    with run_readme_site(tmp_path, WORDS_TOML) as running_site:
        send_from_fresh_profiles(browser, running_site, words)
        with open_database(running_site.database) as engine:
            tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
            merge_now(engine, today=tomorrow)  # the day of the reports has ended
        response = httpx.post(
            f"{running_site.collector.url}/v1/metrics/search_engine/estimates",
            json={"candidates": candidates, "all": True, "confidence": 1 - 1e-9 / len(candidates)},
            headers={"Authorization": f"Bearer {running_site.token}"},
            timeout=150,
        )
    assert response.status_code == 200, response.text
    estimates = response.json()
    assert estimates["reports"] == len(words)
    rows = {row["candidate"]: row for row in estimates["estimates"]}
    for word in candidates:
        share = words.count(word) / len(words)
        assert rows[word]["ci_low"] <= share <= rows[word]["ci_high"], word
    assert rows["duckduckgo"]["detected"]
