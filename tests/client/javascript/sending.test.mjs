// Steps of the uploader and of the background sender: which report leaves, and which one waits how long.

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

const finished = (sendAfter) => ({ metric: "page", params: "p", cohort: 0, bits: "AA", sendAfter });
const queued = (id, more) => ({
  ...{ id, body: id, metric: "page", interval: "day", attempts: 1, first: NOON, claimed: 0, backoff: 0 },
  ...more,
});

/** Return an uploader of a device with this spool, and the list of the bodies that it sends. */
function uploaderOf(given, conditions = {}) {
  const { reports = [], uploads = [], last = {}, interval = "day", ...device } = given;
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
  });
  return { uploader, documents, sent };
}

test("a report does not leave before its time, unless a flush asks for it", async () => {
  const { uploader, sent } = uploaderOf({ reports: [finished(NOON + 100)] });
  assert.deepEqual(await uploader.step(), { nextAt: NOON + 100, reason: undefined });
  assert.deepEqual(sent, []);
  assert.equal((await uploader.step({ tried: new Set() })).reason, "sent");
});

test("without queued reports the reason of a step is not \"asked to wait\"", async () => {
  const { uploader } = uploaderOf({});
  assert.deepEqual(await uploader.step(), { nextAt: Infinity, reason: undefined });
});

test("a failed upload waits for its backoff, and an upload whose backoff is over is sent", async () => {
  const uploads = [queued("a", { backoff: NOON + 100 }), queued("b", { backoff: NOON - 1 })];
  const { uploader, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step()).reason, "sent");
  assert.equal((await uploader.step()).nextAt, NOON + 100);
  assert.deepEqual(sent, ["b"]);
});

test("a flush tries an upload that it has not tried before one that is due earlier", async () => {
  const uploads = [queued("a", { backoff: NOON + 10 }), queued("b", { backoff: NOON + 20 })];
  const { uploader, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step({ tried: new Set(["a"]) })).reason, "sent");
  assert.deepEqual(sent, ["b"]);
});

test("an upload of a stopped metric holds up no other", async () => {
  const uploads = [queued("a"), queued("b", { metric: "theme" })];
  const { uploader, sent } = uploaderOf({ uploads, stopped: { page: "2026-11-20" } });
  assert.equal((await uploader.step()).reason, "sent");
  assert.equal((await uploader.step()).reason, "asked to wait");
  assert.deepEqual(sent, ["b"]);
});

test("beyond the limit the oldest reports are dropped and counted", () => {
  const [device, reports] = [createDevice("m"), [1, 2, 3].map(finished)];
  trimSpool(device, { reports, uploads: [] }, { reports: 2, bytes: 1000, log: 1 });
  assert.deepEqual(reports.map(({ sendAfter }) => sendAfter), [2, 3]);
  trimSpool(device, { reports, uploads: [] }, { reports: 2, bytes: 200, log: 1 });
  assert.deepEqual(reports.map(({ sendAfter }) => sendAfter), [3]);
  assert.deepEqual(device.counters, { dropped_full: 2 });
});

test("all uploads that are too old are given up at once, and none of them leaves", async () => {
  const uploads = ["a", "b", "c"].map((id) => queued(id, { first: NOON - 8 * DAY }));
  const { uploader, documents, sent } = uploaderOf({ uploads });
  assert.equal((await uploader.step()).nextAt, Infinity);
  assert.deepEqual([sent, documents.device.counters], [[], { given_up: 3 }]);
});

test("a report that a flush may not send yet does not become an upload", async () => {
  const sending = { failures: 2, waitUntil: NOON + 60, pauseUntil: NOON + 60 };
  const { uploader, documents } = uploaderOf({ reports: [finished(NOON)], sending });
  assert.equal((await uploader.step({ tried: new Set() })).nextAt, NOON + 60);
  assert.deepEqual([documents.spool.reports.length, documents.spool.uploads], [1, []]);
});

test("an upload whose first attempt was in January 1970 is given up a week later", async () => {
  const uploads = [queued("a", { first: 0, attempts: 0 })];
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
  const reports = [finished(NOON - 2), finished(NOON - 1)];
  const { uploader, sent } = uploaderOf({ reports, interval: "week" }, conditions);
  for (const days of [-8, 9, 0]) {
    await uploader.step({ tried: new Set() });
    Object.assign(conditions, { isFailing: false, now: conditions.now + days * DAY });
  }
  assert.deepEqual([sent.length, new Set(sent).size], [2, 1]);
});

