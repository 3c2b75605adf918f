// Budget and scopes of a device under changed registries, lower caps and wrong clocks.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, MetricError, ParamsError } from "../../../client/javascript/index.js";
import { fingerprints } from "../../../client/javascript/src/params.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";
import { metricOf, registryOf, seal } from "./registries.mjs";

const QUARTER = 2 ** 30; // the threshold of a probability of one quarter
const PARAMS = {
  v: 1,
  encoding: "onehot",
  k: 3,
  h: 1,
  m: 1,
  f: QUARTER,
  p: QUARTER,
  q: 3 * QUARTER,
  categories: ["a", "b", "c"],
};
const NOON = Date.UTC(2026, 10, 18, 12) / 1000;
const originalWarn = console.warn;

/** Open a device in a store and record values in order, without warnings; return the client and the outcomes. */
async function openAndRecord(store, metrics, total, values, clock = () => NOON) {
  const registry = await registryOf(await Promise.all(metrics), total);
  console.warn = () => {};
  try {
    const client = await Client.open({ registry, consent: true, background: false, store, clock });
    const outcomes = [];
    for (const [name, value] of values) outcomes.push(await outcomeOf(client, name, value));
    return { client, outcomes };
  } finally {
    console.warn = originalWarn;
  }
}

test("a pending report leaves with the permanent response of its scope, whatever is recorded since", async () => {
  const store = memoryStore();
  let now = NOON;
  const metric = metricOf("page", PARAMS, { epoch: "year" });
  const days = [["a", "b"], ["b", "c"], ["c", "a"]];
  const { client } = await openAndRecord(store, [metric], "Infinity", [], () => now);
  const responses = [];
  for (const values of days) {
    for (const value of values) assert.equal(await outcomeOf(client, "page", value), "recorded");
    responses.push(Object.values(store.documents.device.pending)[0].report.permanent);
    now += 86_400;
  }
  await outcomeOf(client, "page", "a");
  const { scopes } = store.documents.device;
  assert.equal(scopes.length, 1);
  const [{ permanent, reports }] = scopes;
  assert.deepEqual(Object.values(reports), [3]);
  assert.equal(permanent, responses[0]);
  assert.deepEqual(new Set(responses.slice(1)), new Set([permanent]));
});

test("an epoch keeps the noise and the interval of its first report", async () => {
  const store = memoryStore();
  let now = NOON;
  const metric = metricOf("page", PARAMS, { epoch: "year" });
  const { client } = await openAndRecord(store, [metric], "Infinity", [["page", "a"]], () => now);
  now += 86_400;
  await outcomeOf(client, "page", "a");
  const changed = metricOf("page", { ...PARAMS, p: QUARTER / 2 }, { epoch: "year", interval: "week" });
  const later = await openAndRecord(store, [changed], "Infinity", [["page", "a"]], () => now);
  for (let i = 0; i < 2; i++) {
    now += 86_400;
    await outcomeOf(later.client, "page", "a");
  }
  const { fingerprint } = await metric;
  const fingerprintsOfReports = store.documents.spool.reports.map(({ params }) => params);
  assert.deepEqual(fingerprintsOfReports, [fingerprint, fingerprint, fingerprint]);
});

test("an event of the last day of an epoch has no report, because it would leave in the next epoch", async () => {
  const metric = metricOf("page", PARAMS, { epoch: "quarter", interval: "epoch" });
  for (const [day, outcome] of [[29, "recorded"], [30, "recorded"], [31, "last day"]]) {
    const clock = () => Date.UTC(2026, 11, day, 12) / 1000;
    const { outcomes } = await openAndRecord(memoryStore(), [metric], "Infinity", [["page", "a"]], clock);
    assert.deepEqual(outcomes, [outcome]);
  }
});

test("a scope stays in force until its epoch ends under a registry with shorter epochs", async () => {
  const store = memoryStore();
  let now = NOON;
  const weekly = metricOf("page", PARAMS, { epoch: "year", interval: "week" });
  const monthly = metricOf("page", { ...PARAMS, p: QUARTER / 2 }, { epoch: "month", interval: "day" });
  await openAndRecord(store, [weekly], "Infinity", [["page", "a"]], () => now);
  now += 7 * 86_400;
  const { client } = await openAndRecord(store, [monthly], "Infinity", [["page", "b"]], () => now);
  now += 7 * 86_400; // in December, a month without a scope of its own
  await outcomeOf(client, "page", "c");
  const { scopes } = store.documents.device;
  assert.deepEqual(scopes.map(({ epoch, reports }) => [epoch, Object.values(reports)]), [["2026", [2]]]);
});

