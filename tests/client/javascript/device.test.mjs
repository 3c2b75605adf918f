// The device in Node: consent, withdrawal, the file, other tabs' changes, and transports that fail.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import {
  chownSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { fileStore } from "../../../client/javascript/file.js";
import { Client, MetricError, ParamsError, ReportError } from "../../../client/javascript/index.js";
import { PLACE } from "../../../client/javascript/src/file_store.js";
import { Handover } from "../../../client/javascript/src/handover.js";
import { httpTransport } from "../../../client/javascript/src/http_transport.js";
import { indexedDbStore } from "../../../client/javascript/src/indexed_db_store.js";
import { secretOf } from "../../../client/javascript/src/secret.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { metricOf, registryOf } from "./registries.mjs";
import { told } from "./told.mjs";

const REGISTRY = JSON.parse(readFileSync(new URL("registry.json", import.meta.url), "utf8"));
const NOON = Date.UTC(2026, 10, 18, 12) / 1000;
const ACCEPTED = JSON.stringify({ reports: [{ status: "accepted" }] });
const silently = { warn: console.warn };
const realTimeout = globalThis.setTimeout;

/** Open a device whose collector answers with these statuses, then accepts. */
async function open(options = {}) {
  const sent = [];
  const statuses = options.statuses ?? [];
  const transport = {
    send: async (body) => {
      sent.push(body);
      const next = statuses.shift() ?? { status: 200, body: ACCEPTED };
      if (next instanceof Error) throw next;
      return next;
    },
  };
  const { store = memoryStore(), ...more } = options;
  const client = await Client.open({
    registry: REGISTRY,
    consent: true,
    background: false,
    store,
    transport,
    clock: () => NOON,
    ...more,
  });
  return { client, store, sent };
}

/** Wait until something is so, while timers run that keep no program alive. */
async function eventually(question) {
  const end = performance.now() + 20_000;
  while (!(await question())) {
    assert.ok(performance.now() < end, String(question));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "rappor-"));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

test("without consent nothing is computed, stored or sent", async () => {
  const { client, store, sent } = await open({ consent: false });
  assert.equal(await told(client, "page", "a"), "no consent");
  assert.deepEqual(store.documents, {});
  assert.equal((await client.flush()).reason, "nothing waiting");
  assert.deepEqual(sent, []);
});

test("consent is a boolean, and no other answer is read as one", async () => {
  for (const consent of ["no", 1, null, undefined]) {
    await assert.rejects(open({ consent }), ParamsError);
  }
});

test("settings outside their range are mistakes of the program", async () => {
  const delays = [-1, NaN, Infinity].map((maxDelay) => ({ maxDelay }));
  const limits = [0, 1.5, NaN, "9"].map((reports) => ({ limits: { reports } }));
  const caps = [{ total: -1 }, { total: NaN }, { per: "day" }].map((each) => ({ caps: each }));
  for (const options of [...delays, ...limits, ...caps]) {
    await assert.rejects(open(options), ParamsError, JSON.stringify(options));
  }
  const { client } = await open();
  for (const timeout of [-1, NaN]) await assert.rejects(client.flush({ timeout }), ParamsError);
});

test("metrics that are refused are a list of names: a text would read as its letters", async () => {
  for (const optedOut of ["page", ""]) {
    await assert.rejects(open({ optedOut }), ParamsError);
  }
  const { client } = await open({ optedOut: new Set(["page", "of an earlier registry"]) });
  assert.equal(await told(client, "page", "a"), "opted out");
});

test("mistakes of the program are raised, and say nothing of the value", async () => {
  const { client, store } = await open();
  assert.throws(() => client.record("pgae", "hidden"), MetricError);
  for (const value of [7, null, undefined, {}, true, "hidden \ud800"]) {
    assert.throws(() => client.record("page", value), (error) => {
      assert.ok(error instanceof ReportError);
      assert.ok(!String(error.stack).includes("hidden"));
      return true;
    });
  }
  assert.equal(store.documents.device.scopes.length, 0);
});

test("an upload holds one report, and its id and bytes stay over retries", async () => {
  const gone = new TypeError("fetch failed");
  const { client, sent } = await open({ statuses: [gone, { status: 503, body: "" }] });
  await told(client, "page", "a");
  await told(client, "page", "a");
  assert.equal((await client.flush({ timeout: 0 })).reason, "unreachable");
  assert.equal((await client.flush({ timeout: 0 })).reason, "collector error");
  assert.ok((await client.flush()).done);
  assert.ok((await client.flush()).done);
  const ids = sent.map((body) => JSON.parse(body).id);
  assert.equal(new Set(ids).size, 2);
  assert.equal(new Set(sent).size, 2);
  for (const body of sent) {
    const [report, ...others] = JSON.parse(body).reports;
    assert.deepEqual([Object.keys(report), others], [["metric", "params", "cohort", "bits"], []]);
  }
  const log = await client.log();
  assert.deepEqual(new Set(log.map(({ body }) => body)), new Set(sent));
});

test("what no repetition changes is dropped, and a collector that asks to wait is left alone", async () => {
  for (const status of [400, 409, 413, 415, 422]) {
    const { client } = await open({ statuses: [{ status, body: "" }] });
    await told(client, "page", "a");
    const refused = await client.flush();
    const { reason, detail, waiting } = refused;
    assert.deepEqual([reason, detail, waiting], ["refused", `status ${status}`, 0]);
  }
  for (const status of [199, 301, 401, 403, 404, 429, 500]) {
    const { client } = await open({ statuses: [{ status, body: ACCEPTED }] });
    await told(client, "page", "a");
    assert.equal((await client.flush({ timeout: 0 })).waiting, 1, status);
  }
  const busy = await open({ statuses: [{ status: 429, body: "", retryAfter: 60 }] });
  await told(busy.client, "page", "a");
  assert.equal((await busy.client.flush({ timeout: 0 })).reason, "collector error");
  const waited = await busy.client.flush({ timeout: 0 });
  assert.deepEqual([waited.reason, waited.retryAt], ["asked to wait", NOON + 60]);
  assert.equal(busy.sent.length, 1);
});

test("answers of any content are only failures", async () => {
  const cut = ["", "{", "[]", "null", '{"reports":[]}', '{"reports":[{"status":"accepted"},{}]}'];
  const strange = ["[{}]", "[7]", '["accepted"]', '"a"', "{}", "[[]]", "1e308", "[null]"];
  for (const body of [...cut, ...strange.map((reports) => `{"reports":${reports}}`)]) {
    const { client } = await open({ statuses: [{ status: 200, body }] });
    await told(client, "page", "a");
    assert.equal((await client.flush({ timeout: 0 })).reason, "collector error", body);
    assert.ok((await client.flush()).done);
  }
});

