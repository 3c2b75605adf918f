// Parameter sets of metrics, in integer thresholds, and their fingerprints.
//
// A device reports a value in two steps. The permanent response is the bits of the value with noise, and the device
// repeats it for a whole epoch (a month, a quarter, a year or life). A report is the permanent response with new noise
// on top. A cohort is a group of devices with the same hash functions. The parameters of both steps are one parameter
// set.
//
// A probability is written as a threshold: the integer t stands for the probability t / 2^32. A parameter set has
//
//     k, h, m    numbers of bits of a report, of hash functions of a string, and of cohorts
//     f, f0      the permanent response forces a bit to 1 with probability f / 2^32, to 0 with f0 / 2^32
//     q, p       a report has a 1 for a permanent 1 with probability q / 2^32, for a permanent 0 with p / 2^32
//
// Reports of generalized randomized response name one of k buckets (randomizer.js). A device has n own buckets: the
// buckets of its value, one for a category and one for each item of a set. If the value has fewer than n buckets, random
// other buckets are added. If the value has more, n of them are drawn. The parameter set of this mechanism has
//
//     k, m       numbers of buckets and of cohorts
//     items      the number n of own buckets
//     keep       a report is drawn from the own buckets with probability keep / 2^32, else from all buckets
//
// A parameter set has two fingerprints, which are SHA-256 values of its canonical JSON:
//
//     fingerprint              of all keys. Each report carries it, so that a collector recognizes a report that was
//                              made under other parameters
//     permanent fingerprint    without p, q, segment, interval and epoch, which do not change the permanent response.
//                              Two sets with the same permanent fingerprint share their cohorts and permanent responses

import { toHex } from "./bytes.js";
import { sortByKey } from "./collections.js";
import { checkEncoding } from "./encodings.js";
import { sha256 } from "./hashes.js";
import { checkNormalizer } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").ParamsDocument} ParamsDocument */

/** Threshold of probability one. It is also the number of values of a coin, a uniform integer of 32 bits. */
export const ONE = 2 ** 32;

/**
 * Read a parameter set of a registry.
 * @param {ParamsDocument} document
 * @param {string} [part] name of the part of a string that is reported, such as "prefix:3" for its first three
 *   characters; empty for a metric without parts. The default is the part in the document
 * @returns {Promise<Params>}
 * @throws {ParamsError} the encoding or the normalizer is unknown
 */
export async function readParams(document, part = document.part ?? "") {
  const { categories = [], normalize = "none" } = document;
  checkEncoding(document.encoding);
  normalize.split(",").forEach(checkNormalizer);
  const params = { ...document, categories, normalize, part };
  // Generalized randomized response has `items` and `keep` in place of these five numbers, so its documents lack them.
  // Their defaults would change no bit. Other documents may lack f0 only: then a bit is forced to 0 with the same
  // probability as to 1.
  const { h = 1, f = 0, f0 = f, p = 0, q = ONE } = document;
  return { ...params, h, f, f0, p, q, ...(await fingerprints(params)) };
}

/**
 * Return both fingerprints of a parameter set. Encoding and normalizer are not checked.
 * @param {ParamsDocument & { layout?: string, segment?: Readonly<Record<string, string>> }} document `layout` is the
 *   hash layout: the rule that computes the bits of a string. Devices of this project have one rule, so their documents
 *   lack the key. Parameter sets of other software may contain it
 * @returns {Promise<{ fingerprint: string, permanentFingerprint: string }>} 16 and 64 digits of hex
 */
export async function fingerprints(document) {
  const { categories, fields, normalize, part } = document;
  // A key that has its default is left out of the JSON. So a later version can add a key without changing the
  // fingerprints of the sets that do not use it. JSON.stringify writes no key whose value is undefined.
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
 * Return the SHA-256 of a list of names in hex, or undefined for no list and for an empty one. The names of categories
 * and fields are never empty.
 * @param {readonly string[]} [names]
 */
const hashNames = async (names) => names?.[0] && toHex(await sha256(names.join("\n")));

/**
 * Read the parameter set of the devices in a segment (segments.js). The devices of all segments have the same numbers,
 * so only the fingerprint depends on the segment. The result also has the key `plain`: the fingerprint of the parameter
 * set without a segment.
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
 * Return a record as canonical JSON: with sorted keys and without white space, as the client in Python writes it.
 * @param {{}} record
 */
function writeCanonicalJson(record) {
  return JSON.stringify(Object.fromEntries(sortByKey(Object.entries(record), ([name]) => name)));
}
