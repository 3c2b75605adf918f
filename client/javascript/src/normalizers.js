// Normalizers: texts with the same normal form are the same value. The results equal those in Python. The
// tables of hosts and public suffixes are loaded if a metric needs them.

import { utf8 } from "./bytes.js";
import { ParamsError, entryOf } from "./errors.js";

/** Largest size of a text in bytes of UTF-8. Bounds the time of a normalizer; a longer text fits nowhere. */
const LONGEST = 8192;

// Python's white space is JavaScript's without U+FEFF, and with U+001C to U+001F and U+0085. The pattern
// matches from the first other character to the last one. It has no alternatives, so its time is linear.
const INNER = /(?![\x1c-\x1f\x85])[\S\ufeff](?:[^]*(?![\x1c-\x1f\x85])[\S\ufeff])?/;

/** @typedef {(text: string) => string} Rewrite */

/** @type {Record<string, Rewrite>} */
const REWRITES = {
  none: (text) => text,
  nfc: (text) => text.normalize(),
  // Decomposed first, as Unicode's D145 says: U+0345 becomes a letter, and marks must not pass it.
  casefold: (text) => Array.from(text.normalize("NFD"), folded).join("").normalize(),
  strip: (text) => INNER.exec(text)?.[0] ?? "",
  host: needsTables,
  domain: needsTables,
};

/**
 * Refuse an unknown normalizer.
 * @param {string} name
 */
export function checkNormalizer(name) {
  entryOf(REWRITES, "normalize", name);
}

/**
 * Load the tables of normalizers, or use the program's own functions.
 * @param {Set<string>} names
 * @param {{ host?: Rewrite, domain?: Rewrite }} [functions]
 */
export async function loadNormalizers(names, functions = {}) {
  Object.assign(REWRITES, functions);
  const isNeeded = (/** @type {"host" | "domain"} */ name) =>
    names.has(name) && REWRITES[name] === needsTables;
  if (!isNeeded("host") && !isNeeded("domain")) return;
  const { domainOf, hostOf, readSuffixes } = await import("./hosts.js");
  if (isNeeded("domain")) {
    const suffixes = readSuffixes((await import("../data/suffixes.js")).SUFFIXES);
    REWRITES.domain = (text) => domainOf(REWRITES.strip(text), suffixes);
  }
  if (isNeeded("host")) REWRITES.host = (text) => hostOf(REWRITES.strip(text));
}

/** @returns {never} */
function needsTables() {
  throw new ParamsError("the tables must be loaded first");
}

/**
 * Return the normal form of a text. A text that is too long becomes the empty text.
 * @param {string} name
 * @param {string} text
 */
export function normalize(name, text) {
  const size = utf8(text).length; // before anything else, because it refuses lone surrogates
  if (name === "none") return text;
  const normal = size <= LONGEST ? REWRITES[name](text) : "";
  return utf8(normal).length <= LONGEST ? normal : "";
}

/**
 * Return the full case folding of one character. JavaScript has no case folding, but its case mappings give
 * it with three exceptions.
 * @param {string} character
 */
function folded(character) {
  if (character === "\u0131") return character;
  if (character === "\u1e9e") return "ss";
  const upper = character.toUpperCase();
  return /\p{Script=Cherokee}/u.test(character) ? upper : upper.toLowerCase();
}