test("a transport that ignores its signal delays nobody", async () => {
  const { client, store } = await open({ transport: { send: () => new Promise(() => {}) } });
  await told(client, "page", "a");
  assert.equal((await client.flush({ timeout: 0.05 })).reason, "unreachable");
  assert.equal(store.documents.device.sending.failures, 0); // the collector has not failed
});

test("an upload that one program is sending is sent by no other", async () => {
  const store = memoryStore();
  let answerNow;
  const answered = new Promise((resolve) => (answerNow = resolve));
  const transport = { send: () => answered };
  const first = await open({ store, transport });
  await told(first.client, "page", "a");
  const sending = first.client.flush();
  const second = await open({ store });
  assert.equal((await second.client.flush({ timeout: 0 })).reason, "busy");
  assert.deepEqual(second.sent, []);
  answerNow({ status: 200, body: ACCEPTED });
  assert.equal((await sending).reason, "sent");
});

test("nothing leaves after the client was closed, also while an upload is claimed", async () => {
  const store = memoryStore();
  let isSlow = false;
  const update = async (...words) => {
    const result = await store.update(...words);
    if (isSlow) await new Promise((resolve) => setTimeout(resolve, 50));
    return result;
  };
  for (const end of ["close", "withdraw"]) {
    isSlow = false;
    const { client, sent } = await open({ store: { ...store, update } });
    await told(client, "page", "a");
    isSlow = true;
    const flushing = client.flush({ timeout: 1 });
    await client[end]();
    await flushing;
    assert.deepEqual(sent, [], end);
  }
});

test("a withdrawal severs the exchange under way", async () => {
  let exchange;
  const transport = {
    send: (_, { signal }) => {
      exchange = signal;
      return new Promise(() => {});
    },
  };
  const { client } = await open({ transport });
  await told(client, "page", "a");
  const flushing = client.flush();
  await eventually(() => exchange);
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.ok(exchange.aborted);
  assert.equal((await flushing).reason, "nothing waiting");
});

test("the background sender sends what is recorded before and after its first step", async (t) => {
  const { client, sent } = await open({ background: true, maxDelay: 0 });
  t.after(() => client.close());
  for (const n of [1, 2, 3]) {
    await told(client, "page", "a");
    await eventually(async () => sent.length === n && !(await client.waiting()));
  }
});

test("what an earlier program has left is sent a moment apart, however long the delay", async (t) => {
  const store = memoryStore();
  const earlier = await open({ store });
  for (let i = 0; i < 3; i++) await told(earlier.client, "page", "a");
  const coins = (n) => new Uint32Array(n).fill(2 ** 28); // a sixteenth of a delay
  const { client, sent } = await open({ store, coins, background: true, maxDelay: 3600 });
  t.after(() => client.close());
  await eventually(async () => (await client.log()).length === 3);
  assert.equal(sent.length, 3);
});

test("a collector that moves is not followed, and may name the date of the next attempt", async (t) => {
  const paths = [];
  const server = createServer((request, response) => {
    paths.push(request.url);
    const date = new Date(Date.now() + 600_000).toUTCString();
    const isFirst = paths.length === 1;
    response.writeHead(isFirst ? 503 : 307, isFirst ? { "Retry-After": date } : { Location: "/x" });
    response.end();
  });
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const transport = httpTransport(`http://127.0.0.1:${server.address().port}/a/`);
  const { status, retryAfter } = await transport.send("{}");
  assert.equal(status, 503);
  assert.ok(retryAfter > 500 && retryAfter <= 600, retryAfter);
  await assert.rejects(transport.send("{}"), TypeError);
  assert.deepEqual(paths, ["/a/v1/reports", "/a/v1/reports"]);
});

test("what a page has at hand and never sent is not in the log", async (t) => {
  const store = Object.assign(memoryStore(), { channel: "at hand" });
  const { client } = await open({ store, background: true, maxDelay: 3600 });
  t.after(() => client.close());
  await told(client, "page", "a");
  assert.equal(store.documents.spool.uploads.length, 1);
  assert.deepEqual(await client.log(), []);
  await client.optOut("page");
  assert.deepEqual([await client.log(), await client.waiting()], [[], 0]);
});

test("an answer without end is read up to a megabyte", async (t) => {
  const server = createServer((_, response) => {
    const more = () => {
      while (response.write("x".repeat(100_000)));
      response.once("drain", more);
    };
    more();
  });
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const transport = httpTransport(`http://127.0.0.1:${server.address().port}`);
  const { status, body } = await transport.send("{}", { signal: AbortSignal.timeout(60_000) });
  assert.equal(status, 200);
  assert.ok(body.length >= 1_000_000 && body.length < 2_000_000);
});

test("the log outlasts the next report, and holds nothing that never left", async (t) => {
  for (const store of [memoryStore(), fileStore(join(folder(t), "telemetry.json"))]) {
    const { client } = await open({ store, background: true, maxDelay: 3600 });
    await told(client, "page", "a");
    await client.flush();
    await told(client, "page", "a");
    await client.optOut("page");
    assert.deepEqual((await client.log()).map(({ status }) => status), ["accepted"]);
    await client.close();
  }
});

test("pages that end before their reports are sent leave a bounded number of uploads", async () => {
  const store = memoryStore();
  for (let i = 0; i < 25; i++) {
    const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
    const page = { store: Object.assign(store, { channel: "pages" }), background: true };
    const { client } = await open({ ...page, transport, maxDelay: 0 });
    for (let j = 0; j < 2; j++) await told(client, "page", "a");
    await client.close();
  }
  assert.equal(store.documents.spool.uploads.length, 20);
  assert.equal(store.documents.spool.reports.length, 30);
});

test("whatever else is asked for stops nothing, and is not kept", async () => {
  const nested = `${"[".repeat(50_000)}${"]".repeat(50_000)}`;
  const days = ['{"toString":1}', '["2026-11-20"]', nested, "1e308", '"2026-13-01"', "null"];
  const stops = ["[]", '"page"', "7", `{"${"x".repeat(65)}":"2026-11-20","__proto__":"2026-11-20"}`];
  const names = ["page", ...Array.from({ length: 1000 }, (_, i) => `other.${i}`)];
  stops.push(JSON.stringify(Object.fromEntries(names.map((name) => [name, "2026-11-20"]))));
  for (const stop of [...days.map((day) => `{"page":${day}}`), ...stops]) {
    const body = `{"reports":[{"status":"accepted"}],"stop":${stop}}`;
    const { client, store } = await open({ statuses: [{ status: 200, body }] });
    await told(client, "page", "a");
    assert.equal((await client.flush()).reason, "sent", stop.slice(0, 40));
    assert.deepEqual(store.documents.device.stopped, {}, stop.slice(0, 40));
    assert.equal(await told(client, "page", "a"), "kept");
  }
});

test("a value of the wrong kind is a mistake also while its metric is silent", async () => {
  console.warn = () => {};
  try {
    const { client } = await open({ caps: { total: 0 } });
    assert.equal(await told(client, "page", "a"), "budget");
    assert.throws(() => client.record("page", 7), ReportError);
  } finally {
    console.warn = silently.warn;
  }
});

