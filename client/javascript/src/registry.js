// What is collected, as `rappor collects --json` writes it. Its seal is a SHA-256 of all of it, so
// what was checked when it was written need not be checked again, and nothing else is read.

import { hex, utf8 } from "./bytes.js";
import { MetricError } from "./errors.js";
import { sha256 } from "./hashes.js";
import { readParams } from "./params.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").MetricDocument} MetricDocument */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").RegistryDocument} RegistryDocument */

/**
 * Read a registry; MetricError for one that was changed, or that this client cannot follow.
 * @param {RegistryDocument} document
 * @returns {Promise<Registry>}
 */
export async function readRegistry(document) {
  const { seal, ...rest } = document;
  if (seal !== hex(await sha256(utf8(JSON.stringify(rest)))) || rest.v !== 1) {
    throw notWritten();
  }
  const metrics = new Map();
  for (const entry of rest.metrics) metrics.set(entry.name, await readMetric(entry));
  return { total: Number(rest.total), metrics };
}

/**
 * Return a metric of a registry; MetricError for a name that it does not have.
 * @param {Registry} registry
 * @param {string} name
 * @returns {Metric}
 */
export function metricOf({ metrics }, name) {
  const metric = metrics.get(name);
  if (!metric) {
    throw new MetricError(`unknown metric; expected one of ${[...metrics.keys()]}`);
  }
  return metric;
}

/**
 * @param {MetricDocument} entry
 * @returns {Promise<Metric>}
 */
async function readMetric(entry) {
  const read = async (/** @type {string} */ fingerprint, /** @type {string} */ part) => {
    const params = await readParams(entry.params, part);
    if (params.fingerprint === fingerprint) return params;
    throw notWritten();
  };
  const parts = entry.parts.map(async (part) => ({
    ...part,
    params: await read(part.fingerprint, part.name),
  }));
  const params = await read(entry.fingerprint, "");
  return { ...entry, params, parts: await Promise.all(parts) };
}

function notWritten() {
  return new MetricError("a registry must be as `rappor collects --json` wrote it");
}

/**
 * Return the parameters that reports of a metric may carry: one set, or one for each part.
 * @param {Metric} metric
 */
export function acceptedParams({ params, parts }) {
  return parts.length ? parts.map((part) => part.params) : [params];
}
