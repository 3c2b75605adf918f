// Every way the coins can fall, with its exact weight: the distributions of the real code.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "../../../client/javascript/index.js";
import {
  choosePart,
  drawInstantaneousResponse,
  drawPermanentResponse,
} from "../../../client/javascript/src/randomizer.js";
import { computeLargestLoss } from "../../../client/javascript/src/encodings.js";
import { epsilonReports } from "../../../client/javascript/src/loss.js";
import { readParams } from "../../../client/javascript/src/params.js";
import { createDevice } from "../../../client/javascript/src/state.js";
import { memoryStore } from "../../../client/javascript/testing.js";
import { outcomeOf } from "./outcome.mjs";
import { metricOf, registryOf } from "./registries.mjs";

const ONE = 2 ** 32;
const F = ONE / 4; // the threshold of f/2, so f is one half
const P = ONE / 4;
const Q = (3 * ONE) / 4;

/** Call with every tuple of coins, one for each range between two thresholds, and its weight. */
function everyFall(k, thresholds, call) {
  const edges = [0, ...new Set(thresholds), ONE];
  const ranges = edges.slice(1).map((end, i) => [edges[i], (end - edges[i]) / ONE]);
  const fall = (coins, weight) => {
    if (coins.length === k) call(coins, weight);
    else for (const [coin, share] of ranges) fall([...coins, coin], weight * share);
  };
  fall([], 1);
}

/** Return the exact distribution of a response of k bits, by its first byte. */
function distribution(k, thresholds, respond) {
  const found = new Map();
  everyFall(k, thresholds, (coins, weight) => {
    const [answer] = respond(() => coins);
    found.set(answer, (found.get(answer) ?? 0) + weight);
  });
  return found;
}

for (const k of [1, 2, 3]) {
  test(`each of ${k} bits is kept, or random, as the paper says`, () => {
    const params = { k, f: F, f0: F, p: P, q: Q };
    for (let truth = 0; truth < 2 ** k; truth++) {
      const bits = Uint8Array.of(truth);
      const permanent = distribution(k, [F, 2 * F], (coins) => drawPermanentResponse(bits, params, coins));
      const instant = distribution(k, [P, Q], (coins) => drawInstantaneousResponse(bits, params, coins));
      for (let answer = 0; answer < 2 ** k; answer++) {
        let [kept, shown] = [1, 1];
        for (let i = 0; i < k; i++) {
          const [bit, told] = [(truth >> i) & 1, (answer >> i) & 1];
          kept *= bit === told ? 0.75 : 0.25;
          shown *= told ? (bit ? 0.75 : 0.25) : bit ? 0.25 : 0.75;
        }
        assert.equal(permanent.get(answer), kept);
        assert.equal(instant.get(answer), shown);
      }
    }
  });
}

test("a coin below its threshold hits, one at it does not", () => {
  const params = { k: 1, f: F, f0: F, p: P, q: Q };
  const one = (bit, u) => drawInstantaneousResponse(Uint8Array.of(bit), params, () => [u])[0];
  assert.deepEqual([one(0, P - 1), one(0, P), one(1, Q - 1), one(1, Q)], [1, 0, 1, 0]);
  const kept = (bit, u) => drawPermanentResponse(Uint8Array.of(bit), params, () => [u])[0];
  assert.deepEqual([kept(0, F - 1), kept(1, F), kept(1, 2 * F - 1), kept(1, 2 * F)], [1, 0, 0, 1]);
  const parts = [{ name: "a", threshold: F }, { name: "b", threshold: P }, { name: "c" }];
  const chosen = [0, F - 1, F, F + P - 1, F + P, ONE - 1].map((u) => choosePart(parts, u).name);
  assert.deepEqual(chosen, ["a", "a", "b", "b", "c", "c"]);
});

test("q may be certain", () => {
  const answer = drawInstantaneousResponse(Uint8Array.of(1), { k: 1, p: 0, q: ONE }, () => [ONE - 1]);
  assert.deepEqual([...answer], [1]);
});

// Histories of a one-hot metric: the exact loss over all reports, against the loss that the client states.

const DOCUMENT = {
  v: 1,
  encoding: "onehot",
  k: 2,
  h: 1,
  m: 1,
  f: F,
  p: P,
  q: Q,
  categories: ["a", "b"],
};

/** Record one value a day; return the permanent response behind each report, and the loss. */
async function sources(registry, history) {
  const store = memoryStore();
  const secretId = "m";
  store.documents = { identity: { secretId, secret: "A".repeat(43) }, device: createDevice(secretId) };
  let now = 0;
  const client = await Client.open({ registry, consent: true, store, background: false, clock: () => now });
  const responses = [];
  for (const value of [...history, history[0]]) {
    await outcomeOf(client, "theme", value); // releases the report of the day before
    if (now) responses.push(store.documents.device.scopes[0].permanent);
    now += 86_400;
  }
  assert.equal(store.documents.device.scopes.length, 1);
  return { responses, nats: (await client.privacySpent()).nats };
}

/** Return every history of a length over some values. */
function histories(values, n) {
  if (!n) return [[]];
  return histories(values, n - 1).flatMap((rest) => values.map((value) => [...rest, value]));
}

test("every history reports the permanent response of its first value alone", async () => {
  const registry = await registryOf([metricOf("theme", DOCUMENT)]);
  for (const history of histories(["a", "b", "c"], 4)) {
    const { responses } = await sources(registry, history);
    assert.deepEqual([responses.length, new Set(responses).size], [4, 1]);
    const { responses: first } = await sources(registry, [history[0]]);
    assert.equal(responses[0], first[0]);
  }
});

test("the loss of any pair of histories is the loss that the client states", async () => {
  const registry = await registryOf([metricOf("theme", DOCUMENT)]);
  const params = await readParams(DOCUMENT);
  for (const n of [1, 2, 3]) {
    const { nats } = await sources(registry, Array(n).fill("a"));
    assert.equal(nats, epsilonReports([[params, n]]));
    assert.ok(Math.abs(exactLoss(n) - nats) < 1e-12);
  }
  assert.ok(exactLoss(3) < epsilonReports([[params, Infinity]]));
});

test("two filters differ most where one has all hashes and the other has what is left", () => {
  const shapes = [
    ["bloom", 8, 2, 22],
    ["bloom", 3, 2, 21],
    ["bloom", 2, 2, 11],
    ["onehot", 3, 1, 11],
    ["buckets", 3, 1, 11],
    ["boolean", 1, 1, 10],
  ];
  for (const [encoding, k, h, loss] of shapes) {
    assert.equal(computeLargestLoss({ encoding, k, h }, 1, 10), loss);
    assert.equal(computeLargestLoss({ encoding, k, h }, 10, 1), loss);
  }
});

/** Return the largest log-ratio of n reports of two values, over every way the coins can fall. */
function exactLoss(n) {
  const params = { k: 2, f: F, f0: F, p: P, q: Q };
  const reports = [1, 2].map((bits) => {
    const found = new Map();
    everyFall(2, [F, 2 * F], (coins, weight) => {
      const permanent = drawPermanentResponse(Uint8Array.of(bits), params, () => coins);
      const one = distribution(2, [P, Q], (each) => drawInstantaneousResponse(permanent, params, each));
      for (const answers of histories([...one.keys()], n)) {
        const share = answers.reduce((product, answer) => product * one.get(answer), weight);
        const key = answers.join();
        found.set(key, (found.get(key) ?? 0) + share);
      }
    });
    return found;
  });
  const [first, second] = reports;
  return Math.max(...[...first].map(([key, share]) => Math.log(share / second.get(key))));
}