test("a withdrawal that meets a first report leaves no identity behind", async () => {
  let isBlocked = true;
  const memory = memoryStore();
  const { update } = memory;
  const store = Object.assign(memory, {
    update: (...words) =>
      isBlocked ? Promise.reject(new DOMException("no", "UnknownError")) : update(...words),
  });
  console.warn = () => {};
  try {
    const { client } = await open({ store });
    isBlocked = false;
    assert.equal(client.record("page", "a").reason, "disabled"); // and the store is asked again
    assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
    assert.equal(client.record("page", "a").reason, "no consent");
    assert.deepEqual(memory.documents, {});
  } finally {
    console.warn = silently.warn;
  }
});

test("the spool has bounds, and drops the oldest", async () => {
  const { client } = await open({ limits: { reports: 3, log: 2 } });
  for (let i = 0; i < 5; i++) await told(client, "page", "a");
  assert.equal(await client.waiting(), 3);
  assert.equal((await client.counters()).dropped_full, 2);
  for (let i = 0; i < 3; i++) await client.flush();
  assert.equal((await client.log()).length, 2);
});

test("the spool has bounds in bytes, and each report takes some beside its bits", async () => {
  const first = await open();
  await told(first.client, "page", "a");
  const [{ bits }] = first.store.documents.spool.reports;
  const { client } = await open({ limits: { bytes: 2 * (128 + bits.length) } });
  for (let i = 0; i < 3; i++) await told(client, "page", "a");
  assert.equal(await client.waiting(), 2);
  assert.equal((await client.counters()).dropped_full, 1);
});

test("an upload is given up a week after its first attempt, however many follow", async () => {
  let now = NOON;
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const { client } = await open({ transport, clock: () => now });
  await told(client, "page", "a");
  for (const days of [0, 3, 6, 6.9]) {
    now = NOON + days * 86_400;
    assert.equal((await client.flush({ timeout: 0 })).waiting, 1, days);
  }
  now = NOON + 7.1 * 86_400;
  assert.equal((await client.flush({ timeout: 0 })).waiting, 0);
  assert.equal((await client.counters()).given_up, 1);
  assert.deepEqual((await client.log()).map(({ status }) => status), ["given_up"]);
});

test("a collector may ask for hours, and never for a time that is over", async () => {
  for (const [retryAfter, asked] of [[1e9, 23 * 3600], [-1000, 0], [NaN, 0], ["soon", 0], [{}, 0]]) {
    const { client } = await open({ statuses: [{ status: 503, body: "", retryAfter }] });
    await told(client, "page", "a");
    assert.equal((await client.flush({ timeout: 0 })).retryAt, NOON + asked);
  }
});

test("a clock that begins in 1970 gives nothing up", async () => {
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const { client } = await open({ transport, clock: () => 10 * 86_400 });
  await told(client, "page", "a");
  for (let i = 0; i < 3; i++) assert.equal((await client.flush({ timeout: 0 })).waiting, 1);
});

test("a report that a wrong clock has dated waits a week at most", async () => {
  let now = NOON + 366 * 86_400;
  const statuses = [{ status: 503, body: "", retryAfter: 60 }];
  const { client, store } = await open({ statuses, clock: () => now });
  for (const metric of ["page", "theme"]) await told(client, metric, "light");
  now += 86_400;
  await told(client, "theme", "light"); // the day before is released
  now = NOON;
  await client.flush({ timeout: 0 });
  const [{ due }] = store.documents.spool.reports;
  assert.ok(due <= NOON + 7 * 86_400, due);
});

test("without a clock of the program's the system's is used", async () => {
  const { client } = await open({ clock: undefined });
  const today = () => new Date().toISOString().slice(0, 10);
  const days = [today()];
  await told(client, "page", "a");
  await client.flush();
  days.push(today());
  assert.ok(days.includes((await client.log())[0].day));
});

test("a wait that a wrong clock has set is not waited for", async () => {
  let now = NOON + 10 * 86_400;
  const statuses = [{ status: 503, body: "", retryAfter: 60 }];
  const { client } = await open({ statuses, clock: () => now });
  await told(client, "page", "a");
  assert.equal((await client.flush({ timeout: 0 })).reason, "collector error");
  now = NOON;
  assert.equal((await client.flush({ timeout: 0 })).reason, "sent");
});

test("attempts become rarer, up to one in an hour", async () => {
  let now = NOON;
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const coins = (n) => new Uint32Array(n).fill(2 ** 32 - 1);
  const { client } = await open({ transport, coins, clock: () => now });
  await told(client, "page", "a");
  const pauses = [];
  for (let i = 0; i < 16; i++) {
    const { retryAt } = await client.flush({ timeout: 0 });
    pauses.push(Math.round(retryAt - now));
    now = retryAt + 1;
  }
  assert.deepEqual(pauses, [...pauses].sort((a, b) => a - b));
  assert.deepEqual([pauses[0], pauses[15]], [5, 3600]);
});

test("a flush sleeps until the collector may be asked again", async () => {
  const began = performance.now();
  const clock = () => NOON + (performance.now() - began) / 1000;
  const coins = (n) => new Uint32Array(n);
  const store = memoryStore();
  let n = 0;
  const update = (...words) => {
    n += 1;
    assert.ok(n < 20, "it does not sleep");
    return store.update(...words);
  };
  const statuses = [{ status: 503, body: "", retryAfter: 0.3 }];
  const { client, sent } = await open({ statuses, store: { ...store, update }, coins, clock });
  await told(client, "page", "a");
  assert.equal((await client.flush()).reason, "sent");
  assert.ok(clock() >= NOON + 0.3);
  assert.equal(sent.length, 2);
});

test("a flush without a limit sleeps, however long a stop lasts", async () => {
  const program = new URL("endless_flush.mjs", import.meta.url).pathname;
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program]);
  assert.deepEqual([stdout, stderr], ["1\n", ""]);
});

test("of uploads that failed, the one whose wait ends first is due next", async () => {
  const waits = [0, 2 ** 32 - 1, 0, 2 ** 31, 0]; // part and wait of the first, of the second, of all
  const coins = (n) => (n === 1 ? [waits.shift()] : new Uint32Array(n));
  const statuses = [1, 2].map(() => ({ status: 503, body: "" }));
  const { client, sent } = await open({ statuses, coins });
  for (let i = 0; i < 2; i++) await told(client, "page", "a");
  const { waiting, retryAt } = await client.flush({ timeout: 1 });
  assert.deepEqual([sent.length, waiting, retryAt], [2, 2, NOON + 5]);
});

