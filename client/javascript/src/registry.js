// What is collected, as `rappor collects --json` writes it. Its seal is a SHA-256 of all of it, so
// what was checked when it was written need not be checked again, and nothing else is read.

import { hex } from "./bytes.js";
import { MetricError } from "./errors.js";
import { sha256 } from "./hashes.js";
import { inSegment, readParams } from "./params.js";
import { segmentOf } from "./segments.js";

/** @typedef {import("../index.js").Metric} Metric */
/** @typedef {import("../index.js").MetricDocument} MetricDocument */
/** @typedef {import("../index.js").Registry} Registry */
/** @typedef {import("../index.js").RegistryDocument} RegistryDocument */

const OTHER = ".other";

/**
 * Read a registry; MetricError for one that was changed, or that this client cannot follow.
 * @param {RegistryDocument} document
 * @param {Record<string, string>} [own] public properties of the device
 * @returns {Promise<Registry>}
 */
export async function readRegistry(document, own = {}) {
  const { seal, ...rest } = document ?? {};
  if (seal !== hex(await sha256(JSON.stringify(rest))) || rest.v !== 1) {
    throw notWritten();
  }
  const metrics = new Map();
  for (const entry of rest.metrics) metrics.set(entry.name, await readMetric(entry, own));
  return { total: Number(rest.total), metrics };
}

/**
 * Return the metrics that are answered together with one, or it alone; the first is what programs
 * record. MetricError for a name that the registry does not have.
 * @param {Registry} registry
 * @param {string} name
 * @returns {Metric[]}
 */
export function recordedBy(registry, name) {
  const [first, ...others] = together(registry, metricOf(registry, name).name);
  if (first !== name) throw new MetricError(`${name} is answered together with ${first}: record that`);
  return [first, ...others].map((each) => metricOf(registry, each));
}

/**
 * Return the names of what is answered together with a metric, known or not: categories, and what is
 * in their `other`.
 * @param {Registry} registry
 * @param {string} name
 */
export function together({ metrics }, name) {
  const pair = pairOf(stemOf(name));
  return pair.every((each) => metrics.get(each)?.params.other) ? pair : [name];
}

/** @param {string} name */
function stemOf(name) {
  return name.endsWith(OTHER) ? name.slice(0, -OTHER.length) : name;
}

/** @param {string} first */
function pairOf(first) {
  return [first, first + OTHER];
}

/**
 * Return the names that a person refuses with one: also what another version of the registry answers
 * together with it, whose reports may wait.
 * @param {Registry} registry
 * @param {string} name
 */
export function refusedWith(registry, name) {
  const names = new Set(together(registry, name));
  for (const pair of [name, stemOf(name)].map(pairOf)) {
    if (!pair.every((each) => registry.metrics.has(each))) pair.forEach((each) => names.add(each));
  }
  return names;
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
 * @param {Record<string, string>} own
 * @returns {Promise<Metric>}
 */
async function readMetric(entry, own) {
  const segment = entry.segments.length ? segmentOf(entry.segments, own) : undefined;
  const read = async (/** @type {string} */ fingerprint, /** @type {string} */ part) => {
    const params = await readParams(entry.params, part);
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

/**
 * Return the parameters that reports of a metric may carry: one set, or one for each part.
 * @param {Metric} metric
 */
export function acceptedParams({ params, parts }) {
  return parts.length ? parts.map((part) => part.params) : [params];
}
