// The device in Node: consent, withdrawal, the file, changes by other tabs, and transports that fail.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import {
  chownSync,
  copyFileSync,
  existsSync,
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
import { after, describe, mock, test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { fileStore } from "../../../client/javascript/file.js";
import { Client, MetricError, ParamsError, ReportError } from "../../../client/javascript/index.js";
import { PID_SPACE } from "../../../client/javascript/src/file_store.js";
import { queueEndedReports } from "../../../client/javascript/src/admission.js";
import { DeferredEvents } from "../../../client/javascript/src/deferred_events.js";
import { httpTransport } from "../../../client/javascript/src/http_transport.js";
import { indexedDbStore } from "../../../client/javascript/src/indexed_db_store.js";
import { createDevice } from "../../../client/javascript/src/state.js";
import { importSecret } from "../../../client/javascript/src/secret.js";
import { connectTabs } from "../../../client/javascript/src/tabs.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";
import { DURABLE, REGISTRY, metricOf, registryOf, registryOfWords } from "./registries.mjs";

const DAY = 86_400;
const NOON = Date.UTC(2026, 10, 18, 12) / 1000;
const ACCEPTED = JSON.stringify({ reports: [{ status: "accepted" }] });
const realTimeout = globalThis.setTimeout;

/**
 * Open a device at noon.
 *
 * Its transport returns or throws `results` in turn, and then accepts every report. `options` are options of
 * `Client.open`. Returns the client, its store, the bodies of its requests (`sent`), and its clock (`time.now`).
 */
async function open({ results = [], store = memoryStore(), ...options } = {}) {
  const sent = [];
  const time = { now: NOON };
  const transport = {
    send: async (body) => {
      sent.push(body);
      const result = results.shift() ?? { status: 200, body: ACCEPTED };
      if (result instanceof Error) throw result;
      return result;
    },
  };
  const client = await Client.open({
    registry: REGISTRY,
    consent: true,
    background: false,
    store,
    transport,
    clock: () => time.now,
    ...options,
  });
  return { client, store, sent, time };
}

/** Store the finished reports of a metric of the last n days. They may leave today. */
async function finishReports({ client, store, time }, n = 1, metric = "page") {
  const today = time.now;
  for (let i = n; i > 0; i--) {
    time.now = today - i * DAY;
    assert.equal(await outcomeOf(client, metric, "light"), "recorded");
  }
  time.now = today;
  const zeros = (n) => new Uint32Array(n); // no random time of the day
  await store.update(["device", "spool"], ({ device, spool }) => queueEndedReports(device, spool, today, zeros));
}

/**
 * Wait until a condition holds. The timers of a client keep no program alive, so this function has its own timer. It is
 * the timer of the system also if a test has replaced the timers.
 */
async function waitUntil(condition) {
  const end = performance.now() + 20_000;
  while (!(await condition())) {
    assert.ok(performance.now() < end, String(condition));
    await new Promise((resolve) => realTimeout(resolve, 5));
  }
}

/** Create a folder that is removed at the end of the test, and return its path. */
function makeFolder(t) {
  const path = mkdtempSync(join(tmpdir(), "rappor-"));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

test("without consent nothing is computed, stored or sent", async () => {
  const { client, store, sent } = await open({ consent: false });
  assert.equal(await outcomeOf(client, "page", "a"), "no consent");
  assert.deepEqual(store.documents, {});
  assert.equal((await client.flush()).reason, "nothing queued");
  assert.deepEqual(sent, []);
});

test("consent must be a boolean: a text such as \"no\" would read as consent", async () => {
  for (const consent of ["no", 1, null, undefined]) {
    await assert.rejects(open({ consent }), ParamsError);
  }
});

test("options outside their range raise ParamsError", async () => {
  const delays = [-1, NaN, Infinity].map((maxDelay) => ({ maxDelay }));
  const limits = [0, 1.5, NaN, "9"].map((reports) => ({ queueLimits: { reports } }));
  const caps = [{ total: -1 }, { total: NaN }, { per: "day" }].map((budgetCap) => ({ budgetCap }));
  const transports = [async () => {}, {}, "https://a.example"].map((transport) => ({ transport }));
  for (const options of [...delays, ...limits, ...caps, ...transports]) {
    await assert.rejects(open(options), ParamsError, JSON.stringify(options));
  }
  const { client } = await open();
  for (const timeout of [-1, NaN]) await assert.rejects(client.flush({ timeout }), ParamsError);
});

test("optedOut must be a list of names: a text would read as its letters", async () => {
  for (const optedOut of ["page", ""]) {
    await assert.rejects(open({ optedOut }), ParamsError);
  }
  const { client } = await open({ optedOut: new Set(["page", "of an earlier registry"]) });
  assert.equal(await outcomeOf(client, "page", "a"), "opted out");
});

test("mistakes of the program raise errors whose messages do not contain the value", async () => {
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

test("an upload contains one report, and its id and bytes stay the same over retries", async () => {
  const device = await open({ results: [new TypeError("fetch failed"), { status: 503, body: "" }] });
  const { client, sent, time } = device;
  await finishReports(device, 2);
  assert.equal((await client.flush({ timeout: 0 })).reason, "unreachable");
  assert.equal((await client.flush({ timeout: 0 })).reason, "collector error");
  assert.equal((await client.flush()).sent, 1);
  time.now += DAY; // at most one report leaves in an interval
  assert.ok((await client.flush()).done);
  const ids = sent.map((body) => JSON.parse(body).id);
  assert.equal(new Set(ids).size, 2);
  assert.equal(new Set(sent).size, 2);
  for (const body of sent) {
    const [report, ...others] = JSON.parse(body).reports;
    assert.deepEqual([Object.keys(report), others], [["metric", "params", "cohort", "bits"], []]);
  }
  const log = await client.sentUploads();
  assert.deepEqual(new Set(log.map(({ body }) => body)), new Set(sent));
});

test("an upload that no retry can save is dropped, and a Retry-After is obeyed", async () => {
  for (const status of [400, 409, 413, 415, 422]) {
    const device = await open({ results: [{ status, body: "" }] });
    await finishReports(device);
    const { reason, detail, queued } = await device.client.flush();
    assert.deepEqual([reason, detail, queued], ["refused", `status ${status}`, 0]);
  }
  for (const status of [199, 301, 401, 403, 404, 429, 500]) {
    const device = await open({ results: [{ status, body: ACCEPTED }] });
    await finishReports(device);
    assert.equal((await device.client.flush({ timeout: 0 })).queued, 1, status);
  }
  const device = await open({ results: [{ status: 429, body: "", retryAfter: 60 }] });
  await finishReports(device);
  assert.equal((await device.client.flush({ timeout: 0 })).reason, "collector error");
  const { reason, retryAt } = await device.client.flush({ timeout: 0 });
  assert.deepEqual([reason, retryAt], ["asked to wait", NOON + 60]);
  assert.equal(device.sent.length, 1);
});

test("a response of any other content is a failure and raises nothing", async () => {
  const bodies = ["", "{", "[]", "null", '{"reports":[]}', '{"reports":[{"status":"accepted"},{}]}'];
  const invalidReports = ["[{}]", "[7]", '["accepted"]', '"a"', "{}", "[[]]", "1e308", "[null]"];
  for (const body of [...bodies, ...invalidReports.map((reports) => `{"reports":${reports}}`)]) {
    const device = await open({ results: [{ status: 200, body }] });
    const { client } = device;
    await finishReports(device);
    assert.equal((await client.flush({ timeout: 0 })).reason, "collector error", body);
    assert.ok((await client.flush()).done);
  }
});

test("a transport that ignores its signal does not delay a flush", async () => {
  const device = await open({ transport: { send: () => new Promise(() => {}) } });
  const { client, store } = device;
  await finishReports(device);
  assert.equal((await client.flush({ timeout: 0.05 })).reason, "unreachable");
  assert.equal(store.documents.device.sending.failures, 0); // the collector has not failed
});

test("a transport that throws in place of returning a promise is a failure, also when the client ends", async () => {
  for (const method of ["close", "withdraw"]) {
    const send = () => {
      throw new Error("no network");
    };
    const device = await open({ transport: { send } });
    const { client } = device;
    await finishReports(device);
    assert.equal((await client.flush({ timeout: 0 })).reason, "unreachable", method);
    await client[method](); // `test` fails after a rejection without a handler
    await new Promise((resolve) => setTimeout(resolve));
  }
});

test("an upload that one program has claimed is not sent by another program", async () => {
  const store = memoryStore();
  let respondNow;
  const response = new Promise((resolve) => (respondNow = resolve));
  const transport = { send: () => response };
  const first = await open({ store, transport });
  await finishReports(first);
  const sending = first.client.flush();
  const second = await open({ store });
  assert.equal((await second.client.flush({ timeout: 0 })).reason, "busy");
  assert.deepEqual(second.sent, []);
  respondNow({ status: 200, body: ACCEPTED });
  assert.equal((await sending).reason, "sent");
});

test("a closed client sends nothing, also if it was closed during a claim", async () => {
  for (const method of ["close", "withdraw"]) {
    const store = memoryStore();
    let isSlow = false;
    const update = async (...args) => {
      const result = await store.update(...args);
      if (isSlow) await new Promise((resolve) => setTimeout(resolve, 50));
      return result;
    };
    const device = await open({ store: { ...store, update } });
    const { client, sent } = device;
    await finishReports(device);
    isSlow = true;
    const flushing = client.flush({ timeout: 1 });
    await client[method]();
    await flushing;
    assert.deepEqual(sent, [], method);
  }
});

test("a withdrawal aborts the request under way", async () => {
  let abortSignal;
  const transport = {
    send: (_, { signal }) => {
      abortSignal = signal;
      return new Promise(() => {});
    },
  };
  const device = await open({ transport });
  const { client } = device;
  await finishReports(device);
  const flushing = client.flush();
  await waitUntil(() => abortSignal);
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.ok(abortSignal.aborted);
  assert.equal((await flushing).reason, "nothing queued");
});

test("the background sender sends one report a day, also after its first step", async (t) => {
  const coins = (n) => new Uint32Array(n); // no random time of the next day
  const { client, sent, time } = await open({ background: true, maxDelay: 0, coins });
  t.after(() => client.close());
  for (const n of [0, 1, 2, 3]) {
    await outcomeOf(client, "page", "a"); // releases the report of the day before
    await waitUntil(async () => sent.length === n && !(await client.queuedCount()));
    time.now += DAY;
  }
});

test("reports of an earlier program leave at most a second apart, whatever maxDelay is", async (t) => {
  const store = memoryStore();
  const names = ["a", "b", "c"];
  const registry = await registryOfWords(names);
  const earlier = await open({ store, registry });
  for (const name of names) await finishReports(earlier, 1, name);
  const coins = (n) => new Uint32Array(n).fill(2 ** 28); // a sixteenth of a delay
  const { client, sent } = await open({ store, registry, coins, background: true, maxDelay: 3600 });
  t.after(() => client.close());
  await waitUntil(async () => (await client.sentUploads()).length === 3);
  assert.equal(sent.length, 3);
});

test("a redirection is not followed, and Retry-After may be a date", async (t) => {
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

test("the address of the endpoint is accepted as the address of the collector", async (t) => {
  const paths = [];
  const server = createServer((request, response) => {
    paths.push(request.url);
    response.end("{}");
  });
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const endings = ["", "/", "/v1/reports", "/v1/reports/", "/a/v1/reports", "/a//v1/reports"];
  for (const ending of endings) await httpTransport(url + ending).send("{}");
  assert.deepEqual(paths, [...Array(4).fill("/v1/reports"), ...Array(2).fill("/a/v1/reports")]);
});

test("a date in Retry-After is UTC in every time zone of the device, also without a zone", async (t) => {
  const date = new Date(Math.ceil(Date.now() / 1000) * 1000 + 600_000);
  const [, day, month, year, time] = /, (\d+) (\w+) (\d+) (\S+) GMT/.exec(date.toUTCString());
  const weekday = date.toUTCString().slice(0, 3);
  const asctime = `${weekday} ${month} ${String(Number(day)).padStart(2)} ${time} ${year}`;
  const forms = [date.toUTCString(), date.toUTCString().replace(" GMT", ""), asctime];
  let form = "";
  const server = createServer((_, response) => response.writeHead(503, { "Retry-After": form }).end());
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const transport = httpTransport(`http://127.0.0.1:${server.address().port}`);
  const zone = process.env.TZ;
  t.after(() => (zone === undefined ? delete process.env.TZ : (process.env.TZ = zone)));
  for (process.env.TZ of ["UTC", "Asia/Tokyo", "America/New_York"]) {
    for (form of forms) {
      const { retryAfter } = await transport.send("{}");
      assert.ok(retryAfter > 500 && retryAfter <= 602, `${form} ${process.env.TZ} ${retryAfter}`);
    }
  }
});

test("an upload that was prepared for the end of a page and never sent is not in the log", async (t) => {
  const store = Object.assign(memoryStore(), { channel: "at hand" });
  const device = await open({ store, background: true, maxDelay: 3600 });
  const { client } = device;
  t.after(() => client.close());
  await finishReports(device);
  await outcomeOf(client, "page", "a"); // a change of the store prepares the upload for the end of the page
  assert.equal(store.documents.spool.uploads.length, 1);
  assert.deepEqual(await client.sentUploads(), []);
  await client.optOut("page");
  assert.deepEqual([await client.sentUploads(), await client.queuedCount()], [[], 0]);
});

test("a response without an end is read up to a megabyte", async (t) => {
  const server = createServer((_, response) => {
    const writeOn = () => {
      while (response.write("x".repeat(100_000)));
      response.once("drain", writeOn);
    };
    writeOn();
  });
  t.after(() => server.closeAllConnections() ?? server.close());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const transport = httpTransport(`http://127.0.0.1:${server.address().port}`);
  const { status, body } = await transport.send("{}", { signal: AbortSignal.timeout(60_000) });
  assert.equal(status, 200);
  assert.ok(body.length >= 1_000_000 && body.length < 2_000_000);
});

test("the log contains sent uploads, and no report that never left", async (t) => {
  for (const store of [memoryStore(), fileStore(join(makeFolder(t), "telemetry.json"))]) {
    const device = await open({ store, background: true, maxDelay: 3600 });
    const { client } = device;
    await finishReports(device);
    await client.flush();
    await outcomeOf(client, "page", "a");
    await client.optOut("page");
    assert.deepEqual((await client.sentUploads()).map(({ status }) => status), ["accepted"]);
    await client.close();
  }
});

test("pages that end before their reports are sent leave at most 20 uploads", async () => {
  const store = memoryStore();
  const names = Array.from({ length: 50 }, (_, i) => `m${i}`);
  const registry = await registryOfWords(names);
  for (let i = 0; i < 25; i++) {
    const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
    const page = { store: Object.assign(store, { channel: "pages" }), background: true };
    const device = await open({ ...page, registry, transport, maxDelay: 0 });
    for (const name of names.slice(2 * i, 2 * i + 2)) await finishReports(device, 1, name);
    await outcomeOf(device.client, names[2 * i], "a"); // prepares the upload for the end of the page
    await device.client.close();
  }
  assert.equal(store.documents.spool.uploads.length, 20);
  assert.equal(store.documents.spool.reports.length, 30);
});

test("invalid stops are ignored and not stored", async () => {
  const nested = `${"[".repeat(50_000)}${"]".repeat(50_000)}`;
  const invalidDays = ['{"toString":1}', '["2026-11-20"]', nested, "1e308", '"2026-13-01"', "null"];
  const invalidStops = ["[]", '"page"', "7", `{"${"x".repeat(65)}":"2026-11-20","__proto__":"2026-11-20"}`];
  const tooMany = ["page", ...Array.from({ length: 1000 }, (_, i) => `other.${i}`)];
  invalidStops.push(JSON.stringify(Object.fromEntries(tooMany.map((name) => [name, "2026-11-20"]))));
  for (const stop of [...invalidDays.map((day) => `{"page":${day}}`), ...invalidStops]) {
    const body = `{"reports":[{"status":"accepted"}],"stop":${stop}}`;
    const device = await open({ results: [{ status: 200, body }] });
    const { client, store } = device;
    await finishReports(device);
    assert.equal((await client.flush()).reason, "sent", stop.slice(0, 40));
    assert.deepEqual(store.documents.device.stopped, {}, stop.slice(0, 40));
    assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  }
});

test("a value of the wrong kind raises also while its metric is skipped for lack of budget", async (t) => {
  t.mock.method(console, "warn", () => {});
  const { client } = await open({ budgetCap: { total: 0 } });
  assert.equal(await outcomeOf(client, "page", "a"), "budget");
  assert.throws(() => client.record("page", 7), ReportError);
});

test("a withdrawal during the first report leaves no identity", async (t) => {
  let isBlocked = true;
  const memory = memoryStore();
  const { update } = memory;
  const store = Object.assign(memory, {
    update: (...args) =>
      isBlocked ? Promise.reject(new DOMException("no", "UnknownError")) : update(...args),
  });
  t.mock.method(console, "warn", () => {});
  const { client } = await open({ store });
  isBlocked = false;
  assert.equal(client.record("page", "a").reason, "disabled"); // and the client opens the store again
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.equal(client.record("page", "a").reason, "no consent");
  assert.deepEqual(memory.documents, {});
});

test("a recorded report is pending, then queued, then sent, and counted in one place at a time", async () => {
  const { client, time } = await open();
  const countPlaces = async () => [
    await client.pendingCount(),
    await client.queuedCount(),
    (await client.sentUploads()).length,
  ];
  assert.deepEqual(await countPlaces(), [0, 0, 0]);
  await outcomeOf(client, "page", "a");
  await outcomeOf(client, "page", "b"); // an event of the same day: one of both is reported
  assert.deepEqual(await countPlaces(), [1, 0, 0]);
  time.now += DAY;
  assert.deepEqual(await countPlaces(), [1, 0, 0]); // the day is over, but nothing has queued its report yet
  await outcomeOf(client, "page", "a"); // the first event of the next day queues the report of the day before
  assert.deepEqual(await countPlaces(), [1, 1, 0]);
  await client.flush();
  assert.deepEqual(await countPlaces(), [1, 0, 1]);
  await client.optOut("page");
  assert.equal(await client.pendingCount(), 0);
});

test("beyond the limit the spool drops the oldest reports", async () => {
  const device = await open({ queueLimits: { reports: 3, log: 2 } });
  const { client, time } = device;
  await finishReports(device, 5);
  await outcomeOf(client, "page", "a");
  assert.equal(await client.queuedCount(), 3);
  assert.equal((await client.eventCounts()).dropped_full, 2);
  for (let i = 0; i < 3; i++) {
    assert.equal((await client.flush()).sent, 1);
    time.now += DAY;
  }
  assert.equal((await client.sentUploads()).length, 2);
});

test("the limit in bytes counts 128 bytes for each report beside its bits", async () => {
  const first = await open();
  await finishReports(first);
  const [{ bits }] = first.store.documents.spool.reports;
  const device = await open({ queueLimits: { bytes: 2 * (128 + bits.length) } });
  await finishReports(device, 3);
  await outcomeOf(device.client, "page", "a");
  assert.equal(await device.client.queuedCount(), 2);
  assert.equal((await device.client.eventCounts()).dropped_full, 1);
});

test("an upload is given up a week after its first attempt, however many attempts follow", async () => {
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const device = await open({ transport });
  const { client, time } = device;
  await finishReports(device);
  for (const days of [0, 3, 6, 6.9]) {
    time.now = NOON + days * DAY;
    assert.equal((await client.flush({ timeout: 0 })).queued, 1, days);
  }
  time.now = NOON + 7.1 * DAY;
  assert.equal((await client.flush({ timeout: 0 })).queued, 0);
  assert.equal((await client.eventCounts()).given_up, 1);
  assert.deepEqual((await client.sentUploads()).map(({ status }) => status), ["given_up"]);
});

test("Retry-After is limited to 23 hours, and a negative or wrong value means no wait", async () => {
  for (const [retryAfter, seconds] of [[1e9, 23 * 3600], [-1000, 0], [NaN, 0], ["soon", 0], [{}, 0]]) {
    const device = await open({ results: [{ status: 503, body: "", retryAfter }] });
    const { client } = device;
    await finishReports(device);
    assert.equal((await client.flush({ timeout: 0 })).retryAt, NOON + seconds);
  }
});

test("an upload is not given up when the clock jumps from 1970 to the present", async () => {
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const device = await open({ transport });
  const { client, time } = device;
  time.now = 10 * DAY;
  await finishReports(device);
  for (let i = 0; i < 3; i++) assert.equal((await client.flush({ timeout: 0 })).queued, 1);
});

test("a report that was recorded while the clock was a year ahead waits a week at most", async () => {
  let now = NOON + 366 * DAY;
  const results = [{ status: 503, body: "", retryAfter: 60 }];
  const { client, store } = await open({ results, clock: () => now });
  for (const metric of ["page", "theme"]) await outcomeOf(client, metric, "light");
  now += DAY;
  await outcomeOf(client, "theme", "light"); // finishes the report of the day before
  now = NOON;
  await client.flush({ timeout: 0 });
  const [{ sendAfter }] = store.documents.spool.reports;
  assert.ok(sendAfter <= NOON + 7 * DAY, sendAfter);
});

test("the system's clock is the default", async () => {
  const { client, store } = await open({ clock: undefined });
  const today = () => Math.floor(Date.now() / 1000 / DAY);
  const days = [today()];
  await outcomeOf(client, "page", "a");
  days.push(today());
  const [{ ends }] = Object.values(store.documents.device.pending);
  assert.ok(days.includes(ends / DAY - 1));
});

test("a wait that was stored while the clock was ten days ahead is ignored", async () => {
  const results = [{ status: 503, body: "", retryAfter: 60 }];
  const device = await open({ results });
  const { client, time } = device;
  time.now = NOON + 10 * DAY;
  await finishReports(device);
  assert.equal((await client.flush({ timeout: 0 })).reason, "collector error");
  time.now = NOON;
  assert.equal((await client.flush({ timeout: 0 })).reason, "sent");
});

test("failed attempts become rarer, down to one in an hour", async () => {
  const transport = { send: () => Promise.reject(new TypeError("fetch failed")) };
  const coins = (n) => new Uint32Array(n).fill(2 ** 32 - 1);
  const device = await open({ transport, coins });
  const { client, time } = device;
  await finishReports(device);
  const pauses = [];
  for (let i = 0; i < 16; i++) {
    const { retryAt } = await client.flush({ timeout: 0 });
    pauses.push(Math.round(retryAt - time.now));
    time.now = retryAt + 1;
  }
  assert.deepEqual(pauses, [...pauses].sort((a, b) => a - b));
  assert.deepEqual([pauses[0], pauses[15]], [5, 3600]);
});

test("a flush sleeps until the wait of Retry-After is over", async () => {
  const began = performance.now();
  const clock = () => NOON + (performance.now() - began) / 1000;
  const coins = (n) => new Uint32Array(n);
  const store = memoryStore();
  await finishReports(await open({ store }));
  let n = 0;
  const update = (...args) => {
    n += 1;
    assert.ok(n < 20, "the flush does not sleep");
    return store.update(...args);
  };
  const results = [{ status: 503, body: "", retryAfter: 0.3 }];
  const { client, sent } = await open({ results, store: { ...store, update }, coins, clock });
  assert.equal((await client.flush()).reason, "sent");
  assert.ok(clock() >= NOON + 0.3);
  assert.equal(sent.length, 2);
});

test("a flush without a timeout sleeps, however long a stop lasts", async () => {
  const program = new URL("endless_flush.mjs", import.meta.url).pathname;
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program]);
  assert.deepEqual([stdout, stderr], ["1\n", ""]);
});

test("of two failed uploads the one whose backoff ends first is sent first", async () => {
  const singleCoins = [0, 2 ** 32 - 1, 0, 2 ** 31, 0]; // part and wait of the first, of the second, of all
  const coins = (n) => (n === 1 ? [singleCoins.shift()] : new Uint32Array(n));
  const results = [1, 2].map(() => ({ status: 503, body: "" }));
  const store = memoryStore();
  const earlier = await open({ store });
  for (const name of ["page", "theme"]) await finishReports(earlier, 1, name);
  const { client, sent } = await open({ store, results, coins });
  const { queued, retryAt } = await client.flush({ timeout: 1 });
  assert.deepEqual([sent.length, queued, retryAt], [2, 2, NOON + 5]);
});

test("the reason of a refusal is not stored unless it is a word of a collector", async () => {
  for (const [reason, stored] of [["unknown-params", "unknown-params"], ["<b>", "no reason given"]]) {
    const body = JSON.stringify({ reports: [{ status: "refused", reason }] });
    const device = await open({ results: [{ status: 200, body }] });
    const { client } = device;
    await finishReports(device);
    assert.equal((await client.flush()).detail, `refused: ${stored}`);
    assert.deepEqual(await client.eventCounts(), { recorded: 1, refused: 1 }); // one for all reasons
  }
});

test("a withdrawal keeps the reserved nats although no report was sent", async () => {
  const { client, store } = await open();
  assert.equal(await outcomeOf(client, "theme", "light"), "recorded");
  const { reserved } = await client.privacySpent();
  await client.withdraw();
  const next = await open({ store });
  assert.deepEqual((await next.client.privacySpent()).reserved, reserved);
});

test("a withdrawal of a client that has recorded nothing leaves no file", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const { client: unused } = await open({ store: fileStore(path) });
  assert.deepEqual(await unused.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(readdirSync(join(path, "..")), []);
});

test("optOut drops the failed upload, the finished report and the pending report of a metric", async () => {
  const device = await open({ results: [{ status: 503, body: "" }] });
  const { client, store, time } = device;
  await finishReports(device, 2);
  await outcomeOf(client, "page", "a");
  await client.flush({ timeout: 0 });
  const { spool } = store.documents;
  assert.deepEqual([spool.uploads.length, spool.reports.length], [1, 1]);
  await client.optOut("page");
  time.now += DAY;
  assert.deepEqual([await client.queuedCount(), (await client.flush()).reason], [0, "nothing queued"]);
  assert.equal((await client.eventCounts()).recorded, 2);
});

test("a metric that the registry does not contain any more sends one report a week", async () => {
  const device = await open();
  await finishReports(device, 3);
  await device.client.close();
  const remaining = REGISTRY.metrics.filter(({ name }) => name !== "page");
  const { client } = await open({ store: device.store, registry: await registryOf(remaining) });
  assert.equal((await client.flush({ timeout: 1 })).sent, 1);
  assert.equal(await client.queuedCount(), 2);
});

test("after a withdrawal and a new consent the metric reserves its cost once more", async () => {
  const device = await open();
  const { client, store } = device;
  await finishReports(device);
  const before = await client.privacySpent();
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(Object.keys(store.documents).filter((key) => store.documents[key]), ["device"]);
  assert.ok(!JSON.stringify(store.documents).includes("page"));
  assert.equal(await outcomeOf(client, "page", "a"), "no consent");
  const again = await open({ store });
  assert.equal(await outcomeOf(again.client, "page", "a"), "recorded");
  assert.ok(before.nats > 0);
  const after = await again.client.privacySpent();
  assert.equal(after.nats, 0); // no report has left the new device
  assert.equal(after.reserved[2026], 2 * before.reserved[2026]);
});

test("a registry that was changed by hand is refused", async () => {
  const metrics = REGISTRY.metrics.map((metric) => ({ ...metric, sampling_rate: 1 }));
  await assert.rejects(open({ registry: { ...REGISTRY, metrics } }), MetricError);
});

test("addresses that are not https are refused", () => {
  for (const url of [
    ...["http://example.org", "ftp://x", "https://u@x", "https://:p@x", "https://x?y", "https://x#y"],
    ...["https://", "https://x:99999", "x.example.org", "nonsense", "", 5],
  ]) {
    assert.throws(() => httpTransport(url), ParamsError, url);
  }
  for (const url of ["https://x/", "http://localhost:1", "http://127.0.0.1/a"]) httpTransport(url);
});

test("the error of an upload key that no header can contain does not contain the key", () => {
  for (const key of ["hidden\nkey", "hidden \u0100", "hidden key"]) {
    assert.throws(() => httpTransport("https://a.example", key), (error) => {
      assert.ok(error instanceof ParamsError);
      assert.ok(!String(error.stack).includes("hidden"));
      return true;
    });
  }
});

test("a store that cannot be read any more is not taken for an empty one", async (t) => {
  t.mock.method(console, "warn", () => {});
  const fail = () => Promise.reject(new DOMException("damaged", "DataError"));
  for (const transport of [{ send: async () => ({ status: 200, body: ACCEPTED }) }, undefined]) {
    const device = await open({ transport });
    const { client, store } = device;
    await finishReports(device);
    const { nats } = await client.privacySpent();
    assert.ok(nats > 0 && nats < Infinity, nats);
    Object.assign(store, { read: fail, update: fail });
    const { done, reason } = await client.flush({ timeout: 1 });
    assert.deepEqual([done, reason], [false, "failed"]);
    assert.equal((await client.privacySpent()).nats, Infinity);
    assert.equal(await client.queuedCount(), 0);
  }
});

test("a flush that cannot queue the report of an ended interval has failed", async (t) => {
  t.mock.method(console, "warn", () => {});
  const { client, store, time } = await open();
  await outcomeOf(client, "page", "light");
  time.now += DAY;
  store.update = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  const { done, reason } = await client.flush({ timeout: 1 });
  assert.deepEqual([done, reason], [false, "failed"]);
});

test("a flush whose store fails after its first upload has the number of sent reports", async (t) => {
  t.mock.method(console, "warn", () => {});
  const device = await open();
  const { client, store } = device;
  for (const name of ["page", "theme"]) await finishReports(device, 1, name);
  const fail = () => Promise.reject(new DOMException("damaged", "DataError"));
  const { update } = store;
  let n = 0; // changes of the flush: the first claim, then the first result with the second claim
  store.update = async (...args) => {
    const result = await update(...args);
    n += 1;
    if (n === 2) Object.assign(store, { read: fail, update: fail });
    return result;
  };
  const { done, reason, sent, queued } = await client.flush({ timeout: 60 });
  assert.deepEqual([done, reason, sent, queued], [false, "failed", 1, 1]);
});

test("a store that fails disables the client, raises nothing and is logged once", async (t) => {
  const lines = [];
  t.mock.method(console, "warn", (text) => lines.push(text));
  const fail = async () => {
    throw new DOMException("no", "SecurityError");
  };
  const store = { ...memoryStore(), read: fail, update: fail, clear: fail };
  const { client } = await open({ store });
  assert.equal(client.record("page", "hidden").reason, "disabled");
  assert.ok((await client.eventCounts()).failures > 1);
  assert.equal(client.disabledReason, "it cannot be opened: SecurityError");
  assert.deepEqual(lines, [`rappor: telemetry is disabled: ${client.disabledReason}`]);
  assert.equal((await client.withdraw()).done, false);
});

/**
 * Return a store with a page storage, as in a browser.
 *
 * `changes.n` is the number of changes of the store. `pages` contains the texts of the page storage, which is
 * synchronous, by key.
 */
function countingStore() {
  const store = memoryStore();
  const { update } = store;
  const changes = { n: 0 };
  store.update = async (...args) => {
    const result = await update(...args);
    changes.n += 1;
    return result;
  };
  const pages = new Map();
  const pageStorage = {
    get length() {
      return pages.size;
    },
    key: (i) => [...pages.keys()][i] ?? null,
    getItem: (key) => pages.get(key) ?? null,
    setItem: (key, value) => pages.set(key, value),
    removeItem: (key) => pages.delete(key),
  };
  return { store: Object.assign(store, { pageStorage, channel: undefined }), changes, pages };
}

test("the first event of an interval changes the store, and further events do not", async () => {
  let now = NOON;
  const { store, changes } = countingStore();
  const { client } = await open({ store, clock: () => now });
  for (const days of [0, 1]) {
    now = NOON + days * DAY;
    await outcomeOf(client, "theme", "light");
    const n = changes.n;
    if (!days) continue; // before the first report the scope is not memoized, and a later tag may be smaller
    for (let i = 0; i < 2000; i++) assert.equal(client.record("theme", "dark").outcome, "recorded");
    await client.queuedCount();
    assert.equal(changes.n, n);
  }
  now = NOON + 2 * DAY;
  await outcomeOf(client, "theme", "light");
  assert.equal((await client.eventCounts()).recorded, 2);
});

test("1,000 values wait in memory while the store does not respond", async () => {
  const { store } = countingStore();
  const { client } = await open({ store });
  const { update } = store;
  let respond;
  const response = new Promise((resolve) => (respond = resolve));
  store.update = async (...args) => (await response, update(...args));
  const outcomes = Array.from({ length: 1100 }, () => client.record("page", "a").outcome);
  assert.equal(outcomes.filter((outcome) => outcome === "recorded").length, 1000);
  assert.ok(outcomes.slice(1000).every((outcome) => outcome === "failed"));
  respond();
  await waitUntil(async () => {
    await client.queuedCount(); // on a busy machine it returns after two seconds, before all events are stored
    return Object.values(store.documents.device.storedEvents)[0] === 999;
  });
  assert.equal(client.record("theme", "light").outcome, "recorded");
  await client.queuedCount();
  assert.equal((await client.eventCounts()).dropped_full, 100);
});

test("a flush changes the store once for each upload", async () => {
  const { store, changes } = countingStore();
  const names = Array.from({ length: 20 }, (_, i) => `m${i}`);
  const device = await open({ store, registry: await registryOfWords(names) });
  for (const name of names) await finishReports(device, 1, name);
  const n = changes.n;
  assert.equal((await device.client.flush({ timeout: 60 })).sent, 20);
  assert.deepEqual([device.sent.length, changes.n], [20, n + 21]);
});

test("an opting out during a flush takes back the reports that the flush has not sent", async () => {
  const bodies = [];
  let respondNow;
  const response = new Promise((resolve) => (respondNow = resolve));
  const device = await open({ transport: { send: (body) => (bodies.push(body), response) } });
  const { client } = device;
  for (const name of ["page", "theme"]) await finishReports(device, 1, name);
  const flushing = client.flush({ timeout: 60 });
  await waitUntil(() => bodies.length);
  await client.optOut("theme");
  respondNow({ status: 200, body: ACCEPTED });
  await flushing;
  assert.equal(bodies.length, 1);
  assert.equal(await client.queuedCount(), 0);
});

test("an upload whose metric is refused during its claim does not leave", async () => {
  // The flush claims its first upload in a transaction of its own, and the second one with the first result.
  for (const nBefore of [1, 2]) {
    const device = await open();
    const { client, store, sent } = device;
    for (const name of ["page", "theme"]) await finishReports(device, 1, name);
    const { update } = store;
    const refusals = [];
    let n = 0;
    store.update = async (...args) => {
      const result = await update(...args);
      n += 1;
      // The person refuses both metrics after the work of the transaction, and before its end.
      if (n === nBefore) refusals.push(client.optOut("page"), client.optOut("theme"));
      return result;
    };
    assert.ok((await client.flush({ timeout: 60 })).done);
    await Promise.all(refusals);
    assert.equal(sent.length, nBefore - 1);
    assert.equal(await client.queuedCount(), 0);
  }
});

test("an event that waits for the store while its metric is refused does not become a report", async () => {
  const device = await open();
  const { client, store } = device;
  await finishReports(device); // so that the next event needs no permanent response, and no second transaction
  const { update } = store;
  let goOn;
  const lock = new Promise((resolve) => (goOn = resolve));
  let isWaiting = false;
  store.update = async (...args) => {
    store.update = update; // the transactions that follow overtake this one, as with the lock of a file
    isWaiting = true;
    await lock;
    return update(...args);
  };
  client.record("page", "dark");
  await waitUntil(() => isWaiting);
  await client.optOut("page");
  goOn();
  assert.equal(await client.pendingCount(), 0);
});

test("values that are recorded in one task are one change of the store", async () => {
  const { store, changes } = countingStore();
  const { client } = await open({ store, coins: (n) => new Uint32Array(n) }); // equal tags: the first event stays
  const n = changes.n;
  for (let i = 0; i < 50; i++) client.record("page", "a");
  await client.queuedCount();
  assert.deepEqual(Object.values(store.documents.device.storedEvents), [49]);
  assert.ok(changes.n <= n + 2, String(changes.n - n)); // the first value needs its response
});

/** Give Node the events of a page; return functions that hide and end the page. */
function simulatePage(t) {
  const listeners = [];
  const target = {
    addEventListener: (name, call) => listeners.push([name, call]),
    removeEventListener: () => {},
  };
  const fire = (event) => {
    for (const [name, call] of listeners) if (name === event) call();
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

test("a page that ends defers its events, enciphered, to the next page", async (t) => {
  const page = simulatePage(t);
  const { store, pages } = countingStore();
  const first = await open({ store });
  const { update } = store;
  store.update = () => new Promise(() => {}); // the page ends before the store has responded
  for (const value of ["hidden", "hidden", "another"]) first.client.record("page", value);
  page.end();
  page.end(); // no event is deferred twice
  assert.equal(pages.size, 1);
  const [text] = pages.values();
  assert.equal(text.length, Math.ceil((4096 * 4) / 3)); // whatever the number of events
  assert.ok(!Buffer.from(text, "base64url").includes("hidden"));
  store.update = update;
  const { client } = await open({ store });
  await client.queuedCount();
  assert.deepEqual(Object.values(store.documents.device.storedEvents), [2]);
  assert.equal(pages.size, 0);
});

test("an event that is deferred while it is stored counts once", async (t) => {
  const page = simulatePage(t);
  const { store, pages } = countingStore();
  const { client } = await open({ store });
  client.record("page", "a");
  page.end(); // the page comes back, or its last change is stored all the same
  const deferred = new Map(pages);
  assert.equal(deferred.size, 1);
  await client.queuedCount();
  assert.equal(pages.size, 0);
  for (const [key, text] of deferred) pages.set(key, text); // as if the page had ended before it removed the text
  const { pending } = structuredClone(store.documents.device);
  const { client: next } = await open({ store });
  await next.queuedCount();
  assert.equal(pages.size, 0);
  assert.deepEqual(store.documents.device.pending, pending);
  assert.deepEqual(Object.values(store.documents.device.storedEvents), [0]);
});

test("a withdrawal removes deferred events, and deferred events of an earlier device are removed unread", async (t) => {
  const page = simulatePage(t);
  const { store, pages } = countingStore();
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
  assert.equal(await next.queuedCount(), 0);
  assert.deepEqual([...pages.keys()], ["another program's"]);
});

/** Return the view that a page has of a store: after the end of the page its calls change nothing. */
function storeOfPage(store) {
  const pageState = { hasEnded: false };
  const never = new Promise(() => {});
  const update = (...args) => (pageState.hasEnded ? never : store.update(...args));
  return { pageState, store: { ...store, pageStorage: store.pageStorage, update } };
}

test("events of a hidden page and of an ending page are deferred, in either order", async (t) => {
  for (const order of [["hide", "end"], ["end", "hide"]]) {
    const page = simulatePage(t);
    const { store } = countingStore();
    const { pageState, store: pageStore } = storeOfPage(store);
    const first = await open({ store: pageStore });
    for (const name of ["visibilitychange", "pagehide"]) {
      globalThis.addEventListener(name, () => first.client.record("page", name));
    }
    pageState.hasEnded = true;
    first.client.record("page", "a click");
    for (const action of order) page[action]();
    const { client } = await open({ store });
    await client.queuedCount();
    assert.deepEqual(Object.values(store.documents.device.storedEvents), [2], order);
  }
});

test("a deferred text is removed when its values are stored, or when their metric is opted out", async (t) => {
  for (const isOptedOut of [false, true]) {
    const page = simulatePage(t);
    const { store, pages } = countingStore();
    const { pageState, store: pageStore } = storeOfPage(store);
    const first = await open({ store: pageStore });
    pageState.hasEnded = true;
    const names = isOptedOut ? ["page"] : ["page", "theme"];
    for (const name of names) first.client.record(name, "light");
    page.end();
    assert.equal(pages.size, 1);
    if (isOptedOut) {
      first.client.optOut("page");
    } else {
      const { client } = await open({ store, optedOut: ["theme"] });
      await client.queuedCount();
      const pending = Object.values(store.documents.device.pending);
      assert.deepEqual(pending.map(({ metric }) => metric), ["page"]);
    }
    assert.equal(pages.size, 0);
  }
});

test("a device does not remove deferred events of another device, whatever its name is", async (t) => {
  const page = simulatePage(t);
  const { store, pages } = countingStore();
  const other = { ...store, channel: "app beta", update: store.update };
  const { client } = await open({ store: other });
  other.update = () => new Promise(() => {});
  client.record("page", "a");
  page.end();
  for (const consent of [true, false]) {
    const channel = { pageStorage: store.pageStorage, channel: "app" };
    const device = await open({ store: { ...memoryStore(), ...channel }, consent });
    await device.client.close();
    assert.equal(pages.size, 1);
  }
  other.update = store.update;
  await client.withdraw();
  await client.close();
  assert.equal(pages.size, 0);
});

test("deferring a thousand values encodes those that fit, and no later event overtakes a long one", async () => {
  const { store, pages } = countingStore();
  const secret = await importSecret(new Uint8Array(32));
  const deferred = new DeferredEvents(store);
  await deferred.prepare(secret);
  let n = 0;
  const events = Array.from({ length: 1000 }, (_, seq) => ({
    toJSON: () => ((n += 1), { seq, input: seq === 9 ? "x".repeat(5000) : "x".repeat(90) }),
  }));
  assert.ok(deferred.defer(events));
  assert.ok(n < 100, n);
  assert.equal(pages.size, 1);
  const read = await new DeferredEvents(store).read(secret);
  assert.deepEqual(read.map(({ seq }) => seq), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
});

/** Return a store of which one call of a method never returns. The call makes its change only if `isDone`. */
function storeThatHangsOnce(method, isDone) {
  const store = memoryStore();
  const storeState = { isHanging: false };
  const call = store[method];
  store[method] = async (...args) => {
    const { isHanging } = storeState;
    storeState.isHanging = false;
    const result = isHanging && !isDone ? undefined : await call(...args);
    return isHanging ? new Promise(() => {}) : result;
  };
  return { store, storeState };
}

test("a database that does not open in time is opened again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let n = 0;
  globalThis.indexedDB = { open: () => ((n += 1), {}) };
  t.after(() => delete globalThis.indexedDB);
  const store = indexedDbStore("silent");
  for (let i = 0; i < 2; i++) {
    store.read(["device"]);
    assert.equal(n, 1);
  }
  t.mock.timers.tick(2000);
  for (let i = 0; i < 20; i++) await Promise.resolve();
  store.read(["device"]);
  assert.equal(n, 2);
});

/**
 * Replace IndexedDB by a database whose opening ends with a function, and return its store.
 *
 * `end` gets the request to open the database, in the form that indexed_db_store.js uses.
 */
function storeOfDatabase(t, end) {
  const openDatabase = () => {
    const request = { transaction: { abort: () => request.onerror() } };
    queueMicrotask(() => end(request));
    return request;
  };
  globalThis.indexedDB = { open: openDatabase };
  t.after(() => delete globalThis.indexedDB);
  return indexedDbStore("x");
}

test("a read of a database that does not exist finds no document", async (t) => {
  const store = storeOfDatabase(t, (request) => {
    request.error = new DOMException("", "AbortError");
    request.onupgradeneeded();
  });
  assert.deepEqual(await store.read(["identity"]), {});
});

test("a read that the browser aborts has failed, and a withdrawal does not take it for an empty store", async (t) => {
  const error = new DOMException("", "AbortError");
  const transaction = () => {
    const aborted = { error, commit: () => {}, abort: () => {}, objectStore: () => ({ get: failingRequest }) };
    return aborted;
  };
  const failingRequest = () => {
    const request = { error };
    queueMicrotask(() => request.onerror());
    return request;
  };
  const store = storeOfDatabase(t, (request) => {
    request.result = { transaction, close: () => {} };
    request.onsuccess();
  });
  await assert.rejects(store.read(["identity"]), { name: "AbortError" });
  globalThis.indexedDB.deleteDatabase = failingRequest;
  const { client } = await open({ store, consent: false });
  t.after(() => client.close());
  const { done, secretGone } = await client.withdraw();
  assert.deepEqual([done, secretGone], [false, false]);
});

test("an action waits for other tabs, and is run once more if it fails", async (t) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  t.after(() => {
    delete globalThis.navigator;
    if (before) Object.defineProperty(globalThis, "navigator", before);
  });
  const run = async (request, failures = 0) => {
    Object.defineProperty(globalThis, "navigator", { value: { locks: { request } }, configurable: true });
    const tabs = connectTabs("x", () => {});
    let n = 0;
    const action = async () => {
      n += 1;
      if (n <= failures) throw new Error();
    };
    const result = await tabs.afterOthers(action).finally(tabs.close);
    return [result, n];
  };
  const grant = async (name, options, work) => work({});
  const refuse = () => Promise.reject(new DOMException("", "AbortError")); // another tab holds the lock for too long
  assert.deepEqual(await run(grant), [true, 1]);
  assert.deepEqual(await run(grant, 1), [true, 2]); // no other tab sends, although the first run has failed
  assert.deepEqual(await run(refuse), [false, 1]);
  await assert.rejects(run(grant, 2));
});

test("a wrong option leaves no channel open", async (t) => {
  let n = 0;
  const { BroadcastChannel } = globalThis;
  t.after(() => (globalThis.BroadcastChannel = BroadcastChannel));
  globalThis.BroadcastChannel = class {
    constructor() {
      n += 1;
    }
    close() {
      n -= 1;
    }
  };
  await assert.rejects(open({ store: { ...memoryStore(), channel: "x" }, maxDelay: -1 }), ParamsError);
  assert.equal(n, 0);
});

/** Wait 20 ms for asynchronous work. The function has the timer of the system also if a test has replaced it. */
const waitForWork = () => new Promise((resolve) => realTimeout(resolve, 20));

test("a store that fails is tried again every ten seconds, until the client is closed", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const store = memoryStore();
  const { update } = store;
  const { client } = await open({ store });
  let n = 0;
  store.update = async () => {
    n += 1;
    throw new DOMException("full", "QuotaExceededError");
  };
  // The preparation of an event computes in threads (WebCrypto), for any time on a busy machine. So each second lasts
  // until the attempts that are due have come, and at least 20 ms, in which an attempt too many would come.
  let second = 0;
  const passSecond = async (expected) => {
    second += 1;
    t.mock.timers.tick(1000);
    await waitForWork();
    await waitUntil(() => n >= expected);
    assert.equal(n, expected, `second ${second}`);
  };
  t.mock.method(console, "warn", () => {});
  for (let i = 1; i <= 3; i++) {
    client.record("page", "a"); // begins an attempt, soon after the second has passed
    await passSecond(i);
  }
  // The third attempt began at second 3, so others begin at the seconds 13, 23 and 33.
  while (second < 33) await passSecond(3 + Math.floor((second - 2) / 10));
  await client.close();
  for (let i = 0; i < 30; i++) await passSecond(7); // `close` has tried once more
  store.update = update;
  await client.queuedCount();
  assert.deepEqual(Object.values(store.documents.device.storedEvents), [2]);
});

test("close waits two seconds for a store that does not respond", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const store = memoryStore();
  const { client } = await open({ store });
  Object.assign(store, { update: () => new Promise(() => {}), close: () => new Promise(() => {}) });
  client.record("page", "a");
  let isClosed = false;
  t.mock.method(console, "warn", () => {});
  client.close().then(() => (isClosed = true));
  await waitForWork();
  assert.ok(!isClosed);
  t.mock.timers.tick(2000);
  await waitUntil(() => isClosed);
});

test("a flush that cannot store a value has failed, whatever the collector", async (t) => {
  const { store } = countingStore();
  const { update } = store;
  const { client } = await open({ store });
  store.update = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  t.mock.method(console, "warn", () => {});
  client.record("page", "a");
  const { done, reason, queued } = await client.flush({ timeout: 1 });
  assert.deepEqual([done, reason, queued], [false, "failed", 1]);
  store.update = update;
  assert.ok((await client.flush()).done);
  assert.deepEqual(Object.values(store.documents.device.storedEvents), [0]);
});

/** Return a store whose calls wait until `respond` is called. */
function waitingStore() {
  const store = memoryStore();
  let respond;
  const response = new Promise((resolve) => (respond = resolve));
  const wait = (call) => async (...args) => (await response, call(...args));
  const [read, update, clear] = [store.read, store.update, store.clear].map(wait);
  return { store: Object.assign(store, { read, update, clear }), respond };
}

// These tests wait for seconds, so they run at the same time.
describe("calls of a store that does not respond", { concurrency: true }, () => {
  const warnings = mock.method(console, "warn", () => {});
  after(() => warnings.mock.restore());

  test("a change waits two seconds for a lock", async (t) => {
    const path = join(makeFolder(t), "telemetry.json");
    writeFileSync(`${path}.lock`, `${process.pid} ${PID_SPACE} x`);
    const start = performance.now();
    await assert.rejects(fileStore(path).update(["log"], () => {}), { name: "TimeoutError" });
    const duration = performance.now() - start;
    assert.ok(duration >= 2000 && duration < 9000, duration);
  });

  test("a call of the store that never ends is repeated, and each value is stored once", async () => {
    const checkOpening = async () => {
      const { store, storeState } = storeThatHangsOnce("update", false);
      storeState.isHanging = true;
      const { client } = await open({ store });
      assert.equal(client.disabledReason, "it cannot be opened: TimeoutError");
      assert.ok((await client.flush({ timeout: 1 })).done);
      assert.equal(await outcomeOf(client, "page", "a"), "recorded");
    };
    const checkCommit = async (isDone) => {
      const { store, storeState } = storeThatHangsOnce("update", isDone);
      const names = ["a", "b", "c"];
      const { client } = await open({ store, registry: await registryOfWords(names) });
      await outcomeOf(client, "a", "x"); // so that the call that hangs is not the first call
      storeState.isHanging = true;
      client.record("b", "x");
      assert.equal((await client.flush({ timeout: 1 })).reason, "failed");
      client.record("c", "x");
      await waitUntil(async () => (await client.flush({ timeout: 1 })).done);
      const { pending, storedEvents } = store.documents.device;
      assert.deepEqual(Object.values(pending).map(({ metric }) => metric).sort(), names);
      assert.deepEqual(Object.values(storedEvents), [2]);
    };
    const checkSending = async () => {
      const { store, storeState } = storeThatHangsOnce("update", false);
      const device = await open({ store });
      const { client, sent } = device;
      await finishReports(device);
      storeState.isHanging = true;
      assert.equal((await client.flush({ timeout: 5 })).reason, "failed");
      assert.ok((await client.flush({ timeout: 1 })).done);
      assert.equal(sent.length, 1);
    };
    await Promise.all([checkOpening(), checkCommit(false), checkCommit(true), checkSending()]);
  });

  test("all calls return in time although the store does not respond, and consent stays", async () => {
    const { store, respond } = waitingStore();
    const device = await open({ store });
    const { client, sent } = device;
    assert.equal(client.disabledReason, "it cannot be opened: TimeoutError");
    assert.equal((await client.flush({ timeout: 0.1 })).reason, "failed");
    respond();
    await waitUntil(async () => !client.disabledReason);
    await finishReports(device);
    assert.ok((await client.flush()).done);
    assert.equal(sent.length, 1);
    await client.close();
  });

  test("a withdrawal reports what remains in a store that does not respond, and erases it later", async () => {
    const { store, respond } = waitingStore();
    const { client } = await open({ store, consent: false });
    const { done, secretGone } = await client.withdraw();
    assert.deepEqual([done, secretGone], [false, false]);
    Object.assign(store.documents, { identity: { secretId: "m", secret: "s" }, log: [] });
    respond();
    await waitUntil(() => !store.documents.identity);
  });
});

test("a flush after a failed opening does not end consent", async (t) => {
  const store = memoryStore();
  const { update } = store;
  store.update = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  t.mock.method(console, "warn", () => {});
  const { client } = await open({ store });
  assert.equal((await client.flush()).reason, "failed");
  store.update = update;
  assert.ok((await client.flush()).done);
  assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  assert.equal(client.disabledReason, undefined);
});

test("the file is private and contains no value, and a later process is the same device", async (t) => {
  const path = join(makeFolder(t), "device", "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await outcomeOf(client, "page", "hidden");
  const [{ report }] = Object.values(JSON.parse(readFileSync(path, "utf8")).device.pending);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.equal(statSync(join(path, "..")).mode & 0o777, 0o700);
  assert.ok(!readFileSync(path, "utf8").includes("hidden"));
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
  const again = await open({ store: fileStore(path), clock: () => NOON + DAY });
  assert.equal(await outcomeOf(again.client, "page", "other"), "recorded");
  const [{ permanent }] = JSON.parse(readFileSync(path, "utf8")).device.scopes;
  assert.equal(permanent, report.permanent);
});

test("a damaged file disables the client until a withdrawal, after which the year has no budget", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  await outcomeOf((await open({ store: fileStore(path) })).client, "page", "a");
  writeFileSync(path, readFileSync(path, "utf8").slice(0, -9));
  t.mock.method(console, "warn", () => {});
  const { client } = await open({ store: fileStore(path) });
  assert.equal(await outcomeOf(client, "page", "a"), "disabled");
  assert.equal((await client.withdraw()).done, true);
  const again = await open({ store: fileStore(path) });
  assert.equal(await outcomeOf(again.client, "page", "a"), "budget");
  const { nats, reserved } = await again.client.privacySpent();
  assert.deepEqual([nats, reserved[2026]], [Infinity, Infinity]);
  const later = await open({ store: fileStore(path), clock: () => NOON + 366 * DAY });
  assert.equal(await outcomeOf(later.client, "page", "a"), "recorded");
});

test("a loss that was dated by a clock of 1970 moves to the present year", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  writeFileSync(path, "damaged");
  t.mock.method(console, "warn", () => {});
  const lost = await open({ store: fileStore(path), clock: () => DAY });
  assert.equal((await lost.client.withdraw()).done, true);
  const outcomes = [];
  for (const days of [0, 0, 365, 2 * 365]) {
    const now = NOON + days * DAY;
    const { client } = await open({ store: fileStore(path), clock: () => now });
    outcomes.push(await outcomeOf(client, "page", "a"));
  }
  assert.deepEqual(outcomes, ["budget", "budget", "recorded", "recorded"]);
});

test("a correction of the clock while a program runs does not end a loss", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  writeFileSync(path, "damaged");
  let now = DAY;
  t.mock.method(console, "warn", () => {});
  await open({ store: fileStore(path), clock: () => now, consent: false });
  const { client } = await open({ store: fileStore(path), clock: () => now });
  now = NOON;
  assert.equal(await outcomeOf(client, "page", "a"), "budget");
});

test("a file with a changed letter or with other content is damaged", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  await outcomeOf((await open({ store: fileStore(path) })).client, "page", "a");
  const text = readFileSync(path, "utf8");
  const { secret } = JSON.parse(text).identity;
  const other = secret.replace(/./, (letter) => (letter === "A" ? "B" : "A"));
  t.mock.method(console, "warn", () => {});
  for (const written of ["", "{}", "[]", "0", "null", text.replace(secret, other)]) {
    writeFileSync(path, written);
    const { client } = await open({ store: fileStore(path) });
    assert.equal(await outcomeOf(client, "page", "a"), "disabled", written.slice(0, 9));
    assert.equal(readFileSync(path, "utf8"), written);
  }
});

