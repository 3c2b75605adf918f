// What changed registries, lower limits and clocks leave of a device's budget and of its scopes.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "../../../client/javascript/index.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { metricOf, registryOf } from "./registries.mjs";

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
    for (const [name, value] of values) outcomes.push(await client.record(name, value));
    return { client, outcomes };
  } finally {
    console.warn = silently.warn;
  }
}

test("what is reserved stays when a later registry needs less, and makes room for nobody", async () => {
  const store = memoryStore();
  await recorded(store, [yearly("page", 2)], "4.4", [["page", "a"]]);
  const fewer = [yearly("page", 1), yearly("theme", 1)];
  const values = [["page", "a"], ["theme", "a"]];
  const { client, outcomes } = await recorded(store, fewer, "4.4", values);
  assert.deepEqual(outcomes, ["recorded", "silent"]);
  assert.deepEqual((await client.spent()).reserved, { 2026: 2 * PRICE });
});

test("a metric that the budget has no room for takes none from the next one", async () => {
  const metrics = [yearly("large", 3), yearly("small", 1)];
  const values = [["large", "a"], ["small", "a"]];
  const { outcomes } = await recorded(memoryStore(), metrics, "3", values);
  assert.deepEqual(outcomes, ["silent", "recorded"]);
});

test("a metric that has reserved more than a lower total takes no room from another one", async () => {
  const store = memoryStore();
  const metrics = [yearly("large", 3), yearly("small", 1)];
  const values = [["large", "a"], ["small", "a"]];
  assert.deepEqual((await recorded(store, metrics, "10", values)).outcomes, ["recorded", "recorded"]);
  assert.deepEqual((await recorded(store, metrics, "3", values)).outcomes, ["silent", "recorded"]);
});

test("a metric that has reserved comes before one that has not", async () => {
  const store = memoryStore();
  await recorded(store, [yearly("old", 1)], "3", [["old", "a"]]);
  const both = [yearly("new", 1), yearly("old", 1)];
  const { outcomes } = await recorded(store, both, "3", [["new", "a"], ["old", "a"]]);
  assert.deepEqual(outcomes, ["silent", "recorded"]);
});

test("a scope keeps to the fewest patterns that a registry has asked for in its epoch", async () => {
  const steps = [
    [1, "a", "recorded"],
    [2, "b", "repeated"],
  ];
  const store = memoryStore();
  for (const [patterns, value, outcome] of steps) {
    const { outcomes } = await recorded(store, [yearly("page", patterns)], "Infinity", [["page", value]]);
    assert.deepEqual(outcomes, [outcome]);
  }
});

test("a registry that asks for fewer patterns lets no other value enter a scope", async () => {
  const store = memoryStore();
  await recorded(store, [yearly("page", 2)], "Infinity", [["page", "a"]]);
  const values = [["page", "b"], ["page", "a"]];
  const { outcomes } = await recorded(store, [yearly("page", 1)], "Infinity", values);
  assert.deepEqual(outcomes, ["repeated", "recorded"]);
});

test("a registry that asks for fewer patterns than a scope has admitted closes it", async () => {
  const store = memoryStore();
  await recorded(store, [yearly("page", 2)], "Infinity", [["page", "a"], ["page", "b"]]);
  const values = [["page", "a"], ["page", "b"]];
  const { outcomes } = await recorded(store, [yearly("page", 1)], "Infinity", values);
  assert.deepEqual(outcomes, ["repeated", "recorded"]);
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
  for (const epoch of ["life", "year", "quarter", "month"]) {
    for (const interval of ["none", "week"]) {
      for (const [now, day] of times) {
        const metric = metricOf("page", PARAMS, { epoch, interval, expires: "9999-12-31" });
        const values = [["page", "a"]];
        const { client, outcomes } = await recorded(memoryStore(), [metric], "Infinity", values, () => now);
        assert.deepEqual(outcomes, [interval === "none" ? "recorded" : "held"]);
        if (interval === "week") continue;
        assert.equal((await client.flush()).reason, "sent");
        assert.equal((await client.log())[0].day, day);
      }
    }
  }
});
