// What changed registries, lower limits and clocks leave of a device's budget and of its scopes.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, MetricError } from "../../../client/javascript/index.js";
import { intervalAt } from "../../../client/javascript/src/calendar.js";
import { fingerprints } from "../../../client/javascript/src/params.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { told } from "./told.mjs";
import { metricOf, registryOf, sealed } from "./registries.mjs";

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
const PRICE = 2.198; // of one pattern: 2 ln 3, rounded up
const NOON = Date.UTC(2026, 10, 18, 12) / 1000;
const ACCEPTED = JSON.stringify({ reports: [{ status: "accepted" }] });
const silently = { warn: console.warn };

/** Return a metric of the year. */
const yearly = (name, patterns) => metricOf(name, PARAMS, { patterns, epoch: "year" });

/** Return what a device in a store answers to the values of a registry's metrics, in order. */
async function recorded(store, metrics, total, values, clock = () => NOON) {
  const registry = await registryOf(await Promise.all(metrics), total);
  const transport = { send: async () => ({ status: 200, body: ACCEPTED }) };
  const usual = { consent: true, background: false, store, transport, clock };
  console.warn = () => {};
  try {
    const client = await Client.open({ registry, ...usual });
    const outcomes = [];
    for (const [name, value] of values) outcomes.push(await told(client, name, value));
    return { client, outcomes };
  } finally {
    console.warn = silently.warn;
  }
}

test("what was held when another value closed its scope leaves as that one's report", async () => {
  const store = memoryStore();
  let now = NOON;
  const day = metricOf("page", PARAMS, { epoch: "year", interval: "day" });
  const held = await recorded(store, [day], "Infinity", [["page", "a"]], () => now);
  assert.deepEqual(held.outcomes, ["kept"]);
  const values = [["page", "b"]];
  const { client, outcomes } = await recorded(store, [yearly("page", 1)], "Infinity", values, () => now);
  assert.deepEqual(outcomes, ["kept"]);
  now += 86_400;
  assert.equal(await told(client, "page", "b"), "kept");
  const [{ admitted }, ...others] = store.documents.device.scopes;
  assert.deepEqual([Object.values(admitted).map(Object.values), others], [[[3]], []]);
});

test("what was held when its scope began with other noise leaves with that noise", async () => {
  const store = memoryStore();
  let now = NOON;
  const fields = { epoch: "year", interval: "day" };
  await recorded(store, [metricOf("page", PARAMS, fields)], "Infinity", [["page", "a"]], () => now);
  const other = metricOf("page", { ...PARAMS, p: QUARTER / 2 }, { epoch: "year" });
  const { client } = await recorded(store, [other], "Infinity", [["page", "a"]], () => now);
  now += 86_400;
  await told(client, "page", "a");
  const { fingerprint } = await other;
  const named = store.documents.spool.reports.map(({ params }) => params);
  assert.deepEqual(named, [fingerprint, fingerprint, fingerprint]);
});

test("a device that has answered for a part stays with it when the shares change", async () => {
  const words = { ...PARAMS, encoding: "bloom", k: 16, categories: undefined };
  const names = ["prefix:2", "whole"];
  const [prefix, whole] = await Promise.all(
    names.map(async (part) => (await fingerprints({ ...words, part })).fingerprint),
  );
  const shared = (threshold) => [
    { name: names[0], threshold, fingerprint: prefix },
    { name: names[1], fingerprint: whole },
  ];
  const store = memoryStore();
  for (const threshold of [0, 2 ** 32]) {
    const metric = metricOf("page", words, { epoch: "year", parts: shared(threshold) });
    const { outcomes } = await recorded(store, [metric], "Infinity", [["page", "abc"]]);
    assert.deepEqual(outcomes, ["kept"]);
  }
  assert.deepEqual(store.documents.spool.reports.map(({ params }) => params), [whole, whole]);
});

test("a clock that tells no day of a calendar reads as its last year or its first day", async () => {
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
      const held = await recorded(memoryStore(), [weekly], "Infinity", values, () => now);
      assert.deepEqual(held.outcomes, ["kept", "kept"]);
      const metric = metricOf("page", PARAMS, fields);
      const told = await recorded(memoryStore(), [metric], "Infinity", values, () => now);
      assert.deepEqual(told.outcomes, ["kept", "kept"]);
      assert.equal((await told.client.flush()).reason, "sent");
      assert.equal((await told.client.log())[0].day, day);
    }
  }
});

test("a loss without a bound stays a number", async () => {
  const store = memoryStore();
  const certain = metricOf("page", { ...PARAMS, f: 0, p: 0, q: 4 * QUARTER });
  const values = [["page", "a"], ["page", "a"]];
  const { client } = await recorded(store, [certain], "Infinity", values);
  assert.equal((await client.spent()).nats, Infinity);
});

test("a registry of another version is refused, whatever its seal", async () => {
  const later = await sealed({ v: 2, total: "Infinity", metrics: [] });
  await assert.rejects(Client.open({ registry: later, consent: true, store: memoryStore() }), MetricError);
});

test("of an interval's events the one with the smallest tag is held", async () => {
  const tags = [7, 9, 3, 5, 2];
  const coins = (n) => (n === 2 ? [tags.shift(), 0] : new Uint32Array(n));
  const store = memoryStore();
  const registry = await registryOf([await metricOf("page", PARAMS, { epoch: "year", interval: "day" })]);
  const client = await Client.open({ registry, consent: true, store, coins, clock: () => NOON });
  let n = 0;
  const { update } = store;
  store.update = (...words) => ((n += 1), update(...words));
  const held = [];
  for (const value of ["a", "b", "a", "b", "c"]) {
    await told(client, "page", value);
    const [{ tag }] = Object.values(store.documents.device.held);
    held.push([Number.parseInt(tag.slice(0, 8), 16), n]);
    n = 0;
  }
  // a change for the event, and one for its permanent response; none for a larger tag
  assert.deepEqual(held, [[7, 2], [7, 0], [3, 2], [3, 0], [2, 2]]);
});
