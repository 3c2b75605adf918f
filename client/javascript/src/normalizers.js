// What is the same value, to the letter as in Python. Hosts need tables, which are loaded on demand.

import { utf8 } from "./bytes.js";
import { ParamsError, entryOf } from "./errors.js";

/** Bytes of UTF-8 that a normalizer takes; a longer text fits nowhere. */
const LONGEST = 8192;

// Python's white space: JavaScript's without U+FEFF, but with U+001C to U+001F and U+0085.
// From the first other character to the last one, in one pass.
const INNER = /(?![\x1c-\x1f\x85])[\S\ufeff](?:[^]*(?![\x1c-\x1f\x85])[\S\ufeff])?/;

/** @typedef {(text: string) => string} Rewrite */

/** @type {Record<string, Rewrite>} */
const REWRITES = {
  none: (text) => text,
  nfc: (text) => text.normalize(),
  casefold: (text) => Array.from(text.normalize(), folded).join("").normalize(),
  strip: (text) => INNER.exec(text)?.[0] ?? "",
  host: needsTables,
  domain: needsTables,
};

/**
 * Refuse a normalizer that this version does not know.
 * @param {string} name
 */
export function checkNormalizer(name) {
  entryOf(REWRITES, "normalize", name);
}

/**
 * Load what normalizers need, or take the program's own functions.
 * @param {Set<string>} names
 * @param {{ host?: Rewrite, domain?: Rewrite }} [own]
 */
export async function loadNormalizers(names, own = {}) {
  Object.assign(REWRITES, own);
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
 * Return a text as the normalizer writes it; one that is too long becomes the empty text.
 * @param {string} name
 * @param {string} text
 */
export function normalize(name, text) {
  const size = utf8(text).length; // first of all: it refuses lone surrogates
  if (name === "none") return text;
  const normal = size <= LONGEST ? REWRITES[name](text) : "";
  return utf8(normal).length <= LONGEST ? normal : "";
}

/**
 * Return the full case folding of one character, from the mappings that JavaScript has.
 * @param {string} character
 */
function folded(character) {
  if (character === "\u0131") return character;
  if (character === "\u1e9e") return "ss";
  const upper = character.toUpperCase();
  return /\p{Script=Cherokee}/u.test(character) ? upper : upper.toLowerCase();
}