test("a withdrawal removes the new file that a killed process has left", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await outcomeOf(client, "page", "a");
  copyFileSync(path, `${path}.tmp`);
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
  writeFileSync(`${path}.tmp`, "a first file that never got its name");
  rmSync(path);
  await open({ store: fileStore(path), consent: false });
  assert.deepEqual(readdirSync(join(path, "..")), []);
});

test("a relative path does not follow a change of the working directory", async (t) => {
  const folder = makeFolder(t);
  const workingFolder = process.cwd();
  t.after(() => process.chdir(workingFolder));
  process.chdir(folder);
  const { client } = await open({ store: fileStore("telemetry.json") });
  await outcomeOf(client, "page", "a");
  process.chdir("/");
  assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.ok(!readFileSync(join(folder, "telemetry.json"), "utf8").includes("secret"));
});

test("a link, a folder or a pipe is neither read nor replaced, and a withdrawal names it", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await outcomeOf(client, "page", "a");
  const text = readFileSync(path, "utf8");
  const [link, pipe, directory] = ["link", "pipe", "folder"].map((name) => join(path, "..", name));
  symlinkSync(path, link);
  await promisify(execFile)("mkfifo", [pipe]);
  mkdirSync(directory);
  t.mock.method(console, "warn", () => {});
  for (const wrongPath of [link, pipe, directory]) {
    const device = await open({ store: fileStore(wrongPath) });
    assert.equal(await outcomeOf(device.client, "page", "a"), "disabled", wrongPath);
    const { done, secretGone } = await device.client.withdraw();
    assert.deepEqual([done, secretGone], [false, false], wrongPath);
  }
  assert.equal(readFileSync(path, "utf8"), text);
});

