// Encodings: the rules by which a value sets bits of a report. The same rules as `rappor/protocol/encodings` in Python.
//
//     encoding    value                 bits that it sets
//     bloom       a string              h bits of k, chosen by the hash functions of the device's cohort
//     onehot      a string              the bit of its category
//     boolean     true or false         bit 0 for true
//     buckets     a number or bigint    the bit of its range
//     set         an array or a Set     of each item, which is a string, the bit of one hash function
//
// The value of a metric with fields is an object with a string for each field. Its normalized strings, joined by
// U+001F, are the string of bloom or the category of onehot.
//
// A value that fits nowhere, such as a string that is no category, sets the last bit if reports name one bucket,
// and no bit otherwise. It is reported all the same: a missing report would reveal the value.
//
// A value is read without the secret, when it is recorded, and encoded later in the cohort of the device. Between
// both steps it is an encoder input: a text to hash, or a list of bits or of texts to hash.

import { LONE_SURROGATE, readIntegers } from "./bytes.js";
import { ReportError, requireEntry } from "./errors.js";
import { murmur3, sha256 } from "./hashes.js";
import { normalize } from "./normalizers.js";

/** @typedef {import("../index.js").Params} Params */
/** @typedef {import("../documents.js").Input} Input */
/** @typedef {Pick<Params, "categories" | "encoding" | "fields" | "h" | "items" | "k" | "keep" | "m" | "normalize" | "part">} Shape the parameters without the noise */
/** @typedef {{ input: Input, fits: boolean }} EncoderInput the input of a value, and whether the value fits */

/**
 * Character between the strings of the fields of a value. No category of a field contains it. A metric with fields has
 * one category for each combination, such as "vim\x1flinux" for the fields editor and system.
 */
const FIELD_SEPARATOR = "\x1f";

/** @type {WeakMap<Shape, string[]>} cache: normalized categories of each parameter set */
const NORMALIZED_CATEGORIES = new WeakMap();

/**
 * @typedef {object} Encoding
 * @property {(value: any, shape: Shape) => EncoderInput} read returns the input of a value; ReportError for a
 *   value of the wrong kind, whose message does not contain the value
 * @property {(up: number, down: number, shape: Shape) => number} worst returns the loss of the two values
 *   whose bits differ most, in nats; see `computeLargestLoss`
 */

/** @type {Encoding["worst"]} one bit differs in each direction, or of a set as many bits as it has items */
const lossInBothDirections = (up, down, { items = 1 }) => items * (up + down);

