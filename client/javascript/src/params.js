// A parameter set as the registry states it, in integer thresholds, with its fingerprints.

import { hex, utf8 } from "./bytes.js";
import { checkEncoding } from "./encodings.js";
import { sha256 } from "./hashes.js";
import { checkNormalizer } from "./normalizers.js";

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
  return { ...params, ...(await fingerprints(params)) };
}

/**
 * Return both fingerprints of a parameter set, also of one that this client cannot follow.
 * @param {ParamsDocument & { layout?: string }} document
 */
export async function fingerprints(document) {
  const { categories = [], encoding, f, h, k, layout, m, normalize, p, part, q } = document;
  const identity = {
    categories: categories.length ? hex(await sha256(utf8(categories.join("\n")))) : undefined,
    encoding,
    f,
    h,
    k,
    layout,
    m,
    normalize: normalize === "none" ? undefined : normalize,
    p,
    part: part || undefined,
    q,
    v: 1,
  }; // its keys are sorted, and those without a value are not written
  const permanent = { ...identity, p: undefined, q: undefined };
  return {
    fingerprint: (await named(identity)).slice(0, 16),
    permanentFingerprint: await named(permanent),
  };
}

/** @param {object} identity */
async function named(identity) {
  return hex(await sha256(utf8(JSON.stringify(identity))));
}