test("a folder that cannot be created disables the device", { skip: !existsSync("/proc") }, async (t) => {
  // Another process, because the program waited without end. In /proc nothing can be created.
  const program = new URL("recorder.mjs", import.meta.url).pathname;
  const args = [program, "/proc/device/telemetry.json", "0", "1"];
  const error = await promisify(execFile)(process.execPath, args, { timeout: 60_000 }).catch((reason) => reason);
  assert.equal(error.code, 1);
  assert.match(error.stderr, /Error: disabled/);
});

test("missing folders are created for the user alone", async (t) => {
  const path = join(makeFolder(t), "program", "device", "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  for (const folder of [join(path, ".."), join(path, "..", "..")]) {
    assert.equal(statSync(folder).mode & 0o777, 0o700);
  }
});

test("another user's file is not used", { skip: process.getuid() !== 0 }, async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  await outcomeOf((await open({ store: fileStore(path) })).client, "page", "a");
  chownSync(path, 65534, 65534);
  t.mock.method(console, "warn", () => {});
  const { client } = await open({ store: fileStore(path) });
  assert.equal(await outcomeOf(client, "page", "a"), "disabled");
});

test("on a full disk values are recorded and a withdrawal erases", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const program = new URL("full_disk.mjs", import.meta.url).pathname;
  for (const blocks of [0, 1]) {
    const { client } = await open({ store: fileStore(path) });
    for (let i = 0; i < 5; i++) await outcomeOf(client, "page", "a");
    const shellLine = `trap "" XFSZ; ulimit -f ${blocks}; exec "$0" "$@"`;
    const { stdout } = await promisify(execFile)("sh", ["-c", shellLine, process.execPath, program, path]);
    assert.deepEqual(JSON.parse(stdout), {
      outcome: "disabled",
      hasLock: false,
      hasNewFile: false,
      withdrawal: { done: true, secretGone: true, left: [] },
    });
    rmSync(path, { force: true });
  }
});

