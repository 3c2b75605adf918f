// A parameter set as the registry states it, in integer thresholds, with its fingerprints.

import { hex } from "./bytes.js";
import { checkEncoding } from "./encodings.js";
import { sha256 } from "./hashes.js";
import { checkNormalizer } from "./normalizers.js";
import { sort } from "./records.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../index.js").ParamsDocument} ParamsDocument */

/** The threshold of probability one. */
export const ONE = 2 ** 32;

/**
 * Read a parameter set; ParamsError for one that this client cannot follow to the letter.
 * @param {ParamsDocument} document
 * @param {string} [part] of a string; the empty text for all of it
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
 * Return both fingerprints of a parameter set, also of one that this client cannot follow.
 * @param {ParamsDocument & { layout?: string, segment?: Readonly<Record<string, string>> }} document
 */
export async function fingerprints(document) {
  const { categories = [], normalize, part } = document;
  const identity = {
    ...document,
    categories: categories.length ? hex(await sha256(categories.join("\n"))) : undefined,
    normalize: normalize === "none" ? undefined : normalize,
    part: part || undefined,
  }; // keys without a value are not written
  const { p, q, segment, ...kept } = identity;
  const named = async (/** @type {{}} */ whole) => hex(await sha256(canonical(whole)));
  return {
    fingerprint: (await named(identity)).slice(0, 16),
    permanentFingerprint: await named(kept),
  };
}

/**
 * Return the parameters of devices that tell a segment.
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
function canonical(record) {
  return JSON.stringify(Object.fromEntries(sort(Object.entries(record), ([name]) => name)));
}