test("a reason that is no word of a collector is not kept", async () => {
  for (const [reason, kept] of [["unknown-params", "unknown-params"], ["<b>", "no reason given"]]) {
    const body = JSON.stringify({ reports: [{ status: "refused", reason }] });
    const { client } = await open({ statuses: [{ status: 200, body }] });
    await told(client, "page", "a");
    assert.equal((await client.flush()).detail, `refused: ${kept}`);
    assert.deepEqual(await client.counters(), { recorded: 1, refused: 1 }); // one for all reasons
  }
});

test("withdrawal keeps what was reserved where nothing was spent, and else leaves nothing", async (t) => {
  const { client, store } = await open();
  assert.equal(await told(client, "theme", "light"), "kept");
  const { reserved } = await client.spent();
  await client.withdraw();
  assert.deepEqual((await (await open({ store })).client.spent()).reserved, reserved);
  const path = join(folder(t), "telemetry.json");
  const { client: unused } = await open({ store: fileStore(path) });
  assert.deepEqual(await unused.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(readdirSync(join(path, "..")), []);
});

test("who refuses a metric drops all uploads of it that have failed", async () => {
  const coins = (n) => new Uint32Array(n); // no wait is drawn
  const statuses = [1, 2, 3].map(() => ({ status: 503, body: "" }));
  const { client, store } = await open({ statuses, coins });
  for (let i = 0; i < 3; i++) await told(client, "page", "a");
  for (let i = 0; i < 3; i++) {
    await client.flush({ timeout: 0 });
    for (const upload of store.documents.spool.uploads) upload.backoff = NOON + 60;
  }
  assert.equal(store.documents.spool.uploads.length, 3);
  await client.optOut("page");
  assert.equal(await client.waiting(), 0);
});

test("of a metric that the registry names no more one report leaves in a week", async () => {
  const { client, store } = await open();
  for (let i = 0; i < 3; i++) await told(client, "page", "a");
  for (const report of store.documents.spool.reports) report.due = NOON - 1; // it had an interval
  await client.close();
  const others = REGISTRY.metrics.filter(({ name }) => name !== "page");
  const later = await open({ store, registry: await registryOf(others) });
  assert.equal((await later.client.flush({ timeout: 1 })).sent, 1);
  assert.equal(await later.client.waiting(), 2);
});

test("withdrawal leaves what was reserved, and a new consent pays anew", async () => {
  const { client, store } = await open();
  await told(client, "page", "a");
  const before = await client.spent();
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(Object.keys(store.documents).filter((key) => store.documents[key]), ["device"]);
  assert.ok(!JSON.stringify(store.documents).includes("page"));
  assert.equal(await told(client, "page", "a"), "no consent");
  const again = await open({ store });
  assert.equal(await told(again.client, "page", "a"), "kept");
  const after = await again.client.spent();
  assert.equal(after.nats, before.nats);
  assert.equal(after.reserved[2026], 2 * before.reserved[2026]);
});

test("a registry that was changed by hand is refused", async () => {
  const metrics = REGISTRY.metrics.map((metric) => ({ ...metric, patterns: 100 }));
  await assert.rejects(open({ registry: { ...REGISTRY, metrics } }), MetricError);
});

test("addresses that are not https are refused", () => {
  const near = ["http://example.org", "ftp://x", "https://u@x", "https://:p@x", "https://x?y"];
  const far = ["https://x#y", "https://", "https://x:99999", "x.example.org", "nonsense", "", 5];
  for (const url of [...near, ...far]) {
    assert.throws(() => httpTransport(url), ParamsError, url);
  }
  assert.throws(() => httpTransport("https://x", "a\nb"), TypeError);
  for (const url of ["https://x/", "http://localhost:1", "http://127.0.0.1/a"]) httpTransport(url);
});

test("a store that fails records nothing, raises nothing and says so once", async () => {
  const said = [];
  console.warn = (text) => said.push(text);
  const fail = async () => {
    throw new DOMException("no", "SecurityError");
  };
  const store = { ...memoryStore(), read: fail, update: fail, clear: fail };
  try {
    const { client } = await open({ store });
    assert.equal(client.record("page", "hidden").reason, "disabled");
    assert.ok((await client.counters()).failures > 1);
    assert.equal(client.disabled, "it cannot be opened: SecurityError");
    assert.deepEqual(said, [`rappor: telemetry is disabled: ${client.disabled}`]);
    assert.equal((await client.withdraw()).done, false);
  } finally {
    console.warn = silently.warn;
  }
});

/** Return a store that counts the bytes of each change, and a shelf of its own. */
function counted(pages = new Map()) {
  const store = memoryStore();
  const { update } = store;
  const written = [];
  store.update = async (...words) => {
    const result = await update(...words);
    written.push(JSON.stringify(store.documents).length);
    return result;
  };
  const shelf = {
    get length() {
      return pages.size;
    },
    key: (i) => [...pages.keys()][i] ?? null,
    getItem: (key) => pages.get(key) ?? null,
    setItem: (key, value) => pages.set(key, value),
    removeItem: (key) => pages.delete(key),
  };
  return { store: Object.assign(store, { shelf, channel: undefined }), written, pages };
}

test("a repeated event writes nothing, and a first one of an interval does", async () => {
  let now = NOON;
  const { store, written } = counted();
  const { client } = await open({ store, clock: () => now });
  for (const days of [0, 1]) {
    now = NOON + days * 86_400;
    await told(client, "theme", "light");
    const n = written.length;
    if (!days) continue; // before its first report a scope has no latch, and a tag may be the smallest
    for (let i = 0; i < 2000; i++) assert.equal(client.record("theme", "dark").outcome, "kept");
    await client.waiting();
    assert.equal(written.length, n);
  }
  now = NOON + 2 * 86_400;
  await told(client, "theme", "light");
  assert.equal((await client.counters()).recorded, 2);
});

test("values wait in memory while the store does not answer, up to a thousand, and none is lost", async () => {
  const { store } = counted();
  const { client } = await open({ store, limits: { reports: 5000, bytes: 5_000_000 } });
  const { update } = store;
  let free;
  const freed = new Promise((resolve) => (free = resolve));
  store.update = async (...words) => (await freed, update(...words));
  const outcomes = Array.from({ length: 1100 }, () => client.record("page", "a").outcome);
  assert.equal(outcomes.filter((outcome) => outcome === "kept").length, 1000);
  assert.ok(outcomes.slice(1000).every((outcome) => outcome === "failed"));
  free();
  assert.equal(await client.waiting(), 1000);
  assert.equal(client.record("page", "a").outcome, "kept");
  await client.waiting();
  const { recorded, dropped_full: dropped } = await client.counters();
  assert.deepEqual([recorded, dropped], [1001, 100]);
});

test("a flush changes the store once for each upload", async () => {
  const { store, written } = counted();
  const { client, sent } = await open({ store });
  for (let i = 0; i < 20; i++) client.record("page", "a");
  await client.waiting();
  const n = written.length;
  assert.equal((await client.flush({ timeout: 60 })).sent, 20);
  assert.deepEqual([sent.length, written.length], [20, n + 21]);
});

test("a metric that is refused while a flush sends does not leave after it", async () => {
  const bodies = [];
  let answerNow;
  const answered = new Promise((resolve) => (answerNow = resolve));
  const { client } = await open({ transport: { send: (body) => (bodies.push(body), answered) } });
  for (let i = 0; i < 3; i++) client.record("page", "a");
  const flushing = client.flush({ timeout: 60 });
  await eventually(() => bodies.length);
  await client.optOut("page");
  answerNow({ status: 200, body: ACCEPTED });
  await flushing;
  assert.equal(bodies.length, 1);
  assert.equal(await client.waiting(), 0);
});

test("a store of the version before keeps its secret, its latch, its budget and what waits", async () => {
  const old = JSON.parse(readFileSync(new URL("version_1.json", import.meta.url), "utf8"));
  const { client, store } = await open({ store: Object.assign(memoryStore(), { documents: old }) });
  const [page] = store.documents.device.scopes;
  assert.equal(await told(client, "page", "b"), "kept");
  const [again] = store.documents.device.scopes;
  assert.deepEqual([again.permanent, again.cohort], [page.permanent, page.cohort]);
  assert.deepEqual(store.documents.identity, old.identity);
  assert.equal(await client.waiting(), 3); // two of them are of the version before
  const { metrics, reserved } = await client.spent();
  assert.deepEqual([metrics.page.reports, Object.keys(reserved)], [3, ["2026"]]);
  assert.equal(Object.values(store.documents.device.held)[0].tag, "0");
});

test("what is recorded in one go is one change", async () => {
  const { store, written } = counted();
  const { client } = await open({ store });
  const n = written.length;
  for (let i = 0; i < 50; i++) client.record("page", "a");
  assert.equal(await client.waiting(), 50);
  assert.ok(written.length <= n + 2, String(written.length - n)); // the first value needs its response
});

/** Return what a page that is hidden, or ends, does, in Node, where there are no pages. */
function pageOf(t) {
  const listeners = [];
  const target = {
    addEventListener: (name, call) => listeners.push([name, call]),
    removeEventListener: () => {},
  };
  const fire = (wanted) => {
    for (const [name, call] of listeners) if (name === wanted) call();
  };
  Object.assign(globalThis, target, { document: { ...target, hidden: false } });
  t.after(() => {
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
    delete globalThis.document;
  });
  return {
    end: () => fire("pagehide"),
    hide: () => {
      globalThis.document.hidden = true;
      fire("visibilitychange");
    },
  };
}

test("a page that ends leaves to the next one what is not stored, and nobody can read it there", async (t) => {
  const page = pageOf(t);
  const { store, pages } = counted();
  const first = await open({ store });
  const { update } = store;
  store.update = () => new Promise(() => {}); // the page has gone before it is stored
  for (const value of ["hidden", "hidden", "another"]) first.client.record("page", value);
  page.end();
  page.end(); // nothing is left twice
  assert.equal(pages.size, 1);
  const [text] = pages.values();
  assert.equal(text.length, Math.ceil((4096 * 4) / 3)); // whatever it is
  assert.ok(!Buffer.from(text, "base64url").includes("hidden"));
  store.update = update;
  const { client } = await open({ store });
  assert.equal(await client.waiting(), 3);
  assert.equal(pages.size, 0);
});

test("what a page leaves while it is stored is one event, whoever stores it first", async (t) => {
  const page = pageOf(t);
  const { store, pages } = counted();
  const { client } = await open({ store });
  client.record("page", "a");
  page.end(); // and comes back, or its last change was made
  const left = new Map(pages);
  assert.equal(left.size, 1);
  await client.waiting();
  assert.equal(pages.size, 0);
  for (const [key, text] of left) pages.set(key, text); // the page ended before it could remove it
  const { client: next } = await open({ store });
  assert.equal(await next.waiting(), 1);
  assert.equal(pages.size, 0);
  assert.equal((await next.counters()).recorded, 1);
});

test("a withdrawal removes what pages have left, and another device's is no event", async (t) => {
  const page = pageOf(t);
  const { store, pages } = counted();
  const { client } = await open({ store });
  client.record("page", "a");
  page.end();
  const [[key, text]] = pages;
  assert.equal((await client.withdraw()).done, true);
  assert.equal(pages.size, 0);
  pages.set(key, text);
  pages.set("rappor undefined ", "?");
  pages.set("another program's", "?");
  const { client: next } = await open({ store });
  assert.equal(await next.waiting(), 0);
  assert.deepEqual([...pages.keys()], ["another program's"]);
});

/** Return the store of a page, which changes nothing any more once the page is gone. */
function ofPage(store) {
  const moment = { isGone: false };
  const never = new Promise(() => {});
  const update = (...words) => (moment.isGone ? never : store.update(...words));
  return { moment, store: { ...store, shelf: store.shelf, update } };
}

test("a page leaves what it records while it is hidden and while it ends, in either order", async (t) => {
  for (const order of [["hide", "end"], ["end", "hide"]]) {
    const page = pageOf(t);
    const { store } = counted();
    const its = ofPage(store);
    const first = await open({ store: its.store });
    for (const name of ["visibilitychange", "pagehide"]) {
      globalThis.addEventListener(name, () => first.client.record("page", name));
    }
    its.moment.isGone = true;
    first.client.record("page", "a click");
    for (const each of order) page[each]();
    const { client } = await open({ store });
    assert.equal(await client.waiting(), 3, order);
  }
});

test("of a text that lies there nothing stays once its values are refused or stored", async (t) => {
  for (const isLater of [false, true]) {
    const page = pageOf(t);
    const { store, pages } = counted();
    const its = ofPage(store);
    const first = await open({ store: its.store });
    its.moment.isGone = true;
    const names = isLater ? ["page"] : ["page", "theme"];
    for (const name of names) first.client.record(name, "light");
    page.end();
    assert.equal(pages.size, 1);
    if (isLater) {
      first.client.optOut("page");
    } else {
      const { client } = await open({ store, optedOut: ["theme"] });
      assert.equal(await client.waiting(), 1);
    }
    assert.equal(pages.size, 0);
  }
});

test("a device removes nothing that a page of another one has left, whatever its name", async (t) => {
  const page = pageOf(t);
  const { store, pages } = counted();
  const other = { ...store, channel: "app beta", update: store.update };
  const { client } = await open({ store: other });
  other.update = () => new Promise(() => {});
  client.record("page", "a");
  page.end();
  for (const consent of [true, false]) {
    const mine = await open({ store: { ...memoryStore(), shelf: store.shelf, channel: "app" }, consent });
    await mine.client.close();
    assert.equal(pages.size, 1);
  }
  other.update = store.update;
  await client.withdraw();
  await client.close();
  assert.equal(pages.size, 0);
});

test("to leave a thousand values looks at those that fit, and a long one lets no later one go first", async () => {
  const { store, pages } = counted();
  const secret = await secretOf(new Uint8Array(32));
  const handover = new Handover(store);
  await handover.prepare(secret);
  let n = 0;
  const events = Array.from({ length: 1000 }, (_, seq) => ({
    toJSON: () => ((n += 1), { seq, told: seq === 9 ? "x".repeat(5000) : "x".repeat(90) }),
  }));
  assert.ok(handover.leave(events));
  assert.ok(n < 100, n);
  assert.equal(pages.size, 1);
  const found = await new Handover(store).found(secret);
  assert.deepEqual(found.map(({ seq }) => seq), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
});

/** Return a store of which one call never answers: with what it did, or not. */
function silentOnce(method, isDone) {
  const store = memoryStore();
  const moment = { isSilent: false };
  const call = store[method];
  store[method] = async (...words) => {
    const { isSilent } = moment;
    moment.isSilent = false;
    const result = isSilent && !isDone ? undefined : await call(...words);
    return isSilent ? new Promise(() => {}) : result;
  };
  return { store, moment };
}

test("a store that does not answer once is asked again, and keeps each value once", async () => {
  console.warn = () => {};
  const begins = async (method) => {
    const { store, moment } = silentOnce(method, false);
    moment.isSilent = true;
    const { client } = await open({ store });
    assert.equal(client.disabled, "it cannot be opened: TimeoutError");
    assert.ok((await client.flush({ timeout: 1 })).done);
    assert.equal(await told(client, "page", "a"), "kept");
  };
  const commits = async (isDone) => {
    const { store, moment } = silentOnce("update", isDone);
    const { client, sent } = await open({ store });
    await told(client, "page", "a"); // it has its permanent response
    moment.isSilent = true;
    client.record("page", "a");
    assert.equal((await client.flush({ timeout: 1 })).reason, "failed");
    client.record("page", "a");
    await eventually(async () => (await client.flush({ timeout: 1 })).done);
    assert.equal(sent.length, 3);
    assert.equal((await client.counters()).recorded, 3);
  };
  const sends = async () => {
    const { store, moment } = silentOnce("update", false);
    const { client, sent } = await open({ store });
    await told(client, "page", "a");
    moment.isSilent = true;
    assert.equal((await client.flush({ timeout: 5 })).reason, "failed");
    assert.ok((await client.flush({ timeout: 1 })).done);
    assert.equal(sent.length, 1);
  };
  try {
    await Promise.all([begins("read"), begins("update"), commits(false), commits(true), sends()]);
  } finally {
    console.warn = silently.warn;
  }
});

test("a database whose opening does not answer is opened anew", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let n = 0;
  globalThis.indexedDB = { open: () => ((n += 1), {}) };
  t.after(() => delete globalThis.indexedDB);
  const store = indexedDbStore("silent");
  for (const opened of [1, 1]) {
    store.read(["device"]);
    assert.equal(n, opened);
  }
  t.mock.timers.tick(2000);
  for (let i = 0; i < 20; i++) await Promise.resolve();
  store.read(["device"]);
  assert.equal(n, 2);
});

/** Let what is asynchronous happen, but no timer of a test that sets them itself. */
const settled = () => new Promise((resolve) => realTimeout(resolve, 20));

test("a store that fails is asked again every ten seconds, and not after the client was closed", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const store = memoryStore();
  const { update } = store;
  const { client } = await open({ store });
  let n = 0;
  store.update = async () => {
    n += 1;
    throw new DOMException("full", "QuotaExceededError");
  };
  const pass = async (seconds) => {
    for (let i = 0; i < seconds; i++) {
      t.mock.timers.tick(1000);
      await settled();
    }
  };
  console.warn = () => {};
  try {
    for (let i = 0; i < 3; i++) {
      client.record("page", "a");
      await pass(1);
    }
    assert.equal(n, 3);
    await pass(30);
    assert.equal(n, 6);
    await client.close();
    await pass(30);
    assert.equal(n, 7); // by close itself
    store.update = update;
    assert.equal(await client.waiting(), 3);
  } finally {
    console.warn = silently.warn;
  }
});

