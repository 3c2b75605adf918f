// Exact distributions of the randomizer: the real code runs for every outcome of the coins, with its weight.

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
import { findMetric, registryOf } from "./registries.mjs";

const ONE = 2 ** 32;
const F = ONE / 4; // the threshold of f/2, so f is one half
const P = ONE / 4;
const Q = (3 * ONE) / 4;

/** Call a function with every tuple of k coins, one coin of each range between thresholds, and with its probability. */
function enumerateCoins(k, thresholds, call) {
  const edges = [0, ...new Set(thresholds), ONE];
  const ranges = edges.slice(1).map((end, i) => [edges[i], (end - edges[i]) / ONE]);
  const extend = (coins, weight) => {
    if (coins.length === k) call(coins, weight);
    else for (const [coin, share] of ranges) extend([...coins, coin], weight * share);
  };
  extend([], 1);
}

/** Return the probabilities of all responses of k bits, by their first byte. */
function distribution(k, thresholds, respond) {
  const probabilities = new Map();
  enumerateCoins(k, thresholds, (coins, weight) => {
    const [response] = respond(() => coins);
    probabilities.set(response, (probabilities.get(response) ?? 0) + weight);
  });
  return probabilities;
}

for (const k of [1, 2, 3]) {
  test(`each of ${k} bits is forced and reported with the probabilities of the paper`, () => {
    const params = { k, f: F, f0: F, p: P, q: Q };
    for (let truth = 0; truth < 2 ** k; truth++) {
      const bits = Uint8Array.of(truth);
      const permanent = distribution(k, [F, 2 * F], (coins) => drawPermanentResponse(bits, params, coins));
      const instant = distribution(k, [P, Q], (coins) => drawInstantaneousResponse(bits, params, coins));
      for (let response = 0; response < 2 ** k; response++) {
        // Bits are independent. With f = 1/2, p = 1/4 and q = 3/4 both responses keep a bit with probability 3/4.
        let expected = 1;
        for (let i = 0; i < k; i++) {
          const isKept = ((truth >> i) & 1) === ((response >> i) & 1);
          expected *= isKept ? 0.75 : 0.25;
        }
        assert.equal(permanent.get(response), expected);
        assert.equal(instant.get(response), expected);
      }
    }
  });
}

test("a coin below the threshold is a hit, and a coin equal to the threshold is not", () => {
  const params = { k: 1, f: F, f0: F, p: P, q: Q };
  const one = (bit, u) => drawInstantaneousResponse(Uint8Array.of(bit), params, () => [u])[0];
  assert.deepEqual([one(0, P - 1), one(0, P), one(1, Q - 1), one(1, Q)], [1, 0, 1, 0]);
  const kept = (bit, u) => drawPermanentResponse(Uint8Array.of(bit), params, () => [u])[0];
  assert.deepEqual([kept(0, F - 1), kept(1, F), kept(1, 2 * F - 1), kept(1, 2 * F)], [1, 0, 0, 1]);
  const parts = [{ name: "a", threshold: F }, { name: "b", threshold: P }, { name: "c" }];
  const chosen = [0, F - 1, F, F + P - 1, F + P, ONE - 1].map((u) => choosePart(parts, u).name);
  assert.deepEqual(chosen, ["a", "a", "b", "b", "c", "c"]);
});

test("with q = 1 a permanent 1 is always reported as 1", () => {
  const report = drawInstantaneousResponse(Uint8Array.of(1), { k: 1, p: 0, q: ONE }, () => [ONE - 1]);
  assert.deepEqual([...report], [1]);
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
  const registry = await registryOf([findMetric("theme", DOCUMENT)]);
  for (const history of histories(["a", "b", "c"], 4)) {
    const { responses } = await sources(registry, history);
    assert.deepEqual([responses.length, new Set(responses).size], [4, 1]);
    const { responses: first } = await sources(registry, [history[0]]);
    assert.equal(responses[0], first[0]);
  }
});

test("the loss of any pair of histories is the loss that the client states", async () => {
  const registry = await registryOf([findMetric("theme", DOCUMENT)]);
  const params = await readParams(DOCUMENT);
  for (const n of [1, 2, 3]) {
    const { nats } = await sources(registry, Array(n).fill("a"));
    assert.equal(nats, epsilonReports([[params, n]]));
    assert.ok(Math.abs(exactLoss(n) - nats) < 1e-12);
  }
  assert.ok(exactLoss(3) < epsilonReports([[params, Infinity]]));
});

test("two Bloom filters differ most if one has h bits and the other the remaining bits", () => {
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

/** Return the largest log-ratio of n reports of two values, over all outcomes of the coins. */
function exactLoss(n) {
  const params = { k: 2, f: F, f0: F, p: P, q: Q };
  const reports = [1, 2].map((bits) => {
    const probabilities = new Map(); // of the lists of n reports
    enumerateCoins(2, [F, 2 * F], (coins, weight) => {
      const permanent = drawPermanentResponse(Uint8Array.of(bits), params, () => coins);
      const ofOne = distribution(2, [P, Q], (system) => drawInstantaneousResponse(permanent, params, system));
      for (const list of histories([...ofOne.keys()], n)) {
        const probability = list.reduce((product, report) => product * ofOne.get(report), weight);
        const key = list.join();
        probabilities.set(key, (probabilities.get(key) ?? 0) + probability);
      }
    });
    return probabilities;
  });
  const [first, second] = reports;
  return Math.max(...[...first].map(([key, probability]) => Math.log(probability / second.get(key))));
}
