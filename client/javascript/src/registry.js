// The registry of a page: the sealed JSON that `rappor collects --json` writes.
//
// The command has checked every entry. The seal, a SHA-256 of the other keys, shows that nobody has edited the
// document since, so this module does not repeat the checks. It computes the fingerprints anew: a client that
// disagrees with the writer about the protocol must not send reports.

import { toHex } from "./bytes.js";
import { MetricError, requireEntry } from "./errors.js";
import { sha256 } from "./hashes.js";
import { readParams, readParamsInSegment } from "./params.js";
import { INTERVAL_SECONDS } from "./periods.js";
import { chooseSegment } from "./segments.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").MetricDocument} MetricDocument */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").RegistryDocument} RegistryDocument */

/**
 * Read a registry.
 * @param {RegistryDocument} document
 * @param {Record<string, string>} [properties] public properties of the device, for the segments of its reports
 * @returns {Promise<Registry>}
 * @throws {MetricError} the document was edited, or has a key that this client does not support
 * @throws {ParamsError} an encoding, a normalizer or an interval is unknown
 */
export async function readRegistry(document, properties = {}) {
  const { seal, ...sealed } = document ?? {};
  // JSON.stringify writes the keys in the order of the document, as the seal needs it. Only version 1 is known.
  if (seal !== toHex(await sha256(JSON.stringify(sealed))) || sealed.v !== 1) throw createSealError();
  const metrics = new Map();
  for (const entry of sealed.metrics) {
    // The cost of a metric depends on its interval. The cost of an unknown interval would be NaN, below every budget.
    requireEntry(INTERVAL_SECONDS, "interval", entry.interval);
    metrics.set(entry.name, await readMetric(entry, properties));
  }
  return { total: Number(sealed.total), metrics };
}

/**
 * Return a metric of a registry.
 * @param {Registry} registry
 * @param {string} name
 * @returns {Metric}
 * @throws {MetricError} the metric is unknown
 */
export function findMetric({ metrics }, name) {
  const metric = metrics.get(name);
  if (!metric) {
    throw new MetricError(`unknown metric; expected one of ${[...metrics.keys()]}`);
  }
  return metric;
}

/**
 * Return the parameter sets that reports of a metric may have: one set, or one for each part.
 * @param {Metric} metric
 */
export function listAcceptedParams({ params, parts }) {
  return parts.length ? parts.map((part) => part.params) : [params];
}

/**
 * Read a metric, with the parameter set of the device's segment for the metric and for each of its parts.
 * @param {MetricDocument} entry
 * @param {Record<string, string>} properties
 * @returns {Promise<Metric>}
 */
async function readMetric(entry, properties) {
  const segment = entry.segments.length ? chooseSegment(entry.segments, properties) : undefined;
  const readAndCheck = async (/** @type {string} */ fingerprint, /** @type {string} */ part) => {
    const params = await readParams(entry.params, part);
    // The writer and this client disagree about the protocol: a collector would refuse the reports.
    if (params.fingerprint !== fingerprint) throw createSealError();
    return segment ? readParamsInSegment(entry.params, part, segment) : params;
  };
  const parts = entry.parts.map(async (part) => ({
    ...part,
    params: await readAndCheck(part.fingerprint, part.name),
  }));
  const params = await readAndCheck(entry.fingerprint, "");
  return { ...entry, params, parts: await Promise.all(parts) };
}

function createSealError() {
  return new MetricError("a registry must be as `rappor collects --json` wrote it");
}
