"""The client in a real browser, on the site of the README and with a real collector."""

from __future__ import annotations

import datetime
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsers import PATIENCE, browsing
from collectors import merge_now
from node import CLIENT
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route
from rappor_server.storage.database import open_database
from tools import need
from websites import Site, the_readmes_site

from rappor import Metric, Params, Registry
from rappor.registry.sealed_json import format_sealed_json

pytestmark = pytest.mark.slow  # a browser and a collector

OPEN = """async (options) => {
  const { Client } = await import("/rappor-client/index.js");
  const registry = await (await fetch("/registry.json")).json();
  // The tabs of a profile share their day: a report is finished on the day after its event.
  const days = () => Number(localStorage.getItem("days"));
  globalThis.passDays = (n) => localStorage.setItem("days", days() + n);
  const noon = 86_400 * Math.floor(Date.now() / 86_400_000) + 43_200;
  const clock = () => noon + 86_400 * days() + performance.now() / 1000;
  // Reports leave at three o'clock, and the first event of a day is chosen; the bits are random.
  const fixed = (n) => [[2 ** 29], [0, 0]][n - 1] ?? crypto.getRandomValues(new Uint32Array(n));
  const coins = options.isNoisy ? undefined : fixed;
  const usual = { registry, consent: true, collector: "/telemetry", background: false };
  globalThis.client = await Client.open({ ...usual, clock, coins, ...options });
}"""
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
FLUSH = "() => { passDays(1); return client.flush({ timeout: 50 }); }"
PANEL = """async () => {
  const { RapporPanel } = await import("/rappor-client/panel.js");
  globalThis.panel = new RapporPanel();
  panel.client = client;
  document.body.replaceChildren(panel);
}"""
BARE = "/registry.json"
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
    """Chromium of this machine."""
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def the_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site of the README, with its collector."""
    with the_readmes_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture
def profile(browser: Browser, the_site: Site) -> Iterator[BrowserContext]:
    """A fresh profile of the browser: a new device."""
    context = browser.new_context(base_url=the_site.url)
    yield context
    context.close()


def tab(profile: BrowserContext, **options: Any) -> Page:
    """Open a page with a client that has consent, and without a background sender by default.

    The page is a file of the site without a script of its own.
    """
    page = profile.new_page()
    page.goto(BARE)
    page.evaluate(OPEN, options)
    return page


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_page_of_the_readme_works_for_a_visitor(
    profile: BrowserContext, the_site: Site
) -> None:
    """Nothing leaves before the yes. A report leaves, the panel shows it, a withdrawal works."""
    before = the_site.n_received()
    page = profile.new_page()
    sent: list[str | None] = []
    page.on("request", lambda request: sent.append(request.post_data))
    page.goto("/")
    page.wait_for_selector("rappor-panel button")
    assert page.evaluate(RECORD, ["qwant"]) == ["no consent"]
    assert page.evaluate("indexedDB.databases()") == []
    page.click("#yes")
    page.wait_for_selector("#question", state="hidden")
    page.wait_for_selector("rappor-panel button")
    page.fill("#engine", "Qwant")
    page.press("#engine", "Enter")
    page.wait_for_function("document.querySelector('#outcome').value === 'recorded'")
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    page.clock.set_system_time(tomorrow)
    assert page.evaluate("client.flush({ timeout: 50 })")["done"]
    assert the_site.n_received() == before + 1
    page.evaluate("document.querySelector('rappor-panel').refresh()")
    page.wait_for_selector("rappor-panel td pre")
    (body,) = [text for text in sent if text]
    assert page.inner_text("rappor-panel td pre") == body
    assert set(json.loads(body)["reports"][0]) == {"metric", "params", "cohort", "bits"}
    assert "at most 88.1 % sure" in page.inner_text("rappor-panel section")
    page.click("rappor-panel button")
    page.wait_for_function("localStorage.getItem('telemetry') === 'no'")
    page.wait_for_selector("rappor-panel [role=status]:has-text('Stopped.')")
    left = page.evaluate(DOCUMENTS)
    assert set(left) == {"device"}
    assert [left["device"][key] for key in ("scopes", "params")] == [[], {}]
    assert page.evaluate(RECORD, ["qwant"]) == ["no consent"]


def test_the_relay_takes_no_more_than_an_upload(the_site: Site) -> None:
    """A longer body is refused before all of it is read, and does not reach the collector."""
    before = the_site.n_received()
    answer = httpx.post(f"{the_site.url}/telemetry/v1/reports", content=b"x" * 20_000, timeout=60)
    assert answer.status_code == 413
    assert the_site.n_received() == before


DOCUMENTS = """() => new Promise((resolve, reject) => {
  const request = indexedDB.open("rappor telemetry");
  request.onerror = () => reject(request.error);
  request.onsuccess = () => {
    const table = request.result.transaction("documents").objectStore("documents");
    const found = {};
    table.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) { request.result.close(); resolve(found); return; }
      found[cursor.key] = cursor.value;
      cursor.continue();
    };
  };
})"""


def test_the_panel_is_accessible(profile: BrowserContext) -> None:
    """Its parts have names and roles for screen readers, and the keyboard reaches all controls."""
    page = tab(profile)
    page.evaluate(RECORD, ["qwant"])
    page.evaluate(FLUSH)
    page.evaluate(PANEL)
    panel = page.get_by_role("region", name="What this browser reports")
    panel.get_by_role("columnheader", name="Bytes sent").wait_for()
    assert panel.get_by_role("rowheader", name="search_engine").count() == 1
    assert panel.get_by_role("heading", name="What was sent").count() == 1
    panel.get_by_role("button", name="Stop and erase").press("Enter")
    panel.get_by_role("status").filter(has_text="erased").wait_for()


def test_the_panel_is_styled_under_a_strict_policy(profile: BrowserContext) -> None:
    """Its style sheet is no element of the page, so `style-src 'self'` allows it."""
    page = profile.new_page()

    def strict(route: Route) -> None:
        answer = route.fetch()
        headers = answer.headers | {"content-security-policy": "style-src 'self'"}
        route.fulfill(response=answer, headers=headers)

    page.route(f"**{BARE}", strict)
    page.goto(BARE)
    page.evaluate(OPEN, {})
    page.evaluate(PANEL)
    padding = "getComputedStyle(panel.shadowRoot.querySelector('button')).padding"
    page.get_by_role("button", name="Stop and erase").wait_for()
    assert page.evaluate(padding) == "8px 16px"


def test_the_panel_keeps_focus_and_follows_its_client(profile: BrowserContext) -> None:
    """A refresh keeps focus and open notices, and a new client can be stopped, too."""
    page = tab(profile)
    page.evaluate(PANEL)
    panel = page.locator("rappor-panel")
    panel.locator("summary").first.click()
    panel.locator("button").focus()
    page.evaluate(RECORD, ["qwant"])
    page.evaluate("panel.refresh()")
    assert page.evaluate("panel.shadowRoot.activeElement.textContent") == "Stop and erase"
    assert panel.locator("details[open]").count() == 1
    tab(profile).evaluate(FLUSH)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    panel.get_by_role("rowheader", name="search_engine").wait_for()
    for _ in range(2):
        panel.locator("button").click()
        panel.get_by_role("status").filter(has_text="erased").wait_for()
        assert not panel.locator("button").is_visible()
        page.evaluate(OPEN, {})
        page.evaluate("panel.client = client")
        assert panel.get_by_role("status").text_content() == ""


def test_a_panel_may_get_its_client_before_it_is_defined(profile: BrowserContext) -> None:
    """A page may set the client before the module of the panel is loaded."""
    page = tab(profile)
    page.evaluate("document.body.append(document.createElement('rappor-panel'))")
    page.evaluate("document.querySelector('rappor-panel').client = client")
    page.evaluate("import('/rappor-client/panel.js')")
    page.get_by_role("button", name="Stop and erase").wait_for()


def test_the_secret_is_a_key_that_no_script_can_read(profile: BrowserContext) -> None:
    """The key is in the store, and WebCrypto refuses to export it."""
    page = tab(profile)
    exported = "async (key) => crypto.subtle.exportKey('raw', key).catch((error) => error.name)"
    found = page.evaluate(
        f"async () => {{ const {{ identity }} = await ({DOCUMENTS})();"
        f"return [identity.secret.constructor.name, await ({exported})(identity.secret)]; }}"
    )
    assert found == ["CryptoKey", "InvalidAccessError"]


LEAVE = """(options) => void (async () => {
  const { Client } = await import("/rappor-client/index.js");
  const registry = await (await fetch("/registry.json")).json();
  const days = Number(localStorage.getItem("days")) + 1;
  localStorage.setItem("days", days);
  const clock = () => Date.now() / 1000 + 86_400 * days;
  const usual = { registry, consent: true, background: false, clock };
  const client = await Client.open({ ...usual, ...options });
  const link = document.createElement("a");
  link.href = "/next";
  link.textContent = "next";
  link.onclick = () => client.record("search_engine", "qwant");
  document.body.replaceChildren(link);
  link.click();
})()"""


def click_and_leave(profile: BrowserContext, n: int) -> None:
    """Record n times in a click on a link, each time on a page that ends at once."""
    page = profile.new_page()
    page.route("**/next", lambda route: route.fulfill(body="<title>next</title>"))
    limits = {"queueLimits": {"reports": 10_000, "bytes": 10_000_000}}
    for _ in range(n):
        page.goto(BARE)
        with page.expect_navigation(url="**/next"):
            page.evaluate(LEAVE, limits)
    last = tab(profile, **limits)
    assert last.evaluate(RECORD, ["qwant"]) == ["recorded"]  # of the next day
    assert last.evaluate("client.queuedCount()") == n
    assert last.evaluate("client.eventCounts()") == {"recorded": n}
    assert last.evaluate("Object.keys(localStorage)") == ["days"]


def test_events_of_clicks_on_links_are_stored(profile: BrowserContext) -> None:
    """Ten events: none is lost, stored twice or left in localStorage."""
    click_and_leave(profile, 10)


@pytest.mark.acceptance
def test_events_of_two_hundred_clicks_are_stored(profile: BrowserContext) -> None:
    """The test above with two hundred events."""
    click_and_leave(profile, 200)


def two_tabs(profile: BrowserContext, site: Site, n: int) -> None:
    """Record and flush in two tabs at once on n days, and check that one report a day arrives."""
    before = site.n_received()
    pages = [tab(profile), tab(profile)]
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
    device = pages[0].evaluate(DOCUMENTS)["device"]
    (reports,) = (list(scope["reports"].values()) for scope in device["scopes"])
    assert reports == [n]
    spent = pages[0].evaluate("client.privacySpent()")["nats"]
    assert spent <= sum(row[3] for row in device["reserved"])
    assert device["counters"]["accepted"] == n


def test_two_tabs_are_one_device(profile: BrowserContext, the_site: Site) -> None:
    """One secret, one scope, one budget, and one report a day."""
    two_tabs(profile, the_site, 6)


@pytest.mark.acceptance
def test_two_tabs_are_one_device_for_long(profile: BrowserContext, the_site: Site) -> None:
    """The test above on forty days."""
    two_tabs(profile, the_site, 40)


def test_a_withdrawal_reaches_the_other_tab(profile: BrowserContext) -> None:
    """The other tab records and sends nothing more, and the secret is gone."""
    first, second = tab(profile), tab(profile)
    assert second.evaluate(RECORD, ["qwant"]) == ["recorded"]
    assert first.evaluate("client.withdraw()") == {"done": True, "secretGone": True, "left": []}
    assert second.evaluate(RECORD, ["qwant"]) == ["no consent"]
    assert second.evaluate(FLUSH)["reason"] == "nothing queued"


def test_a_withdrawal_does_not_wait_for_a_tab_that_hangs(profile: BrowserContext) -> None:
    """It erases after two seconds, and returns that an upload may be under way."""
    first, second = tab(profile), tab(profile)
    assert first.evaluate(RECORD, ["qwant"]) == ["recorded"]
    hang = "() => { navigator.locks.request('rappor telemetry', () => new Promise(() => {})); }"
    first.evaluate(hang)
    late = "new Promise((resolve) => setTimeout(resolve, 20_000, 'it waits on'))"
    told = second.evaluate(f"Promise.race([client.withdraw(), {late}])")
    assert told == {"done": False, "secretGone": True, "left": ["an upload under way"]}
    assert set(second.evaluate(DOCUMENTS)) == {"device"}


HOLD = """() => new Promise((resolve) => {
  const request = indexedDB.open("rappor telemetry");
  request.onsuccess = () => {
    const table = request.result.transaction("documents", "readwrite").objectStore("documents");
    const again = () => { globalThis.isOver || (table.get("device").onsuccess = again); };
    again();
    resolve();
  };
})"""


def test_a_tab_that_blocks_the_store_does_not_delay_other_tabs(profile: BrowserContext) -> None:
    """Opening, sending and withdrawing return in time, and use the store when it is free."""
    first, second = tab(profile), profile.new_page()
    first.evaluate(HOLD)
    second.goto(BARE)
    second.evaluate(OPEN, {})
    assert second.evaluate("client.disabledReason") == "it cannot be opened: TimeoutError"
    assert second.evaluate("client.flush({ timeout: 0.5 })")["reason"] == "failed"
    first.evaluate("globalThis.isOver = true")
    second.wait_for_function("!client.disabledReason")
    assert second.evaluate(RECORD, ["qwant"]) == ["recorded"]
    first.evaluate("globalThis.isOver = false")
    first.evaluate(HOLD)
    told = second.evaluate("client.withdraw()")
    assert not told["done"]
    first.evaluate("globalThis.isOver = true")
    eventually(lambda: set(first.evaluate(DOCUMENTS)) == {"device"})


def test_a_withdrawal_works_without_abort_signal_timeout(profile: BrowserContext) -> None:
    """Some browsers with Web Locks have no `AbortSignal.timeout`."""
    profile.add_init_script("delete AbortSignal.timeout")
    page = tab(profile)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    assert page.evaluate("client.withdraw()") == {"done": True, "secretGone": True, "left": []}
    assert set(page.evaluate(DOCUMENTS)) == {"device"}


def test_offline_and_back(profile: BrowserContext, the_site: Site) -> None:
    """A report that was tried offline arrives once, under the id of the first attempt."""
    before = the_site.n_received()
    page = tab(profile)
    profile.set_offline(True)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    page.evaluate("passDays(1)")
    assert page.evaluate("client.flush({ timeout: 0.01 })")["reason"] == "unreachable"
    (tried,) = page.evaluate("client.sentUploads()")
    profile.set_offline(False)
    assert page.evaluate("client.flush({ timeout: 50 })")["reason"] == "sent"
    (sent,) = page.evaluate("client.sentUploads()")
    assert (sent["id"], sent["body"]) == (tried["id"], tried["body"])
    assert the_site.n_received() == before + 1


def test_a_page_that_ends_sends_once(profile: BrowserContext, the_site: Site) -> None:
    """The report leaves with the page; the repetition at the next visit is not counted."""
    before = the_site.n_received()
    page = tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2  # the first one is finished
    page.goto("about:blank")
    eventually(lambda: the_site.n_received() == before + 1)
    again = tab(profile)
    assert again.evaluate("client.flush({ timeout: 50 })")["done"]
    assert again.evaluate("client.eventCounts()")["accepted"] == 1
    assert the_site.n_received() == before + 1


def test_a_report_that_left_with_its_page_is_not_sent_after_the_collector_forgot_it(
    profile: BrowserContext, the_site: Site
) -> None:
    """After three weeks the log has the upload, and the upload is given up."""
    before = the_site.n_received()
    page = tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    assert page.evaluate("client.sentUploads()") == []
    page.goto("about:blank")
    eventually(lambda: the_site.n_received() == before + 1)
    again = tab(profile)
    again.evaluate("passDays(21)")
    (unanswered,) = again.evaluate("client.sentUploads()")
    assert unanswered["status"] == "unanswered"
    sent: list[str] = []
    again.on("request", lambda request: sent.append(request.url))
    assert again.evaluate(FLUSH)["reason"] == "sent"  # the report of the second day
    assert again.evaluate("client.eventCounts()") == {"recorded": 2, "given_up": 1, "accepted": 1}
    given_up, accepted = again.evaluate("client.sentUploads()")
    assert (given_up["body"], given_up["status"]) == (unanswered["body"], "given_up")
    assert len([url for url in sent if "telemetry" in url]) == 1
    assert accepted["status"] == "accepted"


def test_a_stopped_metric_does_not_leave_with_its_page(
    profile: BrowserContext, the_site: Site
) -> None:
    """The upload for the end of the page waits for the stop, and new values are skipped."""
    before = the_site.n_received()
    page = tab(profile, background=True, maxDelay=3600)
    body = {"reports": [{"status": "accepted"}], "stop": {"search_engine": "2999-01-01"}}
    page.route("**/telemetry/**", lambda route: route.fulfill(json=body))
    assert page.evaluate(RECORD, ["qwant", "qwant"]) == ["recorded"] * 2
    flushed = page.evaluate(FLUSH)
    assert [flushed["reason"], flushed["queued"]] == ["asked to wait", 1]
    page.unroute("**/telemetry/**")
    assert page.evaluate(RECORD, ["qwant"]) == ["stopped"]
    page.goto("about:blank")
    assert tab(profile).evaluate(FLUSH)["reason"] == "asked to wait"
    assert the_site.n_received() == before


def test_a_long_delay_is_waited_for(profile: BrowserContext, the_site: Site) -> None:
    """The sender reads its clock every hour, and sends when the delay is over."""
    before = the_site.n_received()
    page = profile.new_page()
    page.clock.install()
    page.goto(BARE)
    half = "(n) => n === 1 ? [2 ** 31] : crypto.getRandomValues(new Uint32Array(n))"
    page.evaluate(f"({OPEN})({{ background: true, maxDelay: 20_000, coins: {half} }})")
    assert page.evaluate(RECORD, ["qwant"])[0] == "recorded"
    page.evaluate("passDays(1)")
    page.clock.run_for(9_000_000)
    assert page.evaluate("client.sentUploads()") == []
    page.clock.run_for(1_001_000)
    # The upload leaves the queue before it is sent: an empty queue is no sign of its arrival.
    eventually(lambda: the_site.n_received() == before + 1)
    assert page.evaluate("client.queuedCount()") == 0


def test_a_page_that_ends_respects_a_collector_that_asked_to_wait(
    profile: BrowserContext, the_site: Site
) -> None:
    """No upload leaves with the page, and later reports stay in the queue."""
    before = the_site.n_received()
    page = tab(profile, background=True, maxDelay=3600)
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
    again = tab(profile)
    assert again.evaluate("client.flush({ timeout: 50 })")["reason"] == "asked to wait"
    assert again.evaluate("client.queuedCount()") == 1
    assert the_site.n_received() == before


def test_a_closed_client_sends_nothing_with_its_page(
    profile: BrowserContext, the_site: Site
) -> None:
    """The upload for the end of the page waits in the store."""
    before = the_site.n_received()
    page = tab(profile, background=True, maxDelay=3600)
    assert page.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.evaluate("client.close()")
    page.goto("about:blank")
    assert tab(profile).evaluate("client.queuedCount()") == 1
    assert [url for url in sent if "telemetry" in url] == []
    assert the_site.n_received() == before


def test_opting_out_reaches_the_other_tab(profile: BrowserContext, the_site: Site) -> None:
    """The other tab does not send its upload for the end of the page, and skips further values."""
    before = the_site.n_received()
    first = tab(profile, background=True, maxDelay=3600)
    second = tab(profile)
    assert first.evaluate(RECORD, ["qwant"] * 2) == ["recorded"] * 2
    second.evaluate("client.optOut('search_engine')")
    eventually(lambda: first.evaluate(RECORD, ["qwant"]) == ["opted out"])
    first.goto("about:blank")
    assert tab(profile).evaluate("client.queuedCount()") == 0
    assert the_site.n_received() == before


def test_a_page_without_a_secure_context_disables_the_client(profile: BrowserContext) -> None:
    """Without https there is no WebCrypto: the reason is named, and nothing raises."""
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
        told = page.evaluate(opening, consent)
        assert told == ["a page must be of https or of localhost", "disabled"]


def test_tables_of_hosts_are_loaded_for_a_metric_of_domains(profile: BrowserContext) -> None:
    """Other pages load no table. A client that needs a table and cannot load it is disabled."""
    params = Params.profile("balanced", normalize="domain")
    expires = datetime.date(2100, 1, 1)
    fields: dict[str, Any] = {"description": "d", "owner": "o", "epoch": "quarter"}
    metric = Metric(name="search_engine", params=params, expires=expires, **fields)
    document = json.loads(
        format_sealed_json(Registry([metric], total=24.0), {"search_engine": "-"})
    )
    asked: list[str] = []
    profile.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    tab(profile)
    assert "client.js" in asked
    assert "hosts.js" not in asked
    page = tab(profile, registry=document)
    assert page.evaluate(RECORD, ["https://www.example.co.uk/x"]) == ["recorded"]
    assert {"hosts.js", "suffixes.js"} <= set(asked)
    page.evaluate("client.withdraw()")
    profile.route("**/suffixes.js", lambda route: route.abort())
    page = tab(profile, registry=document)
    assert page.evaluate("client.disabledReason") == "it cannot be opened: TypeError"
    assert page.evaluate(RECORD, ["example.co.uk"]) == ["disabled"]


def test_storage_that_is_cleared_under_a_page(profile: BrowserContext) -> None:
    """The page goes on and records nothing; the next one is a new device.

    A record may come while the browser closes the database, and fail.
    """
    page = tab(profile)
    assert page.evaluate(RECORD, ["qwant"]) == ["recorded"]
    session = profile.new_cdp_session(page)
    origin = page.evaluate("location.origin")
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    page.evaluate("passDays(9)")  # the days in localStorage have been cleared, too
    page.evaluate(RECORD, ["qwant"])  # the store says so
    assert page.evaluate(RECORD, ["qwant"]) in (["no consent"], ["disabled"])
    assert tab(profile).evaluate(RECORD, ["ecosia"]) == ["recorded"]


def test_blocked_storage_disables_the_client(profile: BrowserContext) -> None:
    """A frame without an origin has no storage: nothing is computed, sent or raised."""
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
    warned: list[str] = []
    page.on("console", lambda message: warned.append(message.text))
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
    told = page.frames[1].evaluate(
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
    assert told == ["disabled", "it cannot be opened: SecurityError", False]
    assert any("disabled: it cannot be opened: SecurityError" in text for text in warned)
    assert not any("qwant" in text for text in warned)


def reload_often(profile: BrowserContext, site: Site, n: int, seed: int) -> None:
    """Reload a page at random times while it records and sends, and check the counts in the end."""
    rng = random.Random(seed)  # noqa: S311  (moments, no secret)
    before = site.n_received()
    confirmed: list[str] = []
    page = profile.new_page()

    def hear(said: ConsoleMessage) -> None:
        if said.text == "recorded":
            confirmed.append(said.text)

    page.on("console", hear)
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
    page.add_init_script(
        f"if (location.pathname === '{BARE}') ({OPEN})({options}).then({loop}).catch(() => {{}});"
    )
    for _ in range(n):
        page.goto(BARE, wait_until="commit")
        page.wait_for_timeout(rng.random() * 400)
    end = time.monotonic() + PATIENCE
    while not confirmed:
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    page.goto("about:blank")
    last = tab(profile)
    eventually(lambda: bool(last.evaluate(FLUSH)["done"]))  # one report a day
    device = last.evaluate(DOCUMENTS)["device"]
    scopes = [scope for scope in device["scopes"] if scope["metric"] == "search_engine"]
    recorded = device["counters"]["recorded"]
    given_up = device["counters"].get("given_up", 0)
    assert recorded >= len(confirmed)
    assert recorded == sum(sum(scope["reports"].values()) for scope in scopes)
    assert device["counters"]["accepted"] == recorded - given_up
    assert site.n_received() == before + recorded - given_up


def test_reloads_neither_lose_nor_repeat_a_report(profile: BrowserContext, the_site: Site) -> None:
    """Eight reloads at random times."""
    reload_often(profile, the_site, 8, seed=1)


@pytest.mark.acceptance
def test_a_hundred_reloads_neither_lose_nor_repeat_a_report(
    profile: BrowserContext, the_site: Site
) -> None:
    """The test above with a hundred reloads."""
    reload_often(profile, the_site, 100, seed=2)


def in_fresh_profiles(browser: Browser, site: Site, words: list[str]) -> None:
    """Record and send each word in a profile of its own."""
    for word in words:
        context = browser.new_context(base_url=site.url)
        page = tab(context, isNoisy=True)
        assert page.evaluate(RECORD, [word]) == ["recorded"]
        assert page.evaluate(FLUSH)["done"]
        context.close()


def test_fresh_profiles_are_devices_of_their_own(browser: Browser, the_site: Site) -> None:
    """Each profile reports its own word."""
    before = the_site.n_received()
    in_fresh_profiles(browser, the_site, ["duckduckgo", "qwant", "ecosia"])
    assert the_site.n_received() == before + 3


@pytest.mark.acceptance
def test_words_of_two_hundred_fresh_profiles_are_found(browser: Browser, tmp_path: Path) -> None:
    """The intervals contain the true shares (rate 1e-9), and the commonest word is detected."""
    words = ["duckduckgo"] * 120 + ["qwant"] * 60 + ["ecosia"] * 20
    candidates = ["bing", "duckduckgo", "ecosia", "google", "qwant"]
    with the_readmes_site(tmp_path, WORDS_TOML) as running:
        in_fresh_profiles(browser, running, words)
        with open_database(running.database) as engine:
            tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
            merge_now(engine, today=tomorrow)  # the day of the reports has ended
        answer = httpx.post(
            f"{running.collector.url}/v1/metrics/search_engine/estimates",
            json={"candidates": candidates, "all": True, "confidence": 1 - 1e-9 / len(candidates)},
            headers={"Authorization": f"Bearer {running.token}"},
            timeout=150,
        )
    assert answer.status_code == 200, answer.text
    estimates = answer.json()
    assert estimates["reports"] == len(words)
    rows = {row["candidate"]: row for row in estimates["estimates"]}
    for word in candidates:
        share = words.count(word) / len(words)
        assert rows[word]["ci_low"] <= share <= rows[word]["ci_high"], word
    assert rows["duckduckgo"]["detected"]