test("an attempt under a clock that was years ahead does not delay later attempts", async () => {
  const last = { page: [NOON + 1000 * DAY, 0] };
  const reports = [finished(NOON - 2), finished(NOON - 1)];
  const { uploader, sent } = uploaderOf({ reports, last, interval: "day" });
  assert.equal((await uploader.step({ tried: new Set() })).reason, "sent");
  assert.equal((await uploader.step({ tried: new Set() })).nextAt, findInterval("day", NOON).ends);
  assert.equal(sent.length, 1);
});

test("a report of a metric that the collector stopped waits until the stop is over", async () => {
  const { uploader, documents, sent } = uploaderOf({
    reports: [finished(NOON - 1)],
    stopped: { page: "2026-11-20" },
  });
  const { nextAt, reason } = await uploader.step({ tried: new Set() });
  assert.deepEqual([nextAt, reason], [Date.UTC(2026, 10, 21) / 1000, "asked to wait"]);
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined);
  assert.deepEqual([sent, documents.spool.uploads], [[], []]);
});

test("a request of thirty seconds has failed, also in a longer flush", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const its = uploaderOf({ reports: [finished(NOON - 1)] }, { isHanging: true });
  const step = its.uploader.step({ tried: new Set() });
  while (!its.sent.length) await Promise.resolve();
  t.mock.timers.tick(30_000);
  assert.equal((await step).reason, "unreachable");
  assert.equal(its.documents.device.sending.failures, 1);
});

test("a pending record without a report plans no step", async () => {
  const pending = { "theme 2026-Q4": { ends: NOON - 1, seconds: DAY, tag: "0" } };
  const { uploader } = uploaderOf({ pending });
  assert.equal((await uploader.step()).nextAt, Infinity);
});

test("a report that did not leave within its epoch is dropped and counted", async () => {
  for (const [leavesBefore, n] of [[NOON + 1, 1], [NOON, 0]]) {
    for (const spool of [
      { reports: [{ ...finished(NOON - 1), leavesBefore }], interval: "epoch" },
      { uploads: [queued("a", { leavesBefore })], interval: "epoch" },
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
    await uploader.sendAtPageEnd(documents.device, queued("a", upload));
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
      const reports = sendTimes.map(finished);
      const { uploader, documents, sent } = uploaderOf({ reports, interval }, conditions);
      const came = [];
      let failures = 0;
      const { spool, device } = documents;
      while (spool.reports.length + spool.uploads.length) {
        conditions.isFailing = sent.length > 1 && failures < 12;
        const { nextAt, id } = await uploader.step(isFlush ? { tried: new Set(["x"]) } : {});
        if (id) came.push([findInterval(interval, conditions.now).ends, id]);
        failures += id && conditions.isFailing ? 1 : 0;
        assert.ok(nextAt < Infinity || !spool.reports.length);
        if (nextAt < Infinity) conditions.now = Math.max(conditions.now, nextAt);
      }
      for (const [end] of came) {
        assert.equal(new Set(came.filter(([ends]) => ends === end).map(([, id]) => id)).size, 1);
      }
      const late = sendTimes.filter((sendAfter) => sendAfter < NOON - 7 * DAY).length;
      const { accepted, given_up: gone } = device.counters;
      assert.equal(accepted + gone, n);
      assert.ok(gone >= late && late > 0 && accepted >= n - late - 5, `${accepted} of ${n}`);
    });
  }
}

test("a page that ends sends no second report in an interval", async () => {
  const conditions = { now: NOON };
  const reports = [finished(NOON - 8 * DAY), finished(NOON - 3), finished(NOON - 2)];
  const its = uploaderOf({ reports, interval: "day" }, conditions);
  const { uploader, documents, sent } = its;
  const first = uploader.prepareEndUpload(documents, undefined);
  assert.ok(first);
  assert.deepEqual(documents.device.counters, { given_up: 1 });
  assert.equal(uploader.prepareEndUpload(documents, first), first);
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined); // another tab: this one may leave
  await uploader.sendAtPageEnd(documents.device, first);
  assert.equal(sent.length, 1);
  assert.equal((await uploader.step()).id, first.id); // the page that ended did not see the response
  assert.equal(uploader.prepareEndUpload(documents, undefined), undefined);
  conditions.now += DAY / 4;
  await uploader.sendAtPageEnd(documents.device, first); // the other tab's, which had it yesterday
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
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(n, 2);
});
