// Parameter sets of a registry, in integer thresholds, and their fingerprints.

import { hex } from "./bytes.js";
import { checkEncoding } from "./encodings.js";
import { sha256 } from "./hashes.js";
import { checkNormalizer } from "./normalizers.js";
import { sortByKey } from "./collections.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").ParamsDocument} ParamsDocument */

/** Threshold of probability one. */
export const ONE = 2 ** 32;

/**
 * Read a parameter set; ParamsError for an unknown encoding or normalizer.
 * @param {ParamsDocument} document
 * @param {string} [part] the empty text for a metric without parts
 * @returns {Promise<Params>}
 */
export async function readParams(document, part = document.part ?? "") {
  const { categories = [], normalize = "none" } = document;
  checkEncoding(document.encoding);
  checkNormalizer(normalize);
  const params = { ...document, categories, normalize, part };
  return { f0: params.f, ...params, ...(await fingerprints(params)) };
}

/**
 * Return both fingerprints of a parameter set. The encoding may be unknown.
 * @param {ParamsDocument & { layout?: string, segment?: Readonly<Record<string, string>> }} document
 */
export async function fingerprints(document) {
  const { categories = [], normalize, part } = document;
  const identity = {
    ...document,
    categories: categories.length ? hex(await sha256(categories.join("\n"))) : undefined,
    normalize: normalize === "none" ? undefined : normalize,
    part: part || undefined,
  }; // JSON leaves out keys without a value
  const { p, q, segment, interval, epoch, ...kept } = identity;
  const hashOf = async (/** @type {{}} */ object) => hex(await sha256(canonicalJson(object)));
  return {
    fingerprint: (await hashOf(identity)).slice(0, 16),
    permanentFingerprint: await hashOf(kept),
  };
}

/**
 * Return the parameter set of the devices in a segment.
 * @param {ParamsDocument} document
 * @param {string} part
 * @param {Readonly<Record<string, string>>} segment
 * @returns {Promise<Params>}
 */
export async function inSegment(document, part, segment) {
  const plain = await readParams(document, part);
  const { fingerprint } = await fingerprints({ ...document, part, segment });
  return { ...plain, segment, fingerprint, plain: plain.fingerprint };
}

/** @param {{}} record */
function canonicalJson(record) {
  return JSON.stringify(Object.fromEntries(sortByKey(Object.entries(record), ([name]) => name)));
}