test("a store whose secret is gone or replaced is damaged, and no new secret is created", async (t) => {
  const { client, store } = await open();
  await outcomeOf(client, "page", "a");
  const other = { ...store.documents.identity, secretId: "another one" };
  t.mock.method(console, "warn", () => {});
  for (const identity of [undefined, other]) {
    store.documents.identity = identity;
    const later = await open({ store });
    assert.equal(await outcomeOf(later.client, "page", "a"), "disabled");
    assert.deepEqual(store.documents.identity, identity);
  }
});

test("a store of a later version is not changed", async (t) => {
  const { client, store } = await open();
  await outcomeOf(client, "page", "a");
  store.documents.device.v += 1;
  const before = structuredClone(store.documents.device);
  t.mock.method(console, "warn", () => {});
  for (const reader of [client, (await open({ store })).client]) {
    await outcomeOf(reader, "theme", "light"); // reads the store
    assert.equal(await outcomeOf(reader, "page", "a"), "disabled");
  }
  assert.deepEqual(store.documents.device, before);
});

test("another identity in the store ends the consent of a running client", async () => {
  const { client, store } = await open();
  await outcomeOf(client, "page", "a");
  await (await open({ store })).client.withdraw();
  const { client: next } = await open({ store });
  await outcomeOf(client, "theme", "light"); // reads the store
  assert.equal(await outcomeOf(client, "page", "a"), "no consent");
  assert.equal(await outcomeOf(next, "page", "a"), "recorded");
});

