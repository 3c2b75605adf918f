// Registries for tests, sealed as `rappor collects --json` seals them.

import { toHex } from "../../../client/javascript/src/bytes.js";
import { sha256 } from "../../../client/javascript/src/hashes.js";
import { ONE, fingerprints } from "../../../client/javascript/src/params.js";

/** Parameters of strings, of the profile `balanced`. Probabilities are thresholds of 32-bit integers. */
export const WORDS = {
  ...{ v: 1, encoding: "bloom", k: 128, h: 1, m: 128 },
  ...{ f: 114842485, f0: 1717986919, p: 435686857, q: 3288681509 },
};
/** Parameters of two categories, of the profile `strict`. */
const THEMES = {
  ...{ v: 1, encoding: "onehot", k: 2, h: 1, m: 1, categories: ["light", "dark"] },
  ...{ f: 1155094610, p: 1009333258, q: 3285634038 },
};

/** Return a sealed registry of metrics. The total, in nats, is a text. */
export async function registryOf(metrics, total = "Infinity") {
  return seal({ v: 1, total, metrics: await Promise.all(metrics) });
}

/** Return a document with its seal, the hash of its text. */
export async function seal(document) {
  return { ...document, seal: toHex(await sha256(JSON.stringify(document))) };
}

/** Return a metric of a parameter set. It has one report a day and is for life, unless `fields` say otherwise. */
export async function metricOf(name, params, fields = {}) {
  const { fingerprint } = await fingerprints(params);
  return {
    name,
    description: "d",
    owner: "o",
    expires: "2999-12-31",
    epoch: "life",
    interval: "day",
    sampling_rate: ONE,
    params,
    fingerprint,
    parts: [],
    segments: [],
    notice: "",
    ...fields,
  };
}

/** Return a sealed registry of metrics of strings, one for each name. */
export async function registryOfWords(names) {
  return registryOf(names.map((name) => metricOf(name, WORDS, { epoch: "year" })));
}

/** Registry of most tests: `page` has strings, `theme` has categories. */
export const REGISTRY = await registryOf(
  [metricOf("page", WORDS, { epoch: "year" }), metricOf("theme", THEMES, { epoch: "quarter" })],
  "28",
);

/** Registry of a durable metric, `end`, and of a metric that is not durable, `page`. */
export const DURABLE = await registryOf([
  metricOf("end", WORDS, { epoch: "year", durable: true }),
  metricOf("page", WORDS, { epoch: "year", durable: false }),
]);