test("closing waits two seconds for a store that does not answer", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const store = memoryStore();
  const { client } = await open({ store });
  Object.assign(store, { update: () => new Promise(() => {}), close: () => new Promise(() => {}) });
  client.record("page", "a");
  let isClosed = false;
  console.warn = () => {};
  try {
    client.close().then(() => (isClosed = true));
    await settled();
    assert.ok(!isClosed);
    t.mock.timers.tick(2000);
    await settled();
    assert.ok(isClosed);
  } finally {
    console.warn = silently.warn;
  }
});

test("a flush that cannot store a value has failed, whatever the collector", async () => {
  const { store } = counted();
  const { update } = store;
  const { client } = await open({ store });
  store.update = () => {
    store.update = update;
    return Promise.reject(new DOMException("full", "QuotaExceededError"));
  };
  console.warn = () => {};
  try {
    client.record("page", "a");
    const { reason, waiting, retryAt } = await client.flush({ timeout: 1 });
    assert.deepEqual([reason, waiting, retryAt], ["failed", 1, undefined]);
    assert.ok((await client.flush()).done);
  } finally {
    console.warn = silently.warn;
  }
});

/** Return a store that holds each call until `free` is called, and then answers it. */
function held() {
  const store = memoryStore();
  let free;
  const freed = new Promise((resolve) => (free = resolve));
  const hold = (call) => async (...words) => (await freed, call(...words));
  const [read, update, clear] = [store.read, store.update, store.clear].map(hold);
  return { store: Object.assign(store, { read, update, clear }), free };
}

