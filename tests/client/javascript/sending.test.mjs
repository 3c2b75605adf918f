// Steps of the uploader and of the background sender: the report that leaves, and the time of the next step.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Sender } from "../../../client/javascript/src/background.js";
import { findInterval } from "../../../client/javascript/src/periods.js";
import { drawSystemCoins } from "../../../client/javascript/src/randomizer.js";
import { trimSpool } from "../../../client/javascript/src/spool.js";
import { createDevice } from "../../../client/javascript/src/state.js";
import { Uploader } from "../../../client/javascript/src/uploader.js";

const NOON = Date.UTC(2026, 10, 18, 12) / 1000;
const DAY = 86_400;

/** Return a finished report, which has no upload yet. */
const reportOf = (sendAfter) => ({ metric: "page", params: "p", cohort: 0, bits: "AA", sendAfter });

/** Return an upload after its first attempt. `fields` replace its other fields. */
const uploadOf = (id, fields) => ({
  ...{ id, body: id, metric: "page", interval: "day", attempts: 1, first: NOON, claimed: 0, backoff: 0 },
  ...fields,
});

/**
 * Return an uploader, the documents of its device, and the list of the bodies that it sends.
 *
 * All reports and uploads of the device have the same interval. `device` has fields of the device's document.
 * `conditions` are `now` (the time), `isFailing` and `isHanging` (the transport). A test may change them.
 */
function uploaderOf({ reports = [], uploads = [], last = {}, interval = "day", ...device }, conditions = {}) {
  for (const item of [...reports, ...uploads]) Object.assign(item, { epoch: "quarter", interval, ...item });
  const sent = [];
  const documents = {
    device: { ...createDevice("m"), ...device },
    spool: { reports, uploads, last },
    log: [],
  };
  const transport = {
    send: async (body) => {
      sent.push(body);
      if (conditions.isHanging) return new Promise(() => {});
      if (conditions.isFailing) throw new TypeError();
      const responseBody = { reports: [{ status: "accepted" }], stop: device.stopped };
      return { status: 200, body: JSON.stringify(responseBody) };
    },
  };
  const uploader = new Uploader({
    update: async (work) => work(documents),
    transport,
    clock: () => conditions.now ?? NOON,
    coins: drawSystemCoins,
    limits: { reports: 300, bytes: 200_000, log: 300 },
    prepare: () => {},
    isRefused: () => false,
  });
  return { uploader, documents, sent };
}

test("a report does not leave before its time, unless a flush asks for it", async () => {
  const { uploader, sent } = uploaderOf({ reports: [reportOf(NOON + 100)] });
  assert.deepEqual(await uploader.step(), { nextAt: NOON + 100, reason: undefined });
  assert.deepEqual(sent, []);
  assert.equal((await uploader.step({ tried: new Set() })).reason, "sent");
});

test("without queued reports the reason of a step is not \"asked to wait\"", async () => {
  const { uploader } = uploaderOf({});
  assert.deepEqual(await uploader.step(), { nextAt: Infinity, reason: undefined });
});

test("a failed upload waits for its backoff, and an upload whose backoff is over is sent", async () => {
  const uploads = [uploadOf("a", { backoff: NOON + 100 }), uploadOf("b", { backoff: NOON - 1 })];
  const { uploader, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step()).reason, "sent");
  assert.equal((await uploader.step()).nextAt, NOON + 100);
  assert.deepEqual(sent, ["b"]);
});

// Ends of the backoff, of the pause and of Retry-After, and the end of the wait, in seconds from now. No wait is longer
// than a day, so a wait of a month was set before the clock was set back by a month.
const MONTH = 31 * DAY;
for (const [backoff, pause, retryAfter, wait] of [
  [30, 60, 0, 60],
  [60, 30, 0, 60],
  [MONTH, 60, 0, 60],
  [60, MONTH, 0, 60],
  [60, 30, MONTH, 60],
  [MONTH, MONTH, 60, 60],
  [MONTH, MONTH, MONTH, 0],
]) {
  test(`the waits [${[backoff, pause, retryAfter]}] end after ${wait} seconds`, async () => {
    const sending = { failures: 2, waitUntil: NOON + retryAfter, pauseUntil: NOON + pause };
    const { uploader, sent } = uploaderOf({ uploads: [uploadOf("a", { backoff: NOON + backoff })], sending });
    assert.equal((await uploader.step()).nextAt, NOON + wait);
    assert.deepEqual(sent, wait ? [] : ["a"]);
  });
}

test("a flush tries an upload that it has not tried before one that is due earlier", async () => {
  const uploads = [uploadOf("a", { backoff: NOON + 10 }), uploadOf("b", { backoff: NOON + 20 })];
  const { uploader, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step({ tried: new Set(["a"]) })).reason, "sent");
  assert.deepEqual(sent, ["b"]);
});

test("an upload of a stopped metric does not delay other uploads", async () => {
  const uploads = [uploadOf("a"), uploadOf("b", { metric: "theme" })];
  const { uploader, sent } = uploaderOf({ uploads, stopped: { page: "2026-11-20" } });
  assert.equal((await uploader.step()).reason, "sent");
  assert.equal((await uploader.step()).reason, "asked to wait");
  assert.deepEqual(sent, ["b"]);
});

