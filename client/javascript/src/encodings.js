// Encodings: the rules by which a value sets the true bits of a report. They are the same as in Python
// (`rappor/protocol/encodings`).
//
//     encoding    value                 bits that it sets
//     bloom       a string              h bits of k, chosen by the hash functions of the device's cohort
//     onehot      a string              the bit of its category
//     boolean     true or false         bit 0 for true
//     buckets     a number or bigint    the bit of its range
//     set         an array or a Set     for each item, which is a string, the bit that one hash function chooses
//
// The value of a metric with fields is an object with a string for each field. Its normalized strings, joined by
// U+001F, are the string of bloom or the category of onehot.
//
// A value may fit nowhere. It is reported all the same, because a missing report would reveal that the value fits
// nowhere:
//
//     bloom              a string without a normal spelling sets the bits of the empty text
//     onehot, buckets    a string that is no category, and NaN, set the last bit if reports name one bucket
//                        (generalized randomized response), and no bit otherwise
//     set                an item without a normal spelling, or with a lone surrogate, is left out
//
// Encoding has two steps. Between them the value is an encoder input: a text to hash, a list of bits, or a list of
// texts to hash.
//
// 1. `readValue`, when the value is recorded. It is synchronous and needs no secret. A value of the wrong kind raises
//    here.
// 2. `encode`, before the event is stored. It needs the cohort, which depends on the secret, and SHA-256, which is
//    asynchronous in a browser.
//
// Example: an encoding "onehot" with the categories "light" and "dark", and the value "dark".
//
//     readValue    { input: [1], fits: true }
//     encode       one byte with the bits 01000000, the first bit first

import { LONE_SURROGATE, readIntegers } from "./bytes.js";
import { RapporError, ReportError, requireEntry } from "./errors.js";
import { murmur3, sha256 } from "./hashes.js";
import { normalize } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Input} Input */
/**
 * The parameters that determine the true bits, without the parameters of the noise.
 * @typedef {Pick<Params, "categories" | "encoding" | "fields" | "h" | "items" | "k" | "keep" | "m" | "normalize" | "part">} EncodingParams
 */
/** @typedef {{ input: Input, fits: boolean }} EncoderInput the input of a value, and whether the value fits */

/**
 * Character between the strings of the fields of a value. A metric with fields has one category for each combination,
 * such as "vim\x1flinux" for the fields editor and system. No category of a field contains this character.
 */
const FIELD_SEPARATOR = "\x1f";

/**
 * Largest number of different items of a set that are used. So many items own all buckets of a report, so further items
 * would change nothing: each of at most 2,040 buckets has no item with a probability of e^(-100000 / 2040), so any of
 * them has none with a probability of at most 2040 e^(-100000 / 2040), about 1e-18. With a larger number, a page stops
 * longer for a very large set.
 */
const MAX_ITEMS = 1e5;

/** @type {WeakMap<EncodingParams, string[]>} cache: the normalized categories of each parameter set */
const NORMALIZED_CATEGORIES = new WeakMap();

/**
 * @typedef {object} Encoding
 * @property {(value: any, params: EncodingParams) => EncoderInput} read returns the input of a value; ReportError for a
 *   value of the wrong kind, whose message does not contain the value
 * @property {(up: number, down: number, params: EncodingParams) => number} computeLoss returns the largest privacy loss
 *   of reports over all pairs of values, in nats. `computeLargestLoss` explains the arguments
 */

/**
 * Return the loss of two values with different bits. Each value sets one bit, or `items` bits for a set, that the
 * other value does not set.
 * @type {Encoding["computeLoss"]}
 */
const lossInBothDirections = (up, down, { items = 1 }) => items * (up + down);