/** @type {Record<string, Encoding>} */
const ENCODINGS = {
  bloom: {
    read: readText,
    worst: (up, down, { h, k }) => {
      // Filters differ most if they are disjoint, with h bits each ([EPK14] Theorem 1). For k < 2 h the larger
      // filter leaves fewer bits to the smaller one, and at least one. The larger one may be of either value.
      const more = Math.min(h, k - 1);
      const fewer = Math.min(h, k - more);
      return Math.max(more * up + fewer * down, fewer * up + more * down);
    },
  },
  onehot: {
    read: (value, shape) => {
      const { input } = readText(value, shape);
      // A category of a metric without fields contains no separator, so it is one text.
      let names = NORMALIZED_CATEGORIES.get(shape);
      if (!names) {
        names = shape.categories.map((category) => joinNormalized(shape, category.split(FIELD_SEPARATOR)).input);
        NORMALIZED_CATEGORIES.set(shape, names);
      }
      // Of two categories with equal normalized names the first one is used, as in Python.
      const bit = names.indexOf(input);
      return { input: bit < 0 ? listUnlistedBits(shape) : [bit], fits: bit >= 0 };
    },
    worst: lossInBothDirections,
  },
  boolean: {
    read: (value) => {
      if (typeof value !== "boolean") refuse("true or false", value);
      return { input: value ? [0] : [], fits: true };
    },
    worst: (up, down) => Math.max(up, down), // one bit differs, and in one direction only
  },
  buckets: {
    read: (value, shape) => {
      if (typeof value !== "number" && typeof value !== "bigint") refuse("a number", value);
      const fits = value === value; // false for NaN only
      // The categories are the edges, increasing. The edge between two buckets belongs to the bucket above it.
      const bucket = shape.categories.filter((edge) => Number(edge) <= value).length;
      return { input: fits ? [bucket] : listUnlistedBits(shape), fits };
    },
    worst: lossInBothDirections,
  },
  set: {
    read: (value, shape) => {
      // A string would be read as its letters, and an iterator could be read only once.
      if (!Array.isArray(value) && !(value instanceof Set)) refuse("an array or a Set of texts", value);
      const items = [.../** @type {Iterable<unknown>} */ (value)];
      for (const item of items) {
        if (typeof item !== "string") refuse("an array or a Set of texts", item);
      }
      // Names of files can have half of a surrogate pair, which cannot be hashed. The item is left out.
      const wellFormed = /** @type {string[]} */ (items).filter((item) => !LONE_SURROGATE.test(item));
      const normal = wellFormed.map((item) => normalize(shape.normalize, item)).filter((item) => item);
      const input = /** @type {string[]} */ ([...new Set(normal)]);
      return { input, fits: wellFormed.length === items.length && input.length <= (shape.items ?? 1) };
    },
    worst: lossInBothDirections,
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
 * Return the encoder input of a value, and whether the value fits. No secret is needed.
 * @param {Shape} shape
 * @param {unknown} value
 * @throws {ReportError} the value is of the wrong kind, or a text with a lone surrogate
 */
export function readValue(shape, value) {
  return ENCODINGS[shape.encoding].read(value, shape);
}

/**
 * Return the true bits of an encoder input, packed: bit i is bit i mod 8 of byte i div 8.
 * @param {Shape} shape
 * @param {Input} input
 * @param {number} cohort
 * @returns {Promise<Uint8Array>} ceil(k / 8) bytes
 */
export async function encode(shape, input, cohort) {
  const packed = new Uint8Array(Math.ceil(shape.k / 8));
  /** @type {Set<number>} */
  const bits = new Set();
  for (const part of [input].flat()) {
    const bitsOfPart = typeof part === "string" ? await hashToBits(part, cohort, shape) : [part];
    for (const bit of bitsOfPart) bits.add(bit);
    // A set of very many items owns all buckets soon. Hashing the remaining items would change nothing.
    if (bits.size === shape.k) break;
  }
  for (const bit of bits) packed[bit >> 3] |= 1 << (bit & 7);
  return packed;
}

/**
 * Return the loss of the two values whose bits differ most, in nats.
 * @param {Shape} shape
 * @param {number} up loss of a bit that is 1 for one value and 0 for the other, if it is reported as 1
 * @param {number} down the same if it is reported as 0
 */
export function computeLargestLoss(shape, up, down) {
  return ENCODINGS[shape.encoding].worst(up, down, shape);
}

/**
 * Return the bit of each hash function for a string. SHA-256 decides which strings are equal; MurmurHash3, whose
 * collisions anybody can construct, only spreads them over cohorts.
 * @param {string} value normalized
 * @param {number} cohort
 * @param {Shape} shape
 */
async function hashToBits(value, cohort, { h, k, part }) {
  const [, length] = part.split(":"); // the part "prefix:3" reports the first three characters
  const n = Number(length);
  // A prefix counts characters, not UTF-16 units; n characters have at most 2 n units.
  const hashed = length ? Array.from(value.slice(0, 2 * n)).slice(0, n).join("") : value;
  // MurmurHash3 hashes 16 bytes of the SHA-256. To find two strings with equal ones takes 2^64 attempts.
  const words = readIntegers((await sha256(hashed)).subarray(0, 16));
  // Hash function j of a cohort has the seed cohort * h + j. The product maps 32 bits to 0..k-1, exactly: it is
  // less than 2^53.
  return Array.from({ length: h }, (_, j) =>
    Math.floor((murmur3(words, cohort * h + j) * k) / 2 ** 32),
  );
}

/**
 * Return the normalized text of a value. Of a value with fields, the normalized texts are joined.
 * @param {any} value
 * @param {Shape} shape
 * @returns {{ input: string, fits: boolean }}
 */
function readText(value, shape) {
  const { fields } = shape;
  const texts = fields?.map((field) => value?.[field]) ?? [value];
  // The number of keys shows whether there is another key than the fields, because each field has a text.
  if (texts.some((text) => typeof text !== "string") || (fields && Object.keys(value).length !== fields.length)) {
    refuse(fields ? `texts of ${fields}` : "a text", value);
  }
  return joinNormalized(shape, texts);
}

/**
 * Normalize the texts of fields, each by its own normalizer, and join them.
 * @param {Shape} shape
 * @param {string[]} texts one text for a value without fields
 * @returns {{ input: string, fits: boolean }}
 */
function joinNormalized({ fields, normalize: names }, texts) {
  // `names` has a normalizer for each field, such as "domain,none". A single "none" stands for all fields.
  const fitting = texts.map((text, i) => {
    const normal = normalize(names.split(",")[i] ?? "none", text);
    // Only a normalizer can leave nothing of a text, such as the host of a text that is no address. U+001F in a
    // field would make two fields of it, so the field counts as empty.
    return fields && normal?.includes(FIELD_SEPARATOR) ? undefined : normal;
  });
  // `join` writes nothing for undefined.
  return { input: fitting.join(FIELD_SEPARATOR), fits: !fitting.includes(undefined) };
}

/**
 * Return the bits that a value outside all categories or buckets sets: the last bit if reports name one bucket.
 * @param {Shape} shape
 */
function listUnlistedBits({ k, keep }) {
  return keep === undefined ? [] : [k - 1];
}

/**
 * Raise ReportError with the kind of a value, and not with the value.
 * @param {string} expected
 * @param {unknown} value
 * @returns {never}
 */
function refuse(expected, value) {
  throw new ReportError(`a value must be ${expected}, got ${value === null ? value : typeof value}`);
}
