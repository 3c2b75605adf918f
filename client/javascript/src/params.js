// Parameter sets of metrics, in integer thresholds, and their fingerprints.
//
// A device reports a value in two steps. The permanent response is the bits of the value with noise; the device repeats
// it for a whole epoch. A report is the permanent response with new noise on top. A cohort is a group of devices with
// the same hash functions. The parameters of both steps are one parameter set.
//
// A probability is written as a threshold t: an integer of which 2^32 means probability one. A parameter set has
//
//     k, h, m    bits of a report, hash functions of a string, cohorts
//     f, f0      the permanent response forces a bit to 1 with probability f / 2^32, to 0 with f0 / 2^32
//     q, p       a report has a 1 for a permanent 1 with probability q / 2^32, for a permanent 0 with p / 2^32
//
// or, for generalized randomized response, whose reports name one bucket (`randomizer.js`),
//
//     k, m       buckets, cohorts
//     items      buckets that a device owns after padding or cutting
//     keep       a report is drawn from the own buckets with probability keep / 2^32
//
// A fingerprint is a SHA-256 of the canonical JSON of the set. The fingerprint names the whole set, in a report.
// The permanent fingerprint leaves out p, q, segment, interval and epoch, which do not change the permanent
// response: two sets with the same permanent fingerprint share their cohorts and permanent responses.

import { toHex } from "./bytes.js";
import { sortByKey } from "./collections.js";
import { checkEncoding } from "./encodings.js";
import { sha256 } from "./hashes.js";
import { checkNormalizer } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").ParamsDocument} ParamsDocument */

/** Threshold of probability one, and the number of values of a coin. */
export const ONE = 2 ** 32;

/**
 * Read a parameter set of a registry.
 * @param {ParamsDocument} document
 * @param {string} [part] name of the part, such as "prefix:3"; empty for a metric without parts
 * @returns {Promise<Params>}
 * @throws {ParamsError} the encoding or the normalizer is unknown
 */
export async function readParams(document, part = document.part ?? "") {
  const { categories = [], normalize = "none" } = document;
  checkEncoding(document.encoding);
  normalize.split(",").forEach(checkNormalizer);
  const params = { ...document, categories, normalize, part };
  // A set whose reports name one bucket has none of these numbers. The defaults are those of a response that
  // changes no bit. f0 equals f unless the document has both.
  const { h = 1, f = 0, f0 = f, p = 0, q = ONE } = document;
  return { ...params, h, f, f0, p, q, ...(await fingerprints(params)) };
}

/**
 * Return both fingerprints of a parameter set. The encoding is not checked.
 * @param {ParamsDocument & { layout?: string, segment?: Readonly<Record<string, string>> }} document
 * @returns {Promise<{ fingerprint: string, permanentFingerprint: string }>} 16 and 64 digits of hex
 */
export async function fingerprints(document) {
  const { categories, fields, normalize, part } = document;
  // A key that has its default is left out, so that keys of later versions do not change old fingerprints.
  // JSON writes no key whose value is undefined.
  const hashedKeys = {
    ...document,
    categories: await hashNames(categories),
    fields: await hashNames(fields),
    normalize: normalize === "none" ? undefined : normalize,
    part: part || undefined,
  };
  const { p, q, segment, interval, epoch, ...permanentKeys } = hashedKeys;
  const hashOf = async (/** @type {{}} */ record) => toHex(await sha256(writeCanonicalJson(record)));
  return {
    fingerprint: (await hashOf(hashedKeys)).slice(0, 16), // 64 bits distinguish the few parameter sets of a collector
    permanentFingerprint: await hashOf(permanentKeys),
  };
}

/**
 * Return the SHA-256 of names in hex, or undefined without names. No name is empty.
 * @param {readonly string[]} [names]
 */
const hashNames = async (names) => names?.[0] && toHex(await sha256(names.join("\n")));

/**
 * Read the parameter set of the devices in a segment. Only the fingerprint differs from the set without a
 * segment, whose fingerprint the result has as `plain`.
 * @param {ParamsDocument} document
 * @param {string} part
 * @param {Readonly<Record<string, string>>} segment
 * @returns {Promise<Params>}
 */
export async function readParamsInSegment(document, part, segment) {
  const plain = await readParams(document, part);
  const { fingerprint } = await fingerprints({ ...document, part, segment });
  return { ...plain, segment, fingerprint, plain: plain.fingerprint };
}

/**
 * Return a record as JSON with sorted keys and without white space.
 * @param {{}} record
 */
function writeCanonicalJson(record) {
  return JSON.stringify(Object.fromEntries(sortByKey(Object.entries(record), ([name]) => name)));
}
