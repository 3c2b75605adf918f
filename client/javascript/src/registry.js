// The registry of a page, as `rappor collects --json` writes it. Its seal is the SHA-256 of the rest, so
// the checks of the writer need not be repeated, and a document without the seal is refused.

import { hex } from "./bytes.js";
import { MetricError } from "./errors.js";
import { sha256 } from "./hashes.js";
import { inSegment, readParams } from "./params.js";
import { segmentOf } from "./segments.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").MetricDocument} MetricDocument */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").RegistryDocument} RegistryDocument */

/**
 * Read a registry; MetricError for a document that was changed or that this client cannot follow.
 * @param {RegistryDocument} document
 * @param {Record<string, string>} [properties] public properties of the device
 * @returns {Promise<Registry>}
 */
export async function readRegistry(document, properties = {}) {
  const { seal, ...rest } = document ?? {};
  if (seal !== hex(await sha256(JSON.stringify(rest))) || rest.v !== 1) throw notWritten();
  const metrics = new Map();
  for (const entry of rest.metrics) {
    refuseRemoved(entry);
    metrics.set(entry.name, await readMetric(entry, properties));
  }
  return { total: Number(rest.total), metrics };
}

/**
 * Return a metric of a registry; MetricError for an unknown name.
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
 * Return the parameter sets that reports of a metric may have: one, or one for each part.
 * @param {Metric} metric
 */
export function acceptedParams({ params, parts }) {
  return parts.length ? parts.map((part) => part.params) : [params];
}

/**
 * Refuse an entry with a key or value of an earlier version, and name the replacement.
 * @param {MetricDocument & { patterns?: unknown }} entry
 */
function refuseRemoved({ name, patterns, interval, params }) {
  const { encoding, other } = /** @type {{ encoding: string, other?: unknown }} */ (params);
  /** @type {[boolean, string][]} */
  const removed = [
    [other !== undefined, "other is removed: list the known strings in candidates of a bloom metric"],
    [encoding === "flags", "encoding must not be flags: use a boolean metric for each flag"],
    [patterns !== undefined, "patterns is removed: use a shorter epoch for a value that changes"],
    [!["day", "week", "epoch"].includes(interval), `interval must be day, week or epoch, got ${interval}`],
  ];
  const [sentence] = removed.filter(([isThere]) => isThere).map(([, text]) => text);
  if (sentence) throw new MetricError(`metric ${name}: ${sentence}`);
}

/**
 * @param {MetricDocument} entry
 * @param {Record<string, string>} properties
 * @returns {Promise<Metric>}
 */
async function readMetric(entry, properties) {
  const segment = entry.segments.length ? segmentOf(entry.segments, properties) : undefined;
  const read = async (/** @type {string} */ fingerprint, /** @type {string} */ part) => {
    const params = await readParams(entry.params, part);
    // The writer and this client disagree on the protocol: their reports would be refused.
    if (params.fingerprint !== fingerprint) throw notWritten();
    return segment ? inSegment(entry.params, part, segment) : params;
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