test("a store that does not answer holds nobody up, and ends no consent", async () => {
  console.warn = () => {};
  try {
    const { store, free } = held();
    const { client, sent } = await open({ store });
    assert.equal(client.disabled, "it cannot be opened: TimeoutError");
    assert.equal((await client.flush({ timeout: 0.1 })).reason, "failed");
    free();
    await eventually(async () => !client.disabled);
    assert.equal(await told(client, "page", "a"), "kept");
    assert.ok((await client.flush()).done);
    assert.equal(sent.length, 1);
    await client.close();
  } finally {
    console.warn = silently.warn;
  }
});

test("a withdrawal from a store that does not answer says what is left, and erases it later", async () => {
  console.warn = () => {};
  try {
    const { store, free } = held();
    const { client } = await open({ store, consent: false });
    const { done, secretGone } = await client.withdraw();
    assert.deepEqual([done, secretGone], [false, false]);
    Object.assign(store.documents, { identity: { mark: "m", secret: "s" }, log: [] });
    free();
    await eventually(() => !store.documents.identity);
  } finally {
    console.warn = silently.warn;
  }
});

test("a flush after an opening that failed ends no consent", async () => {
  const store = memoryStore();
  const { update } = store;
  store.update = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  console.warn = () => {};
  try {
    const { client } = await open({ store });
    assert.equal((await client.flush()).reason, "failed");
    store.update = update;
    assert.ok((await client.flush()).done);
    assert.equal(await told(client, "page", "a"), "kept");
    assert.equal(client.disabled, undefined);
  } finally {
    console.warn = silently.warn;
  }
});