test("beyond the limit the oldest reports are dropped and counted", () => {
  const [device, reports] = [createDevice("m"), [1, 2, 3].map(reportOf)];
  trimSpool(device, { reports, uploads: [] }, { reports: 2, bytes: 1000, log: 1 });
  assert.deepEqual(reports.map(({ sendAfter }) => sendAfter), [2, 3]);
  trimSpool(device, { reports, uploads: [] }, { reports: 2, bytes: 200, log: 1 });
  assert.deepEqual(reports.map(({ sendAfter }) => sendAfter), [3]);
  assert.deepEqual(device.counters, { dropped_full: 2 });
});

test("all uploads that are too old are given up at once, and none of them leaves", async () => {
  const uploads = ["a", "b", "c"].map((id) => uploadOf(id, { first: NOON - 8 * DAY }));
  const { uploader, documents, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step()).nextAt, Infinity);
  assert.deepEqual([sent, documents.device.counters], [[], { given_up: 3 }]);
});

test("a report that a flush may not send yet does not become an upload", async () => {
  const sending = { failures: 2, waitUntil: NOON + 60, pauseUntil: NOON + 60 };
  const { uploader, documents } = uploaderOf({ reports: [reportOf(NOON)], sending });
  assert.equal((await uploader.step({ tried: new Set() })).nextAt, NOON + 60);
  assert.deepEqual([documents.spool.reports.length, documents.spool.uploads], [1, []]);
});

test("an upload whose first attempt was in January 1970 is given up a week later", async () => {
  const uploads = [uploadOf("a", { first: 0, attempts: 0 })];
  const conditions = { now: 100, isFailing: true };
  const { uploader, documents } = uploaderOf({ uploads }, conditions);
  await uploader.step();
  assert.equal(uploads[0].first, 100);
  conditions.now += 8 * DAY;
  await uploader.step();
  assert.deepEqual(documents.device.counters, { given_up: 1 });
});

test("a retry under a clock that was set back does not shorten the week of an upload", async () => {
  const conditions = { now: NOON, isFailing: true };
  const reports = [reportOf(NOON - 2), reportOf(NOON - 1)];
  const { uploader, sent } = uploaderOf({ reports, interval: "week" }, conditions);
  for (const days of [-8, 9, 0]) {
    await uploader.step({ tried: new Set() });
    Object.assign(conditions, { isFailing: false, now: conditions.now + days * DAY });
  }
  assert.deepEqual([sent.length, new Set(sent).size], [2, 1]);
});

test("an attempt under a clock that was years ahead does not delay later attempts", async () => {
  const last = { page: [NOON + 1000 * DAY, 0] };
  const reports = [reportOf(NOON - 2), reportOf(NOON - 1)];
  const { uploader, sent } = uploaderOf({ reports, last, interval: "day" });
  assert.equal((await uploader.step({ tried: new Set() })).reason, "sent");
  assert.equal((await uploader.step({ tried: new Set() })).nextAt, findInterval("day", NOON).ends);
  assert.equal(sent.length, 1);
});

test("a report of a metric that the collector stopped waits until the stop is over", async () => {
  const { uploader, documents, sent } = uploaderOf({
    reports: [reportOf(NOON - 1)],
    stopped: { page: "2026-11-20" },
  });
  const { nextAt, reason } = await uploader.step({ tried: new Set() });
  assert.deepEqual([nextAt, reason], [Date.UTC(2026, 10, 21) / 1000, "asked to wait"]);
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined);
  assert.deepEqual([sent, documents.spool.uploads], [[], []]);
});

test("a request of thirty seconds has failed, also in a longer flush", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { uploader, documents, sent } = uploaderOf({ reports: [reportOf(NOON - 1)] }, { isHanging: true });
  const step = uploader.step({ tried: new Set() });
  while (!sent.length) await Promise.resolve();
  t.mock.timers.tick(30_000);
  assert.equal((await step).reason, "unreachable");
  assert.equal(documents.device.sending.failures, 1);
});

test("a pending record without a report plans no step", async () => {
  const pending = { "theme 2026-Q4": { ends: NOON - 1, seconds: DAY, tag: "0" } };
  const { uploader } = uploaderOf({ pending });
  assert.equal((await uploader.step()).nextAt, Infinity);
});

test("a report that did not leave within its epoch is dropped and counted", async () => {
  for (const [leavesBefore, n] of [[NOON + 1, 1], [NOON, 0]]) {
    for (const spool of [
      { reports: [{ ...reportOf(NOON - 1), leavesBefore }], interval: "epoch" },
      { uploads: [uploadOf("a", { leavesBefore })], interval: "epoch" },
    ]) {
      const { uploader, documents, sent } = uploaderOf(spool);
      await uploader.step({ tried: new Set() });
      assert.equal(sent.length, n);
      assert.equal(documents.device.counters.given_up ?? 0, 1 - n);
      assert.deepEqual([documents.spool.reports, documents.spool.uploads], [[], []]);
    }
  }
});