test("a program ends while a report waits for its time", async () => {
  const program = new URL("leaving.mjs", import.meta.url).pathname;
  const run = promisify(execFile);
  const { stdout } = await run(process.execPath, [program], { timeout: 20_000 });
  assert.equal(stdout, "1\n");
});

test("a metric that is opted out in another tab is not sent by this tab", async (t) => {
  const store = Object.assign(memoryStore(), { channel: "refused" });
  const device = await open({ store });
  const { client, sent } = device;
  await finishReports(device);
  const { client: other } = await open({ store: { ...store, update: () => Promise.reject(new Error()) } });
  t.after(() => Promise.all([client.close(), other.close()]));
  await other.optOut("page");
  await waitUntil(async () => (await outcomeOf(client, "page", "a")) === "opted out");
  assert.equal((await client.flush()).reason, "nothing queued");
  assert.deepEqual(sent, []);
});

test("in Node no upload is prepared for the end of a page", async (t) => {
  const device = await open({ background: true, maxDelay: 3600 });
  const { client, store } = device;
  t.after(() => client.close());
  await finishReports(device);
  await outcomeOf(client, "page", "a");
  assert.deepEqual(store.documents.spool.uploads, []);
});

test("an erased file ends the consent of a running client", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const { client } = await open({ store: fileStore(path) });
  await outcomeOf(client, "page", "a");
  rmSync(path);
  await outcomeOf(client, "theme", "light"); // reads the store
  assert.equal(await outcomeOf(client, "page", "a"), "no consent");
});