test("the file is private, holds no value, and a later process is the same device", async (t) => {
  const path = join(folder(t), "device", "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await told(client, "page", "hidden");
  const [{ last }] = JSON.parse(readFileSync(path, "utf8")).device.scopes;
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.equal(statSync(join(path, "..")).mode & 0o777, 0o700);
  assert.ok(!readFileSync(path, "utf8").includes("hidden"));
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
  const again = await open({ store: fileStore(path) });
  assert.equal(await told(again.client, "page", "other"), "kept");
  assert.equal(JSON.parse(readFileSync(path, "utf8")).device.scopes[0].last, last);
});

test("a damaged file disables the device until withdrawal, which leaves no budget of the year", async (t) => {
  const path = join(folder(t), "telemetry.json");
  await told((await open({ store: fileStore(path) })).client, "page", "a");
  writeFileSync(path, readFileSync(path, "utf8").slice(0, -9));
  console.warn = () => {};
  try {
    const { client } = await open({ store: fileStore(path) });
    assert.equal(await told(client, "page", "a"), "disabled");
    assert.equal((await client.withdraw()).done, true);
    const again = await open({ store: fileStore(path) });
    assert.equal(await told(again.client, "page", "a"), "budget");
    const { nats, reserved } = await again.client.spent();
    assert.deepEqual([nats, reserved[2026]], [Infinity, Infinity]);
    const later = await open({ store: fileStore(path), clock: () => NOON + 366 * 86_400 });
    assert.equal(await told(later.client, "page", "a"), "kept");
  } finally {
    console.warn = silently.warn;
  }
});

test("a loss that a wrong clock dates is moved to the year that the right one shows", async (t) => {
  const path = join(folder(t), "telemetry.json");
  writeFileSync(path, "damaged");
  console.warn = () => {};
  try {
    const lost = await open({ store: fileStore(path), clock: () => 86_400 });
    assert.equal((await lost.client.withdraw()).done, true);
    const answers = [];
    for (const days of [0, 0, 365, 2 * 365]) {
      const now = NOON + days * 86_400;
      const { client } = await open({ store: fileStore(path), clock: () => now });
      answers.push(await told(client, "page", "a"));
    }
    assert.deepEqual(answers, ["budget", "budget", "kept", "kept"]);
  } finally {
    console.warn = silently.warn;
  }
});

test("a clock that is corrected while a program runs brings no budget back", async (t) => {
  const path = join(folder(t), "telemetry.json");
  writeFileSync(path, "damaged");
  let now = 86_400;
  console.warn = () => {};
  try {
    await open({ store: fileStore(path), clock: () => now, consent: false });
    const { client } = await open({ store: fileStore(path), clock: () => now });
    now = NOON;
    assert.equal(await told(client, "page", "a"), "budget");
  } finally {
    console.warn = silently.warn;
  }
});

test("a file of which a letter has changed, or that holds something else, is damaged", async (t) => {
  const path = join(folder(t), "telemetry.json");
  await told((await open({ store: fileStore(path) })).client, "page", "a");
  const text = readFileSync(path, "utf8");
  const { secret } = JSON.parse(text).identity;
  const other = secret.replace(/./, (letter) => (letter === "A" ? "B" : "A"));
  console.warn = () => {};
  try {
    for (const written of ["", "{}", "[]", "0", "null", text.replace(secret, other)]) {
      writeFileSync(path, written);
      const { client } = await open({ store: fileStore(path) });
      assert.equal(await told(client, "page", "a"), "disabled", written.slice(0, 9));
      assert.equal(readFileSync(path, "utf8"), written);
    }
  } finally {
    console.warn = silently.warn;
  }
});

test("what a killed process has left beside the file goes with the secret", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await told(client, "page", "a");
  copyFileSync(path, `${path}.tmp`);
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
  writeFileSync(`${path}.tmp`, "a first file that never got its name");
  rmSync(path);
  await open({ store: fileStore(path), consent: false });
  assert.deepEqual(readdirSync(join(path, "..")), []);
});

test("a file stays where it is when the program changes its folder", async (t) => {
  const there = folder(t);
  const here = process.cwd();
  t.after(() => process.chdir(here));
  process.chdir(there);
  const { client } = await open({ store: fileStore("telemetry.json") });
  await told(client, "page", "a");
  process.chdir("/");
  assert.equal(await told(client, "page", "a"), "kept");
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.ok(!readFileSync(join(there, "telemetry.json"), "utf8").includes("secret"));
});

test("what is no plain file is neither read nor replaced, and said to be left", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await told(client, "page", "a");
  const text = readFileSync(path, "utf8");
  const [link, pipe, directory] = ["link", "pipe", "folder"].map((name) => join(path, "..", name));
  symlinkSync(path, link);
  await promisify(execFile)("mkfifo", [pipe]);
  mkdirSync(directory);
  console.warn = () => {};
  try {
    for (const strange of [link, pipe, directory]) {
      const other = await open({ store: fileStore(strange) });
      assert.equal(await told(other.client, "page", "a"), "disabled", strange);
      const { done, secretGone } = await other.client.withdraw();
      assert.deepEqual([done, secretGone], [false, false], strange);
    }
  } finally {
    console.warn = silently.warn;
  }
  assert.equal(readFileSync(path, "utf8"), text);
});

test("another user's file is not used", { skip: process.getuid() !== 0 }, async (t) => {
  const path = join(folder(t), "telemetry.json");
  await told((await open({ store: fileStore(path) })).client, "page", "a");
  chownSync(path, 65534, 65534);
  console.warn = () => {};
  try {
    const { client } = await open({ store: fileStore(path) });
    assert.equal(await told(client, "page", "a"), "disabled");
  } finally {
    console.warn = silently.warn;
  }
});

test("a full disk holds up no later record, and no withdrawal", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const program = new URL("full_disk.mjs", import.meta.url).pathname;
  for (const blocks of [0, 1]) {
    const { client } = await open({ store: fileStore(path) });
    for (let i = 0; i < 5; i++) await told(client, "page", "a");
    const limited = `trap "" XFSZ; ulimit -f ${blocks}; exec "$0" "$@"`;
    const words = ["-c", limited, process.execPath, program, path];
    const { stdout } = await promisify(execFile)("sh", words);
    assert.deepEqual(JSON.parse(stdout), {
      outcome: "disabled",
      isLocked: false,
      isBeside: false,
      withdrawal: { done: true, secretGone: true, left: [] },
    });
    rmSync(path, { force: true });
  }
});