test("the upload for the end of a page is sent only if it may leave", async () => {
  const sending = { failures: 1, waitUntil: NOON + 60, pauseUntil: 0 };
  const stopped = { page: "2026-11-20" };
  const old = { first: NOON - 8 * DAY };
  const claimed = { claimed: NOON + 1 };
  for (const [n, device, upload] of [
    [1, {}, {}],
    [0, { sending }, {}],
    [0, { sending: { failures: 2, waitUntil: 0, pauseUntil: NOON + 60 } }, {}],
    [0, { stopped }, {}],
    [0, {}, old],
    [0, {}, claimed],
    [1, {}, { leavesBefore: NOON + 1 }],
    [0, {}, { leavesBefore: NOON }],
  ]) {
    const { uploader, documents, sent } = uploaderOf(device);
    await uploader.sendAtPageEnd(documents.device, uploadOf("a", upload));
    assert.equal(sent.length, n, JSON.stringify([device, upload]));
  }
});

for (const [interval, seconds] of [["day", DAY], ["week", 7 * DAY]]) {
  for (const isFlush of [false, true]) {
    const path = isFlush ? "a flush" : "the background sender";
    test(`after days offline ${path} lets one report leave in each ${interval}`, async () => {
      const n = Math.floor((9 * DAY) / seconds) + 1;
      const sendTimes = Array.from({ length: n }, (_, i) => NOON - i * seconds - 1).reverse();
      const conditions = { now: NOON };
      const reports = sendTimes.map(reportOf);
      const { uploader, documents, sent } = uploaderOf({ reports, interval }, conditions);
      const idsByInterval = new Map(); // ids of the sent uploads, by the end of the interval in which they left
      let failures = 0;
      const { spool, device } = documents;
      while (spool.reports.length + spool.uploads.length) {
        conditions.isFailing = sent.length > 1 && failures < 12; // the collector fails in the middle
        const { nextAt, id } = await uploader.step(isFlush ? { tried: new Set(["x"]) } : {});
        if (id) {
          const { ends } = findInterval(interval, conditions.now);
          idsByInterval.set(ends, (idsByInterval.get(ends) ?? new Set()).add(id));
        }
        failures += id && conditions.isFailing ? 1 : 0;
        assert.ok(nextAt < Infinity || !spool.reports.length);
        if (nextAt < Infinity) conditions.now = Math.max(conditions.now, nextAt);
      }
      for (const ids of idsByInterval.values()) assert.equal(ids.size, 1);
      // Reports that are older than a week are given up, and a few others during the failures.
      const nTooOld = sendTimes.filter((sendAfter) => sendAfter < NOON - 7 * DAY).length;
      const { accepted, given_up: nGivenUp } = device.counters;
      assert.equal(accepted + nGivenUp, n);
      assert.ok(nGivenUp >= nTooOld && nTooOld > 0 && accepted >= n - nTooOld - 5, `${accepted} of ${n}`);
    });
  }
}

test("a page that ends sends no second report in an interval", async () => {
  const conditions = { now: NOON };
  const reports = [reportOf(NOON - 8 * DAY), reportOf(NOON - 3), reportOf(NOON - 2)];
  const { uploader, documents, sent } = uploaderOf({ reports, interval: "day" }, conditions);
  const first = uploader.prepareEndUpload(documents, undefined);
  assert.ok(first);
  assert.deepEqual(documents.device.counters, { given_up: 1 });
  assert.equal(uploader.prepareEndUpload(documents, first), first);
  // Another tab prepares no second upload, because the first upload may leave in this interval.
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined);
  await uploader.sendAtPageEnd(documents.device, first);
  assert.equal(sent.length, 1);
  assert.equal((await uploader.step()).id, first.id); // the page ended before the response
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined);
  conditions.now += DAY / 4;
  await uploader.sendAtPageEnd(documents.device, first); // of another tab, which prepared it earlier
  assert.equal(sent.length, 3);
  conditions.now += DAY;
  await uploader.sendAtPageEnd(documents.device, first);
  assert.equal(sent.length, 3);
  conditions.now += DAY;
  assert.ok(uploader.prepareEndUpload(documents, undefined));
});

test("reports that are stored during a delay do not extend the delay", (t) => {
  let n = 0;
  const coins = () => ((n += 1), [2 ** 31]);
  const sender = new Sender(async () => ({ nextAt: Infinity }), { coins, clock: () => 0, maxDelay: 60 });
  t.after(() => sender.stop());
  for (let i = 0; i < 3; i++) sender.nudge();
  assert.equal(n, 1);
});

test("after the backlog the next report waits for the whole delay", async (t) => {
  let n = 0;
  const step = async () => ({ nextAt: 0, id: String((n += 1)) });
  const coins = () => [2 ** 28]; // a sixteenth of a delay
  const sender = new Sender(step, { coins, clock: () => 0, maxDelay: 3600 });
  t.after(() => sender.stop());
  sender.catchUp(2);
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const end = performance.now() + 20_000; // a busy machine may take long for the first two steps
  while (n < 2 && performance.now() < end) await sleep(5);
  await sleep(300); // a third delay of the backlog would be 63 ms
  assert.equal(n, 2);
});
