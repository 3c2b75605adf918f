// Registries for tests, sealed as `rappor collects --json` seals them.

import { toHex } from "../../../client/javascript/src/bytes.js";
import { sha256 } from "../../../client/javascript/src/hashes.js";
import { ONE, fingerprints } from "../../../client/javascript/src/params.js";

/** Strings under `balanced`, and two categories under `strict`. */
export const WORDS = {
  ...{ v: 1, encoding: "bloom", k: 128, h: 1, m: 128 },
  ...{ f: 114842485, f0: 1717986919, p: 435686857, q: 3288681509 },
};
const THEMES = {
  ...{ v: 1, encoding: "onehot", k: 2, h: 1, m: 1, categories: ["light", "dark"] },
  ...{ f: 1155094610, p: 1009333258, q: 3285634038 },
};

/** Return a sealed registry of metrics. The total is a text. */
export async function registryOf(metrics, total = "Infinity") {
  return sealed({ v: 1, total, metrics: await Promise.all(metrics) });
}

/** Return a document with the seal of its text. */
export async function sealed(rest) {
  return { ...rest, seal: toHex(await sha256(JSON.stringify(rest))) };
}

/** Return a metric with a parameter set; one report a day, for life unless `fields` have an epoch. */
export async function findMetric(name, params, fields = {}) {
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
  return registryOf(names.map((name) => findMetric(name, WORDS, { epoch: "year" })));
}

/** The registry of most tests: `page` has strings, `theme` has categories. */
export const REGISTRY = await registryOf(
  [findMetric("page", WORDS, { epoch: "year" }), findMetric("theme", THEMES, { epoch: "quarter" })],
  "28",
);

/** A registry of a durable metric and of another one. */
export const DURABLE = await registryOf([
  findMetric("end", WORDS, { epoch: "year", durable: true }),
  findMetric("page", WORDS, { epoch: "year", durable: false }),
]);