/** @type {Record<string, Encoding>} */
const ENCODINGS = {
  bloom: {
    read: readText,
    computeLoss: (up, down, { h, k }) => {
      // Two Bloom filters differ most if they have no bit in common and h bits each ([EPK14] Theorem 1). A report of
      // k < 2 h bits has no room for both: one filter has `more` bits, at most k - 1, and the other has the rest.
      // Either of the two values may have the larger filter.
      const more = Math.min(h, k - 1);
      const fewer = Math.min(h, k - more);
      return Math.max(more * up + fewer * down, fewer * up + more * down);
    },
  },
  onehot: {
    read: (value, params) => {
      const { input } = readText(value, params);
      // Categories are normalized like values. `split` leaves a category of a metric without fields whole, because it
      // contains no separator.
      let names = NORMALIZED_CATEGORIES.get(params);
      if (!names) {
        names = params.categories.map((category) => joinNormalized(params, category.split(FIELD_SEPARATOR)).input);
        NORMALIZED_CATEGORIES.set(params, names);
      }
      // Two categories may have the same normalized name. The first of them is used, as in Python.
      const bit = names.indexOf(input);
      return { input: bit < 0 ? listUnlistedBits(params) : [bit], fits: bit >= 0 };
    },
    computeLoss: lossInBothDirections,
  },
  boolean: {
    read: (value) => {
      if (typeof value !== "boolean") refuse("true or false", value);
      return { input: value ? [0] : [], fits: true };
    },
    computeLoss: (up, down) => Math.max(up, down), // one bit differs, and in one direction only
  },
  buckets: {
    read: (value, params) => {
      if (typeof value !== "number" && typeof value !== "bigint") refuse("a number", value);
      const fits = value === value; // false for NaN only
      // The categories are the edges between the buckets, in increasing order. A value that equals an edge belongs to
      // the bucket above the edge.
      const bucket = params.categories.filter((edge) => Number(edge) <= value).length;
      return { input: fits ? [bucket] : listUnlistedBits(params), fits };
    },
    computeLoss: lossInBothDirections,
  },
  set: {
    read: (value, params) => {
      // Other iterables are refused: a string would be read as a set of letters, and an iterator can be read only once.
      if (!Array.isArray(value) && !(value instanceof Set)) refuse("an array or a Set of texts", value);
      /** @type {Set<string>} */
      const input = new Set();
      let isWellFormed = true;
      for (const item of value) {
        if (typeof item !== "string") refuse("an array or a Set of texts", item);
        // Names of files can contain half of a surrogate pair, which UTF-8 cannot express, so it cannot be hashed. Such
        // an item is left out, and the value counts as one that does not fit.
        if (LONE_SURROGATE.test(item)) isWellFormed = false;
        // Without the limit, normalizing a million items would stop the page for ten seconds.
        else if (input.size < MAX_ITEMS) input.add(normalize(params.normalize, item) ?? "");
      }
      input.delete("");
      return { input: [...input], fits: isWellFormed && input.size <= (params.items ?? 1) };
    },
    computeLoss: lossInBothDirections,
  },
};

/**
 * Refuse an unknown encoding.
 * @param {string} encoding
 * @throws {ParamsError}
 */
export function checkEncoding(encoding) {
  requireEntry(ENCODINGS, "encoding", encoding);
}

/**
 * Return the encoder input of a value, and whether the value fits: whether it is in a category or bucket, and the
 * normal spelling of its text is not empty.
 * @param {EncodingParams} params
 * @param {unknown} value
 * @throws {ReportError} the value is of the wrong kind or cannot be read, or is a text with a lone surrogate
 */
export function readValue(params, value) {
  try {
    return ENCODINGS[params.encoding].read(value, params);
  } catch (error) {
    if (error instanceof RapporError) throw error;
    // The value may be an object of the host program with a getter, an iterator or a proxy, which may raise any error.
    // The message of that error may contain the value, so it is dropped.
    throw new ReportError("a value must be readable");
  }
}

/**
 * Return the true bits of an encoder input, packed: bit i is bit i mod 8 of byte i div 8.
 * @param {EncodingParams} params
 * @param {Input} input
 * @param {number} cohort
 * @returns {Promise<Uint8Array>} ceil(k / 8) bytes
 */
export async function encode(params, input, cohort) {
  const packed = new Uint8Array(Math.ceil(params.k / 8));
  /** @type {Set<number>} */
  const bits = new Set();
  // An element is a text to hash, or the index of a bit.
  for (const element of [input].flat()) {
    const bitsOfElement = typeof element === "string" ? await hashToBits(element, cohort, params) : [element];
    for (const bit of bitsOfElement) bits.add(bit);
    // A set of very many items owns all buckets soon. Hashing the remaining items would change nothing.
    if (bits.size === params.k) break;
  }
  for (const bit of bits) packed[bit >> 3] |= 1 << (bit & 7);
  return packed;
}

