// The registry of a page: the sealed JSON that the command `rappor collects --json` writes.
//
//     {
//       "v": 1,
//       "total": "20",
//       "metrics": [{ "name": "theme", "params": { ... }, "fingerprint": "...", ... }],
//       "seal": "..."
//     }
//
// The command has checked every metric and the budget. The seal is a SHA-256 of the other keys. A correct seal shows that
// the document was not edited since, so this module does not repeat the checks. (Anybody can compute a seal: it protects
// from mistakes, not from attackers.)
//
// The fingerprints of the parameter sets are computed again and compared. If they differ, this client and the command
// disagree about the protocol. Its reports would be refused or decoded wrongly, so the registry is refused.

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
  // JSON.stringify writes the keys in the order of the document, in which the command has hashed them. This client
  // knows version 1 only.
  if (seal !== toHex(await sha256(JSON.stringify(sealed))) || sealed.v !== 1) throw createSealError();
  const metrics = new Map();
  for (const entry of sealed.metrics) {
    // The cost of a metric depends on its interval. For an unknown interval it would be NaN, and no comparison of NaN
    // with the budget would refuse the metric.
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
 * Return the parameter sets that reports of a metric may have: the set of each part, or the set of the metric if the
 * metric has no parts.
 * @param {Metric} metric
 */
export function listAcceptedParams({ params, parts }) {
  return parts.length ? parts.map((part) => part.params) : [params];
}

/**
 * Read a metric: its parameter set and the sets of its parts, each for the segment of the device (segments.js).
 * @param {MetricDocument} entry
 * @param {Record<string, string>} properties
 * @returns {Promise<Metric>}
 */
async function readMetric(entry, properties) {
  const segment = entry.segments.length ? chooseSegment(entry.segments, properties) : undefined;
  const readAndCheck = async (/** @type {string} */ fingerprint, /** @type {string} */ part) => {
    const params = await readParams(entry.params, part);
    // Bad case: the command that wrote the registry has another version of the protocol than this client.
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

/** Return the error for a registry that somebody has edited, or that belongs to another version of the protocol. */
function createSealError() {
  return new MetricError("a registry must be as `rappor collects --json` wrote it");
}