test("processes that share a file lose no event and store none twice", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const program = new URL("recorder.mjs", import.meta.url).pathname;
  const run = promisify(execFile);
  const firstNumbers = ["0", "15", "30"];
  await Promise.all(firstNumbers.map((first) => run(process.execPath, [program, path, first, "15"])));
  const { device, identity } = JSON.parse(readFileSync(path, "utf8"));
  assert.equal(device.secretId, identity.secretId);
  assert.deepEqual(Object.values(device.storedEvents), [14, 14, 14]);
  assert.equal(new Set(Object.values(device.pending).map(({ metric }) => metric)).size, 45);
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
});

test("threads that share a file lose no event and store none twice", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const program = new URL("recorder.mjs", import.meta.url);
  const exitCodeOf = (worker) => new Promise((resolve) => worker.on("error", resolve).on("exit", resolve));
  const workers = ["0", "40"].map((first) => new Worker(program, { argv: [path, first, "40"] }));
  assert.deepEqual(await Promise.all(workers.map(exitCodeOf)), [0, 0]);
  assert.equal(Object.keys(JSON.parse(readFileSync(path, "utf8")).device.pending).length, 80);
});

test("a lock is removed if its process was killed, if it is older than ten seconds, or of the future", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const tooOld = Date.now() / 1000 - 11;
  const killed = `999999999 ${PID_SPACE} x`;
  const running = `${process.pid} ${PID_SPACE} x`;
  const future = Date.now() / 1000 + 3600; // the clock was set back
  for (const [owner, timestamp] of [[killed], [running, tooOld], ["", tooOld], [running, future]]) {
    writeFileSync(`${path}.lock`, owner);
    if (timestamp) utimesSync(`${path}.lock`, timestamp, timestamp);
    const { client } = await open({ store: fileStore(path) });
    assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  }
  assert.deepEqual(readdirSync(join(path, "..")), ["telemetry.json"]);
});