/**
 * Return the privacy loss of reports, in nats: the largest loss over all pairs of values. The loss of a pair is a sum
 * over the bits in which the two values differ.
 * @param {EncodingParams} params
 * @param {number} up loss of one bit that only the first value sets, if the bit is 1 in all reports
 * @param {number} down loss of one bit that only the second value sets, if the bit is 0 in all reports
 */
export function computeLargestLoss(params, up, down) {
  return ENCODINGS[params.encoding].computeLoss(up, down, params);
}

/**
 * Return the bit of each hash function of a cohort for a string.
 *
 * The string is hashed by SHA-256 first. Then the SHA-256 is hashed by MurmurHash3, with another seed for each hash
 * function. Anybody can construct two strings whose MurmurHash3 are equal for all seeds, and no decoder could tell the
 * two strings apart. SHA-256 before MurmurHash3 prevents this construction.
 * @param {string} value normalized
 * @param {number} cohort
 * @param {EncodingParams} params
 */
async function hashToBits(value, cohort, { h, k, part }) {
  const [, length] = part.split(":"); // the part "prefix:3" reports the first three characters
  const n = Number(length);
  // A prefix has n characters, and not n UTF-16 code units. n characters have at most 2 n code units: the first slice
  // keeps a long text from being split into all of its characters.
  const hashed = length ? Array.from(value.slice(0, 2 * n)).slice(0, n).join("") : value;
  // MurmurHash3 hashes the first 16 bytes of the SHA-256. To find two strings for which they are equal takes about 2^64
  // attempts.
  const words = readIntegers((await sha256(hashed)).subarray(0, 16));
  // Hash function j of a cohort has the seed cohort * h + j. floor(hash * k / 2^32) maps a hash of 32 bits to 0..k-1.
  // The product is less than 2^53, so it is exact.
  return Array.from({ length: h }, (_, j) =>
    Math.floor((murmur3(words, cohort * h + j) * k) / 2 ** 32),
  );
}

/**
 * Return the normalized text of a value. For a metric with fields it is the normalized texts of all fields, joined.
 * @param {any} value
 * @param {EncodingParams} params
 * @returns {{ input: string, fits: boolean }}
 */
function readText(value, params) {
  const { fields } = params;
  // The copy has no inherited properties. Otherwise a field called "constructor" would be read as the function that
  // every object inherits.
  const own = fields && { __proto__: null, ...value };
  const texts = fields?.map((field) => own[field]) ?? [value];
  // If each field has a text, a different number of keys means that the value has a key that is no field.
  if (texts.some((text) => typeof text !== "string") || (fields && Object.keys(own).length !== fields.length)) {
    refuse(fields ? `texts of ${fields}` : "a text", value);
  }
  return joinNormalized(params, texts);
}

/**
 * Normalize the texts of fields, each by its own normalizer, and join them.
 * @param {EncodingParams} params
 * @param {string[]} texts one text for a value without fields
 * @returns {{ input: string, fits: boolean }}
 */
function joinNormalized({ fields, normalize: names }, texts) {
  // `names` has a normalizer for each field, such as "domain,none". A single "none" stands for all fields.
  const fitting = texts.map((text, i) => {
    const normal = normalize(names.split(",")[i] ?? "none", text);
    // `normal` is undefined if the normalizer leaves nothing of the text, such as the host of a text that is no
    // address. A separator in a field would make two fields of it, so such a field counts as empty, too.
    return fields && normal?.includes(FIELD_SEPARATOR) ? undefined : normal;
  });
  // `join` writes the empty text for undefined.
  return { input: fitting.join(FIELD_SEPARATOR), fits: !fitting.includes(undefined) };
}

/**
 * Return the bits that a value outside of all categories and buckets sets. Reports that name one bucket have the last
 * bucket for such values. Other reports have no bit for them.
 * @param {EncodingParams} params
 */
function listUnlistedBits({ k, keep }) {
  return keep === undefined ? [] : [k - 1];
}

/**
 * Raise ReportError. The message contains the type of the value, and never the value.
 * @param {string} expected
 * @param {unknown} value
 * @returns {never}
 */
function refuse(expected, value) {
  throw new ReportError(`a value must be ${expected}, got ${value === null ? value : typeof value}`);
}