test("a device whose secret has gone, or is another one's, is damaged and makes no new one", async () => {
  const { client, store } = await open();
  await told(client, "page", "a");
  const other = { ...store.documents.identity, mark: "another one" };
  console.warn = () => {};
  try {
    for (const identity of [undefined, other]) {
      store.documents.identity = identity;
      const again = await open({ store });
      assert.equal(await told(again.client, "page", "a"), "disabled");
      assert.deepEqual(store.documents.identity, identity);
    }
  } finally {
    console.warn = silently.warn;
  }
});

test("a store of a later version is left alone", async () => {
  const { client, store } = await open();
  await told(client, "page", "a");
  store.documents.device.v += 1;
  const before = structuredClone(store.documents.device);
  console.warn = () => {};
  try {
    for (const each of [client, (await open({ store })).client]) {
      await told(each, "page", "a"); // the store says so
      assert.equal(await told(each, "page", "a"), "disabled");
    }
    assert.deepEqual(store.documents.device, before);
  } finally {
    console.warn = silently.warn;
  }
});

test("another device in its store ends the consent of a program that runs", async () => {
  const { client, store } = await open();
  await told(client, "page", "a");
  await (await open({ store })).client.withdraw();
  const { client: next } = await open({ store });
  await told(client, "page", "a"); // the store says so
  assert.equal(await told(client, "page", "a"), "no consent");
  assert.equal(await told(next, "page", "a"), "kept");
});

test("a program ends while a report waits for its time", async () => {
  const program = new URL("leaving.mjs", import.meta.url).pathname;
  const run = promisify(execFile);
  const { stdout } = await run(process.execPath, [program], { timeout: 20_000 });
  assert.equal(stdout, "1\n");
});

test("a metric that another tab refuses does not leave this one, whatever became of its store", async (t) => {
  const store = Object.assign(memoryStore(), { channel: "refused" });
  const { client, sent } = await open({ store });
  await told(client, "page", "a");
  const { client: other } = await open({ store: { ...store, update: () => Promise.reject(new Error()) } });
  t.after(() => Promise.all([client.close(), other.close()]));
  await other.optOut("page");
  await eventually(async () => (await told(client, "page", "a")) === "opted out");
  assert.equal((await client.flush()).reason, "nothing waiting");
  assert.deepEqual(sent, []);
});

test("without a page that could end no upload is made before it is sent", async (t) => {
  const { client, store } = await open({ background: true, maxDelay: 3600 });
  t.after(() => client.close());
  await told(client, "page", "a");
  assert.deepEqual(store.documents.spool.uploads, []);
});

test("an erased file ends the consent of a program that runs", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await told(client, "page", "a");
  rmSync(path);
  await told(client, "page", "a"); // the store says so
  assert.equal(await told(client, "page", "a"), "no consent");
});

test("processes that share a file lose and double nothing", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const program = new URL("recorder.mjs", import.meta.url).pathname;
  const run = promisify(execFile);
  await Promise.all([1, 2, 3].map(() => run(process.execPath, [program, path, "15"])));
  const { device, spool, identity } = JSON.parse(readFileSync(path, "utf8"));
  assert.equal(device.mark, identity.mark);
  assert.equal(device.counters.recorded, 45);
  assert.equal(spool.reports.length + spool.uploads.length, 45);
  const [{ admitted }] = device.scopes;
  assert.deepEqual(Object.values(admitted).map(Object.values), [[45]]);
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
});

test("threads that share a file lose and double nothing", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const program = new URL("recorder.mjs", import.meta.url);
  const ended = (worker) => new Promise((resolve) => worker.on("error", resolve).on("exit", resolve));
  const workers = [1, 2].map(() => new Worker(program, { argv: [path, "40"] }));
  assert.deepEqual(await Promise.all(workers.map(ended)), [0, 0]);
  assert.equal(JSON.parse(readFileSync(path, "utf8")).device.counters.recorded, 80);
});

test("a lock that a killed process has left is cleared away", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const long = Date.now() / 1000 - 11;
  const dead = `999999999 ${PLACE} x`;
  const alive = `${process.pid} ${PLACE} x`;
  const ahead = Date.now() / 1000 + 3600; // the clock was set back
  for (const [owner, since] of [[dead], [alive, long], ["", long], [alive, ahead]]) {
    writeFileSync(`${path}.lock`, owner);
    if (since) utimesSync(`${path}.lock`, since, since);
    const { client } = await open({ store: fileStore(path) });
    assert.equal(await told(client, "page", "a"), "kept");
  }
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
});

test("a lock that is not given back is waited for two seconds, not longer", async (t) => {
  const path = join(folder(t), "telemetry.json");
  writeFileSync(`${path}.lock`, `${process.pid} ${PLACE} x`);
  const began = performance.now();
  await assert.rejects(fileStore(path).update(["log"], () => {}), { name: "TimeoutError" });
  const waited = performance.now() - began;
  assert.ok(waited >= 2000 && waited < 9000, waited);
});

test("who has lost the lock changes nothing, and leaves it to its new owner", async (t) => {
  const path = join(folder(t), "telemetry.json");
  const store = fileStore(path);
  await store.update(["log"], (all) => void (all.log = []));
  const text = readFileSync(path, "utf8");
  const other = "999999999 elsewhere x";
  const lose = (all) => {
    writeFileSync(`${path}.lock`, other);
    all.log = undefined;
  };
  await assert.rejects(store.update(["log"], lose), { name: "TimeoutError" });
  assert.equal(readFileSync(path, "utf8"), text);
  assert.equal(readFileSync(`${path}.lock`, "utf8"), other);
});

test("a lock that is held is respected, also another container's", async (t) => {
  const path = join(folder(t), "telemetry.json");
  for (const owner of [`${process.pid} ${PLACE} x`, "999999999 elsewhere x"]) {
    writeFileSync(`${path}.lock`, owner);
    let isHeld = true;
    setTimeout(() => {
      isHeld = false;
      rmSync(`${path}.lock`);
    }, 200);
    const { client } = await open({ store: fileStore(path) });
    assert.ok(!isHeld);
    assert.equal(await told(client, "page", "a"), "kept");
  }
});

/** Return a registry of one metric of texts under a normalizer. */
async function hostsOf(normalize) {
  const params = { v: 1, encoding: "bloom", k: 64, h: 1, m: 1, f: 0, p: 2 ** 30, q: 2 ** 31, normalize };
  return registryOf([await metricOf("home_page", params)]);
}

test("a metric may ask for domains, and a program may bring its own function", async () => {
  const registry = await hostsOf("domain");
  for (const normalizers of [undefined, { domain: () => "example.co.uk" }]) {
    const { client, store } = await open({ registry, normalizers });
    await told(client, "home_page", "https://www.Example.co.uk/x");
    await told(client, "home_page", "example.co.uk");
    const [{ admitted }] = store.documents.device.scopes;
    assert.deepEqual(Object.values(admitted).map(Object.values), [[2]]);
  }
});