test("a device keeps the part that it has reported when the shares change", async () => {
  const words = { ...PARAMS, encoding: "bloom", k: 16, categories: undefined };
  const names = ["prefix:2", "whole"];
  const [prefix, whole] = await Promise.all(
    names.map(async (part) => (await fingerprints({ ...words, part })).fingerprint),
  );
  const partsOf = (threshold) => [
    { name: names[0], threshold, fingerprint: prefix },
    { name: names[1], fingerprint: whole },
  ];
  const store = memoryStore();
  // On the first day every device reports the whole value, and on later days every new device reports the prefix.
  for (const [day, threshold] of [0, 2 ** 32, 2 ** 32].entries()) {
    const metric = metricOf("page", words, { epoch: "year", parts: partsOf(threshold) });
    const clock = () => NOON + 86_400 * day;
    const { outcomes } = await openAndRecord(store, [metric], "Infinity", [["page", "abc"]], clock);
    assert.deepEqual(outcomes, ["recorded"]);
  }
  assert.deepEqual(store.documents.spool.reports.map(({ params }) => params), [whole, whole]);
});

test("a clock outside the years 1970 to 9999 reads as the first day or the last year", async () => {
  const times = [
    [Infinity, "9999-01-01"],
    [1e300, "9999-01-01"],
    [Date.UTC(10_000, 0, 1) / 1000, "9999-01-01"],
    [-1e300, "1970-01-01"],
    [NaN, "1970-01-01"],
    [undefined, "1970-01-01"],
  ];
  const values = [["page", "a"], ["page", "b"]];
  for (const epoch of ["life", "year", "quarter", "month"]) {
    for (const [now, day] of times) {
      const fields = { epoch, expires: "9999-12-31" };
      const weekly = metricOf("page", PARAMS, { ...fields, interval: "week" });
      const store = memoryStore();
      const device = await openAndRecord(store, [weekly], "Infinity", values, () => now);
      assert.deepEqual(device.outcomes, ["recorded", "recorded"]);
      const [{ rules }] = Object.values(store.documents.device.pending);
      assert.equal(rules.day, day);
    }
  }
});

test("an infinite loss does not become NaN", async () => {
  const store = memoryStore();
  const certain = metricOf("page", { ...PARAMS, f: 0, p: 0, q: 4 * QUARTER });
  let now = NOON;
  const { client } = await openAndRecord(store, [certain], "Infinity", [["page", "a"]], () => now);
  now += 86_400;
  await outcomeOf(client, "page", "a");
  assert.equal((await client.privacySpent()).nats, Infinity);
});

test("a registry of another version is refused although its seal is valid", async () => {
  const registry = await seal({ v: 2, total: "Infinity", metrics: [] });
  await assert.rejects(Client.open({ registry, consent: true, store: memoryStore() }), MetricError);
});

test("a registry with an unknown encoding or interval is refused", async () => {
  const flags = { ...PARAMS, encoding: "flags" };
  for (const [sentence, metric] of [
    [/^encoding must be one of bloom,onehot,boolean,buckets,set, got flags$/, metricOf("page", flags)],
    [/^interval must be one of day,week,epoch, got none$/, metricOf("page", PARAMS, { interval: "none" })],
    [/^interval must be one of day,week,epoch, got toString$/, metricOf("page", PARAMS, { interval: "toString" })],
  ]) {
    await assert.rejects(async () => {
      const registry = await registryOf([metric]);
      await Client.open({ registry, consent: true, store: memoryStore() });
    }, (error) => error instanceof ParamsError && sentence.test(error.message));
  }
});

test("the tables of the normalizer of each field are loaded", async () => {
  const pair = { ...PARAMS, fields: ["site", "country"], normalize: "host,none" };
  const registry = await registryOf([await metricOf("page", pair)]);
  const client = await Client.open({ registry, consent: true, store: memoryStore() });
  const value = { site: "https://a.org/x", country: "de" };
  assert.equal(await outcomeOf(client, "page", value), "recorded");
  assert.throws(() => client.record("page", { site: "https://a.org/x" }), /texts of site,country, got object/);
  await client.close();
});

test("the event with the smallest tag of its interval is pending", async () => {
  const tags = [7, 9, 3, 5, 2];
  const coins = (n) => (n === 2 ? [tags.shift(), 0] : new Uint32Array(n));
  const store = memoryStore();
  const registry = await registryOf([await metricOf("page", PARAMS, { epoch: "year", interval: "day" })]);
  const client = await Client.open({ registry, consent: true, store, coins, clock: () => NOON });
  let n = 0;
  const { update } = store;
  store.update = (...args) => ((n += 1), update(...args));
  const tagsAndChanges = [];
  for (const value of ["a", "b", "a", "b", "c"]) {
    await outcomeOf(client, "page", value);
    const [{ tag }] = Object.values(store.documents.device.pending);
    tagsAndChanges.push([Number.parseInt(tag.slice(0, 8), 16), n]);
    n = 0;
  }
  // The store changes for the event, and for its permanent response. It does not change for a larger tag.
  assert.deepEqual(tagsAndChanges, [[7, 2], [7, 0], [3, 2], [3, 0], [2, 2]]);
});