test("a process that has lost its lock changes nothing and keeps the lock of the new owner", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const store = fileStore(path);
  await store.update(["log"], (documents) => void (documents.log = []));
  const text = readFileSync(path, "utf8");
  const newOwner = "999999999 elsewhere x";
  const loseLock = (documents) => {
    writeFileSync(`${path}.lock`, newOwner);
    documents.log = undefined;
  };
  await assert.rejects(store.update(["log"], loseLock), { name: "TimeoutError" });
  assert.equal(readFileSync(path, "utf8"), text);
  assert.equal(readFileSync(`${path}.lock`, "utf8"), newOwner);
});

test("the lock of a running process, also of another container, is not removed", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  for (const owner of [`${process.pid} ${PID_SPACE} x`, "999999999 elsewhere x"]) {
    writeFileSync(`${path}.lock`, owner);
    let isLocked = true;
    setTimeout(() => {
      isLocked = false;
      rmSync(`${path}.lock`);
    }, 200);
    const { client } = await open({ store: fileStore(path) });
    assert.ok(!isLocked);
    assert.equal(await outcomeOf(client, "page", "a"), "recorded");
  }
});

/** Return a registry with a metric of strings, `home_page`, that has a normalizer. */
async function registryWithNormalizer(normalize) {
  const params = { v: 1, encoding: "bloom", k: 64, h: 1, m: 1, f: 0, p: 2 ** 30, q: 2 ** 31, normalize };
  return registryOf([await metricOf("home_page", params)]);
}

