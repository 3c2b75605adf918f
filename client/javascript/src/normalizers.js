// Normalizers: functions that map different spellings of a value to one spelling.
//
// A metric names its normalizer. The analyst normalizes candidates in Python, by the normalizer of the same name. A
// device and the analyst must hash the same text, so both implementations must agree in every character:
//
//     none        the text as it is
//     nfc         Unicode's composed form
//     casefold    full case folding, then nfc
//     strip       the text without white space at both ends. White space is defined as in Python
//     host        the host of a web address, see hosts.js
//     domain      the registrable domain of a web address: example.co.uk for www.example.co.uk
//
// `host` and `domain` need tables of 40 kB, which are loaded only if a metric needs them.
//
// A text that is too long for a normalizer has no normal spelling (`normalize` returns undefined). The encoder
// (encodings.js) takes the empty text in its place, and leaves such an item of a set out.

import { encodeUtf8 } from "./bytes.js";
import { ParamsError, requireEntry } from "./errors.js";

/**
 * Longest text that a normalizer reads or returns, in bytes of UTF-8. Unicode's composition of many marks behind one
 * letter takes a time that grows with the square of their number, so the limit bounds the time of record(). The client
 * in Python has the same limit: with another one, a device and the analyst would hash different texts.
 */
const MAX_TEXT_BYTES = 8192;

// Matches a text from its first to its last character that Python does not take for white space. Python's white space
// is the white space of JavaScript (\s) without U+FEFF, and with U+001C to U+001F and U+0085. The time is linear in the
// length of the text, because the pattern has no alternatives to go back to.
const INNER = /(?![\x1c-\x1f\x85])[\S\ufeff](?:[^]*(?![\x1c-\x1f\x85])[\S\ufeff])?/;

/** @typedef {(text: string) => string} Rewrite function that maps a text to its normal spelling */

/**
 * Functions of the normalizers. Those of `host` and `domain` are replaced when their tables are loaded.
 * @type {Record<string, Rewrite>}
 */
const REWRITES = {
  none: (text) => text,
  nfc: (text) => text.normalize(),
  // The text is decomposed (NFD) before the folding, as Unicode's definition D145 asks. The reason is U+0345, a mark
  // below a letter, which folds to the letter iota. The decomposition moves this mark behind all other marks of its
  // letter. Without it, the marks behind U+0345 would become marks of the iota.
  casefold: (text) => Array.from(text.normalize("NFD"), foldCase).join("").normalize(),
  strip: (text) => INNER.exec(text)?.[0] ?? "",
  host: refuseWithoutTables,
  domain: refuseWithoutTables,
};

/**
 * Refuse an unknown normalizer.
 * @param {string} name
 * @throws {ParamsError}
 */
export function checkNormalizer(name) {
  requireEntry(REWRITES, "normalize", name);
}

/**
 * Load the tables of the normalizers `host` and `domain` if a metric needs them. A function that the host program
 * passes replaces one of these two normalizers, and its tables are not loaded. Tables and functions are used by all
 * clients of the page, because the page loads this module once.
 * @param {Set<string>} names normalizers of all metrics
 * @param {{ host?: Rewrite, domain?: Rewrite }} [functions] functions of the program
 * @returns {Promise<void>} rejects if a table cannot be loaded
 */
export async function loadNormalizers(names, functions = {}) {
  // The defaults also apply to a function that is undefined. Without them, `{ host: undefined }` would remove the
  // normalizer, and every record() of a metric with hosts would raise. The other normalizers cannot be replaced.
  REWRITES.host = functions.host ?? REWRITES.host;
  REWRITES.domain = functions.domain ?? REWRITES.domain;
  const isNeeded = (/** @type {"host" | "domain"} */ name) =>
    names.has(name) && REWRITES[name] === refuseWithoutTables;
  if (!isNeeded("host") && !isNeeded("domain")) return;
  const { extractDomain, extractHost, readSuffixes } = await import("./hosts.js");
  if (isNeeded("domain")) {
    const suffixes = readSuffixes((await import("../data/suffixes.js")).SUFFIXES);
    REWRITES.domain = (text) => extractDomain(REWRITES.strip(text), suffixes);
  }
  if (isNeeded("host")) REWRITES.host = (text) => extractHost(REWRITES.strip(text));
}

/** @returns {never} */
function refuseWithoutTables() {
  throw new ParamsError("no tables are loaded"); // by `loadNormalizers`, which `Client.open` calls
}

/**
 * Return the normal spelling of a text. Return undefined if the text or its normal spelling is too long, or if the
 * normalizer leaves nothing of the text, such as the host of a text that is no address.
 * @param {string} name
 * @param {string} text
 * @returns {string | undefined}
 * @throws {ReportError} the text contains a lone surrogate
 */
export function normalize(name, text) {
  const size = encodeUtf8(text).length; // also for "none", because it raises for a lone surrogate
  if (name === "none") return text;
  const normal = size <= MAX_TEXT_BYTES ? REWRITES[name](text) : "";
  // A normal spelling can be longer than its text. Some characters, such as U+0958, are excluded from composition
  // (Unicode's CompositionExclusions), so their nfc is the longer decomposed form.
  return normal && encodeUtf8(normal).length <= MAX_TEXT_BYTES ? normal : undefined;
}

/**
 * Return the full case folding of one character, as Python's `str.casefold` does. JavaScript has no case folding. For
 * most characters, the lower case of the upper case is the same. Example: the small sharp s has the upper case SS, so
 * it becomes ss. There are three exceptions:
 *
 * - The dotless i stays as it is. Its upper case is I, and the lower case of I is the i with a dot.
 * - The capital sharp s becomes ss. It is upper case already, and its lower case is the small sharp s.
 * - Letters of Cherokee fold to upper case.
 * @param {string} character
 */
function foldCase(character) {
  if (character === "\u0131") return character;
  if (character === "\u1e9e") return "ss";
  const upper = character.toUpperCase();
  return /\p{Script=Cherokee}/u.test(character) ? upper : upper.toLowerCase();
}
