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
import { metricOf, registryOf } from "./registries.mjs";

const ONE = 2 ** 32; // the threshold of the probability 1
const F = ONE / 4; // the threshold of f/2, so f is one half
const P = ONE / 4;
const Q = (3 * ONE) / 4;

/**
 * Call a function with every tuple of k coins, and with the probability of the tuple.
 *
 * Coins between two thresholds have the same effect. So the smallest coin of each range stands for its range.
 */
function enumerateCoins(k, thresholds, call) {
  const edges = [0, ...new Set(thresholds), ONE];
  const ranges = edges.slice(1).map((end, i) => [edges[i], (end - edges[i]) / ONE]);
  const extend = (coins, probability) => {
    if (coins.length === k) call(coins, probability);
    else for (const [coin, rangeProbability] of ranges) extend([...coins, coin], probability * rangeProbability);
  };
  extend([], 1);
}

/** Return the probabilities of all responses of k bits, by their first byte. */
function computeDistribution(k, thresholds, respond) {
  const probabilities = new Map();
  enumerateCoins(k, thresholds, (coins, probability) => {
    const [response] = respond(() => coins);
    probabilities.set(response, (probabilities.get(response) ?? 0) + probability);
  });
  return probabilities;
}

for (const k of [1, 2, 3]) {
  test(`each of ${k} bits is forced and reported with the probabilities of the paper`, () => {
    const params = { k, f: F, f0: F, p: P, q: Q };
    for (let truth = 0; truth < 2 ** k; truth++) {
      const bits = Uint8Array.of(truth);
      const permanent = computeDistribution(k, [F, 2 * F], (coins) => drawPermanentResponse(bits, params, coins));
      const instant = computeDistribution(k, [P, Q], (coins) => drawInstantaneousResponse(bits, params, coins));
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
  const report = (bit, u) => drawInstantaneousResponse(Uint8Array.of(bit), params, () => [u])[0];
  assert.deepEqual([report(0, P - 1), report(0, P), report(1, Q - 1), report(1, Q)], [1, 0, 1, 0]);
  // A coin below F forces a 1, a coin from F to 2F forces a 0, and any other coin keeps the bit.
  const permanent = (bit, u) => drawPermanentResponse(Uint8Array.of(bit), params, () => [u])[0];
  const responses = [permanent(0, F - 1), permanent(1, F), permanent(1, 2 * F - 1), permanent(1, 2 * F)];
  assert.deepEqual(responses, [1, 0, 0, 1]);
  const parts = [{ name: "a", threshold: F }, { name: "b", threshold: P }, { name: "c" }];
  const names = [0, F - 1, F, F + P - 1, F + P, ONE - 1].map((u) => choosePart(parts, u).name);
  assert.deepEqual(names, ["a", "a", "b", "b", "c", "c"]);
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

/** Record one value a day; return the permanent response of each report, and the privacy loss. */
async function recordHistory(registry, history) {
  const store = memoryStore();
  const secretId = "m";
  store.documents = { identity: { secretId, secret: "A".repeat(43) }, device: createDevice(secretId) };
  let now = 0;
  const client = await Client.open({ registry, consent: true, store, background: false, clock: () => now });
  const responses = [];
  for (const value of [...history, history[0]]) {
    await outcomeOf(client, "theme", value); // finishes the report of the day before
    if (now) responses.push(store.documents.device.scopes[0].permanent);
    now += 86_400;
  }
  assert.equal(store.documents.device.scopes.length, 1);
  return { responses, nats: (await client.privacySpent()).nats };
}

/** Return every history of n values. */
function enumerateHistories(values, n) {
  if (!n) return [[]];
  return enumerateHistories(values, n - 1).flatMap((rest) => values.map((value) => [...rest, value]));
}

test("every history reports the permanent response of its first value alone", async () => {
  const registry = await registryOf([metricOf("theme", DOCUMENT)]);
  for (const history of enumerateHistories(["a", "b", "c"], 4)) {
    const { responses } = await recordHistory(registry, history);
    assert.deepEqual([responses.length, new Set(responses).size], [4, 1]);
    const { responses: first } = await recordHistory(registry, [history[0]]);
    assert.equal(responses[0], first[0]);
  }
});

test("the loss of any pair of histories is the loss that the client states", async () => {
  const registry = await registryOf([metricOf("theme", DOCUMENT)]);
  const params = await readParams(DOCUMENT);
  for (const n of [1, 2, 3]) {
    const { nats } = await recordHistory(registry, Array(n).fill("a"));
    assert.equal(nats, epsilonReports([[params, n]]));
    assert.ok(Math.abs(computeExactLoss(n) - nats) < 1e-12);
  }
  assert.ok(computeExactLoss(3) < epsilonReports([[params, Infinity]]));
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
function computeExactLoss(n) {
  const params = { k: 2, f: F, f0: F, p: P, q: Q };
  const [first, second] = [1, 2].map((bits) => {
    const probabilities = new Map(); // of each list of n reports
    enumerateCoins(2, [F, 2 * F], (coins, weight) => {
      const permanent = drawPermanentResponse(Uint8Array.of(bits), params, () => coins);
      const oneReport = computeDistribution(2, [P, Q], (draw) => drawInstantaneousResponse(permanent, params, draw));
      for (const list of enumerateHistories([...oneReport.keys()], n)) {
        const probability = list.reduce((product, report) => product * oneReport.get(report), weight);
        const key = list.join();
        probabilities.set(key, (probabilities.get(key) ?? 0) + probability);
      }
    });
    return probabilities;
  });
  return Math.max(...[...first].map(([key, probability]) => Math.log(probability / second.get(key))));
}