test("domains are computed from the tables, or by a function of the program", async () => {
  const registry = await registryWithNormalizer("domain");
  // An undefined function replaces nothing, and nobody can replace a normalizer without tables.
  const ineffective = { domain: undefined, none: () => "", strip: () => "" };
  for (const normalizers of [undefined, ineffective, { domain: () => "example.co.uk" }]) {
    const responses = [];
    for (const value of ["https://www.Example.co.uk/x", "example.co.uk"]) {
      const store = memoryStore();
      store.documents = { identity: { secretId: "m", secret: "A".repeat(43) }, device: createDevice("m") };
      const { client } = await open({ registry, normalizers, store });
      await outcomeOf(client, "home_page", value);
      const [{ report }] = Object.values(store.documents.device.pending);
      responses.push(report.permanent);
    }
    assert.equal(responses[0], responses[1]);
  }
});

test("a durable value survives a kill right after its recording, and another value does not", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const program = new URL("killed.mjs", import.meta.url).pathname;
  for (const name of ["page", "end"]) {
    const run = promisify(execFile)(process.execPath, [program, path, name]);
    const { signal, stdout } = await run.catch((error) => error);
    assert.deepEqual([signal, stdout], ["SIGKILL", "recorded\n"]);
  }
  const files = () => readdirSync(join(path, "..")).filter((name) => name.includes("deferred"));
  assert.equal(files().length, 1);
  const text = readFileSync(join(path, "..", files()[0]), "utf8");
  assert.ok(!Buffer.from(text, "base64url").includes("hidden"));
  assert.equal(statSync(join(path, "..", files()[0])).mode & 0o777, 0o600);
  const { client } = await open({ registry: DURABLE, store: fileStore(path) });
  await client.queuedCount();
  const { device } = JSON.parse(readFileSync(path, "utf8"));
  assert.deepEqual(Object.values(device.pending).map(({ metric }) => metric), ["end"]);
  assert.deepEqual(files(), []);
});

test("a durable value without synchronous storage is a failure, and is stored later", async () => {
  const { store, pages } = countingStore();
  const { client } = await open({ store, registry: DURABLE });
  store.pageStorage.setItem = () => {
    throw new DOMException("full", "QuotaExceededError");
  };
  assert.deepEqual(client.record("end", "a"), { outcome: "failed", reason: "not stored" });
  assert.equal(client.record("page", "a").outcome, "recorded");
  await client.queuedCount();
  assert.equal(Object.keys(store.documents.device.pending).length, 2);
  assert.equal(pages.size, 0);
});

test("a withdrawal removes the durable values that are not in the store yet", async (t) => {
  const path = join(makeFolder(t), "telemetry.json");
  const { client } = await open({ registry: DURABLE, store: fileStore(path) });
  assert.equal(client.record("end", "a").outcome, "recorded");
  assert.equal(readdirSync(join(path, "..")).length, 2);
  assert.deepEqual(await client.withdraw(), { done: true, secretGone: true, left: [] });
  assert.ok(!readdirSync(join(path, "..")).some((name) => name.includes("deferred")));
});

test("a device whose state is lost waits for the end of the latest year that its spool or log names", async (t) => {
  const uploads = [{ id: "i", body: "{}", metric: "page", attempts: 1, first: NOON, claimed: 0, backoff: 0 }];
  const log = [{ day: "2026-11-18", id: "i", body: "{}", metric: "page", attempts: 1, status: "accepted" }];
  const spoolWith = (entries) => ({ spool: { reports: [], uploads: [], last: {}, ...entries } });
  const storesOf2026 = [{ log }, spoolWith({ uploads }), spoolWith({ last: { page: [NOON, 0] } })];
  const earlier = Date.UTC(2024, 5, 1) / 1000; // the clock of a device without a battery
  t.mock.method(console, "warn", () => {});
  for (const documents of storesOf2026) {
    const store = Object.assign(memoryStore(), { documents });
    const outcomes = [];
    for (const year of [2024, 2025, 2026, 2027]) {
      const clock = () => earlier + (year - 2024) * 366 * DAY;
      const { client } = await open({ store, clock });
      outcomes.push(await outcomeOf(client, "page", "a"));
    }
    assert.deepEqual(outcomes, ["budget", "budget", "budget", "recorded"]);
  }
  const { client } = await open({ clock: () => earlier });
  assert.equal(await outcomeOf(client, "page", "a"), "recorded"); // nothing was lost
});

test("a name in optedOut that no metric has is logged once", async (t) => {
  const lines = [];
  t.mock.method(console, "warn", (text) => lines.push(text));
  const { client } = await open({ optedOut: ["pgae", "page", "Theme"] });
  assert.equal(client.record("page", "a").reason, "opted out");
  await open({ optedOut: ["page"] });
  await open({ optedOut: ["pgae"], consent: false });
  assert.deepEqual(lines, ['rappor: optedOut has names that no metric has: "pgae","Theme"']);
});
